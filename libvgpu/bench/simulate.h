/* simulate.h - runs a scene of workloads.h on the simulated engine in virtual time. Every process has the library's own
 * throttle (throttle.h). Each thread is a coroutine that sleeps when the library does. */
#ifndef BENCH_SIMULATE_H
#define BENCH_SIMULATE_H

#include <stdint.h>

#include "device.h"
#include "workloads.h"

enum { SIMULATION_STEPS = 1 << 16 };

struct simulation {
    struct scene scene;
    struct device device; /* all zero: the nominal one */
    uint64_t length_ns;
    int unlimited;              /* tenant without a limit; -1 none, MAX_CONTAINERS all */
    int by_default;             /* 1: limit only while others are active */
    uint64_t late_ns;           /* the last tenant starts this late */
    /* The share that a tenant gets at some time; 0: it never changes. */
    uint64_t resize_at_ns;
    unsigned resize_to;
    /* Out: GPU time used by each tenant at every step. */
    uint64_t step_ns;
    unsigned steps;
    uint64_t (*used)[MAX_CONTAINERS]; /* [SIMULATION_STEPS], allocated by the caller */
    uint64_t launches, waited_ns;
};

void simulate(struct simulation *s);

#endif
