/* cuda_pool.c - memory pools and stream-ordered allocations.
 *
 * A pool grows by whole chunks and keeps freed memory up to its release threshold. All work is done at once here, so memory
 * above the threshold is returned by the free itself. With `pools_wait=1` in the machine file it is returned at the next
 * synchronisation, as on a real device.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_graph_memory.h"
#include "cuda_memory.h"
#include "cuda_work.h"

enum { RELEASE_THRESHOLD = 4, RESERVED_CURRENT = 5, RESERVED_HIGH = 6, USED_CURRENT = 7, USED_HIGH = 8 };

struct CUmemPoolHandle_st {
    CUdevice device;
    int destroyed;
    uint64_t reserved, used, reserved_high, used_high, threshold;
    struct CUmemPoolHandle_st *next;
};

static struct CUmemPoolHandle_st default_pools[MACHINE_MAX_CARDS];
static struct CUmemPoolHandle_st *current_pools[MACHINE_MAX_CARDS];
static struct CUmemPoolHandle_st *made;
static pthread_mutex_t pool_lock = PTHREAD_MUTEX_INITIALIZER;

static int card_of(const struct CUmemPoolHandle_st *pool)
{
    return cuda_session()->visible[pool->device];
}

/* Keep no more than `keep` bytes beyond those in use. The caller holds the lock. */
static void let_go(struct CUmemPoolHandle_st *pool, uint64_t keep)
{
    uint64_t kept = pool->used > keep ? pool->used : keep;
    uint64_t chunk = cuda_session()->machine->pool_chunk;
    if (kept >= pool->reserved) {
        return;
    }
    kept = (kept + chunk - 1) / chunk * chunk;
    if (kept < pool->reserved) {
        state_give(cuda_session()->machine, card_of(pool), pool->reserved - kept, 0);
        pool->reserved = kept;
    }
}

CUresult cuda_pool_take(struct CUmemPoolHandle_st *pool, size_t bytes)
{
    const struct machine *m = cuda_session()->machine;
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&pool_lock);
    if (pool->used + bytes > pool->reserved) {
        uint64_t more = (pool->used + bytes - pool->reserved + m->pool_chunk - 1) / m->pool_chunk * m->pool_chunk;
        result = cuda_result(state_take(m, card_of(pool), more, 0));
        pool->reserved += result == CUDA_SUCCESS ? more : 0;
    }
    if (result == CUDA_SUCCESS) {
        pool->used += bytes;
        pool->used_high = pool->used > pool->used_high ? pool->used : pool->used_high;
        pool->reserved_high = pool->reserved > pool->reserved_high ? pool->reserved : pool->reserved_high;
    }
    pthread_mutex_unlock(&pool_lock);
    return result;
}

void cuda_pool_give(struct CUmemPoolHandle_st *pool, size_t bytes)
{
    pthread_mutex_lock(&pool_lock);
    pool->used -= bytes;
    if (pool->destroyed || !cuda_session()->machine->pools_wait) {
        let_go(pool, pool->destroyed ? 0 : pool->threshold);
    }
    pthread_mutex_unlock(&pool_lock);
}

void cuda_pool_lose(struct CUmemPoolHandle_st *pool, size_t bytes)
{
    pthread_mutex_lock(&pool_lock);
    pool->used -= bytes;
    pool->reserved -= bytes;
    pthread_mutex_unlock(&pool_lock);
}

void cuda_pool_synchronise(void)
{
    pthread_mutex_lock(&pool_lock);
    for (int i = 0; i < MACHINE_MAX_CARDS; i++) {
        let_go(&default_pools[i], default_pools[i].threshold);
    }
    for (struct CUmemPoolHandle_st *pool = made; pool; pool = pool->next) {
        let_go(pool, pool->threshold);
    }
    pthread_mutex_unlock(&pool_lock);
}

static CUresult allocate(CUdeviceptr *out, size_t bytes, struct CUmemPoolHandle_st *pool, CUstream handle, int thread)
{
    CUresult result = CUDA_SUCCESS;
    struct CUstream_st *stream = cuda_stream(handle, thread, &result);
    struct CUctx_st *context = stream ? stream->context : NULL;
    if (!context) {
        return result;
    }
    if (!out || !bytes) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (stream->capture) {
        return cuda_graph_capture_alloc(stream->capture, pool ? pool->device : context->device, bytes, out);
    }
    if (!pool) {
        result = cuDeviceGetMemPool(&pool, context->device);
    }
    return result == CUDA_SUCCESS ? cuda_memory_take_pooled(context, pool, bytes, out) : result;
}

CUDA_API CUresult cuMemAllocAsync(CUdeviceptr *out, size_t bytes, CUstream stream)
{
    return allocate(out, bytes, NULL, stream, 0);
}

