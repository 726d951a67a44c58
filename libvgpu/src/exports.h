/* exports.h - memory that other processes may have open.
 *
 * The exporting process pays for it. If it frees such memory, another process may still have it open, and the driver
 * does not say so. The memory therefore stays charged to the exporter until no process of the container has anything
 * open. The same holds for what a dead process had exported (ledger.h). Opening memory is counted but not charged.
 */
#ifndef VGPU_EXPORTS_H
#define VGPU_EXPORTS_H

#include "pools.h"
#include "process.h"

/* Note that other processes may now open `bytes` that are charged to this one. */
void vgpu_export(struct vgpu_process *p, int column, uint64_t bytes);

/* Note that the driver has freed them. */
void vgpu_export_freed(struct vgpu_process *p, int column, uint64_t bytes);

/* Do the same for an allocation from a pool, which may keep the memory. */
void vgpu_export_freed_to_pool(struct vgpu_process *p, const struct vgpu_cuda *cuda, struct vgpu_pool *pool, int column,
                               uint64_t bytes);

/* Count that this process opened (1) or closed (-1) memory of another one. */
void vgpu_import(struct vgpu_process *p, int change);

/* Update the count after the driver was asked to close something, and return its result. */
CUresult vgpu_import_closed(struct vgpu_process *p, const struct vgpu_object *open, CUresult result);

/* Give back the charge of what was exported and freed, if no process has anything open. Return 1 if any charge shrank. */
int vgpu_exports_reclaim(struct vgpu_process *p);

#endif
