/* test_lock.c - the lock is free again after the thread that held it was cancelled. */
#include <pthread.h>
#include <unistd.h>

#include "lock.h"
#include "t.h"

static struct vgpu_calm_lock lock;
static int gate[2];
static _Atomic int reached;

static void *holds_it_across_a_read(void *argument)
{
    char byte;
    (void)argument;
    vgpu_calm_take(&lock);
    reached = 1;
    if (read(gate[0], &byte, 1) == 1) { /* a cancellation point */
        reached = 2;
    }
    vgpu_calm_drop(&lock);
    pthread_testcancel();
    reached = 3;
    return NULL;
}

TEST(a_thread_is_cancelled_only_after_it_has_dropped_the_lock)
{
    pthread_t thread;
    void *how;
    CHECK(pipe(gate) == 0);
    CHECK(pthread_create(&thread, NULL, holds_it_across_a_read, NULL) == 0);
    while (!reached) {
        usleep(100);
    }
    CHECK(!vgpu_calm_try(&lock));
    CHECK(pthread_cancel(thread) == 0);
    usleep(2000);
    CHECK(write(gate[1], "", 1) == 1);
    CHECK(pthread_join(thread, &how) == 0);
    CHECK(how == PTHREAD_CANCELED && reached == 2);
    CHECK(vgpu_calm_try(&lock));
    vgpu_calm_drop(&lock);
}

TEST(holding_and_failing_to_get_it_leave_the_thread_as_it_could_be_cancelled_before)
{
    struct vgpu_calm_lock other = {0};
    int state;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
    vgpu_calm_take(&other);
    CHECK(!vgpu_calm_try(&other));
    vgpu_calm_drop(&other);
    pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &state);
    CHECK_EQ(state, PTHREAD_CANCEL_DISABLE);
    vgpu_calm_take(&other);
    CHECK(!vgpu_calm_try(&other));
    vgpu_calm_take(&lock);
    vgpu_calm_drop(&lock);
    vgpu_calm_drop(&other);
    pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &state);
    CHECK_EQ(state, PTHREAD_CANCEL_ENABLE);
}

int main(void)
{
    return t_run();
}
