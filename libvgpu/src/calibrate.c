#include "calibrate.h"

#include <stdatomic.h>

#define NOTE_NS UINT64_C(10000000)
#define LEFT_NS (VGPU_TICK_NS / 2)       /* a comparison that is this late may be made by any process */
#define LONGEST_NS UINT64_C(40000000000) /* longest time between comparisons */
#define GAP_NS UINT64_C(3000000000)
#define SPACING_NS UINT64_C(10000000) /* minimum distance between samples */
#define SHORTEST_NS UINT64_C(100000000) /* minimum length of a sample */
#define ROUNDED 0.5 /* rounding error of NVML's whole percents, in points; for smaller differences, trust the events */
#define SURE 6 /* gaps needed to be sure */
#define MEMORY_NS 2e9 /* time constant of the average factor */
#define DOUBT_NS 5e7 /* weight of a factor of 1, as GPU time */
#define PAY_NS 1e9 /* time over which a debt is paid off */

/* `blind` of a bucket; any other value means NOT_COMPARED. */
enum { SEEN_ALL = 0, NOT_COMPARED = 1, MISSED_SOME = 2 };

typedef _Atomic uint64_t word;
typedef _Atomic uint32_t halfword;

static uint64_t read_word(const uint64_t *at)
{
    return atomic_load_explicit((const word *)at, memory_order_relaxed);
}

static void write_word(uint64_t *at, uint64_t value)
{
    atomic_store_explicit((word *)at, value, memory_order_relaxed);
}

void vgpu_calibrate_note(struct vgpu_calibration *s, const struct vgpu_region_bucket *bucket, struct vgpu_instant now)
{
    uint32_t last = (s->next + VGPU_HISTORY - 1) % VGPU_HISTORY;
    if (s->count && vgpu_is_before(now, vgpu_later(s->history[last].at, NOTE_NS))) {
        return;
    }
    s->history[s->next].at = now;
    s->history[s->next].raw_ns = read_word(&bucket->raw_ns);
    s->history[s->next].charged_ns = read_word(&bucket->charged_ns);
    s->history[s->next].placed_raw_ns = s->placed_raw_ns;
    s->history[s->next].placed_charged_ns = s->placed_charged_ns;
    s->history[s->next].queued_ns = vgpu_bucket_queued(bucket);
    s->next = (s->next + 1) % VGPU_HISTORY;
    s->count += s->count < VGPU_HISTORY;
}

void vgpu_calibrate_ran(struct vgpu_calibration *s, struct vgpu_instant from, struct vgpu_instant to, int64_t raw_ns,
                        int64_t charged_ns)
{
    s->placed_raw_ns += (uint64_t)raw_ns;
    s->placed_charged_ns += (uint64_t)charged_ns;
    for (uint32_t back = 1; back <= s->count; back++) {
        uint32_t i = (s->next + VGPU_HISTORY - back) % VGPU_HISTORY;
        struct vgpu_instant at = s->history[i].at;
        if (!vgpu_is_before(from, at)) {
            return;
        }
        double part = vgpu_is_before(at, to) ? (double)vgpu_between(from, at) / (double)vgpu_between(from, to) : 1;
        uint64_t raw = (uint64_t)(int64_t)((double)raw_ns * part), charged = (uint64_t)(int64_t)((double)charged_ns * part);
        s->history[i].raw_ns += raw;
        s->history[i].charged_ns += charged;
        s->history[i].placed_raw_ns += raw;
        s->history[i].placed_charged_ns += charged;
    }
}

void vgpu_calibrate_lump(struct vgpu_calibration *s, uint64_t raw_ns)
{
    s->lump_ns = raw_ns > s->lump_ns ? raw_ns : s->lump_ns;
}

