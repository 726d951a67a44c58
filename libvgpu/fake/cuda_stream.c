/* cuda_stream.c - streams and events of the simulated driver, on the engine of their card.
 *
 * A process that never launched a kernel that takes time has no context on the engine; its events are of the moment.
 */
#include <pthread.h>
#include <stdlib.h>

#include "cuda_memory.h"
#include "cuda_work.h"

enum { THREAD_STREAMS = 64 };

struct CUevent_st {
    struct CUctx_st *context;
    uint32_t slot; /* of the engine's events; 0: not yet */
    uint32_t turn;
    uint64_t at_ns; /* when there was no engine to ask */
    int recorded;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct CUstream_st *all_streams[4096]; /* to find open captures */
static uint8_t slots_taken[MACHINE_MAX_CARDS][ENGINE_EVENTS];
static unsigned streams_made;
static __thread int capture_mode; /* of this thread: CU_STREAM_CAPTURE_MODE_* */

struct CUctx_st *cuda_stream_context(CUstream stream, CUresult *result)
{
    if (!stream || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD) {
        return cuda_current(result);
    }
    if (!cuda_session()) {
        *result = CUDA_ERROR_NOT_INITIALIZED;
        return NULL;
    }
    if (!stream->context->alive) {
        *result = CUDA_ERROR_INVALID_CONTEXT;
        return NULL;
    }
    return stream->context;
}

/* Streams that are names, by context: made when first spoken of, kept for ever. */
static struct CUstream_st *named(struct CUctx_st *context, int per_thread)
{
    static __thread struct CUstream_st own[THREAD_STREAMS], legacy[THREAD_STREAMS];
    static __thread unsigned count;
    for (unsigned i = 0; i < count; i++) {
        if (own[i].context == context) {
            return per_thread ? &own[i] : &legacy[i];
        }
    }
    if (count == THREAD_STREAMS) {
        count = 0;
    }
    own[count] = (struct CUstream_st){.context = context,
                                      .queue = 1 + (int)(__atomic_fetch_add(&streams_made, 1, __ATOMIC_RELAXED) %
                                                         (ENGINE_FIRST_FREE - 1))};
    legacy[count] = (struct CUstream_st){.context = context, .queue = 0};
    count++;
    return per_thread ? &own[count - 1] : &legacy[count - 1];
}

struct CUstream_st *cuda_stream(CUstream handle, int thread, CUresult *result)
{
    struct CUctx_st *context = cuda_stream_context(handle, result);
    if (!context) {
        return NULL;
    }
    if (!handle || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD) {
        return named(context, handle == CU_STREAM_PER_THREAD || (!handle && thread));
    }
    return handle;
}

CUresult cuda_work_submit(struct CUstream_st *stream, struct engine_op op)
{
    const struct machine *m = cuda_session()->machine;
    int card = stream->context->card, context, taken = 0;
    op.priority = stream->priority;
    while (!taken) {
        struct engine *e = compute_enter(m, card, 1, &context);
        if (!e) {
            return CUDA_ERROR_UNKNOWN;
        }
        if (context < 0) {
            compute_leave(card);
            return CUDA_ERROR_OUT_OF_MEMORY; /* no room for one more process */
        }
        taken = engine_submit(e, context, stream->queue, op);
        compute_leave(card);
        if (!taken) {
            compute_rest(0);
        }
    }
    return CUDA_SUCCESS;
}

CUresult cuda_work_finish(struct CUctx_st *context, const struct CUstream_st *stream)
{
    const struct machine *m = cuda_session()->machine;
    int mine, done = 0;
    uint32_t until = 0;
    for (int first = 1; !done; first = 0) {
        struct engine *e = compute_enter(m, context->card, 0, &mine);
        if (!e || mine < 0) {
            if (e) {
                compute_leave(context->card);
            }
            return CUDA_SUCCESS;
        }
        if (stream) {
            /* What others put behind us meanwhile is none of our business. */
            const struct engine_queue *q = &e->contexts[mine].queues[stream->queue];
            until = first ? q->tail : until;
            done = (int32_t)(q->head - until) >= 0;
        } else {
            done = engine_is_idle(e, mine, -1);
        }
        uint64_t rest = done ? 0 : engine_rest_ns(e, mine);
        compute_leave(context->card);
        if (!done) {
            compute_rest(rest);
        }
    }
    return CUDA_SUCCESS;
}

/* ------------------------------------------------------------------ streams */

static CUresult create(CUstream *out, unsigned flags, int priority)
{
    CUresult result = CUDA_SUCCESS;
    struct CUctx_st *context = cuda_current(&result);
    if (!context || !out) {
        return context ? CUDA_ERROR_INVALID_VALUE : result;
    }
    struct CUstream_st *stream = calloc(1, sizeof *stream);
    if (!stream) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    unsigned n = __atomic_fetch_add(&streams_made, 1, __ATOMIC_RELAXED);
    stream->context = context;
    stream->priority = (int16_t)priority;
    stream->queue = flags & CU_STREAM_NON_BLOCKING ? ENGINE_FIRST_FREE + (int)(n % (ENGINE_QUEUES - ENGINE_FIRST_FREE))
                                                   : 1 + (int)(n % (ENGINE_FIRST_FREE - 1));
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < sizeof all_streams / sizeof all_streams[0]; i++) {
        if (!all_streams[i]) {
            all_streams[i] = stream;
            break;
        }
    }
    pthread_mutex_unlock(&lock);
    *out = stream;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuStreamCreate(CUstream *out, unsigned flags)
{
    return create(out, flags, 0);
}

CUDA_API CUresult cuStreamCreateWithPriority(CUstream *out, unsigned flags, int priority)
{
    return create(out, flags, priority);
}

CUDA_API CUresult cuStreamDestroy_v2(CUstream stream)
{
    if (!stream || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < sizeof all_streams / sizeof all_streams[0]; i++) {
        if (all_streams[i] == stream) {
            all_streams[i] = NULL;
        }
    }
    pthread_mutex_unlock(&lock);
    free(stream);
    return CUDA_SUCCESS;
}

static CUresult synchronize(CUstream handle, int thread)
{
    CUresult result = CUDA_SUCCESS;
    struct CUstream_st *stream = cuda_stream(handle, thread, &result);
    if (!stream) {
        return result;
    }
    if (stream->capture) {
        stream->broken = 1;
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    result = cuda_work_finish(stream->context, stream);
    cuda_pool_synchronise();
    return result;
}

CUDA_API CUresult cuStreamSynchronize(CUstream stream)
{
    return synchronize(stream, 0);
}

CUDA_API CUresult cuStreamSynchronize_ptsz(CUstream stream)
{
    return synchronize(stream, 1);
}

static CUresult query(CUstream handle, int thread)
{
    CUresult result = CUDA_SUCCESS;
    struct CUstream_st *stream = cuda_stream(handle, thread, &result);
    int mine;
    if (!stream) {
        return result;
    }
    struct engine *e = compute_enter(cuda_session()->machine, stream->context->card, 0, &mine);
    int idle = !e || mine < 0 || engine_is_idle(e, mine, stream->queue);
    if (e) {
        compute_leave(stream->context->card);
    }
    return idle ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUDA_API CUresult cuStreamQuery(CUstream stream)
{
    return query(stream, 0);
}

CUDA_API CUresult cuStreamQuery_ptsz(CUstream stream)
{
    return query(stream, 1);
}

CUDA_API CUresult cuStreamGetCtx(CUstream stream, CUcontext *out)
{
    CUresult result = CUDA_SUCCESS;
    struct CUctx_st *context = cuda_stream_context(stream, &result);
    if (!context || !out) {
        return context ? CUDA_ERROR_INVALID_VALUE : result;
    }
    *out = context;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuStreamGetCtx_ptsz(CUstream stream, CUcontext *out)
{
    return cuStreamGetCtx(stream, out);
}

CUDA_API CUresult cuStreamGetPriority(CUstream handle, int *out)
{
    CUresult result = CUDA_SUCCESS;
    struct CUstream_st *stream = cuda_stream(handle, 0, &result);
    if (stream && out) {
        *out = stream->priority;
    }
    return stream ? out ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE : result;
}

/* ------------------------------------------------------------------ captures */

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

CUresult cuda_capture_offended(struct CUctx_st *context)
{
    CUresult result = CUDA_SUCCESS;
    if (capture_mode == CU_STREAM_CAPTURE_MODE_RELAXED) {
        return result;
    }
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < sizeof all_streams / sizeof all_streams[0]; i++) {
        struct CUstream_st *s = all_streams[i];
        if (s && s->context == context && s->capture && s->capture_mode == CU_STREAM_CAPTURE_MODE_GLOBAL) {
            s->broken = 1;
            result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        }
    }
    pthread_mutex_unlock(&lock);
    return result;
}

static int somebody_captures(struct CUctx_st *context, int break_it)
{
    int found = 0;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < sizeof all_streams / sizeof all_streams[0]; i++) {
        struct CUstream_st *s = all_streams[i];
        if (s && s->context == context && s->capture && s->queue < ENGINE_FIRST_FREE) {
            s->broken |= break_it;
            found = 1;
        }
    }
    pthread_mutex_unlock(&lock);
    return found;
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
    if (stream->queue == 0 && somebody_captures(stream->context, 0)) {
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

/* ------------------------------------------------------------------ events */

CUDA_API CUresult cuEventCreate(CUevent *out, unsigned flags)
{
    CUresult result = CUDA_SUCCESS;
    struct CUctx_st *context = cuda_current(&result);
    (void)flags;
    if (!context || !out) {
        return context ? CUDA_ERROR_INVALID_VALUE : result;
    }
    *out = calloc(1, sizeof **out);
    if (!*out) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    (*out)->context = context;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuEventDestroy_v2(CUevent event)
{
    if (!event) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (event->slot) {
        pthread_mutex_lock(&lock);
        slots_taken[event->context->card][event->slot] = 0;
        pthread_mutex_unlock(&lock);
    }
    free(event);
    return CUDA_SUCCESS;
}

static uint32_t take_slot(int card)
{
    uint32_t slot = 0;
    pthread_mutex_lock(&lock);
    for (uint32_t i = 1; i < ENGINE_EVENTS && !slot; i++) {
        if (!slots_taken[card][i]) {
            slots_taken[card][i] = 1;
            slot = i;
        }
    }
    pthread_mutex_unlock(&lock);
    return slot;
}

static CUresult record(CUevent event, CUstream handle, int thread)
{
    CUresult result = CUDA_SUCCESS;
    struct CUstream_st *stream = cuda_stream(handle, thread, &result);
    int mine, taken = 0;
    if (!stream || !event) {
        return stream ? CUDA_ERROR_INVALID_HANDLE : result;
    }
    if (stream->queue == 0 && somebody_captures(stream->context, 1)) {
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    if (stream->capture) {
        return cuda_graph_capture(stream->capture, 6 /* event record */, (struct shape){0});
    }
    while (!taken) {
        struct engine *e = compute_enter(cuda_session()->machine, stream->context->card, 0, &mine);
        event->recorded = 1;
        event->at_ns = compute_now_ns();
        event->turn = 0;
        if (!e || mine < 0) {
            taken = 1; /* nothing here ever took time */
        } else {
            event->slot = event->slot ? event->slot : take_slot(stream->context->card);
            taken = event->slot ? engine_submit(e, mine, stream->queue,
                                                (struct engine_op){.kind = ENGINE_RECORD,
                                                                   .event = event->slot,
                                                                   .priority = stream->priority})
                                : -1;
            event->turn = taken > 0 ? e->contexts[mine].events[event->slot].asked : 0;
        }
        if (e) {
            compute_leave(stream->context->card);
        }
        if (!taken) {
            compute_rest(0);
        }
    }
    return taken > 0 ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUDA_API CUresult cuEventRecord(CUevent event, CUstream stream)
{
    return record(event, stream, 0);
}

CUDA_API CUresult cuEventRecord_ptsz(CUevent event, CUstream stream)
{
    return record(event, stream, 1);
}

CUDA_API CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned flags)
{
    (void)flags;
    return record(event, stream, 0);
}

CUDA_API CUresult cuEventRecordWithFlags_ptsz(CUevent event, CUstream stream, unsigned flags)
{
    (void)flags;
    return record(event, stream, 1);
}

/* Has the event happened, and when? `rest` says how long it will not have. */
static int happened(CUevent event, uint64_t *at_ns, uint64_t *rest)
{
    int mine, done = 1;
    *at_ns = event->at_ns;
    *rest = 0;
    if (!event->turn) {
        return 1;
    }
    struct engine *e = compute_enter(cuda_session()->machine, event->context->card, 0, &mine);
    if (e && mine >= 0) {
        const struct engine_event *known = &e->contexts[mine].events[event->slot];
        done = (int32_t)(known->done - event->turn) >= 0;
        *at_ns = known->at_ns;
        *rest = done ? 0 : engine_rest_ns(e, mine);
    }
    if (e) {
        compute_leave(event->context->card);
    }
    return done;
}

CUDA_API CUresult cuEventQuery(CUevent event)
{
    uint64_t at, rest;
    if (!event || !cuda_session()) {
        return event ? CUDA_ERROR_NOT_INITIALIZED : CUDA_ERROR_INVALID_HANDLE;
    }
    CUresult result = cuda_capture_offended(event->context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    return happened(event, &at, &rest) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUDA_API CUresult cuEventSynchronize(CUevent event)
{
    uint64_t at, rest;
    if (!event || !cuda_session()) {
        return event ? CUDA_ERROR_NOT_INITIALIZED : CUDA_ERROR_INVALID_HANDLE;
    }
    CUresult result = cuda_capture_offended(event->context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    while (!happened(event, &at, &rest)) {
        compute_rest(rest);
    }
    cuda_pool_synchronise();
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuEventElapsedTime(float *out, CUevent start, CUevent end)
{
    uint64_t from, to, rest;
    if (!out || !start || !end || !start->recorded || !end->recorded || !cuda_session()) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (!happened(start, &from, &rest) || !happened(end, &to, &rest)) {
        return CUDA_ERROR_NOT_READY;
    }
    *out = (float)((double)(int64_t)(to - from) / 1e6);
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuEventElapsedTime_v2(float *out, CUevent start, CUevent end)
{
    return cuEventElapsedTime(out, start, end);
}

static CUresult await(CUstream handle, CUevent event, int thread)
{
    CUresult result = CUDA_SUCCESS;
    struct CUstream_st *stream = cuda_stream(handle, thread, &result);
    if (!stream || !event) {
        return stream ? CUDA_ERROR_INVALID_HANDLE : result;
    }
    if (!event->turn || stream->capture) {
        return CUDA_SUCCESS; /* of the moment it was recorded; in a capture, an edge */
    }
    return cuda_work_submit(stream, (struct engine_op){.kind = ENGINE_AWAIT, .event = event->slot, .turn = event->turn});
}

CUDA_API CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags)
{
    (void)flags;
    return await(stream, event, 0);
}

CUDA_API CUresult cuStreamWaitEvent_ptsz(CUstream stream, CUevent event, unsigned flags)
{
    (void)flags;
    return await(stream, event, 1);
}
