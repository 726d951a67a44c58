/* The simulated driver's streams, events, kernels, graphs and captures, in real time, without a compute limit. */
#include <signal.h>

#include <sys/wait.h>
#include <unistd.h>

#include "stage.h"
#include "t.h"
#include "work.h"

#define MS UINT64_C(1000000)

static float elapsed_ms(CUstream stream, CUfunction kernel, unsigned blocks)
{
    CUevent start, end;
    float ms = -1;
    cuEventCreate(&start, 0);
    cuEventCreate(&end, 0);
    cuEventRecord(start, stream);
    work_launch(kernel, blocks, stream);
    cuEventRecord(end, stream);
    if (cuEventSynchronize(end) == CUDA_SUCCESS) {
        cuEventElapsedTime(&ms, start, end);
    }
    cuEventDestroy_v2(start);
    cuEventDestroy_v2(end);
    return ms;
}

TEST(events_measure_what_a_kernel_takes)
{
    CUstream stream;
    work_begin();
    CHECK_EQ(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    work_launch(work_kernel("busy_1us"), 1, stream);
    float one = elapsed_ms(stream, work_kernel("busy_5ms"), 108 * 8),
          two = elapsed_ms(stream, work_kernel("busy_5ms"), 108 * 8 + 1);
    CHECK(one >= 5 && one < 6);
    CHECK(two >= 10 && two < 11); /* a second wave */
}

TEST(a_kernel_without_a_time_in_its_name_takes_none)
{
    uint64_t before = work_busy_ns();
    CHECK_EQ(work_launch(work_kernel("anything"), 1000, NULL), CUDA_SUCCESS);
    CHECK_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    CHECK(work_busy_ns() - before < 1000);
}

TEST(synchronising_waits_for_the_work_and_querying_says_whether_it_is_done)
{
    CUstream stream;
    cuStreamCreate(&stream, 0);
    uint64_t start = work_now_ns();
    CHECK_EQ(work_launch(work_kernel("busy_20ms"), 1, stream), CUDA_SUCCESS);
    CHECK_EQ(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    CHECK_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
    CHECK(work_now_ns() - start >= 20 * MS);
    CHECK_EQ(cuStreamQuery(stream), CUDA_SUCCESS);
}

TEST(every_way_to_launch_takes_the_time_of_its_kernel)
{
    CUfunction kernel = work_kernel("busy_2ms");
    CUlaunchConfig config = {.grid = {1, 1, 1}, .block = {32, 1, 1}};
    CUDA_LAUNCH_PARAMS list[1] = {{.function = kernel, .grid = {1, 1, 1}, .block = {32, 1, 1}}};
    cuStreamCreate(&list[0].stream, 0);
    cuFuncSetBlockShape(kernel, 32, 1, 1);
    uint64_t before = work_busy_ns();
    CHECK_EQ(cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL), CUDA_SUCCESS);
    CHECK_EQ(cuLaunchKernel_ptsz(kernel, 1, 1, 1, 32, 1, 1, 0, CU_STREAM_LEGACY, NULL, NULL), CUDA_SUCCESS);
    CHECK_EQ(cuLaunchKernelEx(&config, kernel, NULL, NULL), CUDA_SUCCESS);
    config.stream = CU_STREAM_LEGACY;
    CHECK_EQ(cuLaunchKernelEx_ptsz(&config, kernel, NULL, NULL), CUDA_SUCCESS);
    CHECK_EQ(cuLaunchCooperativeKernel(kernel, 1, 1, 1, 32, 1, 1, 0, NULL, NULL), CUDA_SUCCESS);
    CHECK_EQ(cuLaunchCooperativeKernel_ptsz(kernel, 1, 1, 1, 32, 1, 1, 0, CU_STREAM_LEGACY, NULL), CUDA_SUCCESS);
    CHECK_EQ(cuLaunch(kernel), CUDA_SUCCESS);
    CHECK_EQ(cuLaunchGrid(kernel, 1, 1), CUDA_SUCCESS);
    CHECK_EQ(cuLaunchGridAsync(kernel, 1, 1, NULL), CUDA_SUCCESS);
    CHECK_EQ(cuLaunchCooperativeKernelMultiDevice(list, 1, 0), CUDA_SUCCESS);
    CHECK_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
    CHECK_EQ((work_busy_ns() - before) / MS, 20);
    CHECK_EQ(cuLaunchKernel(kernel, 1, 1, 1, 2048, 1, 1, 0, NULL, NULL, NULL), CUDA_ERROR_INVALID_VALUE);
}

TEST(a_captured_graph_does_its_work_when_it_is_launched_and_not_before)
{
    CUstream stream;
    CUgraph graph;
    CUgraphExec graph_exec;
    size_t nodes = 0;
    int status = -1;
    cuStreamCreate(&stream, 0);
    uint64_t before = work_busy_ns();
    CHECK_EQ(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
    for (int i = 0; i < 3; i++) {
        CHECK_EQ(work_launch(work_kernel("busy_2ms"), 1, stream), CUDA_SUCCESS);
    }
    CHECK_EQ(cuStreamIsCapturing(stream, &status), CUDA_SUCCESS);
    CHECK_EQ(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
    CHECK_EQ(cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
    CHECK_EQ(cuGraphGetNodes(graph, NULL, &nodes), CUDA_SUCCESS);
    CHECK_EQ(nodes, 3);
    CHECK_EQ(cuGraphInstantiateWithFlags(&graph_exec, graph, 0), CUDA_SUCCESS);
    CHECK_EQ(work_busy_ns(), before);
    CHECK_EQ(cuGraphLaunch(graph_exec, stream), CUDA_SUCCESS);
    CHECK_EQ(cuGraphLaunch_ptsz(graph_exec, stream), CUDA_SUCCESS);
    CHECK_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
    CHECK_EQ((work_busy_ns() - before) / MS, 12);
}

TEST(what_a_capture_does_not_bear_invalidates_it)
{
    CUstream stream;
    CUgraph graph;
    CUevent event;
    int relaxed = CU_STREAM_CAPTURE_MODE_RELAXED;
    cuStreamCreate(&stream, 0);
    cuEventCreate(&event, 0);
    cuEventRecord(event, stream);
    cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
    CHECK_EQ(cuEventQuery(event), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    CHECK_EQ(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
    CHECK_EQ(cuThreadExchangeStreamCaptureMode(&relaxed), CUDA_SUCCESS);
    CHECK_EQ(cuEventSynchronize(event), CUDA_SUCCESS);
    cuThreadExchangeStreamCaptureMode(&relaxed);
    CHECK_EQ(cuEventRecord(event, NULL), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    CHECK_EQ(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

TEST(two_processes_share_the_timeslices_and_nvml_sees_both)
{
    nvmlDevice_t device;
    nvmlUtilization_t all;
    nvmlProcessUtilizationSample_t samples[8];
    unsigned count = 0;
    pid_t worker = work_start_worker("worker");
    nvmlInit_v2();
    CHECK_EQ(nvmlDeviceGetHandleByIndex_v2(0, &device), NVML_SUCCESS);
    uint64_t end = work_now_ns() + 20000 * MS;
    do {
        for (int i = 0; i < 10; i++) {
            work_launch(work_kernel("busy_20ms"), 108 * 8, NULL);
        }
        cuCtxSynchronize();
        stage_name_processes();
        count = 8;
        if (nvmlDeviceGetProcessUtilization(device, samples, &count, 0) != NVML_SUCCESS) {
            count = 0;
        }
    } while (work_now_ns() < end && !(count == 2 && samples[0].smUtil > 30 && samples[1].smUtil > 30));
    CHECK_EQ(count, 2);
    CHECK(samples[0].smUtil < 70 && samples[1].smUtil < 70);
    CHECK_EQ(nvmlDeviceGetUtilizationRates(device, &all), NVML_SUCCESS);
    CHECK(all.gpu >= 90);
    kill(worker, SIGKILL);
    waitpid(worker, NULL, 0);
}

static void be_a_worker(void)
{
    work_begin();
    for (;;) {
        work_launch(work_kernel("busy_10ms"), 108 * 8, NULL);
        cuCtxSynchronize();
    }
}

int main(int argc, char **argv)
{
    stage_enter(argv, NULL);
    stage_grant(VGPU_UNLIMITED);
    if (argc > 1) {
        be_a_worker();
    }
    return t_run();
}
