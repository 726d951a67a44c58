/* bench_calls.c - measures what the library adds to a call. The hooks are linked to a driver whose functions do nothing, so
 * only the library's own time is measured. Prints one JSON object. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "identity.h"
#include "process.h"

#define UUID "GPU-00000000-0000-0000-0000-000000000000"
#define OTHER "GPU-00000000-0000-0000-0000-00000000000"
#define POOL (UINT64_C(1) << 25)
/* Rounds are short and numerous, so the median is of rounds without an interruption. */
enum { ROUNDS = 1001, CALLS = 500, LIVE = 10000 };

static uint64_t next_address = 1 << 20;

/* The calls that the library makes to a driver besides those of the program. */
static uint64_t calls;

static CUresult no_alloc(CUdeviceptr *out, size_t bytes)
{
    (void)bytes;
    *out = next_address += 512;
    return CUDA_SUCCESS;
}

static CUresult no_free(CUdeviceptr address)
{
    (void)address;
    return CUDA_SUCCESS;
}

static CUresult no_device(CUdevice *out)
{
    calls++;
    *out = 0;
    return CUDA_SUCCESS;
}

static CUresult no_context(CUcontext *out)
{
    calls++;
    *out = (CUcontext)(void *)&next_address; /* any context */
    return CUDA_SUCCESS;
}

static CUresult no_uuid(CUuuid *out, CUdevice device)
{
    (void)device;
    memset(out, 0, sizeof *out);
    return CUDA_SUCCESS;
}

static CUresult no_info(size_t *free_bytes, size_t *total)
{
    *free_bytes = *total = UINT64_C(1) << 36;
    return CUDA_SUCCESS;
}

static CUresult one_device(int *count)
{
    *count = 1;
    return CUDA_SUCCESS;
}

