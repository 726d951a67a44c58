/* cuda_copy.c - copies and fills, on the host memory that represents device memory. */
#include <string.h>

#include "cuda_memory.h"
#include "cuda_work.h"

static CUresult ready(void)
{
    CUresult result = CUDA_SUCCESS;
    return cuda_current(&result) ? CUDA_SUCCESS : result;
}

static int on_device(CUdeviceptr address, size_t bytes)
{
    return cuda_memory_find(address, bytes, NULL, NULL);
}

static CUresult to_device(CUdeviceptr to, const void *from, size_t bytes)
{
    CUresult result = ready();
    if (result != CUDA_SUCCESS || !bytes) {
        return result;
    }
    if (!from || !on_device(to, bytes)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    memcpy((void *)(uintptr_t)to, from, bytes);
    return CUDA_SUCCESS;
}

static CUresult to_host(void *to, CUdeviceptr from, size_t bytes)
{
    CUresult result = ready();
    if (result != CUDA_SUCCESS || !bytes) {
        return result;
    }
    if (!to || !on_device(from, bytes)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct CUstream_st *before = cuda_stream(NULL, 0, &result);
    result = before ? cuda_work_finish(before->context, before) : result;
    if (result != CUDA_SUCCESS) {
        return result;
    }
    memcpy(to, (const void *)(uintptr_t)from, bytes);
    return CUDA_SUCCESS;
}

static CUresult within_device(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
    CUresult result = ready();
    if (result != CUDA_SUCCESS || !bytes) {
        return result;
    }
    if (!on_device(to, bytes) || !on_device(from, bytes)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    memmove((void *)(uintptr_t)to, (const void *)(uintptr_t)from, bytes);
    return CUDA_SUCCESS;
}

static CUresult fill_bytes(CUdeviceptr to, unsigned char value, size_t count)
{
    CUresult result = ready();
    if (result != CUDA_SUCCESS || !count) {
        return result;
    }
    if (!on_device(to, count)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    memset((void *)(uintptr_t)to, value, count);
    return CUDA_SUCCESS;
}

static CUresult fill_words(CUdeviceptr to, unsigned value, size_t count)
{
    CUresult result = ready();
    if (result != CUDA_SUCCESS || !count) {
        return result;
    }
    if (to % sizeof value || count > SIZE_MAX / sizeof value || !on_device(to, count * sizeof value)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    unsigned *words = (unsigned *)(uintptr_t)to;
    for (size_t i = 0; i < count; i++) {
        words[i] = value;
    }
    return CUDA_SUCCESS;
}

static CUresult any_copy(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
    CUresult result = ready();
    if (result == CUDA_SUCCESS && bytes) {
        memmove((void *)(uintptr_t)to, (const void *)(uintptr_t)from, bytes);
    }
    return result;
}

/* Each exists twice: for the legacy and for the per-thread default stream. */
#define BOTH(name, parameters, call)         \
    CUDA_API CUresult name parameters        \
    {                                        \
        return call;                         \
    }                                        \
    CUDA_API CUresult name##_ptds parameters \
    {                                        \
        return call;                         \
    }

BOTH(cuMemcpyHtoD_v2, (CUdeviceptr to, const void *from, size_t bytes), to_device(to, from, bytes))
BOTH(cuMemcpyDtoH_v2, (void *to, CUdeviceptr from, size_t bytes), to_host(to, from, bytes))
BOTH(cuMemcpyDtoD_v2, (CUdeviceptr to, CUdeviceptr from, size_t bytes), within_device(to, from, bytes))
BOTH(cuMemcpy, (CUdeviceptr to, CUdeviceptr from, size_t bytes), any_copy(to, from, bytes))
BOTH(cuMemsetD8_v2, (CUdeviceptr to, unsigned char value, size_t count), fill_bytes(to, value, count))
BOTH(cuMemsetD32_v2, (CUdeviceptr to, unsigned value, size_t count), fill_words(to, value, count))
