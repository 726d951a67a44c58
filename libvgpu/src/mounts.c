#include "mounts.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernel.h"

/* Mounts at one place. */
struct place {
    const char *path;
    size_t length;
    unsigned count, newest;
};

/* Return the mount through which a file was opened; 0 if the kernel does not say. */
static unsigned mount_of(long fd)
{
    char name[48], text[512];
    snprintf(name, sizeof name, "/proc/self/fdinfo/%ld", fd);
    long got = vgpu_kernel_read(name, text, sizeof text - 1);
    text[got > 0 ? got : 0] = '\0';
    const char *at = strstr(text, "mnt_id:");
    return at ? (unsigned)strtoul(at + 7, NULL, 10) : 0;
}

/* A line of /proc/self/mountinfo: number, parent, device, root, place. */
static void count_line(const char *line, struct place *place)
{
    unsigned number = (unsigned)strtoul(line, NULL, 10);
    for (int field = 0; field < 4 && line; field++) {
        line = strchr(line, ' ');
        line = line ? line + 1 : NULL;
    }
    if (line && !strncmp(line, place->path, place->length) && line[place->length] == ' ') {
        place->count++;
        place->newest = number;
    }
}

int vgpu_mounts_are_single(const char *path, long fd)
{
    const char *slash = strrchr(path, '/');
    struct place file = {path, strlen(path), 0, 0}, folder = {path, slash ? (size_t)(slash - path) : 0, 0, 0};
    char text[4096];
    size_t kept = 0;
    long got, list = vgpu_call(SYS_openat, AT_FDCWD, (long)"/proc/self/mountinfo", O_RDONLY | O_CLOEXEC, 0);
    if (list < 0) {
        return 1;
    }
    while ((got = vgpu_call(SYS_read, list, (long)(text + kept), (long)(sizeof text - 1 - kept), 0)) > 0) {
        char *line = text, *end;
        text[kept + (size_t)got] = '\0';
        while ((end = strchr(line, '\n'))) {
            *end = '\0';
            count_line(line, &file);
            count_line(line, &folder);
            line = end + 1;
        }
        kept = strlen(line);
        if (kept == sizeof text - 1) {
            kept = 0; /* no mount point of ours is this far into a line */
        }
        memmove(text, line, kept);
    }
    vgpu_call(SYS_close, list, 0, 0, 0);
    unsigned through = mount_of(fd), mounts = file.count + folder.count;
    return !mounts || (mounts == 1 && (!through || through == (file.count ? file.newest : folder.newest)));
}
