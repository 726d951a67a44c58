/* compute.h - the engines of the machine's cards (engine.h). All processes share them, and they follow the system's clock.
 *
 * They are stored in `<machine file>.engine`, created on first use. Nothing runs them in the background: a process that
 * reads them first lets them catch up with the present. A process joins a card's engine with its first kernel that takes time.
 */
#ifndef FAKE_COMPUTE_H
#define FAKE_COMPUTE_H

#include "engine.h"
#include "machine.h"

/* Return CLOCK_MONOTONIC in ns. */
uint64_t compute_now_ns(void);

/* Return a card's engine, locked and brought up to the present. `*context` becomes this process's context on it, which is
 * created if `join` is set; -1 if there is none. Return NULL if there is no engine; nothing is locked then. */
struct engine *compute_enter(const struct machine *m, int card, int join, int *context);
void compute_leave(int card);

/* Convert an engine time to the wall clock, ns since 1970. The same time always gives the same result. */
uint64_t compute_wall_ns(const struct engine *e, uint64_t ns);

/* Return the number (state_serial) of the process that owns a context, or 0. Used by NVML, under the lock. */
int compute_owner(const struct engine *e, int context);

/* Sleep for up to 1 ms of the time after which something may have changed in a context. */
void compute_rest(uint64_t rest_ns);

#endif
