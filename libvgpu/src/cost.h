/* cost.h - the cost of kernels and graphs, in ns of a whole device, as this process has measured it.
 *
 * An entry stands for a function with a certain number of blocks and threads, or for a graph. If it was never measured,
 * its cost follows from the function's cost per wave with other numbers, or else from a guess by its geometry. Entries
 * are lock-free and never removed.
 */
#ifndef VGPU_COST_H
#define VGPU_COST_H

#include <stdatomic.h>
#include <stdint.h>

#include "instant.h"

enum { VGPU_COSTS = 4096 };

struct vgpu_cost {
    _Atomic uint64_t key;        /* 0: free */
    _Atomic uint64_t ns;
    _Atomic double square;       /* mean of the squares */
    _Atomic uint32_t interrupted; /* how many of the last measurements contain a neighbour's timeslice, in parts of 65536 */
    _Atomic uint32_t samples;    /* 0: not learned */
    _Atomic uint32_t pending;    /* measurements in progress */
    _Atomic struct vgpu_instant running; /* when one of them was first seen running; zero if none was */
    _Atomic uint64_t least_ns;   /* roughly the smallest recent measurement (lockstep.h) */
};

/* All zero at first. */
struct vgpu_costs {
    struct vgpu_cost entries[VGPU_COSTS];
};

/* The part of a launch that determines its cost. */
struct vgpu_geometry {
    uint64_t function; /* handle of the function or graph */
    uint64_t blocks;   /* 0: a graph */
    uint32_t threads;  /* threads of a block */
    uint32_t sms;      /* multiprocessors of the device */
};

/* Return the key of a launch, which is never 0. Every launch needs it, so it must be cheap. */
static inline uint64_t vgpu_cost_key(uint64_t function, uint64_t blocks, uint32_t threads)
{
    uint64_t key = (function ^ blocks * UINT64_C(0x9e3779b97f4a7c15) ^ (uint64_t)threads << 48) * UINT64_C(0xbf58476d1ce4e5b9);
    return (key ^ key >> 29) | 1;
}

/* Return the entry of a launch, creating it if necessary. Return NULL if the table is full. */
struct vgpu_cost *vgpu_cost_of(struct vgpu_costs *costs, const struct vgpu_geometry *what);

/* Return the cost of a launch. `learned` becomes 0 if it is a guess. `cost` may be NULL. If a kernel is still running
 * long after its usual time, it costs at least that long. */
uint64_t vgpu_cost_ns(struct vgpu_costs *costs, const struct vgpu_cost *cost, const struct vgpu_geometry *what,
                      struct vgpu_instant now, int *learned);

/* The conditions of a measurement. Beside neighbours it may contain their timeslices. If kernels wait for each other,
 * the lower measurements are closer to the truth. */
enum vgpu_sample_kind { VGPU_ITS_OWN, VGPU_WITH_OTHERS, VGPU_WITH_WAITS };

/* Learn from a measurement. */
void vgpu_cost_learn(struct vgpu_costs *costs, struct vgpu_cost *cost, const struct vgpu_geometry *what, uint64_t ns,
                     enum vgpu_sample_kind kind);

/* Forget a launch whose handle the driver may reuse. */
void vgpu_cost_forget(struct vgpu_costs *costs, const struct vgpu_geometry *what);

#endif
