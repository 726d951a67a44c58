/* test_limit.c - how much memory a container may hold and sees, on the simulated device, with the shipped library. */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "child.h"
#include "on_card.h"

#define MIB (UINT64_C(1) << 20)
#define LIMIT (100 * MIB)

static CUresult linear(CUdeviceptr *out, size_t bytes)
{
    return cuMemAlloc_v2(out, bytes);
}

static CUresult managed(CUdeviceptr *out, size_t bytes)
{
    return cuMemAllocManaged(out, bytes, CU_MEM_ATTACH_GLOBAL);
}

static CUresult async(CUdeviceptr *out, size_t bytes)
{
    return cuMemAllocAsync(out, bytes, NULL);
}

static CUresult async_own_stream(CUdeviceptr *out, size_t bytes)
{
    CUstream stream;
    CUresult result = cuStreamCreate(&stream, 0);
    return result == CUDA_SUCCESS ? cuMemAllocAsync_ptsz(out, bytes, stream) : result;
}

static CUresult from_pool(CUdeviceptr *out, size_t bytes)
{
    CUmemoryPool pool;
    CUresult result = cuDeviceGetDefaultMemPool(&pool, 0);
    return result == CUDA_SUCCESS ? cuMemAllocFromPoolAsync(out, bytes, pool, NULL) : result;
}

static CUresult pitched(CUdeviceptr *out, size_t bytes)
{
    size_t pitch;
    return cuMemAllocPitch_v2(out, &pitch, 512, (bytes + 511) / 512, 4);
}

TEST(every_kind_of_memory_fits_to_the_exact_byte_and_comes_back)
{
    static CUresult (*const kinds[])(CUdeviceptr *, size_t) = {linear, managed, async, async_own_stream, from_pool, pitched};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        CUdeviceptr all = 0, most = 0, rest = 0, more = 0;
        start_under(LIMIT);
        CHECK_EQ(kinds[i](&more, LIMIT + 1), CUDA_ERROR_OUT_OF_MEMORY);
        CHECK_EQ(kinds[i](&all, LIMIT), CUDA_SUCCESS);
        CHECK_EQ(kinds[i](&more, 1), CUDA_ERROR_OUT_OF_MEMORY);
        CHECK_EQ(stage_card_used(), LIMIT);
        CHECK_EQ(stage_ledger_sum(), LIMIT);
        CHECK_EQ(cuMemFree_v2(all), CUDA_SUCCESS);
        CHECK_EQ(kinds[i](&most, LIMIT - 512), CUDA_SUCCESS);
        CHECK_EQ(kinds[i](&more, 513), CUDA_ERROR_OUT_OF_MEMORY);
        CHECK_EQ(kinds[i](&rest, 1), CUDA_SUCCESS);
        CHECK_EQ(kinds[i](&more, 1), CUDA_ERROR_OUT_OF_MEMORY);
        CHECK_EQ(cuMemFreeAsync(most, NULL), CUDA_SUCCESS);
        CHECK_EQ(cuMemFreeAsync_ptsz(rest, NULL), CUDA_SUCCESS);
        CHECK_EQ(stage_ledger_sum(), 0);
        CHECK_EQ(stage_card_used(), 0);
    }
    CHECK_EQ(stage_card_peak(), LIMIT);
}

