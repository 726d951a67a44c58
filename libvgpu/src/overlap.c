#include "overlap.h"

#define PAIRS_FADE (1.0 / 32)    /* share of the past forgotten with each pair */
#define SINGLES_FADE (1.0 / 256) /* the same with each single */
#define DOUBT_NS 1e6             /* uncertainty in deciding that two kernels ran one after the other */
#define FADE_EVERY_NS UINT64_C(100000000) /* time after which a part in 512 is forgotten */
#define LEAST_PART 0.02          /* least share of launches that must be measured to judge by chance */

void vgpu_overlap_charged(struct vgpu_overlap *o, uint64_t ns)
{
    uint32_t parts = atomic_load_explicit(&o->parts, memory_order_relaxed);
    atomic_fetch_add_explicit(&o->launched_ns, parts ? ns * parts / VGPU_OVERLAP_ONE : ns, memory_order_relaxed);
}

void vgpu_overlap_launched(struct vgpu_overlap *o, uintptr_t stream)
{
    o->streams[o->launches++ % VGPU_OVERLAP_STREAMS] = stream;
}

/* Return the number of streams in use: 1 / (sum of the squares of their shares). A stream that is seldom used hardly counts. */
static double streams_in_use(const struct vgpu_overlap *o)
{
    unsigned n = o->launches < VGPU_OVERLAP_STREAMS ? o->launches : VGPU_OVERLAP_STREAMS, pairs = 0;
    for (unsigned i = 0; i < n; i++) {
        for (unsigned j = 0; j < n; j++) {
            pairs += o->streams[i] == o->streams[j];
        }
    }
    return pairs ? (double)n * n / pairs : 1;
}

static void conclude(struct vgpu_overlap *o)
{
    double streams = streams_in_use(o), part = o->all_ns > 0 ? o->measured_ns / o->all_ns : 0;
    double pairs = 1 + ((o->sum_ns + DOUBT_NS) / (o->either_ns + DOUBT_NS) - 1) * (streams - 1);
    double singles = part < LEAST_PART ? 1 : 1 + 2 * o->shared_ns / ((part > 1 ? 1 : part) * (o->measured_ns + DOUBT_NS));
    double result = pairs > singles ? pairs : singles;
    result = result > streams ? streams : result;
    atomic_store_explicit(&o->parts, (uint32_t)(result * VGPU_OVERLAP_ONE), memory_order_relaxed);
}

static double waited(const struct vgpu_overlap_run *r)
{
    return r->to_ns - r->from_ns - r->cost_ns;
}

/* Return the time during which both ran; in a part of it one may have waited for the other. Anything that both waited for,
 * they waited for together: a neighbour's timeslice interrupts all kernels of the process. */
static double common(const struct vgpu_overlap_run *a, const struct vgpu_overlap_run *b)
{
    double from = a->from_ns > b->from_ns ? a->from_ns : b->from_ns, to = a->to_ns < b->to_ns ? a->to_ns : b->to_ns;
    double longest = waited(a) > waited(b) ? waited(a) : waited(b), both = to - from - longest;
    return both > 0 ? both : 0;
}

void vgpu_overlap_pair(struct vgpu_overlap *o, const struct vgpu_overlap_run *first, const struct vgpu_overlap_run *second)
{
    double sum = first->cost_ns + second->cost_ns;
    o->sum_ns += sum - o->sum_ns * PAIRS_FADE;
    o->either_ns += sum - common(first, second) - o->either_ns * PAIRS_FADE;
    conclude(o);
}

void vgpu_overlap_single(struct vgpu_overlap *o, const struct vgpu_overlap_run *run)
{
    double shared = 0, all = (double)atomic_exchange_explicit(&o->launched_ns, 0, memory_order_relaxed);
    for (unsigned i = 0; i < VGPU_OVERLAP_RUNS && i < o->count; i++) {
        shared += o->runs[i].stream != run->stream ? common(&o->runs[i], run) : 0;
    }
    o->runs[o->count++ % VGPU_OVERLAP_RUNS] = *run;
    o->shared_ns += shared - o->shared_ns * SINGLES_FADE;
    o->measured_ns += run->cost_ns - o->measured_ns * SINGLES_FADE;
    o->all_ns += all - o->all_ns * SINGLES_FADE;
    conclude(o);
}

void vgpu_overlap_fade(struct vgpu_overlap *o, struct vgpu_instant now)
{
    uint32_t parts = atomic_load_explicit(&o->parts, memory_order_relaxed);
    if (parts > VGPU_OVERLAP_ONE && vgpu_between(o->faded, now) >= FADE_EVERY_NS) {
        o->faded = now;
        atomic_store_explicit(&o->parts, parts - (parts - VGPU_OVERLAP_ONE + 511) / 512, memory_order_relaxed);
    }
}

void vgpu_overlap_restart(struct vgpu_overlap *o)
{
    o->count = 0;
}
