/* calibrate.h - charged against measured: the comparison that makes a share exact whatever the estimates.
 *
 * NVML shows what a container used of a device over some time that has passed. What was charged for the same time is known
 * from a history of the totals. Their difference is a debt (or credit) of the container, paid off over about a second,
 * and the ratio of both over a longer time is the factor that estimates are multiplied with from then on. Comparing like
 * with like, late figures do no harm: how late they are does not enter the loop.
 */
#ifndef VGPU_CALIBRATE_H
#define VGPU_CALIBRATE_H

#include "bucket.h"

/* Samples are 100 ms apart or more, and each is gone when the next one is there. */
#define VGPU_TICK_NS UINT64_C(50000000)
enum { VGPU_HISTORY = 1024, VGPU_HELD = 64 };

/* Newest word of NVML about a device. */
struct vgpu_measurement {
    uint64_t stamp_us; /* of its sample; any clock, but the same always */
    struct vgpu_instant end; /* the same by our clock */
    uint32_t percent;  /* that the container used of the device in that sample */
    int others;        /* others used the device in it */
    int neighbours;    /* others have a context on the device, now */
    int others_known;  /* the last two are known, whatever is known of the container itself */
};

/* 1 when there is a figure for the container. */
typedef int (*vgpu_measure)(void *owner, int ordinal, uint64_t since_us, struct vgpu_measurement *out);

/* What one process remembers. Zero at first; under its lock. */
struct vgpu_calibration {
    uint32_t next, count;
    struct {
        struct vgpu_instant at;
        uint64_t raw_ns, charged_ns;               /* of all */
        uint64_t placed_raw_ns, placed_charged_ns; /* of what this process counts where it ran */
        vgpu_duration queued_ns;                   /* how long the rest waits in queues */
    } history[VGPU_HISTORY];
    uint64_t tick_ns;           /* the bucket's, as this process last wrote it */
    uint64_t placed_raw_ns, placed_charged_ns; /* ever */
    vgpu_duration lump_ns;      /* largest single charge of late */
    vgpu_duration gap_ns;       /* between the last two samples */
    vgpu_duration period_ns;    /* of samples: the smallest spacing of them; those of idle times are never shown */
    uint32_t gaps;
    double measured, raw; /* of late, fading */
    uint32_t held_from, held_count, studied; /* of the held ones, for the length of samples */
    struct {
        vgpu_duration window_ns;
        int follows_missed; /* others came and went before it */
        struct vgpu_measurement seen;
    } held[VGPU_HELD]; /* samples that are not compared yet */
};

/* Note the totals, when the last note is a while ago. */
void vgpu_calibrate_note(struct vgpu_calibration *calibration, const struct vgpu_region_bucket *bucket, struct vgpu_instant now);

/* What was just added to the totals ran from then to then: a kernel is charged when it is launched, but in the totals it
 * belongs where it was used. */
void vgpu_calibrate_ran(struct vgpu_calibration *calibration, struct vgpu_instant from, struct vgpu_instant to, int64_t raw_ns,
                        int64_t charged_ns);

/* A single charge so large that it takes a while to run. */
void vgpu_calibrate_lump(struct vgpu_calibration *calibration, uint64_t raw_ns);

/* Is a comparison due, and is it ours to make? `since_ns`: how long ago the last one was. One process of a container makes all as
 * long as it launches: it has to see some samples before it compares any. Another one does when it is half a tick late. */
int vgpu_calibrate_due(struct vgpu_calibration *calibration, struct vgpu_region_bucket *bucket, struct vgpu_instant now,
                       vgpu_duration *since_ns);

/* No comparison before then, by any process; what NVML shows meanwhile is missed. */
void vgpu_calibrate_pause(struct vgpu_calibration *calibration, struct vgpu_region_bucket *bucket, struct vgpu_instant until);

/* What NVML shows next is not to be compared. */
void vgpu_calibrate_miss(struct vgpu_region_bucket *bucket);

/* NVML was read `since_ns` after the last time: samples may have come and gone unseen. */
void vgpu_calibrate_read(const struct vgpu_calibration *calibration, struct vgpu_region_bucket *bucket, vgpu_duration since_ns);

/* Pay off what `since_ns` of a second or so of the debt is, at a share of `percent`; 0: nothing is limited now. */
void vgpu_calibrate_pay(struct vgpu_calibration *calibration, struct vgpu_region_bucket *bucket, struct vgpu_instant now,
                        uint32_t percent, vgpu_duration since_ns);

/* Make it: debt and factor. `percent` is the share. A sample is held until it is known how long one is, and until all
 * that ran in it is in the totals, which holds before `known`. `seen` may be NULL: nothing new. */
void vgpu_calibrate(struct vgpu_calibration *calibration, struct vgpu_region_bucket *bucket, struct vgpu_instant now,
                    uint32_t percent, struct vgpu_instant known, const struct vgpu_measurement *seen);

#endif
