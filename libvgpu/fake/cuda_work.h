/* cuda_work.h - declarations of streams, kernels and captures for the files that simulate them. */
#ifndef FAKE_CUDA_WORK_H
#define FAKE_CUDA_WORK_H

#include "compute.h"
#include "cuda.h"
#include "cuda_handle.h"

struct CUstream_st {
    struct cuda_handle handle; /* only of a created stream */
    struct CUctx_st *context;
    int queue;       /* index in the engine */
    int16_t priority;
    struct CUgraph_st *capture; /* the graph that it is captured into, or NULL */
    int capture_mode;
    int broken;      /* the capture was invalidated */
};

/* A kernel. If it is called busy_<N>ns, _us, _ms or _s, each of its blocks takes that long. If it is called rounds_<N>ns, its
 * first parameter, of 64 bits, says how many such rounds each block takes. Any other kernel takes no time. A name that begins
 * with fault_ breaks the context. */
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

/* Return the stream behind a handle; the null stream and its aliases are streams of the current context. With `thread`, the
 * null stream is the thread's own. On failure return NULL and set `*result`. */
struct CUstream_st *cuda_stream(CUstream handle, int thread, CUresult *result);

/* Visit every existing stream, one visitor at a time. */
void cuda_streams_each(void (*visit)(struct CUstream_st *, void *), void *argument);

/* Put work into a stream, waiting while its queue is full. The caller must have checked that the stream is not being captured. */
CUresult cuda_work_submit(struct CUstream_st *stream, struct engine_op op);

/* Wait until a stream (or, if it is NULL, the context) has no work left. */
CUresult cuda_work_finish(struct CUctx_st *context, const struct CUstream_st *stream);

/* Return the error of a call that is forbidden during a global-mode capture, from any thread not in relaxed mode. */
CUresult cuda_capture_offended(struct CUctx_st *context);

/* Return 1 if a stream of this context that the null stream waits for is being captured. `break_it` invalidates its capture. */
int cuda_capture_is_open(struct CUctx_st *context, int break_it);

/* Add a kernel to the graph a stream is captured into. */
CUresult cuda_graph_capture(struct CUgraph_st *graph, int type, struct shape shape);

/* Add an allocation of `bytes` of a device to the graph. */
CUresult cuda_graph_capture_alloc(struct CUgraph_st *graph, CUdevice device, size_t bytes, CUdeviceptr *out);

#endif
