/* hook_stream_memory.c - stream-ordered memory and its pools.
 *
 * The driver's reservation for a pool is charged (pools.h). A pool may shrink when the device catches up, so the
 * functions that wait for the device are here too.
 */
#include "devices.h"
#include "charge.h"
#include "launch.h"
#include "pools.h"

typedef CUresult (*allocate_async)(CUdeviceptr *, size_t, CUstream);
typedef CUresult (*allocate_from_pool)(CUdeviceptr *, size_t, CUmemoryPool, CUstream);
typedef CUresult (*free_async)(CUdeviceptr, CUstream);

struct free_call {
    free_async real;
    CUstream stream;
};

/* Return 1 under capture: the graph takes the memory when it is launched (graphs.h). */
static int is_recorded(const struct vgpu_cuda *cuda, CUstream stream)
{
    int status = 0;
    return cuda->cuStreamIsCapturing && cuda->cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS && status != 0;
}

/* A driver call, made once its memory has been charged. */
struct call {
    allocate_async async;
    allocate_from_pool from_pool;
    size_t bytes;
    CUmemoryPool pool;
    CUstream stream;
};

static CUresult make_call(void *argument, CUdeviceptr *out)
{
    const struct call *call = argument;
    return call->async ? call->async(out, call->bytes, call->stream)
                       : call->from_pool(out, call->bytes, call->pool, call->stream);
}

/* Allocate from `call->pool`, which is on `ordinal` unless its device is known. */
static CUresult allocate(struct vgpu_process *p, const struct vgpu_cuda *cuda, struct call *call, CUdevice ordinal,
                         CUdeviceptr *out)
{
    struct vgpu_pool *pool = vgpu_pool_of(p, call->pool, ordinal);
    struct vgpu_pool_request request = {.bytes = call->bytes, .allocate = make_call, .argument = call};
    if (!pool) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    CUresult result = vgpu_pool_allocate(p, cuda, pool, &request, out);
    if (request.displaced) {
        vgpu_charge_displaced(p, cuda, &request.old);
    }
    return result;
}

static CUresult async(allocate_async real, CUdeviceptr *out, size_t bytes, CUstream stream)
{
    const struct vgpu_cuda *cuda = vgpu_world->cuda();
    struct vgpu_process *p = vgpu_process();
    struct call call = {.async = real, .bytes = bytes, .stream = stream};
    CUdevice ordinal;
    if (!p || !out || !bytes || is_recorded(cuda, stream)) {
        return real(out, bytes, stream);
    }
    CUresult result = vgpu_stream_ordinal(cuda, stream, &ordinal);
    if (result == CUDA_SUCCESS) {
        result = cuda->cuDeviceGetMemPool ? cuda->cuDeviceGetMemPool(&call.pool, ordinal) : CUDA_ERROR_NOT_SUPPORTED;
    }
    return result == CUDA_SUCCESS ? allocate(p, cuda, &call, ordinal, out) : result;
}

