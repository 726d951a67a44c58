/* test_liars.c - the limits hold if a tenant preloads a library that replaces libc functions. */
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "child.h"
#include "on_card.h"
#include "work.h"

#define MIB (UINT64_C(1) << 20)
#define LIMIT (100 * MIB)
#define WHOLE (108 * 8)

static void hold_all(void *argument)
{
    CUdeviceptr memory;
    (void)argument;
    use_card();
    CHECK_EQ(cuMemAlloc_v2(&memory, LIMIT), CUDA_SUCCESS);
}

static void nothing(void *argument)
{
    (void)argument;
}

TEST(the_limit_of_memory_holds)
{
    CUdeviceptr memory;
    stage_grant(LIMIT);
    struct child it = begin(hold_all, nothing, NULL);
    use_card();
    CHECK_EQ(cuMemAlloc_v2(&memory, MIB), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ(stage_ledger_sum(), LIMIT);
    end(it);
}

TEST(the_share_holds)
{
    stage_grant(LIMIT);
    stage_page()->devices[0].cores_percent = 25;
    stage_page()->devices[0].core_policy = VGPU_CORES_FORCE;
    stage_page()->seq += 2;
    work_begin();
    CUfunction kernel = work_kernel("busy_5ms");
    uint64_t begun = work_now_ns(), busy = work_busy_ns();
    while (work_now_ns() - begun < UINT64_C(1500000000)) {
        CHECK_EQ(work_launch(kernel, WHOLE, NULL), CUDA_SUCCESS);
    }
    CHECK_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    CHECK((work_busy_ns() - busy) * 100 / (work_now_ns() - begun) < 45);
}

/* Each lie runs separately, so that none hides another. */
int main(int argc, char **argv)
{
    static const char *const lies[] = {"time", "files"};
    int failed = 0;
    (void)argc;
    stage_first = "tests/libliar.so";
    if (getenv("VGPU_STAGE")) {
        return t_run();
    }
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        int status = 0;
        pid_t child = fork();
        if (child == 0) {
            setenv("LIAR", lies[i], 1);
            stage_enter(argv, "fork_works=1");
        }
        waitpid(child, &status, 0);
        failed += !WIFEXITED(status) || WEXITSTATUS(status) != 0;
    }
    return failed != 0;
}
