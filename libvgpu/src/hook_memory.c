/* hook_memory.c - linear, pitched and managed memory. */
#include "cards.h"
#include "charge.h"

CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t bytes)
{
    const struct vgpu_cuda *cuda = vgpu_world->cuda();
    struct vgpu_charge charge = {0};
    if (!cuda || !cuda->cuMemAlloc_v2) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    if (!vgpu_process() || !out || !bytes) {
        return cuda->cuMemAlloc_v2(out, bytes); /* nothing to limit, or wrong and for the driver to say how */
    }
    CUresult result = vgpu_charge_current(&charge, cuda, bytes);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    return vgpu_charge_end(&charge, cuda->cuMemAlloc_v2(out, bytes), out);
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *out, size_t *pitch, size_t width, size_t height, unsigned element)
{
    const struct vgpu_cuda *cuda = vgpu_world->cuda();
    struct vgpu_charge charge = {0};
    if (!cuda || !cuda->cuMemAllocPitch_v2) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    if (!vgpu_process() || !out || !pitch || !width || !height) {
        return cuda->cuMemAllocPitch_v2(out, pitch, width, height, element);
    }
    /* Rows are padded to the driver's pitch, which it tells only afterwards: guess, then correct. */
    uint64_t row = vgpu_charge_rounded(width);
    CUresult result = vgpu_charge_current(&charge, cuda, row > UINT64_MAX / height ? UINT64_MAX : row * height);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    result = cuda->cuMemAllocPitch_v2(out, pitch, width, height, element);
    if (result == CUDA_SUCCESS && vgpu_charge_correct(&charge, (uint64_t)*pitch * height) != CUDA_SUCCESS) {
        cuda->cuMemFree_v2(*out);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    return vgpu_charge_end(&charge, result, out);
}

CUresult cuMemAllocManaged(CUdeviceptr *out, size_t bytes, unsigned flags)
{
    const struct vgpu_cuda *cuda = vgpu_world->cuda();
    struct vgpu_charge charge = {0};
    if (!cuda || !cuda->cuMemAllocManaged) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    if (!vgpu_process() || !out || !bytes) {
        return cuda->cuMemAllocManaged(out, bytes, flags);
    }
    CUresult result = vgpu_charge_current(&charge, cuda, bytes);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    return vgpu_charge_end(&charge, cuda->cuMemAllocManaged(out, bytes, flags), out);
}

static CUresult free_it(void *argument, CUdeviceptr address)
{
    const struct vgpu_cuda *cuda = argument;
    return cuda->cuMemFree_v2(address);
}

CUresult cuMemFree_v2(CUdeviceptr address)
{
    const struct vgpu_cuda *cuda = vgpu_world->cuda();
    if (!cuda || !cuda->cuMemFree_v2) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    return vgpu_charge_free(vgpu_process(), cuda, address, free_it, (void *)(uintptr_t)cuda);
}
