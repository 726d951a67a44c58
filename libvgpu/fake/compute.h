/* compute.h - the engines of the machine's cards (engine.h), shared by all its processes and run by the clock on the wall.
 *
 * They live in `<machine file>.engine`, created on first use. Nothing runs them in the background: a process that reads them
 * lets them catch up with the present first. A process joins a card's engine at its first kernel that takes time.
 */
#ifndef FAKE_COMPUTE_H
#define FAKE_COMPUTE_H

#include "engine.h"
#include "machine.h"

/* CLOCK_MONOTONIC, ns. */
uint64_t compute_now_ns(void);

/* The engine of a card, at the present and locked, and this process's context on it (joined when `join`, else -1
 * where it never did). NULL when there is none: then nothing is locked. */
struct engine *compute_enter(const struct machine *m, int card, int join, int *context);
void compute_leave(int card);

/* Convert a moment of the engine to the wall clock, ns since 1970: the same moment always gives the same result. */
uint64_t compute_wall_ns(const struct engine *e, uint64_t ns);

/* The process whose context this is, by its number (state_serial); 0: none. For NVML, under the lock. */
int compute_owner(const struct engine *e, int context);

/* Let an engine's rest pass, after which something may have changed in a context, in slices of 1 ms. */
void compute_rest(uint64_t rest_ns);

#endif
