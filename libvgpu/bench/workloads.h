/* workloads.h - the programs and devices on which the compute limit is measured.
 *
 * A table of programs and a list of scenes made of them. They do not depend on the limiter. Everything random comes from a
 * scene's seed.
 */
#ifndef BENCH_WORKLOADS_H
#define BENCH_WORKLOADS_H

#include <stdint.h>

enum pattern {
    PATTERN_STREAM, /* launch without a pause; the device always has work unless the limiter holds it back */
    PATTERN_SYNC,   /* wait for each kernel before the next */
    PATTERN_BURST,  /* `batch` launches, wait for them, then `gap_ns` on the host */
    PATTERN_GRAPH,  /* graphs of `batch` kernels, one after the other */
    PATTERN_TOKENS, /* wait for a graph of `batch` kernels, then about `gap_ns`; every 40 graphs `prefill` long kernels */
    PATTERN_LIVES, /* processes that launch for `life_ns`, wait, end, and start again after `gap_ns` */
};

struct workload {
    const char *name;
    enum pattern pattern;
    uint64_t block_ns; /* how long one block takes, and so a kernel of one wave */
    unsigned waves; /* waves of a kernel on the device */
    unsigned fill; /* percent of the device that a wave fills */
    unsigned jitter; /* percent: kernels take block_ns +- this */
    unsigned outliers; /* per thousand launches of the same function take ten times as long */
    unsigned batch; /* kernels of a burst or graph */
    uint64_t gap_ns; /* pause on the host */
    unsigned processes; /* processes of a container */
    unsigned threads; /* per process, each with its own stream */
    unsigned prefill;
    uint64_t life_ns; /* after this time a process launches nothing more; it launches at least once */
};

enum { MAX_CONTAINERS = 16 };

struct tenant {
    const struct workload *workload;
    unsigned cores; /* percent */
};

struct scene {
    const char *family;
    uint64_t seed;
    unsigned sms;
    uint64_t lag_ns; /* delay of NVML's samples */
    unsigned count;
    struct tenant tenants[MAX_CONTAINERS];
};

extern const struct workload workloads[];
extern const unsigned workload_count;

/* Store scene `index` of the matrix for this seed. Return 0 if there are no more. */
int scene_at(unsigned index, uint64_t seed, struct scene *out);

/* Return the next random number of a scene (splitmix64). */
uint64_t chance(uint64_t *state);

/* Return how long one block of the next kernel of a workload takes, with its jitter. */
uint64_t kernel_block_ns(const struct workload *w, uint64_t *state);

/* Return the longest kernel (or graph) that a workload may launch, in ns. */
uint64_t workload_longest_ns(const struct workload *w);

#endif
