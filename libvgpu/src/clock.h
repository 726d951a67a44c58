/* clock.h - reads clocks and sleeps without libc, because a program can preload a library that falsifies both. */
#ifndef VGPU_CLOCK_H
#define VGPU_CLOCK_H

#include <time.h>

struct timespec vgpu_clock_read(clockid_t clock);
void vgpu_clock_sleep(const struct timespec *time);

#endif
