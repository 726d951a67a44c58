/* measure_context.c - contexts, modules, queues and streams. */
#include "measure.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { ROOM = 256, MOST_QUEUED = 8192 };

static double series[MOST_QUEUED];

/* Print the memory in use according to the device, cuMemGetInfo and NVML's entry for this PID (-1: there is none). */
static void print_memory(const char *stage, nvmlDevice_t device, int has_context, const char *separator)
{
    nvmlProcessInfo_t list[ROOM];
    nvmlMemory_t memory = {0};
    size_t free_bytes = 0, total = 0;
    unsigned count = ROOM;
    double listed = -1;
    nvml.memory(device, &memory);
    if (has_context) {
        cu.cuMemGetInfo(&free_bytes, &total);
    }
    nvmlReturn_t result = nvml.compute_v3(device, &count, list);
    if (result == NVML_ERROR_FUNCTION_NOT_FOUND) {
        count = ROOM;
        result = nvml.compute_v2(device, &count, list);
    }
    for (unsigned i = 0; result == NVML_SUCCESS && i < count; i++) {
        if (list[i].pid == (unsigned)getpid()) {
            listed = list[i].usedGpuMemory == UINT64_MAX ? -2 : (double)list[i].usedGpuMemory;
        }
    }
    printf("%s[\"%s\", %llu, %zu, %.0f]", separator, stage, memory.used, total - free_bytes, listed);
}

int measure_memory(struct measurement *m)
{
    nvmlDevice_t device;
    char uuid[DRIVER_UUID_BYTES];
    CUdeviceptr block;
    CUmodule module;
    if (driver_load() || driver_load_nvml() || driver_nvml_device(m->work.device, uuid, &device) != NVML_SUCCESS) {
        return driver_failed("NVML does not know the device", 0);
    }
    printf("{\"stages\": [");
    print_memory("start", device, 0, "");
    if (driver_use(m->work.device)) {
        return 1;
    }
    print_memory("context", device, 1, ", ");
    if (work_prepare(&m->work)) {
        return 1;
    }
    print_memory("module", device, 1, ", ");
    TRY(work_launch(&m->work, m->work.stream));
    TRY(cu.cuCtxSynchronize());
    print_memory("launch", device, 1, ", ");
    if (work_load(&module)) {
        return 1;
    }
    print_memory("second module", device, 1, ", ");
    TRY(cu.cuModuleUnload(module));
    TRY(cu.cuMemAlloc(&block, (size_t)64 << 20));
    print_memory("64 MiB", device, 1, ", ");
    TRY(cu.cuMemFree(block));
    print_memory("freed", device, 1, ", ");
    TRY(cu.cuDevicePrimaryCtxReset(m->work.device));
    print_memory("reset", device, 0, ", ");
    printf("]}\n");
    return 0;
}

static double since_ms(uint64_t began)
{
    return (double)(work_clock_ns(CLOCK_MONOTONIC) - began) / 1e6;
}

int measure_contexts(struct measurement *m)
{
    enum { MOST = 100 };
    double made[MOST], ended[MOST];
    unsigned count = m->number < MOST ? (unsigned)m->number : MOST, same = 0;
    CUcontext first = NULL;
    if (driver_load()) {
        return 1;
    }
    for (unsigned i = 0; i < count; i++) {
        CUcontext context;
        uint64_t began = work_clock_ns(CLOCK_MONOTONIC);
        TRY(cu.cuDevicePrimaryCtxRetain(&context, m->work.device));
        made[i] = since_ms(began);
        first = first ? first : context;
        same += context == first;
        began = work_clock_ns(CLOCK_MONOTONIC);
        TRY(cu.cuDevicePrimaryCtxRelease(m->work.device));
        ended[i] = since_ms(began);
    }
    printf("{\"count\": %u, \"same_address\": %u, ", count, same);
    work_print_series("made_ms", made, count, 3);
    printf(", ");
    work_print_series("ended_ms", ended, count, 3);
    printf("}\n");
    return 0;
}

