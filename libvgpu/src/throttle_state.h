/* throttle_state.h - what a process and a thread keep for the throttle (throttle.h), and what a launch is to it. */
#ifndef VGPU_THROTTLE_STATE_H
#define VGPU_THROTTLE_STATE_H

#include "bucket.h"
#include "calibrate.h"
#include "cost.h"
#include "lock.h"
#include "world.h"

/* A thread takes so much at a time: enough for some launches of a kind, so that few of them have to see to more than a
 * subtraction, and no more than the last one. What takes longer than the first by itself is paid for one by one. */
#define VGPU_CHUNK_NS INT64_C(200000)
#define VGPU_CHUNK_LAUNCHES 10
#define VGPU_CHUNK_MOST_NS INT64_C(400000)
enum { VGPU_HAND_COSTS = 32, VGPU_PROBES = 64 };

/* The share of a device that a container may use now. */
struct vgpu_share {
    uint32_t percent; /* 0, or 100 and more: all of it */
    int always;       /* 0: only while others are active on the device */
};

static inline int vgpu_share_is_limited(const struct vgpu_share *share)
{
    return share->percent && share->percent < 100;
}

/* A probe is free, then claimed by a launch that is about to be made, then on its way until its second event has come.
 * Under the lock. */
enum vgpu_probe_state { VGPU_PROBE_FREE, VGPU_PROBE_CLAIMED, VGPU_PROBE_ON_ITS_WAY };

/* A pair of events around a launch. */
struct vgpu_probe {
    CUcontext context; /* of the events; NULL: not made yet */
    CUevent start, end;
    enum vgpu_probe_state state;
    int alone; /* the launch was charged by itself, not out of a chunk */
    int guessed; /* and by a guess */
    int ordinal;
    struct vgpu_cost *cost;
    struct vgpu_geometry what;
    struct vgpu_instant launched;
    int is_first; /* nothing else was on its way to the device then: it began to run when it was launched */
    int64_t raw_ns, charged_ns; /* what it was charged, alone */
    struct vgpu_instant runs; /* when it was first seen to run; never: not yet */
    vgpu_duration took_ns;     /* the last time, by its events */
};

/* A device as this process sees it. */
struct vgpu_throttle_device {
    _Atomic uint32_t known;
    uint32_t sms;
    struct vgpu_region_bucket *bucket;
    _Atomic uint64_t last; /* for `share` to remember */
    _Atomic uint32_t percent; /* the share by which launches were last paid for */
    _Atomic int crowded; /* others have a context there, or that is unknown */
    _Atomic int ran_free; /* launches went by unheld, of which the device may still have many to run */
    _Atomic struct vgpu_instant freed; /* they did until then, and nothing launched since is known to have run; never: it is */
    struct vgpu_calibration calibration;
    _Atomic uint64_t unprobed_ns; /* of what was launched since something was measured */
};

struct vgpu_throttle {
    /* Where shares, buckets and measurements come from; `owner` is theirs. */
    void *owner;
    struct vgpu_share (*share)(void *owner, int ordinal);
    struct vgpu_region_bucket *(*bucket)(void *owner, int ordinal);
    uint32_t (*sms)(void *owner, int ordinal);
    vgpu_measure measure; /* NULL: there is nothing to compare with */
    struct vgpu_region_bucket *(*peer)(void *owner, int ordinal,
                                       unsigned n); /* of the container's other devices; NULL: no more */
    /* Launches charged by a guess have been under way since then; never: none is. May be NULL. */
    void (*guessed)(void *owner, int ordinal, struct vgpu_instant since, uint64_t charged_ns);
    struct vgpu_throttle_device devices[VGPU_MAX_DEVICES];
    struct vgpu_region_bucket own[VGPU_MAX_DEVICES]; /* for `bucket`, where there is no region */
    struct vgpu_calm_lock lock; /* of probes and comparisons */
    _Atomic struct vgpu_instant probed, harvested;
    _Atomic struct vgpu_instant waited; /* last a kernel was seen to wait for another device's */
    _Atomic int comparing;
    _Atomic int guesses; /* launches under way that were charged by a guess */
    struct vgpu_probe probes[VGPU_PROBES];
    struct vgpu_costs costs;
};

/* What a thread has taken in advance. All zero at first. */
struct vgpu_hand {
    /* Of the process, for the quickest of looks (launch.h); NULL at first. */
    const struct vgpu_cuda *cuda;
    const uint64_t *process_now;
    const _Atomic uint32_t *page_now;
    uint64_t process; /* of which process: a forked child owns nothing */
    uint32_t page; /* sequence of the page that it holds for */
    int32_t ordinal;
    uint32_t generation;
    int unlimited; /* this device has no share to keep */
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
    uint32_t page; /* sequence of the page at the time of the call */
    uint64_t process;
    uint64_t function, blocks;
    uint32_t threads;
};

struct vgpu_ticket {
    struct vgpu_probe *probe;
};

#endif
