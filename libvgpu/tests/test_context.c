/* Contexts that end while launches are held and measured. The simulated driver counts every use of something that ended with
 * its context. */
#include <stdlib.h>

#include "machine.h"
#include "stage.h"
#include "state.h"
#include "t.h"
#include "virtual_time.h"
#include "work.h"

#define MS UINT64_C(1000000)
#define WHOLE (108 * 8)

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device);
CUresult cuDevicePrimaryCtxReset_v2(CUdevice device);
CUresult cuCtxCreate_v2(CUcontext *out, unsigned flags, CUdevice device);
CUresult cuCtxDestroy_v2(CUcontext context);
CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t bytes);
CUresult cuMemFree_v2(CUdeviceptr address);

static uint64_t dead_uses(void)
{
    return state_open(machine_current())->dead_uses;
}

static void grant(unsigned cores)
{
    struct vgpu_page *page = stage_page();
    __atomic_store_n(&page->seq, page->seq | 1, __ATOMIC_SEQ_CST);
    page->devices[0].cores_percent = cores;
    page->devices[0].core_policy = VGPU_CORES_FORCE;
    __atomic_store_n(&page->seq, page->seq + 1, __ATOMIC_SEQ_CST);
}

/* Launch kernels of several lengths for `ms`, leaving some behind that have not run. */
static CUresult busy(unsigned ms)
{
    static const char *const names[] = {"busy_1ms", "busy_4ms", "busy_20ms"};
    CUmodule module;
    CUfunction kernels[3];
    CUresult result = cuModuleLoadData(&module, "image");
    for (int i = 0; i < 3 && result == CUDA_SUCCESS; i++) {
        result = cuModuleGetFunction(&kernels[i], module, names[i]);
    }
    uint64_t start = work_now_ns();
    for (unsigned i = 0; result == CUDA_SUCCESS && work_now_ns() - start < ms * MS; i++) {
        result = work_launch(kernels[i % 3], WHOLE, NULL);
        stage_name_processes();
    }
    return result;
}

TEST(the_simulated_driver_refuses_and_counts_what_ended_with_its_context)
{
    CUcontext first, again;
    CUevent event;
    CUstream stream;
    CUmodule module;
    CUfunction kernel;
    CHECK_EQ(cuInit(0), CUDA_SUCCESS);
    CHECK_EQ(cuDevicePrimaryCtxRetain(&first, 0), CUDA_SUCCESS);
    CHECK_EQ(cuCtxSetCurrent(first), CUDA_SUCCESS);
    CHECK_EQ(cuEventCreate(&event, 0), CUDA_SUCCESS);
    CHECK_EQ(cuStreamCreate(&stream, 0), CUDA_SUCCESS);
    CHECK_EQ(cuModuleLoadData(&module, "image"), CUDA_SUCCESS);
    CHECK_EQ(cuModuleGetFunction(&kernel, module, "busy_1us"), CUDA_SUCCESS);
    CHECK_EQ(cuDevicePrimaryCtxReset_v2(0), CUDA_SUCCESS);
    CHECK_EQ(cuStreamCreate(&stream, 0), CUDA_ERROR_CONTEXT_IS_DESTROYED); /* it is only still current */
    CHECK_EQ(cuDevicePrimaryCtxRetain(&again, 0), CUDA_SUCCESS);
    CHECK(again == first); /* the same handle, without anything that was created in it */
    uint64_t before = dead_uses();
    CHECK_EQ(cuEventQuery(event), CUDA_ERROR_INVALID_HANDLE);
    CHECK_EQ(cuEventRecord(event, NULL), CUDA_ERROR_INVALID_HANDLE);
    CHECK_EQ(cuStreamQuery(stream), CUDA_ERROR_INVALID_HANDLE);
    CHECK_EQ(cuStreamDestroy_v2(stream), CUDA_ERROR_INVALID_HANDLE);
    CHECK_EQ(cuEventDestroy_v2(event), CUDA_ERROR_INVALID_HANDLE);
    CHECK_EQ(cuModuleGetFunction(&kernel, module, "busy_1us"), CUDA_ERROR_INVALID_HANDLE);
    CHECK_EQ(work_launch(kernel, 1, NULL), CUDA_ERROR_INVALID_HANDLE);
    CHECK_EQ(dead_uses() - before, 7);
    CHECK_EQ(cuDevicePrimaryCtxRelease_v2(0), CUDA_SUCCESS); /* a reset releases nothing */
    CHECK_EQ(cuDevicePrimaryCtxRelease_v2(0), CUDA_SUCCESS);
    CHECK_EQ(cuDevicePrimaryCtxRelease_v2(0), CUDA_ERROR_INVALID_CONTEXT);
}

TEST(a_reset_device_is_used_on_without_touching_an_event_of_before)
{
    CUcontext context, again;
    uint64_t before = dead_uses();
    stage_grant(UINT64_C(4) << 30);
    grant(30);
    for (int round = 0; round < 6; round++) {
        CHECK_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
        CHECK_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
        CHECK_EQ(busy(300), CUDA_SUCCESS);
        CHECK_EQ(cuDevicePrimaryCtxReset_v2(0), CUDA_SUCCESS);
        CHECK_EQ(cuDevicePrimaryCtxRetain(&again, 0), CUDA_SUCCESS);
        CHECK(again == context);
        CHECK_EQ(busy(100), CUDA_SUCCESS);
    }
    CHECK_EQ(dead_uses(), before);
}

