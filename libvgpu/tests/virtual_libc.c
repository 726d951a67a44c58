/* Replaces libc's clock and sleep by virtual time for everything loaded into a staged test, because a program's own
 * definitions take precedence. */
#include <errno.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "virtual_time.h"

/* How far the wall clock is ahead of the monotonic one. */
#define WALL_NS UINT64_C(1600000000000000000)

int clock_gettime(clockid_t clock, struct timespec *out)
{
    if (clock != CLOCK_MONOTONIC && clock != CLOCK_MONOTONIC_COARSE && clock != CLOCK_REALTIME) {
        return (int)syscall(SYS_clock_gettime, clock, out);
    }
    uint64_t now = virtual_now_ns() + (clock == CLOCK_REALTIME ? WALL_NS : 0);
    *out = (struct timespec){.tv_sec = (time_t)(now / 1000000000u), .tv_nsec = (long)(now % 1000000000u)};
    return 0;
}

int nanosleep(const struct timespec *t, struct timespec *left)
{
    (void)left;
    if (!t || t->tv_sec < 0 || t->tv_nsec < 0 || t->tv_nsec > 999999999) {
        errno = EINVAL;
        return -1;
    }
    virtual_sleep_ns((uint64_t)t->tv_sec * 1000000000u + (uint64_t)t->tv_nsec);
    return 0;
}