static CUresult no_launch(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                          unsigned shared, CUstream stream, void **parameters, void **extra)
{
    (void)function, (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared, (void)stream;
    (void)parameters, (void)extra;
    return CUDA_SUCCESS;
}

/* The length of a kernel. The library's clock also advances by what the kernel costs at its share, so budgets never run out,
 * no launch waits, and only the cost of the throttle is measured. */
static uint64_t kernel_ns = 1, passed_ns;

static CUresult timed_launch(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                             unsigned shared, CUstream stream, void **parameters, void **extra)
{
    passed_ns += 2 * kernel_ns + kernel_ns / 16;
    return no_launch(function, gx, gy, gz, bx, by, bz, shared, stream, parameters, extra);
}

static CUresult not_captured(CUstream stream, int *status)
{
    (void)stream;
    calls++;
    *status = 0;
    return CUDA_SUCCESS;
}

static CUresult no_mode(int *mode)
{
    (void)mode;
    calls++;
    return CUDA_SUCCESS;
}

static CUresult alloc_async(CUdeviceptr *out, size_t bytes, CUstream stream)
{
    (void)stream;
    return no_alloc(out, bytes);
}

static CUresult free_async(CUdeviceptr address, CUstream stream)
{
    (void)stream;
    return no_free(address);
}

static CUresult some_pool(CUmemoryPool *out, CUdevice device)
{
    (void)device;
    *out = (CUmemoryPool)(void *)&next_address;
    return CUDA_SUCCESS;
}

/* A pool that has already reserved all it will ever need. */
static CUresult pool_attribute(CUmemoryPool pool, int attribute, void *out)
{
    (void)pool;
    *(uint64_t *)out = attribute == 5 || attribute == 6 ? POOL : 512;
    return CUDA_SUCCESS;
}

static CUresult no_wait(void)
{
    return CUDA_SUCCESS;
}

static CUresult no_stream_wait(CUstream stream)
{
    (void)stream;
    return CUDA_SUCCESS;
}

/* Events say that a kernel takes a nanosecond, so no budget runs out and no launch has to wait. */
static CUresult make_event(CUevent *out, unsigned flags)
{
    (void)flags;
    *out = (CUevent)(void *)&next_address;
    return CUDA_SUCCESS;
}

static CUresult no_record(CUevent event, CUstream stream)
{
    (void)event, (void)stream;
    calls++;
    return CUDA_SUCCESS;
}

static CUresult event_is_there(CUevent event)
{
    (void)event;
    calls++;
    return CUDA_SUCCESS;
}

static CUresult kernel_time(float *out, CUevent start, CUevent end)
{
    (void)start, (void)end;
    calls++;
    *out = (float)kernel_ns * 1e-6f;
    return CUDA_SUCCESS;
}

static const struct vgpu_cuda driver = {.cuLaunchKernel = timed_launch,
                                        .cuMemAllocAsync = alloc_async,
                                        .cuMemFreeAsync = free_async,
                                        .cuDeviceGetMemPool = some_pool,
                                        .cuMemPoolGetAttribute = pool_attribute,
                                        .cuStreamIsCapturing = not_captured,
                                        .cuThreadExchangeStreamCaptureMode = no_mode,
                                        .cuCtxSynchronize = no_wait,
                                        .cuStreamSynchronize = no_stream_wait,
                                        .cuEventSynchronize = event_is_there,
                                        .cuDeviceGetCount = one_device,
                                        .cuEventCreate = make_event,
                                        .cuEventDestroy_v2 = event_is_there,
                                        .cuEventRecord = no_record,
                                        .cuEventQuery = event_is_there,
                                        .cuEventElapsedTime = kernel_time,
                                        .cuMemAlloc_v2 = no_alloc,
                                        .cuMemFree_v2 = no_free,
                                        .cuCtxGetDevice = no_device,
                                        .cuCtxGetCurrent = no_context,
                                        .cuDeviceGetUuid_v2 = no_uuid,
                                        .cuMemGetInfo_v2 = no_info};
static struct vgpu_page page = {.magic = VGPU_PAGE_MAGIC,
                                .abi_version = VGPU_ABI_VERSION,
                                .size = VGPU_PAGE_BYTES,
                                .seq = 2,
                                .state = VGPU_PAGE_GRANT,
                                .device_count = 1};

static const struct vgpu_cuda *cuda(void)
{
    return &driver;
}

static const struct vgpu_nvml *nvml(void)
{
    return NULL;
}

static uint64_t by_clock(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint64_t now_ns(void)
{
    return by_clock(CLOCK_MONOTONIC);
}

/* The library's clock. */
static struct vgpu_instant library_now(void)
{
    return vgpu_at(now_ns() + passed_ns);
}

static struct vgpu_instant library_about_now(void)
{
    return vgpu_at(by_clock(CLOCK_MONOTONIC_COARSE) + passed_ns);
}

static void sleep_ns(uint64_t ns)
{
    passed_ns += ns;
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
    return how == VGPU_MAP_READ ? (void *)&page : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
}

static void *map_private(size_t bytes)
{
    return map("", bytes, VGPU_MAP_WRITE);
}

static void log_line(const char *text)
{
    (void)text;
}

static const struct vgpu_world bench_world = {.cuda = cuda,
                                              .nvml = nvml,
                                              .now = library_now,
                                              .about_now = library_about_now,
                                              .sleep_for = sleep_ns,
                                              .self = vgpu_identity_self,
                                              .is_dead = vgpu_identity_is_dead,
                                              .env = env,
                                              .exists = exists,
                                              .map = map,
                                              .map_private = map_private,
                                              .log = log_line};
const struct vgpu_world *vgpu_world = &bench_world;

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Return the median over the rounds of the mean time of a pair of calls, in ns. */
static double pairs(CUresult (*alloc)(CUdeviceptr *, size_t), CUresult (*release)(CUdeviceptr))
{
    double means[ROUNDS];
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t start = now_ns();
        for (int i = 0; i < CALLS; i++) {
            CUdeviceptr address;
            if (alloc(&address, 512) != CUDA_SUCCESS || release(address) != CUDA_SUCCESS) {
                fprintf(stderr, "bench: a call failed\n");
                exit(1);
            }
        }
        means[round] = (double)(now_ns() - start) / CALLS;
    }
    qsort(means, ROUNDS, sizeof *means, by_value);
    return means[ROUNDS / 2];
}

static double launches(CUresult (*launch)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                                          CUstream, void **, void **))
{
    double means[ROUNDS];
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t start = now_ns();
        for (int i = 0; i < CALLS; i++) {
            launch((CUfunction)(uintptr_t)(1 + i % 4), 108, 1, 1, 256, 1, 1, 0, NULL, NULL, NULL);
        }
        means[round] = (double)(now_ns() - start) / CALLS;
    }
    qsort(means, ROUNDS, sizeof *means, by_value);
    return means[ROUNDS / 2];
}

