#include "throttle.h"

#include "capture.h"
#include "probe.h"
#include "lockstep.h"

#define SLICE_NS VGPU_TICK_NS             /* slice of a wait; the page is read again after each */
#define NAP_NS UINT64_C(50000)            /* shortest useful sleep */
#define HARVEST_EVERY_NS UINT64_C(500000)
#define FIRST_NS UINT64_C(250000000)      /* how long a second launch waits for the first measurement of its kind */
#define SLOW_NS UINT64_C(2000000)         /* a slower NVML is called less often: */
#define SLOW_TIMES 20                     /* not again before this many times its answering time has passed */
#define BACKLOG_NS UINT64_C(10000000000)  /* longer than the launches that a program has queued take */
#define PATIENCE_NS (2 * VGPU_DEBT_NS)

static struct vgpu_throttle_device *device_of(struct vgpu_throttle *throttle, int ordinal)
{
    if (ordinal < 0 || ordinal >= (int)VGPU_MAX_DEVICES) {
        return NULL;
    }
    struct vgpu_throttle_device *device = &throttle->devices[ordinal];
    if (!atomic_load_explicit(&device->known, memory_order_acquire)) {
        vgpu_calm_take(&throttle->lock);
        if (!atomic_load_explicit(&device->known, memory_order_relaxed)) {
            device->bucket = throttle->bucket(throttle->owner, ordinal);
            device->sms = throttle->sms(throttle->owner, ordinal);
            atomic_store_explicit(&device->known, device->bucket ? 1 : 0, memory_order_release);
        }
        vgpu_calm_drop(&throttle->lock);
    }
    return device->bucket ? device : NULL;
}

/* Launches without a limit leave no debt. Until the first launch after them has run, NVML's figures say nothing about what
 * was charged. */
static int is_catching_up(struct vgpu_throttle_device *device, struct vgpu_instant now)
{
    struct vgpu_instant freed = atomic_load_explicit(&device->freed, memory_order_relaxed);
    return freed.ns && vgpu_between(freed, now) < BACKLOG_NS;
}

/* Compare with NVML. Called without the lock, because NVML may take seconds to answer; a slow NVML is queried less often. */
static void compare(struct vgpu_throttle *throttle, struct vgpu_throttle_device *device, int ordinal, uint32_t percent,
                    struct vgpu_instant now, vgpu_duration since_ns)
{
    struct vgpu_measurement seen = {0};
    uint64_t since = atomic_load_explicit((_Atomic uint64_t *)&device->bucket->calibrated_us, memory_order_relaxed);
    int known = throttle->measure && throttle->measure(throttle->owner, ordinal, since, &seen);
    if (known && seen.stamp_us < since) { /* NVML's clock was set back: start again */
        atomic_store_explicit((_Atomic uint64_t *)&device->bucket->calibrated_us, seen.stamp_us, memory_order_relaxed);
        vgpu_calibrate_miss(device->bucket);
        known = 0;
    }
    struct vgpu_instant end = vgpu_world->now();
    vgpu_duration took = vgpu_between(now, end), pause = took > SLOW_NS ? took * SLOW_TIMES : 0;
    pause = pause > VGPU_OTHERS_AHEAD_NS ? VGPU_OTHERS_AHEAD_NS : pause;
    if (pause) {
        vgpu_calibrate_pause(&device->calibration, device->bucket, vgpu_later(end, pause));
    }
    if (!throttle->measure) {
        seen.others = seen.neighbours = seen.others_known = 1; /* assume neighbours where they cannot be observed */
    }
    if (seen.others_known) {
        device->crowded = seen.neighbours;
        vgpu_bucket_set_crowded(device->bucket, seen.neighbours);
        if (seen.others) {
            uint64_t until_ns = vgpu_later(end, pause).ns;
            atomic_store_explicit((_Atomic uint64_t *)&device->bucket->others_ns, until_ns, memory_order_relaxed);
        }
    }
    vgpu_calm_take(&throttle->lock);
    vgpu_calibrate_read(&device->calibration, device->bucket, since_ns);
    if (vgpu_lockstep_waits(throttle, end)) {
        vgpu_lockstep_discard(&device->calibration, device->bucket, end);
        vgpu_calm_drop(&throttle->lock);
        return;
    }
    if (is_catching_up(device, end)) {
        vgpu_calibrate_miss(device->bucket);
    }
    vgpu_calibrate_pay(&device->calibration, device->bucket, end, percent, since_ns > 1000000000 ? VGPU_TICK_NS : since_ns);
    vgpu_calibrate(&device->calibration, device->bucket, end, percent, vgpu_probe_known(throttle, ordinal, end),
                   known ? &seen : NULL);
    vgpu_calm_drop(&throttle->lock);
}

