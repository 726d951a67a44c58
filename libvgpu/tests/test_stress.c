/* test_stress.c - eight threads of one process use memory of every kind, contexts, launches, graphs and NVML while the page
 * changes. Everything of the library except the search for the driver is linked to the simulated driver, so that sanitizers
 * see every module.
 *
 * First come races of two threads that are certain to happen: the second thread runs inside a driver call of the first.
 *
 * Some threads share a device and its primary context; each of the others has a device of its own and resets it. In the end
 * everything is freed, and the device has never held more than the limit.
 */
#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "identity.h"
#include "ledger.h"
#include "machine.h"
#include "process.h"
#include "region.h"
#include "state.h"
#include "t.h"

#define MIB (UINT64_C(1) << 20)
#define LIMIT (64 * MIB)
#define GRAIN (2 * MIB)
#define UUID "GPU-00000000-0000-4000-8000-00000000000%u"
enum {
    SHARING = 6,
    RESETTING = 2,
    THREADS = SHARING + RESETTING,
    CARDS = 1 + RESETTING,
    HELD = 8,
    SECONDS = 2,
    PATIENCE = 60,
    ENOUGH = 1000
};

/* ------------------------------------------------------------------ the library's world: the simulated driver */

static struct vgpu_page page = {
    .magic = VGPU_PAGE_MAGIC, .abi_version = VGPU_ABI_VERSION, .size = VGPU_PAGE_BYTES, .seq = 2, .state = VGPU_PAGE_GRANT};
static struct vgpu_region *region;
static struct vgpu_cuda cuda_table;
static struct vgpu_nvml nvml_table;
static void *cuda_library, *nvml_library;

static void *function(void *library, const char *name)
{
    void *found = dlsym(library, name);
    if (!found) {
        fprintf(stderr, "the driver has no %s\n", name);
        exit(3);
    }
    return found;
}

static void fill_tables(void)
{
#define FILL_cuda(symbol) *(void **)(void *)&cuda_table.symbol = function(cuda_library, #symbol);
#define FILL_nvml(symbol) *(void **)(void *)&nvml_table.symbol = function(nvml_library, #symbol);
#define VGPU_HOOK(class, library, symbol, base, since, per_thread, ret, parameters) FILL_##library(symbol)
#define VGPU_USED(library, symbol, ret, parameters) FILL_##library(symbol)
#include "../src/symbols.def"
}

static const struct vgpu_cuda *cuda(void)
{
    return &cuda_table;
}

static const struct vgpu_nvml *nvml(void)
{
    return &nvml_table;
}

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static struct vgpu_instant library_now(void)
{
    return vgpu_at(now_ns());
}

static void sleep_ns(uint64_t ns)
{
    struct timespec t = {.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};
    nanosleep(&t, NULL);
}

static const char *env(const char *name)
{
    return name[0] == 'V' ? name : NULL;
}

static int exists(const char *path)
{
    (void)path;
    return 0;
}

static void *map(const char *path, size_t bytes, enum vgpu_map how)
{
    (void)path;
    void *at =
        how == VGPU_MAP_READ ? (void *)&page : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    region = how == VGPU_MAP_READ ? region : at;
    return at;
}

static void *map_private(size_t bytes)
{
    return map("", bytes, VGPU_MAP_WRITE);
}

static void log_line(const char *text)
{
    (void)text;
}

static const struct vgpu_world world = {.cuda = cuda,
                                        .nvml = nvml,
                                        .now = library_now,
                                        .about_now = library_now,
                                        .sleep_for = sleep_ns,
                                        .self = vgpu_identity_self,
                                        .is_dead = vgpu_identity_is_dead,
                                        .layout_of = vgpu_identity_layout,
                                        .env = env,
                                        .exists = exists,
                                        .map = map,
                                        .map_private = map_private,
                                        .log = log_line};
const struct vgpu_world *vgpu_world = &world;

/* ------------------------------------------------------------------ what threads do, beyond what has hooks */

