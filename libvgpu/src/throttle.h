/* throttle.h - holds launches up until the container's share of the device pays for them.
 *
 *     struct vgpu_ticket ticket = {0};
 *     vgpu_throttle_begin(throttle, &mine, &launch, &ticket);     // waits here
 *     CUresult result = cuda->cuLaunchKernel(...);
 *     vgpu_throttle_end(throttle, &launch, &ticket, result);
 *
 * Threads take 200 us of the budget (bucket.h) at a time, so most launches only subtract what their kernel costs
 * (cost.h) from what the thread has in hand; vgpu_throttle_fast is that subtraction. Costs come from pairs of events around
 * some launches, about one a millisecond, asked after without waiting. A kernel of its own right (more than 200 us) is
 * charged before it is launched and corrected when its events have come. Every 100 ms one process of the container
 * compares what was charged with what NVML measured over the same time (calibrate.h).
 *
 * Pure but for vgpu_world and the driver's event functions, so that a simulator can run many processes of many
 * containers at once: a struct vgpu_throttle is a process, a struct vgpu_hand one of its threads.
 */
#ifndef VGPU_THROTTLE_H
#define VGPU_THROTTLE_H

#include "throttle_state.h"

/* Return 1 if it is in hand: launch. The hand must be of this process and page. */
static inline int vgpu_throttle_fast(struct vgpu_hand *hand, int ordinal, uint64_t key)
{
    if (hand->ordinal != ordinal) {
        return 0;
    }
    if (hand->unlimited) {
        return 1;
    }
    unsigned at = key >> 40 & (VGPU_HAND_COSTS - 1);
    if (hand->costs[at].tag != key + hand->generation || hand->costs[at].ns > hand->left_ns) {
        return 0;
    }
    hand->left_ns -= hand->costs[at].ns;
    return 1;
}

void vgpu_throttle_begin(struct vgpu_throttle *throttle, struct vgpu_hand *hand, const struct vgpu_launch *launch,
                         struct vgpu_ticket *ticket);
void vgpu_throttle_end(struct vgpu_throttle *throttle, const struct vgpu_launch *launch, struct vgpu_ticket *ticket,
                       CUresult result);

/* After a call that waited for the device: what was charged by a guess is measured before the program can end. */
void vgpu_throttle_waited(struct vgpu_throttle *throttle, const struct vgpu_cuda *cuda);

/* Before the driver ends a context, by destruction, reset or the last release: the events and the stream that were made in
 * it are given back and forgotten. A context that comes back at the same address finds none. */
void vgpu_throttle_end_context(struct vgpu_throttle *throttle, const struct vgpu_cuda *cuda, CUcontext context);

/* To be called when a graph was destroyed or a function was unloaded. */
void vgpu_throttle_forget(struct vgpu_throttle *throttle, uint64_t function);

#endif
