/* cuda_alloc.c - the entry points that allocate, free, copy and report memory. */
#include "cuda_graph_memory.h"
#include "cuda_memory.h"

static CUresult allocate(size_t bytes, CUdeviceptr *out)
{
    CUresult result = CUDA_SUCCESS;
    struct CUctx_st *context = cuda_current(&result);
    if (!context) {
        return result;
    }
    return out ? cuda_memory_take(context, bytes, out) : CUDA_ERROR_INVALID_VALUE;
}

CUDA_API CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t bytes)
{
    return allocate(bytes, out);
}

CUDA_API CUresult cuMemAlloc(unsigned *out, unsigned bytes)
{
    (void)out, (void)bytes;
    return CUDA_ERROR_NOT_SUPPORTED; /* the 32-bit API has no meaning on a 64-bit device */
}

CUDA_API CUresult cuMemAllocPitch_v2(CUdeviceptr *out, size_t *pitch, size_t width, size_t height, unsigned element)
{
    if (!pitch || !width || !height || (element != 4 && element != 8 && element != 16)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    size_t row = (width + 511) & ~(size_t)511;
    if (row < width || height > SIZE_MAX / row) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    CUresult result = allocate(row * height, out);
    if (result == CUDA_SUCCESS) {
        *pitch = row;
    }
    return result;
}

CUDA_API CUresult cuMemAllocPitch(unsigned *out, unsigned *pitch, unsigned width, unsigned height, unsigned element)
{
    (void)out, (void)pitch, (void)width, (void)height, (void)element;
    return CUDA_ERROR_NOT_SUPPORTED;
}

CUDA_API CUresult cuMemAllocManaged(CUdeviceptr *out, size_t bytes, unsigned flags)
{
    if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult result = CUDA_SUCCESS;
    struct CUctx_st *context = cuda_current(&result);
    if (context && out && cuda_session()->machine->managed_lazy) {
        return cuda_memory_take_lazy(context, bytes, out);
    }
    return allocate(bytes, out);
}

CUDA_API CUresult cuMemFree_v2(CUdeviceptr address)
{
    struct graph_memory *memory = address ? cuda_graph_memory_at(address) : NULL;
    return memory ? cuda_graph_memory_free(memory) : cuda_memory_give(address);
}

CUDA_API CUresult cuMemFree(unsigned address)
{
    (void)address;
    return CUDA_ERROR_NOT_SUPPORTED;
}

CUDA_API CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
    CUresult result = CUDA_SUCCESS;
    struct CUctx_st *context = cuda_current(&result);
    if (!context) {
        return result;
    }
    const struct machine *m = cuda_session()->machine;
    if (free_bytes) {
        uint64_t unused = m->cards[context->card].memory_bytes - state_used(m, context->card),
                 room = state_room(m, context->card);
        *free_bytes = room < unused ? room : unused;
    }
    if (total) {
        *total = m->cards[context->card].memory_bytes;
    }
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuMemGetInfo(unsigned *free_bytes, unsigned *total)
{
    size_t wide_free = 0, wide_total = 0;
    CUresult result = cuMemGetInfo_v2(&wide_free, &wide_total);
    if (result == CUDA_SUCCESS && free_bytes && total) {
        *free_bytes = wide_free > UINT32_MAX ? UINT32_MAX : (unsigned)wide_free;
        *total = wide_total > UINT32_MAX ? UINT32_MAX : (unsigned)wide_total;
    }
    return result;
}

CUDA_API CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr address)
{
    return cuda_memory_find(address, 1, base, bytes) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUDA_API CUresult cuMemGetAddressRange(unsigned *base, unsigned *bytes, unsigned address)
{
    (void)base, (void)bytes, (void)address;
    return CUDA_ERROR_NOT_SUPPORTED;
}
