#include "bucket.h"

#include <stdatomic.h>

#define LATELY_NS UINT64_C(1000000000)
#define OTHERS_NS UINT64_C(2000000000) /* others seen within this time are still active */

#define QUEUED_UNIT_NS UINT64_C(32768)
#define OF_THE_LAST 64 /* launches */

/* `neighbours` of a bucket. */
enum { SOME = 1, NONE = 2 };

typedef _Atomic uint64_t word;
typedef _Atomic uint16_t small_word;

/* Return how long a share takes to pay for this much device time. */
static vgpu_duration worth(uint64_t gpu_ns, uint32_t percent)
{
    uint64_t ns = gpu_ns * 100 / (percent ? percent : 1);
    return ns > VGPU_BURST_MOST_NS ? VGPU_BURST_MOST_NS : ns;
}

vgpu_duration vgpu_bucket_burst(uint32_t percent)
{
    vgpu_duration ns = worth(VGPU_BURST_GPU_NS, percent);
    return ns < VGPU_BURST_NS ? VGPU_BURST_NS : ns;
}

int vgpu_bucket_is_ahead(struct vgpu_instant paid_until, struct vgpu_instant now)
{
    return vgpu_is_before(now, paid_until) && vgpu_between(now, paid_until) > VGPU_DEBT_NS;
}

static struct vgpu_instant bounded(struct vgpu_instant paid_until, struct vgpu_instant now, uint32_t percent)
{
    vgpu_duration burst = paid_until.ns ? vgpu_bucket_burst(percent) : worth(VGPU_START_GPU_NS, percent);
    struct vgpu_instant least = vgpu_earlier(now, burst);
    return vgpu_is_before(paid_until, least) ? least : paid_until;
}

/* Return the wall time that `gpu_ns` of the device cost at this share, at most that of a whole debt. */
static vgpu_duration price(uint64_t gpu_ns, uint32_t percent)
{
    percent = percent ? percent : 1;
    return gpu_ns > VGPU_DEBT_NS / 100 * percent ? VGPU_DEBT_NS : gpu_ns * 100 / percent;
}

static struct vgpu_instant moved(struct vgpu_instant at, vgpu_duration by, struct vgpu_instant now)
{
    return vgpu_first_of(vgpu_later(at, by), vgpu_later(now, VGPU_DEBT_NS));
}

struct vgpu_instant vgpu_bucket_take(struct vgpu_region_bucket *bucket, struct vgpu_instant now, uint32_t percent,
                                     uint64_t gpu_ns)
{
    word *at = (word *)&bucket->paid_until_ns;
    uint64_t seen = atomic_load_explicit(at, memory_order_relaxed);
    for (;;) {
        struct vgpu_instant paid = bounded(vgpu_at(seen), now, percent);
        if (vgpu_is_before(now, paid)) {
            return paid; /* also if it is too far ahead */
        }
        if (atomic_compare_exchange_weak(at, &seen, moved(paid, price(gpu_ns, percent), now).ns)) {
            return vgpu_at(0);
        }
    }
}

void vgpu_bucket_restart(struct vgpu_region_bucket *bucket, struct vgpu_instant seen, struct vgpu_instant now)
{
    atomic_compare_exchange_strong((word *)&bucket->paid_until_ns, &seen.ns, now.ns);
}

int vgpu_bucket_is_used(const struct vgpu_region_bucket *bucket, struct vgpu_instant now)
{
    struct vgpu_instant seen = vgpu_at(atomic_load_explicit((const word *)&bucket->paid_until_ns, memory_order_relaxed));
    return seen.ns && vgpu_is_before(now, vgpu_later(seen, LATELY_NS)) && !vgpu_bucket_is_ahead(seen, now);
}