int vgpu_calibrate_due(struct vgpu_calibration *s, struct vgpu_region_bucket *bucket, struct vgpu_instant now,
                       vgpu_duration *since_ns)
{
    uint64_t word_seen = read_word(&bucket->tick_ns), next = vgpu_later(now, VGPU_TICK_NS).ns;
    struct vgpu_instant due = vgpu_at(word_seen);
    int is_ahead = vgpu_is_before(now, due);
    if (is_ahead ? vgpu_between(now, due) <= LONGEST_NS : word_seen != s->tick_ns && vgpu_between(due, now) < LEFT_NS) {
        return 0;
    }
    *since_ns = is_ahead ? UINT64_MAX : vgpu_between(due, now) + VGPU_TICK_NS;
    if (!atomic_compare_exchange_strong((word *)&bucket->tick_ns, &word_seen, next)) {
        return 0;
    }
    s->tick_ns = next;
    return 1;
}

void vgpu_calibrate_miss(struct vgpu_region_bucket *bucket)
{
    atomic_store_explicit((halfword *)&bucket->blind, NOT_COMPARED, memory_order_relaxed);
}

void vgpu_calibrate_pause(struct vgpu_calibration *s, struct vgpu_region_bucket *bucket, struct vgpu_instant until)
{
    s->tick_ns = until.ns;
    write_word(&bucket->tick_ns, until.ns);
    vgpu_calibrate_miss(bucket);
}

static double between(uint64_t from, uint64_t to, double part)
{
    return (double)(int64_t)from + part * (double)(int64_t)(to - from);
}

struct totals {
    double raw, charged, placed_raw, placed_charged, queued_ns;
};

/* Interpolate the totals at a past moment between two notes. Return 0 if the oldest note is newer. */
static int noted_at(const struct vgpu_calibration *s, struct vgpu_instant at, struct totals *out)
{
    for (uint32_t back = 1; back < s->count; back++) {
        uint32_t i = (s->next + 2 * VGPU_HISTORY - 1 - back) % VGPU_HISTORY, j = (i + 1) % VGPU_HISTORY;
        if (vgpu_is_before(at, s->history[i].at)) {
            continue;
        }
        double span = (double)vgpu_between(s->history[i].at, s->history[j].at);
        double part = span > 0 ? (double)vgpu_between(s->history[i].at, at) / span : 0;
        part = part > 1 ? 1 : part;
        out->raw = between(s->history[i].raw_ns, s->history[j].raw_ns, part);
        out->charged = between(s->history[i].charged_ns, s->history[j].charged_ns, part);
        out->placed_raw = between(s->history[i].placed_raw_ns, s->history[j].placed_raw_ns, part);
        out->placed_charged = between(s->history[i].placed_charged_ns, s->history[j].placed_charged_ns, part);
        out->queued_ns = between(s->history[i].queued_ns, s->history[j].queued_ns, part);
        return 1;
    }
    return 0;
}

/* Estimate what had run at a past moment: for launches that were measured, what was counted when they ran; for the rest, what
 * had been launched earlier by the queueing time of that moment. Return 0 if the notes do not go back so far. */
static int totals_at(const struct vgpu_calibration *s, struct vgpu_instant at, double *raw, double *charged)
{
    struct totals ran, launched;
    if (!noted_at(s, at, &ran) || !noted_at(s, vgpu_earlier(at, (vgpu_duration)ran.queued_ns), &launched)) {
        return 0;
    }
    *raw = launched.raw - launched.placed_raw + ran.placed_raw;
    *charged = launched.charged - launched.placed_charged + ran.placed_charged;
    return 1;
}

static void owe(const struct vgpu_calibration *s, struct vgpu_region_bucket *bucket, double more)
{
    double debt = (double)(int64_t)read_word(&bucket->debt_ns) + more, most = (double)VGPU_DEBT_NS;
    double credit = (double)(s->lump_ns > VGPU_BURST_GPU_NS ? s->lump_ns : VGPU_BURST_GPU_NS);
    write_word(&bucket->debt_ns, (uint64_t)(int64_t)(debt > most ? most : debt < -credit ? -credit : debt));
}

