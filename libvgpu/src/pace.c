#include "pace.h"

#include <string.h>

#define SLICE_NS VGPU_TICK_NS             /* of a wait; the page is read again after each */
#define NAP_NS UINT64_C(50000)            /* shortest sleep worth the name */
#define PROBE_EVERY_NS UINT64_C(1000000)
#define HARVEST_EVERY_NS UINT64_C(500000)
#define FIRST_NS UINT64_C(250000000)      /* how long a second launch waits for the first measurement of its kind */
#define FIRST_COST_NS UINT64_C(20000000)
#define TURN_NS UINT64_C(3000000)          /* about what a process gets at a time on a shared card */
#define PRIOR 0.65                        /* its part of what events say */
#define BLIND_NS UINT64_C(2000000000)      /* until NVML has been heard */
#define LOST_NS UINT64_C(60000000000)     /* a measurement that will not come any more */
#define OTHERS_NS UINT64_C(2000000000)    /* others seen so lately are still active */
#define SLOW_NS UINT64_C(2000000)         /* an NVML that takes longer is asked the more seldom: */
#define SLOW_TIMES 20                     /* not again before so many times as long has passed, */
#define SLOWEST_NS UINT64_C(30000000000)  /* or this */
#define BACKLOG_NS UINT64_C(10000000000)  /* longer than what a program has launched ahead takes */
#define PATIENCE_NS (2 * VGPU_DEBT_NS)

static struct vgpu_pace_card *card_of(struct vgpu_pace *pace, int ordinal)
{
    if (ordinal < 0 || ordinal >= (int)VGPU_MAX_DEVICES) {
        return NULL;
    }
    struct vgpu_pace_card *card = &pace->cards[ordinal];
    if (!atomic_load_explicit(&card->known, memory_order_acquire)) {
        vgpu_lock_take(&pace->lock);
        if (!atomic_load_explicit(&card->known, memory_order_relaxed)) {
            card->bucket = pace->bucket(pace->who, ordinal);
            card->sms = pace->sms(pace->who, ordinal);
            atomic_store_explicit(&card->known, card->bucket ? 1 : 0, memory_order_release);
        }
        vgpu_lock_drop(&pace->lock);
    }
    return card->bucket ? card : NULL;
}

static int try_lock(struct vgpu_lock *lock)
{
    uint32_t seen = 0;
    return atomic_compare_exchange_strong_explicit(&lock->word, &seen, 1, memory_order_acquire, memory_order_relaxed);
}

/* ------------------------------------------------------------------ captures
 * Nothing that is being recorded runs, so it costs nothing and must not be held up; and a recording must never notice
 * us: our calls are made in the relaxed mode, and no event of ours is put into a stream that is being recorded, nor into
 * the legacy stream while another is. */

static int relax(const struct vgpu_cuda *cuda)
{
    int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    if (cuda->cuThreadExchangeStreamCaptureMode) {
        cuda->cuThreadExchangeStreamCaptureMode(&mode);
    }
    return mode;
}

static void restore(const struct vgpu_cuda *cuda, int mode)
{
    if (cuda->cuThreadExchangeStreamCaptureMode) {
        cuda->cuThreadExchangeStreamCaptureMode(&mode);
    }
}

enum recording { NOT_RECORDED, RECORDED, PERHAPS };

static enum recording is_recorded(const struct vgpu_launch *l)
{
    int status = 0;
    if (!l->cuda->cuStreamIsCapturing) {
        return NOT_RECORDED; /* a driver without captures */
    }
    CUresult result = l->cuda->cuStreamIsCapturing(l->stream, &status);
    return result != CUDA_SUCCESS ? PERHAPS : status ? RECORDED : NOT_RECORDED;
}

/* ------------------------------------------------------------------ measurements by events */

static int can_probe(const struct vgpu_cuda *cuda)
{
    return cuda->cuEventCreate && cuda->cuEventRecord && cuda->cuEventQuery && cuda->cuEventElapsedTime &&
           cuda->cuCtxGetCurrent;
}

