/* test_share.c - memory that two processes have open is charged once, to its maker, for as long as either has it. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "on_card.h"

#define MIB (UINT64_C(1) << 20)
#define LIMIT (100 * MIB)
#define SHARED (40 * MIB)
enum { FILE_DESCRIPTOR = 1 };

static void start(void)
{
    start_under(LIMIT);
    stage_card_reset_peak();
}

/* A child that does something, says so, and does the rest when told to. */
struct child {
    pid_t pid;
    int from, to;
};

static struct child begin(void (*first)(void *), void (*then)(void *), void *argument)
{
    int up[2], down[2];
    char byte = 0;
    CHECK(pipe(up) == 0 && pipe(down) == 0);
    struct child it = {.pid = fork(), .from = up[0], .to = down[1]};
    if (it.pid == 0) {
        close(down[1]);
        if (setjmp(t_out) != 0) {
            _exit(1);
        }
        first(argument);
        CHECK(write(up[1], &byte, 1) == 1 && read(down[0], &byte, 1) == 1);
        then(argument);
        CHECK(write(up[1], &byte, 1) == 1);
        pause();
    }
    close(up[1]);
    close(down[0]);
    CHECK(read(it.from, &byte, 1) == 1);
    return it;
}

static void go_on(struct child it)
{
    char byte = 0;
    CHECK(write(it.to, &byte, 1) == 1 && read(it.from, &byte, 1) == 1);
}

static void end(struct child it)
{
    kill(it.pid, SIGKILL);
    waitpid(it.pid, NULL, 0);
    close(it.from);
    close(it.to);
}

/* The two ways to share, with a handle each that a child knows how to open. */
static CUmemGenericAllocationHandle physical, opened_physical;
static CUdeviceptr linear, opened_linear;
static CUipcMemHandle ipc;
static int fd;

static void make_physical(void)
{
    CUmemAllocationProp prop = {.type = 1, .handle_types = FILE_DESCRIPTOR, .location_type = CU_MEM_LOCATION_TYPE_DEVICE};
    CHECK_EQ(cuMemCreate(&physical, SHARED, &prop, 0), CUDA_SUCCESS);
    CHECK_EQ(cuMemExportToShareableHandle(&fd, physical, FILE_DESCRIPTOR, 0), CUDA_SUCCESS);
}

static void free_physical(void)
{
    CHECK_EQ(cuMemRelease(physical), CUDA_SUCCESS);
}

static void open_physical(void *nothing)
{
    (void)nothing;
    CHECK_EQ(cuMemImportFromShareableHandle(&opened_physical, (void *)(intptr_t)fd, FILE_DESCRIPTOR), CUDA_SUCCESS);
}

static void close_physical(void *nothing)
{
    (void)nothing;
    CHECK_EQ(cuMemRelease(opened_physical), CUDA_SUCCESS);
}

static void make_linear(void)
{
    CHECK_EQ(cuMemAlloc_v2(&linear, SHARED), CUDA_SUCCESS);
    CHECK_EQ(cuIpcGetMemHandle(&ipc, linear + MIB), CUDA_SUCCESS);
    CHECK_EQ(cuIpcGetMemHandle(&ipc, linear), CUDA_SUCCESS);
}

static void free_linear(void)
{
    CHECK_EQ(cuMemFree_v2(linear), CUDA_SUCCESS);
}

static void open_linear(void *nothing)
{
    (void)nothing;
    CHECK_EQ(cuIpcOpenMemHandle_v2(&opened_linear, ipc, 1), CUDA_SUCCESS);
}

static void close_linear(void *nothing)
{
    (void)nothing;
    CHECK_EQ(cuIpcCloseMemHandle(opened_linear), CUDA_SUCCESS);
}

static const struct {
    void (*make)(void), (*give)(void), (*open)(void *), (*close)(void *);
} ways[] = {{make_physical, free_physical, open_physical, close_physical},
            {make_linear, free_linear, open_linear, close_linear}};
enum { WAYS = 2 };

