/* bucket.h - the GPU time a container has of a device, in the usage region: one budget for all its processes.
 *
 * The budget is a moment: the time until which everything that was taken is paid for, at the container's share. Taking
 * `ns` of the device moves it on by ns / share; who finds it in the future waits until then. So one word and one
 * compare-and-swap are the whole truth: nothing is refilled, nothing is owed by a process that died, and the moment to
 * wait for is known. A share that changes holds for what is taken from then on.
 *
 * The value of the word is bounded: unused time is kept for a burst, and a debt reaches at most 60 s ahead. A moment beyond that
 * was written by a process in another time namespace, whose clock is ahead, or by no library. It holds launches up until it has stood
 * unchanged for 60 s, and then counts as now; at once would give processes of two time namespaces a share each. A region of any content
 * thus gives at most one burst for nothing at each writing of it, and holds no thread up for longer than 60 s. Who may write the region (every process of the
 * container) can write itself new bursts for ever; docs/limits.md has that.
 *
 * A burst is 200 ms of the share, or 50 ms of the device where that is more: a point of 5 s. A small share between busy
 * neighbours gets the device seldom, and has to use it then. A budget that is new has 10 ms of the device: nothing was saved yet,
 * and what kernels cost is not known yet either (docs/design/compute-limiter.md).
 */
#ifndef VGPU_BUCKET_H
#define VGPU_BUCKET_H

#include "instant.h"
#include "vgpu_abi.h"

#define VGPU_BURST_NS UINT64_C(200000000)
#define VGPU_BURST_GPU_NS UINT64_C(50000000)
#define VGPU_START_GPU_NS UINT64_C(10000000)
#define VGPU_BURST_MOST_NS UINT64_C(1000000000)
#define VGPU_DEBT_NS UINT64_C(60000000000)
/* Estimates are multiplied with a factor in parts of this. */
#define VGPU_FACTOR_ONE UINT64_C(65536)

/* Return for how long a share keeps unused time. */
vgpu_duration vgpu_bucket_burst(uint32_t percent);

/* Take `gpu_ns` of the device at a share of `percent` (1-99). Return never if it was taken, else when to try again. */
struct vgpu_instant vgpu_bucket_take(struct vgpu_region_bucket *bucket, struct vgpu_instant now, uint32_t percent,
                                     uint64_t gpu_ns);

/* A moment to pay until that is beyond any debt of this clock. Restart the budget from now, unless it has changed since. */
int vgpu_bucket_is_ahead(struct vgpu_instant paid_until, struct vgpu_instant now);
void vgpu_bucket_restart(struct vgpu_region_bucket *bucket, struct vgpu_instant seen, struct vgpu_instant now);

/* Return 1 if something was taken in the last second, or is still owed. */
int vgpu_bucket_is_used(const struct vgpu_region_bucket *bucket, struct vgpu_instant now);

/* Correct what was taken by `gpu_ns` more, or less if it is negative. */
void vgpu_bucket_correct(struct vgpu_region_bucket *bucket, struct vgpu_instant now, uint32_t percent, int64_t gpu_ns);

/* Others have been active on the device lately, or that is unknown. Where NVML is read seldom, this may be set ahead of time. */
#define VGPU_OTHERS_AHEAD_NS UINT64_C(30000000000)
int vgpu_bucket_has_company(const struct vgpu_region_bucket *bucket, struct vgpu_instant now);

/* Others have a context on the device: who reads NVML writes it down for all processes of the container. `otherwise`: where
 * nothing was written. */
int vgpu_bucket_is_crowded(const struct vgpu_region_bucket *bucket, int otherwise);
void vgpu_bucket_set_crowded(struct vgpu_region_bucket *bucket, int is_crowded);

/* How long launches wait in queues until they run: the mean of the last 64 that were measured, of all processes of the container,
 * two seconds at most. */
vgpu_duration vgpu_bucket_queued(const struct vgpu_region_bucket *bucket);
void vgpu_bucket_learn_queued(struct vgpu_region_bucket *bucket, vgpu_duration ns);

/* Add a charge to the totals: as estimated, and as multiplied with the factor. */
void vgpu_bucket_count(struct vgpu_region_bucket *bucket, int64_t raw_ns, int64_t charged_ns);

/* Return 1 if charges have been compared with NVML: by any process of the container, ever. */
int vgpu_bucket_is_compared(const struct vgpu_region_bucket *bucket);

/* Return the factor, between a tenth and twenty. */
uint64_t vgpu_bucket_factor(const struct vgpu_region_bucket *bucket);
void vgpu_bucket_set_factor(struct vgpu_region_bucket *bucket, uint64_t factor);

#endif
