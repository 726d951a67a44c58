/* device.h - how the simulated device and NVML behave where no real card has told us.
 *
 * The limiter was written for the nominal device. Each member is an assumption about real cards; the bench changes one at a time
 * and reports how the error of shares grows (tools/assumptions.py).
 */
#ifndef BENCH_DEVICE_H
#define BENCH_DEVICE_H

#include <stdint.h>

struct device {
    uint64_t slice_ns;     /* length of the timeslice of a context */
    uint64_t switch_ns;    /* cost of changing over to another context */
    unsigned noise_points; /* NVML's figure of a process is off by up to this many points */
    unsigned looks;        /* NVML looks this often in a sample which context runs; 0: it integrates */
    int unmatched;         /* 1: NVML shows no PID that the container knows */
    int clock_ppm;         /* by which the device's clock is faster than the host's */
    int shuffled;          /* 1: contexts and threads take their turns in a drawn order */
};

struct device device_nominal(void);

/* Apply a setting such as "switch_us=60". Return 0 if there is no such setting or its value is not possible. */
int device_set(struct device *device, const char *setting);

#endif
