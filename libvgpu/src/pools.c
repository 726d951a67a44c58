#include "pools.h"

#include <stdlib.h>

#include "authority.h"
#include "devices.h"
#include "ledger.h"

/* The guess until a chunk has been seen. */
#define CHUNK (UINT64_C(32) << 20)

enum { RESERVED_CURRENT = 5, USED_CURRENT = 7 };

/* The same attributes for the memory of graphs. */
enum { GRAPHS_USED_CURRENT = 0, GRAPHS_RESERVED_CURRENT = 2 };

static int read_attribute(const struct vgpu_cuda *cuda, const struct vgpu_pool *pool, int attribute, uint64_t *out)
{
    if (pool->of_graphs) {
        return cuda->cuDeviceGetGraphMemAttribute &&
               cuda->cuDeviceGetGraphMemAttribute(
                   pool->ordinal, attribute == USED_CURRENT ? GRAPHS_USED_CURRENT : GRAPHS_RESERVED_CURRENT, out) == CUDA_SUCCESS;
    }
    return cuda->cuMemPoolGetAttribute && cuda->cuMemPoolGetAttribute(pool->handle, attribute, out) == CUDA_SUCCESS;
}

/* The caller holds the pool's lock. */
static void set_charged(struct vgpu_process *p, struct vgpu_pool *pool, uint64_t bytes)
{
    if (!pool->charged && bytes) {
        atomic_fetch_add(&p->pools_in_use, 1);
    } else if (pool->charged && !bytes) {
        atomic_fetch_sub(&p->pools_in_use, 1);
    }
    pool->charged = bytes;
}

/* Try once to charge up to `bytes` in all. The caller holds the pool's lock. */
static int raise_to(struct vgpu_process *p, const struct vgpu_cuda *cuda, struct vgpu_pool *pool, uint64_t bytes)
{
    const struct vgpu_device *device = vgpu_device_of_ordinal(p, cuda, pool->ordinal);
    struct vgpu_region_slot *slot = device && device->column >= 0 ? vgpu_process_slot(p) : NULL;
    if (!slot || !vgpu_ledger_reserve(p->region, slot, &p->self, (unsigned)device->column, bytes - pool->charged,
                                      vgpu_budget(p, device->uuid, pool->ordinal))) {
        return 0;
    }
    set_charged(p, pool, bytes);
    return 1;
}

static void lower_to(struct vgpu_process *p, struct vgpu_pool *pool, uint64_t bytes)
{
    if (bytes < pool->charged) {
        vgpu_ledger_release(vgpu_process_slot(p), (unsigned)p->devices[pool->ordinal].column, pool->charged - bytes);
        set_charged(p, pool, bytes);
    }
}

/* Charge what the pool has. If the driver does not say, as for a destroyed pool, everything stays charged until the last
 * allocation is freed. The caller holds the pool's lock. */
static void reconcile(struct vgpu_process *p, const struct vgpu_cuda *cuda, struct vgpu_pool *pool)
{
    uint64_t reserved = 0;
    if (!pool->charged) {
        return;
    }
    if (!pool->destroyed && read_attribute(cuda, pool, RESERVED_CURRENT, &reserved)) {
        lower_to(p, pool, reserved);
    } else if (!pool->live && !pool->of_graphs) {
        lower_to(p, pool, 0);
    }
}

static struct vgpu_pool *find_or_make(struct vgpu_process *p, enum vgpu_kind kind, uint64_t name, struct vgpu_pool fresh)
{
    struct vgpu_object known;
    struct vgpu_pool *pool = NULL;
    if (vgpu_objects_find(&p->objects, kind, name, &known)) {
        return (struct vgpu_pool *)(uintptr_t)known.context;
    }
    vgpu_calm_take(&p->lock);
    if (vgpu_objects_find(&p->objects, kind, name, &known)) {
        pool = (struct vgpu_pool *)(uintptr_t)known.context;
    } else if ((pool = calloc(1, sizeof *pool)) != NULL) {
        *pool = fresh;
        pool->next = p->pools;
        known = (struct vgpu_object){.handle = name, .context = pool, .kind = kind};
        if (vgpu_objects_add(&p->objects, known)) {
            free(pool);
            pool = NULL;
        } else {
            atomic_store_explicit(&p->pools, pool, memory_order_release);
        }
    }
    vgpu_calm_drop(&p->lock);
    return pool;
}

struct vgpu_pool *vgpu_pool_of(struct vgpu_process *p, CUmemoryPool handle, int ordinal)
{
    return find_or_make(p, VGPU_KIND_POOL, (uintptr_t)handle, (struct vgpu_pool){.handle = handle, .ordinal = ordinal});
}

struct vgpu_pool *vgpu_pool_of_graphs(struct vgpu_process *p, int ordinal)
{
    return find_or_make(p, VGPU_KIND_GRAPHS, (uint64_t)ordinal, (struct vgpu_pool){.of_graphs = 1, .ordinal = ordinal});
}

