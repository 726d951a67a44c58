/* state_pids.c - the PIDs and the memory that NVML shows a caller for the machine's processes (README.md).
 *
 * A real driver translates PIDs by pid_vnr(), which a process cannot call for another process. Instead, a process in the
 * host's namespace finds the host PID in /proc and stores it. Until then a number above all PIDs takes its place.
 */
#include "state_inside.h"

#include <ctype.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define ABOVE_ALL_PIDS 4194304u

static enum machine_pids pids_of(const struct machine *m, const struct state *s)
{
    uint32_t instead = __atomic_load_n(&s->pids, __ATOMIC_RELAXED);
    return instead ? (enum machine_pids)(instead - 1) : m->pids;
}

static enum machine_bytes bytes_of(const struct machine *m, const struct state *s)
{
    uint32_t instead = __atomic_load_n(&s->bytes, __ATOMIC_RELAXED);
    return instead ? (enum machine_bytes)(instead - 1) : m->bytes;
}

/* Return the last number of the line NSpid: the PID of a process in its own namespace. */
static int own_pid_of(const char *folder)
{
    char path[300], line[256];
    int pid = 0;
    snprintf(path, sizeof path, "/proc/%s/status", folder);
    FILE *status = fopen(path, "re");
    while (status && fgets(line, sizeof line, status)) {
        if (!strncmp(line, "NSpid:", 6)) {
            const char *last = strrchr(line, '\t');
            pid = last ? atoi(last + 1) : 0;
            break;
        }
    }
    if (status) {
        fclose(status);
    }
    return pid;
}

/* On the host: find a process of another namespace in /proc; 0 if it has ended. */
static uint32_t find(const struct state_process *p)
{
    DIR *proc = opendir("/proc");
    const struct dirent *entry;
    uint32_t found = 0;
    while (proc && !found && (entry = readdir(proc)) != NULL) {
        char path[300];
        struct stat is;
        snprintf(path, sizeof path, "/proc/%s/ns/pid", entry->d_name);
        if (isdigit((unsigned char)entry->d_name[0]) && own_pid_of(entry->d_name) == p->pid && !stat(path, &is) &&
            (uint32_t)is.st_ino == p->space) {
            found = (uint32_t)strtoul(entry->d_name, NULL, 10);
        }
    }
    if (proc) {
        closedir(proc);
    }
    return found;
}

unsigned state_host_pid(const struct machine *m, const struct state_process *p)
{
    struct state *s = state_open(m);
    uint32_t *kept = s ? &s->processes[p - s->processes].host_pid : NULL;
    if (!kept || p->space == s->host_space) {
        return (unsigned)p->pid;
    }
    if (!__atomic_load_n(kept, __ATOMIC_RELAXED) && state_own_space() == s->host_space) {
        __atomic_store_n(kept, find(p), __ATOMIC_RELAXED);
    }
    uint32_t pid = __atomic_load_n(kept, __ATOMIC_RELAXED);
    return pid ? pid : ABOVE_ALL_PIDS + (unsigned)p->serial;
}

/* Like pid_vnr() in the kernel: 0 for a process that is not in the caller's namespace. Nested containers are not supported. */
static unsigned in_own_space(const struct machine *m, const struct state *s, const struct state_process *p)
{
    uint32_t space = state_own_space();
    return p->space == space ? (unsigned)p->pid : space == s->host_space ? state_host_pid(m, p) : 0;
}

unsigned state_pid_shown(const struct machine *m, const struct state_process *p, enum state_call call)
{
    const struct state *s = state_open(m);
    enum machine_pids pids = s ? pids_of(m, s) : MACHINE_PIDS_HOST;
    if (!s || pids == MACHINE_PIDS_HOST || call == STATE_ACCOUNTING || (pids == MACHINE_PIDS_MIXED && call == STATE_SAMPLES)) {
        return state_host_pid(m, p);
    }
    unsigned pid = in_own_space(m, s, p);
    return pid || call == STATE_LIST ? pid : state_host_pid(m, p);
}

uint64_t state_bytes_shown(const struct machine *m, const struct state_process *p, int card)
{
    const struct state *s = state_open(m);
    unsigned shown;
    switch (s ? bytes_of(m, s) : MACHINE_BYTES_SHOWN) {
    case MACHINE_BYTES_UNAVAILABLE:
        return UINT64_MAX;
    case MACHINE_BYTES_HUGE:
        return UINT64_MAX / 2;
    case MACHINE_BYTES_ZERO: /* the PID that was shown is looked up as a PID of the host */
        shown = state_pid_shown(m, p, STATE_LIST);
        for (uint32_t i = 0; i < s->process_high; i++) {
            const struct state_process *other = &s->processes[i];
            if (other->pid && state_host_pid(m, other) == shown) {
                return other->used[card];
            }
        }
        return 0;
    default:
        return p->used[card];
    }
}

int32_t state_serial(const struct machine *m)
{
    struct state *s = state_enter(m);
    const struct state_process *mine = s ? state_mine(s) : NULL;
    int32_t serial = mine ? mine->serial : 0;
    if (s) {
        state_leave();
    }
    return serial;
}

const struct state_process *state_living(const struct machine *m, int32_t serial)
{
    const struct state *s = state_enter(m);
    const struct state_process *found = NULL;
    for (uint32_t i = 0; s && !found && i < s->process_high; i++) {
        const struct state_process *p = &s->processes[i];
        found = p->pid && p->serial == serial && state_is_alive(s, p) ? p : NULL;
    }
    if (s) {
        state_leave();
    }
    return found;
}
