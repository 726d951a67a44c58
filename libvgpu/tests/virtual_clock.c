/* The library's clock and sleep (src/clock.h), implemented with libc functions so that virtual_libc.c can replace them. Staged
 * tests use it to run in virtual time. */
#include "clock.h"

struct timespec vgpu_clock_read(clockid_t clock)
{
    struct timespec now = {0};
    clock_gettime(clock, &now);
    return now;
}

void vgpu_clock_sleep(const struct timespec *time)
{
    nanosleep(time, NULL);
}
