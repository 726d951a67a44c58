/* on_card.h - how most tests on the simulated card begin, and what they ask most: the ledger, and the card's own word. */
#ifndef VGPU_ON_CARD_H
#define VGPU_ON_CARD_H

#include "driver_api.h"
#include "stage.h"
#include "t.h"

/* Make the first card's primary context current. */
static inline void use_card(void)
{
    CUcontext context;
    CHECK_EQ(cuInit(0), CUDA_SUCCESS);
    CHECK_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    CHECK_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
}

/* The same under a limit. */
static inline void start_under(uint64_t limit)
{
    stage_grant(limit);
    use_card();
}

/* So much is held, by the ledger and by the card. */
static inline void check_both(uint64_t bytes)
{
    CHECK_EQ(stage_ledger_sum(), bytes);
    CHECK_EQ(stage_card_used(), bytes);
}

#endif
