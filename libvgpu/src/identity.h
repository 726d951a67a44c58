/* identity.h - identifies this process and finds out from /proc whether another one is still alive. */
#ifndef VGPU_IDENTITY_H
#define VGPU_IDENTITY_H

#include <stdint.h>

/* The identity of this process, as its slot in the region records it. */
struct vgpu_identity {
    uint32_t pid;
    uint64_t start_time;    /* clock ticks; 0 if /proc does not say */
    uint64_t pid_namespace; /* inode; 0 if /proc does not say */
    uint64_t image;         /* changes with exec */
    uint64_t layout;        /* so does this, and other processes can see it; 0 if /proc does not say */
};

/* Return the owner word of a process. */
uint64_t vgpu_owner_word(const struct vgpu_identity *who);

struct vgpu_identity vgpu_identity_self(void);
int vgpu_identity_is_dead(uint64_t owner, const struct vgpu_identity *self);

/* Return a hash of the addresses at which the kernel placed the program of a process, or 0 if /proc does not say. An
 * exec changes it, while PID and start time stay the same. */
uint64_t vgpu_identity_layout(uint32_t pid);

#endif
