/* on_card.h - how most tests on the simulated device begin, and what they check most often: the ledger and the device's own
 * figure. */
#ifndef VGPU_ON_DEVICE_H
#define VGPU_ON_DEVICE_H

#include <unistd.h>

#include "driver_api.h"
#include "stage.h"
#include "t.h"

/* Make the first device's primary context current. */
static inline void use_card(void)
{
    CUcontext context;
    CHECK_EQ(cuInit(0), CUDA_SUCCESS);
    CHECK_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    CHECK_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
}

/* Do the same under a limit. */
static inline void start_under(uint64_t limit)
{
    stage_grant(limit);
    use_card();
}

/* Wait until the ledger holds this much. NVML's figure is read at most ten times a second. */
static inline void until_ledger_is(uint64_t bytes)
{
    size_t free_bytes, total;
    for (int i = 0; i < 500 && stage_ledger_sum() != bytes; i++) {
        cuMemGetInfo_v2(&free_bytes, &total);
        usleep(10000);
    }
    CHECK_EQ(stage_ledger_sum(), bytes);
}

/* Check that the ledger and the device both hold this much. */
static inline void check_both(uint64_t bytes)
{
    CHECK_EQ(stage_ledger_sum(), bytes);
    CHECK_EQ(stage_card_used(), bytes);
}

#endif
