/* test_storm.c - many processes and threads take and free memory of every kind at random while some are killed. The simulated
 * device, which does not know the ledger, must never see more than the limit, and nothing may be left over. */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "driver_api.h"
#include "stage.h"
#include "t.h"

#define LIMIT (UINT64_C(64) << 20)
#define CONTEXT (UINT64_C(1) << 20)
enum { PROCESSES = 6, THREADS = 3, HELD = 24, SECONDS = 3, PATIENCE = 60, KILLS = 200 };

/* Something that takes device memory; `kind` says by which call it was allocated and is freed. */
struct thing {
    enum { NONE, LINEAR, ASYNC, PHYSICAL, ARRAY, EXPORTED, GRAPH, MORE_CONTEXT, KINDS } kind;
    uint64_t handle;
};

CUresult cuGraphCreate(CUgraph *out, unsigned flags);
CUresult cuGraphDestroy(CUgraph graph);
CUresult cuGraphAddMemAllocNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, size_t count,
                                CUDA_MEM_ALLOC_NODE_PARAMS *params);
CUresult cuGraphAddMemFreeNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, size_t count, CUdeviceptr address);

/* A graph that allocates and frees, launched once. */
static CUresult take_graph(size_t bytes, uint64_t *out)
{
    CUDA_MEM_ALLOC_NODE_PARAMS params = {.bytes = bytes, .pool = {.alloc_type = 1, .location_type = CU_MEM_LOCATION_TYPE_DEVICE}};
    CUgraph graph;
    CUgraphNode node;
    CUgraphExec exec;
    CUresult result = cuGraphCreate(&graph, 0);
    result = result == CUDA_SUCCESS ? cuGraphAddMemAllocNode(&node, graph, NULL, 0, &params) : result;
    result = result == CUDA_SUCCESS ? cuGraphAddMemFreeNode(&node, graph, NULL, 0, params.address) : result;
    result = result == CUDA_SUCCESS ? cuGraphInstantiateWithFlags(&exec, graph, 0) : result;
    cuGraphDestroy(graph);
    if (result == CUDA_SUCCESS) {
        result = cuGraphLaunch(exec, NULL);
        *out = (uintptr_t)exec;
        if (result != CUDA_SUCCESS) {
            cuGraphExecDestroy(exec);
        }
    }
    return result;
}

static CUresult take_context(uint64_t *out)
{
    CUcontext made, popped;
    CUresult result = cuCtxCreate_v2(&made, 0, 0);
    *out = (uintptr_t)made;
    return result == CUDA_SUCCESS ? cuCtxPopCurrent_v2(&popped) : result;
}

static CUresult take(struct thing *thing, unsigned *seed)
{
    static const CUmemAllocationProp on_card = {.type = 1, .location_type = CU_MEM_LOCATION_TYPE_DEVICE};
    size_t bytes = 1 + (size_t)rand_r(seed) % (LIMIT / 20);
    CUDA_ARRAY_DESCRIPTOR what = {.width = bytes / 1024 + 1, .height = 256, .format = CU_AD_FORMAT_UNSIGNED_INT32, .channels = 1};
    CUdeviceptr address = 0;
    CUarray array = NULL;
    CUresult result = CUDA_ERROR_UNKNOWN;
    unsigned kind = 1 + (unsigned)rand_r(seed) % (KINDS - 1);
    if (kind == LINEAR) {
        result = cuMemAlloc_v2(&address, bytes);
    } else if (kind == ASYNC) {
        result = cuMemAllocAsync(&address, bytes, NULL);
    } else if (kind == PHYSICAL) {
        result = cuMemCreate(&address, (1 + bytes % 2) << 21, &on_card, 0);
    } else if (kind == EXPORTED) {
        CUipcMemHandle handle;
        result = cuMemAlloc_v2(&address, bytes);
        result = result == CUDA_SUCCESS ? cuIpcGetMemHandle(&handle, address) : result;
    } else if (kind == GRAPH) {
        uint64_t exec = 0;
        result = take_graph(bytes, &exec);
        address = exec;
    } else if (kind == MORE_CONTEXT) {
        uint64_t made = 0;
        result = take_context(&made);
        address = made;
    } else {
        result = cuArrayCreate_v2(&array, &what);
        address = (uintptr_t)array;
    }
    if (result == CUDA_SUCCESS) {
        *thing = (struct thing){.kind = kind, .handle = address};
    }
    return result;
}

