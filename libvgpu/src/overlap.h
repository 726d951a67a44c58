/* overlap.h - how many kernels of a process run side by side on a device, from the times of their events.
 *
 * A device is used as long as any kernel runs on it, so kernels that run side by side cost less than their times add up to.
 * NVML shows that a second late; events show it at once, in two ways, of which the higher figure counts:
 *
 *   pairs    Of two launches that follow each other in different streams both are measured now and then: the sum of their
 *            times over the time in which either ran. A program overlaps that far with each stream it uses as much. This
 *            sees what runs as soon as it is launched.
 *   singles  Launches that are measured a millisecond apart overlap by chance; by how much, over which part of all launches
 *            is measured, is how many others run beside one. This sees streams with a backlog, in which launches that follow
 *            each other run at other times.
 *
 * Under the lock of struct vgpu_throttle, but for vgpu_overlap_of.
 */
#ifndef VGPU_OVERLAP_H
#define VGPU_OVERLAP_H

#include <stdatomic.h>
#include <stdint.h>

#include "instant.h"

enum { VGPU_OVERLAP_STREAMS = 16, VGPU_OVERLAP_RUNS = 32 };

/* What was measured of a launch. */
struct vgpu_overlap_run {
    uintptr_t stream;
    double from_ns, to_ns; /* by the clock of events, from any moment */
    double cost_ns;        /* what it usually takes, at most that long: the rest it waited for others, of the process or not */
};

/* Of a device. All zero at first. */
struct vgpu_overlap {
    double sum_ns, either_ns;                /* of pairs, fading */
    uintptr_t streams[VGPU_OVERLAP_STREAMS]; /* of the last singles */
    uint32_t launches;
    struct vgpu_overlap_run runs[VGPU_OVERLAP_RUNS]; /* the last singles that have run */
    uint32_t count;
    double measured_ns, all_ns, shared_ns; /* of singles, of all launches, of singles beside others; fading */
    _Atomic uint64_t launched_ns;                   /* of all launches since the last single */
    _Atomic uint32_t parts;                         /* the result, in parts of VGPU_OVERLAP_ONE; 0: nothing is known */
    struct vgpu_instant faded;
};

#define VGPU_OVERLAP_ONE 65536

/* Launches of so much were made; without the lock. */
void vgpu_overlap_charged(struct vgpu_overlap *overlap, uint64_t ns);

/* A single in that stream is measured. */
void vgpu_overlap_launched(struct vgpu_overlap *overlap, uintptr_t stream);

/* A single and the second of its pair have run. */
void vgpu_overlap_pair(struct vgpu_overlap *overlap, const struct vgpu_overlap_run *first, const struct vgpu_overlap_run *second);

/* A single has run. */
void vgpu_overlap_single(struct vgpu_overlap *overlap, const struct vgpu_overlap_run *run);

/* The result is forgotten, over some minutes. */
void vgpu_overlap_fade(struct vgpu_overlap *overlap, struct vgpu_instant now);

/* The clock of singles begins anew. */
void vgpu_overlap_restart(struct vgpu_overlap *overlap);

/* What so much of the time of kernels takes of the device, if it has room for so many of them at once. */
static inline uint64_t vgpu_overlap_of(const struct vgpu_overlap *overlap, uint64_t ns, uint32_t fit)
{
    uint32_t parts = atomic_load_explicit(&overlap->parts, memory_order_relaxed);
    parts = parts / VGPU_OVERLAP_ONE < fit ? parts : fit * VGPU_OVERLAP_ONE;
    return parts ? ns * VGPU_OVERLAP_ONE / parts : ns;
}

#endif
