/* cuda_module.c - modules, the kernels in them, and how long the kernels take.
 *
 * A PTX image has the entries that it declares. In any other image, every name is a kernel.
 */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_work.h"

struct CUmod_st {
    struct cuda_handle handle;
    struct CUfunc_st *functions;
    char *ptx; /* NULL: some other image */
};

/* Return the time in a name of the form PREFIX<N>UNIT, or 0 for any other name. */
static uint64_t time_named(const char *name, const char *prefix)
{
    unsigned long long n;
    char unit[4] = "";
    size_t length = strlen(prefix);
    static const struct {
        const char *name;
        uint64_t ns;
    } units[] = {{"ns", 1}, {"us", 1000}, {"ms", 1000000}, {"s", 1000000000}};
    if (!strncmp(name, prefix, length) && sscanf(name + length, "%llu%3s", &n, unit) == 2) {
        for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
            if (!strcmp(unit, units[i].name)) {
                return n * units[i].ns;
            }
        }
    }
    return 0;
}

static int is_ptx(const char *image)
{
    static const char first[] = ".version";
    while (isspace((unsigned char)*image)) {
        image++;
    }
    return !strncmp(image, first, sizeof first - 1);
}

static int declares(const char *ptx, const char *name)
{
    static const char entry[] = ".entry ";
    size_t length = strlen(name);
    for (const char *at = strstr(ptx, entry); at; at = strstr(at, entry)) {
        at += sizeof entry - 1;
        at += strspn(at, " \t\n");
        if (!strncmp(at, name, length) && (at[length] == '(' || isspace((unsigned char)at[length]))) {
            return 1;
        }
    }
    return 0;
}

CUDA_API CUresult cuModuleLoadData(CUmodule *out, const void *image)
{
    CUresult result = CUDA_SUCCESS;
    struct CUctx_st *context = cuda_current(&result);
    if (!context) {
        return result;
    }
    if (!out || !image) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *out = cuda_handle_make(CUDA_MODULE, sizeof **out, context);
    if (*out && is_ptx(image) && !((*out)->ptx = strdup(image))) {
        cuda_handle_end(*out);
        *out = NULL;
    }
    return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static void release(void *handle)
{
    struct CUmod_st *module = handle;
    free(module->ptx);
    module->ptx = NULL;
}

CUDA_API CUresult cuModuleUnload(CUmodule module)
{
    if (!cuda_session()) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    if (!module || !cuda_handle_lives(module, CUDA_MODULE)) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    for (struct CUfunc_st *f = module->functions; f; f = f->next) {
        cuda_handle_end(f);
    }
    release(module);
    cuda_handle_end(module);
    return CUDA_SUCCESS;
}

void cuda_module_drop_context(struct CUctx_st *context)
{
    cuda_handles_end(context, CUDA_FUNCTION, NULL);
    cuda_handles_end(context, CUDA_MODULE, release);
}

CUDA_API CUresult cuModuleGetFunction(CUfunction *out, CUmodule module, const char *name)
{
    if (!cuda_session()) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    if (!out || !module || !name) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!cuda_handle_lives(module, CUDA_MODULE)) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    for (struct CUfunc_st *f = module->functions; f; f = f->next) {
        if (!strcmp(f->name, name)) {
            *out = f;
            return CUDA_SUCCESS;
        }
    }
    if (module->ptx && !declares(module->ptx, name)) {
        return CUDA_ERROR_NOT_FOUND;
    }
    struct CUfunc_st *f = cuda_handle_make(CUDA_FUNCTION, sizeof *f, module->handle.context);
    if (!f) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    snprintf(f->name, sizeof f->name, "%s", name);
    f->block_ns = time_named(f->name, "busy_");
    f->round_ns = time_named(f->name, "rounds_");
    f->faults = !strncmp(f->name, "fault_", 6);
    f->module = module;
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

struct shape cuda_kernel_shape(const struct CUctx_st *context, CUfunction function, const unsigned *grid, const unsigned *block,
                               void **parameters)
{
    struct shape shape = {0};
    uint64_t ns = function->block_ns, rounds;
    if (function->round_ns && parameters && parameters[0]) {
        memcpy(&rounds, parameters[0], sizeof rounds);
        ns = rounds * function->round_ns;
    }
    if (ns) {
        engine_shape((unsigned)cuda_session()->machine->cards[context->card].sms, (uint64_t)grid[0] * grid[1] * grid[2],
                     block[0] * block[1] * block[2], ns, &shape.ns, &shape.fraction);
    }
    return shape;
}