static CUresult give(struct thing *thing)
{
    struct thing gone = *thing;
    thing->kind = NONE;
    if (gone.kind == PHYSICAL) {
        return cuMemRelease(gone.handle);
    }
    if (gone.kind == GRAPH) {
        return cuGraphExecDestroy((CUgraphExec)(uintptr_t)gone.handle);
    }
    if (gone.kind == MORE_CONTEXT) {
        return cuCtxDestroy_v2((CUcontext)(uintptr_t)gone.handle);
    }
    if (gone.kind == ARRAY) {
        return cuArrayDestroy((CUarray)(uintptr_t)gone.handle);
    }
    return gone.kind == ASYNC ? cuMemFreeAsync(gone.handle, NULL) : cuMemFree_v2(gone.handle);
}

static void *live(void *argument)
{
    unsigned seed = (unsigned)(uintptr_t)argument;
    struct thing held[HELD] = {0};
    CUcontext context;
    CUresult opened;
    do {
        opened = cuDevicePrimaryCtxRetain(&context, 0); /* costs memory, too */
    } while (opened == CUDA_ERROR_OUT_OF_MEMORY);
    if (opened != CUDA_SUCCESS || cuCtxSetCurrent(context) != CUDA_SUCCESS) {
        _exit(2);
    }
    for (;;) {
        unsigned n = (unsigned)rand_r(&seed) % HELD;
        CUresult result = held[n].kind ? give(&held[n]) : take(&held[n], &seed);
        if (result != CUDA_SUCCESS && result != CUDA_ERROR_OUT_OF_MEMORY) {
            _exit(2);
        }
    }
    return NULL;
}

static pid_t test; /* the process that runs it */

/* Handles that processes publish for each other to open. */
enum { BOARD = 16, SHARERS = 5 };
static struct notice {
    _Atomic uint32_t turn; /* odd while it is written */
    CUipcMemHandle handle;
} *board;

static void publish(CUdeviceptr address, unsigned at)
{
    CUipcMemHandle handle;
    struct notice *it = &board[at % BOARD];
    uint32_t turn = it->turn;
    if (cuIpcGetMemHandle(&handle, address) == CUDA_SUCCESS && turn % 2 == 0 &&
        atomic_compare_exchange_strong(&it->turn, &turn, turn + 1)) {
        it->handle = handle;
        it->turn = turn + 2;
    }
}

static int read_notice(unsigned at, CUipcMemHandle *out)
{
    struct notice *it = &board[at % BOARD];
    uint32_t turn = it->turn;
    *out = it->handle;
    return turn && turn % 2 == 0 && it->turn == turn;
}

static void share(unsigned seed)
{
    CUdeviceptr made[HELD] = {0}, open[HELD] = {0};
    CUcontext context;
    CUipcMemHandle handle;
    while (cuDevicePrimaryCtxRetain(&context, 0) == CUDA_ERROR_OUT_OF_MEMORY) {
    }
    if (cuCtxSetCurrent(context) != CUDA_SUCCESS) {
        _exit(2);
    }
    for (;;) {
        unsigned n = (unsigned)rand_r(&seed) % HELD, where = (unsigned)rand_r(&seed);
        if (rand_r(&seed) % 2) {
            if (made[n] ? cuMemFree_v2(made[n]) : CUDA_SUCCESS) {
                _exit(2);
            }
            made[n] = !made[n] && cuMemAlloc_v2(&made[n], 1 + (size_t)rand_r(&seed) % (LIMIT / 12)) == CUDA_SUCCESS ? made[n] : 0;
            if (made[n]) {
                publish(made[n], where);
            }
        } else if (open[n]) {
            if (cuIpcCloseMemHandle(open[n]) != CUDA_SUCCESS) {
                _exit(2);
            }
            open[n] = 0;
        } else if (read_notice(where, &handle) && cuIpcOpenMemHandle_v2(&open[n], handle, 1) != CUDA_SUCCESS) {
            open[n] = 0; /* it was freed, or its maker is dead */
        }
    }
}

