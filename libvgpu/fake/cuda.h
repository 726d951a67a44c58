/* cuda.h - declarations that the files of the simulated libcuda share. */
#ifndef FAKE_CUDA_H
#define FAKE_CUDA_H

#include <stdint.h>

#include "machine.h"
#include "state.h"
#include "vgpu_cuda.h"

#define CUDA_API __attribute__((visibility("default")))

/* The state of the driver in one process after cuInit. */
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
    unsigned retained;      /* number of retains of the primary context */
    int alive;              /* its memory is charged and usable */
    int broken;             /* a kernel made an invalid access: every call fails until the context is destroyed */
};

/* Return the session of this process, or NULL if it has not called cuInit itself (a forked child has not). */
const struct cuda_session *cuda_session(void);

/* Return CUDA_SUCCESS, or the reason why no call on `device` can work. */
CUresult cuda_check_device(CUdevice device);

/* Return the current context of this thread; set `*result` if there is none. */
struct CUctx_st *cuda_current(CUresult *result);

/* Return the top of the thread's stack of contexts, dead or alive. */
struct CUctx_st *cuda_top(void);
struct CUctx_st *cuda_pop(void);
CUresult cuda_push(struct CUctx_st *context);

/* Return the context of a stream; the null stream and its two aliases belong to the current context. */
struct CUctx_st *cuda_stream_context(CUstream stream, CUresult *result);

CUresult cuDeviceGetMemPool(CUmemoryPool *out, CUdevice device);

/* Convert a result of the shared state into a CUresult. */
CUresult cuda_result(enum state_result result);

/* End all events, streams, modules and functions of a context. */
void cuda_event_drop_context(struct CUctx_st *context);
void cuda_stream_drop_context(struct CUctx_st *context);
void cuda_module_drop_context(struct CUctx_st *context);

/* Destroy all arrays of a context. */
void cuda_array_drop_context(struct CUctx_st *context);

/* Release all page-locked memory of a context. */
void cuda_host_drop_context(struct CUctx_st *context);

/* Free all memory that was allocated in a context. */
void cuda_memory_drop_context(struct CUctx_st *context);

#endif
