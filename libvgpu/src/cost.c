#include "cost.h"

#include <stddef.h>

#define WAVE_NS UINT64_C(5000)           /* guess for one wave on the device */
#define GUESS_NS UINT64_C(10000000)      /* upper limit of a guess */
#define GRAPH_NS UINT64_C(100000)        /* guess for a graph */
#define LONG_WAIT_NS UINT64_C(100000000) /* neighbours' timeslices can explain a time up to this */
#define TOO_LONG_NS UINT64_C(5000000000) /* nothing can explain a longer time */
#define ODD 32                           /* a measurement is odd at this many times the usual cost */
#define HALF_TIMESLICE_NS UINT64_C(1000000)   /* an interrupted kernel takes at least this much longer */
#define FEW 8                            /* measurements; any of so few may consist mostly of others' timeslices */
#define LEAST_AVERAGED 48                /* measurements */
#define MOST_AVERAGED 512                /* measurements, which take at least half a second */
#define PER_SPREAD 512                   /* measurements after which an average that varies by its own mean is known to 3 % */
#define HALF_OF_THEM 32768               /* as a fraction of 65536 */
#define OF_THE_LAST 64                   /* measurements */

static struct vgpu_cost *entry(struct vgpu_costs *costs, uint64_t key)
{
    for (unsigned i = 0; i < 16; i++) {
        struct vgpu_cost *at = &costs->entries[((key >> 32) + i) % VGPU_COSTS];
        uint64_t seen = atomic_load_explicit(&at->key, memory_order_acquire);
        if (seen == key || (!seen && (atomic_compare_exchange_strong(&at->key, &seen, key) || seen == key))) {
            return at;
        }
    }
    return NULL;
}

enum { THREADS = 2048 }; /* resident threads of a multiprocessor */

static uint64_t waves(const struct vgpu_geometry *what)
{
    uint64_t room = (uint64_t)(what->sms ? what->sms : 1) * THREADS;
    uint64_t threads = what->threads ? what->threads : 1;
    uint64_t needed = what->blocks > UINT64_MAX / threads ? UINT64_MAX : what->blocks * threads;
    return needed / room + (needed % room != 0);
}

/* Return the function's entry for any grid, in ns per wave. */
static struct vgpu_cost *by_wave(struct vgpu_costs *costs, const struct vgpu_geometry *what)
{
    return what->blocks ? entry(costs, vgpu_cost_key(what->function, 0, UINT16_MAX)) : NULL;
}

struct vgpu_cost *vgpu_cost_of(struct vgpu_costs *costs, const struct vgpu_geometry *what)
{
    return entry(costs, vgpu_cost_key(what->function, what->blocks, what->threads));
}

static uint64_t guess(struct vgpu_costs *costs, const struct vgpu_geometry *what, int *learned)
{
    if (!what->blocks) {
        return GRAPH_NS;
    }
    struct vgpu_cost *wave = by_wave(costs, what);
    uint64_t count = waves(what), ns = WAVE_NS, most = GUESS_NS;
    if (wave && atomic_load_explicit(&wave->samples, memory_order_acquire)) {
        ns = atomic_load_explicit(&wave->ns, memory_order_relaxed);
        most = TOO_LONG_NS;
        *learned = 1;
    }
    ns = ns ? ns : 1;
    return count > most / ns ? (ns > most ? ns : most) : count * ns;
}

uint64_t vgpu_cost_ns(struct vgpu_costs *costs, const struct vgpu_cost *cost, const struct vgpu_geometry *what,
                      struct vgpu_instant now, int *learned)
{
    uint64_t ns;
    *learned = cost && atomic_load_explicit(&cost->samples, memory_order_acquire) != 0;
    ns = *learned ? atomic_load_explicit(&cost->ns, memory_order_relaxed) : guess(costs, what, learned);
    if (cost && atomic_load_explicit(&cost->pending, memory_order_acquire)) {
        struct vgpu_instant since = atomic_load_explicit(&cost->running, memory_order_relaxed);
        vgpu_duration age = since.ns && vgpu_is_before(since, now) ? vgpu_between(since, now) : 0;
        age = age > TOO_LONG_NS ? TOO_LONG_NS : age;
        if (age > ns && (!*learned || (age > LONG_WAIT_NS && age / ODD > ns))) {
            ns = age;
        }
    }
    return ns ? ns : 1;
}

/* Return the number of measurements to average: a cost that is occasionally much longer needs more of them than a constant
 * one. */
static uint32_t averaged(uint64_t mean, double square)
{
    double count = mean ? (square / ((double)mean * (double)mean) - 1) * PER_SPREAD : 0;
    return count < LEAST_AVERAGED ? LEAST_AVERAGED : count > MOST_AVERAGED ? MOST_AVERAGED : (uint32_t)count;
}

/* Return 1 if a measurement beside neighbours contains their timeslice although the kernel usually fits in one turn. Such a
 * measurement is useless. Leaving it out does not bias the rest, except for a kind that has both short kernels and some
 * nearly as long as a turn. */
static int is_left_out(struct vgpu_cost *cost, uint32_t samples, uint64_t before, uint64_t ns)
{
    int is_interrupted = samples && ns > before + HALF_TIMESLICE_NS;
    int32_t were = (int32_t)atomic_load_explicit(&cost->interrupted, memory_order_relaxed);
    were += ((is_interrupted ? 2 * HALF_OF_THEM : 0) - were) / OF_THE_LAST;
    atomic_store_explicit(&cost->interrupted, (uint32_t)were, memory_order_relaxed);
    return is_interrupted && samples >= FEW && before <= HALF_TIMESLICE_NS && were < HALF_OF_THEM;
}

static void blend(struct vgpu_cost *cost, uint64_t ns, enum vgpu_sample_kind kind)
{
    uint32_t samples = atomic_load_explicit(&cost->samples, memory_order_relaxed);
    uint64_t before = atomic_load_explicit(&cost->ns, memory_order_relaxed);
    double square = atomic_load_explicit(&cost->square, memory_order_relaxed);
    uint32_t most = averaged(before, square), weight = samples < most ? samples + 1 : most;
    switch (kind) {
    case VGPU_ITS_OWN:
        break;
    case VGPU_WITH_OTHERS:
        if (is_left_out(cost, samples, before, ns)) {
            return;
        }
        break;
    case VGPU_WITH_WAITS:
        weight = ns < before ? 4 : 64;
        break;
    }
    uint64_t after = samples ? before + (uint64_t)(((int64_t)ns - (int64_t)before) / (int64_t)weight) : ns;
    square += ((double)ns * (double)ns - square) / (samples ? weight : 1);
    atomic_store_explicit(&cost->ns, after, memory_order_relaxed);
    atomic_store_explicit(&cost->square, square, memory_order_relaxed);
    atomic_store_explicit(&cost->samples, samples < UINT32_MAX ? samples + 1 : samples, memory_order_release);
}

void vgpu_cost_learn(struct vgpu_costs *costs, struct vgpu_cost *cost, const struct vgpu_geometry *what, uint64_t ns,
                     enum vgpu_sample_kind kind)
{
    struct vgpu_cost *wave = by_wave(costs, what);
    blend(cost, ns, kind);
    if (wave) {
        uint64_t count = waves(what);
        blend(wave, ns / (count ? count : 1), kind);
    }
}

void vgpu_cost_forget(struct vgpu_costs *costs, const struct vgpu_geometry *what)
{
    struct vgpu_cost *cost = vgpu_cost_of(costs, what);
    if (cost) {
        atomic_store_explicit(&cost->samples, 0, memory_order_release);
    }
}
