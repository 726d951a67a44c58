/* measure_costs.c - measures what calls cost the calling thread, in the same program with and without the library. */
#include "measure.h"

#include <stdio.h>
#include <stdlib.h>

enum { BATCH = 64, MOST = 2000 };

/* A pause between batches of launches, in which the share saves up time. Waiting for a share is not part of the cost of a call. */
#define REST_NS UINT64_C(5000000)

static struct work *work;
static CUdeviceptr held[BATCH];

static CUresult one_launch(unsigned i)
{
    (void)i;
    return work_launch_part(work, work->stream, 1, 1);
}

/* Allocate and free the same size, as a stock allocator's loop does. */
static CUresult one_allocation(unsigned i)
{
    CUresult result = cu.cuMemAlloc(&held[i], 1 << 20);
    return result == CUDA_SUCCESS ? cu.cuMemFree(held[i]) : result;
}

static CUresult one_pooled(unsigned i)
{
    CUresult result = cu.cuMemAllocAsync(&held[i], 1 << 20, work->stream);
    return result == CUDA_SUCCESS ? cu.cuMemFreeAsync(held[i], work->stream) : result;
}

static CUresult one_question(unsigned i)
{
    size_t free_bytes, total;
    (void)i;
    return cu.cuMemGetInfo(&free_bytes, &total);
}

/* Measure nanoseconds per call, one value for each batch. The device catches up between batches. */
int measure_costs(struct measurement *m)
{
    static const struct {
        const char *name;
        CUresult (*call)(unsigned);
    } kinds[] = {
        {"launch", one_launch}, {"alloc_free", one_allocation}, {"alloc_async", one_pooled}, {"mem_get_info", one_question}};
    static double series[MOST];
    unsigned batches = (unsigned)(m->number / BATCH) + 1;
    batches = batches < MOST ? batches : MOST;
    m->work.rounds = 1;
    if (work_prepare(&m->work)) {
        return 1;
    }
    work = &m->work;
    printf("{\"library\": %s", work_has_library() ? "true" : "false");
    for (size_t kind = 0; kind < sizeof kinds / sizeof kinds[0]; kind++) {
        for (unsigned n = 0; n < batches; n++) {
            uint64_t began = work_clock_ns(CLOCK_MONOTONIC);
            for (unsigned i = 0; i < BATCH; i++) {
                TRY(kinds[kind].call(i));
            }
            series[n] = (double)(work_clock_ns(CLOCK_MONOTONIC) - began) / BATCH;
            TRY(cu.cuCtxSynchronize());
            if (kinds[kind].call == one_launch) {
                work_sleep_ns(REST_NS);
            }
        }
        printf(", ");
        work_print_series(kinds[kind].name, series, batches, 1);
    }
    printf("}\n");
    return 0;
}

int measure_start(struct measurement *m)
{
    uint64_t began = work_clock_ns(CLOCK_MONOTONIC), initialised, ready;
    m->work.rounds = 1;
    if (driver_load()) {
        return 1;
    }
    initialised = work_clock_ns(CLOCK_MONOTONIC);
    if (work_prepare(&m->work)) {
        return 1;
    }
    ready = work_clock_ns(CLOCK_MONOTONIC);
    TRY(work_launch(&m->work, m->work.stream));
    TRY(cu.cuCtxSynchronize());
    printf("{\"init_ms\": %.3f, \"context_ms\": %.3f, \"first_kernel_ms\": %.3f, \"library\": %s}\n",
           (double)(initialised - began) / 1e6, (double)(ready - initialised) / 1e6,
           (double)(work_clock_ns(CLOCK_MONOTONIC) - ready) / 1e6, work_has_library() ? "true" : "false");
    return 0;
}
