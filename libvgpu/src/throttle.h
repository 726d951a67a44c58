/* throttle.h - delays launches until the container's share of the device has paid for them.
 *
 *     struct vgpu_ticket ticket = {0};
 *     vgpu_throttle_begin(throttle, &mine, &launch, &ticket);     // waits here
 *     CUresult result = cuda->cuLaunchKernel(...);
 *     vgpu_throttle_end(throttle, &launch, &ticket, result);
 *
 * A thread takes at least 200 us of the budget (bucket.h) at a time, so most launches only subtract the cost of their
 * kernel (cost.h) from the thread's prepaid time. vgpu_throttle_fast is that subtraction. Costs are measured by event
 * pairs around about one launch a millisecond, without waiting for the events. A kernel longer than 200 us is charged
 * by itself before its launch, and corrected when its events are there. Twenty times a second, one process of the
 * container compares the charges with what NVML measured for the same time (calibrate.h).
 *
 * This module only uses vgpu_world and the driver's event functions, so a simulator can run many processes of many
 * containers in one program: a struct vgpu_throttle is a process, and a struct vgpu_hand is one of its threads.
 */
#ifndef VGPU_THROTTLE_H
#define VGPU_THROTTLE_H

#include "throttle_state.h"

/* Return 1 if prepaid time covers the launch. The hand must belong to this process and page. */
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

/* Measure what was charged by a guess, before the program can end. Call this after a driver call that waited for the device. */
void vgpu_throttle_waited(struct vgpu_throttle *throttle, const struct vgpu_cuda *cuda);

/* Give back the events that were created in a context. Call this before the driver ends the context by destruction,
 * reset or the last release. A context that later appears at the same address has none. */
void vgpu_throttle_end_context(struct vgpu_throttle *throttle, const struct vgpu_cuda *cuda, CUcontext context);

/* Call this when a graph was destroyed or a function was unloaded. */
void vgpu_throttle_forget(struct vgpu_throttle *throttle, uint64_t function);

#endif