static CUresult (*set_current)(CUcontext);
static CUresult (*pop_current)(CUcontext *);
static CUresult (*get_function)(CUfunction *, CUmodule, const char *);
static CUresult (*unload)(CUmodule);
static CUresult (*reserve)(CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long);
static CUresult (*unreserve)(CUdeviceptr, size_t);
static CUresult (*make_stream)(CUstream *, unsigned);
static CUresult (*end_stream)(CUstream);
static CUresult (*make_graph)(CUgraph *, unsigned);
static CUresult (*end_graph)(CUgraph);
static CUresult (*add_kernel)(CUgraphNode *, CUgraph, const CUgraphNode *, size_t, const CUDA_KERNEL_NODE_PARAMS *);
static CUresult (*add_alloc)(CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUDA_MEM_ALLOC_NODE_PARAMS *);
static CUresult (*add_free)(CUgraphNode *, CUgraph, const CUgraphNode *, size_t, CUdeviceptr);

static void find_functions(void)
{
    static const struct {
        const char *name;
        void *at;
    } wanted[] = {
        {"cuCtxSetCurrent", &set_current},   {"cuCtxPopCurrent_v2", &pop_current},  {"cuModuleGetFunction", &get_function},
        {"cuModuleUnload", &unload},         {"cuMemAddressReserve", &reserve},     {"cuMemAddressFree", &unreserve},
        {"cuStreamCreate", &make_stream},    {"cuStreamDestroy_v2", &end_stream},   {"cuGraphCreate", &make_graph},
        {"cuGraphDestroy", &end_graph},      {"cuGraphAddKernelNode", &add_kernel}, {"cuGraphAddMemAllocNode", &add_alloc},
        {"cuGraphAddMemFreeNode", &add_free}};
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        *(void **)wanted[i].at = function(cuda_library, wanted[i].name);
    }
}

struct life {
    unsigned number, seed;
    CUdevice device;
    CUcontext context;
    CUstream stream;
    CUmodule module;
    CUfunction kernels[3];
    CUdeviceptr plain[HELD], pooled[HELD];
    _Atomic uint64_t done;
    uint64_t failed;
};

static _Atomic int over;
static _Atomic uint64_t denied;

static unsigned any(struct life *l, unsigned below)
{
    return (unsigned)rand_r(&l->seed) % below;
}

/* Note a result. Out of memory is allowed; any other error is a failure. */
static void note(struct life *l, CUresult result, int line)
{
    l->done++;
    if (result == CUDA_ERROR_OUT_OF_MEMORY) {
        atomic_fetch_add(&denied, 1);
    } else if (result != CUDA_SUCCESS && !l->failed++) {
        fprintf(stderr, "    thread %u, line %d: error %d\n", l->number, line, result);
    }
}
#define NOTE(result) note(l, result, __LINE__)

static void plain_memory(struct life *l)
{
    CUdeviceptr *at = &l->plain[any(l, HELD)];
    NOTE(*at ? cuMemFree_v2(*at) : CUDA_SUCCESS);
    *at = 0;
    NOTE(any(l, 4) ? cuMemAlloc_v2(at, 1 + any(l, 2 * MIB)) : cuMemAllocManaged(at, 1 + any(l, MIB), 1));
}

static void pooled_memory(struct life *l)
{
    CUdeviceptr *at = &l->pooled[any(l, HELD)];
    NOTE(*at ? cuMemFreeAsync(*at, l->stream) : CUDA_SUCCESS);
    *at = 0;
    NOTE(cuMemAllocAsync(at, 1 + any(l, MIB), l->stream));
    NOTE(any(l, 8) ? CUDA_SUCCESS : cuStreamSynchronize(l->stream));
}

