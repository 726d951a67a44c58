/* test_pool.c - pools that grow by chunks and cache freed memory, on the simulated device. */
#include <pthread.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "on_card.h"

#define MIB (UINT64_C(1) << 20)
#define CHUNK (32 * MIB) /* defined in the machine below */
#define LIMIT (4 * CHUNK)

enum { RELEASE_THRESHOLD = 4 };

static CUmemoryPool pool_that_keeps(uint64_t bytes)
{
    CUmemPoolProps props = {.alloc_type = 1, .location_type = CU_MEM_LOCATION_TYPE_DEVICE};
    CUmemoryPool pool = NULL;
    CHECK_EQ(cuMemPoolCreate(&pool, &props), CUDA_SUCCESS);
    CHECK_EQ(cuMemPoolSetAttribute(pool, RELEASE_THRESHOLD, &bytes), CUDA_SUCCESS);
    return pool;
}

TEST(a_pool_is_charged_for_what_it_reserved_not_for_what_was_asked)
{
    CUdeviceptr small = 0, more = 0;
    start_under(LIMIT);
    CHECK_EQ(cuMemAllocAsync(&small, 1, NULL), CUDA_SUCCESS);
    check_both(CHUNK);
    CHECK_EQ(cuMemAllocAsync(&more, MIB, NULL), CUDA_SUCCESS);
    check_both(CHUNK);
    CHECK_EQ(cuMemFreeAsync(small, NULL), CUDA_SUCCESS);
    CHECK_EQ(cuMemFreeAsync(more, NULL), CUDA_SUCCESS);
    CHECK_EQ(cuStreamSynchronize(NULL), CUDA_SUCCESS);
    check_both(0);
}

TEST(a_synchronisation_of_any_kind_gives_back_what_the_pool_let_go)
{
    CUdeviceptr out = 0;
    CUevent event;
    start_under(LIMIT);
    CHECK_EQ(cuEventCreate(&event, 0), CUDA_SUCCESS);
    for (int way = 0; way < 5; way++) {
        CHECK_EQ(cuMemAllocAsync(&out, 2 * CHUNK, NULL), CUDA_SUCCESS);
        CHECK_EQ(cuMemFreeAsync(out, NULL), CUDA_SUCCESS);
        check_both(2 * CHUNK); /* the device has not caught up yet */
        CHECK_EQ(way == 0   ? cuCtxSynchronize()
                 : way == 1 ? cuStreamSynchronize(NULL)
                 : way == 2 ? cuStreamSynchronize_ptsz(NULL)
                 : way == 3 ? cuEventSynchronize(event)
                            : cuMemPoolTrimTo(NULL, 0),
                 way == 4 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS);
        check_both(way == 4 ? 2 * CHUNK : 0);
    }
    CHECK_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
}

TEST(memory_that_a_pool_keeps_stays_charged_until_it_is_trimmed)
{
    CUdeviceptr out = 0;
    start_under(LIMIT);
    CUmemoryPool pool = pool_that_keeps(UINT64_MAX);
    CHECK_EQ(cuMemAllocFromPoolAsync(&out, 3 * CHUNK, pool, NULL), CUDA_SUCCESS);
    CHECK_EQ(cuMemFreeAsync(out, NULL), CUDA_SUCCESS);
    CHECK_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    check_both(3 * CHUNK);
    CHECK_EQ(cuMemPoolTrimTo(pool, CHUNK), CUDA_SUCCESS);
    check_both(CHUNK);
    CHECK_EQ(cuMemPoolDestroy(pool), CUDA_SUCCESS);
    check_both(0);
}

TEST(under_pressure_pools_are_trimmed_before_anything_is_refused)
{
    static const CUmemAllocationProp on_card = {.type = 1, .location_type = CU_MEM_LOCATION_TYPE_DEVICE};
    CUdeviceptr out = 0, all = 0;
    CUmemGenericAllocationHandle handle = 0;
    start_under(LIMIT);
    CUmemoryPool pool = pool_that_keeps(UINT64_MAX), other = pool_that_keeps(UINT64_MAX);
    for (int way = 0; way < 3; way++) {
        CHECK_EQ(cuMemAllocFromPoolAsync(&out, LIMIT, pool, NULL), CUDA_SUCCESS);
        CHECK_EQ(cuMemFreeAsync(out, NULL), CUDA_SUCCESS);
        check_both(LIMIT);
        if (way == 0) {
            CHECK_EQ(cuMemAlloc_v2(&all, LIMIT), CUDA_SUCCESS);
            CHECK_EQ(cuMemFree_v2(all), CUDA_SUCCESS);
        } else if (way == 1) {
            CHECK_EQ(cuMemCreate(&handle, LIMIT, &on_card, 0), CUDA_SUCCESS);
            CHECK_EQ(cuMemRelease(handle), CUDA_SUCCESS);
        } else {
            CHECK_EQ(cuMemAllocFromPoolAsync(&all, LIMIT, other, NULL), CUDA_SUCCESS);
            CHECK_EQ(cuMemFree_v2(all), CUDA_SUCCESS); /* a pool's memory may also be freed this way */
        }
    }
    CHECK_EQ(cuMemPoolDestroy(pool), CUDA_SUCCESS);
    CHECK_EQ(cuMemPoolDestroy(other), CUDA_SUCCESS);
    check_both(0);
}

