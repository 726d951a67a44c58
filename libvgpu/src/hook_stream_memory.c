/* hook_stream_memory.c - stream-ordered memory and the pools it comes from.
 *
 * What is charged is what was asked for, from the call on until the call that frees it. A pool that keeps freed
 * memory for later is the driver's business as long as the release threshold is at its default.
 */
#include "cards.h"
#include "charge.h"

typedef CUresult (*allocate_async)(CUdeviceptr *, size_t, CUstream);
typedef CUresult (*allocate_from_pool)(CUdeviceptr *, size_t, CUmemoryPool, CUstream);
typedef CUresult (*free_async)(CUdeviceptr, CUstream);

/* An allocation recorded into a graph happens again at every launch of that graph, where nothing charges it. */
static int is_recorded(const struct vgpu_cuda *cuda, CUstream stream)
{
    int status = 0;
    return cuda->cuStreamIsCapturing && cuda->cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS &&
           status != 0;
}

static CUresult async(allocate_async real, CUdeviceptr *out, size_t bytes, CUstream stream)
{
    const struct vgpu_cuda *cuda = vgpu_world->cuda();
    struct vgpu_charge charge = {0};
    CUdevice ordinal;
    if (!vgpu_process() || !out || !bytes) {
        return real(out, bytes, stream);
    }
    CUresult result = vgpu_stream_ordinal(cuda, stream, &ordinal);
    if (result == CUDA_SUCCESS && is_recorded(cuda, stream)) {
        result = CUDA_ERROR_NOT_SUPPORTED;
    }
    if (result == CUDA_SUCCESS) {
        result = vgpu_charge_begin(&charge, cuda, ordinal, bytes);
    }
    if (result != CUDA_SUCCESS) {
        return result;
    }
    return vgpu_charge_end(&charge, real(out, bytes, stream), out);
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
    struct vgpu_charge charge = {0};
    struct vgpu_object known;
    CUdevice ordinal;
    if (!p || !out || !bytes || !pool) {
        return real(out, bytes, pool, stream);
    }
    CUresult result = vgpu_stream_ordinal(cuda, stream, &ordinal);
    if (result == CUDA_SUCCESS && is_recorded(cuda, stream)) {
        result = CUDA_ERROR_NOT_SUPPORTED;
    }
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (vgpu_objects_find(&p->objects, VGPU_KIND_POOL, (uintptr_t)pool, &known)) {
        if (known.column == VGPU_NOWHERE) {
            return real(out, bytes, pool, stream); /* host memory */
        }
        ordinal = known.column;
    }
    result = vgpu_charge_begin(&charge, cuda, ordinal, bytes);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    return vgpu_charge_end(&charge, real(out, bytes, pool, stream), out);
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
    return cuda && cuda->cuMemAllocFromPoolAsync_ptsz
               ? from_pool(cuda->cuMemAllocFromPoolAsync_ptsz, out, bytes, pool, stream)
               : CUDA_ERROR_NOT_INITIALIZED;
}

static CUresult give_back(free_async real, CUdeviceptr address, CUstream stream)
{
    struct vgpu_process *p = vgpu_process();
    struct vgpu_object object;
    int known = vgpu_charge_forget(p, VGPU_KIND_MEMORY, address, &object);
    CUresult result = real(address, stream);
    if (known) {
        vgpu_charge_return(p, &object, result);
    }
    return result;
}

CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream)
{
    const struct vgpu_cuda *cuda = vgpu_world->cuda();
    return cuda && cuda->cuMemFreeAsync ? give_back(cuda->cuMemFreeAsync, address, stream) : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult cuMemFreeAsync_ptsz(CUdeviceptr address, CUstream stream)
{
    const struct vgpu_cuda *cuda = vgpu_world->cuda();
    return cuda && cuda->cuMemFreeAsync_ptsz ? give_back(cuda->cuMemFreeAsync_ptsz, address, stream)
                                             : CUDA_ERROR_NOT_INITIALIZED;
}

/* Remember where a pool's memory lies. One we cannot remember counts for the device of the stream. */
static void learn(CUmemoryPool pool, int ordinal)
{
    struct vgpu_process *p = vgpu_process();
    if (p && vgpu_objects_add(&p->objects, (struct vgpu_object){.handle = (uintptr_t)pool,
                                                               .column = ordinal,
                                                               .kind = VGPU_KIND_POOL})) {
        vgpu_world->log("vgpu: no memory to remember a pool\n");
    }
}

CUresult cuMemPoolCreate(CUmemoryPool *out, const CUmemPoolProps *props)
{
    const struct vgpu_cuda *cuda = vgpu_world->cuda();
    enum { PINNED = 1, HOST = 2, HOST_NUMA = 3, HOST_NUMA_CURRENT = 4 };
    if (!cuda || !cuda->cuMemPoolCreate) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    CUresult result = cuda->cuMemPoolCreate(out, props);
    if (result == CUDA_SUCCESS && props->location_type == CU_MEM_LOCATION_TYPE_DEVICE) {
        learn(*out, props->location_id);
    } else if (result == CUDA_SUCCESS && props->alloc_type == PINNED && props->location_type >= HOST &&
               props->location_type <= HOST_NUMA_CURRENT) {
        learn(*out, VGPU_NOWHERE);
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
    if (p) {
        vgpu_objects_take(&p->objects, VGPU_KIND_POOL, (uintptr_t)pool, &known);
    }
    return cuda->cuMemPoolDestroy(pool);
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
