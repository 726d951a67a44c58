#include "state.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define STATE_MAGIC UINT64_C(0x3145544154534b46)

/* One per process; a forked child opens its own, because a lock belongs to the open file. */
static struct {
    pthread_mutex_t mutex;
    struct state *shared;
    int fd;
    pid_t pid;
    struct state_process *mine;
} here = {.mutex = PTHREAD_MUTEX_INITIALIZER, .fd = -1};

static void child_starts_anew(void)
{
    pthread_mutex_init(&here.mutex, NULL);
    if (here.fd >= 0) {
        close(here.fd);
    }
    here.fd = -1;
    here.mine = NULL;
}

static void watch_forks(void)
{
    pthread_atfork(NULL, NULL, child_starts_anew);
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

/* Start time of a process that still runs, 0 when there is none (a zombie holds no memory any more). */
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
    if (!after_name || sscanf(after_name + 1,
                              " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %ld %*d %llu",
                              &state, &threads, &start) != 3) {
        return 0;
    }
    if ((state == 'Z' || state == 'X') && threads <= 1) {
        return 0;
    }
    return start;
}

/* Low bits of the inode of our pid namespace: in another one, our pids mean nothing. */
static uint32_t own_space(void)
{
    struct stat is;
    return stat("/proc/self/ns/pid", &is) ? 0 : (uint32_t)is.st_ino;
}

/* One byte for each record, past all content: its process has it locked for reading as long as it lives. The
 * kernel lets go of it with the process, in whatever namespace that ran. */
static struct flock record_byte(const struct state *s, const struct state_process *p, short type)
{
    off_t at = (off_t)sizeof(struct state) + (p - s->processes);
    return (struct flock){.l_type = type, .l_whence = SEEK_SET, .l_start = at, .l_len = 1};
}

static int is_alive(const struct state *s, const struct state_process *p, uint32_t space)
{
    if (p->space == space) {
        return living_since(p->pid) == p->start_time;
    }
    struct flock probe = record_byte(s, p, F_WRLCK);
    return fcntl(here.fd, F_OFD_GETLK, &probe) || probe.l_type != F_UNLCK;
}

static int file_lock(int type)
{
    struct flock lock = {.l_type = (short)type, .l_whence = SEEK_SET, .l_len = 1};
    int rc;
    do {
        rc = fcntl(here.fd, F_OFD_SETLKW, &lock);
    } while (rc && errno == EINTR);
    return rc;
}

static int open_file(const struct machine *m)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s.state", m->path);
    here.fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (here.fd < 0 || file_lock(F_WRLCK)) {
        return -1;
    }
    struct stat is;
    int bad = fstat(here.fd, &is) || (is.st_size < (off_t)sizeof(struct state) && ftruncate(here.fd, sizeof(struct state)));
    if (!bad && !here.shared) {
        void *map = mmap(NULL, sizeof(struct state), PROT_READ | PROT_WRITE, MAP_SHARED, here.fd, 0);
        here.shared = map == MAP_FAILED ? NULL : map;
    }
    if (!bad && here.shared && here.shared->magic != STATE_MAGIC) {
        fchmod(here.fd, 0666);
        for (int i = 0; i < MACHINE_MAX_CARDS; i++) {
            here.shared->cards[i].temperature_c = 35;
            here.shared->cards[i].power_mw = 60000;
        }
        __atomic_store_n(&here.shared->magic, STATE_MAGIC, __ATOMIC_RELEASE);
    }
    file_lock(F_UNLCK);
    return bad || !here.shared ? -1 : 0;
}

struct state *state_open(const struct machine *m)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch_forks);
    pthread_mutex_lock(&here.mutex);
    if (here.fd < 0 && open_file(m) && here.fd >= 0) {
        close(here.fd);
        here.fd = -1;
    }
    struct state *shared = here.fd >= 0 ? here.shared : NULL;
    pthread_mutex_unlock(&here.mutex);
    return shared;
}

