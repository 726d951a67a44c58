/* backing.h - physical memory, for as long as anything refers to it.
 *
 * The driver frees such memory when its handles are released and all its mappings are gone, so both are counted. What was
 * imported is counted, not charged: who exported it pays (exports.h). All of it under the lock `mappings` of the process.
 */
#ifndef VGPU_BACKING_H
#define VGPU_BACKING_H

#include "process.h"

struct vgpu_backing {
    uint64_t references; /* handles to be released, mappings, bindings */
    uint64_t bytes;
    int column;
    int is_exported; /* other processes may have it open */
    int is_imported; /* another process's */
};

/* Drop one reference; the last one returns the memory's charge. */
void vgpu_backing_let_go(struct vgpu_process *p, struct vgpu_backing *backing);

/* The memory that a handle or a mapping refers to. */
struct vgpu_backing *vgpu_backing_of(const struct vgpu_object *object);

/* One more release of `handle` is due. 0, or -1 if out of memory. */
int vgpu_backing_add_handle(struct vgpu_process *p, CUmemGenericAllocationHandle handle, struct vgpu_backing *backing);

/* The mapping that `address` lies in: where it is not the start, the start is the driver's. 0 when there is none. */
int vgpu_backing_find_mapping(struct vgpu_process *p, const struct vgpu_cuda *cuda, uint64_t address, struct vgpu_object *out);

#endif