TEST(what_a_pool_still_holds_is_never_trimmed_away)
{
    CUdeviceptr held = 0, more = 0;
    uint64_t denied;
    start_under(LIMIT);
    CHECK_EQ(cuMemAllocAsync(&held, LIMIT - CHUNK, NULL), CUDA_SUCCESS);
    CHECK_EQ(cuMemAllocAsync(&more, CHUNK, NULL), CUDA_SUCCESS);
    CHECK_EQ(cuMemFreeAsync(more, NULL), CUDA_SUCCESS);
    denied = stage_region()->columns[0].denied_count;
    CHECK_EQ(cuMemAlloc_v2(&more, CHUNK + 1), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ(cuMemAllocAsync(&more, CHUNK + 1, NULL), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ(stage_region()->columns[0].denied_count, denied + 2); /* a refusal counts once */
    CHECK_EQ(cuMemAlloc_v2(&more, CHUNK), CUDA_SUCCESS);
    CHECK_EQ(cuMemFree_v2(more), CUDA_SUCCESS);
    CHECK_EQ(cuMemFreeAsync(held, NULL), CUDA_SUCCESS);
    CHECK_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    check_both(0);
}

TEST(a_chunk_that_does_not_fit_is_taken_back)
{
    CUdeviceptr out = 0;
    start_under(CHUNK - MIB); /* the amount would fit, but its chunk does not */
    CHECK_EQ(cuMemAllocAsync(&out, MIB, NULL), CUDA_ERROR_OUT_OF_MEMORY);
    check_both(0);
    start_under(LIMIT + MIB);
    CUdeviceptr most = 0;
    CHECK_EQ(cuMemAllocAsync(&most, LIMIT, NULL), CUDA_SUCCESS);
    CHECK_EQ(cuMemAllocAsync(&out, 1, NULL), CUDA_ERROR_OUT_OF_MEMORY);
    check_both(LIMIT);
    CHECK_EQ(cuMemFree_v2(most), CUDA_SUCCESS);
    CHECK_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    check_both(0);
}

TEST(a_chunk_once_seen_is_not_tried_where_it_does_not_fit)
{
    CUdeviceptr out = 0, most = 0;
    start_under(LIMIT + MIB);
    CHECK_EQ(cuMemAllocAsync(&out, 1, NULL), CUDA_SUCCESS);
    CHECK_EQ(cuMemAllocAsync(&most, LIMIT - CHUNK, NULL), CUDA_SUCCESS);
    stage_card_reset_peak();
    CHECK_EQ(cuMemAllocFromPoolAsync(&out, MIB, pool_that_keeps(0), NULL), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(stage_card_peak() <= LIMIT);
    CHECK_EQ(cuMemFree_v2(most), CUDA_SUCCESS);
    CHECK_EQ(cuMemFree_v2(out), CUDA_SUCCESS);
    CHECK_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    check_both(0);
}

TEST(a_destroyed_pool_is_charged_until_its_last_allocation_is_freed)
{
    CUdeviceptr one = 0, two = 0;
    start_under(LIMIT);
    CUmemoryPool pool = pool_that_keeps(0);
    CHECK_EQ(cuMemAllocFromPoolAsync(&one, CHUNK, pool, NULL), CUDA_SUCCESS);
    CHECK_EQ(cuMemAllocFromPoolAsync(&two, CHUNK, pool, NULL), CUDA_SUCCESS);
    CHECK_EQ(cuMemPoolDestroy(pool), CUDA_SUCCESS);
    check_both(2 * CHUNK);
    CHECK_EQ(cuMemFreeAsync(one, NULL), CUDA_SUCCESS);
    CHECK(stage_ledger_sum() >= stage_card_used());
    CHECK_EQ(cuMemFreeAsync(two, NULL), CUDA_SUCCESS);
    check_both(0);
    CHECK_EQ(cuMemPoolDestroy(pool), CUDA_ERROR_INVALID_VALUE);
    check_both(0);
}

TEST(the_pool_a_device_was_given_is_the_one_that_is_charged)
{
    CUdeviceptr out = 0;
    CUmemoryPool before = NULL;
    start_under(LIMIT);
    CHECK_EQ(cuDeviceGetMemPool(&before, 0), CUDA_SUCCESS);
    CUmemoryPool pool = pool_that_keeps(UINT64_MAX);
    CHECK_EQ(cuDeviceSetMemPool(0, pool), CUDA_SUCCESS);
    CHECK_EQ(cuMemAllocAsync(&out, CHUNK, NULL), CUDA_SUCCESS);
    CHECK_EQ(cuMemFreeAsync(out, NULL), CUDA_SUCCESS);
    CHECK_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    check_both(CHUNK);
    CHECK_EQ(cuDeviceSetMemPool(0, before), CUDA_SUCCESS);
    CHECK_EQ(cuMemPoolDestroy(pool), CUDA_SUCCESS);
    check_both(0);
}

TEST(views_show_what_pools_let_go)
{
    CUdeviceptr out = 0;
    size_t free_bytes = 0, total = 0;
    start_under(LIMIT);
    CHECK_EQ(cuMemAllocAsync(&out, CHUNK, NULL), CUDA_SUCCESS);
    CHECK_EQ(cuMemGetInfo_v2(&free_bytes, &total), CUDA_SUCCESS);
    CHECK_EQ(free_bytes, LIMIT - CHUNK);
    CHECK_EQ(cuMemFreeAsync(out, NULL), CUDA_SUCCESS);
    CHECK_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    CHECK_EQ(cuMemGetInfo_v2(&free_bytes, &total), CUDA_SUCCESS);
    CHECK_EQ(free_bytes, LIMIT);
}

static void *churn(void *argument)
{
    unsigned seed = (unsigned)(uintptr_t)argument;
    CUmemPoolProps props = {.alloc_type = 1, .location_type = CU_MEM_LOCATION_TYPE_DEVICE};
    CUcontext context;
    uint64_t keep = 2 * CHUNK;
    CUmemoryPool pool = NULL;
    CUdeviceptr held[8] = {0};
    if (cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS || cuCtxSetCurrent(context) != CUDA_SUCCESS ||
        cuMemPoolCreate(&pool, &props) != CUDA_SUCCESS || cuMemPoolSetAttribute(pool, RELEASE_THRESHOLD, &keep)) {
        return argument;
    }
    for (int round = 0; round < 1500; round++) {
        CUdeviceptr *one = &held[rand_r(&seed) % 8];
        CUresult result;
        if (*one) {
            result = cuMemFreeAsync(*one, NULL);
            *one = 0;
        } else if (rand_r(&seed) % 2) {
            result = cuMemAllocAsync(one, 1 + (size_t)rand_r(&seed) % CHUNK, NULL);
        } else {
            result = cuMemAllocFromPoolAsync(one, 1 + (size_t)rand_r(&seed) % CHUNK, pool, NULL);
        }
        if (result != CUDA_SUCCESS && result != CUDA_ERROR_OUT_OF_MEMORY) {
            return argument;
        }
        if (rand_r(&seed) % 16 == 0 && cuCtxSynchronize() != CUDA_SUCCESS) {
            return argument;
        }
    }
    for (int i = 0; i < 8; i++) {
        if (held[i] && cuMemFreeAsync(held[i], NULL) != CUDA_SUCCESS) {
            return argument;
        }
    }
    return cuMemPoolDestroy(pool) == CUDA_SUCCESS ? NULL : argument;
}

TEST(threads_that_churn_pools_leave_nothing_and_the_ledger_covers_the_device)
{
    pthread_t threads[4];
    start_under(LIMIT);
    stage_card_reset_peak();
    for (uintptr_t i = 0; i < 4; i++) {
        CHECK(pthread_create(&threads[i], NULL, churn, (void *)(i + 1)) == 0);
    }
    for (int i = 0; i < 4; i++) {
        void *failed;
        pthread_join(threads[i], &failed);
        CHECK(failed == NULL);
    }
    CHECK_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    check_both(0);
    CHECK(stage_card_peak() <= LIMIT);
    CHECK(stage_card_peak() > LIMIT / 2);
}

int main(int argc, char **argv)
{
    (void)argc;
    stage_enter(argv, "pool_chunk_mib=32\npools_wait=1");
    return t_run();
}
