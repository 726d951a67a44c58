#include "identity.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

#include "kernel.h"
#include "vgpu_abi.h"

enum { MOST_AUXV = 64 }; /* entries; a kernel has about twenty */

#define LOW(bits) ((UINT64_C(1) << (bits)) - 1)

uint64_t vgpu_owner_word(const struct vgpu_identity *who)
{
    return (who->pid & LOW(VGPU_OWNER_PID_BITS)) | (who->pid_namespace & LOW(VGPU_OWNER_NS_BITS)) << VGPU_OWNER_PID_BITS |
           (who->start_time & LOW(VGPU_OWNER_START_BITS)) << (VGPU_OWNER_PID_BITS + VGPU_OWNER_NS_BITS);
}

struct stat_line {
    char state;
    long threads;
    uint64_t start_time;
};

/* Read /proc/<who>/stat; return -1 if it cannot be read. */
static int read_stat(const char *who, struct stat_line *out)
{
    char path[48], text[1024];
    snprintf(path, sizeof path, "/proc/%s/stat", who);
    long got = vgpu_kernel_read(path, text, sizeof text - 1);
    if (got < 0) {
        return -1;
    }
    text[got > 0 ? got : 0] = '\0';
    /* Count fields from the last ')', because the name before it may contain anything. */
    char *at = strrchr(text, ')');
    if (!at || at[1] != ' ') {
        return -1;
    }
    out->state = at[2];
    at += 2;
    for (int field = 3; field < 22 && at; field++) {
        if (field == 20) {
            out->threads = strtol(at, NULL, 10);
        }
        at = strchr(at, ' ');
        at = at ? at + 1 : NULL;
    }
    if (!at) {
        return -1;
    }
    out->start_time = strtoull(at, NULL, 10);
    return 0;
}

uint64_t vgpu_identity_layout(uint32_t pid)
{
    char path[48];
    unsigned long words[2 * MOST_AUXV];
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    snprintf(path, sizeof path, "/proc/%u/auxv", (unsigned)pid);
    long got = vgpu_kernel_read(path, words, sizeof words);
    if (got <= 0) {
        return 0;
    }
    for (size_t i = 0; (i + 2) * sizeof words[0] <= (size_t)got && words[i] != AT_NULL; i += 2) {
        switch (words[i]) {
        case AT_RANDOM:
        case AT_SYSINFO_EHDR:
        case AT_ENTRY:
        case AT_PHDR:
        case AT_BASE:
            hash = (hash ^ words[i + 1]) * UINT64_C(0x100000001b3);
            break;
        default:
            break;
        }
    }
    return hash ? hash : 1;
}

struct vgpu_identity vgpu_identity_self(void)
{
    struct vgpu_identity me = {.pid = (uint32_t)vgpu_call(SYS_getpid, 0, 0, 0, 0)};
    struct stat_line line = {0};
    char link[64];
    if (read_stat("self", &line) == 0) {
        me.start_time = line.start_time;
    }
    long got = vgpu_call(SYS_readlinkat, AT_FDCWD, (long)"/proc/self/ns/pid", (long)link, sizeof link - 1);
    if (got > 5) {
        link[got] = '\0';
        me.pid_namespace = strtoull(link + 5, NULL, 10); /* "pid:[4026531836]" */
    }
    me.layout = vgpu_identity_layout(me.pid);
    const void *random = (const void *)vgpu_kernel_auxv(AT_RANDOM);
    if (random) {
        memcpy(&me.image, random, sizeof me.image);
    }
    return me;
}

int vgpu_identity_is_dead(uint64_t owner, const struct vgpu_identity *self)
{
    uint64_t pid = owner & LOW(VGPU_OWNER_PID_BITS);
    uint64_t space = owner >> VGPU_OWNER_PID_BITS & LOW(VGPU_OWNER_NS_BITS);
    uint64_t start = owner >> (VGPU_OWNER_PID_BITS + VGPU_OWNER_NS_BITS) & LOW(VGPU_OWNER_START_BITS);
    if (space != (self->pid_namespace & LOW(VGPU_OWNER_NS_BITS))) {
        return 0; /* its pid is from another namespace; the agent can check it */
    }
    if (vgpu_call(SYS_kill, (long)pid, 0, 0, 0) == -ESRCH) {
        return 1;
    }
    char name[16];
    struct stat_line line = {0};
    snprintf(name, sizeof name, "%u", (unsigned)pid);
    if (read_stat(name, &line) != 0) {
        return 0; /* the process exists, but /proc hides it */
    }
    if (start && (line.start_time & LOW(VGPU_OWNER_START_BITS)) != start) {
        return 1; /* the pid now belongs to another process */
    }
    /* A zombie has no memory, unless it is a leader whose other threads still run. */
    return (line.state == 'Z' || line.state == 'X') && line.threads <= 1;
}
