/* authority.h - what a device may hold, and which source decides it.
 *
 * The page at its fixed place is the authority. Only where that path does not exist, VGPU_LIMIT_PAGE and
 * VGPU_USAGE_REGION name other files (a node without mount namespaces). Only where neither exists, the stand-alone
 * settings CUDA_DEVICE_MEMORY_LIMIT and CUDA_DEVICE_MEMORY_LIMIT_<CUDA ordinal> hold: bytes, or with a suffix
 * k, m or g; 0 means no limit, and nonsense means 0 bytes; with them CUDA_HOST_MEMORY_LIMIT. So do CUDA_DEVICE_SM_LIMIT
 * and CUDA_DEVICE_SM_LIMIT_<ordinal>, percent of the device's time, and GPU_CORE_UTILIZATION_POLICY: default, force or
 * disable. Nothing in the environment weakens a page.
 */
#ifndef VGPU_AUTHORITY_H
#define VGPU_AUTHORITY_H

#include "ledger.h"
#include "page.h"
#include "process.h"

#define VGPU_FIXED_PAGE "/usr/local/vgpu/limits"
#define VGPU_FIXED_REGION "/usr/local/vgpu/usage/region"

/* Find the authority and map its files into `p`. */
void vgpu_authority_open(struct vgpu_process *p);

/* All of these read the page anew only where it has changed, for a UUID that lies in the process's table of devices.
 *
 * Bytes of a device this process's container may hold: 0 denies, VGPU_UNLIMITED does not limit. `ordinal` matters to
 * stand-alone settings only. */
uint64_t vgpu_limit(struct vgpu_process *p, const char *uuid, int ordinal);

/* The same as a budget: of an oversubscribed device less than the limit may lie in its own memory. */
struct vgpu_budget vgpu_budget(struct vgpu_process *p, const char *uuid, int ordinal);

/* What a context costs by the page on a device; 0: nothing. */
uint64_t vgpu_context_price(struct vgpu_process *p, const char *uuid, int ordinal);

/* Bytes of page-locked host memory this process's container may hold. */
uint64_t vgpu_host_limit(const struct vgpu_process *p);

/* The limits of a device's compute: cores, policy, ceiling. 0: nothing is granted. */
int vgpu_limits_of_compute(struct vgpu_process *p, const char *uuid, int ordinal, struct vgpu_limits *out);

/* 1 when no device at all has a memory limit. */
int vgpu_limits_nothing(const struct vgpu_process *p);

#endif
