/* cuda_library.c - libraries of CUDA 12: modules without a context, which here belong to the context in which they were
 * loaded. A kernel is a function; both handles may be launched, as NVIDIA allows. Also queries about functions, streams and
 * pointers. */
#include <string.h>

#include "cuda_memory.h"
#include "cuda_work.h"

CUresult cuModuleGetFunction(CUfunction *out, CUmodule module, const char *name);
CUresult cuModuleUnload(CUmodule module);

static int is_library(const void *library)
{
    return library && cuda_handle_lives(library, CUDA_MODULE);
}

static int is_kernel(const void *kernel)
{
    return kernel && cuda_handle_lives(kernel, CUDA_FUNCTION);
}

/* Return CUDA_SUCCESS after cuInit if the handle is alive and the out pointer is not NULL. */
#define NEED(living, out)                      \
    do {                                       \
        if (!cuda_session()) {                 \
            return CUDA_ERROR_NOT_INITIALIZED; \
        }                                      \
        if (!(out)) {                          \
            return CUDA_ERROR_INVALID_VALUE;   \
        }                                      \
        if (!(living)) {                       \
            return CUDA_ERROR_INVALID_HANDLE;  \
        }                                      \
    } while (0)

CUDA_API CUresult cuLibraryUnload(void *library)
{
    return cuModuleUnload(library);
}

