/* hook_view.c - CUDA's queries of memory, answered for the slice. */
#include "devices.h"
#include "exports.h"
#include "overhead.h"
#include "pools.h"
#include "view.h"

static unsigned narrow(uint64_t bytes)
{
    return bytes > UINT32_MAX ? UINT32_MAX : (unsigned)bytes;
}

/* Adjust the driver's result for the current device. The driver handles NULL pointers. */
static CUresult memory_info(const struct vgpu_cuda *cuda, size_t *free_bytes, size_t *total)
{
    struct vgpu_process *p = vgpu_process();
    CUdevice ordinal;
    size_t real_free = 0, real_total = 0;
    if (!p || !cuda->cuMemGetInfo_v2) {
        return cuda->cuMemGetInfo_v2 ? cuda->cuMemGetInfo_v2(free_bytes, total) : CUDA_ERROR_NOT_SUPPORTED;
    }
    vgpu_pools_reconcile(p, cuda);
    vgpu_overhead_grew(p); /* the caller gets the newest figure */
    vgpu_overhead_look(p, cuda);
    vgpu_exports_reclaim(p);
    CUresult result = cuda->cuMemGetInfo_v2(&real_free, &real_total);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    struct vgpu_view view = {0};
    if (vgpu_current_ordinal(cuda, &ordinal) == CUDA_SUCCESS) {
        const struct vgpu_device *device = vgpu_device_of_ordinal(p, cuda, ordinal);
        view = device ? vgpu_view_of(p, device->uuid, ordinal, real_total, real_free) : view;
    }
    if (free_bytes) {
        *free_bytes = view.free;
    }
    if (total) {
        *total = view.total;
    }
    return CUDA_SUCCESS;
}

CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
    const struct vgpu_cuda *cuda = vgpu_world->cuda();
    return cuda ? memory_info(cuda, free_bytes, total) : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult cuMemGetInfo(unsigned *free_bytes, unsigned *total)
{
    const struct vgpu_cuda *cuda = vgpu_world->cuda();
    size_t wide_free = 0, wide_total = 0;
    if (!cuda) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    if (!vgpu_process() && cuda->cuMemGetInfo) {
        return cuda->cuMemGetInfo(free_bytes, total);
    }
    CUresult result = memory_info(cuda, &wide_free, &wide_total);
    if (result == CUDA_SUCCESS && free_bytes) {
        *free_bytes = narrow(wide_free);
    }
    if (result == CUDA_SUCCESS && total) {
        *total = narrow(wide_total);
    }
    return result;
}

static uint64_t slice_total(struct vgpu_process *p, const struct vgpu_cuda *cuda, CUdevice ordinal, uint64_t total)
{
    const struct vgpu_device *device = vgpu_device_of_ordinal(p, cuda, ordinal);
    return device ? vgpu_view_of(p, device->uuid, ordinal, total, total).total : 0;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
    const struct vgpu_cuda *cuda = vgpu_world->cuda();
    struct vgpu_process *p = vgpu_process();
    if (!cuda || !cuda->cuDeviceTotalMem_v2) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    CUresult result = cuda->cuDeviceTotalMem_v2(bytes, device);
    if (result == CUDA_SUCCESS && p) {
        *bytes = slice_total(p, cuda, device, *bytes);
    }
    return result;
}

CUresult cuDeviceTotalMem(unsigned *bytes, CUdevice device)
{
    const struct vgpu_cuda *cuda = vgpu_world->cuda();
    struct vgpu_process *p = vgpu_process();
    size_t wide = 0;
    if (!cuda || !cuda->cuDeviceTotalMem) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    CUresult result = cuda->cuDeviceTotalMem(bytes, device);
    if (result == CUDA_SUCCESS && p && cuda->cuDeviceTotalMem_v2 && cuda->cuDeviceTotalMem_v2(&wide, device) == CUDA_SUCCESS) {
        *bytes = narrow(slice_total(p, cuda, device, wide));
    }
    return result;
}
