/* devices.h - finds the device that a call is about. Devices are identified by UUID, never by index. */
#ifndef VGPU_DEVICES_H
#define VGPU_DEVICES_H

#include "process.h"

/* Return the device with this CUDA ordinal. Its UUID is read once. Return NULL if the driver does not give it. */
const struct vgpu_device *vgpu_device_of_ordinal(struct vgpu_process *p, const struct vgpu_cuda *cuda, CUdevice ordinal);

/* Store the ordinal of the current context's device. Return the driver's error. */
CUresult vgpu_current_ordinal(const struct vgpu_cuda *cuda, CUdevice *ordinal);

/* Return 1 for a device that does not exist, so that the driver can report the error. */
int vgpu_location_is_nowhere(const struct vgpu_cuda *cuda, int type, int id);

/* Find the device of a memory location: VGPU_NOWHERE for host memory. For unknown kinds of location it is the current
 * device, where the driver would put the memory if it accepted the call. */
CUresult vgpu_location_ordinal(const struct vgpu_cuda *cuda, int type, int id, CUdevice *ordinal);

/* Store the ordinal of a stream's device. Return the driver's error. */
CUresult vgpu_stream_ordinal(const struct vgpu_cuda *cuda, CUstream stream, CUdevice *ordinal);

/* Start NVML for this process, once. Return 0 if none can be started. */
int vgpu_devices_start_nvml(struct vgpu_process *p, const struct vgpu_nvml *nvml);

#endif
