/* objects.h - what this process holds: allocation -> who was charged how much.
 *
 * 64 open-addressing tables with a lock each, so threads seldom meet and a look-up does not depend on how much is
 * live. An all-zero table is an empty one: it lives in the arena that a fork wipes.
 *
 * Linear, pooled and managed memory share one place an address: the driver gives an address out once, so what is remembered
 * last is what lies there, and of what lay there before nothing is left, whatever it was.
 */
#ifndef VGPU_OBJECTS_H
#define VGPU_OBJECTS_H

#include <stddef.h>

#include "lock.h"

enum vgpu_kind {
    VGPU_KIND_MEMORY = 1, /* address of an allocation */
    VGPU_KIND_POOL = 2,   /* handle of a memory pool; `context` is its struct vgpu_pool */
    VGPU_KIND_ARRAY = 3,  /* handle of an array */
    VGPU_KIND_MIPMAP = 4, /* handle of a mipmapped array */
    VGPU_KIND_HANDLE = 5, /* handle of physical memory; `context` is its struct vgpu_backing, `bytes` counts releases due */
    VGPU_KIND_MAPPING = 6, /* address physical memory is mapped at; `bytes` of addresses, `context` as above */
    VGPU_KIND_CONTEXT = 8, /* handle of a context that is not a primary one; `column` is its device */
    VGPU_KIND_GRAPHS = 9,  /* device; `context` is the struct vgpu_pool of its graphs' memory */
    VGPU_KIND_GRAPH = 10,  /* handle of an instantiated graph that takes memory; `context` is its struct vgpu_graph */
    VGPU_KIND_HOST = 11,   /* address of page-locked memory of the host */
    VGPU_KIND_MANAGED = 12, /* address of managed memory beside an oversubscribed device */
    VGPU_KIND_EXPORT = 13, /* address of memory that others may have open; otherwise like the memory itself */
    VGPU_KIND_IMPORT = 14, /* address of another process's memory that we have open */
    VGPU_KIND_POOLED = 7, /* address of an allocation from a pool; `context` is its struct vgpu_pool */
};

struct vgpu_object {
    uint64_t handle;
    uint64_t bytes;   /* charged */
    const void *context;
    uint64_t serial;  /* order of birth */
    int32_t column;   /* memory: column of the ledger */
    uint32_t kind;    /* enum vgpu_kind; 0: empty place */
};

#define VGPU_NOWHERE (-1)
#define VGPU_STRIPES 64

struct vgpu_stripe {
    struct vgpu_lock lock;
    uint32_t count;
    size_t room; /* power of two, or 0 */
    struct vgpu_object *places;
    char pad[40];
};

struct vgpu_objects {
    struct vgpu_stripe stripes[VGPU_STRIPES];
    _Atomic uint64_t births;
};

/* Remember an object (its serial is set here). 0, or -1 when there is no memory for it. */
int vgpu_objects_add(struct vgpu_objects *objects, struct vgpu_object object);

/* The same, where the handle may be known already: 1, and `old` is what it was. The driver has given the handle out anew,
 * so what it stood for is gone, by a way that no hook saw or by one that is not at its end yet. */
int vgpu_objects_replace(struct vgpu_objects *objects, struct vgpu_object object, struct vgpu_object *old);

/* Forget an object. 1 when it was known; `out` is what it was. */
int vgpu_objects_take(struct vgpu_objects *objects, enum vgpu_kind kind, uint64_t handle, struct vgpu_object *out);

/* The same without forgetting. */
int vgpu_objects_find(struct vgpu_objects *objects, enum vgpu_kind kind, uint64_t handle, struct vgpu_object *out);

/* Serial of the youngest object so far. */
uint64_t vgpu_objects_now(struct vgpu_objects *objects);

/* Forget all memory, arrays, exports, imports and page-locked memory of a context that was born no later than `until`, telling `released` about each. */
void vgpu_objects_drop_context(struct vgpu_objects *objects, const void *context, uint64_t until,
                               void (*released)(void *argument, const struct vgpu_object *), void *argument);

/* Forget all objects of a kind whose handles lie in [from, from + bytes), telling `released` about each. Looks at everything. */
void vgpu_objects_drop_range(struct vgpu_objects *objects, enum vgpu_kind kind, uint64_t from, uint64_t bytes,
                             void (*released)(void *argument, const struct vgpu_object *), void *argument);

#endif
