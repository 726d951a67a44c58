/* usage.h - NVML's figures of the use of a device: by this container, and by others.
 *
 * Drivers differ in the PIDs by which their calls name processes: those of the host, which the agent writes into the slots of the
 * region, or those of the caller's namespace; lists then leave out all other processes, and may show no memory. Which it is can
 * differ from call to call, so each answer is judged by itself: a process finds itself and its siblings in it.
 */
#ifndef VGPU_USAGE_H
#define VGPU_USAGE_H

#include "process.h"
#include "calibrate.h"

/* For throttle.h; `owner` is the process. */
int vgpu_usage_measure(void *owner, int ordinal, uint64_t since_us, struct vgpu_measurement *out);

/* The PIDs of an answer of NVML. */
enum vgpu_pids { VGPU_PIDS_UNKNOWN, VGPU_PIDS_HOST, VGPU_PIDS_OWN };

/* Judge an answer by its PIDs: the first of `count`, which are `stride` bytes apart. */
enum vgpu_pids vgpu_usage_pids(const struct vgpu_process *p, const unsigned *first, unsigned count, size_t stride);

/* Return the slot of the container's process that an answer names with this PID; -1 if it is not of this container. */
int vgpu_usage_slot(const struct vgpu_process *p, uint32_t pid, enum vgpu_pids pids);

/* Does every process of this container have a PID in such answers? */
int vgpu_usage_is_known(const struct vgpu_process *p, enum vgpu_pids pids);

/* PID on the host of the container's process with this PID of its own; 0: there is none, or the agent has not written it. */
uint32_t vgpu_usage_host_pid(const struct vgpu_process *p, uint32_t pid);

/* Does the agent know of no other process on the device? */
int vgpu_usage_is_alone(const struct vgpu_process *p, const struct vgpu_device *device);

/* Bytes of a device that the driver shows of this process, and that all processes hold. 0 when it does not tell. */
int vgpu_usage_memory(struct vgpu_process *p, const struct vgpu_device *device, uint64_t *out);
int vgpu_usage_device(struct vgpu_process *p, const struct vgpu_device *device, uint64_t *used);

#endif
