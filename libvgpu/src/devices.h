/* devices.h - which device a call concerns, identified by UUID, never by index. */
#ifndef VGPU_DEVICES_H
#define VGPU_DEVICES_H

#include "process.h"

/* The device of a CUDA ordinal; its UUID is read once. NULL if the driver does not return it. */
const struct vgpu_device *vgpu_device_of_ordinal(struct vgpu_process *p, const struct vgpu_cuda *cuda, CUdevice ordinal);

/* Ordinal of the current context's device; returns the driver's error. */
CUresult vgpu_current_ordinal(const struct vgpu_cuda *cuda, CUdevice *ordinal);

/* Return 1 for a device that does not exist; the driver reports the error. */
int vgpu_location_is_nowhere(const struct vgpu_cuda *cuda, int type, int id);

/* Where memory lies that is asked for by location: VGPU_NOWHERE for host memory; the current device for kinds of
 * location that are not known, which is where the driver would put it if anywhere. */
CUresult vgpu_location_ordinal(const struct vgpu_cuda *cuda, int type, int id, CUdevice *ordinal);

/* Ordinal of the device of a stream. */
CUresult vgpu_stream_ordinal(const struct vgpu_cuda *cuda, CUstream stream, CUdevice *ordinal);

/* Start NVML for this process, once. Return 0 if none can be started. */
int vgpu_devices_start_nvml(struct vgpu_process *p, const struct vgpu_nvml *nvml);

#endif