static void own_pool(struct life *l)
{
    CUmemPoolProps props = {.alloc_type = 1, .location_type = CU_MEM_LOCATION_TYPE_DEVICE, .location_id = l->device};
    CUmemoryPool pool;
    CUdeviceptr at = 0;
    CUresult result = cuMemPoolCreate(&pool, &props);
    NOTE(result);
    if (result == CUDA_SUCCESS) {
        NOTE(cuMemAllocFromPoolAsync(&at, 1 + any(l, MIB), pool, l->stream));
        NOTE(at ? cuMemFreeAsync(at, l->stream) : CUDA_SUCCESS);
        NOTE(cuMemPoolTrimTo(pool, 0));
        NOTE(cuMemPoolDestroy(pool));
    }
}

static void physical_memory(struct life *l)
{
    CUmemAllocationProp on_card = {.type = 1, .location_type = CU_MEM_LOCATION_TYPE_DEVICE, .location_id = l->device};
    CUmemGenericAllocationHandle handle, again;
    CUdeviceptr at;
    CUresult result = cuMemCreate(&handle, GRAIN, &on_card, 0);
    NOTE(result);
    if (result != CUDA_SUCCESS) {
        return;
    }
    result = reserve(&at, GRAIN, 0, 0, 0);
    NOTE(result);
    if (result == CUDA_SUCCESS) {
        NOTE(cuMemMap(at, GRAIN, 0, handle, 0));
        result = cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)at);
        NOTE(result);
        NOTE(result == CUDA_SUCCESS ? cuMemRelease(again) : CUDA_SUCCESS);
        NOTE(cuMemUnmap(at, GRAIN));
        NOTE(unreserve(at, GRAIN));
    }
    NOTE(cuMemRelease(handle));
}

static void arrays_and_host_memory(struct life *l)
{
    CUDA_ARRAY_DESCRIPTOR what = {.width = 1 + any(l, 512), .height = 256, .format = CU_AD_FORMAT_UNSIGNED_INT32, .channels = 1};
    CUarray array;
    void *host;
    CUresult result = cuArrayCreate_v2(&array, &what);
    NOTE(result);
    NOTE(result == CUDA_SUCCESS ? cuArrayDestroy(array) : CUDA_SUCCESS);
    result = cuMemHostAlloc(&host, 4096, 0);
    NOTE(result);
    NOTE(result == CUDA_SUCCESS ? cuMemFreeHost(host) : CUDA_SUCCESS);
}

static void exports(struct life *l)
{
    CUipcMemHandle handle;
    CUdeviceptr at;
    if (cuMemAlloc_v2(&at, GRAIN) == CUDA_SUCCESS) {
        NOTE(cuIpcGetMemHandle(&handle, at));
        NOTE(cuMemFree_v2(at));
    }
}

static void launches(struct life *l)
{
    for (unsigned i = 0; i < 8; i++) {
        NOTE(
            cuLaunchKernel(l->kernels[any(l, 3)], 1 + any(l, 200), 1, 1, 256, 1, 1, 0, any(l, 2) ? l->stream : NULL, NULL, NULL));
    }
    NOTE(any(l, 4) ? CUDA_SUCCESS : cuStreamSynchronize(l->stream));
}

static void graphs(struct life *l)
{
    CUDA_MEM_ALLOC_NODE_PARAMS memory = {
        .bytes = 1 + any(l, MIB),
        .pool = {.alloc_type = 1, .location_type = CU_MEM_LOCATION_TYPE_DEVICE, .location_id = l->device}};
    CUDA_KERNEL_NODE_PARAMS kernel = {.function = l->kernels[0], .grid = {4, 1, 1}, .block = {64, 1, 1}};
    CUgraph graph;
    CUgraphNode node;
    CUgraphExec exec;
    CUresult result = make_graph(&graph, 0);
    NOTE(result);
    if (result != CUDA_SUCCESS) {
        return;
    }
    NOTE(add_kernel(&node, graph, NULL, 0, &kernel));
    NOTE(add_alloc(&node, graph, NULL, 0, &memory));
    NOTE(add_free(&node, graph, NULL, 0, memory.address));
    result = cuGraphInstantiateWithFlags(&exec, graph, 0);
    NOTE(result);
    if (result == CUDA_SUCCESS) {
        NOTE(cuGraphLaunch(exec, l->stream));
        NOTE(cuStreamSynchronize(l->stream));
        NOTE(cuGraphExecDestroy(exec));
    }
    NOTE(cuDeviceGraphMemTrim(l->device));
    NOTE(end_graph(graph));
}

