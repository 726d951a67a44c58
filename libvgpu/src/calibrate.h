/* calibrate.h - compares charges with NVML's measurements, so that the share is right even if the estimates are wrong.
 *
 * NVML says how much of a device a container used in some period that has already passed. A history of the totals says
 * how much was charged for the same period. The difference becomes a debt (or credit), which is paid off over about a
 * second. The ratio over a longer time becomes the factor by which later estimates are multiplied. It does not matter
 * how late NVML's figures are, because both sides refer to the same period.
 */
#ifndef VGPU_CALIBRATE_H
#define VGPU_CALIBRATE_H

#include "bucket.h"

/* NVML's samples are at least 100 ms apart, and each one is visible only until the next one arrives. */
#define VGPU_TICK_NS UINT64_C(50000000)
enum { VGPU_HISTORY = 1024, VGPU_HELD = 64 };

/* The newest NVML sample of a device. */
struct vgpu_measurement {
    uint64_t stamp_us; /* the sample's time stamp, always from the same clock */
    struct vgpu_instant end; /* the end of the sample by our clock */
    uint32_t percent;  /* percent of the device that the container used in that sample */
    int others;        /* 1: others used the device during that sample */
    int neighbours;    /* 1: others have a context on the device now */
    int others_known;  /* 1: `others` and `neighbours` are valid, even if there is no figure for the container */
};

/* Return 1 if there is a figure for the container. */
typedef int (*vgpu_measure)(void *owner, int ordinal, uint64_t since_us, struct vgpu_measurement *out);

/* What a process knows about one device. All zero at first; protected by the throttle's lock. */
struct vgpu_calibration {
    uint32_t next, count;
    struct {
        struct vgpu_instant at;
        uint64_t raw_ns, charged_ns;               /* totals of all launches */
        uint64_t placed_raw_ns, placed_charged_ns; /* totals of launches that this process counted while they ran */
        vgpu_duration queued_ns;                   /* how long the others wait in queues */
    } history[VGPU_HISTORY];
    uint64_t tick_ns;           /* the bucket's value, as this process last wrote it */
    uint64_t placed_raw_ns, placed_charged_ns; /* since the process began */
    vgpu_duration lump_ns;      /* the largest recent single charge */
    vgpu_duration gap_ns;       /* between the last two samples */
    vgpu_duration period_ns;    /* length of a sample: the smallest spacing seen, since samples of idle times are not shown */
    uint32_t gaps;
    double measured, raw; /* recent sums, which fade */
    uint32_t held_from, held_count, studied; /* how many of the held samples were used to learn the length of samples */
    struct {
        vgpu_duration window_ns;
        int follows_missed; /* earlier samples may have been missed */
        struct vgpu_measurement seen;
    } held[VGPU_HELD]; /* samples that have not been compared yet */
};

/* Record the totals, unless the last record is recent. */
void vgpu_calibrate_note(struct vgpu_calibration *calibration, const struct vgpu_region_bucket *bucket, struct vgpu_instant now);

/* Move a charge in the history to the time in which the kernel ran. It was charged at its launch, but NVML sees it when
 * it runs. */
void vgpu_calibrate_ran(struct vgpu_calibration *calibration, struct vgpu_instant from, struct vgpu_instant to, int64_t raw_ns,
                        int64_t charged_ns);

/* Note a single charge that takes a while to run. */
void vgpu_calibrate_lump(struct vgpu_calibration *calibration, uint64_t raw_ns);

/* Return 1 if a comparison is due and this process should make it. `since_ns` is the time since the last one. One
 * process of a container makes all comparisons while it launches, because it must see several samples before it can
 * compare. Another process takes over when a comparison is half a tick late. */
int vgpu_calibrate_due(struct vgpu_calibration *calibration, struct vgpu_region_bucket *bucket, struct vgpu_instant now,
                       vgpu_duration *since_ns);

/* Stop all comparisons until `until`. NVML's samples of that time are missed. */
void vgpu_calibrate_pause(struct vgpu_calibration *calibration, struct vgpu_region_bucket *bucket, struct vgpu_instant until);

/* Do not compare the next sample. */
void vgpu_calibrate_miss(struct vgpu_region_bucket *bucket);

/* Note that NVML was read `since_ns` after the previous time, so samples may have been missed. */
void vgpu_calibrate_read(const struct vgpu_calibration *calibration, struct vgpu_region_bucket *bucket, vgpu_duration since_ns);

/* Pay off the part of the debt that falls into `since_ns`. The whole debt takes about a second. Pass a `percent` of 0
 * if nothing is limited now. */
void vgpu_calibrate_pay(struct vgpu_calibration *calibration, struct vgpu_region_bucket *bucket, struct vgpu_instant now,
                        uint32_t percent, vgpu_duration since_ns);

/* Compare charges with NVML and update debt and factor. `percent` is the share. A sample is held back until the length
 * of samples is known and until every kernel that ran in it is in the totals, which is true of everything before
 * `known`. `seen` is NULL if there is no new sample. */
void vgpu_calibrate(struct vgpu_calibration *calibration, struct vgpu_region_bucket *bucket, struct vgpu_instant now,
                    uint32_t percent, struct vgpu_instant known, const struct vgpu_measurement *seen);

#endif
