/* hook_memory.c - linear, pitched and managed memory. On an oversubscribed device, allocations that do not fit in its own
 * memory become managed memory, without the program's knowledge. */
#include <stdatomic.h>
#include <string.h>

#include "devices.h"
#include "charge.h"
#include "ledger.h"

/* Allocate memory that the device had no room for: return `refused`, or use managed memory. */
static CUresult beside(const struct vgpu_cuda *cuda, CUdeviceptr *out, uint64_t bytes, CUresult refused)
{
    struct vgpu_process *p = vgpu_process();
    CUdevice ordinal;
    if (refused != CUDA_ERROR_OUT_OF_MEMORY || vgpu_current_ordinal(cuda, &ordinal) != CUDA_SUCCESS ||
        !vgpu_is_oversubscribed(p, cuda, ordinal)) {
        return refused;
    }
    return vgpu_charge_managed(p, cuda, ordinal, out, bytes, CU_MEM_ATTACH_GLOBAL);
}

CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t bytes)
{
    const struct vgpu_cuda *cuda = vgpu_world->cuda();
    struct vgpu_charge charge = {0};
    if (!cuda || !cuda->cuMemAlloc_v2) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    if (!vgpu_process() || !out || !bytes) {
        return cuda->cuMemAlloc_v2(out, bytes); /* no limit, or an invalid size: the driver returns its own error */
    }
    CUresult result = vgpu_charge_current(&charge, cuda, bytes);
    if (result != CUDA_SUCCESS) {
        return beside(cuda, out, bytes, result);
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
    /* Rows are padded to the driver's pitch, which is returned only afterwards: guess, then correct. */
    uint64_t row = vgpu_ledger_rounded(width);
    uint64_t guess = row > UINT64_MAX / height ? UINT64_MAX : row * height;
    CUresult result = vgpu_charge_current(&charge, cuda, guess);
    if (result != CUDA_SUCCESS) {
        result = element == 4 || element == 8 || element == 16 ? beside(cuda, out, guess, result) : result;
        *pitch = result == CUDA_SUCCESS ? row : *pitch;
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
    CUdevice ordinal;
    if (!vgpu_process() || !out || !bytes) {
        return cuda->cuMemAllocManaged(out, bytes, flags);
    }
    if (vgpu_current_ordinal(cuda, &ordinal) == CUDA_SUCCESS && vgpu_is_oversubscribed(vgpu_process(), cuda, ordinal)) {
        return vgpu_charge_managed(vgpu_process(), cuda, ordinal, out, bytes, flags);
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

/* A library that the program links before the driver may define its own cuMemFree to learn what is freed; MPI libraries
 * cache handles by address. Our hook would hide it, so we call it first, and its call of the driver comes back here.
 * (Rejected: returning the driver's function to it. Any library that defines such a name would then get the driver's.)
 * Other functions are not passed on. */
static CUresult (*interposed_free(const struct vgpu_cuda *cuda))(CUdeviceptr)
{
    static void *_Atomic known;
    void *real, *next = atomic_load_explicit(&known, memory_order_relaxed);
    memcpy(&real, &cuda->cuMemFree_v2, sizeof real);
    if (!next) {
        next = vgpu_world->next ? vgpu_world->next("cuMemFree_v2") : NULL;
        next = next ? next : real;
        atomic_store_explicit(&known, next, memory_order_relaxed);
    }
    return next == real ? NULL : (CUresult (*)(CUdeviceptr))next;
}

CUresult cuMemFree_v2(CUdeviceptr address)
{
    static _Thread_local int passed_on;
    const struct vgpu_cuda *cuda = vgpu_world->cuda();
    if (!cuda || !cuda->cuMemFree_v2) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    CUresult (*interposed)(CUdeviceptr) = passed_on ? NULL : interposed_free(cuda);
    if (interposed) {
        passed_on = 1;
        CUresult result = interposed(address);
        passed_on = 0;
        return result;
    }
    return vgpu_charge_free(vgpu_process(), cuda, address, free_it, (void *)(uintptr_t)cuda);
}