CUresult cuMemAllocAsync(CUdeviceptr *out, size_t bytes, CUstream stream)
{
    const struct vgpu_cuda *cuda = vgpu_world->cuda();
    return cuda && cuda->cuMemAllocAsync ? async(cuda->cuMemAllocAsync, out, bytes, stream) : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult cuMemAllocAsync_ptsz(CUdeviceptr *out, size_t bytes, CUstream stream)
{
    const struct vgpu_cuda *cuda = vgpu_world->cuda();
    return cuda && cuda->cuMemAllocAsync_ptsz ? async(cuda->cuMemAllocAsync_ptsz, out, bytes, stream)
                                              : CUDA_ERROR_NOT_INITIALIZED;
}

static CUresult from_pool(allocate_from_pool real, CUdeviceptr *out, size_t bytes, CUmemoryPool pool, CUstream stream)
{
    const struct vgpu_cuda *cuda = vgpu_world->cuda();
    struct vgpu_process *p = vgpu_process();
    struct call call = {.from_pool = real, .bytes = bytes, .pool = pool, .stream = stream};
    CUdevice ordinal;
    if (!p || !out || !bytes || !pool || is_recorded(cuda, stream)) {
        return real(out, bytes, pool, stream);
    }
    CUresult result = vgpu_stream_ordinal(cuda, stream, &ordinal);
    return result == CUDA_SUCCESS ? allocate(p, cuda, &call, ordinal, out) : result;
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *out, size_t bytes, CUmemoryPool pool, CUstream stream)
{
    const struct vgpu_cuda *cuda = vgpu_world->cuda();
    return cuda && cuda->cuMemAllocFromPoolAsync ? from_pool(cuda->cuMemAllocFromPoolAsync, out, bytes, pool, stream)
                                                 : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *out, size_t bytes, CUmemoryPool pool, CUstream stream)
{
    const struct vgpu_cuda *cuda = vgpu_world->cuda();
    return cuda && cuda->cuMemAllocFromPoolAsync_ptsz ? from_pool(cuda->cuMemAllocFromPoolAsync_ptsz, out, bytes, pool, stream)
                                                      : CUDA_ERROR_NOT_INITIALIZED;
}

static CUresult make_free(void *argument, CUdeviceptr address)
{
    const struct free_call *call = argument;
    return call->real(address, call->stream);
}

static CUresult give_back(free_async real, CUdeviceptr address, CUstream stream)
{
    struct free_call call = {.real = real, .stream = stream};
    if (vgpu_process() && is_recorded(vgpu_world->cuda(), stream)) {
        return real(address, stream); /* it becomes a node of the graph; nothing is freed now */
    }
    return vgpu_charge_free(vgpu_process(), vgpu_world->cuda(), address, make_free, &call);
}

CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream)
{
    const struct vgpu_cuda *cuda = vgpu_world->cuda();
    return cuda && cuda->cuMemFreeAsync ? give_back(cuda->cuMemFreeAsync, address, stream) : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult cuMemFreeAsync_ptsz(CUdeviceptr address, CUstream stream)
{
    const struct vgpu_cuda *cuda = vgpu_world->cuda();
    return cuda && cuda->cuMemFreeAsync_ptsz ? give_back(cuda->cuMemFreeAsync_ptsz, address, stream) : CUDA_ERROR_NOT_INITIALIZED;
}

/* Reconcile after every call that may make a pool shrink. */
static CUresult reconciled(const struct vgpu_cuda *cuda, CUresult result)
{
    struct vgpu_process *p = vgpu_process();
    if (p) {
        vgpu_pools_reconcile(p, cuda);
    }
    return result;
}

/* Record the device of a pool's memory. An unrecorded pool counts for the device of the stream. */
static void learn(CUmemoryPool handle, int ordinal)
{
    struct vgpu_process *p = vgpu_process();
    if (p && !vgpu_pool_of(p, handle, ordinal)) {
        vgpu_world->log("vgpu: no memory to remember a pool\n");
    }
}

static void learn_by_location(const struct vgpu_cuda *cuda, CUmemoryPool handle, int type, int id)
{
    int ordinal = VGPU_NOWHERE;
    if (vgpu_location_ordinal(cuda, type, id, &ordinal) == CUDA_SUCCESS) {
        learn(handle, ordinal);
    }
}

CUresult cuMemPoolCreate(CUmemoryPool *out, const CUmemPoolProps *props)
{
    const struct vgpu_cuda *cuda = vgpu_world->cuda();
    enum { PINNED = 1 };
    if (!cuda || !cuda->cuMemPoolCreate) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    CUresult result = cuda->cuMemPoolCreate(out, props);
    /* Managed memory counts for the device of the stream, wherever it prefers to be. */
    if (result == CUDA_SUCCESS && props->alloc_type == PINNED) {
        learn_by_location(cuda, *out, props->location_type, props->location_id);
    }
    return result;
}

CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
    const struct vgpu_cuda *cuda = vgpu_world->cuda();
    struct vgpu_process *p = vgpu_process();
    struct vgpu_object known;
    if (!cuda || !cuda->cuMemPoolDestroy) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    /* Forget it before the call: once the driver has destroyed the pool, another thread's new pool may get its handle. */
    int was_known = p && vgpu_objects_take(&p->objects, VGPU_KIND_POOL, (uintptr_t)pool, &known);
    if (!was_known) {
        return cuda->cuMemPoolDestroy(pool);
    }
    CUresult result = vgpu_pool_destroy(p, cuda, (struct vgpu_pool *)(uintptr_t)known.context);
    if (result != CUDA_SUCCESS && vgpu_objects_add(&p->objects, known)) {
        vgpu_world->log("vgpu: no memory to remember a pool\n");
    }
    return result;
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
    const struct vgpu_cuda *cuda = vgpu_world->cuda();
    if (!cuda || !cuda->cuMemPoolTrimTo) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    return reconciled(cuda, cuda->cuMemPoolTrimTo(pool, keep));
}

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *out, CUdevice device)
{
    const struct vgpu_cuda *cuda = vgpu_world->cuda();
    if (!cuda || !cuda->cuDeviceGetDefaultMemPool) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    CUresult result = cuda->cuDeviceGetDefaultMemPool(out, device);
    if (result == CUDA_SUCCESS) {
        learn(*out, device);
    }
    return result;
}

