#include "simulate.h"

#include <setjmp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include "engine.h"
#include "throttle.h"

#define US UINT64_C(1000)
#define MS UINT64_C(1000000)

enum { MAX_THREADS = 256, STACK_BYTES = 32768, EVENT_OF_THREAD = ENGINE_EVENTS - MAX_THREADS };

struct CUevent_st {
    struct member *process;
    uint32_t slot, recording;
};

/* A process of a tenant. */
struct member {
    unsigned tenant;
    int32_t number;
    int context;
    uint32_t events;
    uint64_t spent_ns; /* used by its former processes */
    struct vgpu_throttle throttle;
};

struct worker {
    struct member *process;
    unsigned number;
    int queue;
    uint64_t chance;
    uint64_t wake_ns; /* UINT64_MAX: when its event has come */
    uint32_t recording;
    struct vgpu_hand hand;
    ucontext_t at; /* where it begins */
    jmp_buf here;  /* where it continues */
    int is_started;
};

static struct {
    struct simulation *s;
    struct engine *engine;
    struct member *members[MAX_THREADS];
    struct worker *workers[MAX_THREADS];
    unsigned member_count, worker_count;
    struct vgpu_region_bucket buckets[MAX_CONTAINERS];
    struct worker *running;
    jmp_buf home;
    char *stacks;
    uint64_t chance;
} sim;

/* ------------------------------------------------------------------ the library's world */

static uint64_t now_ns(void)
{
    return sim.engine->now_ns;
}

/* The machine has been up for a while when a scene begins, so that a new budget has a full burst. */
#define BOOTED_NS (10000 * MS)

static struct vgpu_instant clock_now(void)
{
    return vgpu_at(BOOTED_NS + now_ns());
}

/* Switch coroutines by jumps. (Rejected: swapcontext, which calls the kernel for the signal mask each time and would take a
 * quarter of a run.) */
static void yield(void)
{
    if (!_setjmp(sim.running->here)) {
        _longjmp(sim.home, 1);
    }
}

static void resume(struct worker *w)
{
    sim.running = w;
    if (_setjmp(sim.home)) {
        return;
    }
    if (w->is_started) {
        _longjmp(w->here, 1);
    }
    w->is_started = 1;
    setcontext(&w->at);
}

/* Sleeps end late, as they do on a real system. */
static void sleep_ns(uint64_t ns)
{
    sim.running->wake_ns = now_ns() + ns + 50 * US + chance(&sim.chance) % (30 * US);
    yield();
}

