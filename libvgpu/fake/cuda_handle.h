/* cuda_handle.h - handles of events, streams, modules and functions, which end with their context.
 *
 * After a reset, a primary context comes back at the same address without anything that was created in it. The memory of an
 * ended handle is kept for a while, so that its use can be refused and counted (`dead_uses` of the shared state). A real
 * driver may crash.
 */
#ifndef FAKE_CUDA_HANDLE_H
#define FAKE_CUDA_HANDLE_H

#include "cuda.h"

enum cuda_handle_kind { CUDA_EVENT = 1, CUDA_STREAM, CUDA_MODULE, CUDA_FUNCTION, CUDA_HANDLE_KINDS };

/* The first member of the struct that a handle points to. */
struct cuda_handle {
    uint32_t kind; /* 0: ended */
    struct CUctx_st *context;
    struct cuda_handle *next, *before; /* in the list of live handles */
};

/* Return zeroed memory of `bytes` that begins with a handle; NULL if there is no memory. */
void *cuda_handle_make(enum cuda_handle_kind kind, size_t bytes, struct CUctx_st *context);

/* Return 1 if `handle` (not NULL) is alive and of this kind. */
int cuda_handle_lives(const void *handle, enum cuda_handle_kind kind);

/* End a living handle. */
void cuda_handle_end(void *handle);

/* End all handles of a kind that were created in a context, calling `release` first unless it is NULL. */
void cuda_handles_end(const struct CUctx_st *context, enum cuda_handle_kind kind, void (*release)(void *handle));

#endif
