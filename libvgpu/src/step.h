/* step.h - a container with several cards.
 *
 * What programs run on several cards is often one kernel on each that ends on none before it has begun on all. Where one card
 * is held back, such kernels spin on the others. Were that paid for, these would be held back for longer than they spun, and
 * the first would spin: below half of a card each round is longer than the one before. So what is seen to wait, in a container
 * with several cards in use, pays what it takes when it does not wait, as beside neighbours whose turns are in its time; and NVML,
 * which cannot tell spinning from work, is not compared with.
 */
#ifndef VGPU_STEP_H
#define VGPU_STEP_H

#include "pace.h"

/* A launch took `ns`. 1: the program's kernels wait for each other, and this may be in it. */
int vgpu_step_ran(struct vgpu_pace *pace, const struct vgpu_probe *probe, uint64_t ns, uint64_t now_ns);
int vgpu_step_waits(const struct vgpu_pace *pace, uint64_t now_ns);

/* Instead of a comparison: what spinning was taken for is forgotten. */
void vgpu_step_unsettle(struct vgpu_settle *settle, struct vgpu_region_bucket *bucket, uint64_t now_ns);

/* The thread turns to another card: what it has in hand goes back to the one that it was taken of. */
void vgpu_step_return(struct vgpu_pace *pace, struct vgpu_hand *hand, uint64_t now_ns);

#endif