static void another_context(struct life *l)
{
    CUcontext own;
    CUdeviceptr at;
    CUmodule module;
    CUfunction kernel;
    CUresult result = cuCtxCreate_v2(&own, 0, l->device);
    NOTE(result);
    if (result != CUDA_SUCCESS) {
        return;
    }
    NOTE(cuMemAlloc_v2(&at, 1 + any(l, MIB))); /* goes with it */
    NOTE(cuModuleLoadData(&module, "image"));
    NOTE(get_function(&kernel, module, "busy_2us"));
    for (int i = 0; i < 4; i++) {
        NOTE(cuLaunchKernel(kernel, 4, 1, 1, 64, 1, 1, 0, NULL, NULL, NULL));
    }
    NOTE(any(l, 2) ? cuCtxSynchronize() : CUDA_SUCCESS);
    NOTE(cuCtxDestroy_v2(own));
    NOTE(set_current(l->context));
}

static void views(struct life *l)
{
    char uuid[64];
    size_t free_bytes, total;
    unsigned count = 8;
    nvmlDevice_t device;
    nvmlMemory_t memory;
    nvmlUtilization_t use;
    nvmlProcessInfo_t list[8];
    NOTE(cuMemGetInfo_v2(&free_bytes, &total));
    snprintf(uuid, sizeof uuid, UUID, (unsigned)l->device);
    if (nvml_table.nvmlDeviceGetHandleByUUID(uuid, &device) == NVML_SUCCESS) {
        nvmlDeviceGetMemoryInfo(device, &memory);
        nvmlDeviceGetUtilizationRates(device, &use);
        nvmlDeviceGetComputeRunningProcesses_v3(device, &count, list);
        count = 8;
        nvmlDeviceGetGraphicsRunningProcesses_v3(device, &count, list);
    }
}

static void begin(struct life *l)
{
    static const char *const names[] = {"busy_1us", "busy_20us", "busy_100us"};
    NOTE(cuDevicePrimaryCtxRetain(&l->context, l->device));
    NOTE(set_current(l->context));
    NOTE(make_stream(&l->stream, CU_STREAM_NON_BLOCKING));
    NOTE(cuModuleLoadData(&l->module, "image"));
    for (int i = 0; i < 3; i++) {
        NOTE(get_function(&l->kernels[i], l->module, names[i]));
    }
}

static void end(struct life *l)
{
    for (int i = 0; i < HELD; i++) {
        NOTE(l->plain[i] ? cuMemFree_v2(l->plain[i]) : CUDA_SUCCESS);
        NOTE(l->pooled[i] ? cuMemFreeAsync(l->pooled[i], l->stream) : CUDA_SUCCESS);
        l->plain[i] = l->pooled[i] = 0;
    }
    NOTE(cuStreamSynchronize(l->stream));
    NOTE(unload(l->module));
    NOTE(end_stream(l->stream));
    NOTE(cuDevicePrimaryCtxRelease_v2(l->device));
}

/* Reset the device, which ends all its contexts, memory and events. */
static void reset(struct life *l)
{
    for (int i = 0; i < HELD; i++) {
        NOTE(l->pooled[i] ? cuMemFreeAsync(l->pooled[i], l->stream) : CUDA_SUCCESS); /* pools do not belong to the context */
        l->plain[i] = l->pooled[i] = 0;
    }
    NOTE(cuDevicePrimaryCtxReset_v2(l->device));
    NOTE(cuDevicePrimaryCtxRelease_v2(l->device));
    begin(l);
}

static void *live(void *argument)
{
    static void (*const deeds[])(struct life *) = {plain_memory, pooled_memory, own_pool, physical_memory, arrays_and_host_memory,
                                                   exports,      launches,      graphs,   another_context, views};
    struct life *l = argument;
    begin(l);
    while (!over) {
        if (l->number >= SHARING && !any(l, 40)) {
            reset(l);
        }
        deeds[any(l, sizeof deeds / sizeof deeds[0])](l);
    }
    end(l);
    return NULL;
}

