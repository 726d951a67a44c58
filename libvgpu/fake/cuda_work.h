/* cuda_work.h - streams, kernels and captures, as the files that simulate them share them. */
#ifndef FAKE_CUDA_WORK_H
#define FAKE_CUDA_WORK_H

#include "compute.h"
#include "cuda.h"
#include "cuda_handle.h"

struct CUstream_st {
    struct cuda_handle handle; /* of one that was created */
    struct CUctx_st *context;
    int queue;       /* of the engine */
    int16_t priority;
    struct CUgraph_st *capture; /* being recorded into, or NULL */
    int capture_mode;
    int broken;      /* the capture was invalidated */
};

/* A kernel called busy_<N>ns, _us, _ms or _s: each of its blocks takes that long. One called rounds_<N>ns takes that long
 * for each of as many rounds as its first parameter, of 64 bits, has. Any other takes no time. One whose name begins with
 * fault_ breaks its context. */
struct CUfunc_st {
    struct cuda_handle handle;
    struct CUfunc_st *next;
    struct CUmod_st *module;
    uint64_t block_ns, round_ns;
    int faults;
    unsigned legacy_block[3];
    char name[64];
};

/* The cost of a kernel launch on a card. */
struct shape {
    uint64_t ns;
    uint32_t fraction;
};

struct shape cuda_kernel_shape(const struct CUctx_st *context, CUfunction function, const unsigned *grid, const unsigned *block,
                               void **parameters);

/* The stream behind a handle, with the null stream and its aliases as streams of the current context. `thread` means
 * that the null stream means the thread's own. NULL and why not. */
struct CUstream_st *cuda_stream(CUstream handle, int thread, CUresult *result);

/* Visit every existing stream, one visitor at a time. */
void cuda_streams_each(void (*visit)(struct CUstream_st *, void *), void *argument);

/* Put work into a stream; waits while its queue is full. A stream that is being captured must have been looked after. */
CUresult cuda_work_submit(struct CUstream_st *stream, struct engine_op op);

/* Wait until a stream (or, if it is NULL, the context) has no work left. */
CUresult cuda_work_finish(struct CUctx_st *context, const struct CUstream_st *stream);

/* Return the error of a call that is forbidden during a global-mode capture, from any thread not in relaxed mode. */
CUresult cuda_capture_offended(struct CUctx_st *context);

/* Is a stream being captured in this context that the null stream waits for? `break_it` invalidates its capture. */
int cuda_capture_is_open(struct CUctx_st *context, int break_it);

/* Add a kernel to the graph a stream is captured into. */
CUresult cuda_graph_capture(struct CUgraph_st *graph, int type, struct shape shape);

/* Add an allocation of `bytes` of a device. */
CUresult cuda_graph_capture_alloc(struct CUgraph_st *graph, CUdevice device, size_t bytes, CUdeviceptr *out);

#endif
