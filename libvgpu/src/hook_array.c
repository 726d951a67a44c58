/* hook_array.c - arrays and mipmapped arrays, charged by the size computed from their description.
 *
 * The driver lays arrays out in tiles of 64 bytes by 8 rows and does not report their cost, so rows and columns are
 * rounded up to whole tiles. An element of an unknown format counts as the largest possible one. Sparse arrays, and
 * arrays whose memory is mapped later, have no memory of their own.
 */
#include "devices.h"
#include "charge.h"

enum { TILE_BYTES = 64, TILE_ROWS = 8, LARGEST_ELEMENT = 16 };

static uint64_t times(uint64_t a, uint64_t b)
{
    return b && a > UINT64_MAX / b ? UINT64_MAX : a * b;
}

static uint64_t up_to(uint64_t value, uint64_t grain)
{
    return value > UINT64_MAX - grain ? UINT64_MAX : (value + grain - 1) / grain * grain;
}

static uint64_t element_bytes(int format, unsigned channels)
{
    switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8:
        return channels;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
        return 2 * (uint64_t)channels;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT:
        return 4 * (uint64_t)channels;
    default:
        return LARGEST_ELEMENT;
    }
}

static uint64_t at_least_one(uint64_t value)
{
    return value ? value : 1;
}

static uint64_t array_bytes(const CUDA_ARRAY3D_DESCRIPTOR *what, unsigned levels)
{
    uint64_t element = element_bytes(what->format, what->channels), sum = 0;
    uint64_t width = what->width, height = what->height, depth = what->depth;
    if (what->flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)) {
        return 0;
    }
    for (unsigned level = 0; level < levels && level < 64; level++) {
        uint64_t row = up_to(times(at_least_one(width), element), TILE_BYTES);
        uint64_t rows = height > 1 ? up_to(height, TILE_ROWS) : 1;
        uint64_t bytes = times(times(row, rows), at_least_one(depth));
        sum = sum > UINT64_MAX - bytes ? UINT64_MAX : sum + bytes;
        if (width <= 1 && height <= 1 && (depth <= 1 || what->flags & CUDA_ARRAY3D_LAYERED)) {
            break; /* the driver makes no more levels than halving allows */
        }
        width /= 2;
        height /= 2;
        depth = what->flags & CUDA_ARRAY3D_LAYERED ? depth : depth / 2;
    }
    return sum;
}

static void destroy_array(const struct vgpu_cuda *cuda, uint64_t handle)
{
    cuda->cuArrayDestroy((CUarray)(uintptr_t)handle);
}

static void destroy_mipmap(const struct vgpu_cuda *cuda, uint64_t handle)
{
    cuda->cuMipmappedArrayDestroy((CUmipmappedArray)(uintptr_t)handle);
}

CUresult cuArrayCreate_v2(CUarray *out, const CUDA_ARRAY_DESCRIPTOR *what)
{
    const struct vgpu_cuda *cuda = vgpu_world->cuda();
    struct vgpu_charge charge = {0};
    if (!cuda || !cuda->cuArrayCreate_v2) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    if (!vgpu_process() || !out || !what) {
        return cuda->cuArrayCreate_v2(out, what);
    }
    CUDA_ARRAY3D_DESCRIPTOR flat = {
        .width = what->width, .height = what->height, .format = what->format, .channels = what->channels};
    CUresult result = vgpu_charge_current(&charge, cuda, array_bytes(&flat, 1));
    if (result != CUDA_SUCCESS) {
        return result;
    }
    result = cuda->cuArrayCreate_v2(out, what);
    return vgpu_charge_keep(&charge, result, VGPU_KIND_ARRAY, result == CUDA_SUCCESS ? (uintptr_t)*out : 0, destroy_array);
}

CUresult cuArray3DCreate_v2(CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR *what)
{
    const struct vgpu_cuda *cuda = vgpu_world->cuda();
    struct vgpu_charge charge = {0};
    if (!cuda || !cuda->cuArray3DCreate_v2) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    if (!vgpu_process() || !out || !what) {
        return cuda->cuArray3DCreate_v2(out, what);
    }
    CUresult result = vgpu_charge_current(&charge, cuda, array_bytes(what, 1));
    if (result != CUDA_SUCCESS) {
        return result;
    }
    result = cuda->cuArray3DCreate_v2(out, what);
    return vgpu_charge_keep(&charge, result, VGPU_KIND_ARRAY, result == CUDA_SUCCESS ? (uintptr_t)*out : 0, destroy_array);
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray *out, const CUDA_ARRAY3D_DESCRIPTOR *what, unsigned levels)
{
    const struct vgpu_cuda *cuda = vgpu_world->cuda();
    struct vgpu_charge charge = {0};
    if (!cuda || !cuda->cuMipmappedArrayCreate) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    if (!vgpu_process() || !out || !what) {
        return cuda->cuMipmappedArrayCreate(out, what, levels);
    }
    CUresult result = vgpu_charge_current(&charge, cuda, array_bytes(what, levels));
    if (result != CUDA_SUCCESS) {
        return result;
    }
    result = cuda->cuMipmappedArrayCreate(out, what, levels);
    return vgpu_charge_keep(&charge, result, VGPU_KIND_MIPMAP, result == CUDA_SUCCESS ? (uintptr_t)*out : 0, destroy_mipmap);
}

CUresult cuArrayDestroy(CUarray array)
{
    const struct vgpu_cuda *cuda = vgpu_world->cuda();
    struct vgpu_process *p = vgpu_process();
    struct vgpu_object object;
    if (!cuda || !cuda->cuArrayDestroy) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    int known = vgpu_charge_forget(p, VGPU_KIND_ARRAY, (uintptr_t)array, &object);
    CUresult result = cuda->cuArrayDestroy(array);
    if (known) {
        vgpu_charge_return(p, &object, result);
    }
    return result;
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray array)
{
    const struct vgpu_cuda *cuda = vgpu_world->cuda();
    struct vgpu_process *p = vgpu_process();
    struct vgpu_object object;
    if (!cuda || !cuda->cuMipmappedArrayDestroy) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    int known = vgpu_charge_forget(p, VGPU_KIND_MIPMAP, (uintptr_t)array, &object);
    CUresult result = cuda->cuMipmappedArrayDestroy(array);
    if (known) {
        vgpu_charge_return(p, &object, result);
    }
    return result;
}