CUDA_API CUresult cuLibraryGetModule(CUmodule *out, void *library)
{
    NEED(is_library(library), out);
    *out = library;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuLibraryGetKernel(CUfunction *out, void *library, const char *name)
{
    NEED(is_library(library), out && name);
    return cuModuleGetFunction(out, library, name);
}

CUDA_API CUresult cuKernelGetFunction(CUfunction *out, CUfunction kernel)
{
    NEED(is_kernel(kernel), out);
    *out = kernel;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuKernelGetName(const char **out, CUfunction kernel)
{
    NEED(is_kernel(kernel), out);
    *out = kernel->name;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuKernelGetLibrary(void **out, CUfunction kernel)
{
    NEED(is_kernel(kernel), out);
    *out = kernel->module;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuFuncGetModule(CUmodule *out, CUfunction kernel)
{
    NEED(is_kernel(kernel), out);
    *out = kernel->module;
    return CUDA_SUCCESS;
}

/* A kernel uses only threads of a multiprocessor. */
static CUresult attribute(int *out, int which, CUfunction kernel)
{
    enum { MAX_THREADS = 0, REGISTERS = 4, PTX_VERSION = 5, BINARY_VERSION = 6, MAX_DYNAMIC_SHARED = 8, LAST = 18 };
    NEED(is_kernel(kernel), out);
    if (which < 0 || which > LAST) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const struct machine_card *card = &cuda_session()->machine->cards[kernel->handle.context->card];
    int capability = card->cc_major * 10 + card->cc_minor;
    *out = which == MAX_THREADS                              ? 1024
           : which == REGISTERS                              ? 32
           : which == PTX_VERSION || which == BINARY_VERSION ? capability
           : which == MAX_DYNAMIC_SHARED                     ? 49152
                                                             : 0;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuFuncGetAttribute(int *out, int which, CUfunction function)
{
    return attribute(out, which, function);
}

CUDA_API CUresult cuKernelGetAttribute(int *out, int which, CUfunction kernel, CUdevice device)
{
    CUresult result = cuda_check_device(device);
    return result == CUDA_SUCCESS ? attribute(out, which, kernel) : result;
}

CUDA_API CUresult cuFuncSetAttribute(CUfunction function, int which, int value)
{
    (void)value;
    NEED(is_kernel(function), which >= 0);
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuKernelSetAttribute(int which, int value, CUfunction kernel, CUdevice device)
{
    CUresult result = cuda_check_device(device);
    return result == CUDA_SUCCESS ? cuFuncSetAttribute(kernel, which, value) : result;
}

CUDA_API CUresult cuFuncIsLoaded(int *out, CUfunction function)
{
    NEED(is_kernel(function), out);
    *out = 1;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuFuncLoad(CUfunction function)
{
    NEED(is_kernel(function), 1);
    return CUDA_SUCCESS;
}

/* Return as many blocks as have room for their threads. */
CUDA_API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *out, CUfunction function, int threads, size_t shared)
{
    (void)shared;
    NEED(is_kernel(function), out && threads > 0);
    *out = threads > 1024 ? 0 : 2048 / threads > 32 ? 32 : 2048 / threads;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *out, CUfunction function, int threads, size_t shared,
                                                                       unsigned flags)
{
    (void)flags;
    return cuOccupancyMaxActiveBlocksPerMultiprocessor(out, function, threads, shared);
}

CUDA_API CUresult cuOccupancyMaxPotentialBlockSize(int *grid, int *block, CUfunction function, size_t (*shared_of)(int),
                                                   size_t shared, int most)
{
    (void)shared_of, (void)shared;
    NEED(is_kernel(function), grid && block);
    *block = most > 0 && most < 1024 ? most : 1024;
    *grid = cuda_session()->machine->cards[function->handle.context->card].sms * (2048 / *block);
    return CUDA_SUCCESS;
}

/* There are two priorities; the engine ignores them except for their order. */
CUDA_API CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    CUresult result = CUDA_SUCCESS;
    if (!cuda_current(&result)) {
        return result;
    }
    if (least) {
        *least = 0;
    }
    if (greatest) {
        *greatest = -1;
    }
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuStreamGetFlags(CUstream handle, unsigned *out)
{
    CUresult result = CUDA_SUCCESS;
    const struct CUstream_st *stream = cuda_stream(handle, 0, &result);
    if (stream && out) {
        *out = stream->queue >= ENGINE_FIRST_FREE ? CU_STREAM_NON_BLOCKING : 0;
    }
    return stream ? out ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE : result;
}

CUDA_API CUresult cuStreamGetDevice(CUstream handle, CUdevice *out)
{
    CUresult result = CUDA_SUCCESS;
    const struct CUctx_st *context = cuda_stream_context(handle, &result);
    if (context && out) {
        *out = context->device;
    }
    return context ? out ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE : result;
}

CUDA_API CUresult cuStreamGetId(CUstream handle, unsigned long long *out)
{
    CUresult result = CUDA_SUCCESS;
    const struct CUstream_st *stream = cuda_stream(handle, 0, &result);
    if (stream && out) {
        *out = (uintptr_t)stream;
    }
    return stream ? out ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE : result;
}

CUDA_API CUresult cuCtxGetId(CUcontext context, unsigned long long *out)
{
    CUresult result = CUDA_SUCCESS;
    context = context ? context : cuda_current(&result);
    if (context && out) {
        *out = (uintptr_t)context;
    }
    return context ? out ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE : result;
}

CUDA_API CUresult cuCtxGetFlags(unsigned *out)
{
    CUresult result = CUDA_SUCCESS;
    const struct CUctx_st *context = cuda_current(&result);
    if (context && out) {
        *out = context->flags;
    }
    return context ? out ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE : result;
}

/* Return the attributes of an address: its owner and its start. */
CUDA_API CUresult cuPointerGetAttribute(void *out, int which, CUdeviceptr address)
{
    enum {
        CONTEXT = 1,
        MEMORY_TYPE = 2,
        DEVICE_POINTER = 3,
        HOST_POINTER = 4,
        IS_MANAGED = 8,
        ORDINAL = 9,
        START = 11,
        SIZE = 12,
        MAPPED = 13
    };
    CUresult result = CUDA_SUCCESS;
    struct CUctx_st *context = cuda_current(&result);
    CUdeviceptr base = 0;
    size_t size = 0;
    if (!context) {
        return result;
    }
    if (!out || !cuda_memory_find(address, 1, &base, &size)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    switch (which) {
    case CONTEXT:
        *(CUcontext *)out = context;
        return CUDA_SUCCESS;
    case MEMORY_TYPE:
        *(unsigned *)out = 2; /* a device's */
        return CUDA_SUCCESS;
    case DEVICE_POINTER:
    case START:
        *(CUdeviceptr *)out = which == START ? base : address;
        return CUDA_SUCCESS;
    case IS_MANAGED:
        *(unsigned *)out = 0;
        return CUDA_SUCCESS;
    case ORDINAL:
        *(int *)out = context->device;
        return CUDA_SUCCESS;
    case SIZE:
        *(size_t *)out = size;
        return CUDA_SUCCESS;
    case MAPPED:
        *(unsigned char *)out = 1;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_NOT_SUPPORTED;
    }
}

CUDA_API CUresult cuPointerGetAttributes(unsigned count, int *which, void **out, CUdeviceptr address)
{
    if (!cuda_session()) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    if (!count || !which || !out) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    for (unsigned i = 0; i < count; i++) {
        cuPointerGetAttribute(out[i], which[i], address); /* unknown attributes are left alone */
    }
    return CUDA_SUCCESS;
}
