/* world.h - everything by which the library affects or observes anything outside its own memory.
 *
 * Production uses vgpu_world_real; unit tests point vgpu_world at their own table.
 */
#ifndef VGPU_WORLD_H
#define VGPU_WORLD_H

#include <stddef.h>
#include <stdint.h>

#include "drivers.h"
#include "identity.h"
#include "instant.h"

enum vgpu_map {
    VGPU_MAP_READ,   /* an existing file of at least this size, read-only */
    VGPU_MAP_WRITE,  /* an existing file of at least this size */
    VGPU_MAP_CREATE, /* the same, created zero-filled if there is none */
};

struct vgpu_world {
    /* The driver's functions; NULL if there is no driver. */
    const struct vgpu_cuda *(*cuda)(void);
    const struct vgpu_nvml *(*nvml)(void);
    /* The next definition of this name behind ours, or NULL. May be NULL. */
    void *(*next)(const char *name);
    struct vgpu_instant (*now)(void);
    struct vgpu_instant (*about_now)(void); /* up to 10 ms late, in a fraction of the time */
    void (*sleep_for)(vgpu_duration);
    struct vgpu_identity (*self)(void);
    /* Return 1 if the process with this owner word (vgpu_abi.h) has certainly ended, as seen from `self`. */
    int (*is_dead)(uint64_t owner, const struct vgpu_identity *self);
    /* Return the layout of the live process with this PID of our namespace, or 0 if it cannot be seen. */
    uint64_t (*layout_of)(uint32_t pid);
    const char *(*env)(const char *name);
    int (*exists)(const char *path);
    /* The path by which this library was loaded. May be NULL. */
    const char *(*own_path)(void);
    /* Return a shared mapping of a file, or NULL if it cannot be mapped, is too short, or has something mounted over it. */
    void *(*map)(const char *path, size_t bytes, enum vgpu_map how);
    /* Return memory that is shared with future children. */
    void *(*map_private)(size_t bytes);
    void (*log)(const char *text);
};

extern const struct vgpu_world vgpu_world_real;
extern const struct vgpu_world *vgpu_world;

#endif
