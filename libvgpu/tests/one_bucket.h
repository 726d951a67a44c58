/* one_bucket.h - surroundings for a throttle under test: one bucket, 100 multiprocessors, and an NVML that shows nothing. */
#ifndef VGPU_ONE_BUCKET_H
#define VGPU_ONE_BUCKET_H

#include "throttle.h"

static struct vgpu_region_bucket bucket;

static inline struct vgpu_region_bucket *bucket_of(void *owner, int ordinal)
{
    (void)owner, (void)ordinal;
    return &bucket;
}

static inline uint32_t sms_of(void *owner, int ordinal)
{
    (void)owner, (void)ordinal;
    return 100;
}

static inline int nothing_measured(void *owner, int ordinal, uint64_t since_us, struct vgpu_measurement *out)
{
    (void)owner, (void)ordinal, (void)since_us;
    *out = (struct vgpu_measurement){.others_known = 1};
    return 0;
}

#endif
