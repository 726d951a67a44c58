/* pace.h - holds launches up until the container's share of the card pays for them.
 *
 *     struct vgpu_ticket ticket = {0};
 *     vgpu_pace_begin(pace, &mine, &launch, &ticket);     // waits here
 *     CUresult result = cuda->cuLaunchKernel(...);
 *     vgpu_pace_end(pace, &launch, &ticket, result);
 *
 * Threads take 200 us of the budget (bucket.h) at a time, so most launches only subtract what their kernel costs
 * (cost.h) from what the thread has in hand; vgpu_pace_fast is that subtraction. Costs come from pairs of events around
 * some launches, at most one a millisecond, asked after without waiting. A kernel of its own right (more than 200 us) is
 * charged before it is launched and corrected when its events have come. Every 100 ms one process of the container
 * compares what was charged with what NVML measured over the same time (settle.h).
 *
 * Pure but for vgpu_world and the driver's event functions, so that a simulator can run many processes of many
 * containers at once: a struct vgpu_pace is a process, a struct vgpu_hand one of its threads.
 */
#ifndef VGPU_PACE_H
#define VGPU_PACE_H

#include "bucket.h"
#include "cost.h"
#include "lock.h"
#include "settle.h"
#include "turns.h"
#include "world.h"

/* A thread takes so much at a time: enough for some launches of a kind, so that few of them have to see to more than a
 * subtraction, and no more than the last one. What takes longer than the first by itself is paid for one by one. */
#define VGPU_CHUNK_NS INT64_C(200000)
#define VGPU_CHUNK_LAUNCHES 10
#define VGPU_CHUNK_MOST_NS INT64_C(400000)
enum { VGPU_HAND_COSTS = 32, VGPU_PROBES = 64 };

/* What a container may use of a card, now. */
struct vgpu_share {
    uint32_t percent; /* 0, or 100 and more: all of it */
    int always;       /* 0: only while others are active on the card */
};

static inline int vgpu_share_is_limited(const struct vgpu_share *share)
{
    return share->percent && share->percent < 100;
}

/* One of a pair of events on its way. */
struct vgpu_probe {
    CUcontext context; /* of the events; NULL: not made yet */
    CUevent start, end;
    int busy;
    int alone; /* the launch was charged by itself, not out of a chunk */
    int ordinal;
    struct vgpu_cost *cost;
    struct vgpu_geometry what;
    uint64_t launched_ns;
    int64_t raw_ns, charged_ns; /* what it was charged, alone */
    uint64_t runs_ns;     /* when it was first seen to run; 0: not yet */
    uint32_t looks, ours; /* of turns.h, then */
};

/* A card as this process sees it. */
struct vgpu_pace_card {
    _Atomic uint32_t known;
    uint32_t sms;
    struct vgpu_region_bucket *bucket;
    _Atomic uint64_t last; /* for `share` to remember */
    _Atomic uint64_t first_ns; /* of the first launch that was held or charged */
    _Atomic int crowded; /* somebody else has a context there, or nobody can tell */
    _Atomic int ran_free; /* launches went by unheld, of which the card may still have many to run */
    _Atomic uint64_t freed_ns; /* they did until then, and nothing launched since is known to have run; 0: it is */
    struct vgpu_settle settle;
    struct vgpu_turns turns;
    _Atomic int watched; /* something runs of which it is to be known how much of its time is its own */
};

struct vgpu_pace {
    /* Where shares, buckets and measurements come from; `who` is theirs. */
    void *who;
    struct vgpu_share (*share)(void *who, int ordinal);
    struct vgpu_region_bucket *(*bucket)(void *who, int ordinal);
    uint32_t (*sms)(void *who, int ordinal);
    vgpu_measure measure; /* NULL: there is nothing to compare with */
    struct vgpu_region_bucket *(*peer)(void *who, int ordinal, unsigned n); /* of the container's other cards; NULL: no more */
    struct vgpu_pace_card cards[VGPU_MAX_DEVICES];
    struct vgpu_region_bucket own[VGPU_MAX_DEVICES]; /* for `bucket`, where there is no region */
    struct vgpu_calm_lock lock; /* of probes and comparisons */
    _Atomic uint64_t probed_ns, harvested_ns;
    _Atomic uint64_t waited_ns; /* last a kernel was seen to wait for another card's */
    _Atomic int comparing;
    struct vgpu_probe probes[VGPU_PROBES];
    struct vgpu_costs costs;
};

/* What a thread has in hand. All zero at first. */
struct vgpu_hand {
    /* Of the process, for the quickest of looks (launch.h); NULL at first. */
    const struct vgpu_cuda *cuda;
    const uint64_t *process_now;
    const _Atomic uint32_t *page_now;
    uint64_t process; /* of which process: a forked child owns nothing */
    uint32_t page;    /* sequence of the page that it holds for */
    int32_t ordinal;
    uint32_t generation;
    int unlimited; /* this card has no share to keep */
    int all_unlimited; /* nor has any other */
    int64_t left_ns;
    struct {
        uint64_t tag;
        int64_t ns;
    } costs[VGPU_HAND_COSTS];
};

struct vgpu_launch {
    const struct vgpu_cuda *cuda;
    CUstream stream; /* as the driver's plain functions understand it */
    int ordinal;
    uint32_t page;  /* sequence of the page at the time of the call */
    uint64_t process;
    uint64_t function, blocks;
    uint32_t threads;
};

struct vgpu_ticket {
    struct vgpu_probe *probe;
};

/* 1: in hand, launch. The hand must be of this process and page. */
static inline int vgpu_pace_fast(struct vgpu_hand *hand, int ordinal, uint64_t key)
{
    if (hand->ordinal != ordinal) {
        return 0;
    }
    if (hand->unlimited) {
        return 1;
    }
    unsigned at = key >> 40 & (VGPU_HAND_COSTS - 1);
    if (hand->costs[at].tag != key + hand->generation || hand->costs[at].ns > hand->left_ns) {
        return 0;
    }
    hand->left_ns -= hand->costs[at].ns;
    return 1;
}

void vgpu_pace_begin(struct vgpu_pace *pace, struct vgpu_hand *hand, const struct vgpu_launch *launch,
                     struct vgpu_ticket *ticket);
void vgpu_pace_end(struct vgpu_pace *pace, const struct vgpu_launch *launch, struct vgpu_ticket *ticket, CUresult result);

/* Before the driver ends a context, by destruction, reset or the last release: the events and the stream that were made in
 * it are given back and forgotten. A context that comes back at the same address finds none. */
void vgpu_pace_end_context(struct vgpu_pace *pace, const struct vgpu_cuda *cuda, CUcontext context);

/* A graph that was destroyed, or a function that was unloaded. */
void vgpu_pace_forget(struct vgpu_pace *pace, uint64_t function);

#endif
