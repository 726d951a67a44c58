#include "missing.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

void missing(const char *function)
{
    const char *path = getenv("VGPU_FAKE_MISSING");
    char line[128];
    int fd = path ? open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666) : -1;
    if (fd >= 0) {
        int length = snprintf(line, sizeof line, "%s\n", function);
        if (write(fd, line, (size_t)length) != length) {
            fprintf(stderr, "vgpu-fake: cannot write to %s\n", path);
        }
        close(fd);
    }
}
