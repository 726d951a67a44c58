/* cuda_capture.c - captures: streams that record into a graph, and the calls that are forbidden during a capture. */
#include "cuda_work.h"

static __thread int capture_mode; /* the calling thread's CU_STREAM_CAPTURE_MODE_* */

CUDA_API CUresult cuThreadExchangeStreamCaptureMode(int *mode)
{
    if (!mode) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    int before = capture_mode;
    capture_mode = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}

/* A search of all streams for captures during which a call is not allowed. */
struct search {
    const struct CUctx_st *context;
    int break_it;
    int found;
};

static void offend(struct CUstream_st *s, void *argument)
{
    struct search *search = argument;
    if (s->context == search->context && s->capture && s->capture_mode == CU_STREAM_CAPTURE_MODE_GLOBAL) {
        s->broken = 1;
        search->found = 1;
    }
}

CUresult cuda_capture_offended(struct CUctx_st *context)
{
    struct search search = {.context = context};
    if (capture_mode != CU_STREAM_CAPTURE_MODE_RELAXED) {
        cuda_streams_each(offend, &search);
    }
    return search.found ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

static void touch(struct CUstream_st *s, void *argument)
{
    struct search *search = argument;
    if (s->context == search->context && s->capture && s->queue < ENGINE_FIRST_FREE) {
        s->broken |= search->break_it;
        search->found = 1;
    }
}

int cuda_capture_is_open(struct CUctx_st *context, int break_it)
{
    struct search search = {.context = context, .break_it = break_it};
    cuda_streams_each(touch, &search);
    return search.found;
}

CUresult cuGraphCreate(CUgraph *out, unsigned flags);

CUDA_API CUresult cuStreamBeginCapture_v2(CUstream handle, int mode)
{
    CUresult result = CUDA_SUCCESS;
    struct CUstream_st *stream = cuda_stream(handle, 0, &result);
    if (!stream) {
        return result;
    }
    if (stream->queue == 0 || stream->capture) {
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    stream->capture_mode = mode;
    stream->broken = 0;
    return cuGraphCreate(&stream->capture, 0);
}

CUDA_API CUresult cuStreamBeginCapture_v2_ptsz(CUstream handle, int mode)
{
    return cuStreamBeginCapture_v2(handle ? handle : CU_STREAM_PER_THREAD, mode);
}

CUDA_API CUresult cuStreamBeginCapture(CUstream handle)
{
    return cuStreamBeginCapture_v2(handle, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

CUDA_API CUresult cuStreamBeginCapture_ptsz(CUstream handle)
{
    return cuStreamBeginCapture_v2_ptsz(handle, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

CUDA_API CUresult cuStreamEndCapture(CUstream handle, CUgraph *out)
{
    CUresult result = CUDA_SUCCESS;
    struct CUstream_st *stream = cuda_stream(handle, 0, &result);
    if (!stream || !out || !stream->capture) {
        return stream ? CUDA_ERROR_INVALID_VALUE : result;
    }
    *out = stream->broken ? NULL : stream->capture;
    stream->capture = NULL;
    return stream->broken ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
}

CUDA_API CUresult cuStreamEndCapture_ptsz(CUstream handle, CUgraph *out)
{
    return cuStreamEndCapture(handle ? handle : CU_STREAM_PER_THREAD, out);
}

static CUresult is_capturing(CUstream handle, int thread, int *out)
{
    CUresult result = CUDA_SUCCESS;
    struct CUstream_st *stream = cuda_stream(handle, thread, &result);
    if (!stream || !out) {
        return stream ? CUDA_ERROR_INVALID_VALUE : result;
    }
    if (stream->queue == 0 && cuda_capture_is_open(stream->context, 0)) {
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    *out = !stream->capture ? CU_STREAM_CAPTURE_STATUS_NONE
           : stream->broken ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                            : CU_STREAM_CAPTURE_STATUS_ACTIVE;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuStreamIsCapturing(CUstream stream, int *out)
{
    return is_capturing(stream, 0, out);
}

CUDA_API CUresult cuStreamIsCapturing_ptsz(CUstream stream, int *out)
{
    return is_capturing(stream, 1, out);
}
