/* region.h - the header and the columns of the usage region. For its slots see ledger.h. */
#ifndef VGPU_REGION_H
#define VGPU_REGION_H

#include "vgpu_abi.h"

/* Write the header of a zero-filled region, or check the header of one in use. Return 0, or -1 if it is something else.
 * Several processes may do this at the same time, because they all write the same values. */
int vgpu_region_prepare(struct vgpu_region *region);

/* Return the column of a device, adding it if necessary, or -1 if other devices have taken all columns. */
int vgpu_region_column(struct vgpu_region *region, const char *uuid);

#endif
