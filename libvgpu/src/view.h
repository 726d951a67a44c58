/* view.h - the slice of a device that this container sees. */
#ifndef VGPU_VIEW_H
#define VGPU_VIEW_H

#include "process.h"

struct vgpu_view {
    uint64_t total, used, free; /* bytes */
};

/* The slice of a device that really has `total` bytes of which `free` are free (pass `total` where that is not
 * known). Charges of dead processes are taken back first, at most every 50 ms. */
struct vgpu_view vgpu_view_of(struct vgpu_process *p, const char *uuid, int ordinal, uint64_t total, uint64_t free);

/* The same of the device behind a handle of NVML; nothing when NVML does not report which device that is. */
struct vgpu_view vgpu_view_of_handle(struct vgpu_process *p, const struct vgpu_nvml *nvml, nvmlDevice_t device, uint64_t total,
                                     uint64_t free);

#endif