static CUresult event_create(CUevent *out, unsigned flags)
{
    (void)flags;
    *out = calloc(1, sizeof **out);
    (*out)->process = sim.running->process;
    (*out)->slot = sim.running->process->events++;
    return (*out)->slot < EVENT_OF_THREAD ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult event_destroy(CUevent event)
{
    free(event);
    return CUDA_SUCCESS;
}

/* A full queue blocks the caller. */
static void submit(struct worker *w, int queue, struct engine_op op)
{
    while (!engine_submit(sim.engine, w->process->context, queue, op)) {
        uint64_t rest = engine_rest_ns(sim.engine, w->process->context) / 2;
        w->wake_ns = now_ns() + (rest > 20 * US ? rest : 20 * US);
        yield();
    }
}

static CUresult event_record(CUevent event, CUstream stream)
{
    submit(sim.running, (int)(uintptr_t)stream, (struct engine_op){.kind = ENGINE_RECORD, .event = event->slot});
    event->recording = sim.engine->contexts[event->process->context].events[event->slot].submitted;
    return CUDA_SUCCESS;
}

static CUresult event_query(CUevent event)
{
    const struct engine_event *e = &sim.engine->contexts[event->process->context].events[event->slot];
    return (int32_t)(e->done - event->recording) >= 0 ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

static CUresult event_elapsed(float *out, CUevent start, CUevent end)
{
    const struct engine_event *all = sim.engine->contexts[start->process->context].events;
    double ns = (double)(int64_t)(all[end->slot].at_ns - all[start->slot].at_ns);
    *out = (float)(ns * (1 + sim.s->device.clock_ppm / 1e6) / 1e6);
    return CUDA_SUCCESS;
}

static CUresult current(CUcontext *out)
{
    *out = (CUcontext)(void *)sim.running->process;
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

/* ------------------------------------------------------------------ a process's readings */

static struct vgpu_share share_of(void *owner, int ordinal)
{
    const struct member *m = owner;
    const struct simulation *s = sim.s;
    unsigned percent = s->scene.tenants[m->tenant].cores;
    (void)ordinal;
    if (s->unlimited == (int)m->tenant || s->unlimited == MAX_CONTAINERS) {
        percent = 0;
    } else if (s->resize_at_ns && now_ns() >= s->resize_at_ns) {
        percent = s->resize_to;
    }
    return (struct vgpu_share){.percent = percent, .always = !s->by_default};
}

static struct vgpu_region_bucket *bucket_of(void *owner, int ordinal)
{
    (void)ordinal;
    return &sim.buckets[((const struct member *)owner)->tenant];
}

static uint32_t sms_of(void *owner, int ordinal)
{
    (void)owner, (void)ordinal;
    return sim.s->scene.sms;
}

/* Return what NVML reports about a process for the sample that ended then. */
static unsigned shown(unsigned member, uint64_t *end_ns)
{
    unsigned percent = engine_utilisation(sim.engine, sim.members[member]->context, sim.s->scene.lag_ns, end_ns);
    unsigned most = sim.s->device.noise_points;
    uint64_t state = sim.s->scene.seed ^ (*end_ns + member);
    if (!most || !percent) {
        return percent > 100 ? 100 : percent;
    }
    int off = (int)percent + (int)(chance(&state) % (2 * most + 1)) - (int)most;
    return off < 0 ? 0 : off > 100 ? 100 : (unsigned)off;
}

static int measure(void *owner, int ordinal, uint64_t since_us, struct vgpu_measurement *out)
{
    unsigned tenant = ((const struct member *)owner)->tenant;
    (void)ordinal;
    out->others_known = 1;
    if (sim.s->device.unmatched) { /* the agent's page says whether the container has neighbours */
        out->others = out->neighbours = sim.s->scene.count > 1;
        return 0;
    }
    for (unsigned i = 0; i < sim.member_count; i++) {
        uint64_t end;
        out->neighbours |= sim.members[i]->tenant != tenant;
        unsigned percent = shown(i, &end);
        end += BOOTED_NS;
        if (end == BOOTED_NS || end / 1000 <= since_us || !percent) {
            continue;
        }
        if (sim.members[i]->tenant == tenant) {
            out->percent += percent;
            out->end = vgpu_at(end);
            out->stamp_us = end / 1000;
        } else {
            out->others = 1;
        }
    }
    return out->stamp_us != 0;
}

/* A throttle is far larger than the stack of a coroutine. */
static void begin_throttle(struct member *m)
{
    memset(&m->throttle, 0, sizeof m->throttle);
    m->throttle.owner = m;
    m->throttle.share = share_of;
    m->throttle.bucket = bucket_of;
    m->throttle.sms = sms_of;
    m->throttle.measure = measure;
}

static void free_events(struct member *m)
{
    for (unsigned n = 0; n < VGPU_PROBES; n++) {
        free(m->throttle.probes[n].start);
        free(m->throttle.probes[n].end);
    }
}

/* ------------------------------------------------------------------ programs */

static void launch(struct worker *w, uint64_t function, uint64_t blocks, uint64_t ns, uint32_t fraction)
{
    struct vgpu_launch l = {.cuda = &driver,
                            .stream = (CUstream)(uintptr_t)w->queue,
                            .ordinal = 0,
                            .page = sim.s->resize_at_ns && now_ns() >= sim.s->resize_at_ns,
                            .process = 1,
                            .function = function,
                            .blocks = blocks,
                            .threads = blocks ? 256 : 0};
    struct vgpu_ticket ticket = {0};
    sim.s->launches++;
    if (w->hand.process != 1 || w->hand.page != l.page ||
        !vgpu_throttle_fast(&w->hand, 0, vgpu_cost_key(l.function, l.blocks, l.threads))) {
        vgpu_throttle_begin(&w->process->throttle, &w->hand, &l, &ticket);
    }
    submit(w, w->queue, (struct engine_op){.kind = ENGINE_KERNEL, .left_ns = ns, .fraction = fraction});
    vgpu_throttle_end(&w->process->throttle, &l, &ticket, CUDA_SUCCESS);
}

static void synchronize(struct worker *w)
{
    uint32_t slot = EVENT_OF_THREAD + w->number;
    submit(w, w->queue, (struct engine_op){.kind = ENGINE_RECORD, .event = slot, .notify = 1});
    w->recording = sim.engine->contexts[w->process->context].events[slot].submitted;
    w->wake_ns = UINT64_MAX;
    yield();
    vgpu_throttle_waited(&w->process->throttle, &driver);
}

static void rest(struct worker *w, uint64_t ns)
{
    w->wake_ns = now_ns() + ns;
    yield();
}

/* A kernel of the workload, as a grid of as many blocks as it needs. */
static void kernel(struct worker *w, const struct workload *k)
{
    uint64_t ns, wave = (uint64_t)sim.s->scene.sms * 8, blocks = wave * k->fill / 100 * k->waves;
    uint32_t fraction;
    engine_shape(sim.s->scene.sms, blocks ? blocks : 1, 256, kernel_block_ns(k, &w->chance), &ns, &fraction);
    launch(w, 7, blocks ? blocks : 1, ns, fraction);
}

static void graph(struct worker *w, const struct workload *k)
{
    uint64_t ns = 0;
    for (unsigned i = 0; i < k->batch; i++) {
        ns += kernel_block_ns(k, &w->chance) * k->waves;
    }
    launch(w, 9, 0, ns, ENGINE_WHOLE);
}

static void decode(struct worker *w, const struct workload *k, unsigned tokens)
{
    static const struct workload prompt = {.block_ns = 3750 * US, .waves = 1, .fill = 100, .jitter = 33};
    for (unsigned i = 0; k->prefill && tokens % 40 == 39 && i < k->prefill; i++) {
        kernel(w, &prompt);
    }
    graph(w, k);
    synchronize(w);
    rest(w, k->gap_ns / 2 + chance(&w->chance) % k->gap_ns);
}

/* End the process of a thread and start another one in its place. */
static void restart(struct worker *w)
{
    struct member *m = w->process;
    m->spent_ns += sim.engine->contexts[m->context].busy_ns;
    engine_leave(sim.engine, m->context);
    free_events(m);
    m->context = engine_join(sim.engine, m->number);
    m->events = 0;
    begin_throttle(m);
    w->hand = (struct vgpu_hand){0};
}

static void live(struct worker *w, const struct workload *k)
{
    uint64_t until = now_ns() + k->life_ns;
    do {
        kernel(w, k);
    } while (now_ns() < until);
    synchronize(w);
    restart(w);
    rest(w, k->gap_ns);
}

static void program(void)
{
    struct worker *w = sim.running;
    const struct workload *k = sim.s->scene.tenants[w->process->tenant].workload;
    for (unsigned n = 0;; n++) {
        switch (k->pattern) {
        case PATTERN_STREAM:
            kernel(w, k);
            break;
        case PATTERN_GRAPH:
            graph(w, k);
            break;
        case PATTERN_SYNC:
            kernel(w, k);
            synchronize(w);
            rest(w, 5 * US);
            break;
        case PATTERN_BURST:
            for (unsigned i = 0; i < k->batch; i++) {
                kernel(w, k);
            }
            synchronize(w);
            rest(w, k->gap_ns);
            break;
        case PATTERN_TOKENS:
            decode(w, k, n);
            break;
        case PATTERN_LIVES:
            live(w, k);
            break;
        }
    }
}

/* ------------------------------------------------------------------ the run */

static void hire(struct member *m, unsigned n)
{
    struct worker *w = calloc(1, sizeof *w);
    w->process = m;
    w->number = sim.worker_count;
    w->queue = 1 + (int)(n % (ENGINE_FIRST_FREE - 1));
    w->chance = chance(&sim.chance);
    w->wake_ns = chance(&sim.chance) % (10 * MS) + (m->tenant + 1 == sim.s->scene.count ? sim.s->late_ns : 0);
    getcontext(&w->at);
    w->at.uc_stack.ss_sp = sim.stacks + (size_t)sim.worker_count * STACK_BYTES;
    w->at.uc_stack.ss_size = STACK_BYTES;
    makecontext(&w->at, program, 0);
    sim.workers[sim.worker_count++] = w;
}

static void cast(void)
{
    const struct scene *scene = &sim.s->scene;
    for (unsigned t = 0; t < scene->count; t++) {
        const struct workload *k = scene->tenants[t].workload;
        for (unsigned p = 0; p < k->processes; p++) {
            struct member *m = calloc(1, sizeof *m);
            m->tenant = t;
            m->context = -1;
            m->number = (int32_t)(sim.member_count + 1);
            begin_throttle(m);
            sim.members[sim.member_count++] = m;
            for (unsigned n = 0; n < k->threads; n++) {
                hire(m, n);
            }
        }
    }
    for (unsigned left = sim.member_count; left; left--) { /* contexts take turns in the order in which they were made */
        unsigned pick = sim.s->device.shuffled ? (unsigned)(chance(&sim.chance) % left) : 0, at = 0;
        while (sim.members[at]->context >= 0 || pick--) {
            at++;
        }
        sim.members[at]->context = engine_join(sim.engine, sim.members[at]->number);
    }
}

/* Return the one engine of all runs, idle. Allocating a new one for each run would take a third of its time. */
static struct engine *an_engine(void)
{
    static struct engine *kept;
    if (!kept) {
        kept = calloc(1, sizeof *kept);
    } else {
        memset(kept->contexts, 0, kept->high * sizeof *kept->contexts);
        memset(kept, 0, offsetof(struct engine, contexts));
    }
    return kept;
}

static void strike(void)
{
    for (unsigned i = 0; i < sim.worker_count; i++) {
        free(sim.workers[i]);
    }
    for (unsigned i = 0; i < sim.member_count; i++) {
        free_events(sim.members[i]);
        free(sim.members[i]);
    }
    free(sim.stacks);
}

static void note(struct simulation *s)
{
    for (unsigned t = 0; t < s->scene.count; t++) {
        s->used[s->steps][t] = 0;
    }
    for (unsigned i = 0; i < sim.member_count; i++) {
        s->used[s->steps][sim.members[i]->tenant] +=
            sim.members[i]->spent_ns + sim.engine->contexts[sim.members[i]->context].busy_ns;
    }
    s->steps++;
}

void simulate(struct simulation *s)
{
    memset(&sim, 0, sizeof sim);
    sim.s = s;
    sim.chance = s->scene.seed;
    sim.engine = an_engine();
    sim.stacks = malloc((size_t)MAX_THREADS * STACK_BYTES);
    s->steps = 0;
    s->launches = s->waited_ns = 0;
    if (!s->device.slice_ns) {
        s->device = device_nominal();
    }
    engine_start(sim.engine, 0, s->device.slice_ns, s->device.switch_ns, 100 * MS);
    sim.engine->look_ns = s->device.looks ? 100 * MS / s->device.looks : 0;
    cast();
    uint64_t due = 0;
    for (;;) {
        uint64_t now = now_ns(), next = due;
        if (now >= due) {
            note(s);
            due += s->step_ns;
            if (now >= s->length_ns || s->steps == SIMULATION_STEPS) {
                break;
            }
            next = due;
        }
        unsigned first = s->device.shuffled ? (unsigned)(chance(&sim.chance) % sim.worker_count) : 0;
        for (unsigned i = 0; i < sim.worker_count; i++) {
            struct worker *w = sim.workers[(i + first) % sim.worker_count];
            const struct engine_event *e = &sim.engine->contexts[w->process->context].events[EVENT_OF_THREAD + w->number];
            if (w->wake_ns == UINT64_MAX ? (int32_t)(e->done - w->recording) >= 0 : w->wake_ns <= now) {
                w->wake_ns = now;
                resume(w);
            }
            if (w->wake_ns != UINT64_MAX && w->wake_ns < next) {
                next = w->wake_ns;
            }
        }
        engine_advance(sim.engine, next > now ? next : now + 1);
    }
    for (unsigned t = 0; t < s->scene.count; t++) {
        s->waited_ns += sim.buckets[t].waited_ns;
    }
    strike();
}
