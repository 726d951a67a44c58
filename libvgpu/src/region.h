/* region.h - the header of the usage region and its columns. The slots belong to ledger.h. */
#ifndef VGPU_REGION_H
#define VGPU_REGION_H

#include "vgpu_abi.h"

/* Make a zero-filled mapping a region, or check that it is one. 0, or -1 when it is something else. Any number
 * of processes may do this at once: they all write the same values. */
int vgpu_region_prepare(struct vgpu_region *region);

/* Column of a device, created if new; -1 if all are taken by other devices. */
int vgpu_region_column(struct vgpu_region *region, const char *uuid);

#endif
