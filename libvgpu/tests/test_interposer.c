/* test_interposer.c - a library of the program that interposes a driver function by linking sees the same calls as without us. */
#include <dlfcn.h>
#include <stdlib.h>

#include "on_card.h"

#define MIB (UINT64_C(1) << 20)
#define LIMIT (100 * MIB)

extern unsigned cache_seen;

static void free_one(CUresult (*free_it)(CUdeviceptr))
{
    CUdeviceptr memory = 0, more = 0;
    unsigned before = cache_seen;
    start_under(LIMIT);
    CHECK_EQ(cuMemAlloc_v2(&memory, LIMIT), CUDA_SUCCESS);
    CHECK_EQ(cuMemAlloc_v2(&more, 1), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ(free_it(memory), CUDA_SUCCESS);
    CHECK_EQ(cache_seen, before + 1);
    check_both(0);
    CHECK_EQ(free_it(memory), CUDA_ERROR_INVALID_VALUE);
    check_both(0);
}

TEST(an_interposed_free_is_seen_and_memory_comes_back_once)
{
    free_one(cuMemFree_v2);
}

TEST(so_it_is_where_the_interposer_opens_the_driver)
{
    setenv("CACHE_BY_HANDLE", "1", 1);
    free_one(cuMemFree_v2);
    unsetenv("CACHE_BY_HANDLE");
}

int main(int argc, char **argv)
{
    (void)argc;
    stage_enter(argv, NULL);
    return t_run();
}
