/* measure_time.c - the device's clock, its timeslices, and events. */
#include "measure.h"

#include <stdio.h>
#include <stdlib.h>

enum { MOST = 20000, RING = 64 };

static double series[2][MOST];

/* Print pairs of the device's time and the host's time, in microseconds since the first event. The host's time is the middle
 * of a call that waits. */
int measure_clock(struct measurement *m)
{
    CUevent origin, event;
    unsigned count = 0;
    if (work_prepare(&m->work)) {
        return 1;
    }
    TRY(cu.cuEventCreate(&origin, 0));
    TRY(cu.cuEventCreate(&event, 0));
    m->work.rounds = m->work.rounds ? m->work.rounds : 1000;
    TRY(work_launch(&m->work, m->work.stream));
    TRY(cu.cuCtxSynchronize());
    TRY(cu.cuEventRecord(origin, m->work.stream));
    TRY(cu.cuEventSynchronize(origin));
    uint64_t began = work_clock_ns(CLOCK_MONOTONIC);
    while (work_clock_ns(CLOCK_MONOTONIC) - began < (uint64_t)(m->number * 1e9) && count < MOST) {
        float ms = 0;
        uint64_t before = work_clock_ns(CLOCK_MONOTONIC);
        TRY(cu.cuEventRecord(event, m->work.stream));
        TRY(cu.cuEventSynchronize(event));
        uint64_t after = work_clock_ns(CLOCK_MONOTONIC);
        TRY(cu.cuEventElapsedTime(&ms, origin, event));
        series[0][count] = ((double)(before - began) + (double)(after - began)) / 2e3;
        series[1][count++] = (double)ms * 1e3;
        work_sleep_ns((uint64_t)(m->every_us * 1e3));
    }
    printf("{");
    work_print_series("host_us", series[0], count, 1);
    printf(", ");
    work_print_series("device_us", series[1], count, 1);
    printf("}\n");
    return 0;
}

/* Record events in a stream without work and check them without waiting. Print the time between two of them by the host's
 * clock and by the device's, in microseconds, and how many checks found one without a time. */
int measure_marks(struct measurement *m)
{
    CUevent marks[2];
    CUstream own;
    uint64_t at[2] = {0}, launched = 0;
    unsigned count = 0, looks = 0, waiting = 0, placed = 0;
    m->work.rounds = 1000;
    if (work_prepare(&m->work)) {
        return 1;
    }
    TRY(cu.cuStreamCreate(&own, CU_STREAM_NON_BLOCKING));
    TRY(cu.cuEventCreate(&marks[0], 0));
    TRY(cu.cuEventCreate(&marks[1], 0));
    if (m->gate) {
        work_wait_for_the_others();
    }
    TRY(work_launch(&m->work, m->work.stream)); /* a process that never ran anything gets no timeslices */
    TRY(cu.cuCtxSynchronize());
    uint64_t began = work_clock_ns(CLOCK_MONOTONIC), now = began;
    for (; now - began < (uint64_t)(m->number * 1e9) && count < MOST; now = work_clock_ns(CLOCK_MONOTONIC)) {
        CUevent mark = marks[placed % 2], before = marks[!(placed % 2)];
        float ms = 0;
        if (m->own && now - launched > 100000000) {
            TRY(work_launch_part(&m->work, own, m->work.blocks, m->own));
            launched = now;
        }
        CUresult result = placed ? cu.cuEventQuery(mark) : CUDA_SUCCESS;
        looks += placed > 0;
        if (result == CUDA_ERROR_NOT_READY) {
            waiting++;
        } else {
            TRY(result);
            if (placed > 1) {
                TRY(cu.cuEventElapsedTime(&ms, before, mark));
                series[0][count] = (double)(at[placed % 2] - at[!(placed % 2)]) / 1e3;
                series[1][count++] = (double)ms * 1e3;
            }
            placed++;
            at[placed % 2] = work_clock_ns(CLOCK_MONOTONIC);
            TRY(cu.cuEventRecord(marks[placed % 2], m->work.stream));
        }
        work_sleep_ns((uint64_t)(m->every_us * 1e3));
    }
    TRY(cu.cuCtxSynchronize());
    printf("{\"looks\": %u, \"waiting\": %u, ", looks, waiting);
    work_print_series("host_us", series[0], count, 1);
    printf(", ");
    work_print_series("device_us", series[1], count, 1);
    printf("}\n");
    return 0;
}

