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
};

/* Before a launch: does it get measured? vgpu_probe_end ends it. What it was charged alone is in the totals then when it
 * has run, else at once. */
void vgpu_probe_start(struct vgpu_throttle *throttle, const struct vgpu_launch *launch, const struct vgpu_geometry *what,
                      struct vgpu_cost *cost, struct vgpu_instant now, const struct vgpu_charge *charge,
                      struct vgpu_ticket *ticket);

/* After the launch that `probe` was claimed for, with its result. */
void vgpu_probe_end(struct vgpu_throttle *throttle, const struct vgpu_launch *launch, struct vgpu_probe *probe, CUresult result);

/* Under the lock: whatever of this device's kernels ran before then is in the totals. */
struct vgpu_instant vgpu_probe_known(const struct vgpu_throttle *throttle, int ordinal, struct vgpu_instant now);

/* Under the lock: take in the measurements that have come. */
void vgpu_probe_harvest(struct vgpu_throttle *throttle, const struct vgpu_cuda *cuda, struct vgpu_instant now);

/* Before the driver ends a context: nothing that was made in it is touched again. What was launched in it is charged as
 * it was estimated. */
void vgpu_probe_end_context(struct vgpu_throttle *throttle, const struct vgpu_cuda *cuda, CUcontext context);

/* With what an estimate is multiplied. */
double vgpu_probe_factor(const struct vgpu_throttle_device *device, uint64_t ns);

#endif
