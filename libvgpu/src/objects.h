/* objects.h - what this process holds: for each allocation, who was charged and how much.
 *
 * There are 64 open-addressing tables with a lock each, so threads seldom meet and a look-up does not depend on how
 * many objects exist. A table of zeros is empty, because it is in the arena that a fork wipes.
 *
 * Linear, pooled and managed memory share one entry for each address. The driver uses an address for one allocation at
 * a time, so the last one remembered is the one that is there; whatever was there before is gone.
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
    VGPU_KIND_MAPPING = 6, /* address where physical memory is mapped; `bytes` of addresses, `context` as above */
    VGPU_KIND_CONTEXT = 8, /* handle of a context that is not a primary one; `column` is its device */
    VGPU_KIND_GRAPHS = 9,  /* device; `context` is the struct vgpu_pool of its graphs' memory */
    VGPU_KIND_GRAPH = 10,  /* handle of an instantiated graph that takes memory; `context` is its struct vgpu_graph */
    VGPU_KIND_HOST = 11,   /* address of page-locked memory of the host */
    VGPU_KIND_MANAGED = 12, /* address of managed memory on an oversubscribed device */
    VGPU_KIND_EXPORT = 13, /* address of memory that others may have open; otherwise like the memory itself */
    VGPU_KIND_IMPORT = 14, /* address of another process's memory that we have open */
    VGPU_KIND_POOLED = 7, /* address of an allocation from a pool; `context` is its struct vgpu_pool */
};

struct vgpu_object {
    uint64_t handle;
    uint64_t bytes;   /* charged */
    const void *context;
    uint64_t serial;  /* order of creation */
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

/* Remember an object; its serial is set here. Return 0, or -1 if there is no memory. */
int vgpu_objects_add(struct vgpu_objects *objects, struct vgpu_object object);

/* Do the same if the handle may be known already: return 1 then, and store the former object in `old`. The driver has
 * reused the handle, so the former object is gone, either by a call that no hook saw or by one that has not returned
 * yet. */
int vgpu_objects_replace(struct vgpu_objects *objects, struct vgpu_object object, struct vgpu_object *old);

/* Forget an object and store it in `out`. Return 1 if it was known. */
int vgpu_objects_take(struct vgpu_objects *objects, enum vgpu_kind kind, uint64_t handle, struct vgpu_object *out);

/* Do the same without forgetting it. */
int vgpu_objects_find(struct vgpu_objects *objects, enum vgpu_kind kind, uint64_t handle, struct vgpu_object *out);

/* Return the serial of the newest object. */
uint64_t vgpu_objects_now(struct vgpu_objects *objects);

/* Forget all memory, arrays, exports, imports and page-locked memory of a context that are not newer than `until`, and
 * call `released` for each. */
void vgpu_objects_drop_context(struct vgpu_objects *objects, const void *context, uint64_t until,
                               void (*released)(void *argument, const struct vgpu_object *), void *argument);

/* Forget all objects of a kind whose handles lie in [from, from + bytes), and call `released` for each. Looks at all
 * objects. */
void vgpu_objects_drop_range(struct vgpu_objects *objects, enum vgpu_kind kind, uint64_t from, uint64_t bytes,
                             void (*released)(void *argument, const struct vgpu_object *), void *argument);

#endif
