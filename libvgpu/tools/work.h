/* work.h - kernels with a known amount of work, for programs that measure a device.
 *
 * The kernel runs rounds of a multiplication that depends on the one before. The work is the same whatever the clock rates
 * are and whatever interrupts it.
 */
#ifndef TOOLS_WORK_H
#define TOOLS_WORK_H

#include <stdint.h>
#include <time.h>

#include "driver.h"

enum { WORK_BLOCKS_PER_SM = 4 };

struct work {
    int device;
    uint64_t rounds;
    unsigned blocks;
    CUmodule module;
    CUfunction kernel;
    CUdeviceptr out;
    CUstream stream;
};

/* Load the driver and the kernel, make the primary context current and create a stream; on a failure, print it and return 1. */
int work_prepare(struct work *work);

/* Load another copy of the module. Return 1 after a failure. */
int work_load(CUmodule *out);

CUresult work_launch(const struct work *work, CUstream stream);

/* Launch `blocks` blocks with this many `rounds` each. */
CUresult work_launch_part(const struct work *work, CUstream stream, unsigned blocks, uint64_t rounds);

uint64_t work_clock_ns(clockid_t clock);
void work_sleep_ns(uint64_t ns);

/* Print that the program is ready, and wait for the end of standard input. */
void work_wait_for_the_others(void);

/* Return 1 if the library under test is in this process. */
int work_has_library(void);

/* Print `"name": [..., ...]` without a line end. */
void work_print_series(const char *name, const double *values, unsigned count, int decimals);

#endif
