#include "world.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "clock.h"
#include "kernel.h"
#include "loader.h"
#include "mounts.h"

static struct vgpu_instant read_clock(clockid_t clock)
{
    struct timespec t = vgpu_clock_read(clock);
    return vgpu_at((uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec);
}

static struct vgpu_instant now(void)
{
    return read_clock(CLOCK_MONOTONIC);
}

static struct vgpu_instant about_now(void)
{
    return read_clock(CLOCK_MONOTONIC_COARSE);
}

static void sleep_for(vgpu_duration ns)
{
    struct timespec t = {.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};
    vgpu_clock_sleep(&t);
}

/* Return NULL in a program with more rights than its caller, because the caller would choose the file names. */
static const char *env(const char *name)
{
    return secure_getenv(name);
}

/* Only the answer that there is no such file means that there is none. */
static int exists(const char *path)
{
    long result = vgpu_call(SYS_faccessat, AT_FDCWD, (long)path, F_OK, 0);
    return result != -ENOENT && result != -ENOTDIR;
}

static void *map(const char *path, size_t bytes, enum vgpu_map how)
{
    int flags = how == VGPU_MAP_READ ? O_RDONLY : how == VGPU_MAP_WRITE ? O_RDWR : O_RDWR | O_CREAT;
    long fd = vgpu_call(SYS_openat, AT_FDCWD, (long)path, flags | O_CLOEXEC, 0666);
    if (fd < 0) {
        return NULL;
    }
    /* Growing a file that is large enough has no effect, so two creators cannot interfere. */
    long size = vgpu_call(SYS_lseek, fd, 0, SEEK_END, 0);
    if (how == VGPU_MAP_CREATE && size >= 0 && (size_t)size < bytes && !vgpu_call(SYS_ftruncate, fd, (long)bytes, 0, 0)) {
        size = (long)bytes;
    }
    void *at = NULL;
    if (size >= 0 && (size_t)size >= bytes && (how == VGPU_MAP_CREATE || vgpu_mounts_are_single(path, fd))) {
        at = vgpu_kernel_map(bytes, how == VGPU_MAP_READ ? PROT_READ : PROT_READ | PROT_WRITE, MAP_SHARED, (int)fd);
    }
    vgpu_call(SYS_close, fd, 0, 0, 0);
    return at;
}

static void *map_private(size_t bytes)
{
    return vgpu_kernel_map(bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1);
}

/* Silent unless VGPU_LOG_LEVEL is set: a library in every process must not write to its stderr. */
static void log_line(const char *text)
{
    const char *level = getenv("VGPU_LOG_LEVEL");
    if (level && *level && *level != '0') {
        vgpu_call(SYS_write, STDERR_FILENO, (long)text, (long)strlen(text), 0);
    }
}

const struct vgpu_world vgpu_world_real = {
    .cuda = vgpu_loader_cuda,
    .nvml = vgpu_loader_nvml,
    .next = vgpu_loader_next,
    .now = now,
    .about_now = about_now,
    .sleep_for = sleep_for,
    .self = vgpu_identity_self,
    .is_dead = vgpu_identity_is_dead,
    .layout_of = vgpu_identity_layout,
    .env = env,
    .exists = exists,
    .own_path = vgpu_loader_own_path,
    .map = map,
    .map_private = map_private,
    .log = log_line,
};

const struct vgpu_world *vgpu_world = &vgpu_world_real;