/* Under the lock: a pair of events of the current context. */
static struct vgpu_probe *free_probe(struct vgpu_pace *pace, const struct vgpu_cuda *cuda)
{
    CUcontext context = NULL;
    struct vgpu_probe *unused = NULL;
    if (cuda->cuCtxGetCurrent(&context) != CUDA_SUCCESS || !context) {
        return NULL;
    }
    for (unsigned i = 0; i < VGPU_PROBES; i++) {
        struct vgpu_probe *probe = &pace->probes[i];
        if (!probe->busy && probe->context == context) {
            return probe;
        }
        unused = !unused && !probe->busy && !probe->context ? probe : unused;
    }
    if (unused && cuda->cuEventCreate(&unused->start, 0) == CUDA_SUCCESS) {
        if (cuda->cuEventCreate(&unused->end, 0) == CUDA_SUCCESS) {
            unused->context = context;
            return unused;
        }
        cuda->cuEventDestroy_v2(unused->start);
    }
    return NULL;
}

/* Before the launch: does it get measured? */
static void start_probe(struct vgpu_pace *pace, const struct vgpu_launch *l, const struct vgpu_geometry *what,
                        struct vgpu_cost *cost, uint64_t now, uint64_t raw, int alone, int learned, struct vgpu_ticket *ticket)
{
    uint64_t last = atomic_load_explicit(&pace->probed_ns, memory_order_relaxed);
    if (!cost || !can_probe(l->cuda) || (learned && now - last < PROBE_EVERY_NS) || !try_lock(&pace->lock)) {
        return;
    }
    if (atomic_compare_exchange_strong(&pace->probed_ns, &last, now)) {
        int mode = relax(l->cuda);
        struct vgpu_probe *probe = free_probe(pace, l->cuda);
        if (probe && l->cuda->cuEventRecord(probe->start, l->stream) == CUDA_SUCCESS) {
            probe->busy = 1;
            probe->alone = alone;
            probe->cost = cost;
            probe->what = *what;
            probe->ordinal = l->ordinal;
            probe->launched_ns = now;
            probe->raw_ns = raw;
            ticket->probe = probe;
        }
        restore(l->cuda, mode);
    }
    vgpu_lock_drop(&pace->lock);
}

static int is_limited(const struct vgpu_share *share)
{
    return share->percent && share->percent < 100;
}

/* Others have been active lately, or nobody can tell. */
static int has_company(const struct vgpu_region_bucket *bucket, uint64_t now)
{
    uint64_t seen = atomic_load_explicit((const _Atomic uint64_t *)&bucket->others_ns, memory_order_relaxed);
    return seen == UINT64_MAX || (seen && seen <= now && now - seen < OTHERS_NS) || (seen > now && seen - now <= SLOWEST_NS);
}

/* What was launched unheld is not owed: until the first launch after it has run, NVML's figures say nothing of what
 * was charged. */
static int is_catching_up(struct vgpu_pace_card *card, uint64_t now)
{
    uint64_t freed = atomic_load_explicit(&card->freed_ns, memory_order_relaxed);
    return freed && now - freed < BACKLOG_NS;
}

/* Under the lock: a launch of that moment has run. */
static void catch_up(struct vgpu_pace_card *card, uint64_t launched_ns)
{
    uint64_t freed = atomic_load_explicit(&card->freed_ns, memory_order_relaxed);
    if (freed && launched_ns >= freed) {
        atomic_store_explicit(&card->freed_ns, 0, memory_order_relaxed);
        card->settle.count = 0;
    }
}

static void drop(struct vgpu_probe *probe)
{
    probe->busy = 0;
    atomic_store(&probe->cost->running_ns, 0);
    atomic_fetch_sub(&probe->cost->pending, 1);
}

/* Beside neighbours the first measurements of a kind may hold any number of their turns: believe a part, and leave the
 * rest to the comparison with NVML. */
static uint64_t believed(const struct vgpu_pace_card *card, const struct vgpu_cost *cost, uint64_t ns)
{
    uint64_t part = ns / 8 > FIRST_COST_NS ? ns / 8 : FIRST_COST_NS;
    return card->crowded && cost && atomic_load_explicit(&cost->samples, memory_order_relaxed) < 3 && ns > part ? part : ns;
}

