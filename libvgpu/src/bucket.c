#include "bucket.h"

#include <stdatomic.h>

#define LATELY_NS UINT64_C(1000000000)
#define OTHERS_NS UINT64_C(2000000000) /* others seen so lately are still active */

typedef _Atomic uint64_t word;

/* For how long a share pays for so much of the device. */
static uint64_t worth(uint64_t gpu_ns, uint32_t percent)
{
    uint64_t ns = gpu_ns * 100 / (percent ? percent : 1);
    return ns > VGPU_BURST_MOST_NS ? VGPU_BURST_MOST_NS : ns;
}

uint64_t vgpu_bucket_burst_ns(uint32_t percent)
{
    uint64_t ns = worth(VGPU_BURST_GPU_NS, percent);
    return ns < VGPU_BURST_NS ? VGPU_BURST_NS : ns;
}

static uint64_t bounded(uint64_t paid_until, uint64_t now, uint32_t percent)
{
    if (paid_until > now + VGPU_DEBT_NS) {
        return now;
    }
    uint64_t burst = paid_until ? vgpu_bucket_burst_ns(percent) : worth(VGPU_START_GPU_NS, percent);
    uint64_t least = now > burst ? now - burst : 0;
    return paid_until < least ? least : paid_until;
}

/* Wall time that `gpu_ns` of the device cost at this share; never more than a whole debt. */
static uint64_t price(uint64_t gpu_ns, uint32_t percent)
{
    percent = percent ? percent : 1;
    return gpu_ns > VGPU_DEBT_NS / 100 * percent ? VGPU_DEBT_NS : gpu_ns * 100 / percent;
}

static uint64_t later(uint64_t at, uint64_t by, uint64_t now)
{
    return at + by > now + VGPU_DEBT_NS ? now + VGPU_DEBT_NS : at + by;
}

uint64_t vgpu_bucket_take(struct vgpu_region_bucket *bucket, uint64_t now_ns, uint32_t percent, uint64_t gpu_ns)
{
    word *at = (word *)&bucket->paid_until_ns;
    uint64_t seen = atomic_load_explicit(at, memory_order_relaxed);
    for (;;) {
        uint64_t paid = bounded(seen, now_ns, percent);
        if (paid > now_ns) {
            return paid;
        }
        if (atomic_compare_exchange_weak(at, &seen, later(paid, price(gpu_ns, percent), now_ns))) {
            return 0;
        }
    }
}

int vgpu_bucket_is_used(const struct vgpu_region_bucket *bucket, uint64_t now_ns)
{
    uint64_t seen = atomic_load_explicit((const word *)&bucket->paid_until_ns, memory_order_relaxed);
    return seen && seen + LATELY_NS > now_ns && seen <= now_ns + VGPU_DEBT_NS;
}

void vgpu_bucket_correct(struct vgpu_region_bucket *bucket, uint64_t now_ns, uint32_t percent, int64_t gpu_ns)
{
    word *at = (word *)&bucket->paid_until_ns;
    uint64_t by = price(gpu_ns < 0 ? -(uint64_t)gpu_ns : (uint64_t)gpu_ns, percent);
    uint64_t seen = atomic_load_explicit(at, memory_order_relaxed), paid, next;
    do {
        paid = bounded(seen, now_ns, percent);
        next = gpu_ns > 0 ? later(paid, by, now_ns) : bounded(paid > by ? paid - by : 0, now_ns, percent);
    } while (!atomic_compare_exchange_weak(at, &seen, next));
}

int vgpu_bucket_has_company(const struct vgpu_region_bucket *bucket, uint64_t now_ns)
{
    uint64_t seen = atomic_load_explicit((const word *)&bucket->others_ns, memory_order_relaxed);
    return seen == UINT64_MAX || (seen && seen <= now_ns && now_ns - seen < OTHERS_NS) ||
           (seen > now_ns && seen - now_ns <= VGPU_OTHERS_AHEAD_NS);
}

void vgpu_bucket_count(struct vgpu_region_bucket *bucket, int64_t raw_ns, int64_t charged_ns)
{
    atomic_fetch_add_explicit((word *)&bucket->raw_ns, (uint64_t)raw_ns, memory_order_relaxed);
    atomic_fetch_add_explicit((word *)&bucket->charged_ns, (uint64_t)charged_ns, memory_order_relaxed);
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
