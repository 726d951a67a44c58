/* measure.h - the measurements of vgpu-measure; measure.c lists them. */
#ifndef TOOLS_MEASURE_H
#define TOOLS_MEASURE_H

#include "work.h"

struct measurement {
    struct work work;
    double number;   /* the second argument: seconds, or the number of repetitions */
    double every_us; /* time between two reads */
    uint64_t own;    /* rounds of a kernel in another stream of this process; 0: none */
    int gate;
};

/* Each function prints one JSON object. After a failure it prints that and returns 1. */
int measure_who(struct measurement *m);
int measure_lists(struct measurement *m);
int measure_nvml(struct measurement *m);
int measure_samples(struct measurement *m);
int measure_clock(struct measurement *m);
int measure_marks(struct measurement *m);
int measure_turns(struct measurement *m);
int measure_pairs(struct measurement *m);
int measure_memory(struct measurement *m);
int measure_contexts(struct measurement *m);
int measure_dead_event(struct measurement *m);
int measure_queue(struct measurement *m);
int measure_streams(struct measurement *m);
int measure_costs(struct measurement *m);
int measure_start(struct measurement *m);
int measure_hold(struct measurement *m);

#endif
