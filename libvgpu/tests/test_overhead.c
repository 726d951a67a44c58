/* test_overhead.c - memory that contexts and modules take by themselves counts like any other memory. */
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "machine.h"
#include "on_card.h"
#include "state.h"

#define MIB (UINT64_C(1) << 20)
#define CONTEXT (300 * MIB)

/* Begin with a container in which no process has learned anything yet. */
static void fresh(uint64_t limit)
{
    stage_grant(limit);
    stage_region()->columns[0].context_bytes = 0;
    stage_page()->devices[0].alone_until_ns = UINT64_MAX; /* no other process uses the device */
    CHECK_EQ(cuInit(0), CUDA_SUCCESS);
    CHECK_EQ(stage_card_used(), 0);
    CHECK_EQ(stage_ledger_sum(), 0);
    stage_card_reset_peak();
}

/* Return 1 if the driver does not show how much a process holds. */
static int is_blind(void)
{
    return machine_current()->bytes != MACHINE_BYTES_SHOWN;
}

/* Wait until the container knows the cost of a context. */
static void until_learned(void)
{
    size_t free_bytes, total;
    for (int i = 0; i < 500 && stage_region()->columns[0].context_bytes != CONTEXT; i++) {
        cuMemGetInfo_v2(&free_bytes, &total);
        usleep(10000);
    }
    CHECK_EQ(stage_region()->columns[0].context_bytes, CONTEXT);
}

static void act_as_agent(void)
{
    stage_name_processes();
    stage_see_memory();
}

static struct vgpu_region_slot *own_slot(void)
{
    struct vgpu_region *region = stage_region();
    for (uint32_t i = 0; i < region->slot_high; i++) {
        if (region->slots[i].pid == (uint32_t)getpid()) {
            return &region->slots[i];
        }
    }
    return NULL;
}

TEST(what_a_context_costs_is_learned_and_charged)
{
    CUcontext context;
    fresh(1024 * MIB);
    CHECK_EQ(cuCtxCreate_v2(&context, 0, 0), CUDA_SUCCESS);
    CHECK(stage_ledger_sum() >= CONTEXT); /* at once, regardless of what the driver reports */
    act_as_agent();
    until_ledger_is(CONTEXT);
    CHECK_EQ(stage_card_used(), CONTEXT);
    CHECK_EQ(own_slot()->overhead[0], CONTEXT);
    until_learned();
    CHECK_EQ(cuCtxDestroy_v2(context), CUDA_SUCCESS);
    CHECK_EQ(stage_ledger_sum(), 0);
    CHECK_EQ(own_slot()->overhead[0], 0);
}

