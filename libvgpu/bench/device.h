/* device.h - assumptions about the simulated device and NVML where no real card has been measured.
 *
 * The limiter was written for the nominal device. Each member is an assumption about real cards; the bench changes one at a
 * time and reports how the error of shares grows (tools/assumptions.py). */
#ifndef BENCH_DEVICE_H
#define BENCH_DEVICE_H

#include <stdint.h>

struct device {
    uint64_t slice_ns;     /* length of the timeslice of a context */
    uint64_t switch_ns;    /* cost of switching to another context */
    unsigned noise_points; /* NVML's figure for a process is off by up to this many points */
    unsigned looks;        /* interval at which NVML samples the running context; 0: it counts all time */
    int unmatched;         /* 1: NVML reports no PID that the container knows */
    int clock_ppm;         /* by how much the device's clock is faster than the host's */
    int shuffled;          /* 1: contexts and threads take turns in a random order */
};

struct device device_nominal(void);

/* Apply a setting such as "switch_us=60". Return 0 if there is no such setting or its value is not possible. */
int device_set(struct device *device, const char *setting);

#endif