/* Change a page as the agent does. */
static void share(unsigned percent)
{
    page.seq++;
    page.devices[0].cores_percent = percent;
    page.devices[0].core_policy = VGPU_CORES_FORCE;
    page.seq++;
}

static double infos(CUresult (*info)(size_t *, size_t *))
{
    double means[ROUNDS];
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t start = now_ns();
        for (int i = 0; i < CALLS; i++) {
            size_t free_bytes, total;
            info(&free_bytes, &total);
        }
        means[round] = (double)(now_ns() - start) / (CALLS);
    }
    qsort(means, ROUNDS, sizeof *means, by_value);
    return means[ROUNDS / 2];
}

static double async_pairs(CUresult (*alloc)(CUdeviceptr *, size_t, CUstream), CUresult (*release)(CUdeviceptr, CUstream))
{
    double means[ROUNDS];
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t start = now_ns();
        for (int i = 0; i < CALLS; i++) {
            CUdeviceptr address;
            if (alloc(&address, 512, NULL) != CUDA_SUCCESS || release(address, NULL) != CUDA_SUCCESS) {
                fprintf(stderr, "bench: a call failed\n");
                exit(1);
            }
        }
        means[round] = (double)(now_ns() - start) / CALLS;
    }
    qsort(means, ROUNDS, sizeof *means, by_value);
    return means[ROUNDS / 2];
}

/* Return the time of one wait of each kind, added up. */
static double waits(CUresult (*context)(void), CUresult (*stream)(CUstream), CUresult (*event)(CUevent))
{
    double means[ROUNDS];
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t start = now_ns();
        for (int i = 0; i < CALLS; i++) {
            context();
            stream(NULL);
            event((CUevent)(void *)&next_address);
        }
        means[round] = (double)(now_ns() - start) / CALLS;
    }
    qsort(means, ROUNDS, sizeof *means, by_value);
    return means[ROUNDS / 2];
}

typedef CUresult (*launch_function)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream,
                                    void **, void **);

struct throttled {
    double mean, p99, calls;
};

enum { THROTTLED = 200000, THROTTLED_KEPT = THROTTLED - THROTTLED / 1000 };

static struct throttled one_by_one(launch_function launch)
{
    static double each[THROTTLED];
    double sum = 0;
    uint64_t before = calls;
    for (int i = 0; i < THROTTLED; i++) {
        uint64_t start = now_ns();
        launch((CUfunction)(uintptr_t)(1 + i % 4), 108, 1, 1, 256, 1, 1, 0, NULL, NULL, NULL);
        each[i] = (double)(now_ns() - start);
    }
    qsort(each, THROTTLED, sizeof *each, by_value);
    for (int i = 0; i < THROTTLED_KEPT; i++) { /* without the interruptions by other programs */
        sum += each[i];
    }
    return (struct throttled){
        .mean = sum / THROTTLED_KEPT, .p99 = each[THROTTLED - THROTTLED / 100], .calls = (double)(calls - before) / THROTTLED};
}

