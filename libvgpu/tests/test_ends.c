/* Threads end their contexts while others launch. No event may be used after its context. A sanitizer would see that at once,
 * because here an event's memory is freed with its context. */
#include <pthread.h>
#include <stdlib.h>

#include "throttle.h"
#include "one_bucket.h"
#include "t.h"
#include "virtual_time.h"

#define MS UINT64_C(1000000)

enum { THREADS = 4, CONTEXTS = 12, LAUNCHES = 50 };

struct CUevent_st {
    struct CUctx_st *context;
    struct CUevent_st *next, **at;
    unsigned asked;
};

struct CUctx_st {
    struct CUevent_st *events;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* protects the simulated driver */
static _Thread_local struct CUctx_st *current;
static struct vgpu_throttle throttle;
static _Atomic unsigned events_made;

static struct vgpu_instant clock_now(void)
{
    return vgpu_at(virtual_now_ns());
}

static const struct vgpu_world world = {.now = clock_now, .sleep_for = virtual_sleep_ns};
const struct vgpu_world *vgpu_world = &world;

static CUresult make_event(CUevent *out, unsigned flags)
{
    (void)flags;
    *out = calloc(1, sizeof **out);
    pthread_mutex_lock(&lock);
    (*out)->context = current;
    (*out)->next = current->events;
    (*out)->at = &current->events;
    if (current->events) {
        current->events->at = &(*out)->next;
    }
    current->events = *out;
    pthread_mutex_unlock(&lock);
    events_made++;
    return CUDA_SUCCESS;
}

/* Under the lock. */
static void end_event(CUevent event)
{
    *event->at = event->next;
    if (event->next) {
        event->next->at = event->at;
    }
    free(event);
}

static CUresult destroy_event(CUevent event)
{
    pthread_mutex_lock(&lock);
    end_event(event);
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

static CUresult record(CUevent event, CUstream stream)
{
    (void)stream;
    pthread_mutex_lock(&lock);
    event->asked = 0;
    CUresult result = event->context == current ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
    pthread_mutex_unlock(&lock);
    return result;
}

/* Return "not ready" at first, so that measurements are still on their way when their context ends. */
static CUresult query(CUevent event)
{
    pthread_mutex_lock(&lock);
    CUresult result = ++event->asked < 3 ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
    pthread_mutex_unlock(&lock);
    return result;
}

static CUresult elapsed(float *out, CUevent start, CUevent end)
{
    pthread_mutex_lock(&lock);
    *out = start->context == end->context ? 0.1f : -1;
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

static CUresult current_context(CUcontext *out)
{
    *out = current;
    return CUDA_SUCCESS;
}

static const struct vgpu_cuda driver = {.cuEventCreate = make_event,
                                        .cuEventDestroy_v2 = destroy_event,
                                        .cuEventRecord = record,
                                        .cuEventQuery = query,
                                        .cuEventElapsedTime = elapsed,
                                        .cuCtxGetCurrent = current_context};

static void end_context(struct CUctx_st *context)
{
    vgpu_throttle_end_context(&throttle, &driver, context);
    pthread_mutex_lock(&lock);
    while (context->events) {
        end_event(context->events);
    }
    pthread_mutex_unlock(&lock);
}

static struct vgpu_share share_of(void *owner, int ordinal)
{
    (void)owner, (void)ordinal;
    return (struct vgpu_share){.percent = 90, .always = 1};
}

/* Each thread creates one context after another, all at the same address, like a primary context. */
static void *lives(void *argument)
{
    struct CUctx_st context = {0};
    struct vgpu_hand hand = {0};
    virtual_join((int)(uintptr_t)argument);
    current = &context;
    for (int life = 0; life < CONTEXTS; life++) {
        for (unsigned i = 0; i < LAUNCHES; i++) {
            struct vgpu_launch l = {
                .cuda = &driver, .page = 2, .process = 1, .function = 1 + i % 3, .blocks = 800, .threads = 256};
            struct vgpu_ticket ticket = {0};
            if (hand.process != 1 || hand.page != 2 ||
                !vgpu_throttle_fast(&hand, 0, vgpu_cost_key(l.function, l.blocks, l.threads))) {
                vgpu_throttle_begin(&throttle, &hand, &l, &ticket);
            }
            vgpu_throttle_end(&throttle, &l, &ticket, CUDA_SUCCESS);
            virtual_sleep_ns(MS / 4); /* otherwise no measurement would be due again */
        }
        end_context(&context);
    }
    virtual_leave((int)(uintptr_t)argument);
    return NULL;
}

static void live(int threads)
{
    pthread_t all[THREADS];
    int places[THREADS];
    for (int i = 0; i < threads; i++) {
        places[i] = virtual_reserve();
    }
    for (int i = 0; i < threads; i++) {
        pthread_create(&all[i], NULL, lives, (void *)(uintptr_t)places[i]);
    }
    for (int i = 0; i < threads; i++) {
        pthread_join(all[i], NULL);
    }
}

static int are_all_free(void)
{
    for (unsigned i = 0; i < VGPU_PROBES; i++) {
        if (throttle.probes[i].state != VGPU_PROBE_FREE || throttle.probes[i].context) {
            return 0;
        }
    }
    return 1;
}

TEST(a_context_that_ends_takes_every_event_and_every_pending_measurement_with_it)
{
    throttle = (struct vgpu_throttle){.share = share_of, .bucket = bucket_of, .sms = sms_of, .measure = nothing_measured};
    live(1);
    CHECK(events_made >= 2 * CONTEXTS);
    CHECK(are_all_free());
    for (unsigned i = 0; i < VGPU_COSTS; i++) {
        CHECK_EQ(throttle.costs.entries[i].pending, 0);
    }
}

TEST(threads_whose_contexts_end_leave_the_events_of_the_others_alone)
{
    live(THREADS);
    CHECK(are_all_free());
}

int main(void)
{
    return t_run();
}
