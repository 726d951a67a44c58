/* cuda_share.c - linear memory opened by other processes. What is charged is simulated, the contents are not. */
#include <string.h>

#include "cuda_memory.h"

struct handle {
    int32_t number;
    uint32_t turn;
    uint64_t bytes;
};

CUDA_API CUresult cuIpcGetMemHandle(CUipcMemHandle *out, CUdeviceptr address)
{
    struct handle handle;
    if (!cuda_session() || !out) {
        return out ? CUDA_ERROR_NOT_INITIALIZED : CUDA_ERROR_INVALID_VALUE;
    }
    CUresult result = cuda_memory_share(address, &handle.number);
    if (result == CUDA_SUCCESS) {
        const struct state_share *share = &state_open(cuda_session()->machine)->shares[handle.number];
        handle.turn = share->turn;
        handle.bytes = share->bytes;
        memset(out, 0, sizeof *out);
        memcpy(out, &handle, sizeof handle);
    }
    return result;
}

CUDA_API CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *out, CUipcMemHandle from, unsigned flags)
{
    CUresult result = CUDA_SUCCESS;
    struct CUctx_st *context = cuda_current(&result);
    struct handle handle;
    (void)flags;
    memcpy(&handle, &from, sizeof handle);
    if (!context || !out) {
        return context ? CUDA_ERROR_INVALID_VALUE : result;
    }
    int number = state_share_open(cuda_session()->machine, 0, handle.number, handle.turn);
    if (number < 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    result = cuda_memory_open_share(context, number, handle.bytes, out);
    if (result != CUDA_SUCCESS) {
        state_share_close(cuda_session()->machine, number);
    }
    return result;
}

CUDA_API CUresult cuIpcOpenMemHandle(CUdeviceptr *out, CUipcMemHandle from, unsigned flags)
{
    return cuIpcOpenMemHandle_v2(out, from, flags);
}

CUDA_API CUresult cuIpcCloseMemHandle(CUdeviceptr address)
{
    return cuda_memory_give(address);
}