void vgpu_calibrate_pay(struct vgpu_calibration *s, struct vgpu_region_bucket *bucket, struct vgpu_instant now, uint32_t percent,
                        vgpu_duration since_ns)
{
    s->lump_ns -= s->lump_ns / 64;
    if (!percent) {
        write_word(&bucket->debt_ns, 0);
        return;
    }
    double part = (double)since_ns / (PAY_NS + (double)s->lump_ns * 100 / percent),
           debt = (double)(int64_t)read_word(&bucket->debt_ns);
    int64_t paid = (int64_t)(debt * (part > 0.5 ? 0.5 : part));
    owe(s, bucket, -(double)paid);
    vgpu_bucket_correct(bucket, now, percent, paid);
}

void vgpu_calibrate_read(const struct vgpu_calibration *s, struct vgpu_region_bucket *bucket, vgpu_duration since_ns)
{
    uint32_t all = SEEN_ALL;
    if (since_ns > (s->period_ns ? s->period_ns : 2 * VGPU_TICK_NS)) {
        atomic_compare_exchange_strong((halfword *)&bucket->blind, &all, MISSED_SOME);
    }
}

static void learn_period(struct vgpu_calibration *s, vgpu_duration gap)
{
    vgpu_duration spacing = gap > s->gap_ns ? gap - s->gap_ns : s->gap_ns - gap;
    vgpu_duration least = s->gap_ns && spacing > SPACING_NS && spacing < gap ? spacing : gap;
    if (gap < SPACING_NS || gap > GAP_NS) {
        return;
    }
    s->period_ns = !s->period_ns || least < s->period_ns ? least : s->period_ns + s->period_ns / 256;
    s->gap_ns = gap;
    s->gaps += s->gaps < SURE;
}

/* Return the time used in a sample, which covers at most one period, even if nothing was shown for longer before it. */
static double used_in(const struct vgpu_calibration *s, vgpu_duration window, const struct vgpu_measurement *seen)
{
    return (double)(window < s->period_ns ? window : s->period_ns) * seen->percent / 100;
}

/* Update the factor from one sample and from the estimates charged for its time. */
static void learn_factor(struct vgpu_calibration *s, struct vgpu_region_bucket *bucket, uint32_t percent, vgpu_duration window,
                         double measured, double raw, int neighbours)
{
    double lump = (double)s->lump_ns * 100 / (percent ? percent : 100);
    double fade = (double)window / (MEMORY_NS + 8 * lump);
    fade = fade > 0.5 ? 0.5 : fade;
    s->measured += measured - s->measured * fade;
    s->raw += raw - s->raw * fade;
    if (s->raw > 0) {
        /* Few or large charges are weak evidence against the times of events. Beside neighbours, events are wrong anyway. */
        double doubt = neighbours ? DOUBT_NS / 2 + 2 * (double)s->lump_ns : DOUBT_NS + 8 * (double)s->lump_ns;
        double factor = (s->measured + doubt) / (s->raw + doubt),
               is = (double)vgpu_bucket_factor(bucket) / (double)VGPU_FACTOR_ONE;
        double share = percent ? percent : 100, points = (factor / is - 1) * share, from_one = (factor - 1) * share;
        if (from_one < ROUNDED && from_one > -ROUNDED) {
            vgpu_bucket_set_factor(bucket, VGPU_FACTOR_ONE);
        } else if (points > 1 || points < -1) {
            factor = factor > 20 ? 20 : factor < 0.1 ? 0.1 : factor;
            vgpu_bucket_set_factor(bucket, (uint64_t)(factor * (double)VGPU_FACTOR_ONE));
        }
    }
}

/* Compare one sample with the charges for its time: update the factor and return the debt, 0 if the notes do not go back so
 * far. */
