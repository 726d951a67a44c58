/* spin.c - vgpu-spin: measurable work for a device, on any driver.
 *
 * The share that a limit leaves is the rate of kernels of known work (work.h) with the limit, compared to the rate without.
 *
 *   vgpu-spin calibrate US [--device N]                 print how many rounds take about so long on the idle device
 *   vgpu-spin run SECONDS --rounds N [--us US] [--warm SECONDS] [--graph COUNT] [--gate 1] [--device N]
 *                                                       launch all the time; print the rate by the device's own clock
 *   vgpu-spin duty SECONDS --rounds N --us US --percent P --period MS [--gate 1]
 *                                                       work for a part of each period, then rest
 *   vgpu-spin once 1 --rounds N [--us US]               run one kernel; print when it began and ended by the host's clock
 *   vgpu-spin watch SECONDS [--gate 1] [--device N]     print NVML's figures of the use of the device
 *   vgpu-spin reset SECONDS --rounds N [--us US]        like run, but reset the context each second with work in flight
 *
 * `--us` is the duration of a launch, `--warm` the time before counting, `--graph` makes a launch a graph of so many kernels;
 * with `--gate` it prints that it is ready, and begins when its standard input ends. A JSON object a line on standard output;
 * status 1: something failed, 2: wrong usage.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "driver.h"
#include "work.h"

enum { BATCH_US = 5000, WARM_UP_MS = 300, WATCH_EVERY_MS = 100, LIVES_MS = 1000 };

static struct {
    struct work work;
    int graph, gate;
    double seconds, us, warm, percent, period_ms;
    CUgraphExec exec;
} spin;

static CUresult kernel(void)
{
    return work_launch(&spin.work, spin.work.stream);
}

static CUresult launch(void)
{
    return spin.exec ? cu.cuGraphLaunch(spin.exec, spin.work.stream) : kernel();
}

static int prepare(void)
{
    return work_prepare(&spin.work);
}

static int capture(void)
{
    CUgraph graph;
    TRY(cu.cuStreamBeginCapture(spin.work.stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    for (int i = 0; i < spin.graph; i++) {
        TRY(kernel());
    }
    TRY(cu.cuStreamEndCapture(spin.work.stream, &graph));
    TRY(cu.cuGraphInstantiateWithFlags(&spin.exec, graph, 0));
    return 0;
}

/* Measure the time of one of `count` consecutive kernels by the device's clock. */
static int time_us(unsigned count, double *us)
{
    static CUevent start, end;
    float ms = 0;
    if (!start) {
        TRY(cu.cuEventCreate(&start, 0));
        TRY(cu.cuEventCreate(&end, 0));
    }
    TRY(cu.cuEventRecord(start, spin.work.stream));
    for (unsigned i = 0; i < count; i++) {
        TRY(kernel());
    }
    TRY(cu.cuEventRecord(end, spin.work.stream));
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
    spin.work.rounds = 10000;
    /* The first times are those of a device that is still waking up. */
    for (int tries = 0; tries < 3 || spent_ms < WARM_UP_MS; tries++) {
        if (time_us(count, &us)) {
            return 1;
        }
        spent_ms += us * count / 1000;
        double next = us > 0 ? (double)spin.work.rounds * spin.us / us : (double)spin.work.rounds * 10;
        spin.work.rounds = next < 1 ? 1 : next > 1e12 ? (uint64_t)1e12 : (uint64_t)next;
    }
    if (time_us(count, &us)) {
        return 1;
    }
    cu.cuDeviceGetName(name, sizeof name, spin.work.device);
    cu.cuDriverGetVersion(&version);
    printf("{\"rounds\": %llu, \"us\": %.3f, \"card\": \"%s\", \"cuda\": %d}\n", (unsigned long long)spin.work.rounds, us, name,
           version);
    return 0;
}

/* Run kernels with two batches on their way at any time, so that the device waits only for the limit. */
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
        work_wait_for_the_others();
    }
    TRY(cu.cuEventCreate(&origin, 0));
    TRY(cu.cuEventCreate(&ends[0], 0));
    TRY(cu.cuEventCreate(&ends[1], 0));
    TRY(cu.cuEventRecord(origin, spin.work.stream));
    for (unsigned n = 0; (double)last < spin.seconds * 1000; n++) {
        for (unsigned i = 0; i < batch; i++) {
            TRY(launch());
        }
        TRY(cu.cuEventRecord(ends[n % 2], spin.work.stream));
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
           seconds, seconds > 0 ? (double)launches / seconds : 0, work_has_library() ? "true" : "false");
    return 0;
}

static int watch(void)
{
    char uuid[64];
    nvmlDevice_t device;
    double sum = 0;
    unsigned samples = 0;
    if (spin.gate) {
        work_wait_for_the_others();
    }
    if (driver_load() || driver_load_nvml() || driver_nvml_device(spin.work.device, uuid, &device) != NVML_SUCCESS) {
        return driver_failed("NVML does not know the card", 0);
    }
    for (unsigned left = (unsigned)(spin.seconds * 1000 / WATCH_EVERY_MS); left; left--) {
        nvmlUtilization_t seen = {0};
        work_sleep_ns(WATCH_EVERY_MS * UINT64_C(1000000));
        if (nvml.utilisation(device, &seen) == NVML_SUCCESS) {
            sum += seen.gpu;
            samples++;
        }
    }
    printf("{\"samples\": %u, \"percent\": %.2f}\n", samples, samples ? sum / samples : 0);
    return 0;
}

