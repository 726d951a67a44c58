/* cuda_launch.c - all functions that launch a kernel. */
#include "cuda_work.h"

static CUresult launch(CUfunction function, const unsigned *grid, const unsigned *block, CUstream handle, int thread,
                       void **parameters)
{
    CUresult result = CUDA_SUCCESS;
    struct CUstream_st *stream = cuda_stream(handle, thread, &result);
    int mine;
    if (!stream) {
        return result;
    }
    if (!function || !cuda_handle_lives(function, CUDA_FUNCTION)) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (function->handle.context != stream->context) {
        return CUDA_ERROR_INVALID_HANDLE; /* its module is loaded in another context */
    }
    if (!grid[0] || !grid[1] || !grid[2] || !block[0] || !block[1] || !block[2] ||
        (uint64_t)block[0] * block[1] * block[2] > 1024) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct shape shape = cuda_kernel_shape(stream->context, function, grid, block, parameters);
    if (stream->capture) {
        return cuda_graph_capture(stream->capture, CU_GRAPH_NODE_TYPE_KERNEL, shape);
    }
    if (function->faults) {
        stream->context->broken = 1; /* the launch itself succeeds; the next call fails */
        return CUDA_SUCCESS;
    }
    if (!shape.ns) {
        struct engine *e = compute_enter(cuda_session()->machine, stream->context->card, 0, &mine);
        if (e) {
            compute_leave(stream->context->card);
        }
        if (!e || mine < 0) {
            return CUDA_SUCCESS; /* without an engine there is no earlier work to wait for */
        }
    }
    return cuda_work_submit(stream, (struct engine_op){.kind = ENGINE_KERNEL, .left_ns = shape.ns, .fraction = shape.fraction});
}

CUDA_API CUresult cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                                 unsigned bz, unsigned shared, CUstream stream, void **parameters, void **extra)
{
    (void)shared, (void)extra;
    return launch(function, (unsigned[]){gx, gy, gz}, (unsigned[]){bx, by, bz}, stream, 0, parameters);
}

CUDA_API CUresult cuLaunchKernel_ptsz(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                                      unsigned bz, unsigned shared, CUstream stream, void **parameters, void **extra)
{
    (void)shared, (void)extra;
    return launch(function, (unsigned[]){gx, gy, gz}, (unsigned[]){bx, by, bz}, stream, 1, parameters);
}

CUDA_API CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                                            unsigned bz, unsigned shared, CUstream stream, void **parameters)
{
    (void)shared;
    return launch(function, (unsigned[]){gx, gy, gz}, (unsigned[]){bx, by, bz}, stream, 0, parameters);
}

CUDA_API CUresult cuLaunchCooperativeKernel_ptsz(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                                                 unsigned by, unsigned bz, unsigned shared, CUstream stream, void **parameters)
{
    (void)shared;
    return launch(function, (unsigned[]){gx, gy, gz}, (unsigned[]){bx, by, bz}, stream, 1, parameters);
}

CUDA_API CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra)
{
    (void)extra;
    return config ? launch(function, config->grid, config->block, config->stream, 0, parameters) : CUDA_ERROR_INVALID_VALUE;
}

CUDA_API CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra)
{
    (void)extra;
    return config ? launch(function, config->grid, config->block, config->stream, 1, parameters) : CUDA_ERROR_INVALID_VALUE;
}

CUDA_API CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *list, unsigned count, unsigned flags)
{
    CUresult result = list && count ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    (void)flags;
    for (unsigned i = 0; result == CUDA_SUCCESS && i < count; i++) {
        result = launch(list[i].function, list[i].grid, list[i].block, list[i].stream, 0, list[i].parameters);
    }
    return result;
}

/* Launches from before CUDA 4: the block's shape belongs to the function, and the stream is the legacy one. */
CUDA_API CUresult cuFuncSetBlockShape(CUfunction function, int x, int y, int z)
{
    if (!function || x <= 0 || y <= 0 || z <= 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    function->legacy_block[0] = (unsigned)x;
    function->legacy_block[1] = (unsigned)y;
    function->legacy_block[2] = (unsigned)z;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuLaunchGridAsync(CUfunction function, int width, int height, CUstream stream)
{
    if (!function || width <= 0 || height <= 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return launch(function, (unsigned[]){(unsigned)width, (unsigned)height, 1}, function->legacy_block, stream, 0, NULL);
}

CUDA_API CUresult cuLaunchGrid(CUfunction function, int width, int height)
{
    return cuLaunchGridAsync(function, width, height, NULL);
}

CUDA_API CUresult cuLaunch(CUfunction function)
{
    return cuLaunchGridAsync(function, 1, 1, NULL);
}
