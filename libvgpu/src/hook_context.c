/* hook_context.c - a context that goes takes its memory with it.
 *
 * Which allocations go is settled before the driver is asked: what another thread allocates in a context of the
 * same name meanwhile is younger and stays charged.
 */
#include "ledger.h"
#include "pools.h"
#include "process.h"

static void release_one(void *argument, const struct vgpu_object *object)
{
    struct vgpu_process *p = argument;
    vgpu_ledger_release(vgpu_process_slot(p), (unsigned)object->column, object->bytes);
}

static CUresult destroy(CUresult (*real)(CUcontext), CUcontext context)
{
    struct vgpu_process *p = vgpu_process();
    uint64_t until = p ? vgpu_objects_now(&p->objects) : 0;
    CUresult result = real(context);
    if (p && result == CUDA_SUCCESS) {
        vgpu_objects_drop_context(&p->objects, context, until, release_one, p);
        vgpu_pools_settle(p, vgpu_world->cuda());
    }
    return result;
}

CUresult cuCtxDestroy(CUcontext context)
{
    const struct vgpu_cuda *cuda = vgpu_world->cuda();
    return cuda && cuda->cuCtxDestroy ? destroy(cuda->cuCtxDestroy, context) : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult cuCtxDestroy_v2(CUcontext context)
{
    const struct vgpu_cuda *cuda = vgpu_world->cuda();
    return cuda && cuda->cuCtxDestroy_v2 ? destroy(cuda->cuCtxDestroy_v2, context) : CUDA_ERROR_NOT_INITIALIZED;
}

static int is_active(const struct vgpu_cuda *cuda, CUdevice device)
{
    unsigned flags;
    int active = 0;
    return cuda->cuDevicePrimaryCtxGetState &&
           cuda->cuDevicePrimaryCtxGetState(device, &flags, &active) == CUDA_SUCCESS && active;
}

/* Handle of a device's primary context, NULL when it is not active. There is no way to ask but to retain it. */
static CUcontext primary_of(const struct vgpu_cuda *cuda, CUdevice device, CUresult (*release)(CUdevice))
{
    CUcontext context = NULL;
    if (!release || !cuda->cuDevicePrimaryCtxRetain || !is_active(cuda, device) ||
        cuda->cuDevicePrimaryCtxRetain(&context, device) != CUDA_SUCCESS) {
        return NULL;
    }
    release(device);
    return context;
}

static CUresult end_primary(const struct vgpu_cuda *cuda, CUresult (*real)(CUdevice), CUdevice device)
{
    struct vgpu_process *p = vgpu_process();
    if (!p) {
        return real(device);
    }
    CUresult (*release)(CUdevice) =
        cuda->cuDevicePrimaryCtxRelease_v2 ? cuda->cuDevicePrimaryCtxRelease_v2 : cuda->cuDevicePrimaryCtxRelease;
    CUcontext context = primary_of(cuda, device, release);
    uint64_t until = vgpu_objects_now(&p->objects);
    CUresult result = real(device);
    if (context && result == CUDA_SUCCESS && !is_active(cuda, device)) {
        vgpu_objects_drop_context(&p->objects, context, until, release_one, p);
        vgpu_pools_settle(p, cuda);
    }
    return result;
}

#define END_PRIMARY(symbol)                                                                                     \
    CUresult symbol(CUdevice device)                                                                            \
    {                                                                                                           \
        const struct vgpu_cuda *cuda = vgpu_world->cuda();                                                      \
        return cuda && cuda->symbol ? end_primary(cuda, cuda->symbol, device) : CUDA_ERROR_NOT_INITIALIZED;     \
    }

END_PRIMARY(cuDevicePrimaryCtxRelease)
END_PRIMARY(cuDevicePrimaryCtxRelease_v2)
END_PRIMARY(cuDevicePrimaryCtxReset)
END_PRIMARY(cuDevicePrimaryCtxReset_v2)