static double compare(struct vgpu_calibration *s, struct vgpu_region_bucket *bucket, struct vgpu_instant now, uint32_t percent,
                      vgpu_duration window, const struct vgpu_measurement *seen)
{
    double measured = used_in(s, window, seen), raw_from, raw_to, from, to;
    if (vgpu_is_before(now, seen->end) || seen->end.ns < window ||
        !totals_at(s, vgpu_earlier(seen->end, window), &raw_from, &from) || !totals_at(s, seen->end, &raw_to, &to)) {
        return 0;
    }
    if (!vgpu_bucket_is_compared(bucket)) {
        vgpu_bucket_set_factor(bucket, VGPU_FACTOR_ONE);
    }
    learn_factor(s, bucket, percent, window, measured, raw_to - raw_from, seen->neighbours);
    return measured - (to - from);
}

static void keep(struct vgpu_calibration *s, vgpu_duration window, int follows_missed, const struct vgpu_measurement *seen)
{
    uint32_t at = (s->held_from + s->held_count) % VGPU_HELD;
    s->held[at].window_ns = window;
    s->held[at].follows_missed = follows_missed;
    s->held[at].seen = *seen;
    s->held_count++;
}

static void let_go(struct vgpu_calibration *s)
{
    s->held_from = (s->held_from + 1) % VGPU_HELD;
    s->held_count--;
    s->studied -= s->studied > 0;
}

/* Study the spacings. Samples are equally spaced, but none is shown for a time in which the container was idle. So a spacing
 * equals the length of a sample only if something ran at its beginning: half of the share or 10 ms, since a kernel that ends just
 * after a sample makes a long spacing look like a long sample, and its program would pay a multiple of what it takes. */
static void study(struct vgpu_calibration *s, uint32_t percent, vgpu_duration window, const struct vgpu_measurement *seen)
{
    double raw_from, raw_to, from, to, enough = (double)SHORTEST_NS * (percent < 20 ? percent : 20) / 200;
    struct vgpu_instant begin = vgpu_earlier(seen->end, window);
    if (begin.ns && totals_at(s, begin, &raw_from, &from) && totals_at(s, vgpu_later(begin, SHORTEST_NS), &raw_to, &to) &&
        raw_to - raw_from > enough) {
        learn_period(s, window);
    }
}

static void take_sample(struct vgpu_calibration *s, struct vgpu_region_bucket *bucket, const struct vgpu_measurement *seen)
{
    uint64_t last_us = read_word(&bucket->calibrated_us);
    vgpu_duration window = seen->stamp_us > last_us ? (seen->stamp_us - last_us) * 1000 : 0;
    if (!window) {
        return;
    }
    write_word(&bucket->calibrated_us, seen->stamp_us);
    uint32_t blind = atomic_exchange_explicit((halfword *)&bucket->blind, SEEN_ALL, memory_order_relaxed);
    atomic_fetch_add_explicit((word *)&bucket->measured_ns, (uint64_t)used_in(s, window, seen), memory_order_relaxed);
    if (blind == SEEN_ALL) {
        keep(s, window, 0, seen);
    } else if (blind == MISSED_SOME && s->gaps >= SURE) {
        keep(s, window < s->period_ns ? window : s->period_ns, 1, seen); /* the newest sample was seen in any case */
    }
}

void vgpu_calibrate(struct vgpu_calibration *s, struct vgpu_region_bucket *bucket, struct vgpu_instant now, uint32_t percent,
                    struct vgpu_instant known, const struct vgpu_measurement *seen)
{
    if (seen) {
        take_sample(s, bucket, seen);
    }
    for (; s->studied < s->held_count; s->studied++) {
        uint32_t at = (s->held_from + s->studied) % VGPU_HELD;
        if (vgpu_is_before(known, s->held[at].seen.end)) {
            break;
        }
        if (!s->held[at].follows_missed) {
            study(s, percent, s->held[at].window_ns, &s->held[at].seen);
        }
    }
    for (; s->studied && s->gaps >= SURE; let_go(s)) {
        owe(s, bucket, compare(s, bucket, now, percent, s->held[s->held_from].window_ns, &s->held[s->held_from].seen));
    }
    if (s->held_count == VGPU_HELD) {
        let_go(s); /* too long to wait for */
    }
}
