/* workloads.h - what the compute limit is measured on: programs and the devices they share.
 *
 * Fixed before the limiter, and the same for every limiter: a table of programs and a list of scenes made from it.
 * All chance comes from the seed of a scene.
 */
#ifndef BENCH_WORKLOADS_H
#define BENCH_WORKLOADS_H

#include <stdint.h>

enum pattern {
    PATTERN_STREAM, /* launch after launch; the device always has work while the limiter lets it */
    PATTERN_SYNC,   /* wait for each kernel before the next */
    PATTERN_BURST,  /* `batch` launches, wait for them, then `gap_ns` on the host */
    PATTERN_GRAPH,  /* graphs of `batch` kernels, one after the other */
    PATTERN_TOKENS, /* wait for a graph of `batch` kernels, then about `gap_ns` on the host; every 40 graphs `prefill` kernels of 5 ms */
    PATTERN_LIVES, /* processes that launch for `life_ns`, wait, end, and start again after `gap_ns` */
};

struct workload {
    const char *name;
    enum pattern pattern;
    uint64_t block_ns; /* what one block takes: a kernel of one wave */
    unsigned waves; /* of the device the kernel has */
    unsigned fill; /* percent of the device a wave fills */
    unsigned jitter; /* percent: kernels take block_ns +- this */
    unsigned outliers; /* per thousand launches of the same function take ten times as long */
    unsigned batch; /* kernels of a burst or graph */
    uint64_t gap_ns; /* on the host */
    unsigned processes; /* of a container */
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
    uint64_t lag_ns; /* of NVML */
    unsigned count;
    struct tenant tenants[MAX_CONTAINERS];
};

extern const struct workload workloads[];
extern const unsigned workload_count;

/* Scene `index` of the matrix for this seed; 0 when there are no more. */
int scene_at(unsigned index, uint64_t seed, struct scene *out);

/* The random numbers of a scene: splitmix64. */
uint64_t chance(uint64_t *state);

/* The time that the next kernel of a workload takes on a whole device of `sms` multiprocessors, with its jitter. */
uint64_t kernel_block_ns(const struct workload *w, uint64_t *state);

/* The longest kernel (or graph) that a workload may launch, in ns. */
uint64_t workload_longest_ns(const struct workload *w);

#endif
