/* test_oversubscription.c - a limit above the device memory of the slice: the excess becomes managed memory. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "on_card.h"

#define MIB (UINT64_C(1) << 20)
#define PHYSICAL (64 * MIB)
#define LIMIT (160 * MIB)

static void start(uint64_t limit, uint64_t physical)
{
    stage_grant(limit);
    stage_page()->devices[0].physical_bytes = physical;
    use_card();
    stage_card_reset_peak();
}

static uint64_t managed_sum(void)
{
    const struct vgpu_region *region = stage_region();
    uint64_t sum = 0;
    for (uint32_t i = 0; i < region->slot_high; i++) {
        sum += region->slots[i].managed[0];
    }
    return sum * VGPU_MANAGED_UNIT;
}

static CUresult linear(CUdeviceptr *out, size_t bytes)
{
    return cuMemAlloc_v2(out, bytes);
}

static CUresult pitched(CUdeviceptr *out, size_t bytes)
{
    size_t pitch = 0;
    CUresult result = cuMemAllocPitch_v2(out, &pitch, 512, bytes / 512, 4);
    return result == CUDA_SUCCESS && pitch != 512 ? CUDA_ERROR_UNKNOWN : result;
}

TEST(what_the_share_has_no_room_for_is_managed_up_to_the_limit)
{
    static CUresult (*const kinds[])(CUdeviceptr *, size_t) = {linear, pitched};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        CUdeviceptr on_card, beside, rest, more;
        start(LIMIT, PHYSICAL);
        CHECK_EQ(kinds[i](&on_card, 60 * MIB), CUDA_SUCCESS);
        CHECK_EQ(kinds[i](&beside, 90 * MIB), CUDA_SUCCESS);
        CHECK_EQ(stage_ledger_sum(), 60 * MIB);
        CHECK_EQ(managed_sum(), 90 * MIB);
        CHECK_EQ(stage_card_used(), 60 * MIB);
        CHECK_EQ(kinds[i](&more, 11 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
        CHECK_EQ(kinds[i](&rest, 10 * MIB), CUDA_SUCCESS);
        CHECK_EQ(kinds[i](&more, 512), CUDA_ERROR_OUT_OF_MEMORY);
        CHECK_EQ(cuMemFree_v2(beside), CUDA_SUCCESS);
        CHECK_EQ(cuMemFree_v2(rest), CUDA_SUCCESS);
        CHECK_EQ(managed_sum(), 0);
        CHECK_EQ(cuMemFreeAsync(on_card, NULL), CUDA_SUCCESS);
        CHECK_EQ(stage_ledger_sum(), 0);
        CHECK(stage_card_peak() <= PHYSICAL);
    }
}

TEST(managed_memory_counts_against_the_limit_only)
{
    CUdeviceptr managed, linear_too, more;
    start(LIMIT, PHYSICAL);
    CHECK_EQ(cuMemAllocManaged(&managed, 96 * MIB, CU_MEM_ATTACH_GLOBAL), CUDA_SUCCESS);
    CHECK_EQ(cuMemAlloc_v2(&linear_too, PHYSICAL), CUDA_SUCCESS);
    CHECK_EQ(stage_card_used(), PHYSICAL);
    CHECK_EQ(cuMemAllocManaged(&more, 1, CU_MEM_ATTACH_GLOBAL), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ(cuMemFree_v2(managed), CUDA_SUCCESS);
    CHECK_EQ(cuMemFree_v2(linear_too), CUDA_SUCCESS);
}

TEST(without_oversubscription_managed_memory_counts_in_full)
{
    CUdeviceptr managed, more;
    start(LIMIT, 0);
    CHECK_EQ(cuMemAllocManaged(&managed, LIMIT, CU_MEM_ATTACH_GLOBAL), CUDA_SUCCESS);
    CHECK_EQ(stage_ledger_sum(), LIMIT);
    CHECK_EQ(cuMemAlloc_v2(&more, 512), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ(cuMemFree_v2(managed), CUDA_SUCCESS);
}

TEST(what_cannot_be_managed_stays_within_the_share)
{
    CUdeviceptr out;
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp prop = {.type = 1, .location_type = CU_MEM_LOCATION_TYPE_DEVICE};
    start(LIMIT, PHYSICAL);
    CHECK_EQ(cuMemAllocAsync(&out, PHYSICAL + 512, NULL), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ(cuMemCreate(&handle, PHYSICAL + 2 * MIB, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ(stage_ledger_sum(), 0);
}

TEST(views_show_the_whole_slice_even_where_it_is_more_than_the_device)
{
    CUdeviceptr on_card, beside;
    size_t free_bytes, total;
    start(2 * STAGE_CARD_BYTES, PHYSICAL);
    CHECK_EQ(cuMemAlloc_v2(&on_card, PHYSICAL), CUDA_SUCCESS);
    CHECK_EQ(cuMemAlloc_v2(&beside, 10 * MIB), CUDA_SUCCESS);
    CHECK_EQ(cuMemGetInfo_v2(&free_bytes, &total), CUDA_SUCCESS);
    CHECK_EQ(total, 2 * STAGE_CARD_BYTES);
    CHECK_EQ(free_bytes, 2 * STAGE_CARD_BYTES - PHYSICAL - 10 * MIB);
    CHECK_EQ(cuMemFree_v2(on_card), CUDA_SUCCESS);
    CHECK_EQ(cuMemFree_v2(beside), CUDA_SUCCESS);
}

TEST(a_context_takes_its_managed_memory_with_it)
{
    CUdeviceptr beside;
    CUcontext own;
    start(LIMIT, PHYSICAL);
    CHECK_EQ(cuCtxCreate_v2(&own, 0, 0), CUDA_SUCCESS);
    CHECK_EQ(cuMemAlloc_v2(&beside, PHYSICAL + MIB), CUDA_SUCCESS);
    CHECK_EQ(cuCtxDestroy_v2(own), CUDA_SUCCESS);
    CHECK_EQ(managed_sum(), 0);
}

static void *fill(void *argument)
{
    CUcontext context;
    CUdeviceptr out;
    unsigned seed = (unsigned)(uintptr_t)argument;
    if (cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS || cuCtxSetCurrent(context) != CUDA_SUCCESS) {
        return argument;
    }
    for (int misses = 0; misses < 20;) {
        size_t bytes = (1 + rand_r(&seed) % 4) * 512 * 1024;
        misses = cuMemAlloc_v2(&out, bytes) == CUDA_SUCCESS ? 0 : misses + 1;
    }
    return NULL;
}

TEST(threads_that_fill_both_exceed_neither)
{
    pthread_t threads[4];
    start(LIMIT, PHYSICAL);
    for (uintptr_t i = 0; i < 4; i++) {
        CHECK(pthread_create(&threads[i], NULL, fill, (void *)(i + 1)) == 0);
    }
    for (int i = 0; i < 4; i++) {
        void *failed;
        pthread_join(threads[i], &failed);
        CHECK(failed == NULL);
    }
    CHECK(stage_card_peak() <= PHYSICAL && stage_card_peak() > PHYSICAL - 2 * MIB);
    CHECK(stage_ledger_sum() + managed_sum() <= LIMIT);
    CHECK(stage_ledger_sum() + managed_sum() > LIMIT - 2 * MIB);
    CHECK_EQ(cuDevicePrimaryCtxReset_v2(0), CUDA_SUCCESS);
    CHECK_EQ(stage_ledger_sum() + managed_sum(), 0);
}

int main(int argc, char **argv)
{
    (void)argc;
    stage_enter(argv, "managed_lazy=1");
    return t_run();
}
