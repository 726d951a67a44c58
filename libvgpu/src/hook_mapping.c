/* hook_mapping.c - physical memory and the addresses it is mapped at, with the reference that each call adds or drops.
 *
 * One lock covers the driver's call and the reference. The handle of released memory may at once be reused for
 * another thread's memory, and the two must not be confused.
 */
#include <stdlib.h>

#include "backing.h"
#include "devices.h"
#include "charge.h"
#include "exports.h"
#include "ledger.h"

CUresult cuMemCreate(CUmemGenericAllocationHandle *out, size_t bytes, const CUmemAllocationProp *prop, uint64_t flags)
{
    const struct vgpu_cuda *cuda = vgpu_world->cuda();
    struct vgpu_process *p = vgpu_process();
    struct vgpu_charge charge = {0};
    CUdevice ordinal = VGPU_NOWHERE;
    if (!cuda || !cuda->cuMemCreate) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    if (!p || !out || !bytes || !prop || vgpu_location_is_nowhere(cuda, prop->location_type, prop->location_id)) {
        return cuda->cuMemCreate(out, bytes, prop, flags);
    }
    CUresult result = vgpu_location_ordinal(cuda, prop->location_type, prop->location_id, &ordinal);
    struct vgpu_backing *backing = malloc(sizeof *backing);
    result = result != CUDA_SUCCESS ? result : backing ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    if (result == CUDA_SUCCESS) {
        result =
            ordinal == VGPU_NOWHERE ? vgpu_charge_host(&charge, cuda, bytes) : vgpu_charge_begin(&charge, cuda, ordinal, bytes);
    }
    if (result != CUDA_SUCCESS || !charge.process) {
        free(backing);
        return result == CUDA_SUCCESS ? cuda->cuMemCreate(out, bytes, prop, flags) : result;
    }
    *backing = (struct vgpu_backing){.bytes = charge.bytes, .column = charge.column};
    result = cuda->cuMemCreate(out, bytes, prop, flags);
    if (result == CUDA_SUCCESS) {
        vgpu_calm_take(&p->mappings);
        int failed = vgpu_backing_add_handle(p, *out, backing);
        vgpu_calm_drop(&p->mappings);
        if (!failed) {
            return CUDA_SUCCESS;
        }
        cuda->cuMemRelease(*out);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    vgpu_ledger_release(charge.slot, (unsigned)charge.column, charge.bytes);
    free(backing);
    return result;
}

CUresult cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle handle, int type, unsigned long long flags)
{
    const struct vgpu_cuda *cuda = vgpu_world->cuda();
    struct vgpu_process *p = vgpu_process();
    struct vgpu_object object;
    if (!cuda || !cuda->cuMemExportToShareableHandle) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    if (!p) {
        return cuda->cuMemExportToShareableHandle(out, handle, type, flags);
    }
    vgpu_calm_take(&p->mappings);
    CUresult result = cuda->cuMemExportToShareableHandle(out, handle, type, flags);
    if (result == CUDA_SUCCESS && vgpu_objects_find(&p->objects, VGPU_KIND_HANDLE, handle, &object)) {
        struct vgpu_backing *backing = vgpu_backing_of(&object);
        if (!backing->is_exported && !backing->is_imported && backing->column < (int)VGPU_MAX_DEVICES) {
            backing->is_exported = 1;
            vgpu_export(p, backing->column, backing->bytes);
        }
    }
    vgpu_calm_drop(&p->mappings);
    return result;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *out, void *what, int type)
{
    const struct vgpu_cuda *cuda = vgpu_world->cuda();
    struct vgpu_process *p = vgpu_process();
    struct vgpu_object known;
    if (!cuda || !cuda->cuMemImportFromShareableHandle) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    struct vgpu_backing *backing = p && out ? malloc(sizeof *backing) : NULL;
    if (!backing) {
        return p && out ? CUDA_ERROR_OUT_OF_MEMORY : cuda->cuMemImportFromShareableHandle(out, what, type);
    }
    *backing = (struct vgpu_backing){.is_imported = 1, .references = 1};
    vgpu_calm_take(&p->mappings);
    vgpu_import(p, 1); /* before it is opened */
    CUresult result = cuda->cuMemImportFromShareableHandle(out, what, type);
    if (result == CUDA_SUCCESS) {
        /* Memory allocated by this process may be imported under its old handle. */
        struct vgpu_backing *its =
            vgpu_objects_find(&p->objects, VGPU_KIND_HANDLE, *out, &known) ? vgpu_backing_of(&known) : backing;
        if (vgpu_backing_add_handle(p, *out, its)) {
            cuda->cuMemRelease(*out);
            result = CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    vgpu_backing_let_go(p, backing); /* unless a handle refers to it by now */
    vgpu_calm_drop(&p->mappings);
    return result;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    const struct vgpu_cuda *cuda = vgpu_world->cuda();
    struct vgpu_process *p = vgpu_process();
    struct vgpu_object object;
    if (!cuda || !cuda->cuMemRelease) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    if (!p) {
        return cuda->cuMemRelease(handle);
    }
    vgpu_calm_take(&p->mappings);
    CUresult result = cuda->cuMemRelease(handle);
    if (result == CUDA_SUCCESS && vgpu_objects_take(&p->objects, VGPU_KIND_HANDLE, handle, &object)) {
        if (--object.bytes) {
            vgpu_objects_add(&p->objects, object); /* in the place it just left, so it needs no memory */
        }
        vgpu_backing_let_go(p, vgpu_backing_of(&object));
    }
    vgpu_calm_drop(&p->mappings);
    return result;
}

CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle, uint64_t flags)
{
    const struct vgpu_cuda *cuda = vgpu_world->cuda();
    struct vgpu_process *p = vgpu_process();
    struct vgpu_object object, past;
    if (!cuda || !cuda->cuMemMap) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    if (!p) {
        return cuda->cuMemMap(address, bytes, offset, handle, flags);
    }
    vgpu_calm_take(&p->mappings);
    CUresult result = cuda->cuMemMap(address, bytes, offset, handle, flags);
    if (result == CUDA_SUCCESS && vgpu_objects_find(&p->objects, VGPU_KIND_HANDLE, handle, &object)) {
        struct vgpu_object mapping = {.handle = address, .bytes = bytes, .context = object.context, .kind = VGPU_KIND_MAPPING};
        vgpu_backing_of(&object)->references++;
        int known = vgpu_objects_replace(&p->objects, mapping, &past);
        if (known > 0) {
            vgpu_backing_let_go(p, vgpu_backing_of(&past)); /* unmapped by a call that no hook saw */
        } else if (known < 0) {
            cuda->cuMemUnmap(address, bytes);
            vgpu_backing_let_go(p, vgpu_backing_of(&object));
            result = CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    vgpu_calm_drop(&p->mappings);
    return result;
}

static void let_go(void *argument, const struct vgpu_object *mapping)
{
    vgpu_backing_let_go(argument, vgpu_backing_of(mapping));
}

CUresult cuMemUnmap(CUdeviceptr address, size_t bytes)
{
    const struct vgpu_cuda *cuda = vgpu_world->cuda();
    struct vgpu_process *p = vgpu_process();
    struct vgpu_object mapping;
    if (!cuda || !cuda->cuMemUnmap) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    if (!p) {
        return cuda->cuMemUnmap(address, bytes);
    }
    vgpu_calm_take(&p->mappings);
    CUresult result = cuda->cuMemUnmap(address, bytes);
    uint64_t at = 0;
    while (result == CUDA_SUCCESS && at < bytes && vgpu_objects_take(&p->objects, VGPU_KIND_MAPPING, address + at, &mapping)) {
        vgpu_backing_let_go(p, vgpu_backing_of(&mapping));
        at += mapping.bytes;
    }
    if (result == CUDA_SUCCESS && at < bytes) { /* mapped by a call without a hook; hooked mappings may follow */
        vgpu_objects_drop_range(&p->objects, VGPU_KIND_MAPPING, address + at, bytes - at, let_go, p);
    }
    vgpu_calm_drop(&p->mappings);
    return result;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *out, void *address)
{
    const struct vgpu_cuda *cuda = vgpu_world->cuda();
    struct vgpu_process *p = vgpu_process();
    struct vgpu_object known;
    if (!cuda || !cuda->cuMemRetainAllocationHandle) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    if (!p || !out) {
        return cuda->cuMemRetainAllocationHandle(out, address);
    }
    vgpu_calm_take(&p->mappings);
    CUresult result = cuda->cuMemRetainAllocationHandle(out, address);
    if (result == CUDA_SUCCESS && (vgpu_objects_find(&p->objects, VGPU_KIND_HANDLE, *out, &known) ||
                                   vgpu_backing_find_mapping(p, cuda, (uintptr_t)address, &known))) {
        if (vgpu_backing_add_handle(p, *out, vgpu_backing_of(&known))) {
            cuda->cuMemRelease(*out);
            result = CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    vgpu_calm_drop(&p->mappings);
    return result;
}
