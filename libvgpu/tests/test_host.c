/* test_host.c - page-locked host memory, if the page limits it. */
#include <stdlib.h>
#include <string.h>

#include "machine.h"
#include "on_card.h"
#include "state.h"

#define MIB (UINT64_C(1) << 20)
#define LIMIT (8 * MIB)

static void start(uint64_t host_limit)
{
    stage_grant(64 * MIB);
    stage_page()->host_limit_bytes = host_limit;
    use_card();
}

static uint64_t ledger(void)
{
    const struct vgpu_region *region = stage_region();
    uint64_t sum = 0;
    for (uint32_t i = 0; i < region->slot_high; i++) {
        sum += region->slots[i].host_used;
    }
    return sum;
}

static uint64_t oracle(void)
{
    const struct state *s = state_open(machine_current());
    uint64_t sum = 0;
    for (uint32_t i = 0; i < s->process_high; i++) {
        sum += s->processes[i].pid ? s->processes[i].host_bytes : 0;
    }
    return sum;
}

static CUresult make(void **out, size_t bytes)
{
    return cuMemHostAlloc(out, bytes, 0);
}

static CUresult make_old(void **out, size_t bytes)
{
    return cuMemAllocHost(out, (unsigned)bytes);
}

static CUresult make_by_name(void **out, size_t bytes)
{
    return cuMemAllocHost_v2(out, bytes);
}

TEST(every_way_to_lock_host_memory_stops_at_its_limit_to_the_byte)
{
    static CUresult (*const ways[])(void **, size_t) = {make, make_old, make_by_name};
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        void *most, *rest, *more;
        start(LIMIT);
        CHECK_EQ(ways[i](&more, LIMIT + 1), CUDA_ERROR_OUT_OF_MEMORY);
        CHECK_EQ(ways[i](&most, LIMIT - 512), CUDA_SUCCESS);
        CHECK_EQ(ways[i](&more, 513), CUDA_ERROR_OUT_OF_MEMORY);
        CHECK_EQ(ways[i](&rest, 512), CUDA_SUCCESS);
        CHECK_EQ(ways[i](&more, 1), CUDA_ERROR_OUT_OF_MEMORY);
        CHECK_EQ(ledger(), LIMIT);
        CHECK_EQ(oracle(), LIMIT);
        CHECK_EQ(cuMemFreeHost(most), CUDA_SUCCESS);
        CHECK_EQ(cuMemFreeHost(rest), CUDA_SUCCESS);
        CHECK_EQ(ledger(), 0);
    }
    CHECK_EQ(state_open(machine_current())->host_peak, LIMIT);
}

TEST(registered_memory_counts_until_it_is_unregistered)
{
    static char mine[2][LIMIT / 2 + 512];
    start(LIMIT);
    CHECK_EQ(cuMemHostRegister_v2(mine[0], sizeof mine[0], 0), CUDA_SUCCESS);
    CHECK_EQ(cuMemHostRegister_v2(mine[1], sizeof mine[1], 0), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ(cuMemHostRegister(mine[1], LIMIT / 2 - 512, 0), CUDA_SUCCESS);
    CHECK_EQ(ledger(), LIMIT);
    CHECK_EQ(cuMemHostUnregister(mine[0]), CUDA_SUCCESS);
    CHECK_EQ(cuMemHostUnregister(mine[0]), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ(cuMemHostUnregister(mine[1]), CUDA_SUCCESS);
    CHECK_EQ(ledger(), 0);
}

TEST(physical_memory_of_the_host_counts_until_its_last_handle_is_gone)
{
    CUmemGenericAllocationHandle handle, more;
    CUmemAllocationProp prop = {.type = 1, .location_type = CU_MEM_LOCATION_TYPE_HOST_NUMA};
    start(LIMIT);
    CHECK_EQ(cuMemCreate(&handle, LIMIT - 2 * MIB, &prop, 0), CUDA_SUCCESS);
    CHECK_EQ(cuMemCreate(&more, 4 * MIB, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ(ledger(), LIMIT - 2 * MIB);
    CHECK_EQ(oracle(), LIMIT - 2 * MIB);
    CHECK_EQ(stage_ledger_sum(), 0);
    CHECK_EQ(cuMemRelease(handle), CUDA_SUCCESS);
    CHECK_EQ(ledger(), 0);
}

TEST(host_memory_and_the_devices_memory_are_budgets_of_their_own)
{
    void *host;
    CUdeviceptr device;
    start(LIMIT);
    CHECK_EQ(cuMemHostAlloc(&host, LIMIT, 0), CUDA_SUCCESS);
    CHECK_EQ(cuMemAlloc_v2(&device, 64 * MIB), CUDA_SUCCESS);
    CHECK_EQ(stage_ledger_sum(), 64 * MIB);
    CHECK_EQ(cuMemFree_v2(device), CUDA_SUCCESS);
    CHECK_EQ(cuMemFreeHost(host), CUDA_SUCCESS);
}

TEST(without_a_limit_it_is_counted_and_not_limited)
{
    void *host;
    start(0);
    CHECK_EQ(cuMemHostAlloc(&host, 4 * LIMIT, 0), CUDA_SUCCESS);
    CHECK_EQ(ledger(), 4 * LIMIT);
    CHECK_EQ(cuMemFreeHost(host), CUDA_SUCCESS);
}

TEST(a_changed_limit_holds_from_the_next_call_on_and_a_page_that_denies_denies)
{
    void *host, *more;
    uint64_t refused = stage_region()->host_denied_count;
    start(LIMIT);
    CHECK_EQ(cuMemHostAlloc(&host, LIMIT, 0), CUDA_SUCCESS);
    CHECK_EQ(cuMemHostAlloc(&more, 512, 0), CUDA_ERROR_OUT_OF_MEMORY);
    start(LIMIT + 512);
    CHECK_EQ(cuMemHostAlloc(&more, 512, 0), CUDA_SUCCESS);
    CHECK_EQ(cuMemFreeHost(more), CUDA_SUCCESS);
    stage_state(VGPU_PAGE_DENY);
    CHECK_EQ(cuMemHostAlloc(&more, 512, 0), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ(cuMemFreeHost(host), CUDA_SUCCESS);
    CHECK_EQ(stage_region()->host_denied_count, refused + 2);
}

TEST(a_context_lets_go_of_its_host_memory)
{
    void *host;
    CUcontext own;
    start(LIMIT);
    CHECK_EQ(cuCtxCreate_v2(&own, 0, 0), CUDA_SUCCESS);
    CHECK_EQ(cuMemHostAlloc(&host, LIMIT, 0), CUDA_SUCCESS);
    CHECK_EQ(cuCtxDestroy_v2(own), CUDA_SUCCESS);
    CHECK_EQ(ledger(), 0);
    CHECK_EQ(oracle(), 0);
}

TEST(the_driver_judges_what_is_wrong)
{
    void *host;
    start(LIMIT);
    CHECK_EQ(cuMemHostAlloc(NULL, 512, 0), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ(cuMemHostAlloc(&host, 0, 0), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ(cuMemHostRegister_v2(NULL, 512, 0), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ(cuMemFreeHost(&host), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ(ledger(), 0);
}

int main(int argc, char **argv)
{
    (void)argc;
    stage_enter(argv, NULL);
    return t_run();
}
