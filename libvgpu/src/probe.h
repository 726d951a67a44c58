/* probe.h - measures kernels by event pairs around some launches, without ever waiting for an event. Used by
 * throttle.h.
 *
 * The time between two events also contains the turns of other contexts. vgpu_probe_factor takes those out of an
 * estimate.
 */
#ifndef VGPU_PROBE_H
#define VGPU_PROBE_H

#include "throttle_state.h"

/* Return 1 if the driver has the functions that measuring needs. */
int vgpu_probe_can(const struct vgpu_cuda *cuda);

/* The charge for a launch. */
struct vgpu_charge {
    int64_t raw_ns, charged_ns;
    int alone;   /* 1: for this launch only, 0: for a chunk of launches */
    int learned; /* 0: the cost is a guess */
};

/* Decide whether to measure a launch, and record the first event. Call this before the launch, and vgpu_probe_end after
 * it if the ticket has a probe. The charge of a measured launch is added to the totals when it has run; any other
 * charge is added at once. */
void vgpu_probe_start(struct vgpu_throttle *throttle, const struct vgpu_launch *launch, const struct vgpu_geometry *what,
                      struct vgpu_cost *cost, struct vgpu_instant now, const struct vgpu_charge *charge,
                      struct vgpu_ticket *ticket);

/* Record the second event, unless the launch failed with `result`. */
void vgpu_probe_end(struct vgpu_throttle *throttle, const struct vgpu_launch *launch, struct vgpu_probe *probe, CUresult result);

/* Return a time before which everything that ran on the device is in the totals. The caller holds the lock. */
struct vgpu_instant vgpu_probe_known(const struct vgpu_throttle *throttle, int ordinal, struct vgpu_instant now);

/* Learn from the measured launches that have ended. The caller holds the lock. */
void vgpu_probe_harvest(struct vgpu_throttle *throttle, const struct vgpu_cuda *cuda, struct vgpu_instant now);

/* Destroy the events of a context that the driver is about to end. Launches in it that have not ended are charged as
 * estimated. */
void vgpu_probe_end_context(struct vgpu_throttle *throttle, const struct vgpu_cuda *cuda, CUcontext context);

/* Return the factor by which to multiply an estimate of `ns`. */
double vgpu_probe_factor(const struct vgpu_throttle_device *device, uint64_t ns);

#endif
