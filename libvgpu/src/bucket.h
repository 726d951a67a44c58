/* bucket.h - the GPU time budget of a container on one device. It is kept in the usage region, and all processes share it.
 *
 * The budget is a point in time: everything taken so far is paid for until then. Taking `ns` of the device moves the
 * point forward by ns / share, and a thread that finds it in the future waits for it. One word and one compare-and-swap
 * are therefore enough: there is nothing to refill, a process that dies owes nothing, and a waiting thread knows how
 * long to wait. A new share applies to whatever is taken from then on.
 *
 * The word is bounded. Unused time is kept only for one burst, and a debt is at most 60 s. A point further ahead was
 * written by a process in another time namespace, whose clock is ahead, or by something other than this library. It
 * delays launches until it has not changed for 60 s, and then counts as the present. (Treating it as the present at
 * once was rejected: processes in two time namespaces would each get a full share.) A region with arbitrary contents
 * can therefore give one burst for free each time it is written, and cannot block a thread for longer than 60 s. Every
 * process of the container may write the region, so it can give itself new bursts for ever; docs/limits.md says so.
 *
 * A burst is 200 ms of the share, or 50 ms of the device if that is more, which is one point of a window of 5 s. A
 * small share between busy neighbours gets the device rarely and must be able to use it then. A new budget has only 10
 * ms of the device, because nothing has been saved yet and the cost of the kernels is not known yet
 * (docs/design/compute-limiter.md).
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
/* The unit of the factor by which estimates are multiplied. */
#define VGPU_FACTOR_ONE UINT64_C(65536)

/* Return how long unused time is kept at this share. */
vgpu_duration vgpu_bucket_burst(uint32_t percent);

/* Take `gpu_ns` of the device at a share of `percent` (1-99). Return zero if it was taken, else the time at which to
 * try again. */
struct vgpu_instant vgpu_bucket_take(struct vgpu_region_bucket *bucket, struct vgpu_instant now, uint32_t percent,
                                     uint64_t gpu_ns);

/* Return 1 if a budget is further ahead of this clock than any debt can be. The second function sets such a budget to
 * the present, unless it has changed since it was read. */
int vgpu_bucket_is_ahead(struct vgpu_instant paid_until, struct vgpu_instant now);
void vgpu_bucket_restart(struct vgpu_region_bucket *bucket, struct vgpu_instant seen, struct vgpu_instant now);

/* Return 1 if something was taken within the last second, or is still owed. */
int vgpu_bucket_is_used(const struct vgpu_region_bucket *bucket, struct vgpu_instant now);

/* Add `gpu_ns` to what was taken, or subtract it if it is negative. */
void vgpu_bucket_correct(struct vgpu_region_bucket *bucket, struct vgpu_instant now, uint32_t percent, int64_t gpu_ns);

/* Return 1 if others used the device recently, or if that is not known. If NVML is read rarely, this may be set for a time
 * in the future. */
#define VGPU_OTHERS_AHEAD_NS UINT64_C(30000000000)
int vgpu_bucket_has_company(const struct vgpu_region_bucket *bucket, struct vgpu_instant now);

/* Get or set whether others have a context on the device. The process that reads NVML sets it for all processes of the
 * container. `otherwise` is returned if it was never set. */
int vgpu_bucket_is_crowded(const struct vgpu_region_bucket *bucket, int otherwise);
void vgpu_bucket_set_crowded(struct vgpu_region_bucket *bucket, int is_crowded);

/* Return how long launches wait in queues before they run: the mean of the last 64 that any process of the container
 * measured, at most two seconds. */
vgpu_duration vgpu_bucket_queued(const struct vgpu_region_bucket *bucket);
void vgpu_bucket_learn_queued(struct vgpu_region_bucket *bucket, vgpu_duration ns);

/* Add a charge to the totals: the estimate, and the estimate multiplied by the factor. */
void vgpu_bucket_count(struct vgpu_region_bucket *bucket, int64_t raw_ns, int64_t charged_ns);

/* Return 1 if any process of the container has ever compared charges with NVML. */
int vgpu_bucket_is_compared(const struct vgpu_region_bucket *bucket);

/* Return the factor, which lies between 0.1 and 20. */
uint64_t vgpu_bucket_factor(const struct vgpu_region_bucket *bucket);
void vgpu_bucket_set_factor(struct vgpu_region_bucket *bucket, uint64_t factor);

#endif
