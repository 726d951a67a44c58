#include "work.h"

#include <stdio.h>
#include <string.h>

enum { THREADS = 256 };

/* PTX of an old generation, which any newer driver can translate. The simulated driver goes by the name: a round takes 4 ns.
 * The second target is for a driver that no longer accepts the first. */
#define KERNEL_TEXT(target)                                                                       \
    ".version 6.3\n.target " target "\n.address_size 64\n"                                        \
    ".visible .entry rounds_4ns(.param .u64 rounds, .param .u64 out)\n"                           \
    "{\n"                                                                                         \
    "    .reg .pred %more, %other;\n"                                                             \
    "    .reg .u64 %left, %out;\n"                                                                \
    "    .reg .u32 %x;\n"                                                                         \
    "    ld.param.u64 %left, [rounds];\n"                                                         \
    "    ld.param.u64 %out, [out];\n"                                                             \
    "    mov.u32 %x, %tid.x;\n"                                                                   \
    "again:\n"                                                                                    \
    "    mad.lo.u32 %x, %x, 1664525, 1013904223;\n"                                               \
    "    sub.u64 %left, %left, 1;\n"                                                              \
    "    setp.ne.u64 %more, %left, 0;\n"                                                          \
    "    @%more bra again;\n"                                                                     \
    "    setp.ne.u32 %other, %x, 305419896;\n" /* otherwise the compiler might remove the work */ \
    "    @%other bra done;\n"                                                                     \
    "    st.global.u32 [%out], %x;\n"                                                             \
    "done:\n"                                                                                     \
    "    ret;\n"                                                                                  \
    "}\n"

int work_load(CUmodule *out)
{
    if (cu.cuModuleLoadData(out, KERNEL_TEXT("sm_50")) != CUDA_SUCCESS) {
        TRY(cu.cuModuleLoadData(out, KERNEL_TEXT("sm_75")));
    }
    return 0;
}

int work_prepare(struct work *work)
{
    int sms = 0;
    if (driver_load() || driver_use(work->device)) {
        return 1;
    }
    TRY(cu.cuDeviceGetAttribute(&sms, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, work->device));
    work->blocks = (unsigned)sms * WORK_BLOCKS_PER_SM;
    if (work_load(&work->module)) {
        return 1;
    }
    TRY(cu.cuModuleGetFunction(&work->kernel, work->module, "rounds_4ns"));
    TRY(cu.cuMemAlloc(&work->out, sizeof(uint32_t)));
    TRY(cu.cuStreamCreate(&work->stream, CU_STREAM_NON_BLOCKING));
    return 0;
}

CUresult work_launch_part(const struct work *work, CUstream stream, unsigned blocks, uint64_t rounds)
{
    CUdeviceptr out = work->out;
    void *parameters[] = {&rounds, &out};
    return cu.cuLaunchKernel(work->kernel, blocks, 1, 1, THREADS, 1, 1, 0, stream, parameters, NULL);
}

CUresult work_launch(const struct work *work, CUstream stream)
{
    return work_launch_part(work, stream, work->blocks, work->rounds);
}

uint64_t work_clock_ns(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void work_sleep_ns(uint64_t ns)
{
    struct timespec t = {.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};
    nanosleep(&t, NULL);
}

void work_wait_for_the_others(void)
{
    printf("{\"ready\": true}\n");
    fflush(stdout);
    while (getchar() != EOF) {
    }
}

int work_has_library(void)
{
    char line[512];
    int found = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && !found && fgets(line, sizeof line, maps)) {
        found = strstr(line, "libvgpu.so") != NULL;
    }
    if (maps) {
        fclose(maps);
    }
    return found;
}

void work_print_series(const char *name, const double *values, unsigned count, int decimals)
{
    printf("\"%s\": [", name);
    for (unsigned i = 0; i < count; i++) {
        printf("%s%.*f", i ? ", " : "", decimals, values[i]);
    }
    printf("]");
}