CUresult cuDeviceGetMemPool(CUmemoryPool *out, CUdevice device)
{
    const struct vgpu_cuda *cuda = vgpu_world->cuda();
    if (!cuda || !cuda->cuDeviceGetMemPool) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    CUresult result = cuda->cuDeviceGetMemPool(out, device);
    if (result == CUDA_SUCCESS) {
        learn(*out, device);
    }
    return result;
}

CUresult cuMemGetDefaultMemPool(CUmemoryPool *out, CUmemLocation *location, int type)
{
    const struct vgpu_cuda *cuda = vgpu_world->cuda();
    if (!cuda || !cuda->cuMemGetDefaultMemPool) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    CUresult result = cuda->cuMemGetDefaultMemPool(out, location, type);
    if (result == CUDA_SUCCESS && type == 1) {
        learn_by_location(cuda, *out, location->type, location->id);
    }
    return result;
}

CUresult cuMemGetMemPool(CUmemoryPool *out, CUmemLocation *location, int type)
{
    const struct vgpu_cuda *cuda = vgpu_world->cuda();
    if (!cuda || !cuda->cuMemGetMemPool) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    CUresult result = cuda->cuMemGetMemPool(out, location, type);
    if (result == CUDA_SUCCESS && type == 1) {
        learn_by_location(cuda, *out, location->type, location->id);
    }
    return result;
}

static CUresult waited(const struct vgpu_cuda *cuda, CUresult result)
{
    vgpu_launch_waited(vgpu_process(), cuda);
    return result;
}

#define WAIT(symbol, after, parameters, arguments)                                                      \
    CUresult symbol parameters                                                                          \
    {                                                                                                   \
        const struct vgpu_cuda *cuda = vgpu_world->cuda();                                              \
        return cuda && cuda->symbol ? after(cuda, cuda->symbol arguments) : CUDA_ERROR_NOT_INITIALIZED; \
    }

#define WAIT_ALL(symbol, parameters, arguments) WAIT(symbol, waited_for_all, parameters, arguments)

static CUresult waited_for_all(const struct vgpu_cuda *cuda, CUresult result)
{
    return waited(cuda, reconciled(cuda, result));
}

WAIT_ALL(cuCtxSynchronize, (void), ())
WAIT_ALL(cuCtxSynchronize_v2, (CUcontext context), (context))
WAIT_ALL(cuStreamSynchronize, (CUstream stream), (stream))
WAIT_ALL(cuStreamSynchronize_ptsz, (CUstream stream), (stream))
WAIT_ALL(cuEventSynchronize, (CUevent event), (event))
WAIT(cuMemcpyDtoH_v2, waited, (void *to, CUdeviceptr from, size_t bytes), (to, from, bytes))
WAIT(cuMemcpyDtoH_v2_ptds, waited, (void *to, CUdeviceptr from, size_t bytes), (to, from, bytes))