/* Measure what an event of a reset context returns. The driver may crash, as NVIDIA says. */
int measure_dead_event(struct measurement *m)
{
    CUevent event;
    m->work.rounds = 1000;
    if (work_prepare(&m->work)) {
        return 1;
    }
    TRY(cu.cuEventCreate(&event, 0));
    TRY(work_launch(&m->work, m->work.stream));
    TRY(cu.cuEventRecord(event, m->work.stream));
    TRY(cu.cuDevicePrimaryCtxReset(m->work.device));
    if (driver_use(m->work.device)) {
        return 1;
    }
    printf("{\"result\": %d}\n", cu.cuEventQuery(event));
    return 0;
}

/* Count how many launches fit behind a long kernel before one blocks. */
int measure_queue(struct measurement *m)
{
    enum { BLOCKED_MS = 20 };
    unsigned count = 0, blocked = 0;
    if (work_prepare(&m->work)) {
        return 1;
    }
    TRY(work_launch_part(&m->work, m->work.stream, m->work.blocks, 1));
    TRY(cu.cuCtxSynchronize());
    TRY(work_launch(&m->work, m->work.stream));
    while (count < MOST_QUEUED && !blocked) {
        uint64_t began = work_clock_ns(CLOCK_MONOTONIC);
        TRY(work_launch_part(&m->work, m->work.stream, 1, 1));
        double ms = since_ms(began);
        series[count++] = ms * 1e3;
        blocked = ms > BLOCKED_MS ? count : 0;
    }
    TRY(cu.cuCtxSynchronize());
    printf("{\"depth\": %u, ", blocked);
    work_print_series("launch_us", series, count, 1);
    printf("}\n");
    return 0;
}

static int rate(struct measurement *m, CUstream *streams, unsigned count, double *per_second)
{
    uint64_t launches = 0, began = work_clock_ns(CLOCK_MONOTONIC), now = began;
    for (; now - began < (uint64_t)(m->number * 1e9); now = work_clock_ns(CLOCK_MONOTONIC)) {
        for (unsigned i = 0; i < 32; i++, launches++) {
            TRY(work_launch_part(&m->work, streams[i % count], m->work.blocks / 4, m->work.rounds));
        }
        TRY(cu.cuCtxSynchronize());
    }
    *per_second = (double)launches * 1e9 / (double)(now - began);
    return 0;
}

int measure_streams(struct measurement *m)
{
    enum { STREAMS = 4, NODES = 50 };
    CUstream streams[STREAMS];
    CUgraph graph;
    CUgraphExec exec;
    double one = 0, four = 0;
    if (work_prepare(&m->work)) {
        return 1;
    }
    for (int i = 0; i < STREAMS; i++) {
        TRY(cu.cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING));
    }
    if (rate(m, streams, 1, &one) || rate(m, streams, STREAMS, &four)) {
        return 1;
    }
    TRY(cu.cuStreamBeginCapture(m->work.stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    for (int i = 0; i < NODES; i++) {
        TRY(work_launch_part(&m->work, m->work.stream, m->work.blocks / 4, m->work.rounds));
    }
    TRY(cu.cuStreamEndCapture(m->work.stream, &graph));
    TRY(cu.cuGraphInstantiateWithFlags(&exec, graph, 0));
    uint64_t graphs = 0, began = work_clock_ns(CLOCK_MONOTONIC), now = began;
    for (; now - began < (uint64_t)(m->number * 1e9); now = work_clock_ns(CLOCK_MONOTONIC), graphs++) {
        TRY(cu.cuGraphLaunch(exec, m->work.stream));
        TRY(cu.cuStreamSynchronize(m->work.stream));
    }
    printf("{\"one_stream_per_second\": %.3f, \"four_streams_per_second\": %.3f, \"in_graphs_per_second\": %.3f}\n", one, four,
           (double)(graphs * NODES) * 1e9 / (double)(now - began));
    return 0;
}
