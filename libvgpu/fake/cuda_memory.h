/* cuda_memory.h - the allocations of one process.
 *
 * Device memory is host memory that is reserved but not backed, so a card of any size costs nothing until it is written.
 * Copies really copy.
 */
#ifndef FAKE_CUDA_MEMORY_H
#define FAKE_CUDA_MEMORY_H

#include "cuda.h"

/* Allocate `bytes` on the card of `context`, charging it in the shared state. */
CUresult cuda_memory_take(struct CUctx_st *context, size_t bytes, CUdeviceptr *out);

/* Do the same without a card, for managed memory that is not used yet. */
CUresult cuda_memory_take_lazy(struct CUctx_st *context, size_t bytes, CUdeviceptr *out);

/* Do the same from a pool of the current context's process. */
CUresult cuda_memory_take_pooled(struct CUctx_st *context, struct CUmemPoolHandle_st *pool, size_t bytes, CUdeviceptr *out);

/* Take bytes from a pool, give them back, and release what pools cache beyond their thresholds. */
CUresult cuda_pool_take(struct CUmemPoolHandle_st *pool, size_t bytes);
void cuda_pool_give(struct CUmemPoolHandle_st *pool, size_t bytes);
void cuda_pool_synchronise(void);

/* Note that this many bytes belonged to a share and no longer belong to the pool. */
void cuda_pool_lose(struct CUmemPoolHandle_st *pool, size_t bytes);

/* Share the allocation around an address, or map an opened share into our address space. */
CUresult cuda_memory_share(CUdeviceptr address, int pooled, int *number);
CUresult cuda_memory_open_share(struct CUctx_st *context, int number, size_t bytes, CUdeviceptr *out);

/* Free the allocation that starts at `address`; CUDA_ERROR_INVALID_VALUE if there is none. Address 0 succeeds. */
CUresult cuda_memory_give(CUdeviceptr address);

/* Register a range of addresses that something else owns: copies reach it, cuMemFree does not. 0, or -1 if out of memory. */
int cuda_memory_show(uintptr_t start, size_t bytes);
void cuda_memory_hide(uintptr_t start);

/* Return the allocation that contains [address, address + bytes); 0 if there is none. */
int cuda_memory_find(CUdeviceptr address, size_t bytes, CUdeviceptr *base, size_t *size);

#endif