static void check_room(uint64_t bytes)
{
    CUdeviceptr out;
    CHECK_EQ(cuMemAlloc_v2(&out, bytes + 512), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ(cuMemAlloc_v2(&out, bytes), CUDA_SUCCESS);
    CHECK_EQ(cuMemFree_v2(out), CUDA_SUCCESS);
    CHECK(stage_card_peak() <= LIMIT);
}

TEST(shared_memory_is_charged_once)
{
    for (int i = 0; i < WAYS; i++) {
        start();
        ways[i].make();
        struct child child = begin(ways[i].open, ways[i].close, NULL);
        CHECK_EQ(stage_ledger_sum(), SHARED);
        CHECK_EQ(stage_card_used(), SHARED);
        go_on(child);
        CHECK_EQ(stage_ledger_sum(), SHARED);
        ways[i].give();
        CHECK_EQ(stage_ledger_sum(), 0);
        CHECK_EQ(stage_card_used(), 0);
        end(child);
    }
}

TEST(what_its_maker_freed_stays_charged_while_another_has_it_open)
{
    for (int i = 0; i < WAYS; i++) {
        start();
        ways[i].make();
        struct child child = begin(ways[i].open, ways[i].close, NULL);
        ways[i].give();
        CHECK_EQ(stage_card_used(), SHARED);
        CHECK_EQ(stage_ledger_sum(), SHARED);
        check_room(LIMIT - SHARED);
        go_on(child);
        CHECK_EQ(stage_card_used(), 0);
        check_room(LIMIT);
        CHECK_EQ(stage_ledger_sum(), 0);
        end(child);
    }
}

TEST(what_its_maker_freed_is_free_when_who_had_it_open_is_killed)
{
    for (int i = 0; i < WAYS; i++) {
        start();
        ways[i].make();
        struct child child = begin(ways[i].open, ways[i].close, NULL);
        ways[i].give();
        check_room(LIMIT - SHARED);
        end(child);
        check_room(LIMIT);
        CHECK_EQ(stage_ledger_sum(), 0);
    }
}

static int pipe_of_handle[2];

static void make_and_tell(void *nothing)
{
    (void)nothing;
    make_linear();
    CHECK(write(pipe_of_handle[1], &ipc, sizeof ipc) == sizeof ipc);
}

static void do_nothing(void *nothing)
{
    (void)nothing;
}

TEST(memory_of_a_dead_maker_stays_charged_while_another_has_it_open)
{
    CUdeviceptr own;
    start();
    CHECK(pipe(pipe_of_handle) == 0);
    struct child child = begin(make_and_tell, do_nothing, NULL);
    CHECK(read(pipe_of_handle[0], &ipc, sizeof ipc) == sizeof ipc);
    open_linear(NULL);
    end(child);
    CHECK_EQ(stage_card_used(), SHARED);
    check_room(LIMIT - SHARED);
    check_room(LIMIT - SHARED);
    CHECK_EQ(cuMemAlloc_v2(&own, MIB), CUDA_SUCCESS);
    close_linear(NULL);
    CHECK_EQ(stage_card_used(), MIB);
    check_room(LIMIT - MIB);
    CHECK_EQ(cuMemFree_v2(own), CUDA_SUCCESS);
    CHECK_EQ(stage_ledger_sum(), 0);
}

TEST(what_was_exported_and_opened_by_nobody_is_free_at_once)
{
    for (int i = 0; i < WAYS; i++) {
        start();
        ways[i].make();
        ways[i].give();
        CHECK_EQ(stage_ledger_sum(), 0);
        CHECK_EQ(stage_card_used(), 0);
    }
}

TEST(a_context_that_goes_closes_what_it_had_open_and_frees_what_it_had_exported)
{
    CUcontext own;
    start();
    CHECK_EQ(cuCtxCreate_v2(&own, 0, 0), CUDA_SUCCESS);
    make_linear();
    CHECK_EQ(cuCtxDestroy_v2(own), CUDA_SUCCESS);
    CHECK_EQ(stage_ledger_sum(), 0);

    start();
    make_linear();
    CHECK_EQ(cuCtxCreate_v2(&own, 0, 0), CUDA_SUCCESS);
    open_linear(NULL);
    CHECK_EQ(cuCtxDestroy_v2(own), CUDA_SUCCESS);
    free_linear();
    CHECK_EQ(stage_ledger_sum(), 0);
}

TEST(a_handle_that_cannot_be_opened_opens_nothing)
{
    start();
    make_linear();
    free_linear();
    CHECK_EQ(cuIpcOpenMemHandle(&opened_linear, ipc, 1), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ(cuMemImportFromShareableHandle(&opened_physical, (void *)(intptr_t)-1, FILE_DESCRIPTOR), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ(cuIpcCloseMemHandle(12345), CUDA_ERROR_INVALID_VALUE);
    make_linear();
    free_linear();
    CHECK_EQ(stage_ledger_sum(), 0); /* so nothing counts as open */
}

int main(int argc, char **argv)
{
    (void)argc;
    stage_enter(argv, "fork_works=1");
    return t_run();
}
