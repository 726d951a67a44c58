/* authority.h - how much of a device may be held, according to this process's source of limits (source.h). */
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

/* The same as a budget: an oversubscribed device's own memory may hold less than the limit. */
struct vgpu_budget vgpu_budget(struct vgpu_process *p, const char *uuid, int ordinal);

/* The cost of a context on a device according to the page; 0: nothing. */
uint64_t vgpu_context_price(struct vgpu_process *p, const char *uuid, int ordinal);

/* Bytes of page-locked host memory that this process's container may hold. */
uint64_t vgpu_host_limit(const struct vgpu_process *p);

/* The limits of a device's compute: cores, policy, ceiling. 0: no grant. */
int vgpu_limits_of_compute(struct vgpu_process *p, const char *uuid, int ordinal, struct vgpu_limits *out);

/* Return 1 if no device has a memory limit. */
int vgpu_limits_nothing(const struct vgpu_process *p);

#endif
