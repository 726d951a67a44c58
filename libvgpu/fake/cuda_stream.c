/* cuda_stream.c - streams, events, modules and launches: enough that programs run; all work is done at once. */
#include <stdlib.h>
#include <time.h>

#include "cuda_memory.h"

struct CUstream_st {
    struct CUctx_st *context;
};

struct CUevent_st {
    struct timespec at;
    int recorded;
};

struct CUmod_st {
    int unused;
};

struct CUctx_st *cuda_stream_context(CUstream stream, CUresult *result)
{
    if (!stream || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD) {
        return cuda_current(result);
    }
    if (!cuda_session()) {
        *result = CUDA_ERROR_NOT_INITIALIZED;
        return NULL;
    }
    if (!stream->context->alive) {
        *result = CUDA_ERROR_INVALID_CONTEXT;
        return NULL;
    }
    return stream->context;
}

CUDA_API CUresult cuStreamCreate(CUstream *out, unsigned flags)
{
    CUresult result = CUDA_SUCCESS;
    struct CUctx_st *context = cuda_current(&result);
    (void)flags;
    if (!context || !out) {
        return context ? CUDA_ERROR_INVALID_VALUE : result;
    }
    struct CUstream_st *stream = calloc(1, sizeof *stream);
    if (!stream) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    stream->context = context;
    *out = stream;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuStreamDestroy_v2(CUstream stream)
{
    if (!stream || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    free(stream);
    return CUDA_SUCCESS;
}

static CUresult usable(CUstream stream)
{
    CUresult result = CUDA_SUCCESS;
    return cuda_stream_context(stream, &result) ? CUDA_SUCCESS : result;
}

CUDA_API CUresult cuStreamSynchronize(CUstream stream)
{
    CUresult result = usable(stream);
    if (result == CUDA_SUCCESS) {
        cuda_pool_synchronise();
    }
    return result;
}

CUDA_API CUresult cuStreamSynchronize_ptsz(CUstream stream)
{
    return cuStreamSynchronize(stream);
}

CUDA_API CUresult cuStreamQuery(CUstream stream)
{
    return usable(stream);
}

CUDA_API CUresult cuStreamQuery_ptsz(CUstream stream)
{
    return usable(stream);
}

CUDA_API CUresult cuStreamGetCtx(CUstream stream, CUcontext *out)
{
    CUresult result = CUDA_SUCCESS;
    struct CUctx_st *context = cuda_stream_context(stream, &result);
    if (!context || !out) {
        return context ? CUDA_ERROR_INVALID_VALUE : result;
    }
    *out = context;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuStreamGetCtx_ptsz(CUstream stream, CUcontext *out)
{
    return cuStreamGetCtx(stream, out);
}

CUDA_API CUresult cuEventCreate(CUevent *out, unsigned flags)
{
    CUresult result = usable(NULL);
    (void)flags;
    if (result != CUDA_SUCCESS || !out) {
        return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_VALUE;
    }
    *out = calloc(1, sizeof **out);
    return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUDA_API CUresult cuEventDestroy_v2(CUevent event)
{
    if (!event) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    free(event);
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuEventRecord(CUevent event, CUstream stream)
{
    CUresult result = usable(stream);
    if (result != CUDA_SUCCESS || !event) {
        return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_HANDLE;
    }
    clock_gettime(CLOCK_MONOTONIC, &event->at);
    event->recorded = 1;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuEventRecord_ptsz(CUevent event, CUstream stream)
{
    return cuEventRecord(event, stream);
}

CUDA_API CUresult cuEventSynchronize(CUevent event)
{
    if (!event) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    cuda_pool_synchronise();
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuEventQuery(CUevent event)
{
    return event ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUDA_API CUresult cuEventElapsedTime(float *out, CUevent start, CUevent end)
{
    if (!out || !start || !end || !start->recorded || !end->recorded) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    *out = (float)(end->at.tv_sec - start->at.tv_sec) * 1e3f + (float)(end->at.tv_nsec - start->at.tv_nsec) / 1e6f;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuModuleLoadData(CUmodule *out, const void *image)
{
    CUresult result = usable(NULL);
    if (result != CUDA_SUCCESS || !out || !image) {
        return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_VALUE;
    }
    *out = calloc(1, sizeof **out);
    return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUDA_API CUresult cuModuleUnload(CUmodule module)
{
    if (!module) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    free(module);
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuModuleGetFunction(CUfunction *out, CUmodule module, const char *name)
{
    if (!out || !module || !name) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *out = (CUfunction)(void *)module; /* any name is a kernel that does nothing */
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                                 unsigned bz, unsigned shared, CUstream stream, void **parameters, void **extra)
{
    CUresult result = usable(stream);
    (void)shared, (void)parameters, (void)extra;
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (!function) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    return gx && gy && gz && bx && by && bz && bx * by * bz <= 1024 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUDA_API CUresult cuLaunchKernel_ptsz(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                                      unsigned by, unsigned bz, unsigned shared, CUstream stream, void **parameters,
                                      void **extra)
{
    return cuLaunchKernel(function, gx, gy, gz, bx, by, bz, shared, stream, parameters, extra);
}