/* Return how much longer a throttled launch takes than a direct one, for kernels of a given length at half of the device. */
static struct throttled throttled(uint64_t ns, launch_function direct, launch_function held)
{
    kernel_ns = ns;
    one_by_one(held); /* the cost is learned */
    struct throttled all = one_by_one(held), bare = one_by_one(direct);
    kernel_ns = 1;
    return (struct throttled){.mean = all.mean - bare.mean, .p99 = all.p99 - bare.p99, .calls = all.calls};
}

/* Put this many devices on the page; ours is the last one. */
static void cards(unsigned count)
{
    page.seq++;
    for (unsigned i = 0; i < count; i++) {
        snprintf(page.devices[i].uuid, VGPU_UUID_BYTES, i + 1 < count ? OTHER "%u" : UUID, i + 1);
        page.devices[i].memory_limit_bytes = UINT64_C(1) << 34;
    }
    page.device_count = count;
    page.seq++;
}

int main(void)
{
    CUdeviceptr address;
    cards(1);
    CUresult (*volatile alloc)(CUdeviceptr *, size_t) = driver.cuMemAlloc_v2;
    CUresult (*volatile release)(CUdeviceptr) = driver.cuMemFree_v2;
    CUresult (*volatile info)(size_t *, size_t *) = driver.cuMemGetInfo_v2;
    double direct = pairs(alloc, release), direct_info = infos(info);
    alloc = cuMemAlloc_v2;
    release = cuMemFree_v2;
    info = cuMemGetInfo_v2;
    double live_0 = pairs(alloc, release), limited_info = infos(info);
    cards(8);
    double cards_8 = pairs(alloc, release), info_8 = infos(info);
    cards(1);
    double direct_async = async_pairs(driver.cuMemAllocAsync, driver.cuMemFreeAsync);
    double direct_waits = waits(driver.cuCtxSynchronize, driver.cuStreamSynchronize, driver.cuEventSynchronize);
    double limited_async = async_pairs(cuMemAllocAsync, cuMemFreeAsync);
    double limited_waits = waits(cuCtxSynchronize, cuStreamSynchronize, cuEventSynchronize);
    volatile launch_function launch = driver.cuLaunchKernel;
    double direct_launch = launches(launch);
    launch = cuLaunchKernel;
    double unlimited_launch = launches(launch);
    share(50);
    launches(launch); /* costs are learned */
    double limited_launch = launches(launch);
    for (int i = 0; i < LIVE; i++) {
        if (alloc(&address, 512) != CUDA_SUCCESS) {
            return 1;
        }
    }
    double live_10k = pairs(alloc, release);
    printf("{\"alloc_free_ns\": {\"direct\": %.1f, \"live_0\": %.1f, \"live_10k\": %.1f, \"cards_8\": %.1f}, "
           "\"alloc_async_ns\": {\"direct\": %.1f, \"limited\": %.1f}, "
           "\"synchronize_ns\": {\"direct\": %.1f, \"limited\": %.1f}, "
           "\"mem_get_info_ns\": {\"direct\": %.1f, \"limited\": %.1f, \"cards_8\": %.1f}, "
           "\"launch_ns\": {\"direct\": %.1f, \"unlimited\": %.1f, \"limited\": %.1f}, \"launch_throttled_ns\": {",
           direct, live_0, live_10k, cards_8, direct_async, limited_async, direct_waits, limited_waits, direct_info, limited_info,
           info_8, direct_launch, unlimited_launch, limited_launch);
    static const unsigned lengths[] = {5, 20, 100, 200};
    for (unsigned i = 0; i < 4; i++) {
        struct throttled it = throttled(lengths[i] * UINT64_C(1000), driver.cuLaunchKernel, cuLaunchKernel);
        printf("%s\"kernels_%uus\": {\"mean\": %.1f, \"p99\": %.1f, \"driver_calls\": %.2f}", i ? ", " : "", lengths[i], it.mean,
               it.p99, it.calls);
    }
    printf("}}\n");
    return 0;
}
