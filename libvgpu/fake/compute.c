#include "compute.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "state.h"

#define SLICE_NS UINT64_C(1000000)
#define CLEAR_DEAD_NS UINT64_C(20000000)

/* A card's engine, and when somebody last looked for dead processes. */
struct compute {
    uint64_t started;
    uint64_t cleared_ns;
    uint64_t wall_ns; /* wall clock at time 0 of the engine's clock */
    struct engine engine;
};

static struct {
    pthread_mutex_t mutex;
    struct compute *card;
    int context; /* number of the context + 1; 0: not joined */
    pid_t pid;
    int fd;
} here[MACHINE_MAX_CARDS];
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* A forked child opens its own file, because a lock belongs to the open file. */
static void start_anew(void)
{
    for (int i = 0; i < MACHINE_MAX_CARDS; i++) {
        pthread_mutex_init(&here[i].mutex, NULL);
        if (here[i].fd > 0) {
            close(here[i].fd);
        }
        here[i].fd = 0;
        here[i].context = 0;
    }
}

static void watch_forks(void)
{
    start_anew();
    pthread_atfork(NULL, NULL, start_anew);
}

static uint64_t by_clock(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

uint64_t compute_now_ns(void)
{
    return by_clock(CLOCK_MONOTONIC);
}

uint64_t compute_wall_ns(const struct engine *e, uint64_t ns)
{
    const struct compute *c = (const struct compute *)(const void *)((const char *)e - offsetof(struct compute, engine));
    return ns + c->wall_ns;
}

static size_t stride(void)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return (sizeof(struct compute) + page - 1) / page * page;
}

static int lock_bytes(int card, short type)
{
    struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = card, .l_len = 1};
    int rc;
    do {
        rc = fcntl(here[card].fd, F_OFD_SETLKW, &lock);
    } while (rc && errno == EINTR);
    return rc;
}

static int open_card(const struct machine *m, int card, int create)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s.engine", m->path);
    int fd = open(path, O_RDWR | (create ? O_CREAT : 0) | O_CLOEXEC, 0666);
    size_t size = stride() * (size_t)m->card_count;
    struct stat is;
    if (fd < 0) {
        return -1;
    }
    fchmod(fd, 0666);
    if (fstat(fd, &is) || ((size_t)is.st_size < size && ftruncate(fd, (off_t)size))) {
        close(fd);
        return -1;
    }
    if (!here[card].card) {
        void *map = mmap(NULL, stride(), PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)(stride() * (size_t)card));
        if (map == MAP_FAILED) {
            close(fd);
            return -1;
        }
        here[card].card = map;
    }
    here[card].fd = fd;
    return 0;
}

static void leave_dead(const struct machine *m, struct compute *c, uint64_t now)
{
    if (now - c->cleared_ns < CLEAR_DEAD_NS) {
        return;
    }
    c->cleared_ns = now;
    for (uint32_t i = 0; i < c->engine.high; i++) {
        int owner = c->engine.contexts[i].owner;
        if (owner && !state_living(m, owner)) {
            engine_leave(&c->engine, (int)i);
        }
    }
}

struct engine *compute_enter(const struct machine *m, int card, int join, int *context)
{
    pthread_once(&once, watch_forks);
    pthread_mutex_lock(&here[card].mutex);
    if ((here[card].fd <= 0 && open_card(m, card, join)) || lock_bytes(card, F_WRLCK)) {
        pthread_mutex_unlock(&here[card].mutex);
        return NULL;
    }
    struct compute *c = here[card].card;
    uint64_t now = compute_now_ns();
    if (!c->started) {
        engine_start(&c->engine, now, m->slice_ns, m->switch_ns, m->sample_ns);
        c->wall_ns = by_clock(CLOCK_REALTIME) - by_clock(CLOCK_MONOTONIC);
        c->started = 1;
    }
    leave_dead(m, c, now);
    while (engine_advance(&c->engine, now) < now) {
    }
    if (here[card].context && here[card].pid != getpid()) {
        here[card].context = 0;
    }
    if (!here[card].context && join) {
        here[card].pid = getpid();
        here[card].context = engine_join(&c->engine, state_serial(m)) + 1;
    }
    *context = here[card].context - 1;
    return &c->engine;
}

void compute_leave(int card)
{
    lock_bytes(card, F_UNLCK);
    pthread_mutex_unlock(&here[card].mutex);
}

int compute_owner(const struct engine *e, int context)
{
    return e->contexts[context].owner;
}

void compute_rest(uint64_t rest_ns)
{
    uint64_t ns = rest_ns < 20000 ? 20000 : rest_ns > SLICE_NS ? SLICE_NS : rest_ns;
    struct timespec t = {.tv_nsec = (long)ns};
    nanosleep(&t, NULL);
}
