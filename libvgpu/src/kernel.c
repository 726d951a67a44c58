#include "kernel.h"

#include <fcntl.h>
#include <sys/auxv.h>
#include <sys/prctl.h>

#ifndef PR_GET_AUXV
#define PR_GET_AUXV 0x41555856
#endif

enum { MOST_AUXV = 64 }; /* entries; a kernel has about twenty */

long vgpu_kernel_read(const char *path, void *out, size_t bytes)
{
    long fd = vgpu_call(SYS_openat, AT_FDCWD, (long)path, O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0) {
        return fd;
    }
    long got = vgpu_call(SYS_read, fd, (long)out, (long)bytes, 0);
    vgpu_call(SYS_close, fd, 0, 0, 0);
    return got;
}

void *vgpu_kernel_map(size_t bytes, int protection, int flags, int fd)
{
    long at = vgpu_call6(SYS_mmap, 0, (long)bytes, protection, flags, fd, 0);
    return at < 0 && at > -4096 ? NULL : (void *)at;
}

unsigned long vgpu_kernel_auxv(unsigned long type)
{
    unsigned long words[2 * MOST_AUXV] = {0};
    long got = vgpu_call6(SYS_prctl, PR_GET_AUXV, (long)words, sizeof words, 0, 0, 0); /* Linux 6.4 */
    got = got > 0 ? got : vgpu_kernel_read("/proc/self/auxv", words, sizeof words);
    if (got <= 0) {
        return getauxval(type); /* a program whose /proc files are root's, on an older kernel */
    }
    for (unsigned i = 0; i < MOST_AUXV && (i + 1) * 2 * sizeof words[0] <= (size_t)got && words[2 * i] != AT_NULL; i++) {
        if (words[2 * i] == type) {
            return words[2 * i + 1];
        }
    }
    return 0;
}
