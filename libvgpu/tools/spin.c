/* spin.c - vgpu-spin: work for a device that can be measured, on whatever driver there is.
 *
 * Its kernel counts rounds of one multiplication that waits for the one before: the same work whatever the clocks do and
 * whatever interrupts it, so that what a limit leaves of a device is the rate of kernels under it beside the rate without.
 *
 *   vgpu-spin calibrate US [--device N]                 how many rounds take about so long on the idle device
 *   vgpu-spin run SECONDS --rounds N [--us US] [--warm SECONDS] [--graph COUNT] [--gate 1] [--device N]
 *                                                       launch all the time; the rate by the device's own clock
 *   vgpu-spin watch SECONDS [--device N]                NVML's figures of the use of the device meanwhile
 *   vgpu-spin reset SECONDS --rounds N [--us US]        the same as run in a new context each second, reset with work on its way
 *   vgpu-spin lag SECONDS --rounds N [--us US]          how late NVML's samples by process are, how long, and by which clock
 *   vgpu-spin timeslices SECONDS [--gate 1] [--device N]  of marks in a stream of their own, how many are late: others' timeslices
 *
 * `--us` is what a launch takes, `--warm` how long nothing counts, `--graph` makes a launch a graph of so many kernels; with
 * `--gate` it prints that it is ready, and begins when its standard input ends. A JSON object a line on standard output; status 1:
 * something failed, 2: wrong usage.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "driver.h"

enum { BATCH_US = 5000, THREADS = 256, BLOCKS_PER_SM = 4, WARM_UP_MS = 300, WATCH_EVERY_MS = 100, LIVES_MS = 1000 };

#define MARK_EVERY_US 500
#define LATE_MS 0.05 /* as timeslice.c sees it */

/* PTX of an old generation: a driver translates it for any device since. The simulated driver goes by
 * the name: a round is 4 ns. */
static const char kernel_text[] = ".version 6.0\n"
                                  ".target sm_50\n"
                                  ".address_size 64\n"
                                  ".visible .entry rounds_4ns(.param .u64 rounds, .param .u64 out)\n"
                                  "{\n"
                                  "    .reg .pred %more, %other;\n"
                                  "    .reg .u64 %left, %out;\n"
                                  "    .reg .u32 %x;\n"
                                  "    ld.param.u64 %left, [rounds];\n"
                                  "    ld.param.u64 %out, [out];\n"
                                  "    mov.u32 %x, %tid.x;\n"
                                  "again:\n"
                                  "    mad.lo.u32 %x, %x, 1664525, 1013904223;\n"
                                  "    sub.u64 %left, %left, 1;\n"
                                  "    setp.ne.u64 %more, %left, 0;\n"
                                  "    @%more bra again;\n"
                                  "    setp.ne.u32 %other, %x, 305419896;\n" /* or the work might be left out as of no use */
                                  "    @%other bra done;\n"
                                  "    st.global.u32 [%out], %x;\n"
                                  "done:\n"
                                  "    ret;\n"
                                  "}\n";

static struct {
    int device, graph, gate;
    uint64_t rounds;
    double seconds, us, warm;
    CUfunction kernel;
    CUdeviceptr out;
    CUstream stream;
    CUgraphExec exec;
    unsigned blocks;
} spin;

