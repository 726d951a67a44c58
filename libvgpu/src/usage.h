/* usage.h - NVML's figures for the use of a device, by this container and by others.
 *
 * Drivers differ in how their calls name processes. Some use PIDs of the host, which the agent writes into the slots of
 * the region. Others use PIDs of the caller's namespace; their lists then omit all other processes, and may show no
 * memory. One driver may do both in different calls, so each answer is judged by itself: the process looks for itself
 * and for its siblings in it.
 */
#ifndef VGPU_USAGE_H
#define VGPU_USAGE_H

#include "process.h"
#include "calibrate.h"

/* The vgpu_measure function of throttle.h. `owner` is the process. */
int vgpu_usage_measure(void *owner, int ordinal, uint64_t since_us, struct vgpu_measurement *out);

/* How an answer of NVML names processes. */
enum vgpu_pids { VGPU_PIDS_UNKNOWN, VGPU_PIDS_HOST, VGPU_PIDS_OWN };

/* Find out how an answer names processes. `first` points to the first of `count` PIDs, which are `stride` bytes apart. */
enum vgpu_pids vgpu_usage_pids(const struct vgpu_process *p, const unsigned *first, unsigned count, size_t stride);

/* Return the slot of the process that an answer names by this PID, or -1 if it does not belong to this container. */
int vgpu_usage_slot(const struct vgpu_process *p, uint32_t pid, enum vgpu_pids pids);

/* Return 1 if such answers can name every process of this container. */
int vgpu_usage_is_known(const struct vgpu_process *p, enum vgpu_pids pids);

/* Return the host PID of the container's process with this PID, or 0 if there is none or the agent has not written it. */
uint32_t vgpu_usage_host_pid(const struct vgpu_process *p, uint32_t pid);

/* Return 1 if the agent says that no other process uses the device. */
int vgpu_usage_is_alone(const struct vgpu_process *p, const struct vgpu_device *device);

/* Store how many bytes of a device the driver shows for this process and for all processes. Return 0 if it does not say. */
int vgpu_usage_memory(struct vgpu_process *p, const struct vgpu_device *device, uint64_t *out);
int vgpu_usage_device(struct vgpu_process *p, const struct vgpu_device *device, uint64_t *used);

#endif
