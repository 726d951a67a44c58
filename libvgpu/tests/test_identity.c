/* test_identity.c - finding dead processes in the real /proc. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "identity.h"
#include "t.h"
#include "vgpu_abi.h"

static uint64_t owner_of_child(pid_t child, int pipe_end)
{
    struct vgpu_identity who = {0};
    (void)child;
    return read(pipe_end, &who, sizeof who) == (ssize_t)sizeof who ? vgpu_owner_word(&who) : 0;
}

/* Start a child that reports its owner word and then waits to be killed. */
static pid_t child_that_tells(uint64_t *owner)
{
    int ends[2];
    if (pipe(ends)) {
        return -1;
    }
    pid_t child = fork();
    if (child == 0) {
        struct vgpu_identity me = vgpu_identity_self();
        if (write(ends[1], &me, sizeof me) == (ssize_t)sizeof me) {
            pause();
        }
        _exit(0);
    }
    *owner = owner_of_child(child, ends[0]);
    close(ends[0]);
    close(ends[1]);
    return child;
}

TEST(a_living_process_is_not_dead)
{
    struct vgpu_identity me = vgpu_identity_self();
    CHECK(me.pid == (uint32_t)getpid() && me.start_time && me.pid_namespace);
    CHECK(!vgpu_identity_is_dead(vgpu_owner_word(&me), &me));
}

TEST(a_killed_process_is_dead_as_a_zombie_and_after)
{
    struct vgpu_identity me = vgpu_identity_self();
    uint64_t owner = 0;
    pid_t child = child_that_tells(&owner);
    CHECK(child > 0 && owner);
    CHECK(!vgpu_identity_is_dead(owner, &me));
    kill(child, SIGKILL);
    siginfo_t info;
    CHECK(waitid(P_PID, (id_t)child, &info, WEXITED | WNOWAIT) == 0); /* it is a zombie now */
    CHECK(vgpu_identity_is_dead(owner, &me));
    waitpid(child, NULL, 0);
    CHECK(vgpu_identity_is_dead(owner, &me));
}

TEST(a_pid_that_was_given_to_another_process_is_dead)
{
    struct vgpu_identity me = vgpu_identity_self(), before = me;
    before.start_time--;
    CHECK(vgpu_identity_is_dead(vgpu_owner_word(&before), &me));
}

TEST(a_process_of_another_pid_namespace_is_never_judged)
{
    struct vgpu_identity me = vgpu_identity_self(), elsewhere = me;
    elsewhere.pid_namespace++;
    elsewhere.start_time--;
    CHECK(!vgpu_identity_is_dead(vgpu_owner_word(&elsewhere), &me));
}

int main(void)
{
    return t_run();
}
