/* guesses.h - GPU time that was charged by a guess, in the region, until it is measured: a process may end first.
 *
 * A process has one entry while launches of its own are on their way that were charged by a guess, and the moment of the first of
 * them is in it. Who finds the process dead, or another program in it, charges the time from then to now. That is at most a little
 * more than the kernels can have run, because the next process of a loop follows at once; after a pause it is more, so it is
 * bounded.
 */
#ifndef VGPU_GUESSES_H
#define VGPU_GUESSES_H

#include "process.h"

/* Write down that launches on the device of this column have been under way since then, or (`percent` 0) that none is. One thread of
 * the process at a time may call this. */
void vgpu_guess_write(struct vgpu_process *p, int column, uint32_t percent, struct vgpu_instant since, uint64_t charged_ns);

/* Charge what dead processes left, at most 20 times a second. */
void vgpu_guesses_collect(struct vgpu_process *p, struct vgpu_instant now);

#endif