/* What to multiply an estimate with. Beside neighbours, and before NVML has been heard, what is longer than a turn is
 * taken for others' in part: who is charged too little pays later, but time that was not used is lost. */
static double factor_for(const struct vgpu_pace_card *card, uint64_t ns, uint64_t now)
{
    double factor = (double)vgpu_bucket_factor(card->bucket) / (double)VGPU_FACTOR_ONE;
    uint64_t first = atomic_load_explicit(&card->first_ns, memory_order_relaxed);
    return factor > PRIOR && card->crowded && now - first < BLIND_NS && ns > TURN_NS ? PRIOR : factor;
}

static void settle_probe(struct vgpu_pace *pace, struct vgpu_probe *probe, uint64_t ns, uint64_t now)
{
    struct vgpu_pace_card *card = &pace->cards[probe->ordinal];
    catch_up(card, probe->launched_ns);
    vgpu_cost_learn(&pace->costs, probe->cost, &probe->what, ns, card->crowded);
    if (card->crowded) {
        uint64_t usual = atomic_load(&probe->cost->ns);
        ns = ns > usual ? usual : ns; /* the rest was others' */
    }
    ns = believed(card, probe->cost, ns);
    if (probe->alone) {
        int64_t raw = (int64_t)ns - (int64_t)probe->raw_ns;
        int64_t charged = (int64_t)((double)raw * factor_for(card, ns, now));
        struct vgpu_share share = pace->share(pace->who, probe->ordinal);
        vgpu_bucket_count(card->bucket, raw, charged);
        if (is_limited(&share) && (share.always || has_company(card->bucket, now))) {
            vgpu_bucket_correct(card->bucket, now, share.percent, charged);
        }
    }
    if (ns > (uint64_t)VGPU_CHUNK_NS * 50) {
        vgpu_settle_lump(&card->settle, (uint64_t)((double)ns * factor_for(card, ns, now)));
    }
}

/* Under the lock: take in what has come. */
static void harvest(struct vgpu_pace *pace, const struct vgpu_cuda *cuda, uint64_t now)
{
    int mode = relax(cuda), asked = 0;
    for (unsigned i = 0; i < VGPU_PROBES && asked < 8; i++) {
        struct vgpu_probe *probe = &pace->probes[i];
        float ms = 0;
        if (probe->busy != 2) {
            continue;
        }
        asked++;
        CUresult result = cuda->cuEventQuery(probe->end);
        if (result == CUDA_SUCCESS) {
            result = cuda->cuEventElapsedTime(&ms, probe->start, probe->end);
            if (result == CUDA_SUCCESS && ms >= 0) {
                settle_probe(pace, probe, (uint64_t)((double)ms * 1e6), now);
            }
            drop(probe);
        } else if (result == CUDA_ERROR_NOT_READY && !atomic_load(&probe->cost->running_ns)) {
            if (cuda->cuEventQuery(probe->start) == CUDA_SUCCESS) {
                atomic_store(&probe->cost->running_ns, now);
            }
        }
        if (probe->busy == 2 && result != CUDA_SUCCESS && (result != CUDA_ERROR_NOT_READY || now - probe->launched_ns > LOST_NS)) {
            drop(probe);
            probe->context = NULL; /* gone with its context: the events are not ours to touch any more */
        }
    }
    restore(cuda, mode);
}

void vgpu_pace_end(struct vgpu_pace *pace, const struct vgpu_launch *l, struct vgpu_ticket *ticket, CUresult result)
{
    struct vgpu_probe *probe = ticket->probe;
    if (!probe) {
        return;
    }
    int mode = relax(l->cuda);
    int recorded = result == CUDA_SUCCESS && l->cuda->cuEventRecord(probe->end, l->stream) == CUDA_SUCCESS;
    restore(l->cuda, mode);
    vgpu_lock_take(&pace->lock);
    if (recorded) {
        if (atomic_fetch_add(&probe->cost->pending, 1) == 0) {
            atomic_store(&probe->cost->pending_ns, probe->launched_ns);
        }
        probe->busy = 2;
    } else {
        probe->busy = 0;
    }
    vgpu_lock_drop(&pace->lock);
}

