/* clock.h - time and waiting from the kernel itself: a program may preload a libc that lies about both. */
#ifndef VGPU_CLOCK_H
#define VGPU_CLOCK_H

#include <time.h>

struct timespec vgpu_clock_read(clockid_t clock);
void vgpu_clock_sleep(const struct timespec *time);

#endif