/* Book-keeping between two looks at the budget; if the lock is held, its holder does this. */
static void maintain(struct vgpu_throttle *throttle, struct vgpu_throttle_device *device, const struct vgpu_launch *l,
                     uint32_t percent, struct vgpu_instant now, int eager)
{
    vgpu_duration since_ns;
    device->crowded = vgpu_bucket_is_crowded(device->bucket, device->crowded);
    if (!vgpu_calm_try(&throttle->lock)) {
        return;
    }
    vgpu_calibrate_note(&device->calibration, device->bucket, now);
    struct vgpu_instant last = atomic_load_explicit(&throttle->harvested, memory_order_relaxed);
    if ((eager || vgpu_between(last, now) >= HARVEST_EVERY_NS) && vgpu_probe_can(l->cuda)) {
        atomic_store_explicit(&throttle->harvested, now, memory_order_relaxed);
        vgpu_probe_harvest(throttle, l->cuda, now);
    }
    vgpu_calm_drop(&throttle->lock);
    if (!atomic_exchange(&throttle->comparing, 1)) {
        if (vgpu_calibrate_due(&device->calibration, device->bucket, now, &since_ns)) {
            compare(throttle, device, l->ordinal, percent, now, since_ns);
        }
        atomic_store(&throttle->comparing, 0);
    }
}

static void wait_until(struct vgpu_throttle_device *device, struct vgpu_instant now, struct vgpu_instant until)
{
    vgpu_duration ns = vgpu_is_before(now, until) ? vgpu_between(now, until) : 0;
    ns = ns < NAP_NS ? NAP_NS : ns > SLICE_NS ? SLICE_NS : ns;
    vgpu_world->sleep_for(ns);
    atomic_fetch_add_explicit((_Atomic uint64_t *)&device->bucket->waited_ns, ns, memory_order_relaxed);
}

/* Put the cost of the launch into the hand, with the rest of a chunk. */
static void fill(struct vgpu_hand *hand, const struct vgpu_launch *l, int64_t chunk, int64_t cost)
{
    uint64_t key = vgpu_cost_key(l->function, l->blocks, l->threads);
    unsigned at = key >> 40 & (VGPU_HAND_COSTS - 1);
    if (chunk) {
        hand->generation++; /* costs may have changed: look each up again */
        hand->left_ns = (hand->left_ns > 0 ? hand->left_ns : 0) + chunk;
    }
    hand->process = l->process;
    hand->page = l->page;
    hand->ordinal = l->ordinal;
    hand->unlimited = hand->all_unlimited = 0;
    hand->left_ns -= cost;
    hand->costs[at].tag = key + hand->generation;
    hand->costs[at].ns = cost;
}

static void empty(struct vgpu_hand *hand, const struct vgpu_launch *l, int unlimited)
{
    hand->process = l->process;
    hand->page = l->page;
    hand->ordinal = l->ordinal;
    hand->left_ns = 0;
    hand->generation++;
    hand->unlimited = unlimited;
    hand->all_unlimited = 0;
}

/* Pay from prepaid time for a kernel whose cost the process knows, but which this hand has not seen since its last chunk. */
static int renew(struct vgpu_throttle *throttle, const struct vgpu_throttle_device *device, struct vgpu_hand *hand,
                 const struct vgpu_launch *l, const struct vgpu_geometry *what, struct vgpu_instant now)
{
    int learned;
    struct vgpu_cost *cost = hand->left_ns > 0 ? vgpu_cost_of(&throttle->costs, what) : NULL;
    if (!cost) {
        return 0;
    }
    uint64_t raw = vgpu_cost_ns(&throttle->costs, cost, what, now, &learned);
    int64_t price = (int64_t)((double)raw * vgpu_probe_factor(device, raw)) + 1;
    if (!learned || price > hand->left_ns) {
        return 0;
    }
    fill(hand, l, 0, price);
    return 1;
}

