/* hook_host.c - page-locked host memory, allocated by the driver or registered with it. */
#include "charge.h"
#include "ledger.h"

static void unlock_made(const struct vgpu_cuda *cuda, uint64_t address)
{
    cuda->cuMemFreeHost((void *)(uintptr_t)address);
}

static void unlock_registered(const struct vgpu_cuda *cuda, uint64_t address)
{
    cuda->cuMemHostUnregister((void *)(uintptr_t)address);
}

#define MAKE(symbol, parameters, arguments)                                                                                  \
    CUresult symbol parameters                                                                                               \
    {                                                                                                                        \
        const struct vgpu_cuda *cuda = vgpu_world->cuda();                                                                   \
        struct vgpu_charge charge;                                                                                           \
        if (!cuda || !cuda->symbol) {                                                                                        \
            return CUDA_ERROR_NOT_INITIALIZED;                                                                               \
        }                                                                                                                    \
        if (!out || !bytes) {                                                                                                \
            return cuda->symbol arguments;                                                                                   \
        }                                                                                                                    \
        CUresult result = vgpu_charge_host(&charge, cuda, bytes);                                                            \
        if (result != CUDA_SUCCESS) {                                                                                        \
            return result;                                                                                                   \
        }                                                                                                                    \
        result = cuda->symbol arguments;                                                                                     \
        return vgpu_charge_keep(&charge, result, VGPU_KIND_HOST, result == CUDA_SUCCESS ? (uintptr_t)*out : 0, unlock_made); \
    }

MAKE(cuMemAllocHost, (void **out, unsigned bytes), (out, bytes))
MAKE(cuMemAllocHost_v2, (void **out, size_t bytes), (out, bytes))
MAKE(cuMemHostAlloc, (void **out, size_t bytes, unsigned flags), (out, bytes, flags))

static CUresult reg(CUresult (*real)(void *, size_t, unsigned), void *address, size_t bytes, unsigned flags)
{
    const struct vgpu_cuda *cuda = vgpu_world->cuda();
    struct vgpu_charge charge;
    if (!address || !bytes) {
        return real(address, bytes, flags);
    }
    CUresult result = vgpu_charge_host(&charge, cuda, bytes);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    return vgpu_charge_keep(&charge, real(address, bytes, flags), VGPU_KIND_HOST, (uintptr_t)address, unlock_registered);
}

CUresult cuMemHostRegister(void *address, size_t bytes, unsigned flags)
{
    const struct vgpu_cuda *cuda = vgpu_world->cuda();
    return cuda && cuda->cuMemHostRegister ? reg(cuda->cuMemHostRegister, address, bytes, flags) : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult cuMemHostRegister_v2(void *address, size_t bytes, unsigned flags)
{
    const struct vgpu_cuda *cuda = vgpu_world->cuda();
    return cuda && cuda->cuMemHostRegister_v2 ? reg(cuda->cuMemHostRegister_v2, address, bytes, flags)
                                              : CUDA_ERROR_NOT_INITIALIZED;
}

static CUresult give_back(CUresult (*real)(void *), void *address)
{
    struct vgpu_process *p = vgpu_process();
    struct vgpu_object object;
    int was_known = vgpu_charge_forget(p, VGPU_KIND_HOST, (uintptr_t)address, &object);
    CUresult result = real(address);
    if (was_known) {
        vgpu_charge_return(p, &object, result);
    }
    return result;
}

CUresult cuMemFreeHost(void *address)
{
    const struct vgpu_cuda *cuda = vgpu_world->cuda();
    return cuda && cuda->cuMemFreeHost ? give_back(cuda->cuMemFreeHost, address) : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult cuMemHostUnregister(void *address)
{
    const struct vgpu_cuda *cuda = vgpu_world->cuda();
    return cuda && cuda->cuMemHostUnregister ? give_back(cuda->cuMemHostUnregister, address) : CUDA_ERROR_NOT_INITIALIZED;
}
