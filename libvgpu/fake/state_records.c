/* state_records.c - the records of the machine's processes: finds a process's own record and those of dead processes.
 *
 * The start time distinguishes a process from a later one with the same PID. The image distinguishes it from itself before an
 * exec.
 */
#include "state_inside.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <unistd.h>

/* The cached record of this process. */
static struct {
    struct state_process *record;
    pid_t pid;
} own;

void state_forget_mine(void)
{
    own.record = NULL;
}

static uint64_t image_of_program(void)
{
    uint64_t image = 0;
    const void *random = (const void *)getauxval(AT_RANDOM);
    if (random) {
        memcpy(&image, random, sizeof image);
    }
    return image;
}

/* Return the start time of a live process, or 0 if there is none. A zombie does not count, because it holds no memory. */
static uint64_t living_since(pid_t pid)
{
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd >= 0 ? read(fd, text, sizeof text - 1) : -1;
    if (fd >= 0) {
        close(fd);
    }
    if (got <= 0) {
        return 0;
    }
    text[got] = '\0';
    char *after_name = strrchr(text, ')');
    char state = 0;
    long threads = 0;
    unsigned long long start = 0;
    if (!after_name || sscanf(after_name + 1, " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %ld %*d %llu",
                              &state, &threads, &start) != 3) {
        return 0;
    }
    if ((state == 'Z' || state == 'X') && threads <= 1) {
        return 0;
    }
    return start;
}

uint32_t state_own_space(void)
{
    struct stat is;
    return stat("/proc/self/ns/pid", &is) ? 0 : (uint32_t)is.st_ino;
}

/* Each record has one byte after the file's contents, on which its process holds a read lock while it lives. The kernel
 * releases the lock when the process ends, regardless of its namespace. */
static struct flock record_byte(const struct state *s, const struct state_process *p, short type)
{
    off_t at = (off_t)sizeof(struct state) + (p - s->processes);
    return (struct flock){.l_type = type, .l_whence = SEEK_SET, .l_start = at, .l_len = 1};
}

int state_is_alive(const struct state *s, const struct state_process *p)
{
    if (p->space == state_own_space()) {
        return living_since(p->pid) == p->start_time;
    }
    struct flock probe = record_byte(s, p, F_WRLCK);
    return fcntl(state_descriptor(), F_OFD_GETLK, &probe) || probe.l_type != F_UNLCK;
}

void state_drop_unused(struct state *s, int number)
{
    for (uint32_t i = 0; s->shares[number].bytes && i < s->process_high; i++) {
        if (s->processes[i].pid && s->processes[i].shares[number]) {
            return;
        }
    }
    s->shares[number].bytes = 0;
}

void state_clear(struct state *s)
{
    for (uint32_t i = 0; i < s->process_high; i++) {
        struct state_process *p = &s->processes[i];
        if (p->pid && p != own.record && !state_is_alive(s, p)) {
            p->pid = 0; /* a record without a PID is free, regardless of its other fields */
        }
    }
    for (int i = 0; i < STATE_MAX_SHARES; i++) {
        state_drop_unused(s, i);
    }
}

static struct state_process *free_record(struct state *s)
{
    for (uint32_t i = 0; i < STATE_MAX_PROCESSES; i++) {
        if (!s->processes[i].pid) {
            s->process_high = i >= s->process_high ? i + 1 : s->process_high;
            return &s->processes[i];
        }
    }
    return NULL;
}

struct state_process *state_mine(struct state *s)
{
    pid_t pid = getpid();
    if (own.record && own.pid == pid) {
        return own.record;
    }
    uint64_t start = living_since(pid), image = image_of_program();
    uint32_t space = state_own_space();
    struct state_process *mine = NULL;
    own.record = NULL;
    for (uint32_t i = 0; i < s->process_high; i++) {
        struct state_process *p = &s->processes[i];
        if (p->pid != pid || p->space != space) {
            continue;
        }
        if (p->start_time == start && p->image == image) {
            mine = p; /* libcuda and libnvidia-ml of one process share a record */
        } else {
            p->pid = 0;
        }
    }
    if (!mine) {
        mine = free_record(s);
        if (!mine) {
            state_clear(s);
            mine = free_record(s);
        }
        if (!mine) {
            return NULL;
        }
        *mine = (struct state_process){.serial = ++s->serials, .space = space, .start_time = start, .image = image};
        __atomic_store_n(&mine->pid, pid, __ATOMIC_RELEASE);
    }
    struct flock alive = record_byte(s, mine, F_RDLCK);
    fcntl(state_descriptor(), F_OFD_SETLK, &alive);
    own.record = mine;
    own.pid = pid;
    return mine;
}
