/* measure.c - vgpu-measure: how a driver behaves where the library relies on it, as raw series.
 *
 * Nothing here judges: the check (gpu_check.py) does, and writes the series to a file from which the simulated driver can be set.
 *
 *   vgpu-measure who SECONDS --rounds N       PIDs and bytes of this process in each of NVML's lists and samples, after work of so long
 *   vgpu-measure lists 1                      the same of all processes, by one that has no context
 *   vgpu-measure nvml COUNT                   what NVML's calls cost
 *   vgpu-measure samples SECONDS [--every US] NVML's samples by process, each with the moment at which it was seen
 *   vgpu-measure hold 1 --gate 1              a context, until standard input ends
 *   vgpu-measure clock SECONDS                the device's clock beside the host's
 *   vgpu-measure marks SECONDS [--every US] [--own ROUNDS]  how late events are that have no work in their stream
 *   vgpu-measure turns SECONDS --rounds N     how far apart kernels end: gaps are the timeslices of others
 *   vgpu-measure pairs SECONDS --rounds N     rate of kernels with events round each, round each tenth, round none
 *   vgpu-measure memory 1 --rounds N          memory of contexts and modules by cuMemGetInfo, by NVML's list and by the device
 *   vgpu-measure contexts COUNT               how long contexts take, and whether they come back at their addresses
 *   vgpu-measure dead-event 1                 what an event of a context that was reset answers
 *   vgpu-measure queue 1 --rounds N           how many launches wait before one blocks; N rounds last about 300 ms
 *   vgpu-measure streams SECONDS --rounds N   kernels of a quarter of the device in one stream and in four, and as a graph
 *   vgpu-measure costs COUNT                  what launches and allocations cost the calling thread
 *   vgpu-measure start 1                      what a process pays until its first kernel has ended
 *
 * With `--gate 1` it prints that it is ready, and begins when its standard input ends. A JSON object a line on standard output;
 * status 1: something failed, 2: wrong usage.
 */
#include "measure.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    int (*run)(struct measurement *);
    int takes_rounds;
} verbs[] = {
    {"who", measure_who, 1},           {"nvml", measure_nvml, 0},   {"samples", measure_samples, 0},
    {"hold", measure_hold, 0},         {"clock", measure_clock, 0}, {"marks", measure_marks, 0},
    {"turns", measure_turns, 1},       {"pairs", measure_pairs, 1}, {"memory", measure_memory, 1},
    {"contexts", measure_contexts, 0}, {"queue", measure_queue, 1}, {"dead-event", measure_dead_event, 0},
    {"streams", measure_streams, 1},   {"costs", measure_costs, 0}, {"start", measure_start, 0},
    {"lists", measure_lists, 0},
};

static int usage(const char *what)
{
    fprintf(stderr, "vgpu-measure: cannot understand '%s' (see the head of measure.c)\n", what);
    return 2;
}

int main(int argc, char **argv)
{
    struct measurement m = {.every_us = 500};
    if (argc < 3 || argc % 2 == 0) {
        return usage(argc > 1 ? argv[argc - 1] : "");
    }
    for (int i = 3; i < argc; i += 2) {
        if (!strcmp(argv[i], "--device")) {
            m.work.device = atoi(argv[i + 1]);
        } else if (!strcmp(argv[i], "--gate")) {
            m.gate = atoi(argv[i + 1]);
        } else if (!strcmp(argv[i], "--rounds")) {
            m.work.rounds = strtoull(argv[i + 1], NULL, 10);
        } else if (!strcmp(argv[i], "--own")) {
            m.own = strtoull(argv[i + 1], NULL, 10);
        } else if (!strcmp(argv[i], "--every")) {
            m.every_us = atof(argv[i + 1]);
        } else {
            return usage(argv[i]);
        }
    }
    m.number = atof(argv[2]);
    for (size_t i = 0; i < sizeof verbs / sizeof verbs[0]; i++) {
        if (!strcmp(argv[1], verbs[i].name) && m.number > 0 && (m.work.rounds || !verbs[i].takes_rounds)) {
            return verbs[i].run(&m);
        }
    }
    return usage(argv[1]);
}
