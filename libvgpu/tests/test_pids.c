/* test_pids.c - limits in a container whose driver uses other PIDs than the host's, or shows no memory. tests/run.sh runs it
 * in each such world. Nothing was learned before, and no agent helps unless a test says so. A neighbour runs on the host. */
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "machine.h"
#include "on_card.h"
#include "work.h"

#define MIB (UINT64_C(1) << 20)
#define CONTEXT (300 * MIB)
#define LIMIT (10240 * MIB)
#define PIECE (64 * MIB)
#define WHOLE (108 * 8)
#define LONG_NS UINT64_C(30000000000)

enum { MOST = 64 };

/* In a process of the container: create a context, then take all memory that it gets. */
static int fill_up(int ready, int gate)
{
    CUcontext context;
    CUdeviceptr out;
    char byte = 0;
    CUresult result = cuInit(0) == CUDA_SUCCESS ? cuDevicePrimaryCtxRetain(&context, 0) : CUDA_ERROR_UNKNOWN;
    int is_made = result == CUDA_SUCCESS;
    if (is_made && cuCtxSetCurrent(context) == CUDA_SUCCESS) {
        while (cuMemAlloc_v2(&out, PIECE) == CUDA_SUCCESS) {
        }
    }
    int said = write(ready, &byte, 1) == 1 && read(gate, &byte, 1) == 0; /* until all have tried */
    return !said ? 3 : is_made ? 1 : result == CUDA_ERROR_OUT_OF_MEMORY ? 2 : 3;
}

static void check_processes(int count)
{
    int gate[2], ready[2], made = 0, failed = 0;
    char byte;
    stage_grant(LIMIT);
    stage_region()->columns[0].context_bytes = 0;
    stage_card_reset_peak();
    CHECK(pipe(gate) == 0 && pipe(ready) == 0);
    for (int i = 0; i < count; i++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            close(gate[1]);
            _exit(fill_up(ready[1], gate[0]));
        }
    }
    for (int i = 0; i < count; i++) {
        CHECK(read(ready[0], &byte, 1) == 1);
    }
    uint64_t held = stage_card_used(), charged = stage_ledger_sum();
    close(gate[0]);
    close(gate[1]);
    for (int i = 0; i < count; i++) {
        int status = 0;
        wait(&status);
        made += WIFEXITED(status) && WEXITSTATUS(status) == 1;
        failed += !WIFEXITED(status) || WEXITSTATUS(status) == 3;
    }
    CHECK_EQ(failed, 0);
    CHECK(made >= 1);
    CHECK(stage_card_peak() <= LIMIT); /* according to the device */
    CHECK(charged >= held && held >= (uint64_t)made * CONTEXT);
    CHECK(held >= LIMIT / 2);
}

TEST(one_process_stays_within_the_limit)
{
    check_processes(1);
}

TEST(nine_processes_stay_within_the_limit_together)
{
    check_processes(9);
}

TEST(sixty_four_processes_stay_within_the_limit_together)
{
    check_processes(MOST);
}

static void silence(struct state *s, void *argument)
{
    static const char *const functions[] = {"nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetMemoryInfo",
                                            "nvmlDeviceGetProcessUtilization"};
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
        snprintf(s->cards[0].faults[i].function, STATE_FUNCTION_BYTES, "%s", *(const int *)argument ? functions[i] : "");
        s->cards[0].faults[i].result = NVML_ERROR_UNKNOWN;
    }
}

TEST(where_nvml_answers_nothing_processes_stay_within_the_limit_too)
{
    state_change(machine_current(), silence, (int[]){1});
    check_processes(1);
    check_processes(9);
    state_change(machine_current(), silence, (int[]){0});
}

static void speaks(struct state *s, void *argument)
{
    const enum machine_pids *pids = argument;
    s->pids = (uint32_t)*pids + 1;
}

TEST(a_driver_that_begins_to_speak_other_pids_changes_no_limit)
{
    CUcontext context;
    CUdeviceptr out;
    stage_grant(LIMIT);
    CHECK_EQ(cuInit(0), CUDA_SUCCESS);
    stage_card_reset_peak();
    for (enum machine_pids pids = MACHINE_PIDS_HOST; pids <= MACHINE_PIDS_MIXED; pids++) {
        state_change(machine_current(), speaks, &pids);
        stage_region()->columns[0].context_bytes = 0;
        CHECK_EQ(cuCtxCreate_v2(&context, 0, 0), CUDA_SUCCESS);
        CHECK(stage_ledger_sum() >= stage_card_used());
        stage_name_processes();
        while (cuMemAlloc_v2(&out, PIECE) == CUDA_SUCCESS) {
        }
        CHECK(stage_card_used() <= LIMIT && stage_ledger_sum() >= stage_card_used());
        CHECK_EQ(cuCtxDestroy_v2(context), CUDA_SUCCESS);
    }
    state_change(machine_current(), speaks, (enum machine_pids[]){machine_current()->pids});
    CHECK(stage_card_peak() <= LIMIT);
}

static void slow_nvml(struct state *s, void *argument)
{
    s->cards[0].slow_ms = *(const uint32_t *)argument;
}

static _Atomic int is_done;

/* Do something that makes the library call NVML. */
static void *ask(void *context)
{
    CUmodule module;
    CUdeviceptr out;
    for (int i = 0; i < 3; i++) {
        usleep(110000); /* by then it makes no more calls */
        if (cuCtxSetCurrent(context) || cuModuleLoadData(&module, "image") || cuMemAlloc_v2(&out, MIB)) {
            break;
        }
    }
    is_done = 1;
    return NULL;
}

