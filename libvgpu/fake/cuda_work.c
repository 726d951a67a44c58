/* cuda_work.c - the work of streams on their card's engine: submitting it and waiting for it.
 *
 * A process that never submitted any has no context on the engine and never waits.
 */
#include "cuda_work.h"

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
            /* Work that others submit from now on is not waited for. */
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
