#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include "engine.h"
#include "many_cards.h"
#include "throttle.h"

#define US UINT64_C(1000)
#define MS UINT64_C(1000000)
#define UNTIL_ALL_ARE_THERE UINT64_C(1000000000000)

enum { QUEUE = 1, STACK_BYTES = 65536, STEP_EVENT = ENGINE_EVENTS - 8, AHEAD = 2 };

struct CUevent_st {
    int card;
    uint32_t slot, recording;
};

static struct card {
    struct engine *engine;
    int context;
    uint32_t events;
    struct vgpu_region_bucket bucket;
} cards[MANY_CARDS];

static struct worker {
    struct vgpu_throttle *throttle;
    struct vgpu_hand hand;
    unsigned first, end; /* the devices that it uses */
    unsigned current;
    uint64_t wake_ns, steps;
    ucontext_t at;
} workers[MANY_CARDS];

static const struct many_cards *scene;
static unsigned worker_count;
static struct worker *running;
static ucontext_t home;
static uint64_t now;

/* ------------------------------------------------------------------ the library's world */

static struct vgpu_instant clock_now(void)
{
    return vgpu_at(now);
}

static void rest(uint64_t ns)
{
    running->wake_ns = now + ns;
    swapcontext(&running->at, &home);
}

static void sleep_ns(uint64_t ns)
{
    rest(ns + 60 * US);
}

static CUresult event_create(CUevent *out, unsigned flags)
{
    (void)flags;
    *out = calloc(1, sizeof **out);
    (*out)->card = (int)running->current;
    (*out)->slot = cards[running->current].events++;
    return CUDA_SUCCESS;
}

static CUresult event_destroy(CUevent event)
{
    free(event);
    return CUDA_SUCCESS;
}

static void submit(unsigned card, struct engine_op op)
{
    while (!engine_submit(cards[card].engine, cards[card].context, QUEUE, op)) {
        rest(20 * US);
    }
}

static struct engine_event *event_of(unsigned card, uint32_t slot)
{
    return &cards[card].engine->contexts[cards[card].context].events[slot];
}

static CUresult event_record(CUevent event, CUstream stream)
{
    (void)stream;
    submit((unsigned)event->card, (struct engine_op){.kind = ENGINE_RECORD, .event = event->slot});
    event->recording = event_of((unsigned)event->card, event->slot)->submitted;
    return CUDA_SUCCESS;
}

static CUresult event_query(CUevent event)
{
    return (int32_t)(event_of((unsigned)event->card, event->slot)->done - event->recording) >= 0 ? CUDA_SUCCESS
                                                                                                 : CUDA_ERROR_NOT_READY;
}

static CUresult event_elapsed(float *out, CUevent start, CUevent end)
{
    uint64_t from = event_of((unsigned)start->card, start->slot)->at_ns, to = event_of((unsigned)end->card, end->slot)->at_ns;
    *out = (float)((double)(int64_t)(to - from) / 1e6);
    return CUDA_SUCCESS;
}

static CUresult current(CUcontext *out)
{
    *out = (CUcontext)(void *)&cards[running->current];
    return CUDA_SUCCESS;
}

static const struct vgpu_cuda driver = {.cuEventCreate = event_create,
                                        .cuEventDestroy_v2 = event_destroy,
                                        .cuEventRecord = event_record,
                                        .cuEventQuery = event_query,
                                        .cuEventElapsedTime = event_elapsed,
                                        .cuCtxGetCurrent = current};
static const struct vgpu_world world = {.now = clock_now, .sleep_for = sleep_ns};
const struct vgpu_world *vgpu_world = &world;

static struct vgpu_share share_of(void *owner, int ordinal)
{
    (void)owner;
    return (struct vgpu_share){.percent = scene->percent[ordinal], .always = 1};
}

static struct vgpu_region_bucket *bucket_of(void *owner, int ordinal)
{
    (void)owner;
    return &cards[ordinal].bucket;
}

static struct vgpu_region_bucket *peer_of(void *owner, int ordinal, unsigned n)
{
    unsigned at = n + (n >= (unsigned)ordinal);
    (void)owner;
    return at < scene->cards ? &cards[at].bucket : NULL;
}

static uint32_t sms_of(void *owner, int ordinal)
{
    (void)owner, (void)ordinal;
    return 108;
}

static int measure(void *owner, int ordinal, uint64_t since_us, struct vgpu_measurement *out)
{
    (void)owner;
    out->others_known = 1;
    out->percent = engine_utilisation(cards[ordinal].engine, cards[ordinal].context, scene->lag_ns, &out->end.ns);
    out->stamp_us = out->end.ns / 1000;
    return out->percent && out->stamp_us > since_us;
}

/* ------------------------------------------------------------------ the program */

