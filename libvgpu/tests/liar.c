/* liar.c - a library that a tenant preloads to escape its limits: it replaces libc functions that the library could rely on.
 *
 * The environment variable LIAR names the calls that it falsifies. It lies only to libvgpu.so, so the test
 * and the simulated driver see the truth.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define TIMES 4

static int is_about(const char *what)
{
    const char *about = getenv("LIAR");
    return about && !strcmp(about, what);
}

static int is_library(const void *caller)
{
    Dl_info info;
    return dladdr(caller, &info) && info.dli_fname && strstr(info.dli_fname, "libvgpu.so") != NULL;
}

#define LIES(about) (is_about(about) && is_library(__builtin_return_address(0)))

int clock_gettime(clockid_t clock, struct timespec *out)
{
    long result = syscall(SYS_clock_gettime, clock, out);
    if (LIES("time")) {
        unsigned long long ns = ((unsigned long long)out->tv_sec * 1000000000u + (unsigned long long)out->tv_nsec) * TIMES;
        *out = (struct timespec){.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};
    }
    return (int)result;
}

int nanosleep(const struct timespec *t, struct timespec *left)
{
    return LIES("time") ? 0 : (int)syscall(SYS_nanosleep, t, left);
}

int access(const char *path, int mode)
{
    return LIES("files") ? (errno = ENOENT, -1) : (int)syscall(SYS_faccessat, AT_FDCWD, path, mode);
}

int open(const char *path, int flags, ...)
{
    va_list list;
    va_start(list, flags);
    mode_t mode = flags & O_CREAT ? va_arg(list, mode_t) : 0;
    va_end(list);
    return LIES("files") ? (errno = ENOENT, -1) : (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

void *mmap(void *address, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    return LIES("files") ? (errno = ENOMEM, MAP_FAILED)
                         : (void *)syscall(SYS_mmap, address, bytes, protection, flags, fd, offset);
}

int kill(pid_t pid, int signal)
{
    return LIES("files") ? (errno = ESRCH, -1) : (int)syscall(SYS_kill, pid, signal);
}
