/* capture.h - detects graph captures, which must not notice this library. Internal to throttle.h.
 *
 * A launch that is captured does not run, so it costs nothing and must not wait. Our own driver calls are made in
 * relaxed mode. We never record an event into a stream that is being captured, nor into the legacy stream while another
 * stream is.
 */
#ifndef VGPU_CAPTURE_H
#define VGPU_CAPTURE_H

#include "throttle_state.h"

enum vgpu_recording { VGPU_NOT_RECORDED, VGPU_RECORDED, VGPU_PERHAPS_RECORDED };

/* Return whether the launch's stream is being captured; VGPU_PERHAPS_RECORDED if the driver cannot tell. */
enum vgpu_recording vgpu_capture_of(const struct vgpu_launch *launch);

/* Allow this thread's calls while something is captured. Return the previous mode, which must be restored. */
int vgpu_capture_relax(const struct vgpu_cuda *cuda);
void vgpu_capture_restore(const struct vgpu_cuda *cuda, int mode);

#endif