#define TRY(call)                                 \
    do {                                          \
        CUresult result_ = (call);                \
        if (result_ != CUDA_SUCCESS) {            \
            return driver_failed(#call, result_); \
        }                                         \
    } while (0)

static CUresult kernel(void)
{
    void *parameters[] = {&spin.rounds, &spin.out};
    return cu.cuLaunchKernel(spin.kernel, spin.blocks, 1, 1, THREADS, 1, 1, 0, spin.stream, parameters, NULL);
}

static CUresult launch(void)
{
    return spin.exec ? cu.cuGraphLaunch(spin.exec, spin.stream) : kernel();
}

static int prepare(void)
{
    CUmodule module;
    int sms = 0;
    if (driver_load() || driver_use(spin.device)) {
        return 1;
    }
    TRY(cu.cuDeviceGetAttribute(&sms, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, spin.device));
    spin.blocks = (unsigned)sms * BLOCKS_PER_SM;
    TRY(cu.cuModuleLoadData(&module, kernel_text));
    TRY(cu.cuModuleGetFunction(&spin.kernel, module, "rounds_4ns"));
    TRY(cu.cuMemAlloc(&spin.out, sizeof(uint32_t)));
    TRY(cu.cuStreamCreate(&spin.stream, CU_STREAM_NON_BLOCKING));
    return 0;
}

static int capture(void)
{
    CUgraph graph;
    TRY(cu.cuStreamBeginCapture(spin.stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    for (int i = 0; i < spin.graph; i++) {
        TRY(kernel());
    }
    TRY(cu.cuStreamEndCapture(spin.stream, &graph));
    TRY(cu.cuGraphInstantiateWithFlags(&spin.exec, graph, 0));
    return 0;
}

/* What one of `count` kernels in a row takes, by the device's clock. */
static int time_us(unsigned count, double *us)
{
    static CUevent start, end;
    float ms = 0;
    if (!start) {
        TRY(cu.cuEventCreate(&start, 0));
        TRY(cu.cuEventCreate(&end, 0));
    }
    TRY(cu.cuEventRecord(start, spin.stream));
    for (unsigned i = 0; i < count; i++) {
        TRY(kernel());
    }
    TRY(cu.cuEventRecord(end, spin.stream));
    TRY(cu.cuEventSynchronize(end));
    TRY(cu.cuEventElapsedTime(&ms, start, end));
    *us = (double)ms * 1000 / count;
    return 0;
}

static int calibrate(void)
{
    char name[128] = "";
    int version = 0;
    double us = 0, spent_ms = 0;
    unsigned count = spin.us < BATCH_US ? (unsigned)(BATCH_US / spin.us) + 1 : 1;
    if (prepare()) {
        return 1;
    }
    spin.rounds = 10000;
    /* The first times are those of a device that wakes up. */
    for (int tries = 0; tries < 3 || spent_ms < WARM_UP_MS; tries++) {
        if (time_us(count, &us)) {
            return 1;
        }
        spent_ms += us * count / 1000;
        double next = us > 0 ? (double)spin.rounds * spin.us / us : (double)spin.rounds * 10;
        spin.rounds = next < 1 ? 1 : next > 1e12 ? (uint64_t)1e12 : (uint64_t)next;
    }
    if (time_us(count, &us)) {
        return 1;
    }
    cu.cuDeviceGetName(name, sizeof name, spin.device);
    cu.cuDriverGetVersion(&version);
    printf("{\"rounds\": %llu, \"us\": %.3f, \"card\": \"%s\", \"cuda\": %d}\n", (unsigned long long)spin.rounds, us, name,
           version);
    return 0;
}

static int is_library_here(void)
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

static void wait_for_the_others(void)
{
    printf("{\"ready\": true}\n");
    fflush(stdout);
    while (getchar() != EOF) {
    }
}

/* Two batches are on their way at any time, so that the device waits for nothing but the limit. */
static int run(void)
{
    CUevent origin, ends[2];
    uint64_t sent = 0, counted_from = 0, counted_to = 0;
    float at = 0, first = -1, last = 0;
    unsigned batch = spin.us > 0 && spin.us < BATCH_US ? (unsigned)(BATCH_US / spin.us) : 1;
    if (prepare() || (spin.graph && capture())) {
        return 1;
    }
    if (spin.gate) {
        wait_for_the_others();
    }
    TRY(cu.cuEventCreate(&origin, 0));
    TRY(cu.cuEventCreate(&ends[0], 0));
    TRY(cu.cuEventCreate(&ends[1], 0));
    TRY(cu.cuEventRecord(origin, spin.stream));
    for (unsigned n = 0; (double)last < spin.seconds * 1000; n++) {
        for (unsigned i = 0; i < batch; i++) {
            TRY(launch());
        }
        TRY(cu.cuEventRecord(ends[n % 2], spin.stream));
        sent += batch;
        if (!n) {
            continue;
        }
        TRY(cu.cuEventSynchronize(ends[(n - 1) % 2]));
        TRY(cu.cuEventElapsedTime(&at, origin, ends[(n - 1) % 2]));
        last = at;
        counted_to = sent - batch;
        if (first < 0 && (double)at >= spin.warm * 1000) {
            first = at;
            counted_from = counted_to;
        }
    }
    TRY(cu.cuCtxSynchronize());
    uint64_t launches = first < 0 ? 0 : counted_to - counted_from;
    double seconds = first < 0 ? 0 : (double)(last - first) / 1000;
    printf("{\"launches\": %llu, \"seconds\": %.6f, \"per_second\": %.6f, \"library\": %s}\n", (unsigned long long)launches,
           seconds, seconds > 0 ? (double)launches / seconds : 0, is_library_here() ? "true" : "false");
    return 0;
}

static int watch(void)
{
    char uuid[64];
    nvmlDevice_t device;
    double sum = 0;
    unsigned samples = 0;
    struct timespec nap = {.tv_nsec = WATCH_EVERY_MS * 1000000L};
    if (driver_load() || driver_load_nvml() || driver_nvml_device(spin.device, uuid, &device) != NVML_SUCCESS) {
        return driver_failed("NVML does not know the card", 0);
    }
    for (unsigned left = (unsigned)(spin.seconds * 1000 / WATCH_EVERY_MS); left; left--) {
        nvmlUtilization_t seen = {0};
        nanosleep(&nap, NULL);
        if (nvml.utilisation(device, &seen) == NVML_SUCCESS) {
            sum += seen.gpu;
            samples++;
        }
    }
    printf("{\"samples\": %u, \"percent\": %.2f}\n", samples, samples ? sum / samples : 0);
    return 0;
}

static uint64_t clock_us(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

/* Every context ends in a reset while kernels of it are on their way, and the next one comes back at its address. */
static int reset(void)
{
    uint64_t began = clock_us(CLOCK_MONOTONIC), launches = 0, resets = 0;
    double busy_us = 0;
    while (clock_us(CLOCK_MONOTONIC) - began < (uint64_t)(spin.seconds * 1e6)) {
        CUevent start, end;
        float ms = 0;
        if (prepare()) {
            return 1;
        }
        TRY(cu.cuEventCreate(&start, 0));
        TRY(cu.cuEventCreate(&end, 0));
        TRY(cu.cuEventRecord(start, spin.stream));
        for (uint64_t life = clock_us(CLOCK_MONOTONIC); clock_us(CLOCK_MONOTONIC) - life < LIVES_MS * 1000; launches++) {
            TRY(kernel());
            if (launches % 16 == 15) {
                TRY(cu.cuEventRecord(end, spin.stream));
                TRY(cu.cuEventSynchronize(end));
            }
        }
        TRY(cu.cuEventRecord(end, spin.stream));
        TRY(cu.cuEventSynchronize(end));
        TRY(cu.cuEventElapsedTime(&ms, start, end));
        busy_us += (double)ms * 1000;
        for (int i = 0; i < 4; i++) {
            TRY(kernel()); /* never seen to end */
        }
        TRY(cu.cuDevicePrimaryCtxReset(spin.device));
        TRY(cu.cuDevicePrimaryCtxRelease(spin.device));
        resets++;
    }
    printf("{\"launches\": %llu, \"seconds\": %.6f, \"per_second\": %.6f, \"resets\": %llu, \"library\": %s}\n",
           (unsigned long long)launches, busy_us / 1e6, busy_us > 0 ? (double)launches * 1e6 / busy_us : 0,
           (unsigned long long)resets, is_library_here() ? "true" : "false");
    return 0;
}

/* Work for half of the time, then none: when do samples stop to come, what are their stamps by, how far apart are they? */
static int lag(void)
{
    nvmlProcessUtilizationSample_t samples[256];
    char uuid[64];
    nvmlDevice_t device;
    unsigned long long newest = 0, step = 0;
    uint64_t latest_us = 0, stopped_us = 0, late_us = 0;
    int wall = 0, seen = 0;
    struct timespec nap = {.tv_nsec = 5000000};
    if (prepare() || driver_load_nvml() || driver_nvml_device(spin.device, uuid, &device) != NVML_SUCCESS || !nvml.by_process) {
        return driver_failed("NVML has no samples by process", 0);
    }
    uint64_t began = clock_us(CLOCK_MONOTONIC), until = (uint64_t)(spin.seconds * 1e6);
    for (uint64_t now = began; now - began < until; now = clock_us(CLOCK_MONOTONIC)) {
        if (now - began < until / 2) {
            TRY(kernel());
            TRY(cu.cuCtxSynchronize());
            stopped_us = clock_us(CLOCK_MONOTONIC);
        } else {
            nanosleep(&nap, NULL);
        }
        unsigned count = sizeof samples / sizeof samples[0];
        if (nvml.by_process(device, samples, &count, newest) != NVML_SUCCESS) {
            continue;
        }
        for (unsigned i = 0; i < count; i++) {
            uint64_t stamp = samples[i].timeStamp, wall_us = clock_us(CLOCK_REALTIME);
            if (stamp <= newest || !samples[i].smUtil) {
                continue;
            }
            wall = stamp <= wall_us && wall_us - stamp < 20000000;
            uint64_t age = (wall ? wall_us : clock_us(CLOCK_MONOTONIC)) - stamp;
            late_us = newest && age > late_us ? age : late_us; /* the first may have lain there for long */
            step = newest && (!step || stamp - newest < step) ? stamp - newest : step;
            newest = stamp;
            latest_us = clock_us(CLOCK_MONOTONIC);
            seen++;
        }
    }
    printf("{\"samples\": %d, \"clock\": \"%s\", \"step_ms\": %.1f, \"lag_ms\": %.1f, \"shown_after_the_end_ms\": %.1f}\n", seen,
           !seen  ? "none"
           : wall ? "wall"
                  : "monotonic",
           (double)step / 1000, (double)late_us / 1000, latest_us > stopped_us ? (double)(latest_us - stopped_us) / 1000 : 0);
    return 0;
}

/* The marks of timeslice.h, from outside: the time between two by the device's clock beside the host's. */
static int timeslices(void)
{
    CUevent marks[2];
    uint64_t at[2] = {0}, looks = 0, late_looks = 0;
    double late_ms = 0;
    struct timespec nap = {.tv_nsec = MARK_EVERY_US * 1000L};
    spin.rounds = spin.rounds ? spin.rounds : 1000;
    if (prepare()) {
        return 1;
    }
    TRY(kernel()); /* a process that never ran anything has no timeslices */
    TRY(cu.cuEventCreate(&marks[0], 0));
    TRY(cu.cuEventCreate(&marks[1], 0));
    if (spin.gate) {
        wait_for_the_others();
    }
    uint64_t began = clock_us(CLOCK_MONOTONIC);
    for (unsigned n = 0; clock_us(CLOCK_MONOTONIC) - began < (uint64_t)(spin.seconds * 1e6); n++) {
        float ms = 0;
        at[n % 2] = clock_us(CLOCK_MONOTONIC);
        TRY(cu.cuEventRecord(marks[n % 2], spin.stream));
        TRY(cu.cuEventSynchronize(marks[n % 2]));
        if (n) {
            TRY(cu.cuEventElapsedTime(&ms, marks[!(n % 2)], marks[n % 2]));
            late_ms += (double)ms - (double)(at[n % 2] - at[!(n % 2)]) / 1000;
            late_ms = late_ms < 0 ? 0 : late_ms;
            looks++;
            late_looks += late_ms > LATE_MS;
        }
        nanosleep(&nap, NULL);
    }
    printf("{\"looks\": %llu, \"late\": %.4f}\n", (unsigned long long)looks, looks ? (double)late_looks / (double)looks : 0);
    return 0;
}

static int usage(const char *what)
{
    fprintf(stderr, "vgpu-spin: cannot understand '%s' (see the head of spin.c)\n", what);
    return 2;
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        return usage(argc > 1 ? argv[1] : "");
    }
    for (int i = 3; i < argc; i += 2) {
        if (i + 1 == argc) {
            return usage(argv[i]);
        }
        if (!strcmp(argv[i], "--device")) {
            spin.device = atoi(argv[i + 1]);
        } else if (!strcmp(argv[i], "--graph")) {
            spin.graph = atoi(argv[i + 1]);
        } else if (!strcmp(argv[i], "--gate")) {
            spin.gate = atoi(argv[i + 1]);
        } else if (!strcmp(argv[i], "--rounds")) {
            spin.rounds = strtoull(argv[i + 1], NULL, 10);
        } else if (!strcmp(argv[i], "--warm")) {
            spin.warm = atof(argv[i + 1]);
        } else if (!strcmp(argv[i], "--us")) {
            spin.us = atof(argv[i + 1]);
        } else {
            return usage(argv[i]);
        }
    }
    double number = atof(argv[2]);
    if (!strcmp(argv[1], "calibrate") && number > 0) {
        spin.us = number;
        return calibrate();
    }
    spin.seconds = number;
    static const struct {
        const char *verb;
        int (*run)(void);
        int takes_rounds;
    } verbs[] = {{"run", run, 1}, {"reset", reset, 1}, {"lag", lag, 1}, {"timeslices", timeslices, 0}};
    for (size_t i = 0; i < sizeof verbs / sizeof verbs[0]; i++) {
        if (!strcmp(argv[1], verbs[i].verb) && number > 0 && (spin.rounds || !verbs[i].takes_rounds)) {
            return verbs[i].run();
        }
    }
    return !strcmp(argv[1], "watch") && number > 0 ? watch() : usage(argv[1]);
}
