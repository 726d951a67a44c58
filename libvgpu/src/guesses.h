/* guesses.h - launches that were charged by a guess and not measured yet, in the region, because their process may end
 * first.
 *
 * A process has an entry while such launches are under way; the entry holds the time of the first one. Another process
 * that finds the owner dead, or running another program, charges the time from then to now. In a loop that starts one
 * process after another this is only slightly more than the kernels can have run. After a pause it is more, so it is
 * bounded.
 */
#ifndef VGPU_GUESSES_H
#define VGPU_GUESSES_H

#include "process.h"

/* Record that launches on the device of this column have been under way since then, or, with a `percent` of 0, that
 * none is. Only one thread of the process may call this at a time. */
void vgpu_guess_write(struct vgpu_process *p, int column, uint32_t percent, struct vgpu_instant since, uint64_t charged_ns);

/* Charge what dead processes left behind. Does nothing if called more than 20 times a second. */
void vgpu_guesses_collect(struct vgpu_process *p, struct vgpu_instant now);

#endif