static struct state *lock(const struct machine *m)
{
    if (!state_open(m)) {
        return NULL;
    }
    pthread_mutex_lock(&here.mutex);
    if (file_lock(F_WRLCK)) {
        pthread_mutex_unlock(&here.mutex);
        return NULL;
    }
    return here.shared;
}

static void unlock(void)
{
    file_lock(F_UNLCK);
    pthread_mutex_unlock(&here.mutex);
}

/* A share that no living process has open is gone. */
static void drop_unused(struct state *s, int number)
{
    for (uint32_t i = 0; s->shares[number].bytes && i < s->process_high; i++) {
        if (s->processes[i].pid && s->processes[i].shares[number]) {
            return;
        }
    }
    s->shares[number].bytes = 0;
}

static void bury(struct state *s)
{
    uint32_t space = own_space();
    for (uint32_t i = 0; i < s->process_high; i++) {
        struct state_process *p = &s->processes[i];
        if (p->pid && p != here.mine && !is_alive(s, p, space)) {
            p->pid = 0; /* a record without a pid is free, whatever else it says */
        }
    }
    for (int i = 0; i < STATE_MAX_SHARES; i++) {
        drop_unused(s, i);
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

/* The record of this process, under the lock. A record of the same process from before an exec is emptied. */
static struct state_process *my_record(struct state *s)
{
    pid_t pid = getpid();
    if (here.mine && here.pid == pid) {
        return here.mine;
    }
    uint64_t start = living_since(pid), image = image_of_program();
    uint32_t space = own_space();
    struct state_process *mine = NULL;
    here.mine = NULL;
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
            bury(s);
            mine = free_record(s);
        }
        if (!mine) {
            return NULL;
        }
        *mine = (struct state_process){.space = space, .start_time = start, .image = image};
        __atomic_store_n(&mine->pid, pid, __ATOMIC_RELEASE);
    }
    struct flock alive = record_byte(s, mine, F_RDLCK);
    fcntl(here.fd, F_OFD_SETLK, &alive);
    here.mine = mine;
    here.pid = pid;
    return mine;
}

static uint64_t sum(const struct state *s, int card)
{
    uint64_t total = 0;
    for (uint32_t i = 0; i < s->process_high; i++) {
        total += s->processes[i].pid ? s->processes[i].used[card] : 0;
    }
    for (int i = 0; i < STATE_MAX_SHARES; i++) {
        total += s->shares[i].card == card ? s->shares[i].bytes : 0;
    }
    return total;
}

int state_share_make(const struct machine *m, int card, uint64_t bytes, uint64_t inode)
{
    struct state *s = lock(m);
    struct state_process *mine = s ? my_record(s) : NULL;
    int number = -1;
    for (int i = 0; mine && number < 0 && i < STATE_MAX_SHARES; i++) {
        number = s->shares[i].bytes ? -1 : i;
    }
    if (number >= 0) {
        struct state_share *share = &s->shares[number];
        *share = (struct state_share){.bytes = bytes, .inode = inode, .card = card, .turn = share->turn + 1};
        mine->used[card] -= bytes;
        mine->shares[number] = 1;
    }
    if (s) {
        unlock();
    }
    return number;
}

int state_share_open(const struct machine *m, uint64_t inode, int number, uint32_t turn)
{
    struct state *s = lock(m);
    struct state_process *mine = s ? my_record(s) : NULL;
    int found = -1;
    if (mine) {
        bury(s); /* what only the dead had open cannot be opened any more */
    }
    for (int i = 0; mine && found < 0 && i < STATE_MAX_SHARES; i++) {
        const struct state_share *share = &s->shares[i];
        found = share->bytes && (inode ? share->inode == inode : i == number && share->turn == turn) ? i : -1;
    }
    if (found >= 0) {
        mine->shares[found]++;
    }
    if (s) {
        unlock();
    }
    return found;
}

