/* bench_calls.c - what the library adds to a call: hooks linked onto a driver whose functions do nothing, so that all
 * that is measured is our own. Prints one JSON object. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "identity.h"
#include "process.h"

#define UUID "GPU-00000000-0000-0000-0000-000000000000"
/* Rounds are short and many: the median is then of rounds that nobody interrupted. */
enum { ROUNDS = 1001, CALLS = 500, LIVE = 10000 };

static uint64_t next_address = 1 << 20;

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
    *out = 0;
    return CUDA_SUCCESS;
}

static CUresult no_context(CUcontext *out)
{
    *out = (CUcontext)(void *)&next_address; /* some context */
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

/* Events say that a kernel takes a nanosecond, so that no budget is ever at its end and no launch has to wait. */
static CUresult make_event(CUevent *out, unsigned flags)
{
    (void)flags;
    *out = (CUevent)(void *)&next_address;
    return CUDA_SUCCESS;
}

static CUresult no_record(CUevent event, CUstream stream)
{
    (void)event, (void)stream;
    return CUDA_SUCCESS;
}

static CUresult event_is_there(CUevent event)
{
    (void)event;
    return CUDA_SUCCESS;
}

static CUresult one_nanosecond(float *out, CUevent start, CUevent end)
{
    (void)start, (void)end;
    *out = 1e-6f;
    return CUDA_SUCCESS;
}

static const struct vgpu_cuda driver = {.cuLaunchKernel = no_launch,
                                        .cuDeviceGetCount = one_device,
                                        .cuEventCreate = make_event,
                                        .cuEventDestroy_v2 = event_is_there,
                                        .cuEventRecord = no_record,
                                        .cuEventQuery = event_is_there,
                                        .cuEventElapsedTime = one_nanosecond,
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

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void sleep_ns(uint64_t ns)
{
    (void)ns;
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
    return how == VGPU_MAP_READ ? (void *)&page
                                : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
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
                                              .now_ns = now_ns,
                                              .sleep_ns = sleep_ns,
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

/* Median over the rounds of the mean time of a pair of calls, in ns. */
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

/* As the agent changes a page. */
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

int main(void)
{
    CUdeviceptr address;
    snprintf(page.devices[0].uuid, VGPU_UUID_BYTES, "%s", UUID);
    page.devices[0].memory_limit_bytes = UINT64_C(1) << 34;
    CUresult (*volatile alloc)(CUdeviceptr *, size_t) = driver.cuMemAlloc_v2;
    CUresult (*volatile release)(CUdeviceptr) = driver.cuMemFree_v2;
    CUresult (*volatile info)(size_t *, size_t *) = driver.cuMemGetInfo_v2;
    double direct = pairs(alloc, release), direct_info = infos(info);
    alloc = cuMemAlloc_v2;
    release = cuMemFree_v2;
    info = cuMemGetInfo_v2;
    double live_0 = pairs(alloc, release), limited_info = infos(info);
    CUresult (*volatile launch)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream,
                                void **, void **) = driver.cuLaunchKernel;
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
    printf("{\"alloc_free_ns\": {\"direct\": %.1f, \"live_0\": %.1f, \"live_10k\": %.1f}, "
           "\"mem_get_info_ns\": {\"direct\": %.1f, \"limited\": %.1f}, "
           "\"launch_ns\": {\"direct\": %.1f, \"unlimited\": %.1f, \"limited\": %.1f}}\n",
           direct, live_0, live_10k, direct_info, limited_info, direct_launch, unlimited_launch, limited_launch);
    return 0;
}
