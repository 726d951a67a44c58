/* lockstep.h - programs whose kernels on several devices wait for each other.
 *
 * Such programs often run one kernel on each device, and none of them ends before all have begun. If one device is held
 * back, the kernels on the others spin. If the program paid for the spinning, the others would be held back for longer
 * than they spun, and then the first one would spin: with less than half of a device, each round would take longer than
 * the one before. So if several devices of a container are in use and a kernel is seen to wait, the program pays what
 * the kernel takes when it does not wait. This is the same rule as beside neighbours, whose timeslices are part of a
 * kernel's time. NVML counts spinning as work, so it is not compared with.
 */
#ifndef VGPU_LOCKSTEP_H
#define VGPU_LOCKSTEP_H

#include "throttle_state.h"

/* Note that a launch took `ns`. Return whether the program's kernels wait for each other, and if so, whether this one did. */
enum vgpu_lockstep { VGPU_NO_LOCKSTEP, VGPU_PERHAPS_WAITED, VGPU_WAITED };
enum vgpu_lockstep vgpu_lockstep_ran(struct vgpu_throttle *throttle, const struct vgpu_probe *probe, uint64_t ns,
                                     struct vgpu_instant now);
int vgpu_lockstep_waits(const struct vgpu_throttle *throttle, struct vgpu_instant now);

/* Drop what the calibration has collected, since it contains spinning. Takes the place of a comparison. */
void vgpu_lockstep_discard(struct vgpu_calibration *calibration, struct vgpu_region_bucket *bucket, struct vgpu_instant now);

/* Give the prepaid time of a thread back to its device, because the thread moves on to another one. */
void vgpu_lockstep_return(struct vgpu_throttle *throttle, struct vgpu_hand *hand, struct vgpu_instant now);

#endif