/* Learn the chunk size. Pools grow by whole chunks, whose size the driver does not report. If a pool grew by more than was
 * requested, the chunk divides that growth. */
static void learn_chunk(struct vgpu_process *p, const struct vgpu_pool *pool, uint64_t reserved)
{
    uint64_t a = atomic_load_explicit(&p->pool_chunk, memory_order_relaxed);
    if (reserved <= pool->before || reserved - pool->before <= pool->requested) {
        return;
    }
    for (uint64_t b = reserved - pool->before; b;) {
        uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    atomic_store_explicit(&p->pool_chunk, a, memory_order_relaxed);
}

static uint64_t in_chunks(uint64_t bytes, uint64_t chunk)
{
    return (bytes + chunk - 1) / chunk * chunk;
}

/* Charge the growth that an allocation will cause, or nothing if the pool has room. Only the requested amount is tried until
 * a chunk has been seen; if the driver takes more, that is found and given back afterwards. Graphs are excluded, because a
 * launch cannot be undone. The caller holds the pool's lock. */
static int charge_growth(struct vgpu_process *p, const struct vgpu_cuda *cuda, struct vgpu_pool *pool, uint64_t bytes)
{
    uint64_t used = 0, least = vgpu_ledger_rounded(bytes);
    uint64_t seen = atomic_load_explicit(&p->pool_chunk, memory_order_relaxed);
    if (least > UINT64_MAX / 4 || pool->charged > UINT64_MAX / 4) {
        return 0;
    }
    pool->before = pool->charged;
    pool->requested = least;
    if (read_attribute(cuda, pool, USED_CURRENT, &used) && used <= pool->charged && pool->charged - used >= least) {
        return 1;
    }
    return raise_to(p, cuda, pool, pool->charged + in_chunks(least, seen ? seen : CHUNK)) ||
           (seen > CHUNK && raise_to(p, cuda, pool, pool->charged + in_chunks(least, CHUNK))) ||
           (!seen && !pool->of_graphs && raise_to(p, cuda, pool, pool->charged + least));
}

/* Return 1 if, after a successful allocation, the driver's reservation is within the limit. The caller holds the pool's lock. */
static int is_covered(struct vgpu_process *p, const struct vgpu_cuda *cuda, struct vgpu_pool *pool)
{
    uint64_t reserved = 0;
    if (!read_attribute(cuda, pool, RESERVED_CURRENT, &reserved)) {
        return 1; /* then only the requested amount is known */
    }
    learn_chunk(p, pool, reserved);
    lower_to(p, pool, reserved);
    return reserved <= pool->charged || raise_to(p, cuda, pool, reserved);
}

int vgpu_pool_expect(struct vgpu_process *p, const struct vgpu_cuda *cuda, struct vgpu_pool *pool, uint64_t bytes)
{
    return charge_growth(p, cuda, pool, bytes);
}

void vgpu_pool_account(struct vgpu_process *p, const struct vgpu_cuda *cuda, struct vgpu_pool *pool)
{
    if (!is_covered(p, cuda, pool)) {
        const struct vgpu_device *device = &p->devices[pool->ordinal];
        uint64_t reserved = 0;
        if (read_attribute(cuda, pool, RESERVED_CURRENT, &reserved) && reserved > pool->charged) {
            vgpu_ledger_add(vgpu_process_slot(p), (unsigned)device->column, reserved - pool->charged);
            set_charged(p, pool, reserved);
        }
    }
}

/* Return 1 if we got the lock. Return 0 if the holder has been told to reconcile in our place. The message is passed by
 * atomic exchanges: either the holder finds it after it dropped the lock, or it comes later and we find the lock free. */
static int enter_or_leave_word(struct vgpu_pool *pool)
{
    if (vgpu_calm_try(&pool->lock)) {
        return 1;
    }
    atomic_exchange(&pool->has_word, 1);
    return vgpu_calm_try(&pool->lock);
}

void vgpu_pool_leave(struct vgpu_process *p, const struct vgpu_cuda *cuda, struct vgpu_pool *pool)
{
    vgpu_calm_drop(&pool->lock);
    while (atomic_exchange(&pool->has_word, 0) && enter_or_leave_word(pool)) {
        reconcile(p, cuda, pool);
        vgpu_calm_drop(&pool->lock);
    }
}

static CUresult try_allocate(struct vgpu_process *p, const struct vgpu_cuda *cuda, struct vgpu_pool *pool,
                             struct vgpu_pool_request *request, CUdeviceptr *out)
{
    vgpu_calm_take(&pool->lock);
    CUresult result =
        charge_growth(p, cuda, pool, request->bytes) ? request->allocate(request->argument, out) : CUDA_ERROR_OUT_OF_MEMORY;
    if (result == CUDA_SUCCESS) {
        struct vgpu_object object = {.handle = *out, .context = pool, .kind = VGPU_KIND_POOLED};
        int displaced = is_covered(p, cuda, pool) ? vgpu_objects_replace(&p->objects, object, &request->old) : -1;
        if (displaced < 0) {
            cuda->cuMemFree_v2(*out); /* waits for the stream, so that the trim finds the memory unused */
            cuda->cuMemPoolTrimTo(pool->handle, 0);
            *out = 0; /* otherwise a caller that ignores the error could free memory that is another's by now */
            result = CUDA_ERROR_OUT_OF_MEMORY;
        } else {
            request->displaced = displaced;
            pool->live++;
        }
    }
    if (result != CUDA_SUCCESS) {
        reconcile(p, cuda, pool);
    }
    vgpu_pool_leave(p, cuda, pool);
    return result;
}

CUresult vgpu_pool_allocate(struct vgpu_process *p, const struct vgpu_cuda *cuda, struct vgpu_pool *pool,
                            struct vgpu_pool_request *request, CUdeviceptr *out)
{
    request->displaced = 0;
    if (pool->ordinal == VGPU_NOWHERE) {
        return request->allocate(request->argument, out);
    }
    CUresult result = try_allocate(p, cuda, pool, request, out);
    if (result == CUDA_ERROR_OUT_OF_MEMORY && vgpu_pools_squeeze(p, cuda)) {
        result = try_allocate(p, cuda, pool, request, out);
    }
    const struct vgpu_device *device = vgpu_device_of_ordinal(p, cuda, pool->ordinal);
    if (result == CUDA_ERROR_OUT_OF_MEMORY && p->region && device && device->column >= 0) {
        vgpu_ledger_denied(p->region, (unsigned)device->column);
    }
    return result;
}

uint64_t vgpu_pool_freed(struct vgpu_process *p, const struct vgpu_cuda *cuda, struct vgpu_pool *pool)
{
    vgpu_calm_take(&pool->lock);
    uint64_t before = pool->charged;
    pool->live--;
    reconcile(p, cuda, pool);
    uint64_t shrank = before - pool->charged;
    vgpu_pool_leave(p, cuda, pool);
    return shrank;
}

CUresult vgpu_pool_destroy(struct vgpu_process *p, const struct vgpu_cuda *cuda, struct vgpu_pool *pool)
{
    vgpu_calm_take(&pool->lock); /* so that no other thread queries a pool that no longer exists */
    CUresult result = cuda->cuMemPoolDestroy(pool->handle);
    if (result == CUDA_SUCCESS) {
        pool->destroyed = 1;
        reconcile(p, cuda, pool);
    }
    vgpu_pool_leave(p, cuda, pool);
    return result;
}

/* Make the driver release the memory that it only caches. */
static void let_go(struct vgpu_process *p, const struct vgpu_cuda *cuda, struct vgpu_pool *pool)
{
    /* Another thread may be capturing in a mode that forbids such calls anywhere, and its capture would fail. */
    int mode = CU_STREAM_CAPTURE_MODE_RELAXED,
        is_relaxed = cuda->cuThreadExchangeStreamCaptureMode && cuda->cuThreadExchangeStreamCaptureMode(&mode) == CUDA_SUCCESS;
    if (pool->of_graphs && cuda->cuDeviceGraphMemTrim) {
        atomic_fetch_add(&p->graph_trims, 1);
        cuda->cuDeviceGraphMemTrim(pool->ordinal);
    } else if (!pool->of_graphs && !pool->destroyed && cuda->cuMemPoolTrimTo) {
        cuda->cuMemPoolTrimTo(pool->handle, 0);
    }
    if (is_relaxed) {
        cuda->cuThreadExchangeStreamCaptureMode(&mode);
    }
}

/* Reconcile all pools; return 1 if less is charged than before. Pools are never removed from the list, because a program has
 * few. A pool that another thread is using is reconciled by that thread: no caller waits for the launch of a graph, which
 * blocks as long as its stream is full. Only an allocation under memory pressure has reason to wait. */
static int reconcile_all(struct vgpu_process *p, const struct vgpu_cuda *cuda, int trim)
{
    int shrank = 0;
    for (struct vgpu_pool *pool = atomic_load_explicit(&p->pools, memory_order_acquire); pool; pool = pool->next) {
        if (trim && !pool->of_graphs) {
            vgpu_calm_take(&pool->lock);
        } else if (!enter_or_leave_word(pool)) {
            continue;
        }
        uint64_t before = pool->charged;
        if (trim && before) {
            let_go(p, cuda, pool);
        }
        reconcile(p, cuda, pool);
        shrank |= pool->charged < before;
        vgpu_pool_leave(p, cuda, pool);
    }
    return shrank;
}

void vgpu_pools_reconcile(struct vgpu_process *p, const struct vgpu_cuda *cuda)
{
    if (atomic_load_explicit(&p->pools_in_use, memory_order_relaxed)) {
        reconcile_all(p, cuda, 0);
    }
}

int vgpu_pools_squeeze(struct vgpu_process *p, const struct vgpu_cuda *cuda)
{
    return reconcile_all(p, cuda, 1);
}
