/* instant.h - points in time (CLOCK_MONOTONIC) and durations as two types, so that they cannot be mixed up.
 *
 * A point in time is a struct: the compiler refuses to add two of them, to compare one with a number, or to pass a
 * duration in its place. A duration is a plain number of nanoseconds, because GPU time is multiplied and divided all
 * the time. The words of the region stay numbers; vgpu_at and `.ns` convert where one is read or written.
 */
#ifndef VGPU_INSTANT_H
#define VGPU_INSTANT_H

#include <stdint.h>

struct vgpu_instant {
    uint64_t ns; /* 0: never */
};

typedef uint64_t vgpu_duration; /* ns */

_Static_assert(sizeof(struct vgpu_instant) == sizeof(uint64_t), "passed in a register, and atomic without a lock");
_Static_assert(sizeof(_Atomic struct vgpu_instant) == sizeof(uint64_t), "atomic without a lock");

static inline struct vgpu_instant vgpu_at(uint64_t ns)
{
    return (struct vgpu_instant){ns};
}

static inline int vgpu_is_before(struct vgpu_instant a, struct vgpu_instant b)
{
    return a.ns < b.ns;
}

static inline struct vgpu_instant vgpu_first_of(struct vgpu_instant a, struct vgpu_instant b)
{
    return vgpu_is_before(b, a) ? b : a;
}

static inline struct vgpu_instant vgpu_later(struct vgpu_instant at, vgpu_duration by)
{
    return vgpu_at(at.ns + by);
}

/* Return a point that is never before the clock's start. */
static inline struct vgpu_instant vgpu_earlier(struct vgpu_instant at, vgpu_duration by)
{
    return vgpu_at(at.ns > by ? at.ns - by : 0);
}

/* Return the time from `from` to `to`. If `to` is the earlier one, as another thread's may be, the result is longer
 * than any real duration. */
static inline vgpu_duration vgpu_between(struct vgpu_instant from, struct vgpu_instant to)
{
    return to.ns - from.ns;
}

#endif
