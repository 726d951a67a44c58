/* routing.h - which of our hooks stands for which of the driver's functions.
 *
 * Three ways lead to a driver's function, and each ends here: our exported names (linking), dlsym and dlvsym
 * (routing_stubs.S asks vgpu_route_dlsym and, when the answer is "not ours", jumps on to libc as if we had not
 * been there, so that RTLD_NEXT and dlerror see the real caller), and cuGetProcAddress (hook_route.c asks the
 * driver first and has the pointer it got translated).
 */
#ifndef VGPU_ROUTING_H
#define VGPU_ROUTING_H

#include "drivers.h"

enum vgpu_class {
    VGPU_CLASS_ROUTE,
    VGPU_CLASS_CHARGE,
    VGPU_CLASS_RELEASE,
    VGPU_CLASS_VIRTUALISE,
    VGPU_CLASS_LAUNCH,
    VGPU_CLASS_OBSERVE,
    VGPU_CLASS_DENY,
};

enum vgpu_library { VGPU_LIBRARY_cuda, VGPU_LIBRARY_nvml };

struct vgpu_symbol {
    const char *name, *base;
    int since, per_thread;
    enum vgpu_class class;
    enum vgpu_library library;
    vgpu_function hook;
    size_t offset; /* of the driver's function in struct vgpu_cuda or vgpu_nvml */
};

/* All functions with a hook or a gate, in the order of symbols.def. */
extern const struct vgpu_symbol vgpu_symbols[];
extern const unsigned vgpu_symbol_count;

/* The symbol of exactly this name; NULL if we have no hook for it. */
const struct vgpu_symbol *vgpu_symbol_named(const char *name);

/* What a program that was given `address` for `base` by the driver shall get instead: the hook of the function that
 * lies at this address; failing that, of the best match by name, version and flags; failing that, `address`. */
void *vgpu_route_pointer(const struct vgpu_cuda *cuda, const char *base, void *address, int version, int per_thread);

/* For the stubs: `decided` 0 means jump on to libc. */
struct vgpu_route {
    void *answer;
    uintptr_t decided;
};
struct vgpu_route vgpu_route_dlsym(void *handle, const char *name, const void *caller);
struct vgpu_route vgpu_route_dlvsym(void *handle, const char *name, const char *version, const void *caller);

/* For the gates: where to jump, or NULL to refuse. `index` counts the gates of symbols.def. */
void *vgpu_route_gate(unsigned index);

#endif
