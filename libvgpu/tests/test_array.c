/* test_array.c - arrays and mipmapped arrays, on the simulated device, through the library as it is shipped. */
#include "on_card.h"

#define MIB (UINT64_C(1) << 20)
#define LIMIT (16 * MIB)

static CUDA_ARRAY3D_DESCRIPTOR cube(size_t width, size_t height, size_t depth)
{
    return (CUDA_ARRAY3D_DESCRIPTOR){
        .width = width, .height = height, .depth = depth, .format = CU_AD_FORMAT_FLOAT, .channels = 4};
}

TEST(flat_arrays_count_and_come_back)
{
    CUDA_ARRAY_DESCRIPTOR what = {.width = 1024, .height = 1024, .format = CU_AD_FORMAT_FLOAT, .channels = 4};
    CUarray array, more;
    CUdeviceptr linear;
    start_under(LIMIT);
    CHECK_EQ(cuArrayCreate_v2(&array, &what), CUDA_SUCCESS);
    CHECK_EQ(stage_ledger_sum(), LIMIT);
    CHECK_EQ(stage_card_used(), LIMIT);
    CHECK_EQ(cuArrayCreate_v2(&more, &what), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ(cuMemAlloc_v2(&linear, 1), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ(cuArrayDestroy(array), CUDA_SUCCESS);
    CHECK_EQ(stage_ledger_sum(), 0);
    CHECK_EQ(cuArrayDestroy(array), CUDA_ERROR_INVALID_HANDLE);
    CHECK_EQ(stage_ledger_sum(), 0);
}

TEST(the_ledger_never_holds_less_than_the_device_whatever_the_shape)
{
    static const int formats[] = {CU_AD_FORMAT_UNSIGNED_INT8, CU_AD_FORMAT_HALF, CU_AD_FORMAT_SIGNED_INT32};
    static const size_t sizes[] = {0, 1, 7, 64, 100};
    start_under(64 * LIMIT);
    for (size_t i = 0; i < 3 * 3 * 5 * 5 * 5 * 2; i++) {
        CUDA_ARRAY3D_DESCRIPTOR what = cube(sizes[i % 5], sizes[i / 5 % 5], sizes[i / 25 % 5]);
        unsigned levels = 1 + (unsigned)(i / 125 % 2) * 9;
        CUmipmappedArray array;
        what.format = formats[i / 250 % 3];
        what.channels = 1u << i / 750;
        what.flags = i % 2 ? CUDA_ARRAY3D_LAYERED : 0;
        CUresult result = cuMipmappedArrayCreate(&array, &what, levels);
        CHECK_EQ(result, what.width ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
        CHECK(stage_ledger_sum() >= stage_card_used());
        if (result == CUDA_SUCCESS) {
            CHECK_EQ(cuMipmappedArrayDestroy(array), CUDA_SUCCESS);
        }
        CHECK_EQ(stage_ledger_sum(), 0);
        CHECK_EQ(stage_card_used(), 0);
    }
}

TEST(shapes_that_overflow_are_refused)
{
    CUDA_ARRAY3D_DESCRIPTOR what = cube(SIZE_MAX, SIZE_MAX, SIZE_MAX);
    CUarray array;
    CUmipmappedArray mipmap;
    start_under(LIMIT);
    CHECK_EQ(cuArray3DCreate_v2(&array, &what), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ(cuMipmappedArrayCreate(&mipmap, &what, 4000000000u), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ(cuArray3DCreate_v2(&array, NULL), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ(cuArray3DCreate_v2(NULL, &what), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ(stage_ledger_sum(), 0);
}

TEST(a_format_that_is_not_known_counts_as_the_largest)
{
    CUDA_ARRAY3D_DESCRIPTOR what = cube(1024, 1025, 0); /* 16 bytes an element are more than the limit */
    CUarray array;
    start_under(LIMIT);
    what.format = 0x7777;
    CHECK_EQ(cuArray3DCreate_v2(&array, &what), CUDA_ERROR_OUT_OF_MEMORY);
    what.height = 512;
    CHECK_EQ(cuArray3DCreate_v2(&array, &what), CUDA_ERROR_INVALID_VALUE); /* passed on; the driver decides */
    CHECK_EQ(stage_ledger_sum(), 0);
}

TEST(sparse_arrays_have_no_memory_of_their_own)
{
    CUDA_ARRAY3D_DESCRIPTOR what = cube(4096, 4096, 0);
    CUarray array;
    start_under(LIMIT);
    what.flags = CUDA_ARRAY3D_SPARSE;
    CHECK_EQ(cuArray3DCreate_v2(&array, &what), CUDA_SUCCESS);
    CHECK_EQ(stage_ledger_sum(), 0);
    CHECK_EQ(stage_card_used(), 0);
    CHECK_EQ(cuArrayDestroy(array), CUDA_SUCCESS);
}

TEST(a_context_takes_its_arrays_with_it)
{
    CUDA_ARRAY3D_DESCRIPTOR what = cube(512, 512, 0);
    CUarray array;
    CUmipmappedArray mipmap;
    CUcontext own;
    start_under(LIMIT);
    CHECK_EQ(cuCtxCreate_v2(&own, 0, 0), CUDA_SUCCESS);
    CHECK_EQ(cuArray3DCreate_v2(&array, &what), CUDA_SUCCESS);
    CHECK_EQ(cuMipmappedArrayCreate(&mipmap, &what, 10), CUDA_SUCCESS);
    CHECK(stage_ledger_sum() >= stage_card_used() && stage_card_used() > 0);
    CHECK_EQ(cuCtxDestroy_v2(own), CUDA_SUCCESS);
    CHECK_EQ(stage_ledger_sum(), 0);
    CHECK_EQ(stage_card_used(), 0);
}

int main(int argc, char **argv)
{
    (void)argc;
    stage_enter(argv, NULL);
    return t_run();
}