void vgpu_bucket_correct(struct vgpu_region_bucket *bucket, struct vgpu_instant now, uint32_t percent, int64_t gpu_ns)
{
    word *at = (word *)&bucket->paid_until_ns;
    vgpu_duration by = price(gpu_ns < 0 ? -(uint64_t)gpu_ns : (uint64_t)gpu_ns, percent);
    uint64_t seen = atomic_load_explicit(at, memory_order_relaxed);
    struct vgpu_instant paid, next;
    do {
        if (vgpu_bucket_is_ahead(vgpu_at(seen), now)) {
            return;
        }
        paid = bounded(vgpu_at(seen), now, percent);
        next = gpu_ns > 0 ? moved(paid, by, now) : bounded(vgpu_earlier(paid, by), now, percent);
    } while (!atomic_compare_exchange_weak(at, &seen, next.ns));
}

int vgpu_bucket_has_company(const struct vgpu_region_bucket *bucket, struct vgpu_instant now)
{
    struct vgpu_instant seen = vgpu_at(atomic_load_explicit((const word *)&bucket->others_ns, memory_order_relaxed));
    if (vgpu_is_before(now, seen)) {
        return seen.ns == UINT64_MAX || vgpu_between(now, seen) <= VGPU_OTHERS_AHEAD_NS;
    }
    return seen.ns && vgpu_between(seen, now) < OTHERS_NS;
}

int vgpu_bucket_is_crowded(const struct vgpu_region_bucket *bucket, int otherwise)
{
    uint16_t seen = atomic_load_explicit((const small_word *)&bucket->neighbours, memory_order_relaxed);
    return seen == SOME ? 1 : seen == NONE ? 0 : otherwise;
}

void vgpu_bucket_set_crowded(struct vgpu_region_bucket *bucket, int is_crowded)
{
    atomic_store_explicit((small_word *)&bucket->neighbours, is_crowded ? SOME : NONE, memory_order_relaxed);
}

vgpu_duration vgpu_bucket_queued(const struct vgpu_region_bucket *bucket)
{
    return atomic_load_explicit((const small_word *)&bucket->queued, memory_order_relaxed) * QUEUED_UNIT_NS;
}

void vgpu_bucket_learn_queued(struct vgpu_region_bucket *bucket, vgpu_duration ns)
{
    uint64_t most = UINT16_MAX * QUEUED_UNIT_NS;
    int64_t before = (int64_t)vgpu_bucket_queued(bucket),
            after = before + ((int64_t)(ns < most ? ns : most) - before) / OF_THE_LAST;
    atomic_store_explicit((small_word *)&bucket->queued, (uint16_t)((uint64_t)after / QUEUED_UNIT_NS), memory_order_relaxed);
}

void vgpu_bucket_count(struct vgpu_region_bucket *bucket, int64_t raw_ns, int64_t charged_ns)
{
    atomic_fetch_add_explicit((word *)&bucket->raw_ns, (uint64_t)raw_ns, memory_order_relaxed);
    atomic_fetch_add_explicit((word *)&bucket->charged_ns, (uint64_t)charged_ns, memory_order_relaxed);
}

int vgpu_bucket_is_compared(const struct vgpu_region_bucket *bucket)
{
    return atomic_load_explicit((const word *)&bucket->factor, memory_order_relaxed) != 0;
}

uint64_t vgpu_bucket_factor(const struct vgpu_region_bucket *bucket)
{
    uint64_t factor = atomic_load_explicit((const word *)&bucket->factor, memory_order_relaxed);
    if (!factor) {
        return VGPU_FACTOR_ONE;
    }
    return factor < VGPU_FACTOR_ONE / 10 ? VGPU_FACTOR_ONE / 10 : factor > VGPU_FACTOR_ONE * 20 ? VGPU_FACTOR_ONE * 20 : factor;
}

void vgpu_bucket_set_factor(struct vgpu_region_bucket *bucket, uint64_t factor)
{
    atomic_store_explicit((word *)&bucket->factor, factor ? factor : 1, memory_order_relaxed);
}
