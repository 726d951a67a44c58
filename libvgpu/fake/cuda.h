/* cuda.h - what the files of the simulated libcuda share. */
#ifndef FAKE_CUDA_H
#define FAKE_CUDA_H

#include <stdint.h>

#include "machine.h"
#include "state.h"
#include "vgpu_cuda.h"

#define CUDA_API __attribute__((visibility("default")))

/* The driver as one process sees it after cuInit. */
struct cuda_session {
    const struct machine *machine;
    int visible[MACHINE_MAX_CARDS]; /* CUdevice -> card */
    int count;
    int pid;
};

struct CUctx_st {
    CUdevice device;
    int card;
    int primary;
    unsigned flags;
    unsigned retained;      /* primary contexts: how often */
    int alive;              /* its memory is charged and usable */
    int broken;             /* a kernel of it touched what it may not: every call in it fails until it is destroyed */
};

/* Session of this process, NULL when cuInit has not been called (or this is a fork of one that did). */
const struct cuda_session *cuda_session(void);

/* CUDA_SUCCESS, or why no call on `device` can work. */
CUresult cuda_check_device(CUdevice device);

/* Current context of this thread; sets `*result` when there is none. */
struct CUctx_st *cuda_current(CUresult *result);

/* The thread's stack of contexts: what lies on top, dead or alive. */
struct CUctx_st *cuda_top(void);
struct CUctx_st *cuda_pop(void);
CUresult cuda_push(struct CUctx_st *context);

/* Context a stream belongs to; the null stream and its two aliases belong to the current one. */
struct CUctx_st *cuda_stream_context(CUstream stream, CUresult *result);

CUresult cuDeviceGetMemPool(CUmemoryPool *out, CUdevice device);

/* Turn the answer of the shared state into a CUresult. */
CUresult cuda_result(enum state_result result);

/* End all events, streams, modules and functions of a context. */
void cuda_event_drop_context(struct CUctx_st *context);
void cuda_stream_drop_context(struct CUctx_st *context);
void cuda_module_drop_context(struct CUctx_st *context);

/* Destroy all arrays of a context. */
void cuda_array_drop_context(struct CUctx_st *context);

/* Let go of all page-locked memory of a context. */
void cuda_host_drop_context(struct CUctx_st *context);

/* Free all memory that was allocated in a context. */
void cuda_memory_drop_context(struct CUctx_st *context);

#endif
