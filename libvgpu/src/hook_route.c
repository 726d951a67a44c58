/* hook_route.c - cuGetProcAddress: the driver answers, we translate. */
#include "routing.h"
#include "world.h"

static CUresult translate(const struct vgpu_cuda *cuda, CUresult result, const char *name, void **out, int version,
                          uint64_t flags)
{
    if (result == CUDA_SUCCESS && name && out && *out) {
        *out = vgpu_route_pointer(cuda, name, *out, version, flags == CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM);
    }
    return result;
}

CUresult cuGetProcAddress(const char *name, void **out, int version, uint64_t flags)
{
    const struct vgpu_cuda *cuda = vgpu_world->cuda();
    if (!cuda || !cuda->cuGetProcAddress) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    return translate(cuda, cuda->cuGetProcAddress(name, out, version, flags), name, out, version, flags);
}

CUresult cuGetProcAddress_v2(const char *name, void **out, int version, uint64_t flags, int *status)
{
    const struct vgpu_cuda *cuda = vgpu_world->cuda();
    if (!cuda || !cuda->cuGetProcAddress_v2) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    return translate(cuda, cuda->cuGetProcAddress_v2(name, out, version, flags, status), name, out, version, flags);
}

/* A program compiled for per-thread default streams gets that variant when it asks for the default. */
static uint64_t meant(uint64_t flags)
{
    return flags == CU_GET_PROC_ADDRESS_DEFAULT ? CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM : flags;
}

CUresult cuGetProcAddress_ptsz(const char *name, void **out, int version, uint64_t flags)
{
    const struct vgpu_cuda *cuda = vgpu_world->cuda();
    if (!cuda || !cuda->cuGetProcAddress_ptsz) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    return translate(cuda, cuda->cuGetProcAddress_ptsz(name, out, version, flags), name, out, version, meant(flags));
}

CUresult cuGetProcAddress_v2_ptsz(const char *name, void **out, int version, uint64_t flags, int *status)
{
    const struct vgpu_cuda *cuda = vgpu_world->cuda();
    if (!cuda || !cuda->cuGetProcAddress_v2_ptsz) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    CUresult result = cuda->cuGetProcAddress_v2_ptsz(name, out, version, flags, status);
    return translate(cuda, result, name, out, version, meant(flags));
}