/* ------------------------------------------------------------------ the budget */

/* Not under the lock: NVML may take seconds to answer. Then it is asked the more seldom. */
static void compare(struct vgpu_pace *pace, struct vgpu_pace_card *card, int ordinal, uint32_t percent, uint64_t now,
                    uint64_t since_ns)
{
    struct vgpu_measurement seen = {0};
    uint64_t since = atomic_load_explicit((_Atomic uint64_t *)&card->bucket->settled_us, memory_order_relaxed);
    int known = pace->measure && pace->measure(pace->who, ordinal, since, &seen);
    uint64_t end = vgpu_world->now_ns(), pause = end - now > SLOW_NS ? (end - now) * SLOW_TIMES : 0;
    pause = pause > SLOWEST_NS ? SLOWEST_NS : pause;
    if (pause) {
        vgpu_settle_pause(card->bucket, end + pause);
    }
    if (!pace->measure) {
        seen.others = seen.neighbours = seen.others_known = 1; /* whoever cannot see neighbours must reckon with them */
    }
    if (seen.others_known) {
        card->crowded = seen.neighbours;
        if (seen.others) {
            atomic_store_explicit((_Atomic uint64_t *)&card->bucket->others_ns, end + pause, memory_order_relaxed);
        }
    }
    vgpu_lock_take(&pace->lock);
    vgpu_settle_asked(&card->settle, card->bucket, since_ns);
    if (is_catching_up(card, end)) {
        vgpu_settle_miss(card->bucket);
    }
    vgpu_settle_pay(&card->settle, card->bucket, end, percent, since_ns > 1000000000 ? VGPU_TICK_NS : since_ns);
    if (known) {
        vgpu_settle(&card->settle, card->bucket, end, percent, &seen);
    }
    vgpu_lock_drop(&pace->lock);
}

/* Book-keeping between two looks at the budget; whoever finds the lock held leaves it to who holds it. */
static void tend(struct vgpu_pace *pace, struct vgpu_pace_card *card, const struct vgpu_launch *l, uint32_t percent,
                 uint64_t now, int eager)
{
    uint64_t since_ns;
    if (!try_lock(&pace->lock)) {
        return;
    }
    vgpu_settle_note(&card->settle, card->bucket, now);
    uint64_t last = atomic_load_explicit(&pace->harvested_ns, memory_order_relaxed);
    if ((eager || now - last >= HARVEST_EVERY_NS) && can_probe(l->cuda)) {
        atomic_store_explicit(&pace->harvested_ns, now, memory_order_relaxed);
        harvest(pace, l->cuda, now);
    }
    vgpu_lock_drop(&pace->lock);
    if (!atomic_exchange(&pace->comparing, 1)) {
        if (vgpu_settle_due(card->bucket, now, &since_ns)) {
            compare(pace, card, l->ordinal, percent, now, since_ns);
        }
        atomic_store(&pace->comparing, 0);
    }
}

static void wait_until(struct vgpu_region_bucket *bucket, uint64_t now, uint64_t until)
{
    uint64_t ns = until > now ? until - now : 0;
    ns = ns < NAP_NS ? NAP_NS : ns > SLICE_NS ? SLICE_NS : ns;
    vgpu_world->sleep_ns(ns);
    atomic_fetch_add_explicit((_Atomic uint64_t *)&bucket->waited_ns, ns, memory_order_relaxed);
}

