/* throttle_state.h - what a process and a thread keep for the throttle (throttle.h), and how it sees a launch. */
#ifndef VGPU_THROTTLE_STATE_H
#define VGPU_THROTTLE_STATE_H

#include "bucket.h"
#include "calibrate.h"
#include "cost.h"
#include "lock.h"
#include "world.h"

/* A thread takes a chunk at a time: time for ten launches of one kind, but at least VGPU_CHUNK_NS and at most
 * VGPU_CHUNK_MOST_NS. Kernels longer than VGPU_CHUNK_NS are paid for one by one. Larger chunks were rejected: chunks of
 * 1 ms save 50 ns a launch and cost 0.1 to 0.3 points of error. */
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

/* A probe is free, then claimed by a launch that is about to be made, then on its way until its second event has
 * completed. Protected by the lock. */
enum vgpu_probe_state { VGPU_PROBE_FREE, VGPU_PROBE_CLAIMED, VGPU_PROBE_ON_ITS_WAY };

/* A pair of events around a launch. */
struct vgpu_probe {
    CUcontext context; /* the events' context; NULL: no events yet */
    CUevent start, end;
    enum vgpu_probe_state state;
    int alone; /* the launch was charged by itself, not as part of a chunk */
    int guessed; /* the launch's charge was a guess */
    int ordinal;
    struct vgpu_cost *cost;
    struct vgpu_geometry what;
    struct vgpu_instant launched;
    int is_first; /* no other launch was pending, so it began to run when it was launched */
    int64_t raw_ns, charged_ns; /* the charge of this launch */
    struct vgpu_instant runs; /* when it was first seen running; zero if it was not yet */
    vgpu_duration took_ns;     /* how long the launch ran, as measured by its two events */
};

/* A device as this process sees it. */
struct vgpu_throttle_device {
    _Atomic uint32_t known;
    uint32_t sms;
    struct vgpu_region_bucket *bucket;
    _Atomic uint64_t last; /* memory of `share` */
    _Atomic uint32_t percent; /* the share at which launches were last paid for */
    _Atomic int crowded; /* others have a context there, or this is unknown */
    _Atomic int ran_free; /* launches were not held, and many of them may not have run yet */
    _Atomic struct vgpu_instant freed; /* until when they were not held; zero once a launch made since then has run */
    struct vgpu_calibration calibration;
    _Atomic uint64_t unprobed_ns; /* launched device time since the last measurement */
};

struct vgpu_throttle {
    /* Where shares, buckets and measurements come from. `owner` is passed to these functions. */
    void *owner;
    struct vgpu_share (*share)(void *owner, int ordinal);
    struct vgpu_region_bucket *(*bucket)(void *owner, int ordinal);
    uint32_t (*sms)(void *owner, int ordinal);
    vgpu_measure measure; /* NULL: there is nothing to compare with */
    struct vgpu_region_bucket *(*peer)(void *owner, int ordinal,
                                       unsigned n); /* of the container's other devices; NULL: no more */
    /* Called with the time since which launches charged by a guess are in flight; zero: none is. May be NULL. */
    void (*guessed)(void *owner, int ordinal, struct vgpu_instant since, uint64_t charged_ns);
    struct vgpu_throttle_device devices[VGPU_MAX_DEVICES];
    struct vgpu_region_bucket own[VGPU_MAX_DEVICES]; /* buckets to use if there is no region */
    struct vgpu_calm_lock lock; /* protects probes and comparisons */
    _Atomic struct vgpu_instant probed, harvested;
    _Atomic struct vgpu_instant waited; /* when a kernel was last seen to wait for another device's */
    _Atomic int comparing;
    _Atomic int guesses; /* launches in flight that were charged by a guess */
    struct vgpu_probe probes[VGPU_PROBES];
    struct vgpu_costs costs;
};

/* The prepaid time of a thread. All zero at first. */
struct vgpu_hand {
    /* Copies of the process's pointers, for the fastest path (launch.h). NULL at first. */
    const struct vgpu_cuda *cuda;
    const uint64_t *process_now;
    const _Atomic uint32_t *page_now;
    uint64_t process; /* the process's cookie: a forked child owns nothing */
    uint32_t page; /* the page's sequence when it was taken */
    int32_t ordinal;
    uint32_t generation;
    int unlimited; /* this device has no limited share */
    int all_unlimited; /* no device has a limited share */
    int64_t left_ns;
    struct {
        uint64_t tag;
        int64_t ns;
    } costs[VGPU_HAND_COSTS];
};

struct vgpu_launch {
    const struct vgpu_cuda *cuda;
    CUstream stream; /* in the form that the driver's plain functions expect */
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
