#include "world.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "loader.h"

static struct vgpu_instant now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return vgpu_at((uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec);
}

static struct vgpu_instant about_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
    return vgpu_at((uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec);
}

static void sleep_for(vgpu_duration ns)
{
    struct timespec t = {.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};
    nanosleep(&t, NULL);
}

/* Return NULL in a program with more rights than its caller, because the caller would choose the file names. */
static const char *env(const char *name)
{
    return secure_getenv(name);
}

static int exists(const char *path)
{
    return access(path, F_OK) == 0;
}

static void *map(const char *path, size_t bytes, enum vgpu_map how)
{
    int flags = how == VGPU_MAP_READ ? O_RDONLY : how == VGPU_MAP_WRITE ? O_RDWR : O_RDWR | O_CREAT;
    int fd = open(path, flags | O_CLOEXEC, 0666);
    if (fd < 0) {
        return NULL;
    }
    /* Growing a file that is large enough has no effect, so two creators cannot interfere. */
    off_t size = lseek(fd, 0, SEEK_END);
    if (how == VGPU_MAP_CREATE && size >= 0 && (size_t)size < bytes && ftruncate(fd, (off_t)bytes) == 0) {
        size = lseek(fd, 0, SEEK_END);
    }
    void *at = MAP_FAILED;
    if (size >= 0 && (size_t)size >= bytes) {
        at = mmap(NULL, bytes, how == VGPU_MAP_READ ? PROT_READ : PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    }
    close(fd);
    return at == MAP_FAILED ? NULL : at;
}

static void *map_private(size_t bytes)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return at == MAP_FAILED ? NULL : at;
}

/* Silent unless VGPU_LOG_LEVEL is set: a library in every process must not write to its stderr. */
static void log_line(const char *text)
{
    const char *level = getenv("VGPU_LOG_LEVEL");
    if (level && *level && *level != '0') {
        ssize_t ignored = write(STDERR_FILENO, text, strlen(text));
        (void)ignored;
    }
}

const struct vgpu_world vgpu_world_real = {
    .cuda = vgpu_loader_cuda,
    .nvml = vgpu_loader_nvml,
    .now = now,
    .about_now = about_now,
    .sleep_for = sleep_for,
    .self = vgpu_identity_self,
    .is_dead = vgpu_identity_is_dead,
    .layout_of = vgpu_identity_layout,
    .env = env,
    .exists = exists,
    .map = map,
    .map_private = map_private,
    .log = log_line,
};

const struct vgpu_world *vgpu_world = &vgpu_world_real;
