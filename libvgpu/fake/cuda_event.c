/* cuda_event.c - events of the simulated driver. Each is a slot of the engine, if there is one.
 *
 * A process that never launched a kernel that takes time has no context on the engine, and its events complete at once.
 */
#include <pthread.h>
#include <stdlib.h>

#include "cuda_handle.h"
#include "cuda_memory.h"
#include "cuda_work.h"

struct CUevent_st {
    struct cuda_handle handle;
    uint32_t slot; /* index of the engine's event; 0: none yet */
    uint32_t recording;
    uint64_t at_ns; /* time of the recording, if there was no engine */
    int recorded;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint8_t slots_taken[MACHINE_MAX_CARDS][ENGINE_EVENTS];

static CUresult check(CUevent event)
{
    if (!cuda_session()) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    if (!event || !cuda_handle_lives(event, CUDA_EVENT)) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    return event->handle.context->broken ? CUDA_ERROR_ILLEGAL_ADDRESS : CUDA_SUCCESS;
}

static void leave_slot(void *handle)
{
    const struct CUevent_st *event = handle;
    if (event->slot) {
        pthread_mutex_lock(&lock);
        slots_taken[event->handle.context->card][event->slot] = 0;
        pthread_mutex_unlock(&lock);
    }
}

CUDA_API CUresult cuEventCreate(CUevent *out, unsigned flags)
{
    CUresult result = CUDA_SUCCESS;
    struct CUctx_st *context = cuda_current(&result);
    (void)flags;
    if (!context || !out) {
        return context ? CUDA_ERROR_INVALID_VALUE : result;
    }
    *out = cuda_handle_make(CUDA_EVENT, sizeof **out, context);
    return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUDA_API CUresult cuEventDestroy_v2(CUevent event)
{
    CUresult result = check(event);
    if (result == CUDA_SUCCESS) {
        leave_slot(event);
        cuda_handle_end(event);
    }
    return result;
}

CUDA_API CUresult cuEventDestroy(CUevent event)
{
    return cuEventDestroy_v2(event);
}

void cuda_event_drop_context(struct CUctx_st *context)
{
    cuda_handles_end(context, CUDA_EVENT, leave_slot);
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
    result = stream ? check(event) : result;
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (event->handle.context != stream->context) {
        return CUDA_ERROR_INVALID_HANDLE; /* an event is recorded in streams of its own context only */
    }
    if (stream->queue == 0 && cuda_capture_is_open(stream->context, 1)) {
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    if (stream->capture) {
        return cuda_graph_capture(stream->capture, 6 /* event record */, (struct shape){0});
    }
    while (!taken) {
        struct engine *e = compute_enter(cuda_session()->machine, stream->context->card, 0, &mine);
        event->recorded = 1;
        event->at_ns = compute_now_ns();
        event->recording = 0;
        if (!e || mine < 0) {
            taken = 1; /* no work here ever took time */
        } else {
            event->slot = event->slot ? event->slot : take_slot(stream->context->card);
            taken =
                event->slot
                    ? engine_submit(e, mine, stream->queue,
                                    (struct engine_op){.kind = ENGINE_RECORD, .event = event->slot, .priority = stream->priority})
                    : -1;
            event->recording = taken > 0 ? e->contexts[mine].events[event->slot].submitted : 0;
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

/* Return 1 if the event has completed, and store when. Otherwise `rest` becomes the time for which it certainly has not. */
static int happened(CUevent event, uint64_t *at_ns, uint64_t *rest)
{
    int mine, done = 1;
    *at_ns = event->at_ns;
    *rest = 0;
    if (!event->recording) {
        return 1;
    }
    struct engine *e = compute_enter(cuda_session()->machine, event->handle.context->card, 0, &mine);
    if (e && mine >= 0) {
        const struct engine_event *known = &e->contexts[mine].events[event->slot];
        done = (int32_t)(known->done - event->recording) >= 0;
        *at_ns = known->at_ns;
        *rest = done ? 0 : engine_rest_ns(e, mine);
    }
    if (e) {
        compute_leave(event->handle.context->card);
    }
    return done;
}

CUDA_API CUresult cuEventQuery(CUevent event)
{
    uint64_t at, rest;
    CUresult result = check(event);
    if (result == CUDA_SUCCESS) {
        result = cuda_capture_offended(event->handle.context);
    }
    if (result != CUDA_SUCCESS) {
        return result;
    }
    return happened(event, &at, &rest) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUDA_API CUresult cuEventSynchronize(CUevent event)
{
    uint64_t at, rest;
    CUresult result = check(event);
    if (result == CUDA_SUCCESS) {
        result = cuda_capture_offended(event->handle.context);
    }
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
    CUresult result = check(start);
    result = result == CUDA_SUCCESS ? check(end) : result;
    if (result != CUDA_SUCCESS || !out || !start->recorded || !end->recorded) {
        return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_HANDLE;
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
    result = stream ? check(event) : result;
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (!event->recording || stream->capture) {
        return CUDA_SUCCESS; /* the time at which it was recorded; in a capture, an edge */
    }
    return cuda_work_submit(stream,
                            (struct engine_op){.kind = ENGINE_AWAIT, .event = event->slot, .recording = event->recording});
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