/* A launch that has not been paid for yet. */
struct attempt {
    struct vgpu_throttle *throttle;
    struct vgpu_throttle_device *device;
    struct vgpu_hand *hand;
    const struct vgpu_launch *launch;
    struct vgpu_ticket *ticket;
    struct vgpu_geometry what;
    struct vgpu_cost *cost;
    struct vgpu_share share;
    struct vgpu_instant began;
    struct vgpu_instant ahead, ahead_since; /* a moment ahead of this clock (bucket.h), and when it was first seen */
    vgpu_duration nap; /* time until it is checked again if the first launch of its kind has ended */
    int probing;       /* 1 if it may be measured */
};

/* Drop what the hand holds for another device, share or life of the process. */
static void take_up(struct vgpu_throttle *throttle, struct vgpu_throttle_device *device, struct vgpu_hand *hand,
                    const struct vgpu_launch *l, struct vgpu_instant now)
{
    int ours = hand->process == l->process;
    if (ours && (hand->all_unlimited || (hand->unlimited && hand->ordinal == l->ordinal))) {
        atomic_store_explicit(&device->ran_free, 1, memory_order_relaxed);
    }
    if (ours && hand->page == l->page && hand->ordinal != l->ordinal) {
        vgpu_lockstep_return(throttle, hand, now);
    }
    if (!ours || hand->page != l->page || hand->ordinal != l->ordinal) {
        empty(hand, l, 0);
    }
}

/* Return 1 if the share is enforced now: always, or while others use the device. Record launches that ran freely before. */
static int is_held(const struct attempt *a, struct vgpu_instant now)
{
    struct vgpu_throttle_device *device = a->device;
    int held = a->share.always || vgpu_bucket_has_company(device->bucket, now);
    maintain(a->throttle, device, a->launch, held ? a->share.percent : 0, now, a->nap > NAP_NS);
    held = a->share.always || vgpu_bucket_has_company(device->bucket, now);
    if (held && atomic_exchange_explicit(&device->ran_free, 0, memory_order_relaxed)) {
        atomic_store_explicit(&device->freed, now, memory_order_relaxed);
    } else if (!held) {
        atomic_store_explicit(&device->ran_free, 1, memory_order_relaxed);
    }
    return held;
}

/* Restart a budget that has stood ahead of this clock for as long as a debt can last. */
static void outlast(struct attempt *a, struct vgpu_instant until, struct vgpu_instant now)
{
    if (until.ns != a->ahead.ns) {
        a->ahead = until;
        a->ahead_since = now;
    } else if (vgpu_bucket_is_ahead(until, now) && vgpu_between(a->ahead_since, now) >= VGPU_DEBT_NS) {
        vgpu_bucket_restart(a->device->bucket, until, now);
    }
}

