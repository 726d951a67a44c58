/* calibrate.h - compares charges with what NVML measured, so that a share is right even if estimates are wrong.
 *
 * NVML shows what a container used of a device over some time that has passed. What was charged for the same time is known
 * from a history of the totals. Their difference is a debt (or credit) of the container, paid off over about a second,
 * and the ratio of both over a longer time is the factor that estimates are multiplied with from then on. Comparing like
 * with like, late figures do no harm: how late they are does not enter the loop.
 */
#ifndef VGPU_CALIBRATE_H
#define VGPU_CALIBRATE_H

#include "bucket.h"

/* Samples are at least 100 ms apart, and each disappears when the next one is there. */
#define VGPU_TICK_NS UINT64_C(50000000)
enum { VGPU_HISTORY = 1024, VGPU_HELD = 64 };

/* The newest sample of NVML for a device. */
struct vgpu_measurement {
    uint64_t stamp_us; /* time stamp of its sample, always by the same clock */
    struct vgpu_instant end; /* the end of the sample by our clock */
    uint32_t percent;  /* percent of the device that the container used in that sample */
    int others;        /* 1: others used the device during that sample */
    int neighbours;    /* 1: others have a context on the device now */
    int others_known;  /* 1: `others` and `neighbours` are valid, even if there is no figure for the container */
};

/* Return 1 if there is a figure for the container. */
typedef int (*vgpu_measure)(void *owner, int ordinal, uint64_t since_us, struct vgpu_measurement *out);

/* The state of a process. Zero at first; under its lock. */
struct vgpu_calibration {
    uint32_t next, count;
    struct {
        struct vgpu_instant at;
        uint64_t raw_ns, charged_ns;               /* of all */
        uint64_t placed_raw_ns, placed_charged_ns; /* of what this process counts where it ran */
        vgpu_duration queued_ns;                   /* how long the rest waits in queues */
    } history[VGPU_HISTORY];
    uint64_t tick_ns;           /* the bucket's value, as this process last wrote it */
    uint64_t placed_raw_ns, placed_charged_ns; /* ever */
    vgpu_duration lump_ns;      /* largest recent single charge */
    vgpu_duration gap_ns;       /* between the last two samples */
    vgpu_duration period_ns;    /* of samples: the smallest spacing of them; those of idle times are never shown */
    uint32_t gaps;
    double measured, raw; /* of late, fading */
    uint32_t held_from, held_count, studied; /* of the held ones, for the length of samples */
    struct {
        vgpu_duration window_ns;
        int follows_missed; /* others came and went before it */
        struct vgpu_measurement seen;
    } held[VGPU_HELD]; /* samples that have not been compared yet */
};

/* Note the totals, if the last note was made a while ago. */
void vgpu_calibrate_note(struct vgpu_calibration *calibration, const struct vgpu_region_bucket *bucket, struct vgpu_instant now);

/* Move what was just added to the totals to the time in which it ran: a kernel is charged when it is launched, but NVML sees it when
 * it runs. */
void vgpu_calibrate_ran(struct vgpu_calibration *calibration, struct vgpu_instant from, struct vgpu_instant to, int64_t raw_ns,
                        int64_t charged_ns);

/* Note a single charge that takes a while to run. */
void vgpu_calibrate_lump(struct vgpu_calibration *calibration, uint64_t raw_ns);

/* Return 1 if a comparison is due and this process should make it; `since_ns` is the time since the last one. One process of a
 * container makes all comparisons as long as it launches, since it must see some samples before it can compare. Another process
 * takes over when a comparison is half a tick late. */
int vgpu_calibrate_due(struct vgpu_calibration *calibration, struct vgpu_region_bucket *bucket, struct vgpu_instant now,
                       vgpu_duration *since_ns);

/* Let no process compare before `until`. Samples that NVML shows meanwhile are missed. */
void vgpu_calibrate_pause(struct vgpu_calibration *calibration, struct vgpu_region_bucket *bucket, struct vgpu_instant until);

/* Skip the next sample. */
void vgpu_calibrate_miss(struct vgpu_region_bucket *bucket);

/* Note that NVML was read `since_ns` after the last time, so that samples may have been missed. */
void vgpu_calibrate_read(const struct vgpu_calibration *calibration, struct vgpu_region_bucket *bucket, vgpu_duration since_ns);

/* Pay off the part of the debt that is due after `since_ns`; all of it takes about a second. `percent` 0: nothing is limited now. */
void vgpu_calibrate_pay(struct vgpu_calibration *calibration, struct vgpu_region_bucket *bucket, struct vgpu_instant now,
                        uint32_t percent, vgpu_duration since_ns);

/* Compare: update debt and factor. `percent` is the share. A sample is held back until the length of samples is known and until all
 * kernels that ran in it are in the totals; those that ran before `known` are. `seen` is NULL if there is no new sample. */
void vgpu_calibrate(struct vgpu_calibration *calibration, struct vgpu_region_bucket *bucket, struct vgpu_instant now,
                    uint32_t percent, struct vgpu_instant known, const struct vgpu_measurement *seen);

#endif
