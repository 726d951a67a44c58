/* probe.c - vgpu-probe: a driver-API client that tests and the demo run inside a container.
 *
 * It finds the driver the way libcudart does (driver.h). Every command prints one JSON object on a line.
 *
 *   vgpu-probe info
 *   vgpu-probe alloc SIZE [--device N] [--managed|--async|--pitch|--pool|--physical|--array]
 *   vgpu-probe fill [--step SIZE] [--device N]     allocate until out of memory, to the exact byte
 *   vgpu-probe hold SIZE SECONDS [--device N]
 *   vgpu-probe sleep SECONDS
 *   vgpu-probe work SECONDS [--device N]           launch kernels of 2 ms for so long: what part of the time they ran
 *   vgpu-probe free                                everything allocated so far
 *   vgpu-probe run 'COMMAND; COMMAND; ...'         several in one process, what they allocate stays
 *
 * SIZE is bytes, or has a suffix K, M or G (binary). Being refused memory is an answer: exit status 0 with the
 * CUresult in "result". Status 1: something failed that should not. 2: wrong usage.
 */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "driver.h"
#include "buffer.h"

#define MAX_WORDS 16

static int parse_size(const char *text, uint64_t *out)
{
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    int shift = *end == 'K' ? 10 : *end == 'M' ? 20 : *end == 'G' ? 30 : 0;
    if (shift) {
        end++;
    }
    if (errno || end == text || *text == '-' || *end || value > UINT64_MAX >> shift) {
        return -1;
    }
    *out = value << shift;
    return 0;
}

static int info(void)
{
    int count = 0;
    CUresult result = cu.cuDeviceGetCount(&count);
    if (result != CUDA_SUCCESS || driver_load_nvml()) {
        return result == CUDA_SUCCESS ? 1 : driver_failed("cuDeviceGetCount", result);
    }
    printf("{\"devices\": [");
    for (int i = 0; i < count; i++) {
        char name[128] = "", uuid[64];
        size_t free_bytes = 0, total = 0, device_total = 0;
        nvmlMemory_t view = {0};
        nvmlDevice_t handle;
        if (driver_use(i)) {
            return 1;
        }
        cu.cuDeviceGetName(name, sizeof name, i);
        cu.cuDeviceTotalMem(&device_total, i);
        result = cu.cuMemGetInfo(&free_bytes, &total);
        nvmlReturn_t seen = driver_nvml_device(i, uuid, &handle);
        if (seen == NVML_SUCCESS) {
            seen = nvml.memory(handle, &view);
        }
        printf("%s{\"index\": %d, \"uuid\": \"%s\", \"name\": \"%s\", \"cuda_result\": %d, \"cuda_total\": %zu, "
               "\"cuda_free\": %zu, \"device_total\": %zu, \"nvml_result\": %d, \"nvml_total\": %llu, "
               "\"nvml_used\": %llu, \"nvml_free\": %llu}",
               i ? ", " : "", i, uuid, name, result, total, free_bytes, device_total, seen, view.total, view.used, view.free);
    }
    printf("]}\n");
    return 0;
}

static int alloc(enum buffer_kind kind, int device, uint64_t bytes)
{
    if (driver_use(device)) {
        return 1;
    }
    CUresult result = buffer_take(kind, device, bytes);
    printf("{\"alloc\": %llu, \"device\": %d, \"result\": %d}\n", (unsigned long long)bytes, device, result);
    return result != CUDA_SUCCESS && result != CUDA_ERROR_OUT_OF_MEMORY;
}

/* Allocate `step` while it fits, then halve it down to one grain. The sum is everything that is available. */
static int fill(int device, uint64_t step)
{
    uint64_t got = 0;
    CUresult result = CUDA_SUCCESS;
    if (driver_use(device)) {
        return 1;
    }
    while (step >= BUFFER_GRAIN) {
        result = buffer_take(BUFFER_LINEAR, device, step);
        if (result == CUDA_SUCCESS) {
            got += step;
        } else if (result == CUDA_ERROR_OUT_OF_MEMORY) {
            step = step / 2 / BUFFER_GRAIN * BUFFER_GRAIN;
        } else {
            return driver_failed("cuMemAlloc", result);
        }
    }
    printf("{\"filled\": %llu, \"device\": %d, \"result\": %d}\n", (unsigned long long)got, device, result);
    return 0;
}