/* Launch a kernel. `together` is the number of the step if the kernel waits for those on the other devices. */
static void launch(unsigned card, uint64_t ns, uint32_t together)
{
    struct vgpu_launch l = {.cuda = &driver,
                            .ordinal = (int)card,
                            .process = 1,
                            .function = 16 * (card + 1) + (together ? 1 : 0),
                            .blocks = 864,
                            .threads = 256};
    struct vgpu_ticket ticket = {0};
    running->current = card;
    if (running->hand.process != 1 ||
        !vgpu_throttle_fast(&running->hand, (int)card, vgpu_cost_key(l.function, l.blocks, l.threads))) {
        vgpu_throttle_begin(running->throttle, &running->hand, &l, &ticket);
    }
    submit(card, (struct engine_op){.kind = ENGINE_KERNEL,
                                    .left_ns = together ? UNTIL_ALL_ARE_THERE : ns,
                                    .fraction = ENGINE_WHOLE,
                                    .event = together});
    vgpu_throttle_end(running->throttle, &l, &ticket, CUDA_SUCCESS);
}

static uint32_t step_slot(uint64_t step)
{
    return STEP_EVENT + (uint32_t)(step % (AHEAD + 1));
}

static void program(void)
{
    struct worker *w = running;
    for (;;) {
        uint64_t step = ++w->steps;
        for (unsigned k = 0; k < scene->kernels; k++) {
            for (unsigned card = w->first; card < w->end; card++) {
                launch(card, scene->kernel_ns, 0);
            }
        }
        for (unsigned card = w->first; card < w->end; card++) {
            if (scene->together_ns) {
                launch(card, scene->together_ns, (uint32_t)step);
            }
            submit(card, (struct engine_op){.kind = ENGINE_RECORD, .event = step_slot(step)});
        }
        for (unsigned card = w->first; card < w->end && step > AHEAD; card++) {
            struct engine_event *e = event_of(card, step_slot(step - AHEAD));
            while (e->done != (step - AHEAD - 1) / (AHEAD + 1) + 1) {
                rest(20 * US);
            }
        }
    }
}

/* ------------------------------------------------------------------ the run */

/* Return the kernel that a device is running if it waits for the other devices. */
static struct engine_op *waiting_on(unsigned card)
{
    struct engine_queue *q = &cards[card].engine->contexts[cards[card].context].queues[QUEUE];
    struct engine_op *op = &q->ops[q->head % ENGINE_DEPTH];
    int waits = q->head != q->tail && op->kind == ENGINE_KERNEL && op->event;
    return waits && op->left_ns < UNTIL_ALL_ARE_THERE && op->left_ns > UNTIL_ALL_ARE_THERE / 2 ? op : NULL;
}

static void meet(void)
{
    struct engine_op *all[MANY_CARDS];
    for (unsigned i = 0; i < scene->cards; i++) {
        all[i] = waiting_on(i);
        if (!all[i] || all[i]->event != all[0]->event) {
            return;
        }
    }
    for (unsigned i = 0; i < scene->cards; i++) {
        all[i]->left_ns = scene->together_ns;
    }
}

void many_cards_begin(const struct many_cards *s)
{
    static char stacks[MANY_CARDS][STACK_BYTES];
    static struct vgpu_throttle paces[MANY_CARDS];
    scene = s;
    now = 1;
    memset(paces, 0, sizeof paces);
    for (unsigned i = 0; i < s->cards; i++) {
        cards[i] = (struct card){.engine = calloc(1, sizeof *cards[i].engine)};
        engine_start(cards[i].engine, now, 2 * MS, 1 * US, 100 * MS);
        cards[i].context = engine_join(cards[i].engine, 1);
    }
    worker_count = s->threads || s->processes ? s->cards : 1;
    for (unsigned i = 0; i < worker_count; i++) {
        struct vgpu_throttle *throttle = &paces[s->processes ? i : 0];
        *throttle = (struct vgpu_throttle){.owner = throttle,
                                           .share = share_of,
                                           .peer = peer_of,
                                           .bucket = bucket_of,
                                           .sms = sms_of,
                                           .measure = s->blind ? NULL : measure};
        workers[i] = (struct worker){
            .throttle = throttle, .first = worker_count == 1 ? 0 : i, .end = worker_count == 1 ? s->cards : i + 1};
        workers[i].wake_ns = now + i * 100 * US;
        getcontext(&workers[i].at);
        workers[i].at.uc_stack.ss_sp = stacks[i];
        workers[i].at.uc_stack.ss_size = STACK_BYTES;
        makecontext(&workers[i].at, program, 0);
    }
}

void many_cards_run(uint64_t end)
{
    while (now < end) {
        uint64_t next = now + 20 * US;
        for (unsigned i = 0; i < worker_count; i++) {
            if (workers[i].wake_ns <= now) {
                running = &workers[i];
                swapcontext(&home, &running->at);
            }
            next = workers[i].wake_ns > now && workers[i].wake_ns < next ? workers[i].wake_ns : next;
        }
        for (unsigned i = 0; i < scene->cards; i++) {
            while (engine_advance(cards[i].engine, next) < next) {
            }
        }
        now = next;
        meet();
    }
}

void many_cards_end(void)
{
    for (unsigned i = 0; i < scene->cards; i++) {
        free(cards[i].engine);
    }
}

uint64_t many_cards_steps(void)
{
    return workers[0].steps;
}

uint64_t many_cards_busy_ns(unsigned card)
{
    return cards[card].engine->busy_ns;
}