TEST(an_nvml_that_hangs_holds_up_no_more_than_one_allocation)
{
    pthread_t thread;
    CUcontext context;
    CUdeviceptr out;
    uint64_t made = 0;
    stage_grant(LIMIT);
    CHECK_EQ(cuInit(0), CUDA_SUCCESS);
    CHECK_EQ(cuCtxCreate_v2(&context, 0, 0), CUDA_SUCCESS);
    state_change(machine_current(), slow_nvml, (uint32_t[]){700});
    CHECK(pthread_create(&thread, NULL, ask, context) == 0);
    while (!is_done) {
        made += cuMemAlloc_v2(&out, 512) == CUDA_SUCCESS && cuMemFree_v2(out) == CUDA_SUCCESS;
    }
    state_change(machine_current(), slow_nvml, (uint32_t[]){0});
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(made > 100); /* if each had called NVML, only a handful would have been made */
    CHECK(stage_ledger_sum() >= stage_card_used());
    CHECK_EQ(cuCtxDestroy_v2(context), CUDA_SUCCESS);
}

static void set_share(enum vgpu_core_policy policy, uint64_t alone_until_ns)
{
    struct vgpu_page *page = stage_page();
    stage_grant(LIMIT);
    __atomic_store_n(&page->seq, page->seq | 1, __ATOMIC_SEQ_CST);
    page->devices[0].cores_percent = 25;
    page->devices[0].core_policy = policy;
    __atomic_store_n(&page->seq, page->seq + 1, __ATOMIC_SEQ_CST);
    __atomic_store_n(&page->devices[0].alone_until_ns, alone_until_ns, __ATOMIC_SEQ_CST);
}

/* Keep the device busy until `samples` more samples of this container were compared, or until it takes too long. Return how
 * many were compared. */
static int run_for_samples(int samples, int is_named)
{
    const struct vgpu_region_bucket *bucket = &stage_region()->columns[0].bucket;
    uint64_t start = work_now_ns(), last = bucket->calibrated_us;
    int seen = 0;
    while (seen < samples && work_now_ns() - start < LONG_NS) {
        for (int i = 0; i < 8; i++) {
            work_launch(work_kernel("busy_5ms"), WHOLE, NULL);
        }
        cuCtxSynchronize();
        uint64_t now = __atomic_load_n(&bucket->calibrated_us, __ATOMIC_RELAXED);
        seen += now != last;
        last = now;
        if (is_named) {
            stage_name_processes();
        }
    }
    return seen;
}

static uint64_t others_ns(void)
{
    return __atomic_load_n(&stage_region()->columns[0].bucket.others_ns, __ATOMIC_RELAXED);
}

TEST(its_own_samples_are_no_neighbours_once_it_has_its_name)
{
    work_begin();
    set_share(VGPU_CORES_DEFAULT, 0);
    run_for_samples(1, 1);
    stage_region()->columns[0].bucket.others_ns = 0; /* from before the agent gave the name */
    CHECK_EQ(run_for_samples(5, 1), 5);
    CHECK_EQ(others_ns(), 0);
}

TEST(a_driver_that_speaks_its_own_pids_needs_no_agent)
{
    enum machine_pids pids = MACHINE_PIDS_OWN;
    state_change(machine_current(), speaks, &pids);
    for (uint32_t i = 0; i < stage_region()->slot_high; i++) {
        stage_region()->slots[i].host_pid = 0;
    }
    stage_region()->columns[0].bucket.others_ns = 0;
    CHECK_EQ(run_for_samples(5, 0), 5);
    CHECK_EQ(others_ns(), 0);
    state_change(machine_current(), speaks, (enum machine_pids[]){machine_current()->pids});
}

TEST(without_a_name_the_agents_word_that_it_is_alone_is_enough)
{
    enum machine_pids pids = MACHINE_PIDS_HOST;
    state_change(machine_current(), speaks, &pids);
    set_share(VGPU_CORES_DEFAULT, UINT64_MAX);
    for (uint32_t i = 0; i < stage_region()->slot_high; i++) {
        stage_region()->slots[i].host_pid = 0;
    }
    stage_region()->columns[0].bucket.others_ns = 0;
    uint64_t start = work_now_ns();
    while (work_now_ns() - start < UINT64_C(500000000)) {
        work_launch(work_kernel("busy_5ms"), WHOLE, NULL);
        cuCtxSynchronize();
    }
    CHECK_EQ(others_ns(), 0);
    state_change(machine_current(), speaks, (enum machine_pids[]){machine_current()->pids});
    set_share(VGPU_CORES_DEFAULT, 0);
}

TEST(a_neighbour_that_the_list_may_hide_is_found)
{
    stage_start_neighbour();
    uint64_t start = work_now_ns();
    while (!others_ns() && work_now_ns() - start < LONG_NS) {
        run_for_samples(1, 1);
    }
    CHECK(others_ns());
    const struct vgpu_region_bucket *bucket = &stage_region()->columns[0].bucket;
    uint64_t waited = bucket->waited_ns;
    while (bucket->waited_ns == waited && work_now_ns() - start < LONG_NS) {
        run_for_samples(1, 1);
    }
    CHECK(bucket->waited_ns > waited); /* held */
}

static int be_the_neighbour(void)
{
    work_begin();
    while (work_launch(work_kernel("busy_5ms"), WHOLE, NULL) == CUDA_SUCCESS) {
        cuCtxSynchronize();
    }
    return 3;
}

int main(int argc, char **argv)
{
    stage_neighbour = "neighbour";
    stage_enter(argv, "fork_works=1\ncontext_mib=300");
    return argc > 1 ? be_the_neighbour() : t_run();
}
