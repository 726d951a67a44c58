/* cuda_share.c - linear memory and pools opened by other processes. Charges are simulated, contents are not. */
#include <string.h>

#include "cuda_memory.h"

struct handle {
    int32_t number;
    uint32_t generation;
    uint64_t bytes;
};

static CUresult describe(void *out, size_t size, CUdeviceptr address, int pooled)
{
    struct handle handle;
    if (!cuda_session() || !out) {
        return out ? CUDA_ERROR_NOT_INITIALIZED : CUDA_ERROR_INVALID_VALUE;
    }
    CUresult result = cuda_memory_share(address, pooled, &handle.number);
    if (result == CUDA_SUCCESS) {
        const struct state_share *share = &state_open(cuda_session()->machine)->shares[handle.number];
        handle.generation = share->generation;
        handle.bytes = share->bytes;
        memset(out, 0, size);
        memcpy(out, &handle, sizeof handle);
    }
    return result;
}

static CUresult find(CUdeviceptr *out, const void *from)
{
    CUresult result = CUDA_SUCCESS;
    struct CUctx_st *context = cuda_current(&result);
    struct handle handle;
    memcpy(&handle, from, sizeof handle);
    if (!context || !out) {
        return context ? CUDA_ERROR_INVALID_VALUE : result;
    }
    int number = state_share_open(cuda_session()->machine, 0, handle.number, handle.generation);
    if (number < 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    result = cuda_memory_open_share(context, number, handle.bytes, out);
    if (result != CUDA_SUCCESS) {
        state_share_close(cuda_session()->machine, number);
    }
    return result;
}

CUDA_API CUresult cuIpcGetMemHandle(CUipcMemHandle *out, CUdeviceptr address)
{
    return describe(out, sizeof *out, address, 0);
}

CUDA_API CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *out, CUipcMemHandle from, unsigned flags)
{
    (void)flags;
    return find(out, &from);
}

/* The pool is not needed: each pointer identifies its memory. */
CUDA_API CUresult cuMemPoolExportToShareableHandle(void *out, CUmemoryPool pool, int type, unsigned long long flags)
{
    (void)type, (void)flags;
    if (!out || !pool) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *(int *)out = 0;
    return CUDA_SUCCESS;
}

CUresult cuMemPoolCreate(CUmemoryPool *out, const CUmemPoolProps *props);

CUDA_API CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *out, void *handle, int type, unsigned long long flags)
{
    CUmemPoolProps props = {.alloc_type = 1, .location_type = CU_MEM_LOCATION_TYPE_DEVICE};
    (void)handle, (void)type, (void)flags;
    return cuMemPoolCreate(out, &props);
}

CUDA_API CUresult cuMemPoolExportPointer(CUmemPoolPtrExportData *out, CUdeviceptr address)
{
    return describe(out, sizeof *out, address, 1);
}

CUDA_API CUresult cuMemPoolImportPointer(CUdeviceptr *out, CUmemoryPool pool, CUmemPoolPtrExportData *what)
{
    return pool && what ? find(out, what) : CUDA_ERROR_INVALID_VALUE;
}

CUDA_API CUresult cuIpcOpenMemHandle(CUdeviceptr *out, CUipcMemHandle from, unsigned flags)
{
    return cuIpcOpenMemHandle_v2(out, from, flags);
}

CUDA_API CUresult cuIpcCloseMemHandle(CUdeviceptr address)
{
    return cuda_memory_give(address);
}