/* Die with the parent, even if it is already dead. */
static void die_with_parent(void)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != test) {
        _exit(2);
    }
}

static pid_t spawn_sharer(unsigned seed)
{
    pid_t child = fork();
    if (child == 0) {
        die_with_parent();
        if (cuInit(0) != CUDA_SUCCESS) {
            _exit(2);
        }
        share(seed);
    }
    return child;
}

static pid_t spawn(unsigned seed)
{
    pid_t child = fork();
    if (child == 0) {
        pthread_t thread;
        die_with_parent();
        if (cuInit(0) != CUDA_SUCCESS) {
            _exit(2);
        }
        for (unsigned i = 1; i < THREADS; i++) {
            pthread_create(&thread, NULL, live, (void *)(uintptr_t)(seed + i));
        }
        live((void *)(uintptr_t)seed);
    }
    return child;
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void check_that_all_comes_back(void)
{
    CUdeviceptr all = 0;
    CUcontext context;
    CHECK_EQ(cuInit(0), CUDA_SUCCESS);
    CHECK_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    CHECK_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
    CHECK_EQ(cuMemAlloc_v2(&all, LIMIT - CONTEXT), CUDA_SUCCESS);
    CHECK_EQ(stage_ledger_sum(), LIMIT);
    CHECK_EQ(cuMemFree_v2(all), CUDA_SUCCESS);
    CHECK_EQ(cuDevicePrimaryCtxRelease_v2(0), CUDA_SUCCESS);
}

/* Kill and replace processes at random for a while; on a busy machine, until they have reached the limit and enough were
 * killed. Then kill them all. */
static void storm(pid_t (*start)(unsigned seed), int count, uint64_t least)
{
    pid_t children[PROCESSES];
    unsigned seed = 1, kills = 0;
    test = getpid();
    double began = seconds();
    stage_grant(LIMIT);
    stage_page()->devices[0].context_bytes = CONTEXT;
    stage_card_reset_peak();
    for (int i = 0; i < count; i++) {
        children[i] = start(seed += 100);
    }
    while (seconds() < began + SECONDS || ((kills < KILLS || stage_card_peak() <= least) && seconds() < began + PATIENCE)) {
        int victim = rand() % count, status = 0;
        struct timespec pause = {.tv_nsec = 1000000 + rand() % 20000000};
        nanosleep(&pause, NULL);
        kill(children[victim], SIGKILL);
        waitpid(children[victim], &status, 0);
        CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL); /* it did not exit by itself */
        children[victim] = start(seed += 100);
        kills++;
        CHECK(stage_card_peak() <= LIMIT);
    }
    for (int i = 0; i < count; i++) {
        kill(children[i], SIGKILL);
        waitpid(children[i], NULL, 0);
    }
    printf("  %u kills, peak %llu of %llu\n", kills, (unsigned long long)stage_card_peak(), (unsigned long long)LIMIT);
    CHECK(kills >= KILLS);
    CHECK(stage_card_peak() <= LIMIT);
    CHECK(stage_card_peak() > least); /* otherwise the limit was never tried */
    check_that_all_comes_back();
}

TEST(shared_memory_exceeds_nothing_whichever_process_is_killed)
{
    board = mmap(NULL, sizeof *board * BOARD, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(board != MAP_FAILED);
    storm(spawn_sharer, SHARERS, LIMIT / 2); /* memory that others have open stays charged without being used */
}

TEST(no_interleaving_and_no_kill_exceeds_the_limit_and_all_comes_back)
{
    storm(spawn, PROCESSES, LIMIT * 9 / 10);
}

int main(int argc, char **argv)
{
    (void)argc;
    stage_enter(argv, "context_mib=1\nfork_works=1");
    return t_run();
}
