/* lock.h - a mutex of one word, for memory that a fork wipes.
 *
 * Zero means unlocked. A lock in the wiped arena (process.h) is therefore free in a forked child, even if another
 * thread of the parent held it. It is a plain futex mutex and uses no libc symbol newer than the oldest glibc that we
 * support.
 */
#ifndef VGPU_LOCK_H
#define VGPU_LOCK_H

#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "kernel.h"

struct vgpu_lock {
    _Atomic uint32_t word; /* 0 free, 1 held, 2 held and another thread waits */
};

/* Return 1 if the lock was free and is taken now. */
static inline int vgpu_lock_try(struct vgpu_lock *lock)
{
    uint32_t seen = 0;
    return atomic_compare_exchange_strong_explicit(&lock->word, &seen, 1, memory_order_acquire, memory_order_relaxed);
}

static inline void vgpu_lock_take(struct vgpu_lock *lock)
{
    if (vgpu_lock_try(lock)) {
        return;
    }
    while (atomic_exchange_explicit(&lock->word, 2, memory_order_acquire) != 0) {
        vgpu_call(SYS_futex, (long)&lock->word, FUTEX_WAIT_PRIVATE, 2, 0);
    }
}

static inline void vgpu_lock_drop(struct vgpu_lock *lock)
{
    if (atomic_exchange_explicit(&lock->word, 0, memory_order_release) == 2) {
        vgpu_call(SYS_futex, (long)&lock->word, FUTEX_WAKE_PRIVATE, 1, 0);
    }
}

/* A lock that may be held during calls of the driver, of files or of sleep. These can be cancellation points, and a
 * cancelled thread would keep the lock for ever. So the holder cannot be cancelled until it drops the lock. */
struct vgpu_calm_lock {
    struct vgpu_lock lock;
    int before; /* the holder's cancellation state before */
};

static inline int vgpu_calm_try(struct vgpu_calm_lock *calm)
{
    int before;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    if (vgpu_lock_try(&calm->lock)) {
        calm->before = before;
        return 1;
    }
    pthread_setcancelstate(before, NULL);
    return 0;
}

static inline void vgpu_calm_take(struct vgpu_calm_lock *calm)
{
    int before;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    vgpu_lock_take(&calm->lock);
    calm->before = before;
}

static inline void vgpu_calm_drop(struct vgpu_calm_lock *calm)
{
    int before = calm->before;
    vgpu_lock_drop(&calm->lock);
    pthread_setcancelstate(before, NULL);
}

#endif