/* Reset each context while its kernels are on their way. The next context comes back at the same address. */
static int reset(void)
{
    uint64_t began = work_clock_ns(CLOCK_MONOTONIC), launches = 0, resets = 0;
    double busy_us = 0;
    while (work_clock_ns(CLOCK_MONOTONIC) - began < (uint64_t)(spin.seconds * 1e9)) {
        CUevent start, end;
        float ms = 0;
        if (prepare()) {
            return 1;
        }
        TRY(cu.cuEventCreate(&start, 0));
        TRY(cu.cuEventCreate(&end, 0));
        TRY(cu.cuEventRecord(start, spin.work.stream));
        for (uint64_t life = work_clock_ns(CLOCK_MONOTONIC); work_clock_ns(CLOCK_MONOTONIC) - life < LIVES_MS * UINT64_C(1000000);
             launches++) {
            TRY(kernel());
            if (launches % 16 == 15) {
                TRY(cu.cuEventRecord(end, spin.work.stream));
                TRY(cu.cuEventSynchronize(end));
            }
        }
        TRY(cu.cuEventRecord(end, spin.work.stream));
        TRY(cu.cuEventSynchronize(end));
        TRY(cu.cuEventElapsedTime(&ms, start, end));
        busy_us += (double)ms * 1000;
        for (int i = 0; i < 4; i++) {
            TRY(kernel()); /* never seen to end */
        }
        TRY(cu.cuDevicePrimaryCtxReset(spin.work.device));
        TRY(cu.cuDevicePrimaryCtxRelease(spin.work.device));
        resets++;
    }
    printf("{\"launches\": %llu, \"seconds\": %.6f, \"per_second\": %.6f, \"resets\": %llu, \"library\": %s}\n",
           (unsigned long long)launches, busy_us / 1e6, busy_us > 0 ? (double)launches * 1e6 / busy_us : 0,
           (unsigned long long)resets, work_has_library() ? "true" : "false");
    return 0;
}

/* Work for a percentage of each period, independently of neighbours, since the kernels have known work. */
static int duty(void)
{
    unsigned long long launches = 0;
    if (spin.us <= 0 || spin.period_ms <= 0 || prepare()) {
        return driver_failed("duty needs --us and --period", 0);
    }
    uint64_t period_ns = (uint64_t)(spin.period_ms * 1e6);
    double each = spin.period_ms * 1000 * spin.percent / 100 / spin.us;
    unsigned count = each < 1 ? 1 : (unsigned)each;
    if (spin.gate) {
        work_wait_for_the_others();
    }
    uint64_t began = work_clock_ns(CLOCK_MONOTONIC), now = began, periods = 0;
    for (; now - began < (uint64_t)(spin.seconds * 1e9); now = work_clock_ns(CLOCK_MONOTONIC)) {
        for (unsigned i = 0; i < count; i++, launches++) {
            TRY(kernel());
        }
        TRY(cu.cuCtxSynchronize());
        now = work_clock_ns(CLOCK_MONOTONIC);
        uint64_t next = began + ++periods * period_ns;
        if (now < next) {
            work_sleep_ns(next - now);
        }
    }
    printf("{\"began_us\": %.0f, \"ended_us\": %.0f, \"launches\": %llu, \"busy_percent\": %.3f, \"library\": %s}\n",
           (double)began / 1e3, (double)now / 1e3, launches, 1e5 * (double)launches * spin.us / (double)(now - began),
           work_has_library() ? "true" : "false");
    return 0;
}

static int once(void)
{
    if (prepare()) {
        return 1;
    }
    uint64_t began = work_clock_ns(CLOCK_MONOTONIC);
    TRY(kernel());
    TRY(cu.cuCtxSynchronize());
    printf("{\"began_us\": %.0f, \"ended_us\": %.0f, \"library\": %s}\n", (double)began / 1e3,
           (double)work_clock_ns(CLOCK_MONOTONIC) / 1e3, work_has_library() ? "true" : "false");
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
            spin.work.device = atoi(argv[i + 1]);
        } else if (!strcmp(argv[i], "--graph")) {
            spin.graph = atoi(argv[i + 1]);
        } else if (!strcmp(argv[i], "--gate")) {
            spin.gate = atoi(argv[i + 1]);
        } else if (!strcmp(argv[i], "--rounds")) {
            spin.work.rounds = strtoull(argv[i + 1], NULL, 10);
        } else if (!strcmp(argv[i], "--warm")) {
            spin.warm = atof(argv[i + 1]);
        } else if (!strcmp(argv[i], "--percent")) {
            spin.percent = atof(argv[i + 1]);
        } else if (!strcmp(argv[i], "--period")) {
            spin.period_ms = atof(argv[i + 1]);
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
    } verbs[] = {{"run", run, 1}, {"duty", duty, 1}, {"once", once, 1}, {"reset", reset, 1}, {"watch", watch, 0}};
    for (size_t i = 0; i < sizeof verbs / sizeof verbs[0]; i++) {
        if (!strcmp(argv[1], verbs[i].verb) && number > 0 && (spin.work.rounds || !verbs[i].takes_rounds)) {
            return verbs[i].run();
        }
    }
    return usage(argv[1]);
}
