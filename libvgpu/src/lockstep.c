#include "lockstep.h"

#define LEAST_NS UINT64_C(50000)           /* shortest wait that is worth it */
#define FOR_NOW_NS UINT64_C(60000000000)   /* a program that was seen to wait is expected to do so again for this long */

/* Return 1 if another device of the container is limited and in use. */
static int has_limited_peer(const struct vgpu_throttle *throttle, int ordinal, struct vgpu_instant now)
{
    const struct vgpu_region_bucket *peer;
    for (unsigned n = 0; throttle->peer && (peer = throttle->peer(throttle->owner, ordinal, n)) != NULL; n++) {
        if (vgpu_bucket_is_used(peer, now)) {
            return 1;
        }
    }
    return 0;
}

enum vgpu_lockstep vgpu_lockstep_ran(struct vgpu_throttle *throttle, const struct vgpu_probe *probe, uint64_t ns,
                                     struct vgpu_instant now)
{
    uint64_t least = atomic_load_explicit(&probe->cost->least_ns, memory_order_relaxed);
    atomic_store_explicit(&probe->cost->least_ns, !least || ns < least ? ns : least + least / 64, memory_order_relaxed);
    int is_longer = least && ns > 2 * least + LEAST_NS;
    if (is_longer && has_limited_peer(throttle, probe->ordinal, now)) {
        atomic_store_explicit(&throttle->waited, now, memory_order_relaxed);
    }
    return !vgpu_lockstep_waits(throttle, now) ? VGPU_NO_LOCKSTEP : is_longer ? VGPU_WAITED : VGPU_PERHAPS_WAITED;
}

int vgpu_lockstep_waits(const struct vgpu_throttle *throttle, struct vgpu_instant now)
{
    struct vgpu_instant waited = atomic_load_explicit(&throttle->waited, memory_order_relaxed);
    return waited.ns && vgpu_between(waited, now) < FOR_NOW_NS;
}

void vgpu_lockstep_discard(struct vgpu_calibration *calibration, struct vgpu_region_bucket *bucket, struct vgpu_instant now)
{
    vgpu_calibrate_miss(bucket);
    calibration->held_count = calibration->studied = 0;
    vgpu_calibrate_pay(calibration, bucket, now, 0, 0);
    vgpu_bucket_set_factor(bucket, VGPU_FACTOR_ONE);
}

void vgpu_lockstep_return(struct vgpu_throttle *throttle, struct vgpu_hand *hand, struct vgpu_instant now)
{
    struct vgpu_region_bucket *bucket = throttle->devices[hand->ordinal].bucket;
    if (hand->left_ns <= 0 || !bucket) {
        return;
    }
    struct vgpu_share share = throttle->share(throttle->owner, hand->ordinal);
    if (vgpu_share_is_limited(&share) && (share.always || vgpu_bucket_has_company(bucket, now))) {
        vgpu_bucket_correct(bucket, now, share.percent, -hand->left_ns);
    }
    double factor = (double)vgpu_bucket_factor(bucket) / (double)VGPU_FACTOR_ONE;
    vgpu_bucket_count(bucket, -(int64_t)((double)hand->left_ns / factor), -hand->left_ns);
    hand->left_ns = 0;
}
