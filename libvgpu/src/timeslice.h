/* timeslice.h - whose timeslice runs on a shared device: by marks in a stream of our own, at once and without NVML.
 *
 * The contexts of a device run in timeslices, and the time between two events includes those of others. An event in a stream
 * that has nothing else to do gets its time as soon as its context has a timeslice; so the time between putting such a mark
 * there and its own shows whether the timeslice was ours at that moment. Looks at many moments while a kernel runs show which
 * part of its time was its own.
 *
 * Only who waits looks, and only while something runs that is worth it. Under the lock of struct vgpu_throttle.
 */
#ifndef VGPU_TIMESLICE_H
#define VGPU_TIMESLICE_H

#include <stdint.h>

#include "drivers.h"
#include "instant.h"

/* Of a device. All zero at first. */
struct vgpu_timeslice {
    CUcontext context; /* of the stream and the marks; NULL: not made, or lost */
    CUstream stream;
    CUevent marks[2];
    struct vgpu_instant marked[2]; /* never: not yet */
    unsigned newest, made;
    int out;           /* the newest mark has no time yet */
    double late_ns;    /* of the newest that has one, beside the quickest of late */
    struct vgpu_instant looked;
    uint32_t looks, ours; /* ever, and in how many of them the timeslice was ours */
};

/* Is it possible? */
int vgpu_timeslice_can(const struct vgpu_cuda *cuda);

/* Put or read a mark. In the current context, in the relaxed mode of captures. */
void vgpu_timeslice_look(struct vgpu_timeslice *timeslice, const struct vgpu_cuda *cuda, struct vgpu_instant now);

/* Before the driver ends a context: its stream and marks are given back. */
void vgpu_timeslice_end_context(struct vgpu_timeslice *timeslice, const struct vgpu_cuda *cuda, CUcontext context);

/* Of what lay between two events, how much was ours, by the looks since the counts were these; 0: too few. */
double vgpu_timeslice_part(const struct vgpu_timeslice *timeslice, uint32_t looks, uint32_t ours);

#endif