static void wait_seconds(double seconds)
{
    struct timespec left = {.tv_sec = (time_t)seconds, .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)};
    fflush(stdout);
    while (nanosleep(&left, &left) && errno == EINTR) {
    }
}

static double now_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* Launch kernels of 2 ms; the simulated driver reads their length from their names. */
static int work(int device, double seconds)
{
    enum { BATCH = 4 };
    CUmodule module;
    CUfunction kernel;
    unsigned long long launches = 0;
    if (driver_use(device)) {
        return 1;
    }
    CUresult result = cu.cuModuleLoadData(&module, "simulated");
    result = result == CUDA_SUCCESS ? cu.cuModuleGetFunction(&kernel, module, "busy_2ms") : result;
    double start = now_seconds(), end = start;
    while (result == CUDA_SUCCESS && end - start < seconds) {
        for (int i = 0; i < BATCH && result == CUDA_SUCCESS; i++, launches++) {
            result = cu.cuLaunchKernel(kernel, 1, 1, 1, 256, 1, 1, 0, NULL, NULL, NULL);
        }
        result = result == CUDA_SUCCESS ? cu.cuCtxSynchronize() : result;
        end = now_seconds();
    }
    if (result != CUDA_SUCCESS) {
        return driver_failed("a launch", result);
    }
    printf("{\"launches\": %llu, \"share\": %.4f}\n", launches, (double)launches * 0.002 / (end - start));
    return 0;
}

static int release_all(void)
{
    size_t count = buffer_count();
    CUresult worst = buffer_release_all();
    printf("{\"freed\": %zu, \"result\": %d}\n", count, worst);
    return worst != CUDA_SUCCESS;
}

static int usage(const char *what)
{
    fprintf(stderr, "vgpu-probe: cannot understand '%s' (see the head of probe.c)\n", what);
    return 2;
}

static int command(int count, char **words)
{
    int device = 0, plain = 0;
    enum buffer_kind kind = BUFFER_LINEAR;
    uint64_t step = UINT64_C(64) << 20, bytes = 0;
    char *arguments[MAX_WORDS] = {0};
    for (int i = 1; i < count; i++) {
        if (!strcmp(words[i], "--device") && i + 1 < count) {
            device = atoi(words[++i]);
        } else if (!strcmp(words[i], "--step") && i + 1 < count) {
            if (parse_size(words[++i], &step)) {
                return usage(words[i]);
            }
        } else if (buffer_kind_named(words[i], &kind)) {
            continue;
        } else {
            arguments[plain++] = words[i];
        }
    }
    if (!strcmp(words[0], "sleep") && plain == 1) {
        wait_seconds(atof(arguments[0]));
        return 0;
    }
    if (driver_load()) {
        return 1;
    }
    if (!strcmp(words[0], "info") && plain == 0) {
        return info();
    }
    if (!strcmp(words[0], "alloc") && plain == 1 && !parse_size(arguments[0], &bytes)) {
        return alloc(kind, device, bytes);
    }
    if (!strcmp(words[0], "fill") && plain == 0) {
        return fill(device, step);
    }
    if (!strcmp(words[0], "hold") && plain == 2 && !parse_size(arguments[0], &bytes)) {
        int failed = alloc(kind, device, bytes);
        wait_seconds(failed ? 0 : atof(arguments[1]));
        return failed;
    }
    if (!strcmp(words[0], "work") && plain == 1) {
        return work(device, atof(arguments[0]));
    }
    if (!strcmp(words[0], "free") && plain == 0) {
        return release_all();
    }
    return usage(words[0]);
}

static int run(char *script)
{
    char *rest = NULL;
    for (char *part = strtok_r(script, ";", &rest); part; part = strtok_r(NULL, ";", &rest)) {
        char *words[MAX_WORDS], *next = NULL;
        int count = 0;
        for (char *word = strtok_r(part, " \t\n", &next); word && count < MAX_WORDS; word = strtok_r(NULL, " \t\n", &next)) {
            words[count++] = word;
        }
        int status = count ? command(count, words) : 0;
        fflush(stdout);
        if (status) {
            return status;
        }
    }
    return 0;
}

int main(int argc, char **argv)
{
    if (argc < 2 || argc > MAX_WORDS) {
        return usage("");
    }
    if (!strcmp(argv[1], "run")) {
        return argc == 3 ? run(argv[2]) : usage("run");
    }
    return command(argc - 1, argv + 1);
}
