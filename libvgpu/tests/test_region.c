/* test_region.c - another user of the container truncates the usage region's file while programs use it. */
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "child.h"
#include "on_card.h"
#include "work.h"

#define MIB (UINT64_C(1) << 20)
#define LIMIT (100 * MIB)

static CUdeviceptr held;

static void hold_some(void *argument)
{
    (void)argument;
    use_card();
    CHECK_EQ(cuMemAlloc_v2(&held, MIB), CUDA_SUCCESS);
}

/* Truncate the file. Every user of the container may do this, because all of them may write it. */
static void cut(size_t bytes)
{
    CHECK(truncate(getenv("VGPU_USAGE_REGION"), (off_t)bytes) == 0);
}

static void fails_to_allocate(void *argument)
{
    CUdeviceptr more;
    size_t free_bytes = 0, total = 1;
    (void)argument;
    CHECK_EQ(cuMemAlloc_v2(&more, MIB), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ(cuMemAllocManaged(&more, MIB, CU_MEM_ATTACH_GLOBAL), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ(cuMemGetInfo_v2(&free_bytes, &total), CUDA_SUCCESS);
    CHECK_EQ(total, 0);
    CHECK_EQ(cuMemFree_v2(held), CUDA_SUCCESS);
    CHECK_EQ(cuMemAlloc_v2(&more, MIB), CUDA_ERROR_OUT_OF_MEMORY);
}

static void frees_first(void *argument)
{
    CUdeviceptr more;
    (void)argument;
    CHECK_EQ(cuMemFree_v2(held), CUDA_SUCCESS);
    CHECK_EQ(cuMemAlloc_v2(&more, MIB), CUDA_ERROR_OUT_OF_MEMORY);
}

static void asks_first(void *argument)
{
    size_t free_bytes = 0, total = 1;
    nvmlMemory_t memory = {0};
    nvmlDevice_t device;
    (void)argument;
    CHECK_EQ(cuMemGetInfo_v2(&free_bytes, &total), CUDA_SUCCESS);
    CHECK_EQ(total, 0);
    CHECK_EQ(nvmlInit_v2(), NVML_SUCCESS);
    CHECK_EQ(nvmlDeviceGetHandleByUUID(stage_uuid[0], &device), NVML_SUCCESS);
    CHECK_EQ(nvmlDeviceGetMemoryInfo(device, &memory), NVML_SUCCESS);
    CHECK_EQ(memory.total, 0);
}

static void lists_first(void *argument)
{
    nvmlProcessUtilizationSample_t samples[8];
    unsigned count = 8;
    nvmlDevice_t device;
    (void)argument;
    CHECK_EQ(nvmlInit_v2(), NVML_SUCCESS);
    CHECK_EQ(nvmlDeviceGetHandleByUUID(stage_uuid[0], &device), NVML_SUCCESS);
    CHECK_EQ(nvmlDeviceGetProcessUtilization(device, samples, &count, 0), NVML_ERROR_NOT_FOUND);
}

/* The share still holds: later launches wait for the kernels before them. */
static void launches_on(void *argument)
{
    CUfunction kernel = work_kernel("busy_5ms");
    uint64_t begun = work_now_ns(), busy = work_busy_ns();
    (void)argument;
    for (int i = 0; i < 20; i++) {
        CHECK_EQ(work_launch(kernel, 108 * 8, NULL), CUDA_SUCCESS);
    }
    CHECK_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    CHECK((work_busy_ns() - busy) * 10 < (work_now_ns() - begun) * 7);
}

static void begin_work(void *argument)
{
    (void)argument;
    work_begin();
    CHECK_EQ(cuMemAlloc_v2(&held, MIB), CUDA_SUCCESS);
    launches_on(NULL);
}

/* A process that is inside the library at that very moment can still be hit, so wait for the clock's next tick. */
static void let_a_tick_pass(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
}

static void check_survives(void (*first)(void *), void (*then)(void *), size_t left)
{
    cut(0);
    cut(VGPU_REGION_BYTES);
    stage_grant(LIMIT);
    stage_page()->devices[0].cores_percent = 30;
    stage_page()->devices[0].core_policy = VGPU_CORES_FORCE;
    struct child it = begin(first, then, NULL);
    let_a_tick_pass();
    cut(left);
    go_on(it);
    end(it);
}

TEST(a_region_cut_short_denies_and_ends_no_process)
{
    check_survives(hold_some, fails_to_allocate, 0);
    check_survives(hold_some, frees_first, 0);
    check_survives(hold_some, asks_first, 0);
    check_survives(begin_work, lists_first, 0);
    check_survives(hold_some, fails_to_allocate, VGPU_REGION_BYTES / 2);
    check_survives(hold_some, frees_first, VGPU_REGION_BYTES - 4096);
}

TEST(a_program_that_launches_goes_on_within_its_share_when_the_region_is_cut_short)
{
    check_survives(begin_work, launches_on, 0);
}

int main(int argc, char **argv)
{
    (void)argc;
    stage_enter(argv, "fork_works=1");
    return t_run();
}