TEST(a_limit_between_two_grains_is_never_exceeded)
{
    CUdeviceptr one = 0, more = 0;
    start_under(1000);
    CHECK_EQ(cuMemAlloc_v2(&one, 1), CUDA_SUCCESS);
    CHECK_EQ(cuMemAlloc_v2(&more, 1), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ(cuMemFree_v2(one), CUDA_SUCCESS);
}

TEST(the_driver_judges_what_is_wrong)
{
    CUdeviceptr out = 0;
    size_t pitch;
    start_under(LIMIT);
    CHECK_EQ(cuMemAlloc_v2(NULL, 512), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ(cuMemAlloc_v2(&out, 0), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ(cuMemAllocPitch_v2(&out, &pitch, 512, 1, 3), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ(cuMemAlloc_v2(&out, SIZE_MAX), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ(cuMemAllocPitch_v2(&out, &pitch, SIZE_MAX, SIZE_MAX, 4), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ(cuMemFree_v2(12345), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ(cuMemFree_v2(0), CUDA_SUCCESS);
    CHECK_EQ(stage_ledger_sum(), 0);
}

TEST(a_double_free_gives_nothing_back_twice)
{
    CUdeviceptr a = 0, b = 0;
    start_under(LIMIT);
    CHECK_EQ(cuMemAlloc_v2(&a, MIB), CUDA_SUCCESS);
    CHECK_EQ(cuMemAlloc_v2(&b, MIB), CUDA_SUCCESS);
    CHECK_EQ(cuMemFree_v2(a), CUDA_SUCCESS);
    CHECK_EQ(cuMemFree_v2(a), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ(stage_ledger_sum(), MIB);
    CHECK_EQ(cuMemFree_v2(b), CUDA_SUCCESS);
}

TEST(memory_the_driver_refuses_is_not_charged)
{
    CUdeviceptr out = 0;
    start_under(STAGE_CARD_BYTES * 2);
    CHECK_EQ(cuMemAlloc_v2(&out, STAGE_CARD_BYTES + 512), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ(stage_ledger_sum(), 0);
}

TEST(views_show_the_slice)
{
    CUdeviceptr out = 0;
    size_t free_bytes = 0, total = 0;
    nvmlDevice_t device;
    nvmlMemory_t memory;
    nvmlMemory_v2_t memory2 = {.version = NVML_MEMORY_V2};
    unsigned old_free = 0, old_total = 0;
    start_under(LIMIT);
    CHECK_EQ(cuMemAlloc_v2(&out, 30 * MIB), CUDA_SUCCESS);
    CHECK_EQ(cuMemGetInfo_v2(&free_bytes, &total), CUDA_SUCCESS);
    CHECK_EQ(total, LIMIT);
    CHECK_EQ(free_bytes, 70 * MIB);
    CHECK_EQ(cuMemGetInfo(&old_free, &old_total), CUDA_SUCCESS);
    CHECK_EQ(old_total, LIMIT);
    CHECK_EQ(cuMemGetInfo_v2(NULL, &total), CUDA_SUCCESS);
    CHECK_EQ(cuDeviceTotalMem_v2(&total, 0), CUDA_SUCCESS);
    CHECK_EQ(total, LIMIT);
    CHECK_EQ(nvmlInit_v2(), NVML_SUCCESS);
    CHECK_EQ(nvmlDeviceGetHandleByUUID(stage_uuid[0], &device), NVML_SUCCESS);
    CHECK_EQ(nvmlDeviceGetMemoryInfo(device, &memory), NVML_SUCCESS);
    CHECK(memory.total == LIMIT && memory.used == 30 * MIB && memory.free == 70 * MIB);
    CHECK_EQ(nvmlDeviceGetMemoryInfo_v2(device, &memory2), NVML_SUCCESS);
    CHECK(memory2.total == LIMIT && memory2.used == 30 * MIB && memory2.free == 70 * MIB && memory2.reserved == 0);
    memory2.version = 1;
    CHECK_EQ(nvmlDeviceGetMemoryInfo_v2(device, &memory2), NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    CHECK_EQ(cuMemFree_v2(out), CUDA_SUCCESS);
}

static int in_child(void (*work)(void))
{
    pid_t child = fork();
    if (child == 0) {
        _exit(!t_passes(work));
    }
    int status = 1;
    waitpid(child, &status, 0);
    return status;
}

static void hold_as_a_child(void)
{
    CUdeviceptr out = 0;
    nvmlDevice_t device;
    nvmlProcessInfo_t list[8];
    nvmlProcessInfo_v1_t old[8];
    unsigned count = 0, sum = 0;
    CHECK_EQ(cuMemAlloc_v2(&out, 20 * MIB), CUDA_SUCCESS);
    CHECK_EQ(nvmlInit_v2(), NVML_SUCCESS);
    CHECK_EQ(nvmlDeviceGetHandleByUUID(stage_uuid[0], &device), NVML_SUCCESS);
    CHECK_EQ(nvmlDeviceGetComputeRunningProcesses_v3(device, &count, NULL), NVML_ERROR_INSUFFICIENT_SIZE);
    CHECK_EQ(count, 2);
    CHECK_EQ(nvmlDeviceGetComputeRunningProcesses_v3(device, &count, list), NVML_SUCCESS);
    for (unsigned i = 0; i < count; i++) {
        int mine = list[i].pid == (unsigned)getpid();
        CHECK(mine || list[i].pid == (unsigned)getppid());
        CHECK_EQ(list[i].usedGpuMemory, (mine ? 20 : 30) * MIB);
        sum += list[i].pid;
    }
    CHECK_EQ(nvmlDeviceGetComputeRunningProcesses_v2(device, &count, list), NVML_SUCCESS);
    count = 8;
    CHECK_EQ(nvmlDeviceGetComputeRunningProcesses(device, &count, old), NVML_SUCCESS);
    CHECK_EQ(count, 2);
    CHECK_EQ(old[0].pid + old[1].pid, sum);
    CHECK_EQ(old[0].usedGpuMemory + old[1].usedGpuMemory, 50 * MIB);
    CHECK_EQ(nvmlDeviceGetComputeRunningProcesses_v3(device, NULL, list), NVML_ERROR_INVALID_ARGUMENT);
    CHECK_EQ(nvmlDeviceGetComputeRunningProcesses_v3(device, &count, NULL), NVML_ERROR_INVALID_ARGUMENT);
}

TEST(process_lists_name_the_processes_of_the_container_alone)
{
    CUdeviceptr out = 0;
    nvmlDevice_t second;
    unsigned count = 0;
    start_under(LIMIT);
    CHECK_EQ(cuMemAlloc_v2(&out, 30 * MIB), CUDA_SUCCESS);
    CHECK_EQ(in_child(hold_as_a_child), 0);
    CHECK_EQ(nvmlInit_v2(), NVML_SUCCESS);
    CHECK_EQ(nvmlDeviceGetHandleByUUID(stage_uuid[1], &second), NVML_SUCCESS);
    CHECK_EQ(nvmlDeviceGetComputeRunningProcesses_v3(second, &count, NULL), NVML_SUCCESS);
    CHECK_EQ(count, 0);
    CHECK_EQ(nvmlDeviceGetComputeRunningProcesses_v3(NULL, &count, NULL), NVML_ERROR_INVALID_ARGUMENT);
    CHECK_EQ(cuMemFree_v2(out), CUDA_SUCCESS);
}

TEST(a_changed_page_holds_from_the_next_call_on)
{
    CUdeviceptr a = 0, b = 0;
    size_t free_bytes = 0, total = 0;
    start_under(LIMIT);
    CHECK_EQ(cuMemAlloc_v2(&a, LIMIT), CUDA_SUCCESS);
    CHECK_EQ(cuMemAlloc_v2(&b, MIB), CUDA_ERROR_OUT_OF_MEMORY);
    stage_grant(LIMIT + MIB);
    CHECK_EQ(cuMemAlloc_v2(&b, MIB), CUDA_SUCCESS);
    stage_grant(MIB);
    CHECK_EQ(cuMemFree_v2(b), CUDA_SUCCESS);
    CHECK_EQ(cuMemAlloc_v2(&b, 1), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ(cuMemGetInfo_v2(&free_bytes, &total), CUDA_SUCCESS);
    CHECK(total == MIB && free_bytes == 0);
    CHECK_EQ(cuMemFree_v2(a), CUDA_SUCCESS);
    CHECK_EQ(cuMemAlloc_v2(&b, MIB), CUDA_SUCCESS);
    CHECK_EQ(cuMemFree_v2(b), CUDA_SUCCESS);
}

static void check_denied(void)
{
    CUdeviceptr out = 0;
    size_t free_bytes = 1, total = 1;
    CHECK_EQ(cuMemAlloc_v2(&out, 1), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ(cuMemAllocManaged(&out, 1, CU_MEM_ATTACH_GLOBAL), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ(cuMemGetInfo_v2(&free_bytes, &total), CUDA_SUCCESS);
    CHECK(total == 0 && free_bytes == 0);
}

TEST(denying_closed_torn_and_erased_pages_deny_and_a_good_one_grants_again)
{
    CUdeviceptr out = 0;
    start_under(LIMIT);
    stage_state(VGPU_PAGE_DENY);
    check_denied();
    stage_state(VGPU_PAGE_CLOSED);
    check_denied();
    stage_grant(LIMIT);
    stage_page()->seq |= 1; /* a writer died half-way */
    check_denied();
    stage_grant(LIMIT);
    memset(stage_page(), 0, VGPU_PAGE_BYTES);
    check_denied();
    memset(stage_page(), 0xa5, VGPU_PAGE_BYTES);
    check_denied();
    memset(stage_page(), 0, VGPU_PAGE_BYTES);
    stage_grant(LIMIT);
    CHECK_EQ(cuMemAlloc_v2(&out, LIMIT), CUDA_SUCCESS);
    CHECK_EQ(cuMemFree_v2(out), CUDA_SUCCESS);
}

TEST(a_device_that_is_not_on_the_page_is_denied)
{
    CUcontext second;
    start_under(LIMIT);
    CHECK_EQ(cuDevicePrimaryCtxRetain(&second, 1), CUDA_SUCCESS);
    CHECK_EQ(cuCtxSetCurrent(second), CUDA_SUCCESS);
    check_denied();
    CHECK_EQ(cuDevicePrimaryCtxRelease_v2(1), CUDA_SUCCESS);
}

TEST(what_is_not_accounted_is_refused_under_a_limit_and_passes_without_one)
{
    enum { STUB_LIBRARY = 34 };
    CUresult (*map)(void *, unsigned, CUstream) = (CUresult (*)(void *, unsigned, CUstream))cuMemMapArrayAsync;
    start_under(LIMIT);
    CHECK_EQ(map(NULL, 0, NULL), CUDA_ERROR_NOT_SUPPORTED);
    start_under(VGPU_UNLIMITED);
    CHECK_EQ(map(NULL, 0, NULL), CUDA_ERROR_INVALID_VALUE); /* the driver's own figure */
}

TEST(an_unlimited_device_is_counted_and_not_limited)
{
    CUdeviceptr out = 0;
    size_t total = 0;
    start_under(VGPU_UNLIMITED);
    CHECK_EQ(cuDeviceTotalMem_v2(&total, 0), CUDA_SUCCESS);
    CHECK_EQ(total, STAGE_CARD_BYTES);
    CHECK_EQ(cuMemAlloc_v2(&out, STAGE_CARD_BYTES), CUDA_SUCCESS);
    CHECK_EQ(stage_ledger_sum(), STAGE_CARD_BYTES);
    CHECK_EQ(cuMemFree_v2(out), CUDA_SUCCESS);
}

TEST(a_context_takes_its_memory_with_it)
{
    CUdeviceptr out = 0;
    CUcontext own;
    start_under(LIMIT);
    CHECK_EQ(cuCtxCreate_v2(&own, 0, 0), CUDA_SUCCESS);
    CHECK_EQ(cuMemAlloc_v2(&out, LIMIT), CUDA_SUCCESS);
    CHECK_EQ(cuCtxDestroy_v2(own), CUDA_SUCCESS);
    CHECK_EQ(stage_ledger_sum(), 0);
    CHECK_EQ(stage_card_used(), 0);
}

TEST(a_primary_context_keeps_its_memory_until_the_last_release)
{
    CUdeviceptr out = 0;
    start_under(LIMIT);
    CHECK_EQ(cuMemAlloc_v2(&out, LIMIT), CUDA_SUCCESS);
    CHECK_EQ(cuDevicePrimaryCtxRelease_v2(0), CUDA_SUCCESS); /* earlier tests retained it too */
    CHECK_EQ(stage_ledger_sum(), LIMIT);
    while (stage_card_used()) {
        CHECK_EQ(cuDevicePrimaryCtxRelease(0), CUDA_SUCCESS);
    }
    CHECK_EQ(stage_ledger_sum(), 0);
    start_under(LIMIT);
    CHECK_EQ(cuMemAlloc_v2(&out, LIMIT), CUDA_SUCCESS);
    CHECK_EQ(cuDevicePrimaryCtxReset_v2(0), CUDA_SUCCESS);
    CHECK_EQ(stage_ledger_sum(), 0);
    CHECK_EQ(stage_card_used(), 0);
}

static CUdeviceptr of_parent;

static void allocate_as_a_child(void)
{
    CUdeviceptr out = 0;
    CHECK_EQ(cuMemAlloc_v2(&out, 61 * MIB), CUDA_ERROR_OUT_OF_MEMORY); /* the parent's 40 MiB still count */
    CHECK_EQ(cuMemAlloc_v2(&out, 60 * MIB), CUDA_SUCCESS);
    CHECK_EQ(stage_ledger_sum(), LIMIT);
    cuMemFree_v2(of_parent); /* regardless of the driver's result, the parent's charge must not change */
    CHECK_EQ(stage_ledger_sum(), LIMIT);
}

TEST(a_forked_child_has_charges_of_its_own_and_leaves_none)
{
    CUdeviceptr out = 0;
    start_under(LIMIT);
    CHECK_EQ(cuMemAlloc_v2(&of_parent, 40 * MIB), CUDA_SUCCESS);
    CHECK_EQ(in_child(allocate_as_a_child), 0);
    CHECK_EQ(cuMemAlloc_v2(&out, 60 * MIB), CUDA_SUCCESS); /* the dead child's charge was given back */
    CHECK_EQ(stage_ledger_sum(), LIMIT);
    CHECK_EQ(cuMemFree_v2(out), CUDA_SUCCESS);
    CHECK_EQ(cuMemFree_v2(of_parent), CUDA_SUCCESS);
}

static void *fill_in_thread(void *argument)
{
    CUcontext context;
    CUdeviceptr out;
    if (cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS || cuCtxSetCurrent(context) != CUDA_SUCCESS) {
        return argument;
    }
    int misses = 0;
    while (misses < 20) {
        misses = cuMemAlloc_v2(&out, 512 * 100) == CUDA_SUCCESS ? 0 : misses + 1;
    }
    return NULL;
}

TEST(threads_that_fill_the_slice_together_fill_it_and_no_more)
{
    pthread_t threads[4];
    start_under(LIMIT);
    stage_card_reset_peak();
    for (int i = 0; i < 4; i++) {
        CHECK(pthread_create(&threads[i], NULL, fill_in_thread, NULL) == 0);
    }
    for (int i = 0; i < 4; i++) {
        void *failed;
        pthread_join(threads[i], &failed);
        CHECK(failed == NULL);
    }
    CHECK_EQ(stage_card_peak(), LIMIT / 51200 * 51200);
    CHECK_EQ(stage_ledger_sum(), LIMIT / 51200 * 51200);
    CHECK_EQ(cuDevicePrimaryCtxReset_v2(0), CUDA_SUCCESS);
}

/* What a child becomes: a program that never calls a driver. */
static void become_another_program(void *argument)
{
    (void)argument;
    execl("/bin/sleep", "sleep", "60", (char *)NULL);
    _exit(9);
}

static void take_nearly_all(void *argument)
{
    CUdeviceptr memory;
    (void)argument;
    start_under(LIMIT);
    CHECK_EQ(cuMemAlloc_v2(&memory, LIMIT - MIB), CUDA_SUCCESS);
}

TEST(an_exec_into_a_program_without_cuda_gives_back_what_the_old_one_held)
{
    CUdeviceptr memory;
    size_t free_bytes = 0, total = 0;
    start_under(LIMIT);
    struct child it = begin(take_nearly_all, become_another_program, NULL);
    CHECK_EQ(cuMemAlloc_v2(&memory, 2 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    char byte = 0;
    CHECK(write(it.to, &byte, 1) == 1);
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    for (int i = 0; i < 2000 && result != CUDA_SUCCESS; i++) { /* until it has begun */
        usleep(1000);
        result = cuMemAlloc_v2(&memory, LIMIT);
    }
    CHECK_EQ(result, CUDA_SUCCESS);
    CHECK(kill(it.pid, 0) == 0);
    CHECK_EQ(stage_ledger_sum(), LIMIT);
    CHECK_EQ(cuMemFree_v2(memory), CUDA_SUCCESS);
    CHECK_EQ(cuMemGetInfo_v2(&free_bytes, &total), CUDA_SUCCESS);
    CHECK_EQ(free_bytes, LIMIT);
    end(it);
}

int main(int argc, char **argv)
{
    (void)argc;
    stage_enter(argv, "fork_works=1");
    return t_run();
}
