/* view.h - the slice of a device that this container sees. */
#ifndef VGPU_VIEW_H
#define VGPU_VIEW_H

#include "process.h"

struct vgpu_view {
    uint64_t total, used, free; /* bytes */
};

/* Return the slice of a device of `total` bytes, of which `free` are free (pass `total` if that is not known). Charges
 * of dead processes are given back first, at most every 50 ms. */
struct vgpu_view vgpu_view_of(struct vgpu_process *p, const char *uuid, int ordinal, uint64_t total, uint64_t free);

/* Do the same for an NVML handle. The result is empty if NVML does not say which device it is. */
struct vgpu_view vgpu_view_of_handle(struct vgpu_process *p, const struct vgpu_nvml *nvml, nvmlDevice_t device, uint64_t total,
                                     uint64_t free);

#endif
