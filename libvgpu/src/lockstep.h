/* lockstep.h - a container with several devices.
 *
 * What programs run on several devices is often one kernel on each that ends on none before it has begun on all. Where one device
 * is held back, such kernels spin on the others. Were that paid for, these would be held back for longer than they spun, and
 * the first would spin: below half of a device each round is longer than the one before. So what is seen to wait, in a container
 * with several devices in use, pays what it takes when it does not wait, as beside neighbours, whose timeslices are in
 * its time; and NVML, which counts spinning as work, is not compared with.
 */
#ifndef VGPU_LOCKSTEP_H
#define VGPU_LOCKSTEP_H

#include "throttle_state.h"

/* Record that a launch took `ns`: the program's kernels do not wait for each other, or this one perhaps or surely waited. */
enum vgpu_lockstep { VGPU_NO_LOCKSTEP, VGPU_PERHAPS_WAITED, VGPU_WAITED };
enum vgpu_lockstep vgpu_lockstep_ran(struct vgpu_throttle *throttle, const struct vgpu_probe *probe, uint64_t ns,
                                     struct vgpu_instant now);
int vgpu_lockstep_waits(const struct vgpu_throttle *throttle, struct vgpu_instant now);

/* Used instead of a comparison: forget what was taken for spinning. */
void vgpu_lockstep_discard(struct vgpu_calibration *calibration, struct vgpu_region_bucket *bucket, struct vgpu_instant now);

/* The thread goes on to another device: what it has in hand goes back to the one that it was taken of. */
void vgpu_lockstep_return(struct vgpu_throttle *throttle, struct vgpu_hand *hand, struct vgpu_instant now);

#endif
