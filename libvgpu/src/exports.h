/* exports.h - memory that other processes may have open.
 *
 * Its maker pays. Exported memory that its maker frees may still be open in other processes, which the driver does not report: it
 * stays charged to its maker until no process of the container has anything open any more; so does what a dead process
 * had exported (ledger.h). Opening is counted, not charged.
 */
#ifndef VGPU_EXPORTS_H
#define VGPU_EXPORTS_H

#include "pools.h"
#include "process.h"

/* From now on others may open `bytes` that are charged to us. */
void vgpu_export(struct vgpu_process *p, int column, uint64_t bytes);

/* The driver has freed them. */
void vgpu_export_freed(struct vgpu_process *p, int column, uint64_t bytes);

/* The same for an allocation from a pool, which may or may not keep it. */
void vgpu_export_freed_to_pool(struct vgpu_process *p, const struct vgpu_cuda *cuda, struct vgpu_pool *pool, int column,
                               uint64_t bytes);

/* We opened or closed something of another process. */
void vgpu_import(struct vgpu_process *p, int change);

/* The driver was asked to close what was remembered as open, with this result. */
CUresult vgpu_import_closed(struct vgpu_process *p, const struct vgpu_object *open, CUresult result);

/* Give back what was exported and freed, if no process has anything open. 1 when any charge shrank. */
int vgpu_exports_reclaim(struct vgpu_process *p);

#endif
