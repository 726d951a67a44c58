/* pools.h - memory pools: what the driver has reserved for one is what is charged for it.
 *
 * A pool keeps memory that was freed to it, so the sum of what programs asked for is not what it costs. Before an
 * allocation the most it can make the pool grow by is charged; after it, as after everything that may shrink a pool, the
 * charge becomes what the driver has reserved. One lock a pool keeps the two equal. A thread that finds it held waits for no launch
 * of a graph, but leaves word: the holder may have asked the driver before the pool shrank, and asks once more.
 */
#ifndef VGPU_POOLS_H
#define VGPU_POOLS_H

#include "process.h"

struct vgpu_pool {
    struct vgpu_calm_lock lock;
    _Atomic uint32_t has_word; /* 1: who holds the lock is to reconcile before it goes */
    struct vgpu_pool *next;
    CUmemoryPool handle;
    int ordinal;          /* device, or VGPU_NOWHERE: host memory, never charged */
    int of_graphs;        /* the memory that graphs of the device allocate: has no handle, is never destroyed */
    int destroyed;        /* no more questions; charged until the last allocation is freed */
    uint64_t charged;
    uint64_t before;      /* what was charged when it was last asked for memory, */
    uint64_t requested;   /* and for how much */
    uint64_t live;        /* allocations that are not freed yet */
};

/* The pool behind a handle, remembered from now on as lying on `ordinal`; NULL when there is no memory for that. */
struct vgpu_pool *vgpu_pool_of(struct vgpu_process *p, CUmemoryPool handle, int ordinal);

/* An allocation from a pool. */
struct vgpu_pool_request {
    uint64_t bytes;
    CUresult (*allocate)(void *argument, CUdeviceptr *out); /* makes the driver allocate */
    void *argument;
    /* Out: 1 when the address stood for something else before, and what that was: the caller's to give back. */
    int displaced;
    struct vgpu_object old;
};

/* Charge an allocation, make it, and reconcile. */
CUresult vgpu_pool_allocate(struct vgpu_process *p, const struct vgpu_cuda *cuda, struct vgpu_pool *pool,
                            struct vgpu_pool_request *request, CUdeviceptr *out);

/* An allocation of the pool was freed; return by how much the charge shrank. */
uint64_t vgpu_pool_freed(struct vgpu_process *p, const struct vgpu_cuda *cuda, struct vgpu_pool *pool);

/* Make the driver destroy the pool. */
CUresult vgpu_pool_destroy(struct vgpu_process *p, const struct vgpu_cuda *cuda, struct vgpu_pool *pool);

/* The pool from which graphs of a device allocate; NULL if there is no memory to record it. */
struct vgpu_pool *vgpu_pool_of_graphs(struct vgpu_process *p, int ordinal);

/* Under the pool's lock. Charge the growth that taking `bytes` will cause: 1, or 0 if that does not fit. */
int vgpu_pool_expect(struct vgpu_process *p, const struct vgpu_cuda *cuda, struct vgpu_pool *pool, uint64_t bytes);

/* Under the pool's lock: set the charge to what the driver has reserved, whether that fits or not. */
void vgpu_pool_account(struct vgpu_process *p, const struct vgpu_cuda *cuda, struct vgpu_pool *pool);

/* Drop the pool's lock, and do the work of those who found it held. */
void vgpu_pool_leave(struct vgpu_process *p, const struct vgpu_cuda *cuda, struct vgpu_pool *pool);

/* Make every charge what the driver has reserved, be it by the thread that is busy with a pool. Cheap while no pool keeps
 * anything. */
void vgpu_pools_reconcile(struct vgpu_process *p, const struct vgpu_cuda *cuda);

/* Make all pools release what they only cache. Return 1 if any charge shrank. */
int vgpu_pools_squeeze(struct vgpu_process *p, const struct vgpu_cuda *cuda);

#endif
