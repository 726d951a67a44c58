/* virtual_time.h - a clock that advances only when threads sleep, so that a busy machine changes nothing.
 *
 *     int me = virtual_reserve();     // before a thread or process starts: from now on, time waits for it
 *     virtual_join(me);               // in that thread or process
 *     virtual_sleep_ns(1000000);      // once everybody sleeps, time jumps to when the first one wakes
 *     virtual_leave(me);              // by itself, or for it when it is dead
 *
 * Reading the clock also takes a little time, so a thread that never sleeps does not wait for ever. A staged test also links
 * virtual_libc.o, so that the library under test and the simulated driver use this clock too.
 */
#ifndef VGPU_VIRTUAL_TIME_H
#define VGPU_VIRTUAL_TIME_H

#include <stdint.h>

/* ns that each read of the clock takes. */
#define VIRTUAL_LOOK_NS UINT64_C(200)

/* Share the clock with all processes that name this file, which is created if necessary. Without this, the clock is the
 * process's own. */
void virtual_share(const char *path);

int virtual_reserve(void);
void virtual_join(int place);
void virtual_leave(int place);

uint64_t virtual_now_ns(void);

/* Sleep. A thread that has not joined sleeps by the system's clock. */
void virtual_sleep_ns(uint64_t ns);

#endif