void state_share_close(const struct machine *m, int number)
{
    struct state *s = lock(m);
    struct state_process *mine = s ? my_record(s) : NULL;
    if (mine && mine->shares[number]) {
        mine->shares[number]--;
        drop_unused(s, number);
    }
    if (s) {
        unlock();
    }
}

enum state_result state_take(const struct machine *m, int card, uint64_t bytes, int contexts)
{
    struct state *s = lock(m);
    if (!s) {
        return STATE_BROKEN;
    }
    struct state_card *c = &s->cards[card];
    struct state_process *mine = my_record(s);
    enum state_result result = STATE_OK;
    if (!mine) {
        result = STATE_BROKEN;
    } else if (c->lost) {
        result = STATE_LOST;
    } else if (c->fail_after && --c->fail_after == 0) {
        result = STATE_NO_MEMORY;
    } else if (bytes > m->cards[card].memory_bytes) {
        result = STATE_NO_MEMORY;
    } else {
        uint64_t total = sum(s, card);
        if (total + bytes > c->peak_bytes || total + bytes > m->cards[card].memory_bytes) {
            bury(s);
            total = sum(s, card);
        }
        if (total + bytes > m->cards[card].memory_bytes) {
            result = STATE_NO_MEMORY;
        } else {
            mine->used[card] += bytes;
            mine->contexts[card] += (uint32_t)contexts;
            c->alloc_count += bytes && !contexts;
            c->peak_bytes = total + bytes > c->peak_bytes ? total + bytes : c->peak_bytes;
        }
    }
    unlock();
    return result;
}

void state_give(const struct machine *m, int card, uint64_t bytes, int contexts)
{
    struct state *s = lock(m);
    if (!s) {
        return;
    }
    struct state_process *mine = my_record(s);
    if (mine) {
        mine->used[card] -= bytes <= mine->used[card] ? bytes : mine->used[card];
        mine->contexts[card] -= (uint32_t)contexts <= mine->contexts[card] ? (uint32_t)contexts : mine->contexts[card];
    }
    unlock();
}

enum state_result state_lock_host(const struct machine *m, uint64_t bytes)
{
    struct state *s = lock(m);
    struct state_process *mine = s ? my_record(s) : NULL;
    if (mine) {
        uint64_t total = 0;
        mine->host_bytes += bytes;
        bury(s);
        for (uint32_t i = 0; i < s->process_high; i++) {
            total += s->processes[i].pid ? s->processes[i].host_bytes : 0;
        }
        s->host_peak = total > s->host_peak ? total : s->host_peak;
    }
    if (s) {
        unlock();
    }
    return mine ? STATE_OK : STATE_BROKEN;
}

void state_unlock_host(const struct machine *m, uint64_t bytes)
{
    struct state *s = lock(m);
    struct state_process *mine = s ? my_record(s) : NULL;
    if (mine) {
        mine->host_bytes -= bytes < mine->host_bytes ? bytes : mine->host_bytes;
    }
    if (s) {
        unlock();
    }
}

uint64_t state_used(const struct machine *m, int card)
{
    struct state *s = lock(m);
    if (!s) {
        return 0;
    }
    bury(s);
    uint64_t total = sum(s, card);
    unlock();
    return total;
}

void state_change(const struct machine *m, void (*change)(struct state *, void *), void *argument)
{
    struct state *s = lock(m);
    if (s) {
        change(s, argument);
        unlock();
    }
}

void state_bury_dead(const struct machine *m)
{
    struct state *s = lock(m);
    if (s) {
        bury(s);
        unlock();
    }
}

void state_event(const struct machine *m, int card, uint32_t xid)
{
    struct state *s = lock(m);
    if (!s) {
        return;
    }
    s->events[s->event_count % STATE_MAX_EVENTS] = (struct state_event){.card = card, .xid = xid};
    __atomic_add_fetch(&s->event_count, 1, __ATOMIC_RELEASE);
    syscall(SYS_futex, &s->event_count, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
    unlock();
}
