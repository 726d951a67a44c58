/* virtual_time.h - time that passes only where a thread sleeps, so that a busy machine changes nothing.
 *
 *     int me = virtual_reserve();     // before a thread or process starts: from here on time waits for it
 *     virtual_join(me);               // in that thread or process
 *     virtual_sleep_ns(1000000);      // when all who have a place sleep, it is at once the moment the first one wakes
 *     virtual_leave(me);              // by itself, or for it when it is dead
 *
 * Asking for the time takes some, too, so that a thread that does not sleep does not wait for ever. A staged test links
 * virtual_libc.o besides: then the library under test and the simulated driver live in this time as well.
 */
#ifndef VGPU_VIRTUAL_TIME_H
#define VGPU_VIRTUAL_TIME_H

#include <stdint.h>

/* ns that each read of the clock takes. */
#define VIRTUAL_LOOK_NS UINT64_C(200)

/* Have one time with all processes that do so with this file (made when it is not there). Else it is the process's own. */
void virtual_share(const char *path);

int virtual_reserve(void);
void virtual_join(int place);
void virtual_leave(int place);

uint64_t virtual_now_ns(void);

/* A thread without a place sleeps by the wall clock. */
void virtual_sleep_ns(uint64_t ns);

#endif
