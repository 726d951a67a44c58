/* cuda_stream.c - streams of the simulated driver: what a handle refers to, and its queue in the engine. */
#include <pthread.h>
#include <stdlib.h>

#include "cuda_memory.h"
#include "cuda_work.h"

enum { THREAD_STREAMS = 64 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct CUstream_st *all_streams[4096]; /* created streams */
static unsigned streams_made;

struct CUctx_st *cuda_stream_context(CUstream stream, CUresult *result)
{
    if (!stream || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD) {
        return cuda_current(result);
    }
    if (!cuda_session()) {
        *result = CUDA_ERROR_NOT_INITIALIZED;
        return NULL;
    }
    if (!cuda_handle_lives(stream, CUDA_STREAM)) {
        *result = CUDA_ERROR_INVALID_HANDLE;
        return NULL;
    }
    if (stream->context->broken) {
        *result = CUDA_ERROR_ILLEGAL_ADDRESS;
        return NULL;
    }
    return stream->context;
}

/* Special stream handles, by context: created at their first use and never removed. */
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
    own[count] = (struct CUstream_st){
        .context = context, .queue = 1 + (int)(__atomic_fetch_add(&streams_made, 1, __ATOMIC_RELAXED) % (ENGINE_FIRST_FREE - 1))};
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

static CUresult create(CUstream *out, unsigned flags, int priority)
{
    CUresult result = CUDA_SUCCESS;
    struct CUctx_st *context = cuda_current(&result);
    if (!context || !out) {
        return context ? CUDA_ERROR_INVALID_VALUE : result;
    }
    struct CUstream_st *stream = cuda_handle_make(CUDA_STREAM, sizeof *stream, context);
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

void cuda_streams_each(void (*visit)(struct CUstream_st *, void *), void *argument)
{
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < sizeof all_streams / sizeof all_streams[0]; i++) {
        if (all_streams[i]) {
            visit(all_streams[i], argument);
        }
    }
    pthread_mutex_unlock(&lock);
}

static void forget(void *stream)
{
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < sizeof all_streams / sizeof all_streams[0]; i++) {
        if (all_streams[i] == stream) {
            all_streams[i] = NULL;
        }
    }
    pthread_mutex_unlock(&lock);
}

CUDA_API CUresult cuStreamDestroy_v2(CUstream stream)
{
    if (!stream || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (!cuda_session()) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    if (!cuda_handle_lives(stream, CUDA_STREAM)) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    forget(stream);
    cuda_handle_end(stream);
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuStreamDestroy(CUstream stream)
{
    return cuStreamDestroy_v2(stream);
}

void cuda_stream_drop_context(struct CUctx_st *context)
{
    cuda_handles_end(context, CUDA_STREAM, forget);
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
