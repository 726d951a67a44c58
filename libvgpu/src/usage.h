/* usage.h - NVML's figures of the use of a device: by this container, and by others.
 *
 * NVML counts processes by their PIDs on the host. The agent writes them into the slots of the region; where there is
 * none, a PID of the first namespace is one already.
 */
#ifndef VGPU_USAGE_H
#define VGPU_USAGE_H

#include "process.h"
#include "calibrate.h"

/* For throttle.h; `owner` is the process. */
int vgpu_usage_measure(void *owner, int ordinal, uint64_t since_us, struct vgpu_measurement *out);

/* Slot of the container's process with this PID on the host, -1 when it is not of this container. */
int vgpu_usage_slot(const struct vgpu_process *p, uint32_t host_pid);

/* Does every process of this container have a PID that NVML knows? */
int vgpu_usage_is_known(const struct vgpu_process *p);

/* PID on the host of the container's process with this PID of its own; 0: there is none, or the agent has not written it. */
uint32_t vgpu_usage_host_pid(const struct vgpu_process *p, uint32_t pid);

#endif
