#include "step.h"

#define LEAST_NS UINT64_C(50000)           /* of a wait that is worth it */
#define FOR_NOW_NS UINT64_C(60000000000)   /* what was seen to wait will do so again */

/* Is another card of the container limited and in use? */
static int has_limited_peer(const struct vgpu_pace *pace, int ordinal, uint64_t now_ns)
{
    const struct vgpu_region_bucket *peer;
    for (unsigned n = 0; pace->peer && (peer = pace->peer(pace->who, ordinal, n)) != NULL; n++) {
        if (vgpu_bucket_is_used(peer, now_ns)) {
            return 1;
        }
    }
    return 0;
}

int vgpu_step_ran(struct vgpu_pace *pace, const struct vgpu_probe *probe, uint64_t ns, uint64_t now_ns)
{
    uint64_t least = atomic_load_explicit(&probe->cost->least_ns, memory_order_relaxed);
    atomic_store_explicit(&probe->cost->least_ns, !least || ns < least ? ns : least + least / 64, memory_order_relaxed);
    if (least && ns > 2 * least + LEAST_NS && has_limited_peer(pace, probe->ordinal, now_ns)) {
        atomic_store_explicit(&pace->waited_ns, now_ns, memory_order_relaxed);
    }
    return vgpu_step_waits(pace, now_ns);
}

int vgpu_step_waits(const struct vgpu_pace *pace, uint64_t now_ns)
{
    uint64_t waited = atomic_load_explicit(&pace->waited_ns, memory_order_relaxed);
    return waited && now_ns - waited < FOR_NOW_NS;
}

void vgpu_step_unsettle(struct vgpu_settle *settle, struct vgpu_region_bucket *bucket, uint64_t now_ns)
{
    vgpu_settle_miss(bucket);
    settle->held_count = settle->studied = 0;
    vgpu_settle_pay(settle, bucket, now_ns, 0, 0);
    vgpu_bucket_set_factor(bucket, VGPU_FACTOR_ONE);
}

void vgpu_step_return(struct vgpu_pace *pace, struct vgpu_hand *hand, uint64_t now_ns)
{
    struct vgpu_region_bucket *bucket = pace->cards[hand->ordinal].bucket;
    if (hand->left_ns <= 0 || !bucket) {
        return;
    }
    struct vgpu_share share = pace->share(pace->who, hand->ordinal);
    if (vgpu_share_is_limited(&share) && (share.always || vgpu_bucket_has_company(bucket, now_ns))) {
        vgpu_bucket_correct(bucket, now_ns, share.percent, -hand->left_ns);
    }
    double factor = (double)vgpu_bucket_factor(bucket) / (double)VGPU_FACTOR_ONE;
    vgpu_bucket_count(bucket, -(int64_t)((double)hand->left_ns / factor), -hand->left_ns);
    hand->left_ns = 0;
}