TEST(a_learned_context_that_does_not_fit_is_never_made)
{
    CUcontext context;
    fresh(CONTEXT - 1);
    stage_region()->columns[0].context_bytes = CONTEXT;
    CHECK_EQ(cuCtxCreate_v2(&context, 0, 0), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ(stage_card_peak(), 0);
    CHECK_EQ(stage_ledger_sum(), 0);
}

TEST(what_the_page_says_of_contexts_is_reserved_by_the_very_first_process)
{
    CUcontext context;
    fresh(CONTEXT - 1);
    stage_page()->devices[0].context_bytes = CONTEXT;
    CHECK_EQ(cuCtxCreate_v2(&context, 0, 0), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ(stage_card_peak(), 0);
}

TEST(a_context_that_turns_out_too_big_is_unmade)
{
    CUcontext context;
    fresh(CONTEXT - 1);
    stage_name_processes(); /* the slot is left from earlier tests */
    CHECK_EQ(cuCtxCreate_v2(&context, 0, 0), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ(stage_card_used(), 0);
    CHECK_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ(stage_card_used(), 0);
    CHECK_EQ(stage_ledger_sum(), 0);
    CHECK(is_blind() || stage_region()->columns[0].context_bytes == CONTEXT); /* known from now on */
}

TEST(contexts_and_memory_share_one_limit_to_the_byte)
{
    CUcontext context;
    CUdeviceptr out = 0, more = 0;
    fresh(400 * MIB);
    CHECK_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    CHECK_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
    CHECK_EQ(stage_ledger_sum(), CONTEXT);
    CHECK_EQ(cuMemAlloc_v2(&out, 100 * MIB + 1), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ(cuMemAlloc_v2(&out, 100 * MIB), CUDA_SUCCESS);
    CHECK_EQ(cuMemAlloc_v2(&more, 1), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ(cuCtxCreate_v2(&context, 0, 0), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS); /* once more costs nothing */
    CHECK_EQ(cuDevicePrimaryCtxRelease_v2(0), CUDA_SUCCESS);
    CHECK_EQ(stage_card_peak(), 400 * MIB);
    CHECK_EQ(cuDevicePrimaryCtxRelease_v2(0), CUDA_SUCCESS);
    CHECK_EQ(stage_ledger_sum(), 0);
    CHECK_EQ(stage_card_used(), 0);
}

TEST(every_context_of_a_process_counts)
{
    CUcontext first, second;
    fresh(1024 * MIB);
    CHECK_EQ(cuCtxCreate_v2(&first, 0, 0), CUDA_SUCCESS);
    CHECK_EQ(cuCtxCreate_v2(&second, 0, 0), CUDA_SUCCESS);
    CHECK_EQ(stage_ledger_sum(), 2 * CONTEXT);
    CHECK(is_blind() || stage_region()->columns[0].context_bytes == CONTEXT);
    CHECK_EQ(cuCtxDestroy_v2(first), CUDA_SUCCESS);
    CHECK_EQ(stage_ledger_sum(), CONTEXT);
    CHECK_EQ(cuCtxDestroy_v2(second), CUDA_SUCCESS);
    CHECK_EQ(stage_ledger_sum(), 0);
}

/* Let the driver take memory for itself, as it does when a module is loaded. */
static void driver_takes(uint64_t bytes)
{
    CUmodule module;
    CHECK_EQ(state_take(machine_current(), 0, bytes, 0), STATE_OK);
    CHECK_EQ(cuModuleLoadData(&module, "image"), CUDA_SUCCESS);
}

TEST(what_modules_take_is_found_and_keeps_new_memory_away)
{
    CUcontext context;
    CUdeviceptr out = 0;
    fresh(400 * MIB);
    CHECK_EQ(cuCtxCreate_v2(&context, 0, 0), CUDA_SUCCESS);
    CHECK_EQ(cuMemAlloc_v2(&out, 50 * MIB), CUDA_SUCCESS);
    driver_takes(40 * MIB);
    stage_see_memory();
    until_ledger_is(390 * MIB);
    driver_takes(30 * MIB); /* more than fits, but it exists all the same */
    stage_see_memory();
    until_ledger_is(420 * MIB);
    CHECK_EQ(cuMemFree_v2(out), CUDA_SUCCESS);
    CHECK_EQ(stage_ledger_sum(), 370 * MIB);
    CHECK_EQ(cuMemAlloc_v2(&out, 30 * MIB + 1), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ(cuMemAlloc_v2(&out, 30 * MIB), CUDA_SUCCESS);
    CHECK_EQ(cuCtxDestroy_v2(context), CUDA_SUCCESS);
    state_give(machine_current(), 0, 70 * MIB, 0);
    CHECK_EQ(stage_ledger_sum(), 0);
}

static int opens_a_context(int ready, int gate)
{
    CUcontext context;
    char byte = 0;
    CUresult result = cuInit(0) == CUDA_SUCCESS ? cuDevicePrimaryCtxRetain(&context, 0) : CUDA_ERROR_UNKNOWN;
    int said = write(ready, &byte, 1) == 1 && read(gate, &byte, 1) == 0; /* held until all have tried */
    return said && result == CUDA_SUCCESS ? 1 : said && result == CUDA_ERROR_OUT_OF_MEMORY ? 2 : 3;
}

TEST(processes_that_open_contexts_together_never_exceed_the_limit)
{
    enum { PROCESSES = 8, FIT = 3 };
    int gate[2], ready[2], made = 0, refused = 0;
    char byte;
    fresh(FIT * CONTEXT + CONTEXT / 2);
    stage_region()->columns[0].context_bytes = CONTEXT;
    CHECK(pipe(gate) == 0 && pipe(ready) == 0);
    for (int i = 0; i < PROCESSES; i++) {
        if (fork() == 0) {
            close(gate[1]);
            _exit(opens_a_context(ready[1], gate[0]));
        }
    }
    for (int i = 0; i < PROCESSES; i++) {
        CHECK(read(ready[0], &byte, 1) == 1);
    }
    close(gate[0]);
    close(gate[1]);
    for (int i = 0; i < PROCESSES; i++) {
        int status = 0;
        wait(&status);
        made += WEXITSTATUS(status) == 1;
        refused += WEXITSTATUS(status) == 2;
    }
    CHECK_EQ(made + refused, PROCESSES);
    CHECK(made >= 1 && made <= FIT); /* all processes that race for the last free memory may be refused */
    CHECK_EQ(stage_card_peak(), (uint64_t)made * CONTEXT);
}

int main(int argc, char **argv)
{
    (void)argc;
    stage_enter(argv, "fork_works=1\ncontext_mib=300");
    return t_run();
}
