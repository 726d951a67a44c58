#include "capture.h"

int vgpu_capture_relax(const struct vgpu_cuda *cuda)
{
    int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    if (cuda->cuThreadExchangeStreamCaptureMode) {
        cuda->cuThreadExchangeStreamCaptureMode(&mode);
    }
    return mode;
}

void vgpu_capture_restore(const struct vgpu_cuda *cuda, int mode)
{
    if (cuda->cuThreadExchangeStreamCaptureMode) {
        cuda->cuThreadExchangeStreamCaptureMode(&mode);
    }
}

enum vgpu_recording vgpu_capture_of(const struct vgpu_launch *l)
{
    int status = 0;
    if (!l->cuda->cuStreamIsCapturing) {
        return VGPU_NOT_RECORDED; /* this driver has no captures */
    }
    CUresult result = l->cuda->cuStreamIsCapturing(l->stream, &status);
    return result != CUDA_SUCCESS ? VGPU_PERHAPS_RECORDED : status ? VGPU_RECORDED : VGPU_NOT_RECORDED;
}
