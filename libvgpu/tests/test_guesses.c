/* test_guesses.c - kernels are charged even if their process ends before its next launch. In virtual time. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "stage.h"
#include "t.h"
#include "virtual_time.h"
#include "work.h"

#define MS UINT64_C(1000000)
#define S (1000 * MS)
#define WHOLE (108 * 8)

CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes);
CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t bytes);
CUresult cuDevicePrimaryCtxReset_v2(CUdevice device);

/* How a process waits for its kernel, if at all. */
static void wait_by(const char *how, unsigned ms)
{
    CUdeviceptr memory = 0;
    char byte;
    CUevent event;
    if (!strcmp(how, "context")) {
        cuCtxSynchronize();
    } else if (!strcmp(how, "stream")) {
        cuStreamSynchronize(NULL);
    } else if (!strcmp(how, "event")) {
        cuEventCreate(&event, 0);
        cuEventRecord(event, NULL);
        cuEventSynchronize(event);
    } else if (!strcmp(how, "copy")) {
        cuMemAlloc_v2(&memory, 1);
        cuMemcpyDtoH_v2(&byte, memory, 1);
    } else if (!strcmp(how, "reset")) {
        cuDevicePrimaryCtxReset_v2(0);
    } else {
        virtual_sleep_ns(ms * MS + MS / 2); /* like a program that polls a flag in memory */
    }
}

/* Run one kernel, then end or exec another program. argv: place, how to wait, ms, how many such lives. */
static void live(char **argv)
{
    int place = atoi(argv[1]);
    unsigned ms = (unsigned)atoi(argv[3]);
    char name[32], left[16];
    virtual_join(place);
    work_begin();
    snprintf(name, sizeof name, "busy_%ums", ms);
    if (work_launch(work_kernel(name), WHOLE, NULL) != CUDA_SUCCESS) {
        _exit(5);
    }
    wait_by(argv[2], ms);
    snprintf(left, sizeof left, "%d", atoi(argv[4]) - 1);
    if (strcmp(left, "0") != 0) {
        char *again[] = {"/proc/self/exe", argv[1], argv[2], argv[3], left, NULL};
        execv("/proc/self/exe", again);
    }
    _exit(0);
}

/* Run such a process to its end. */
static void run(const char *how, unsigned ms, int lives)
{
    char place[16], length[16], count[16];
    int status = 0, at = virtual_reserve();
    snprintf(place, sizeof place, "%d", at);
    snprintf(length, sizeof length, "%u", ms);
    snprintf(count, sizeof count, "%d", lives);
    pid_t child = fork();
    if (child == 0) {
        char *argv[] = {"/proc/self/exe", place, (char *)how, length, count, NULL};
        execv("/proc/self/exe", argv);
        _exit(9);
    }
    waitpid(child, &status, 0);
    virtual_leave(at); /* only now, so that no time passes while it ends */
    CHECK_EQ(status, 0);
}

static void grant_a_quarter(void)
{
    struct vgpu_page *page = stage_page();
    stage_grant(VGPU_UNLIMITED);
    page->devices[0].cores_percent = 25;
    page->devices[0].core_policy = VGPU_CORES_FORCE;
    page->seq += 2;
    memset(&stage_region()->columns[0].bucket, 0, sizeof stage_region()->columns[0].bucket);
}

/* Return the percentage of the device that kernels of `ms` get, with `lives` kernels in each of `count` processes. */
static double share(const char *how, unsigned ms, int count, int lives)
{
    grant_a_quarter();
    run(how, ms, 1); /* takes the burst */
    uint64_t begun = work_now_ns();
    for (int i = 0; i < count; i++) {
        run(how, ms, lives);
    }
    return 100.0 * count * lives * ms * 1e6 / (double)(work_now_ns() - begun);
}

#define CHECK_SHARE(got)                                                     \
    do {                                                                     \
        double t_share = (got);                                              \
        if (t_share < 15 || t_share > 30) {                                  \
            fprintf(stderr, "    %s: %.1f %% of the card\n", #got, t_share); \
            longjmp(t_out, 1);                                               \
        }                                                                    \
    } while (0)

TEST(a_kernel_for_each_process_is_charged_when_it_is_waited_for)
{
    static const char *const ways[] = {"context", "stream", "event", "copy", "reset"};
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        CHECK_SHARE(share(ways[i], 200, 10, 1));
    }
    CHECK_SHARE(share("context", 50, 20, 1));
    CHECK_SHARE(share("context", 2000, 4, 1));
}

TEST(a_kernel_that_its_process_does_not_wait_for_is_charged_by_the_next)
{
    CHECK_SHARE(share("not", 50, 20, 1));
    CHECK_SHARE(share("not", 200, 10, 1));
    CHECK_SHARE(share("not", 2000, 4, 1));
}

TEST(a_kernel_for_each_exec_is_charged)
{
    CHECK_SHARE(share("context", 200, 1, 10));
    CHECK_SHARE(share("not", 50, 1, 20));
    CHECK_SHARE(share("not", 2000, 1, 4));
}

int main(int argc, char **argv)
{
    char path[PATH_MAX];
    stage_library = STAGE_VIRTUAL;
    stage_enter(argv, "fork_works=1");
    snprintf(path, sizeof path, "%s/time", getenv("VGPU_STAGE"));
    virtual_share(path);
    if (argc > 1) {
        live(argv);
    }
    return t_run(); /* time passes only in the processes that it starts */
}
