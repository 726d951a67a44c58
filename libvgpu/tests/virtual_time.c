#include "virtual_time.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { PLACES = 16 };

/* A start that is days after the machine's, so that subtractions never go below zero. */
#define BEGIN_NS UINT64_C(1000000000000000)

static struct times {
    _Atomic uint64_t passed_ns;
    _Atomic uint32_t turn; /* changes whenever time advances, for sleeping threads */
    struct {
        _Atomic uint32_t taken;
        _Atomic uint64_t wake_ns; /* not in the future: the thread is awake */
    } places[PLACES];
} own, *times = &own;
static _Thread_local int mine; /* index + 1; 0: none */

static void die(const char *why)
{
    perror(why);
    exit(3);
}

void virtual_share(const char *path)
{
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0 || ftruncate(fd, sizeof *times)) {
        die(path);
    }
    times = mmap(NULL, sizeof *times, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (times == MAP_FAILED) {
        die(path);
    }
    close(fd);
}

int virtual_reserve(void)
{
    for (int i = 0; i < PLACES; i++) {
        uint32_t is_free = 0;
        if (atomic_compare_exchange_strong(&times->places[i].taken, &is_free, 1)) {
            return i;
        }
    }
    die("no place left");
    return -1;
}

void virtual_join(int place)
{
    mine = place + 1;
}

static void tell_sleepers(void)
{
    times->turn++;
    syscall(SYS_futex, &times->turn, FUTEX_WAKE, PLACES, NULL, NULL, 0);
}

void virtual_leave(int place)
{
    times->places[place].wake_ns = 0;
    times->places[place].taken = 0;
    mine = mine == place + 1 ? 0 : mine;
    tell_sleepers(); /* it may have been the only thread awake */
}

/* Advance to the first time at which a thread wakes. Return 0 if one is awake. */
static int move_on(void)
{
    uint64_t now = times->passed_ns, first;
    do {
        first = UINT64_MAX;
        for (int i = 0; i < PLACES; i++) {
            uint64_t wake = times->places[i].wake_ns;
            if (times->places[i].taken) {
                if (wake <= now) {
                    return 0;
                }
                first = wake < first ? wake : first;
            }
        }
    } while (!atomic_compare_exchange_weak(&times->passed_ns, &now, first));
    return 1;
}

uint64_t virtual_now_ns(void)
{
    uint64_t now = times->passed_ns += VIRTUAL_LOOK_NS;
    for (int i = 0; i < PLACES; i++) {
        uint64_t wake = times->places[i].taken ? (uint64_t)times->places[i].wake_ns : 0;
        if (wake && wake <= now && wake > now - VIRTUAL_LOOK_NS) {
            tell_sleepers();
        }
    }
    return BEGIN_NS + now;
}

void virtual_sleep_ns(uint64_t ns)
{
    if (!mine) {
        struct timespec t = {.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};
        syscall(SYS_nanosleep, &t, NULL);
        return;
    }
    uint64_t wake = times->passed_ns + ns;
    times->places[mine - 1].wake_ns = wake;
    for (;;) {
        uint32_t turn = times->turn;
        if (times->passed_ns >= wake) {
            break;
        }
        if (move_on()) {
            tell_sleepers();
        } else {
            /* A thread that advances time wakes the others afterwards. If it did so before `turn` was read, `passed_ns` shows it. */
            syscall(SYS_futex, &times->turn, FUTEX_WAIT, turn, NULL, NULL, 0);
        }
    }
    times->places[mine - 1].wake_ns = 0;
}