/* ------------------------------------------------------------------ races for certain */

static void (*meanwhile)(struct life *); /* called once, when the driver has answered the call below */
static struct life *other; /* its argument */
static CUdevice asked_device;

static void let_it_happen(void)
{
    void (*deed)(struct life *) = meanwhile;
    meanwhile = NULL;
    if (deed) {
        deed(other);
    }
}

static CUresult (*real_graph_attribute)(CUdevice, int, void *);
static CUresult graph_attribute(CUdevice device, int attribute, void *out)
{
    CUresult result = real_graph_attribute(device, attribute, out);
    if (device == asked_device) {
        let_it_happen();
    }
    return result;
}

static CUresult (*real_destroy)(CUcontext);
static CUresult destroy_context(CUcontext context)
{
    CUresult result = real_destroy(context);
    let_it_happen();
    return result;
}

/* Run a graph that takes a MiB of each of these devices. */
static void run_a_graph(struct life *l, CUdevice first, CUdevice last)
{
    CUgraph graph;
    CUgraphNode node;
    CUgraphExec exec;
    NOTE(make_graph(&graph, 0));
    for (CUdevice device = first; device <= last; device++) {
        CUDA_MEM_ALLOC_NODE_PARAMS memory = {
            .bytes = MIB, .pool = {.alloc_type = 1, .location_type = CU_MEM_LOCATION_TYPE_DEVICE, .location_id = device}};
        NOTE(add_alloc(&node, graph, NULL, 0, &memory));
        NOTE(add_free(&node, graph, NULL, 0, memory.address));
    }
    NOTE(cuGraphInstantiateWithFlags(&exec, graph, 0));
    NOTE(cuGraphLaunch(exec, l->stream));
    NOTE(cuStreamSynchronize(l->stream));
    NOTE(cuGraphExecDestroy(exec));
    NOTE(end_graph(graph));
}

static void *trim_graphs(void *argument)
{
    struct life *l = argument;
    NOTE(cuDeviceGraphMemTrim(l->device));
    return NULL;
}

static void trim_in_another_thread(struct life *l)
{
    pthread_t thread;
    l->failed += pthread_create(&thread, NULL, trim_graphs, l) || pthread_join(thread, NULL);
}

/* Another thread trims what graphs keep of device `trimmed`, while this one asks how much they keep of device `asked`. */
static void check_trim_while_asked(CUdevice asked, CUdevice trimmed)
{
    struct life lives[2] = {{.number = 0, .device = 0}, {.number = 1, .device = 1}};
    real_graph_attribute = cuda_table.cuDeviceGetGraphMemAttribute;
    for (unsigned i = 0; i < 2; i++) { /* the younger device's comes first when all are checked */
        begin(&lives[i]);
        run_a_graph(&lives[i], lives[i].device, lives[i].device);
        CHECK_EQ(vgpu_ledger_used(region, i), MIB);
    }
    cuda_table.cuDeviceGetGraphMemAttribute = graph_attribute;
    asked_device = asked;
    other = &lives[trimmed];
    meanwhile = trim_in_another_thread;
    CHECK_EQ(cuStreamSynchronize(lives[1].stream), CUDA_SUCCESS);
    CHECK(!meanwhile);
    cuda_table.cuDeviceGetGraphMemAttribute = real_graph_attribute;
    CHECK_EQ(vgpu_ledger_used(region, (unsigned)trimmed), 0);
    CHECK_EQ(vgpu_ledger_used(region, (unsigned)!trimmed), MIB);
    for (unsigned i = 0; i < 2; i++) {
        trim_graphs(&lives[i]);
        set_current(lives[i].context);
        end(&lives[i]);
        CHECK_EQ(lives[i].failed, 0);
        CHECK_EQ(vgpu_ledger_used(region, i), 0);
    }
}

