/* test_mapping.c - physical memory and its mappings, on the simulated device, through the library as it is shipped. */
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "on_card.h"

#define MIB (UINT64_C(1) << 20)
#define GRAIN (2 * MIB)
#define LIMIT (64 * MIB)

static const CUmemAllocationProp on_card = {.type = 1, .location_type = CU_MEM_LOCATION_TYPE_DEVICE};

TEST(physical_memory_fits_to_the_last_grain_and_no_further)
{
    CUmemGenericAllocationHandle all = 0, more = 0;
    start_under(LIMIT);
    CHECK_EQ(cuMemCreate(&more, LIMIT + GRAIN, &on_card, 0), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ(cuMemCreate(&all, LIMIT, &on_card, 0), CUDA_SUCCESS);
    CHECK_EQ(cuMemCreate(&more, GRAIN, &on_card, 0), CUDA_ERROR_OUT_OF_MEMORY);
    check_both(LIMIT);
    CHECK_EQ(cuMemRelease(all), CUDA_SUCCESS);
    check_both(0);
}

TEST(it_shares_the_limit_with_every_other_kind)
{
    CUmemGenericAllocationHandle half = 0, more = 0;
    CUdeviceptr rest = 0;
    start_under(LIMIT);
    CHECK_EQ(cuMemCreate(&half, LIMIT / 2, &on_card, 0), CUDA_SUCCESS);
    CHECK_EQ(cuMemAlloc_v2(&rest, LIMIT / 2 + 1), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ(cuMemAlloc_v2(&rest, LIMIT / 2), CUDA_SUCCESS);
    CHECK_EQ(cuMemCreate(&more, GRAIN, &on_card, 0), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ(cuMemRelease(half), CUDA_SUCCESS);
    CHECK_EQ(cuMemFree_v2(rest), CUDA_SUCCESS);
    check_both(0);
}

TEST(memory_that_is_still_mapped_is_still_charged)
{
    CUmemGenericAllocationHandle handle = 0, more = 0;
    CUdeviceptr at = 0;
    int written = 4711, read = 0;
    start_under(LIMIT);
    CHECK_EQ(cuMemCreate(&handle, LIMIT, &on_card, 0), CUDA_SUCCESS);
    CHECK_EQ(cuMemAddressReserve(&at, LIMIT, 0, 0, 0), CUDA_SUCCESS);
    check_both(LIMIT); /* addresses cost nothing */
    CHECK_EQ(cuMemMap(at, LIMIT, 0, handle, 0), CUDA_SUCCESS);
    CHECK_EQ(cuMemSetAccess(at, LIMIT, "", 1), CUDA_SUCCESS);
    CHECK_EQ(cuMemRelease(handle), CUDA_SUCCESS);
    check_both(LIMIT);
    CHECK_EQ(cuMemcpyHtoD_v2(at + LIMIT / 2, &written, sizeof written), CUDA_SUCCESS);
    CHECK_EQ(cuMemcpyDtoH_v2(&read, at + LIMIT / 2, sizeof read), CUDA_SUCCESS);
    CHECK_EQ(read, written);
    CHECK_EQ(cuMemCreate(&more, GRAIN, &on_card, 0), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ(cuMemUnmap(at, LIMIT), CUDA_SUCCESS);
    CHECK_EQ(cuMemAddressFree(at, LIMIT), CUDA_SUCCESS);
    check_both(0);
}

TEST(several_mappings_go_with_one_unmapping)
{
    CUmemGenericAllocationHandle one = 0, two = 0;
    CUdeviceptr at = 0;
    start_under(LIMIT);
    CHECK_EQ(cuMemCreate(&one, 2 * GRAIN, &on_card, 0), CUDA_SUCCESS);
    CHECK_EQ(cuMemCreate(&two, GRAIN, &on_card, 0), CUDA_SUCCESS);
    CHECK_EQ(cuMemAddressReserve(&at, 4 * GRAIN, 0, 0, 0), CUDA_SUCCESS);
    CHECK_EQ(cuMemMap(at, 2 * GRAIN, 0, one, 0), CUDA_SUCCESS);
    CHECK_EQ(cuMemMap(at + 2 * GRAIN, GRAIN, 0, two, 0), CUDA_SUCCESS);
    CHECK_EQ(cuMemMap(at + 3 * GRAIN, GRAIN, GRAIN, one, 0), CUDA_SUCCESS); /* part of the first one, mapped again */
    CHECK_EQ(cuMemRelease(one), CUDA_SUCCESS);
    CHECK_EQ(cuMemRelease(two), CUDA_SUCCESS);
    check_both(3 * GRAIN);
    CHECK_EQ(cuMemUnmap(at, GRAIN), CUDA_ERROR_INVALID_VALUE); /* half a mapping: nothing happens */
    check_both(3 * GRAIN);
    CHECK_EQ(cuMemUnmap(at, 3 * GRAIN), CUDA_SUCCESS);
    check_both(2 * GRAIN);
    CHECK_EQ(cuMemUnmap(at + 3 * GRAIN, GRAIN), CUDA_SUCCESS);
    check_both(0);
    CHECK_EQ(cuMemAddressFree(at, 4 * GRAIN), CUDA_SUCCESS);
}

TEST(a_handle_found_by_address_keeps_the_memory)
{
    CUmemGenericAllocationHandle handle = 0, again = 0;
    CUdeviceptr at = 0;
    start_under(LIMIT);
    CHECK_EQ(cuMemCreate(&handle, 2 * GRAIN, &on_card, 0), CUDA_SUCCESS);
    CHECK_EQ(cuMemAddressReserve(&at, 2 * GRAIN, 0, 0, 0), CUDA_SUCCESS);
    CHECK_EQ(cuMemMap(at, 2 * GRAIN, 0, handle, 0), CUDA_SUCCESS);
    CHECK_EQ(cuMemRelease(handle), CUDA_SUCCESS);
    CHECK_EQ(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)(at + GRAIN)), CUDA_SUCCESS);
    CHECK_EQ(cuMemUnmap(at, 2 * GRAIN), CUDA_SUCCESS);
    check_both(2 * GRAIN);
    CHECK_EQ(cuMemRelease(again), CUDA_SUCCESS);
    check_both(0);
    CHECK_EQ(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)at), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ(cuMemAddressFree(at, 2 * GRAIN), CUDA_SUCCESS);
}

TEST(memory_bound_to_a_multicast_object_stays_charged)
{
    CUmemGenericAllocationHandle handle = 0;
    uint64_t before;
    start_under(LIMIT);
    before = stage_ledger_sum();
    CHECK_EQ(cuMemCreate(&handle, GRAIN, &on_card, 0), CUDA_SUCCESS);
    CHECK_EQ(cuMulticastBindMem(1, 0, handle, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ(cuMulticastBindMem(1, 0, handle, 0, GRAIN, 0), CUDA_SUCCESS);
    CHECK_EQ(cuMemRelease(handle), CUDA_SUCCESS);
    check_both(before + GRAIN);
}

TEST(a_failed_binding_keeps_nothing)
{
    CUmemGenericAllocationHandle handle = 0;
    start_under(LIMIT);
    uint64_t before = stage_ledger_sum();
    CHECK_EQ(cuMemCreate(&handle, GRAIN, &on_card, 0), CUDA_SUCCESS);
    CHECK_EQ(cuMulticastBindMem(1, 0, handle, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ(cuMemRelease(handle), CUDA_SUCCESS);
    check_both(before);
}

TEST(memory_goes_to_the_device_that_was_asked_for_not_to_the_current_one)
{
    CUmemAllocationProp second = on_card, host = on_card;
    CUmemGenericAllocationHandle handle = 0;
    start_under(LIMIT);
    uint64_t before = stage_ledger_sum();
    second.location_id = 1; /* not on the page */
    CHECK_EQ(cuMemCreate(&handle, GRAIN, &second, 0), CUDA_ERROR_OUT_OF_MEMORY);
    host.location_type = CU_MEM_LOCATION_TYPE_HOST;
    CHECK_EQ(cuMemCreate(&handle, GRAIN, &host, 0), CUDA_SUCCESS);
    CHECK_EQ(stage_ledger_sum(), before);
    CHECK_EQ(cuMemRelease(handle), CUDA_SUCCESS);
}

TEST(the_driver_judges_what_is_wrong)
{
    CUmemGenericAllocationHandle handle = 0;
    start_under(LIMIT);
    uint64_t before = stage_ledger_sum();
    CHECK_EQ(cuMemCreate(NULL, GRAIN, &on_card, 0), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ(cuMemCreate(&handle, 0, &on_card, 0), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ(cuMemCreate(&handle, 1, &on_card, 0), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ(cuMemCreate(&handle, GRAIN, NULL, 0), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ(cuMemRelease(0), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ(cuMemUnmap(0, GRAIN), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ(cuMemMap(0, GRAIN, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ(stage_ledger_sum(), before);
}

static void *make_and_break(void *argument)
{
    unsigned seed = (unsigned)(uintptr_t)argument;
    for (int round = 0; round < 300; round++) {
        CUmemGenericAllocationHandle handle = 0;
        CUdeviceptr at = 0;
        size_t bytes = GRAIN * (1 + (size_t)rand_r(&seed) % 12);
        if (cuMemCreate(&handle, bytes, &on_card, 0) != CUDA_SUCCESS) {
            continue;
        }
        if (cuMemAddressReserve(&at, bytes, 0, 0, 0) != CUDA_SUCCESS || cuMemMap(at, bytes, 0, handle, 0) != CUDA_SUCCESS) {
            return argument;
        }
        int release_first = rand_r(&seed) % 2;
        if (release_first && cuMemRelease(handle) != CUDA_SUCCESS) {
            return argument;
        }
        if (cuMemUnmap(at, bytes) != CUDA_SUCCESS || (!release_first && cuMemRelease(handle) != CUDA_SUCCESS)) {
            return argument;
        }
        cuMemAddressFree(at, bytes);
    }
    return NULL;
}

TEST(a_device_that_does_not_exist_is_the_driver_s_to_refuse)
{
    static const int none[] = {-1, 2, 63, 64, INT_MAX};
    CUmemGenericAllocationHandle handle = 0;
    start_under(LIMIT);
    uint64_t before = stage_ledger_sum();
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++) {
        CUmemAllocationProp prop = on_card;
        prop.location_id = none[i];
        CHECK_EQ(cuMemCreate(&handle, GRAIN, &prop, 0), CUDA_ERROR_INVALID_DEVICE);
    }
    CHECK_EQ(stage_ledger_sum(), before);
}

TEST(threads_whose_handles_are_reused_by_each_other_never_overshoot_and_leave_nothing)
{
    pthread_t threads[4];
    start_under(LIMIT);
    uint64_t before = stage_ledger_sum();
    stage_card_reset_peak();
    for (uintptr_t i = 0; i < 4; i++) {
        CHECK(pthread_create(&threads[i], NULL, make_and_break, (void *)(i + 1)) == 0);
    }
    for (int i = 0; i < 4; i++) {
        void *failed;
        pthread_join(threads[i], &failed);
        CHECK(failed == NULL);
    }
    CHECK(stage_card_peak() <= LIMIT);
    check_both(before);
}

int main(int argc, char **argv)
{
    (void)argc;
    stage_enter(argv, NULL);
    return t_run();
}
