/* probe.h - what kernels take: pairs of events around some launches, asked after without waiting. The inside of throttle.h.
 *
 * Also what is made of it: beside neighbours, their timeslices are in the times of events.
 */
#ifndef VGPU_PROBE_H
#define VGPU_PROBE_H

#include "throttle_state.h"

/* Has the driver what it takes? */
int vgpu_probe_can(const struct vgpu_cuda *cuda);

/* What a launch was charged. */
struct vgpu_charge {
    int64_t raw_ns, charged_ns;
    int alone; /* by itself, not out of a chunk */
    int learned;
    int launches; /* that it pays for, one after the other */
};

/* Is it to be learned by events how many of these kernels run side by side? Where chunks are `apart_ns` from each other, which is
 * long enough for each to be measured, any launch of one is to be that with the same chance: the first ones of several streams begin
 * together when a process gets its turn (docs/design/compute-limiter.md). */
int vgpu_probe_wants_any(const struct vgpu_throttle_device *device, const struct vgpu_geometry *what, struct vgpu_instant now,
                         uint64_t apart_ns);

/* Before a launch: does it get measured? vgpu_probe_end ends it. What it was charged alone is in the totals then when it
 * has run, else at once. */
void vgpu_probe_start(struct vgpu_throttle *throttle, const struct vgpu_launch *launch, const struct vgpu_geometry *what,
                      struct vgpu_cost *cost, struct vgpu_instant now, const struct vgpu_charge *charge,
                      struct vgpu_ticket *ticket);

/* After the launch that `probe` was claimed for, with its result. */
void vgpu_probe_end(struct vgpu_throttle *throttle, const struct vgpu_launch *launch, struct vgpu_probe *probe, CUresult result);

/* Under the lock: whatever of this device's kernels ran before then is in the totals. */
struct vgpu_instant vgpu_probe_known(const struct vgpu_throttle *throttle, int ordinal, struct vgpu_instant now);

/* Under the lock, by who is about to launch: take in what has come, and put a mark (timeslice.h) where that matters. */
void vgpu_probe_harvest(struct vgpu_throttle *throttle, const struct vgpu_launch *launch, struct vgpu_instant now);

/* Under the lock: the device of the first launch under way that was charged by a guess, or -1. */
int vgpu_probe_guessed(const struct vgpu_throttle *throttle);

/* Before the driver ends a context: nothing that was made in it is touched again. What was launched in it is charged as
 * it was estimated. */
void vgpu_probe_end_context(struct vgpu_throttle *throttle, const struct vgpu_cuda *cuda, CUcontext context);

/* How much of a cost of `ns` is believed; with what an estimate is multiplied. */
uint64_t vgpu_probe_believed(const struct vgpu_throttle_device *device, const struct vgpu_cost *cost,
                             const struct vgpu_geometry *what, uint64_t ns);
double vgpu_probe_factor(const struct vgpu_throttle_device *device, const struct vgpu_cost *cost, uint64_t ns,
                         struct vgpu_instant now);

#endif
