/* pools.h - memory pools, charged by what the driver has reserved for them.
 *
 * A pool keeps memory that was freed to it, so its cost is not the sum of what programs asked for. Before an
 * allocation, the library charges the most by which it can make the pool grow. Afterwards, and after everything that
 * may shrink a pool, it sets the charge to what the driver has reserved. One lock for each pool keeps the two equal.
 * The holder of the lock may be waiting for the launch of a graph. A thread that finds the lock held does not wait; it
 * leaves word, and the holder asks the driver once more before it drops the lock.
 */
#ifndef VGPU_POOLS_H
#define VGPU_POOLS_H

#include "process.h"

struct vgpu_pool {
    struct vgpu_calm_lock lock;
    _Atomic uint32_t has_word; /* 1: the holder of the lock must reconcile before it drops it */
    struct vgpu_pool *next;
    CUmemoryPool handle;
    int ordinal;          /* device, or VGPU_NOWHERE: host memory, never charged */
    int of_graphs;        /* memory that graphs of the device allocate: it has no handle and is never destroyed */
    int destroyed;        /* the driver must not be asked about it; it stays charged until the last allocation is freed */
    uint64_t charged;
    uint64_t before;      /* what was charged when memory was last requested from it, */
    uint64_t requested;   /* and how much was requested */
    uint64_t live;        /* allocations that are not freed yet */
};

/* Return the pool with this handle, remembered from now on as a pool on `ordinal`, or NULL if there is no memory for that. */
struct vgpu_pool *vgpu_pool_of(struct vgpu_process *p, CUmemoryPool handle, int ordinal);

/* An allocation from a pool. */
struct vgpu_pool_request {
    uint64_t bytes;
    CUresult (*allocate)(void *argument, CUdeviceptr *out); /* calls the driver's allocation */
    void *argument;
    /* Output: 1 if the address was known as another object, which the caller must give back. */
    int displaced;
    struct vgpu_object old;
};

/* Charge an allocation, make it, and reconcile. */
CUresult vgpu_pool_allocate(struct vgpu_process *p, const struct vgpu_cuda *cuda, struct vgpu_pool *pool,
                            struct vgpu_pool_request *request, CUdeviceptr *out);

/* Note that an allocation of the pool was freed. Return by how much the charge shrank. */
uint64_t vgpu_pool_freed(struct vgpu_process *p, const struct vgpu_cuda *cuda, struct vgpu_pool *pool);

/* Let the driver destroy the pool. */
CUresult vgpu_pool_destroy(struct vgpu_process *p, const struct vgpu_cuda *cuda, struct vgpu_pool *pool);

/* Return the pool from which graphs of a device allocate, or NULL if there is no memory to record it. */
struct vgpu_pool *vgpu_pool_of_graphs(struct vgpu_process *p, int ordinal);

/* Charge the growth that taking `bytes` will cause. Return 1, or 0 if it does not fit. The caller holds the pool's lock. */
int vgpu_pool_expect(struct vgpu_process *p, const struct vgpu_cuda *cuda, struct vgpu_pool *pool, uint64_t bytes);

/* Set the charge to what the driver has reserved, even if it does not fit. The caller holds the pool's lock. */
void vgpu_pool_account(struct vgpu_process *p, const struct vgpu_cuda *cuda, struct vgpu_pool *pool);

/* Drop the pool's lock, after doing the work of those who found it held. */
void vgpu_pool_leave(struct vgpu_process *p, const struct vgpu_cuda *cuda, struct vgpu_pool *pool);

/* Set the charge of every pool to what the driver has reserved, or let the thread that is busy with a pool do so. Cheap
 * while no pool keeps anything. */
void vgpu_pools_reconcile(struct vgpu_process *p, const struct vgpu_cuda *cuda);

/* Make all pools release cached memory. Return 1 if any charge shrank. */
int vgpu_pools_squeeze(struct vgpu_process *p, const struct vgpu_cuda *cuda);

#endif