TEST(the_last_release_ends_a_primary_context_and_an_earlier_one_does_not)
{
    CUcontext context;
    uint64_t before = dead_uses();
    while (cuDevicePrimaryCtxRelease_v2(0) == CUDA_SUCCESS) {
    }
    for (int round = 0; round < 4; round++) {
        CHECK_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
        CHECK_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
        CHECK_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
        CHECK_EQ(busy(200), CUDA_SUCCESS);
        CHECK_EQ(cuDevicePrimaryCtxRelease_v2(0), CUDA_SUCCESS);
        CHECK_EQ(busy(200), CUDA_SUCCESS);
        CHECK_EQ(cuDevicePrimaryCtxRelease_v2(0), CUDA_SUCCESS);
    }
    CHECK_EQ(dead_uses(), before);
}

TEST(contexts_that_come_and_go_beside_one_that_stays_leave_no_event_behind)
{
    CUcontext stays, comes;
    uint64_t before = dead_uses();
    CHECK_EQ(cuDevicePrimaryCtxRetain(&stays, 0), CUDA_SUCCESS);
    for (int round = 0; round < 12; round++) {
        CHECK_EQ(cuCtxSetCurrent(stays), CUDA_SUCCESS);
        CHECK_EQ(busy(50), CUDA_SUCCESS);
        CHECK_EQ(cuCtxCreate_v2(&comes, 0, 0), CUDA_SUCCESS);
        CHECK_EQ(busy(100), CUDA_SUCCESS);
        CHECK_EQ(cuCtxDestroy_v2(comes), CUDA_SUCCESS);
    }
    CHECK_EQ(dead_uses(), before);
}

TEST(what_a_fault_broke_stays_broken_until_its_context_is_gone_and_leaves_no_charge)
{
    CUcontext context;
    CUmodule module;
    CUfunction fault;
    CUdeviceptr memory, more;
    CUevent event;
    uint64_t before = dead_uses();
    CHECK_EQ(cuCtxCreate_v2(&context, 0, 0), CUDA_SUCCESS);
    uint64_t held = stage_ledger_sum();
    CHECK_EQ(cuMemAlloc_v2(&memory, 1 << 20), CUDA_SUCCESS);
    CHECK_EQ(cuEventCreate(&event, 0), CUDA_SUCCESS);
    CHECK_EQ(busy(50), CUDA_SUCCESS); /* measurements are on their way */
    CHECK_EQ(cuModuleLoadData(&module, "image"), CUDA_SUCCESS);
    CHECK_EQ(cuModuleGetFunction(&fault, module, "fault_load"), CUDA_SUCCESS);
    CHECK_EQ(work_launch(fault, 1, NULL), CUDA_SUCCESS);
    for (int i = 0; i < 3; i++) {
        CHECK_EQ(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
        CHECK_EQ(work_launch(fault, 1, NULL), CUDA_ERROR_ILLEGAL_ADDRESS);
        CHECK_EQ(cuMemAlloc_v2(&more, 512), CUDA_ERROR_ILLEGAL_ADDRESS);
        CHECK_EQ(cuMemFree_v2(memory), CUDA_ERROR_ILLEGAL_ADDRESS);
        CHECK_EQ(cuEventQuery(event), CUDA_ERROR_ILLEGAL_ADDRESS);
    }
    CHECK_EQ(stage_ledger_sum(), held + (1 << 20));
    CHECK_EQ(cuCtxDestroy_v2(context), CUDA_SUCCESS);
    CHECK_EQ(stage_ledger_sum(), held);
    CHECK_EQ(cuCtxCreate_v2(&context, 0, 0), CUDA_SUCCESS);
    CHECK_EQ(busy(50), CUDA_SUCCESS);
    CHECK_EQ(cuCtxDestroy_v2(context), CUDA_SUCCESS);
    CHECK_EQ(dead_uses(), before);
}

TEST(the_share_holds_across_resets)
{
    CUcontext context;
    uint64_t work = work_busy_ns(), start = work_now_ns();
    for (int round = 0; round < 20; round++) {
        CHECK_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
        CHECK_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
        CHECK_EQ(busy(400), CUDA_SUCCESS);
        CHECK_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
        CHECK_EQ(cuDevicePrimaryCtxReset_v2(0), CUDA_SUCCESS);
    }
    double got = 100.0 * (double)(work_busy_ns() - work) / (double)(work_now_ns() - start);
    if (got < 26 || got > 34) {
        fprintf(stderr, "    %.1f %% of the card\n", got);
    }
    CHECK(got >= 26 && got <= 34);
}

int main(int argc, char **argv)
{
    (void)argc;
    stage_library = STAGE_VIRTUAL;
    stage_enter(argv, "");
    int me = virtual_reserve();
    virtual_join(me);
    stage_grant(UINT64_C(4) << 30);
    return t_run();
}