/* What the launch costs goes into the hand, with what else of a chunk is left. */
static void fill(struct vgpu_hand *hand, const struct vgpu_launch *l, int64_t chunk, int64_t cost)
{
    uint64_t key = vgpu_cost_key(l->function, l->blocks, l->threads);
    unsigned at = key >> 40 & (VGPU_HAND_COSTS - 1);
    if (chunk) {
        hand->generation++; /* costs may have changed: look each up once more */
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

void vgpu_pace_begin(struct vgpu_pace *pace, struct vgpu_hand *hand, const struct vgpu_launch *l, struct vgpu_ticket *ticket)
{
    struct vgpu_pace_card *card = card_of(pace, l->ordinal);
    struct vgpu_geometry what = {.function = l->function, .blocks = l->blocks, .threads = l->threads};
    struct vgpu_share share = pace->share(pace->who, l->ordinal);
    uint64_t began = vgpu_world->now_ns(), now = began, nap = NAP_NS;
    int taken = 0, probing = 0;
    if (!card || !is_limited(&share)) {
        empty(hand, l, 1);
        return;
    }
    if (hand->process == l->process && (hand->all_unlimited || (hand->unlimited && hand->ordinal == l->ordinal))) {
        atomic_store_explicit(&card->ran_free, 1, memory_order_relaxed);
    }
    if (hand->process != l->process || hand->page != l->page || hand->ordinal != l->ordinal) {
        empty(hand, l, 0); /* a chunk of another card, share or life */
    }
    switch (is_recorded(l)) {
    case RECORDED:
        return;
    case PERHAPS:
        break;
    case NOT_RECORDED:
        probing = 1;
        break;
    }
    what.sms = card->sms;
    uint64_t never = 0;
    atomic_compare_exchange_strong_explicit(&card->first_ns, &never, began | 1, memory_order_relaxed, memory_order_relaxed);
    struct vgpu_cost *cost = vgpu_cost_of(&pace->costs, &what);
    for (; is_limited(&share) && now - began < PATIENCE_NS; now = vgpu_world->now_ns(), share = pace->share(pace->who, l->ordinal)) {
        int learned, held = share.always || has_company(card->bucket, now);
        tend(pace, card, l, held ? share.percent : 0, now, nap > NAP_NS);
        held = share.always || has_company(card->bucket, now);
        if (held && atomic_exchange_explicit(&card->ran_free, 0, memory_order_relaxed)) {
            atomic_store_explicit(&card->freed_ns, now, memory_order_relaxed);
        } else if (!held) {
            atomic_store_explicit(&card->ran_free, 1, memory_order_relaxed);
        }
        uint64_t raw = believed(card, cost, vgpu_cost_ns(&pace->costs, cost, &what, now, &learned));
        if (held && !learned && cost && atomic_load(&cost->pending) && now - began < FIRST_NS) {
            wait_until(card->bucket, now, now + nap); /* the first of its kind is still on its way */
            nap = nap < 8 * NAP_NS ? nap * 2 : nap;
            continue;
        }
        double factor = factor_for(card, raw, now);
        int64_t price = (int64_t)((double)raw * factor) + 1;
        if (learned && price <= hand->left_ns) {
            fill(hand, l, 0, price); /* known to the process, new to this hand */
            return;
        }
        int alone = !learned || price > VGPU_CHUNK_NS; /* what is left of a chunk is for kernels that are known */
        uint64_t want = alone ? (uint64_t)price : (uint64_t)VGPU_CHUNK_NS;
        uint64_t until = held ? vgpu_bucket_take(card->bucket, now, share.percent, want) : 0;
        if (until) {
            wait_until(card->bucket, now, until);
            continue;
        }
        vgpu_bucket_count(card->bucket, alone ? (int64_t)raw : (int64_t)((double)want / factor), (int64_t)want);
        if (!alone) {
            fill(hand, l, VGPU_CHUNK_NS, price);
        }
        if (probing) {
            start_probe(pace, l, &what, cost, now, raw, alone, learned, ticket);
        }
        taken = 1;
        break;
    }
    if (!taken && !is_limited(&share)) {
        empty(hand, l, 0); /* no longer limited: the next launch finds out for good */
    }
}

void vgpu_pace_forget(struct vgpu_pace *pace, uint64_t function)
{
    struct vgpu_geometry what = {.function = function};
    vgpu_cost_forget(&pace->costs, &what);
}
