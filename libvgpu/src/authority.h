/* authority.h - the limits of this process, whichever source they come from (source.h). */
#ifndef VGPU_AUTHORITY_H
#define VGPU_AUTHORITY_H

#include "ledger.h"
#include "page.h"
#include "process.h"

/* These functions read the page again only when it has changed. `uuid` must point into the process's table of devices.
 *
 * Return the bytes of a device that the container may hold: 0 denies, VGPU_UNLIMITED sets no limit. `ordinal` is used
 * only with stand-alone settings.
 */
uint64_t vgpu_limit(struct vgpu_process *p, const char *uuid, int ordinal);

/* Return the same as a budget: on an oversubscribed device, less than the limit may be in the device's own memory. */
struct vgpu_budget vgpu_budget(struct vgpu_process *p, const char *uuid, int ordinal);

/* Return the cost of a context on a device according to the page, or 0 if the page does not say. */
uint64_t vgpu_context_price(struct vgpu_process *p, const char *uuid, int ordinal);

/* Return how many bytes of page-locked host memory the container may hold. */
uint64_t vgpu_host_limit(const struct vgpu_process *p);

/* Store the compute limits of a device: share, policy and ceiling. Return 0 if the device is not granted. */
int vgpu_limits_of_compute(struct vgpu_process *p, const char *uuid, int ordinal, struct vgpu_limits *out);

/* Return 1 if no device has a memory limit. */
int vgpu_limits_nothing(const struct vgpu_process *p);

#endif
