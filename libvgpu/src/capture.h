/* capture.h - recordings of graphs, which must never notice us. The inside of throttle.h.
 *
 * Nothing that is being recorded runs, so it costs nothing and must not be held up. Our own calls are made in the
 * relaxed mode, and no event of ours is put into a stream that is being recorded, nor into the legacy stream while
 * another is.
 */
#ifndef VGPU_CAPTURE_H
#define VGPU_CAPTURE_H

#include "throttle_state.h"

enum vgpu_recording { VGPU_NOT_RECORDED, VGPU_RECORDED, VGPU_PERHAPS_RECORDED };

/* Return 1 if the launch's stream is being captured. */
enum vgpu_recording vgpu_capture_of(const struct vgpu_launch *launch);

/* Allow the thread's calls while anything is captured; return the mode to restore. */
int vgpu_capture_relax(const struct vgpu_cuda *cuda);
void vgpu_capture_restore(const struct vgpu_cuda *cuda, int mode);

#endif