/* Return 1 once the launch is paid for, alone or with a chunk for later ones; return 0 after a wait. */
static int pay(struct attempt *a, struct vgpu_instant now)
{
    struct vgpu_throttle_device *device = a->device;
    atomic_store_explicit(&device->percent, a->share.percent, memory_order_relaxed);
    int learned, held = is_held(a, now);
    uint64_t raw = vgpu_cost_ns(&a->throttle->costs, a->cost, &a->what, now, &learned);
    if (held && !learned && a->cost && atomic_load(&a->cost->pending) && vgpu_between(a->began, now) < FIRST_NS) {
        wait_until(device, now, vgpu_later(now, a->nap)); /* the first launch of its kind has not ended */
        a->nap = a->nap < 8 * NAP_NS ? a->nap * 2 : a->nap;
        return 0;
    }
    double factor = vgpu_probe_factor(device, raw);
    int64_t price = (int64_t)((double)raw * factor) + 1;
    if (learned && price <= a->hand->left_ns) {
        fill(a->hand, a->launch, 0, price); /* known to the process, but new to this hand */
        return 1;
    }
    int alone = !learned || price > VGPU_CHUNK_NS; /* the rest of a chunk is for kernels with a known cost */
    int64_t chunk = price * VGPU_CHUNK_LAUNCHES;
    chunk = chunk < VGPU_CHUNK_NS ? VGPU_CHUNK_NS : chunk > VGPU_CHUNK_MOST_NS ? VGPU_CHUNK_MOST_NS : chunk;
    uint64_t want = (uint64_t)(alone ? price : chunk);
    struct vgpu_instant until = held ? vgpu_bucket_take(device->bucket, now, a->share.percent, want) : vgpu_at(0);
    if (until.ns) {
        outlast(a, until, now);
        wait_until(device, now, until);
        return 0;
    }
    if (!alone) {
        fill(a->hand, a->launch, chunk, price);
    }
    struct vgpu_charge charge = {.raw_ns = alone ? (int64_t)raw : (int64_t)((double)want / factor),
                                 .charged_ns = (int64_t)want,
                                 .alone = alone,
                                 .learned = learned};
    vgpu_probe_start(a->throttle, a->launch, &a->what, a->probing ? a->cost : NULL, now, &charge, a->ticket);
    return 1;
}

void vgpu_throttle_begin(struct vgpu_throttle *throttle, struct vgpu_hand *hand, const struct vgpu_launch *l,
                         struct vgpu_ticket *ticket)
{
    struct vgpu_instant began = vgpu_world->now(), now = began;
    struct attempt a = {
        .throttle = throttle,
        .device = device_of(throttle, l->ordinal),
        .hand = hand,
        .launch = l,
        .ticket = ticket,
        .what = {.function = l->function, .blocks = l->blocks, .threads = l->threads},
        .share = throttle->share(throttle->owner, l->ordinal),
        .began = began,
        .nap = NAP_NS,
    };
    if (!a.device || !vgpu_share_is_limited(&a.share)) {
        empty(hand, l, 1);
        return;
    }
    take_up(throttle, a.device, hand, l, now);
    a.what.sms = a.device->sms;
    if (renew(throttle, a.device, hand, l, &a.what, began)) {
        return;
    }
    switch (vgpu_capture_of(l)) {
    case VGPU_RECORDED:
        return;
    case VGPU_PERHAPS_RECORDED:
        break;
    case VGPU_NOT_RECORDED:
        a.probing = 1;
        break;
    }
    a.cost = vgpu_cost_of(&throttle->costs, &a.what);
    while (vgpu_share_is_limited(&a.share) && vgpu_between(began, now) < PATIENCE_NS) {
        if (pay(&a, now)) {
            return;
        }
        now = vgpu_world->now();
        a.share = throttle->share(throttle->owner, l->ordinal);
    }
    if (!vgpu_share_is_limited(&a.share)) {
        empty(hand, l, 0); /* no longer limited: the next launch marks the device as unlimited */
    }
}

void vgpu_throttle_end(struct vgpu_throttle *throttle, const struct vgpu_launch *l, struct vgpu_ticket *ticket, CUresult result)
{
    if (ticket->probe) {
        vgpu_probe_end(throttle, l, ticket->probe, result);
    }
}

void vgpu_throttle_waited(struct vgpu_throttle *throttle, const struct vgpu_cuda *cuda)
{
    if (atomic_load_explicit(&throttle->guesses, memory_order_relaxed) && vgpu_probe_can(cuda)) {
        vgpu_calm_take(&throttle->lock);
        vgpu_probe_harvest(throttle, cuda, vgpu_world->now());
        vgpu_calm_drop(&throttle->lock);
    }
}

void vgpu_throttle_end_context(struct vgpu_throttle *throttle, const struct vgpu_cuda *cuda, CUcontext context)
{
    vgpu_probe_end_context(throttle, cuda, context);
}

void vgpu_throttle_forget(struct vgpu_throttle *throttle, uint64_t function)
{
    struct vgpu_geometry what = {.function = function};
    vgpu_cost_forget(&throttle->costs, &what);
}
