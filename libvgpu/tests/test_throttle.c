/* The compute limit in virtual time, from the hooks to the simulated device. The oracle says how much a process got. */
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "machine.h"
#include "stage.h"
#include "state.h"
#include "t.h"
#include "virtual_time.h"
#include "work.h"

#define MS UINT64_C(1000000)
#define WHOLE (108 * 8)

static void grant(unsigned cores, enum vgpu_core_policy policy, unsigned ceiling)
{
    struct vgpu_page *page = stage_page();
    __atomic_store_n(&page->seq, page->seq | 1, __ATOMIC_SEQ_CST);
    page->devices[0].cores_percent = cores;
    page->devices[0].core_policy = policy;
    page->devices[0].cores_ceiling = ceiling;
    page->epoch++;
    __atomic_store_n(&page->seq, page->seq + 1, __ATOMIC_SEQ_CST);
}

/* Return the percentage of the device that `launch` gets for this process in `ms`. */
static double share_of(CUresult (*launch)(void *), void *argument, unsigned ms)
{
    uint64_t busy = work_busy_ns(), start = work_now_ns();
    while (work_now_ns() - start < ms * MS) {
        if (launch(argument) != CUDA_SUCCESS) {
            return -1;
        }
        stage_name_processes();
    }
    cuCtxSynchronize();
    return 100.0 * (double)(work_busy_ns() - busy) / (double)(work_now_ns() - start);
}

static CUresult plain(void *name)
{
    return work_launch(work_kernel(name), WHOLE, NULL);
}

