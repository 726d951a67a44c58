/* child.h - a child process that does something, reports it, and does the rest when it is told to. */
#ifndef TESTS_CHILD_H
#define TESTS_CHILD_H

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "t.h"

struct child {
    pid_t pid;
    int from, to;
};

static inline struct child begin(void (*first)(void *), void (*then)(void *), void *argument)
{
    int up[2], down[2];
    char byte = 0;
    CHECK(pipe(up) == 0 && pipe(down) == 0);
    struct child it = {.pid = fork(), .from = up[0], .to = down[1]};
    if (it.pid == 0) {
        close(down[1]);
        if (setjmp(t_out) != 0) {
            _exit(1);
        }
        first(argument);
        CHECK(write(up[1], &byte, 1) == 1 && read(down[0], &byte, 1) == 1);
        then(argument);
        CHECK(write(up[1], &byte, 1) == 1);
        pause();
    }
    close(up[1]);
    close(down[0]);
    CHECK(read(it.from, &byte, 1) == 1);
    return it;
}

static inline void go_on(struct child it)
{
    char byte = 0;
    CHECK(write(it.to, &byte, 1) == 1 && read(it.from, &byte, 1) == 1);
}

static inline void end(struct child it)
{
    kill(it.pid, SIGKILL);
    waitpid(it.pid, NULL, 0);
    close(it.from);
    close(it.to);
}

#endif
