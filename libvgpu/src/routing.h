/* routing.h - finds the hook for a driver function.
 *
 * Programs reach a driver function in three ways, and all of them lead here. Linked programs use our exported names.
 * For dlsym and dlvsym, routing_stubs.S asks vgpu_route_dlsym; if the answer is "not ours", it jumps to libc, so that
 * RTLD_NEXT and dlerror see the real caller. For cuGetProcAddress, hook_route.c asks the driver first and then
 * translates the pointer that it got.
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

/* Return the symbol with exactly this name, or NULL if we have no hook for it. */
const struct vgpu_symbol *vgpu_symbol_named(const char *name);

/* Return what a program gets instead of `address`, which the driver returned for `base`: the hook of the function at
 * this address, else the hook that fits best by name, version and flags, else `address` itself. */
void *vgpu_route_pointer(const struct vgpu_cuda *cuda, const char *base, void *address, int version, int per_thread);

/* For the stubs. If `decided` is 0, they jump to libc. */
struct vgpu_route {
    void *answer;
    uintptr_t decided;
};
struct vgpu_route vgpu_route_dlsym(void *handle, const char *name, const void *caller);
struct vgpu_route vgpu_route_dlvsym(void *handle, const char *name, const char *version, const void *caller);

/* Return where a gate jumps, or NULL to refuse the call. `index` counts the gates of symbols.def. */
void *vgpu_route_gate(unsigned index);

#endif