CUDA_API CUresult cuMemAllocAsync_ptsz(CUdeviceptr *out, size_t bytes, CUstream stream)
{
    return allocate(out, bytes, NULL, stream, 1);
}

CUDA_API CUresult cuMemAllocFromPoolAsync(CUdeviceptr *out, size_t bytes, CUmemoryPool pool, CUstream stream)
{
    return pool ? allocate(out, bytes, pool, stream, 0) : CUDA_ERROR_INVALID_VALUE;
}

CUDA_API CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *out, size_t bytes, CUmemoryPool pool, CUstream stream)
{
    return pool ? allocate(out, bytes, pool, stream, 1) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphAddMemFreeNode(CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUdeviceptr);

static CUresult give_back(CUdeviceptr address, CUstream handle, int thread)
{
    CUresult result = CUDA_SUCCESS;
    struct CUstream_st *stream = cuda_session() ? cuda_stream(handle, thread, &result) : NULL;
    struct graph_memory *memory = address ? cuda_graph_memory_at(address) : NULL;
    CUgraphNode node;
    if (stream && stream->capture) {
        return cuGraphAddMemFreeNode(&node, stream->capture, NULL, 0, address);
    }
    return memory ? cuda_graph_memory_free(memory) : cuda_memory_give(address);
}

CUDA_API CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream)
{
    return give_back(address, stream, 0);
}

CUDA_API CUresult cuMemFreeAsync_ptsz(CUdeviceptr address, CUstream stream)
{
    return give_back(address, stream, 1);
}

CUDA_API CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *out, CUdevice device)
{
    CUresult result = cuda_check_device(device);
    if (result != CUDA_SUCCESS || !out) {
        return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_VALUE;
    }
    pthread_mutex_lock(&pool_lock);
    default_pools[device].device = device;
    pthread_mutex_unlock(&pool_lock);
    *out = &default_pools[device];
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuDeviceGetMemPool(CUmemoryPool *out, CUdevice device)
{
    CUresult result = cuDeviceGetDefaultMemPool(out, device);
    CUmemoryPool current = result == CUDA_SUCCESS ? __atomic_load_n(&current_pools[device], __ATOMIC_ACQUIRE) : NULL;
    if (current) {
        *out = current;
    }
    return result;
}

CUDA_API CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool)
{
    CUresult result = cuda_check_device(device);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (!pool || pool->device != device) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    __atomic_store_n(&current_pools[device], pool, __ATOMIC_RELEASE);
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuMemPoolCreate(CUmemoryPool *out, const CUmemPoolProps *props)
{
    if (!out || !props || props->location_type != CU_MEM_LOCATION_TYPE_DEVICE) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult result = cuda_check_device(props->location_id);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    struct CUmemPoolHandle_st *pool = calloc(1, sizeof *pool);
    if (!pool) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    pool->device = props->location_id;
    pthread_mutex_lock(&pool_lock);
    pool->next = made;
    made = pool;
    pthread_mutex_unlock(&pool_lock);
    *out = pool;
    return CUDA_SUCCESS;
}

/* The struct stays: existing allocations refer to it. */
CUDA_API CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
    if (!pool || pool->destroyed) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    pthread_mutex_lock(&pool_lock);
    pool->destroyed = 1;
    if (current_pools[pool->device] == pool) {
        current_pools[pool->device] = NULL;
    }
    let_go(pool, 0);
    pthread_mutex_unlock(&pool_lock);
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
    if (!pool || pool->destroyed) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    pthread_mutex_lock(&pool_lock);
    let_go(pool, keep);
    pthread_mutex_unlock(&pool_lock);
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuMemPoolGetAttribute(CUmemoryPool pool, int attribute, void *value)
{
    CUresult result = CUDA_SUCCESS;
    if (!pool || !value || pool->destroyed) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    pthread_mutex_lock(&pool_lock);
    uint64_t is = 0;
    switch (attribute) {
    case RELEASE_THRESHOLD:
        is = pool->threshold;
        break;
    case RESERVED_CURRENT:
        is = pool->reserved;
        break;
    case RESERVED_HIGH:
        is = pool->reserved_high;
        break;
    case USED_CURRENT:
        is = pool->used;
        break;
    case USED_HIGH:
        is = pool->used_high;
        break;
    default:
        result = CUDA_ERROR_INVALID_VALUE;
    }
    pthread_mutex_unlock(&pool_lock);
    if (result == CUDA_SUCCESS) {
        memcpy(value, &is, sizeof is);
    }
    return result;
}

CUDA_API CUresult cuMemPoolSetAttribute(CUmemoryPool pool, int attribute, void *value)
{
    if (!pool || !value || pool->destroyed || attribute != RELEASE_THRESHOLD) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    memcpy(&pool->threshold, value, sizeof pool->threshold);
    return CUDA_SUCCESS;
}
