#include "backing.h"

#include <stdlib.h>

#include "exports.h"
#include "ledger.h"

void vgpu_backing_let_go(struct vgpu_process *p, struct vgpu_backing *backing)
{
    if (--backing->references) {
        return;
    }
    if (backing->is_imported) {
        vgpu_import(p, -1);
        vgpu_exports_reclaim(p);
    } else if (backing->is_exported) {
        vgpu_export_freed(p, backing->column, backing->bytes);
    } else {
        vgpu_ledger_release(vgpu_process_slot(p), (unsigned)backing->column, backing->bytes);
    }
    free(backing);
}

struct vgpu_backing *vgpu_backing_of(const struct vgpu_object *object)
{
    return (struct vgpu_backing *)(uintptr_t)object->context;
}

int vgpu_backing_add_handle(struct vgpu_process *p, CUmemGenericAllocationHandle handle, struct vgpu_backing *backing)
{
    struct vgpu_object object = {.handle = handle, .kind = VGPU_KIND_HANDLE};
    vgpu_objects_find(&p->objects, VGPU_KIND_HANDLE, handle, &object);
    object.bytes++;
    object.context = backing;
    if (vgpu_objects_add(&p->objects, object)) {
        return -1;
    }
    backing->references++;
    return 0;
}

int vgpu_backing_find_mapping(struct vgpu_process *p, const struct vgpu_cuda *cuda, uint64_t address, struct vgpu_object *out)
{
    CUdeviceptr start = 0;
    size_t bytes = 0;
    if (vgpu_objects_find(&p->objects, VGPU_KIND_MAPPING, address, out)) {
        return 1;
    }
    return cuda->cuMemGetAddressRange_v2 && cuda->cuMemGetAddressRange_v2(&start, &bytes, address) == CUDA_SUCCESS &&
           vgpu_objects_find(&p->objects, VGPU_KIND_MAPPING, start, out);
}
