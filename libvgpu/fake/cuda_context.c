/* cuda_context.c - contexts of the simulated driver: one primary context for each device, and any number of others. */
#include <pthread.h>
#include <stdlib.h>

#include "cuda_memory.h"

static struct CUctx_st primaries[MACHINE_MAX_CARDS];
static pthread_mutex_t contexts_lock = PTHREAD_MUTEX_INITIALIZER;

static CUresult bring_up(struct CUctx_st *context, CUdevice device, unsigned flags, int primary)
{
    const struct cuda_session *s = cuda_session();
    int card = s->visible[device];
    CUresult result = cuda_result(state_take(s->machine, card, s->machine->context_bytes, 1));
    if (result == CUDA_SUCCESS) {
        context->device = device;
        context->card = card;
        context->flags = flags;
        context->primary = primary;
        context->alive = 1;
        context->broken = 0;
    }
    return result;
}

static void tear_down(struct CUctx_st *context)
{
    const struct machine *m = cuda_session()->machine;
    cuda_memory_drop_context(context);
    cuda_array_drop_context(context);
    cuda_host_drop_context(context);
    cuda_event_drop_context(context);
    cuda_stream_drop_context(context);
    cuda_module_drop_context(context);
    context->alive = 0;
    state_give(m, context->card, m->context_bytes, 1);
}

CUDA_API CUresult cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice device)
{
    CUresult result = cuda_check_device(device);
    if (result != CUDA_SUCCESS || !out) {
        return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_VALUE;
    }
    struct CUctx_st *context = &primaries[device];
    pthread_mutex_lock(&contexts_lock);
    if (!context->alive) {
        result = bring_up(context, device, context->flags, 1);
    }
    if (result == CUDA_SUCCESS) {
        context->retained++;
        *out = context;
    }
    pthread_mutex_unlock(&contexts_lock);
    return result;
}

CUDA_API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    CUresult result = cuda_check_device(device);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    pthread_mutex_lock(&contexts_lock);
    if (!primaries[device].retained) {
        result = CUDA_ERROR_INVALID_CONTEXT;
    } else if (--primaries[device].retained == 0 && primaries[device].alive) {
        tear_down(&primaries[device]);
    }
    pthread_mutex_unlock(&contexts_lock);
    return result;
}

CUDA_API CUresult cuDevicePrimaryCtxRelease(CUdevice device)
{
    return cuDevicePrimaryCtxRelease_v2(device);
}

CUDA_API CUresult cuDevicePrimaryCtxReset_v2(CUdevice device)
{
    CUresult result = cuda_check_device(device);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    pthread_mutex_lock(&contexts_lock);
    if (primaries[device].alive) {
        tear_down(&primaries[device]); /* its retains stay and must be released */
    }
    pthread_mutex_unlock(&contexts_lock);
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuDevicePrimaryCtxReset(CUdevice device)
{
    return cuDevicePrimaryCtxReset_v2(device);
}

CUDA_API CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned flags)
{
    CUresult result = cuda_check_device(device);
    if (result == CUDA_SUCCESS) {
        primaries[device].flags = flags;
    }
    return result;
}

CUDA_API CUresult cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned flags)
{
    return cuDevicePrimaryCtxSetFlags_v2(device, flags);
}

CUDA_API CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active)
{
    CUresult result = cuda_check_device(device);
    if (result != CUDA_SUCCESS || !flags || !active) {
        return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_VALUE;
    }
    pthread_mutex_lock(&contexts_lock);
    *flags = primaries[device].flags;
    *active = primaries[device].alive;
    pthread_mutex_unlock(&contexts_lock);
    return CUDA_SUCCESS;
}

static CUresult create(CUcontext *out, unsigned flags, CUdevice device)
{
    CUresult result = cuda_check_device(device);
    if (result != CUDA_SUCCESS || !out) {
        return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_VALUE;
    }
    struct CUctx_st *context = calloc(1, sizeof *context);
    if (!context) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    result = bring_up(context, device, flags, 0);
    if (result == CUDA_SUCCESS) {
        result = cuda_push(context);
    }
    if (result != CUDA_SUCCESS) {
        free(context);
        return result;
    }
    *out = context;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuCtxCreate(CUcontext *out, unsigned flags, CUdevice device)
{
    return create(out, flags, device);
}

CUDA_API CUresult cuCtxCreate_v2(CUcontext *out, unsigned flags, CUdevice device)
{
    return create(out, flags, device);
}

CUDA_API CUresult cuCtxCreate_v3(CUcontext *out, void *affinity, int affinities, unsigned flags, CUdevice device)
{
    (void)affinity;
    return affinities ? CUDA_ERROR_NOT_SUPPORTED : create(out, flags, device);
}

CUDA_API CUresult cuCtxCreate_v4(CUcontext *out, void *parameters, unsigned flags, CUdevice device)
{
    (void)parameters;
    return create(out, flags, device);
}

CUDA_API CUresult cuCtxDestroy_v2(CUcontext context)
{
    if (!cuda_session()) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    if (!context || context->primary || !context->alive) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    if (cuda_top() == context) {
        cuda_pop();
    }
    tear_down(context); /* not freed: other threads may still have it current and must get its error */
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuCtxDestroy(CUcontext context)
{
    return cuCtxDestroy_v2(context);
}