TEST(what_a_pool_gives_back_while_another_thread_asks_about_it_is_not_charged)
{
    check_trim_while_asked(0, 0);
}

TEST(what_a_pool_gives_back_while_another_thread_asks_about_the_next_is_not_charged)
{
    check_trim_while_asked(0, 1);
}

TEST(a_graph_of_two_devices_leaves_its_thread_as_cancellable_as_it_was)
{
    struct life l = {.device = 0};
    int state;
    begin(&l);
    run_a_graph(&l, 0, 1);
    pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &state);
    CHECK_EQ(state, PTHREAD_CANCEL_ENABLE);
    for (CUdevice device = 0; device < 2; device++) {
        CHECK_EQ(vgpu_ledger_used(region, (unsigned)device), MIB);
        CHECK_EQ(cuDeviceGraphMemTrim(device), CUDA_SUCCESS);
        CHECK_EQ(vgpu_ledger_used(region, (unsigned)device), 0);
    }
    end(&l);
    CHECK_EQ(l.failed, 0);
}

enum { PIECE = 4096, PIECES = 8192 };
static CUdeviceptr lost; /* the address that disappeared with its context */
static int found;

/* Take memory of a new pool until it lies where the context's was, and give all back. */
static void allocate_where_it_was(struct life *l)
{
    static CUdeviceptr pieces[PIECES];
    CUmemPoolProps props = {.alloc_type = 1, .location_type = CU_MEM_LOCATION_TYPE_DEVICE, .location_id = l->device};
    CUmemoryPool pool;
    unsigned count = 0;
    NOTE(set_current(l->context));
    NOTE(cuMemPoolCreate(&pool, &props));
    for (found = 0; count < PIECES && !found; count++) {
        NOTE(cuMemAllocFromPoolAsync(&pieces[count], PIECE, pool, l->stream));
        found = pieces[count] == lost;
    }
    while (count) {
        NOTE(cuMemFreeAsync(pieces[--count], l->stream));
    }
    NOTE(cuMemPoolDestroy(pool));
}

TEST(memory_of_a_pool_that_lies_where_a_context_had_some_is_known_for_what_it_is)
{
    struct life l = {.device = 0};
    CUcontext own;
    begin(&l);
    CHECK_EQ(cuCtxCreate_v2(&own, 0, 0), CUDA_SUCCESS);
    CHECK_EQ(cuMemAlloc_v2(&lost, PIECE), CUDA_SUCCESS);
    real_destroy = cuda_table.cuCtxDestroy_v2;
    cuda_table.cuCtxDestroy_v2 = destroy_context;
    other = &l;
    meanwhile = allocate_where_it_was;
    CHECK_EQ(cuCtxDestroy_v2(own), CUDA_SUCCESS);
    cuda_table.cuCtxDestroy_v2 = real_destroy;
    CHECK(found);
    CHECK_EQ(l.failed, 0);
    CHECK_EQ(vgpu_ledger_used(region, 0), 0);
    end(&l);
    CHECK_EQ(l.failed, 0);
}

/* ------------------------------------------------------------------ and by chance */

/* Change a page as the agent does. */
static void change_page(unsigned turn)
{
    static const unsigned shares[] = {0, 50, 90, 30, 100};
    _Atomic uint32_t *seq = (_Atomic uint32_t *)&page.seq;
    atomic_fetch_add(seq, 1);
    for (unsigned i = 0; i < CARDS; i++) {
        struct vgpu_page_device *device = &page.devices[i];
        atomic_store((_Atomic uint32_t *)&device->cores_percent, shares[turn % 5]);
        atomic_store((_Atomic uint32_t *)&device->core_policy, turn / 5 % 2 ? VGPU_CORES_FORCE : VGPU_CORES_DEFAULT);
        atomic_store((_Atomic uint64_t *)&device->memory_limit_bytes, turn % 3 ? LIMIT : LIMIT / 2);
    }
    atomic_fetch_add(seq, 1);
}

static unsigned seconds = SECONDS;

