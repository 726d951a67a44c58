/* test_share.c - memory that two processes have open is charged once, to its creator, as long as one of them has it open. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "child.h"
#include "on_card.h"

#define MIB (UINT64_C(1) << 20)
#define LIMIT (100 * MIB)
#define SHARED (40 * MIB)
enum { FILE_DESCRIPTOR = 1 };

CUresult cuMemPoolExportToShareableHandle(void *out, CUmemoryPool pool, int type, unsigned long long flags);
CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *out, void *handle, int type, unsigned long long flags);

static void start(void)
{
    start_under(LIMIT);
    stage_card_reset_peak();
}

/* The three ways to share memory, each with a handle that a child process can open. */
static CUmemGenericAllocationHandle physical, opened_physical;
static CUdeviceptr linear, opened_linear;
static CUipcMemHandle ipc;
static CUdeviceptr pooled, opened_pooled;
static CUmemPoolPtrExportData pointer;
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

/* Memory of a pool that releases freed memory at once. */
static void make_pooled(void)
{
    CUmemPoolProps props = {.alloc_type = 1, .handle_types = FILE_DESCRIPTOR, .location_type = CU_MEM_LOCATION_TYPE_DEVICE};
    CUmemoryPool pool;
    CHECK_EQ(cuMemPoolCreate(&pool, &props), CUDA_SUCCESS);
    CHECK_EQ(cuMemPoolExportToShareableHandle(&fd, pool, FILE_DESCRIPTOR, 0), CUDA_SUCCESS);
    CHECK_EQ(cuMemAllocFromPoolAsync(&pooled, SHARED, pool, NULL), CUDA_SUCCESS);
    CHECK_EQ(cuMemPoolExportPointer(&pointer, pooled), CUDA_SUCCESS);
    CHECK_EQ(cuMemPoolExportPointer(&pointer, pooled), CUDA_SUCCESS);
}

static void free_pooled(void)
{
    CHECK_EQ(cuMemFreeAsync(pooled, NULL), CUDA_SUCCESS);
    CHECK_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
}

static void open_pooled(void *nothing)
{
    CUmemoryPool pool;
    (void)nothing;
    CHECK_EQ(cuMemPoolImportFromShareableHandle(&pool, (void *)(intptr_t)fd, FILE_DESCRIPTOR, 0), CUDA_SUCCESS);
    CHECK_EQ(cuMemPoolImportPointer(&opened_pooled, pool, &pointer), CUDA_SUCCESS);
}

static void close_pooled(void *nothing)
{
    (void)nothing;
    CHECK_EQ(cuMemFree_v2(opened_pooled), CUDA_SUCCESS);
}

static const struct {
    void (*make)(void), (*give)(void), (*open)(void *), (*close)(void *);
} ways[] = {{make_physical, free_physical, open_physical, close_physical},
            {make_linear, free_linear, open_linear, close_linear},
            {make_pooled, free_pooled, open_pooled, close_pooled}};
enum { WAYS = 3 };

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

static void make_linear_and_tell(void *nothing)
{
    (void)nothing;
    make_linear();
    CHECK(write(pipe_of_handle[1], &ipc, sizeof ipc) == sizeof ipc);
}

static void make_pooled_and_tell(void *nothing)
{
    (void)nothing;
    make_pooled();
    CHECK(write(pipe_of_handle[1], &pointer, sizeof pointer) == sizeof pointer);
}

static void do_nothing(void *nothing)
{
    (void)nothing;
}

static void a_maker_dies(void (*make)(void *), void *handle, size_t size, void (*open)(void *), void (*close_it)(void *))
{
    CUdeviceptr own;
    start();
    CHECK(pipe(pipe_of_handle) == 0);
    struct child child = begin(make, do_nothing, NULL);
    CHECK(read(pipe_of_handle[0], handle, size) == (ssize_t)size);
    open(NULL);
    end(child);
    CHECK_EQ(stage_card_used(), SHARED);
    check_room(LIMIT - SHARED);
    check_room(LIMIT - SHARED);
    CHECK_EQ(cuMemAlloc_v2(&own, MIB), CUDA_SUCCESS);
    close_it(NULL);
    CHECK_EQ(stage_card_used(), MIB);
    check_room(LIMIT - MIB);
    CHECK_EQ(cuMemFree_v2(own), CUDA_SUCCESS);
    CHECK_EQ(stage_ledger_sum(), 0);
}

TEST(memory_of_a_dead_maker_stays_charged_while_another_has_it_open)
{
    a_maker_dies(make_linear_and_tell, &ipc, sizeof ipc, open_linear, close_linear);
    a_maker_dies(make_pooled_and_tell, &pointer, sizeof pointer, open_pooled, close_pooled);
}

TEST(what_was_exported_and_never_opened_is_free_at_once)
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
