#include "missing.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void append(const char *path, const char *line)
{
    int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    size_t length = strlen(line);
    if (fd >= 0) {
        if (write(fd, line, length) != (ssize_t)length) {
            fprintf(stderr, "vgpu-fake: cannot write to %s\n", path);
        }
        close(fd);
    }
}

void missing(const char *function)
{
    const char *path = getenv("VGPU_FAKE_MISSING");
    char line[128];
    if (path) {
        snprintf(line, sizeof line, "%s\n", function);
        append(path, line);
    }
}

void looked_up(const char *name, int version, unsigned long long flags)
{
    const char *path = getenv("VGPU_FAKE_LOOKUPS");
    char line[160];
    if (path) {
        snprintf(line, sizeof line, "%s %d %llu\n", name, version, flags);
        append(path, line);
    }
}
