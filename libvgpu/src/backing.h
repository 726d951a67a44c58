/* backing.h - physical memory (cuMemCreate) and what still refers to it.
 *
 * The driver frees such memory when all its handles are released and all its mappings are gone, so this file counts
 * both. Imported memory is counted but not charged, because the process that exported it pays (exports.h). Everything
 * here runs under the process's lock `mappings`.
 */
#ifndef VGPU_BACKING_H
#define VGPU_BACKING_H

#include "process.h"

struct vgpu_backing {
    uint64_t references; /* handles, mappings and bindings */
    uint64_t bytes;
    int column;
    int is_exported; /* other processes may have it open */
    int is_imported; /* it belongs to another process */
};

/* Drop one reference. The last one returns the charge. */
void vgpu_backing_let_go(struct vgpu_process *p, struct vgpu_backing *backing);

/* Return the memory that a handle or a mapping refers to. */
struct vgpu_backing *vgpu_backing_of(const struct vgpu_object *object);

/* Add a handle, which must be released once more. Return 0, or -1 if there is no memory. */
int vgpu_backing_add_handle(struct vgpu_process *p, CUmemGenericAllocationHandle handle, struct vgpu_backing *backing);

/* Find the mapping that contains `address`. `address` need not be its start. Return 0 if there is none. */
int vgpu_backing_find_mapping(struct vgpu_process *p, const struct vgpu_cuda *cuda, uint64_t address, struct vgpu_object *out);

#endif
