#include "workloads.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define US UINT64_C(1000)
#define MS UINT64_C(1000000)

const struct workload workloads[] = {
    /* name, pattern, block_ns, waves, fill, jitter, outliers, batch, gap_ns, processes, threads, prefill, life_ns */
    {"5us", PATTERN_STREAM, 5 * US, 1, 100, 5, 0, 0, 0, 1, 1, 0, 0},
    {"50us", PATTERN_STREAM, 50 * US, 1, 100, 20, 0, 0, 0, 1, 1, 0, 0},
    {"500us", PATTERN_STREAM, 500 * US, 1, 100, 10, 0, 0, 0, 1, 1, 0, 0},
    {"5ms", PATTERN_STREAM, 5 * MS, 1, 100, 10, 0, 0, 0, 1, 1, 0, 0},
    {"50ms", PATTERN_STREAM, 50 * MS, 1, 100, 10, 0, 0, 0, 1, 1, 0, 0},
    {"500ms", PATTERN_STREAM, 500 * MS, 1, 100, 5, 0, 0, 0, 1, 1, 0, 0},
    {"2s", PATTERN_STREAM, 2000 * MS, 1, 100, 0, 0, 0, 0, 1, 1, 0, 0},
    {"20us_sync", PATTERN_SYNC, 20 * US, 1, 100, 10, 0, 0, 0, 1, 1, 0, 0},
    {"2ms_sync", PATTERN_SYNC, 2 * MS, 1, 100, 10, 0, 0, 0, 1, 1, 0, 0},
    {"300ms_sync", PATTERN_SYNC, 300 * MS, 1, 100, 10, 0, 0, 0, 1, 1, 0, 0},
    {"burst_short", PATTERN_BURST, 100 * US, 1, 100, 10, 0, 100, 1 * MS, 1, 1, 0, 0},
    {"burst_long", PATTERN_BURST, 1 * MS, 1, 100, 10, 0, 60, 10 * MS, 1, 1, 0, 0},
    {"graph_small", PATTERN_GRAPH, 10 * US, 1, 100, 5, 0, 20, 0, 1, 1, 0, 0},
    {"graph_large", PATTERN_GRAPH, 50 * US, 1, 100, 5, 0, 400, 0, 1, 1, 0, 0},
    {"waves", PATTERN_STREAM, 30 * US, 7, 100, 10, 0, 0, 0, 1, 1, 0, 0},
    {"small_grids", PATTERN_STREAM, 200 * US, 1, 20, 10, 0, 0, 0, 1, 3, 0, 0},
    {"outliers", PATTERN_STREAM, 100 * US, 1, 100, 10, 30, 0, 0, 1, 1, 0, 0},
    {"processes", PATTERN_STREAM, 200 * US, 1, 100, 10, 0, 0, 0, 4, 2, 0, 0},
    /* the workloads of the family `work` */
    {"decode", PATTERN_TOKENS, 8 * US, 1, 100, 5, 0, 300, 500 * US, 1, 1, 0, 0},
    {"prefill", PATTERN_TOKENS, 8 * US, 1, 100, 5, 0, 300, 500 * US, 1, 1, 60, 0},
    {"training", PATTERN_BURST, 5 * MS, 1, 100, 10, 0, 30, 200 * MS, 1, 1, 0, 0},
    {"quarters", PATTERN_STREAM, 1 * MS, 1, 25, 10, 0, 0, 0, 1, 4, 0, 0},
    {"two_streams", PATTERN_STREAM, 2 * MS, 1, 100, 10, 0, 0, 0, 1, 2, 0, 0},
    {"10us", PATTERN_STREAM, 10 * US, 1, 100, 5, 0, 0, 0, 1, 1, 0, 0},
    {"100ms", PATTERN_STREAM, 100 * MS, 1, 100, 5, 0, 0, 0, 1, 1, 0, 0},
    {"persistent", PATTERN_STREAM, 10000 * MS, 1, 100, 0, 0, 0, 0, 1, 1, 0, 0},
    {"restarts", PATTERN_LIVES, 500 * US, 1, 100, 10, 0, 0, 150 * MS, 1, 1, 0, 1000 * MS},
    {"one_kernel", PATTERN_LIVES, 200 * MS, 1, 100, 10, 0, 0, 20 * MS, 1, 1, 0, 1},
};
const unsigned workload_count = sizeof workloads / sizeof workloads[0];

enum { OF_THE_MATRIX = 18 }; /* workloads of the family `alone` */

static const unsigned multiprocessors[] = {20, 108, 188};
static const uint64_t lags[] = {100 * MS, 500 * MS, 1000 * MS};
static const unsigned shares[] = {10, 25, 50, 75};
static const unsigned crowds[] = {2, 4, 8, 16};

