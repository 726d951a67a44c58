/* cuda_current.c - the current context of each thread, kept as a stack. */
#include <stdlib.h>

#include "cuda_memory.h"
#include "cuda_work.h"

/* A thread's stack refers to contexts; the same context may be on it more than once. */
struct frame {
    struct CUctx_st *context;
    struct frame *below;
};
static __thread struct frame *stack;

struct CUctx_st *cuda_top(void)
{
    return stack ? stack->context : NULL;
}

struct CUctx_st *cuda_current(CUresult *result)
{
    struct CUctx_st *context = cuda_top();
    if (!cuda_session()) {
        *result = CUDA_ERROR_NOT_INITIALIZED;
        return NULL;
    }
    if (!context || !context->alive) {
        *result = context ? CUDA_ERROR_CONTEXT_IS_DESTROYED : CUDA_ERROR_INVALID_CONTEXT;
        return NULL;
    }
    if (context->broken) {
        *result = CUDA_ERROR_ILLEGAL_ADDRESS;
        return NULL;
    }
    return context;
}

CUresult cuda_push(struct CUctx_st *context)
{
    struct frame *frame = malloc(sizeof *frame);
    if (!frame) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *frame = (struct frame){.context = context, .below = stack};
    stack = frame;
    return CUDA_SUCCESS;
}

struct CUctx_st *cuda_pop(void)
{
    struct frame *frame = stack;
    struct CUctx_st *context = frame ? frame->context : NULL;
    if (frame) {
        stack = frame->below;
        free(frame);
    }
    return context;
}

CUDA_API CUresult cuCtxPushCurrent_v2(CUcontext context)
{
    if (!cuda_session()) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    return context ? cuda_push(context) : CUDA_ERROR_INVALID_CONTEXT;
}

CUDA_API CUresult cuCtxPushCurrent(CUcontext context)
{
    return cuCtxPushCurrent_v2(context);
}

CUDA_API CUresult cuCtxPopCurrent_v2(CUcontext *out)
{
    struct CUctx_st *context = cuda_pop();
    if (out) {
        *out = context;
    }
    return context ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUDA_API CUresult cuCtxPopCurrent(CUcontext *out)
{
    return cuCtxPopCurrent_v2(out);
}

CUDA_API CUresult cuCtxSetCurrent(CUcontext context)
{
    if (!cuda_session()) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    cuda_pop();
    return context ? cuda_push(context) : CUDA_SUCCESS;
}

CUDA_API CUresult cuCtxGetCurrent(CUcontext *out)
{
    if (!cuda_session()) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    if (!out) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *out = cuda_top();
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuCtxGetDevice(CUdevice *out)
{
    CUresult result = CUDA_SUCCESS;
    struct CUctx_st *context = cuda_current(&result);
    context = result == CUDA_ERROR_ILLEGAL_ADDRESS ? cuda_top() : context; /* its address is known */
    if (!context || !out) {
        return context ? CUDA_ERROR_INVALID_VALUE : result;
    }
    *out = context->device;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuCtxGetApiVersion(CUcontext context, unsigned *version)
{
    (void)context;
    if (!version) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *version = 3020;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuCtxSynchronize(void)
{
    CUresult result = CUDA_SUCCESS;
    struct CUctx_st *context = cuda_current(&result);
    if (!context) {
        return result;
    }
    result = cuda_work_finish(context, NULL);
    cuda_pool_synchronise();
    return result;
}