/* The bench measures the figures over many programs. */
#define CHECK_SHARE(got, least, most)                                        \
    do {                                                                     \
        double t_share = (got);                                              \
        if (t_share < (least) || t_share > (most)) {                         \
            fprintf(stderr, "    %s: %.1f %% of the card\n", #got, t_share); \
            longjmp(t_out, 1);                                               \
        }                                                                    \
    } while (0)

TEST(without_a_limit_a_process_has_the_device)
{
    work_begin();
    grant(0, VGPU_CORES_DEFAULT, 0);
    CHECK_SHARE(share_of(plain, "busy_5ms", 2000), 95, 101);
    grant(30, VGPU_CORES_DISABLE, 0);
    CHECK_SHARE(share_of(plain, "busy_5ms", 2000), 95, 101);
}

TEST(forced_a_share_holds_alone_and_changes_with_the_page)
{
    grant(30, VGPU_CORES_FORCE, 0);
    share_of(plain, "busy_4ms", 300);
    CHECK_SHARE(share_of(plain, "busy_4ms", 5000), 28, 32);
    grant(60, VGPU_CORES_FORCE, 0);
    CHECK_SHARE(share_of(plain, "busy_4ms", 5000), 58, 62);
}

TEST(a_ceiling_for_now_holds_whatever_the_share_and_the_policy_and_goes_as_it_came)
{
    grant(60, VGPU_CORES_FORCE, 20); /* a neighbour of higher priority */
    CHECK_SHARE(share_of(plain, "busy_4ms", 5000), 18, 22);
    grant(60, VGPU_CORES_FORCE, 80);
    CHECK_SHARE(share_of(plain, "busy_4ms", 5000), 58, 62);
    grant(60, VGPU_CORES_DISABLE, 20);
    CHECK_SHARE(share_of(plain, "busy_4ms", 5000), 18, 22);
    grant(0, VGPU_CORES_DEFAULT, 5); /* the least that the agent ever leaves */
    share_of(plain, "busy_4ms", 1000);
    CHECK_SHARE(share_of(plain, "busy_4ms", 5000), 4, 6);
    grant(0, VGPU_CORES_DEFAULT, 0);
    CHECK_SHARE(share_of(plain, "busy_4ms", 2000), 95, 101);
}

TEST(short_kernels_are_held_too)
{
    grant(25, VGPU_CORES_FORCE, 0);
    share_of(plain, "busy_100us", 300);
    CHECK_SHARE(share_of(plain, "busy_100us", 5000), 23, 27);
}

TEST(by_default_a_process_alone_is_not_limited)
{
    grant(20, VGPU_CORES_DEFAULT, 0);
    share_of(plain, "busy_3ms", 2500); /* until it knows that it is alone */
    CHECK_SHARE(share_of(plain, "busy_3ms", 2000), 95, 101);
}

static CUgraphExec graph_of(const char *name, unsigned count)
{
    CUgraph graph;
    CUgraphExec graph_exec;
    CUgraphNode node;
    CUDA_KERNEL_NODE_PARAMS params = {.function = work_kernel(name), .grid = {WHOLE, 1, 1}, .block = {256, 1, 1}};
    cuGraphCreate(&graph, 0);
    for (unsigned i = 0; i < count; i++) {
        cuGraphAddKernelNode(&node, graph, NULL, 0, &params);
    }
    return cuGraphInstantiateWithFlags(&graph_exec, graph, 0) == CUDA_SUCCESS ? graph_exec : NULL;
}

static CUresult a_graph(void *graph_exec)
{
    return cuGraphLaunch(graph_exec, NULL);
}

static CUresult ex(void *name)
{
    CUlaunchConfig config = {.grid = {WHOLE, 1, 1}, .block = {256, 1, 1}};
    return cuLaunchKernelEx(&config, work_kernel(name), NULL, NULL);
}

static CUresult cooperative(void *name)
{
    return cuLaunchCooperativeKernel(work_kernel(name), WHOLE, 1, 1, 256, 1, 1, 0, NULL, NULL);
}

static CUresult per_thread(void *name)
{
    return cuLaunchKernel_ptsz(work_kernel(name), WHOLE, 1, 1, 256, 1, 1, 0, NULL, NULL, NULL);
}

static CUresult legacy(void *name)
{
    CUfunction function = work_kernel(name);
    cuFuncSetBlockShape(function, 256, 1, 1);
    return cuLaunchGrid(function, WHOLE, 1);
}

TEST(graphs_cooperative_extended_per_thread_and_old_launches_are_held_like_plain_ones)
{
    grant(30, VGPU_CORES_FORCE, 0);
    CUgraphExec graph_exec = graph_of("busy_500us", 8);
    CHECK(graph_exec != NULL);
    share_of(a_graph, graph_exec, 300);
    CHECK_SHARE(share_of(a_graph, graph_exec, 5000), 28, 32);
    CHECK_EQ(cuGraphExecDestroy(graph_exec), CUDA_SUCCESS);
    share_of(ex, "busy_2ms", 200);
    CHECK_SHARE(share_of(ex, "busy_2ms", 5000), 28, 32);
    CHECK_SHARE(share_of(cooperative, "busy_2ms", 5000), 28, 32);
    CHECK_SHARE(share_of(per_thread, "busy_2ms", 5000), 28, 32);
    share_of(legacy, "busy_6ms", 200);
    CHECK_SHARE(share_of(legacy, "busy_6ms", 5000), 28, 32);
}

TEST(a_capture_is_neither_held_up_nor_broken_nor_added_to)
{
    CUstream stream;
    CUgraph graph;
    CUevent event;
    size_t nodes = 0;
    grant(1, VGPU_CORES_FORCE, 0);
    CUfunction kernel = work_kernel("busy_7ms");
    cuStreamCreate(&stream, 0);
    cuEventCreate(&event, 0);
    work_launch(kernel, WHOLE, NULL); /* in debt from here on, with a measurement on its way */
    uint64_t start = work_now_ns();
    CHECK_EQ(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
    for (int i = 0; i < 200; i++) {
        CHECK_EQ(work_launch(kernel, WHOLE, stream), CUDA_SUCCESS);
    }
    CHECK_EQ(cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
    CHECK(work_now_ns() - start < 600 * MS); /* 200 of them at 1 % would be 140 s */
    CHECK_EQ(cuGraphGetNodes(graph, NULL, &nodes), CUDA_SUCCESS);
    CHECK_EQ(nodes, 200);
    cuGraphDestroy(graph);
    cuStreamDestroy_v2(stream);
    grant(50, VGPU_CORES_FORCE, 0);
    stage_region()->columns[0].bucket.paid_until_ns = stage_region()->columns[0].bucket.debt_ns = 0;
    cuCtxSynchronize();
}

TEST(wrong_launches_get_the_drivers_own_errors)
{
    grant(50, VGPU_CORES_FORCE, 0);
    CHECK_EQ(cuLaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), CUDA_ERROR_INVALID_HANDLE);
    CHECK_EQ(cuLaunchKernel(work_kernel("x"), 0, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ(cuLaunchKernelEx(NULL, work_kernel("x"), NULL, NULL), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ(cuLaunchCooperativeKernelMultiDevice(NULL, 3, 0), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ(cuGraphLaunch(NULL, NULL), CUDA_ERROR_INVALID_VALUE);
}

TEST(processes_of_a_container_have_one_share_together_and_a_killed_one_leaves_it_to_the_rest)
{
    char word[16];
    int mine, place = virtual_reserve();
    grant(40, VGPU_CORES_FORCE, 0);
    snprintf(word, sizeof word, "%d", place); /* from here on virtual time waits for the worker */
    pid_t worker = work_start_worker(word);
    share_of(plain, "busy_2ms", 1000);
    struct engine *e = work_engine(&mine);
    uint64_t before = e->busy_ns, start = work_now_ns();
    work_engine_leave();
    share_of(plain, "busy_2ms", 5000);
    e = work_engine(&mine);
    double both = 100.0 * (double)(e->busy_ns - before) / (double)(work_now_ns() - start);
    work_engine_leave();
    kill(worker, SIGKILL);
    waitpid(worker, NULL, 0);
    virtual_leave(place);
    CHECK_SHARE(both, 38, 42);
    share_of(plain, "busy_2ms", 500);
    CHECK_SHARE(share_of(plain, "busy_2ms", 5000), 38, 42);
}

TEST(a_container_sees_its_own_use_in_parts_of_its_slice)
{
    nvmlDevice_t device;
    nvmlUtilization_t seen = {0};
    grant(25, VGPU_CORES_FORCE, 0);
    nvmlInit_v2();
    CHECK_EQ(nvmlDeviceGetHandleByIndex_v2(0, &device), NVML_SUCCESS);
    CHECK_SHARE(share_of(plain, "busy_2ms", 5000), 23, 27);
    CHECK_EQ(nvmlDeviceGetUtilizationRates(device, &seen), NVML_SUCCESS);
    CHECK(seen.gpu > 50); /* as a share of the whole device, it would be 25 */
}

static void slow_nvml(struct state *s, void *argument)
{
    s->cards[0].slow_ms = *(uint32_t *)argument;
}

TEST(a_slow_nvml_is_asked_seldom_and_the_share_holds_without_it)
{
    uint32_t ms = 200, none = 0;
    grant(50, VGPU_CORES_FORCE, 0);
    state_change(machine_current(), slow_nvml, &ms);
    share_of(plain, "busy_2ms", 500); /* NVML is found to be slow */
    double got = share_of(plain, "busy_2ms", 5000);
    state_change(machine_current(), slow_nvml, &none);
    stage_region()->columns[0].bucket.tick_ns = 0;
    CHECK_SHARE(got, 47, 53); /* with a call each time, there would be no time left to launch */
}

TEST(a_forked_child_does_not_own_what_its_parent_has_in_hand)
{
    grant(50, VGPU_CORES_FORCE, 0);
    share_of(plain, "busy_20us", 100);
    pid_t child = fork();
    if (child == 0) {
        _exit(work_launch(work_kernel("busy_20us"), WHOLE, NULL) == CUDA_ERROR_NOT_INITIALIZED ? 0 : 1);
    }
    int status;
    waitpid(child, &status, 0);
    CHECK_EQ(status, 0);
    CHECK_EQ(plain("busy_20us"), CUDA_SUCCESS);
}

TEST(a_region_of_any_content_holds_launches_up_for_a_minute_at_most)
{
    grant(50, VGPU_CORES_FORCE, 0);
    memset(&stage_region()->columns[0].bucket, 0xff, sizeof stage_region()->columns[0].bucket);
    uint64_t start = work_now_ns();
    CHECK_EQ(plain("busy_1ms"), CUDA_SUCCESS);
    CHECK_EQ(plain("busy_1ms"), CUDA_SUCCESS);
    CHECK(work_now_ns() - start < 62000 * MS);
    memset(&stage_region()->columns[0].bucket, 0, sizeof stage_region()->columns[0].bucket);
}

static void be_a_worker(int place)
{
    virtual_join(place);
    work_begin();
    for (;;) {
        plain("busy_2ms");
    }
}

int main(int argc, char **argv)
{
    char path[PATH_MAX];
    stage_library = STAGE_VIRTUAL;
    stage_enter(argv, NULL);
    snprintf(path, sizeof path, "%s/time", getenv("VGPU_STAGE"));
    virtual_share(path);
    if (argc > 1) {
        be_a_worker(atoi(argv[1]));
    }
    virtual_join(virtual_reserve());
    stage_grant(VGPU_UNLIMITED);
    return t_run();
}