uint64_t chance(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

uint64_t kernel_block_ns(const struct workload *w, uint64_t *state)
{
    uint64_t ns = w->block_ns;
    if (w->jitter) {
        uint64_t spread = ns * w->jitter / 100;
        ns = ns - spread + chance(state) % (2 * spread + 1);
    }
    return w->outliers && chance(state) % 1000 < w->outliers ? ns * 10 : ns;
}

uint64_t workload_longest_ns(const struct workload *w)
{
    uint64_t ns = w->block_ns * w->waves * (100 + w->jitter) / 100;
    ns = w->outliers ? ns * 10 : ns;
    return w->pattern == PATTERN_GRAPH ? ns * w->batch : ns;
}

/* One container alone, with every workload, share, device and lag in turn. */
static int alone(unsigned i, struct scene *out)
{
    enum { DEVICES = 3 };
    unsigned n = (unsigned)(sizeof shares / sizeof shares[0]);
    if (i >= OF_THE_MATRIX * n * DEVICES) {
        return 0;
    }
    unsigned which = i / (n * DEVICES), share = i / DEVICES % n, device = i % DEVICES;
    out->family = workloads[which].pattern == PATTERN_GRAPH ? "graph" : "alone";
    out->sms = multiprocessors[device];
    out->lag_ns = lags[(device + which + share) % 3];
    out->count = 1;
    out->tenants[0] = (struct tenant){&workloads[which], shares[share]};
    return 1;
}

/* Equal neighbours with equal shares of the whole device. Kernels of seconds with sixteen tenants would need an hour each. */
static int equal(unsigned i, struct scene *out)
{
    static const unsigned kinds[] = {0, 1, 2, 3, 4, 8, 10, 12, 13, 15};
    unsigned n = (unsigned)(sizeof kinds / sizeof kinds[0]), crowd = i / n;
    if (crowd >= sizeof crowds / sizeof crowds[0]) {
        return 0;
    }
    out->family = "equal";
    out->count = crowds[crowd];
    out->sms = multiprocessors[i % 3];
    out->lag_ns = lags[(i / 3 + crowd) % 3];
    for (unsigned t = 0; t < out->count; t++) {
        out->tenants[t] = (struct tenant){&workloads[kinds[i % n]], 100 / out->count};
    }
    return 1;
}

/* Tenants that come and go: random shares and workloads, in total at most the whole device. */
static int mixed(unsigned i, struct scene *out)
{
    static const unsigned kinds[] = {1, 2, 3, 4, 7, 8, 10, 11, 12, 13, 14, 15, 16, 17};
    if (i >= 24) {
        return 0;
    }
    uint64_t state = out->seed;
    unsigned left = 100;
    out->family = "mixed";
    out->count = 2 + i % 6;
    out->sms = multiprocessors[i % 3];
    out->lag_ns = lags[i / 3 % 3];
    for (unsigned t = 0; t < out->count; t++) {
        unsigned most = left - 5 * (out->count - 1 - t);
        unsigned cores = t + 1 == out->count ? left : 5 + (unsigned)(chance(&state) % (most - 5 + 1));
        cores = cores > 60 ? 60 : cores;
        left -= cores;
        out->tenants[t] = (struct tenant){&workloads[kinds[chance(&state) % (sizeof kinds / sizeof kinds[0])]], cores};
    }
    return 1;
}

static const struct workload *named(const char *name)
{
    for (unsigned i = 0; i < workload_count; i++) {
        if (!strcmp(workloads[i].name, name)) {
            return &workloads[i];
        }
    }
    abort();
}

/* The workloads of tenants in real clusters, alone and next to each other. */
static int work(unsigned i, struct scene *out)
{
    static const struct {
        const char *name;
        unsigned cores;
    } scenes[][3] = {
        {{"decode", 30}},
        {{"training", 30}},
        {{"restarts", 30}},
        {{"persistent", 30}},
        {{"one_kernel", 30}},
        {{"300ms_sync", 50}},
        {{"two_streams", 40}},
        {{"two_streams", 40}, {"500us", 60}},
        {{"decode", 40}, {"5ms", 60}},
        {{"prefill", 40}, {"5ms", 60}},
        {{"training", 35}, {"decode", 50}},
        {{"restarts", 30}, {"500us", 70}},
        {{"quarters", 40}, {"5ms", 60}},
        {{"10us", 50}, {"100ms", 50}},
        {{"10us", 75}, {"100ms", 25}},
        {{"one_kernel", 30}, {"5ms", 70}},
        {{"decode", 30}, {"training", 40}, {"50ms", 30}},
    };
    if (i >= sizeof scenes / sizeof scenes[0]) {
        return 0;
    }
    out->family = "work";
    out->sms = 132;
    out->lag_ns = lags[i % 3];
    for (; out->count < 3 && scenes[i][out->count].name; out->count++) {
        out->tenants[out->count] = (struct tenant){named(scenes[i][out->count].name), scenes[i][out->count].cores};
    }
    return 1;
}

/* A tenant beside kernels of ten seconds, which nothing can stop once they run. */
static int beside_long(unsigned i, struct scene *out)
{
    if (i) {
        return 0;
    }
    out->family = "beside_long";
    out->sms = 132;
    out->lag_ns = lags[2];
    out->count = 2;
    out->tenants[0] = (struct tenant){named("persistent"), 30};
    out->tenants[1] = (struct tenant){named("5ms"), 60};
    return 1;
}

int scene_at(unsigned index, uint64_t seed, struct scene *out)
{
    static int (*const families[])(unsigned, struct scene *) = {alone, equal, mixed, work, beside_long};
    unsigned i = index;
    uint64_t state = seed + index;
    for (size_t f = 0; f < sizeof families / sizeof families[0]; f++) {
        *out = (struct scene){.seed = chance(&state)};
        unsigned size = 0;
        struct scene probe;
        if (families[f](i, out)) {
            return 1;
        }
        for (probe = *out; families[f](size, &probe); size++) {
        }
        i -= size;
    }
    return 0;
}