static uint64_t done_by(const struct life *lives)
{
    uint64_t done = 0;
    for (unsigned i = 0; i < THREADS; i++) {
        done += lives[i].done;
    }
    return done;
}

/* Return 1 once the time is over and enough was done to reach limits. A busy machine takes longer. */
static int is_enough(const struct life *lives, uint64_t started)
{
    uint64_t passed = (now_ns() - started) / UINT64_C(1000000000);
    return passed >= seconds && (passed >= PATIENCE || (done_by(lives) > ENOUGH && denied));
}

TEST(eight_threads_leave_nothing_behind_and_never_exceed_the_limit)
{
    static struct life lives[THREADS];
    pthread_t threads[THREADS];
    uint64_t failed = 0, started = now_ns();
    for (unsigned i = 0; i < THREADS; i++) {
        lives[i] = (struct life){.number = i, .seed = i + 1, .device = i < SHARING ? 0 : (CUdevice)(i - SHARING + 1)};
        CHECK(pthread_create(&threads[i], NULL, live, &lives[i]) == 0);
    }
    for (unsigned turn = 0; !is_enough(lives, started); turn++) {
        change_page(turn);
        sleep_ns(5000000);
    }
    over = 1;
    for (unsigned i = 0; i < THREADS; i++) {
        CHECK(pthread_join(threads[i], NULL) == 0);
        failed += lives[i].failed;
    }
    printf("    %llu calls, %llu denied\n", (unsigned long long)done_by(lives), (unsigned long long)denied);
    CHECK_EQ(failed, 0);
    CHECK(done_by(lives) > ENOUGH && denied > 0);
    for (unsigned i = 0; i < CARDS; i++) {
        CHECK(state_open(machine_current())->cards[i].peak_bytes <= LIMIT);
        CHECK_EQ(state_used(machine_current(), (int)i), 0);
        CHECK_EQ(vgpu_ledger_used(region, i), 0);
        CHECK_EQ(vgpu_ledger_managed(region, i), 0);
    }
    CHECK_EQ(state_open(machine_current())->dead_uses, 0);
}

static void open_driver(char *program)
{
    char path[PATH_MAX + 64];
    char *cut = strstr(program, "/tests/"); /* build/tests/x -> build/fake */
    snprintf(path, sizeof path, "%.*s/fake/libcuda.so.1", cut ? (int)(cut - program) : 0, program);
    cuda_library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    snprintf(path, sizeof path, "%.*s/fake/libnvidia-ml.so.1", cut ? (int)(cut - program) : 0, program);
    nvml_library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!cuda_library || !nvml_library) {
        fprintf(stderr, "%s\n", dlerror());
        exit(3);
    }
}

int main(int argc, char **argv)
{
    char folder[] = "/tmp/vgpu-stress-XXXXXX", path[64];
    CUresult (*init)(unsigned);
    seconds = argc > 1 ? (unsigned)atoi(argv[1]) : SECONDS;
    if (!mkdtemp(folder)) {
        return 3;
    }
    snprintf(path, sizeof path, "%s/machine", folder);
    setenv("VGPU_FAKE_MACHINE", path, 1);
    FILE *file = fopen(path, "w");
    for (unsigned i = 0; file && i < CARDS; i++) {
        snprintf(page.devices[i].uuid, VGPU_UUID_BYTES, UUID, i);
        page.devices[i].memory_limit_bytes = LIMIT;
        fprintf(file, "card uuid=" UUID " memory_mib=1024\n", i);
    }
    page.device_count = CARDS;
    if (!file || fclose(file)) {
        return 3;
    }
    open_driver(argv[0]);
    fill_tables();
    find_functions();
    *(void **)(void *)&init = function(cuda_library, "cuInit");
    int failed = init(0) != CUDA_SUCCESS || nvml_table.nvmlInit_v2() != NVML_SUCCESS || t_run();
    static const char *const names[] = {"machine", "machine.state", "machine.engine"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        unlink(path);
    }
    rmdir(folder);
    return failed;
}
