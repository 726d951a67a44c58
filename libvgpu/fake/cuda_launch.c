/* cuda_launch.c - modules, kernels, and every way to launch one. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_work.h"

struct CUmod_st {
    struct CUfunc_st *functions;
};

static uint64_t block_time(const char *name)
{
    unsigned long long n;
    char unit[4] = "";
    static const struct {
        const char *name;
        uint64_t ns;
    } units[] = {{"ns", 1}, {"us", 1000}, {"ms", 1000000}, {"s", 1000000000}};
    if (sscanf(name, "busy_%llu%3s", &n, unit) == 2) {
        for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
            if (!strcmp(unit, units[i].name)) {
                return n * units[i].ns;
            }
        }
    }
    return 0;
}

CUDA_API CUresult cuModuleLoadData(CUmodule *out, const void *image)
{
    CUresult result = CUDA_SUCCESS;
    if (!cuda_current(&result)) {
        return result;
    }
    if (!out || !image) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *out = calloc(1, sizeof **out);
    return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUDA_API CUresult cuModuleUnload(CUmodule module)
{
    if (!module) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    while (module->functions) {
        struct CUfunc_st *next = module->functions->next;
        free(module->functions);
        module->functions = next;
    }
    free(module);
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuModuleGetFunction(CUfunction *out, CUmodule module, const char *name)
{
    if (!out || !module || !name) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    for (struct CUfunc_st *f = module->functions; f; f = f->next) {
        if (!strcmp(f->name, name)) {
            *out = f;
            return CUDA_SUCCESS;
        }
    }
    struct CUfunc_st *f = calloc(1, sizeof *f);
    if (!f) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    snprintf(f->name, sizeof f->name, "%s", name);
    f->block_ns = block_time(f->name);
    f->next = module->functions;
    module->functions = f;
    *out = f;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuFuncGetName(const char **out, CUfunction function)
{
    if (!out || !function) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *out = function->name;
    return CUDA_SUCCESS;
}

static struct shape shape_of(const struct CUctx_st *context, CUfunction function, const unsigned *grid, const unsigned *block)
{
    struct shape shape = {0};
    int sms = cuda_session()->machine->cards[context->card].sms;
    if (function->block_ns) {
        engine_shape((unsigned)sms, (uint64_t)grid[0] * grid[1] * grid[2], block[0] * block[1] * block[2],
                     function->block_ns, &shape.ns, &shape.fraction);
    }
    return shape;
}

static CUresult launch(CUfunction function, const unsigned *grid, const unsigned *block, CUstream handle, int thread)
{
    CUresult result = CUDA_SUCCESS;
    struct CUstream_st *stream = cuda_stream(handle, thread, &result);
    int mine;
    if (!stream) {
        return result;
    }
    if (!function) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (!grid[0] || !grid[1] || !grid[2] || !block[0] || !block[1] || !block[2] ||
        (uint64_t)block[0] * block[1] * block[2] > 1024) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct shape shape = shape_of(stream->context, function, grid, block);
    if (stream->capture) {
        return cuda_graph_capture(stream->capture, CU_GRAPH_NODE_TYPE_KERNEL, shape);
    }
    if (!shape.ns) {
        struct engine *e = compute_enter(cuda_session()->machine, stream->context->card, 0, &mine);
        if (e) {
            compute_leave(stream->context->card);
        }
        if (!e || mine < 0) {
            return CUDA_SUCCESS; /* nothing before it took time either */
        }
    }
    return cuda_work_submit(stream,
                            (struct engine_op){.kind = ENGINE_KERNEL, .left_ns = shape.ns, .fraction = shape.fraction});
}

CUDA_API CUresult cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                                 unsigned bz, unsigned shared, CUstream stream, void **parameters, void **extra)
{
    (void)shared, (void)parameters, (void)extra;
    return launch(function, (unsigned[]){gx, gy, gz}, (unsigned[]){bx, by, bz}, stream, 0);
}

CUDA_API CUresult cuLaunchKernel_ptsz(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                                      unsigned by, unsigned bz, unsigned shared, CUstream stream, void **parameters,
                                      void **extra)
{
    (void)shared, (void)parameters, (void)extra;
    return launch(function, (unsigned[]){gx, gy, gz}, (unsigned[]){bx, by, bz}, stream, 1);
}

CUDA_API CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                                            unsigned by, unsigned bz, unsigned shared, CUstream stream, void **parameters)
{
    (void)shared, (void)parameters;
    return launch(function, (unsigned[]){gx, gy, gz}, (unsigned[]){bx, by, bz}, stream, 0);
}

CUDA_API CUresult cuLaunchCooperativeKernel_ptsz(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                                                 unsigned by, unsigned bz, unsigned shared, CUstream stream,
                                                 void **parameters)
{
    (void)shared, (void)parameters;
    return launch(function, (unsigned[]){gx, gy, gz}, (unsigned[]){bx, by, bz}, stream, 1);
}

CUDA_API CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra)
{
    (void)parameters, (void)extra;
    return config ? launch(function, config->grid, config->block, config->stream, 0) : CUDA_ERROR_INVALID_VALUE;
}

CUDA_API CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra)
{
    (void)parameters, (void)extra;
    return config ? launch(function, config->grid, config->block, config->stream, 1) : CUDA_ERROR_INVALID_VALUE;
}

CUDA_API CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *list, unsigned count, unsigned flags)
{
    CUresult result = list && count ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    (void)flags;
    for (unsigned i = 0; result == CUDA_SUCCESS && i < count; i++) {
        result = launch(list[i].function, list[i].grid, list[i].block, list[i].stream, 0);
    }
    return result;
}

/* The launches of before CUDA 4: the block's shape belongs to the function, the stream is the legacy one. */
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
    return launch(function, (unsigned[]){(unsigned)width, (unsigned)height, 1}, function->legacy_block, stream, 0);
}

CUDA_API CUresult cuLaunchGrid(CUfunction function, int width, int height)
{
    return cuLaunchGridAsync(function, width, height, NULL);
}

CUDA_API CUresult cuLaunch(CUfunction function)
{
    return cuLaunchGridAsync(function, 1, 1, NULL);
}
