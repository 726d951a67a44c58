/* authority.h - what a device may hold, by the source of limits that this process has (source.h). */
#ifndef VGPU_AUTHORITY_H
#define VGPU_AUTHORITY_H

#include "ledger.h"
#include "page.h"
#include "process.h"

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