/* Record an event behind every kernel, with two batches on their way. Between the ends of two kernels there is one kernel, or
 * others' turns. */
int measure_turns(struct measurement *m)
{
    CUevent ends[2][RING];
    unsigned count = 0, batches = 0;
    uint64_t launches = 0;
    if (work_prepare(&m->work)) {
        return 1;
    }
    for (int i = 0; i < 2 * RING; i++) {
        TRY(cu.cuEventCreate(&ends[i / RING][i % RING], 0));
    }
    if (m->gate) {
        work_wait_for_the_others();
    }
    uint64_t began = work_clock_ns(CLOCK_MONOTONIC), now = began;
    for (; now - began < (uint64_t)(m->number * 1e9); now = work_clock_ns(CLOCK_MONOTONIC), batches++) {
        CUevent *mine = ends[batches % 2], *last = ends[!(batches % 2)];
        for (int i = 0; i < RING; i++, launches++) {
            TRY(work_launch(&m->work, m->work.stream));
            TRY(cu.cuEventRecord(mine[i], m->work.stream));
        }
        if (!batches) {
            continue;
        }
        TRY(cu.cuEventSynchronize(last[RING - 1]));
        for (int i = 1; i < RING && count < MOST; i++) {
            float ms = 0;
            TRY(cu.cuEventElapsedTime(&ms, last[i - 1], last[i]));
            series[0][count++] = (double)ms * 1e3;
        }
    }
    TRY(cu.cuCtxSynchronize());
    now = work_clock_ns(CLOCK_MONOTONIC);
    printf("{\"launches\": %llu, \"per_second\": %.3f, ", (unsigned long long)launches,
           (double)launches * 1e9 / (double)(now - began));
    work_print_series("between_us", series[0], count, 1);
    printf("}\n");
    return 0;
}

/* Measure the rate with an event pair around each kernel in `every`; 0: around none. */
static int one_rate(struct measurement *m, unsigned every, double *per_second, unsigned *measured)
{
    enum { PAIRS = 64 };
    static CUevent begin[PAIRS], end[PAIRS];
    uint64_t launches = 0, began, now;
    *measured = 0;
    for (int i = 0; i < PAIRS && !begin[i]; i++) {
        TRY(cu.cuEventCreate(&begin[i], 0));
        TRY(cu.cuEventCreate(&end[i], 0));
    }
    TRY(cu.cuCtxSynchronize());
    began = now = work_clock_ns(CLOCK_MONOTONIC);
    for (unsigned batch = 0; now - began < (uint64_t)(m->number * 1e9); now = work_clock_ns(CLOCK_MONOTONIC), batch++) {
        unsigned pairs = 0;
        for (unsigned i = 0; i < PAIRS * (every > 1 ? every : 1); i++, launches++) {
            int pair = every && i % every == 0;
            if (pair) {
                TRY(cu.cuEventRecord(begin[pairs], m->work.stream));
            }
            TRY(work_launch(&m->work, m->work.stream));
            if (pair) {
                TRY(cu.cuEventRecord(end[pairs++], m->work.stream));
            }
        }
        TRY(cu.cuStreamSynchronize(m->work.stream));
        for (unsigned i = 0; i < pairs && *measured < MOST; i++) {
            float ms = 0;
            TRY(cu.cuEventElapsedTime(&ms, begin[i], end[i]));
            series[0][(*measured)++] = (double)ms * 1e3;
        }
    }
    *per_second = (double)launches * 1e9 / (double)(now - began);
    return 0;
}

int measure_pairs(struct measurement *m)
{
    static const struct {
        const char *name;
        unsigned every;
    } kinds[] = {{"none", 0}, {"tenth", 10}, {"each", 1}};
    if (work_prepare(&m->work)) {
        return 1;
    }
    printf("{");
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        double per_second = 0;
        unsigned measured = 0;
        if (one_rate(m, kinds[i].every, &per_second, &measured)) {
            return 1;
        }
        printf("%s\"%s\": {\"per_second\": %.3f, ", i ? ", " : "", kinds[i].name, per_second);
        work_print_series("us", series[0], measured < 2000 ? measured : 2000, 2);
        printf("}");
    }
    printf("}\n");
    return 0;
}
