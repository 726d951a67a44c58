/* state_file.c - the file that the simulated machine's processes share. It is mapped once and locked for every change.
 *
 * A forked child opens its own file, because a lock belongs to the open file.
 */
#include "state_inside.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define STATE_MAGIC UINT64_C(0x3445544154534b46)

static struct {
    pthread_mutex_t mutex;
    struct state *shared;
    int fd;
} here = {.mutex = PTHREAD_MUTEX_INITIALIZER, .fd = -1};

static void child_starts_anew(void)
{
    pthread_mutex_init(&here.mutex, NULL);
    if (here.fd >= 0) {
        close(here.fd);
    }
    here.fd = -1;
    state_forget_mine();
}

static void watch_forks(void)
{
    pthread_atfork(NULL, NULL, child_starts_anew);
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
        here.shared->host_space = state_own_space();
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

struct state *state_enter(const struct machine *m)
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

void state_leave(void)
{
    file_lock(F_UNLCK);
    pthread_mutex_unlock(&here.mutex);
}

int state_descriptor(void)
{
    return here.fd;
}
