/* cost.h - what kernels and graphs cost, ns of a whole device, as this process has learned it.
 *
 * An entry is a function launched with some number of blocks and threads, or a graph. One that was never measured costs
 * what its function costs a wave elsewhere, or else a guess by its geometry. Lock-free; entries are never removed.
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
    _Atomic uint32_t interrupted; /* how many of the last hold others' timeslices, parts of 65536 */
    _Atomic uint32_t samples;    /* 0: not learned */
    _Atomic uint32_t pending;    /* measurements in progress */
    _Atomic struct vgpu_instant running; /* when one of them was first seen running; never: none was */
    _Atomic uint64_t least_ns;   /* roughly the smallest recent measurement (lockstep.h) */
};

/* A table is all zero at first. */
struct vgpu_costs {
    struct vgpu_cost entries[VGPU_COSTS];
};

/* A launch, as far as its cost depends on it. */
struct vgpu_geometry {
    uint64_t function; /* handle of the function or graph */
    uint64_t blocks;   /* 0: a graph */
    uint32_t threads;  /* of a block */
    uint32_t sms;      /* of the device */
};

/* Key of a launch, never 0. Cheap, because every launch needs it. */
static inline uint64_t vgpu_cost_key(uint64_t function, uint64_t blocks, uint32_t threads)
{
    uint64_t key = (function ^ blocks * UINT64_C(0x9e3779b97f4a7c15) ^ (uint64_t)threads << 48) * UINT64_C(0xbf58476d1ce4e5b9);
    return (key ^ key >> 29) | 1;
}

/* Return the entry of a launch, a new one if there is none, or NULL if the table is full. */
struct vgpu_cost *vgpu_cost_of(struct vgpu_costs *costs, const struct vgpu_geometry *what);

/* Return the cost of a launch. `learned` becomes 0 if it is a guess. `cost` may be NULL. A kernel that has been running for far longer
 * than its learned cost costs at least that long. */
uint64_t vgpu_cost_ns(struct vgpu_costs *costs, const struct vgpu_cost *cost, const struct vgpu_geometry *what,
                      struct vgpu_instant now, int *learned);

/* The time that a measurement holds. Beside neighbours it may hold their timeslices. Of kernels that wait for each other the lower figures are
 * nearer to the truth. */
enum vgpu_sample_kind { VGPU_ITS_OWN, VGPU_WITH_OTHERS, VGPU_WITH_WAITS };

/* Learn from a measurement. */
void vgpu_cost_learn(struct vgpu_costs *costs, struct vgpu_cost *cost, const struct vgpu_geometry *what, uint64_t ns,
                     enum vgpu_sample_kind kind);

/* Forget a launch whose handle the driver may reuse. */
void vgpu_cost_forget(struct vgpu_costs *costs, const struct vgpu_geometry *what);

#endif
