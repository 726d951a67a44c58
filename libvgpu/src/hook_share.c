/* hook_share.c - memory that one process of a container opens from another. Physical memory: hook_mapping.c. */
#include "charge.h"
#include "ledger.h"
#include "exports.h"
#include "pools.h"

/* From now on other processes may have the memory at `address` open. */
static CUresult exported(struct vgpu_process *p, const struct vgpu_cuda *cuda, enum vgpu_kind kind, CUdeviceptr address)
{
    struct vgpu_object memory, known;
    CUresult result = CUDA_SUCCESS;
    CUdeviceptr start = address;
    size_t bytes = 0;
    if (cuda->cuMemGetAddressRange_v2 && cuda->cuMemGetAddressRange_v2(&start, &bytes, address) != CUDA_SUCCESS) {
        start = address;
    }
    vgpu_calm_take(&p->mappings);
    if (vgpu_objects_find(&p->objects, kind, start, &memory) &&
        !vgpu_objects_find(&p->objects, VGPU_KIND_EXPORT, start, &known)) {
        known = memory;
        known.kind = VGPU_KIND_EXPORT;
        if (kind == VGPU_KIND_POOLED) { /* only its pool is charged */
            known.column = p->devices[((struct vgpu_pool *)(uintptr_t)memory.context)->ordinal].column;
            known.bytes = vgpu_ledger_rounded(bytes);
        }
        if (vgpu_objects_add(&p->objects, known) == 0) {
            atomic_store(&p->exports_known, 1);
            vgpu_export(p, known.column, known.bytes);
        } else {
            result = CUDA_ERROR_OUT_OF_MEMORY; /* the program does not use the handle after an error */
        }
    }
    vgpu_calm_drop(&p->mappings);
    return result;
}

CUresult cuIpcGetMemHandle(CUipcMemHandle *out, CUdeviceptr address)
{
    const struct vgpu_cuda *cuda = vgpu_world->cuda();
    struct vgpu_process *p = vgpu_process();
    if (!cuda || !cuda->cuIpcGetMemHandle) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    CUresult result = cuda->cuIpcGetMemHandle(out, address);
    return p && result == CUDA_SUCCESS ? exported(p, cuda, VGPU_KIND_MEMORY, address) : result;
}

CUresult cuMemPoolExportPointer(CUmemPoolPtrExportData *out, CUdeviceptr address)
{
    const struct vgpu_cuda *cuda = vgpu_world->cuda();
    struct vgpu_process *p = vgpu_process();
    if (!cuda || !cuda->cuMemPoolExportPointer) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    CUresult result = cuda->cuMemPoolExportPointer(out, address);
    return p && result == CUDA_SUCCESS ? exported(p, cuda, VGPU_KIND_POOLED, address) : result;
}

/* Count it before it is opened, so that it is never open without being counted. */
static CUresult opened(struct vgpu_process *p, const struct vgpu_cuda *cuda, CUdeviceptr *out, CUresult result)
{
    if (result == CUDA_SUCCESS) {
        CUcontext context = NULL;
        cuda->cuCtxGetCurrent(&context);
        struct vgpu_object open = {.handle = *out, .context = context, .kind = VGPU_KIND_IMPORT};
        if (vgpu_objects_add(&p->objects, open)) {
            vgpu_world->log("vgpu: no memory to remember what was opened: it counts as open until the process ends\n");
        }
    } else {
        vgpu_import(p, -1);
    }
    return result;
}

static CUresult open_it(CUresult (*real)(CUdeviceptr *, CUipcMemHandle, unsigned), CUdeviceptr *out, CUipcMemHandle handle,
                        unsigned flags)
{
    struct vgpu_process *p = vgpu_process();
    if (!p || !out) {
        return real(out, handle, flags);
    }
    vgpu_import(p, 1);
    return opened(p, vgpu_world->cuda(), out, real(out, handle, flags));
}

/* It is closed by freeing it: charge.h. */
CUresult cuMemPoolImportPointer(CUdeviceptr *out, CUmemoryPool pool, CUmemPoolPtrExportData *what)
{
    const struct vgpu_cuda *cuda = vgpu_world->cuda();
    struct vgpu_process *p = vgpu_process();
    if (!cuda || !cuda->cuMemPoolImportPointer) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    if (!p || !out) {
        return cuda->cuMemPoolImportPointer(out, pool, what);
    }
    vgpu_import(p, 1);
    return opened(p, cuda, out, cuda->cuMemPoolImportPointer(out, pool, what));
}

CUresult cuIpcOpenMemHandle(CUdeviceptr *out, CUipcMemHandle handle, unsigned flags)
{
    const struct vgpu_cuda *cuda = vgpu_world->cuda();
    return cuda && cuda->cuIpcOpenMemHandle ? open_it(cuda->cuIpcOpenMemHandle, out, handle, flags) : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *out, CUipcMemHandle handle, unsigned flags)
{
    const struct vgpu_cuda *cuda = vgpu_world->cuda();
    return cuda && cuda->cuIpcOpenMemHandle_v2 ? open_it(cuda->cuIpcOpenMemHandle_v2, out, handle, flags)
                                               : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult cuIpcCloseMemHandle(CUdeviceptr address)
{
    const struct vgpu_cuda *cuda = vgpu_world->cuda();
    struct vgpu_process *p = vgpu_process();
    struct vgpu_object open;
    if (!cuda || !cuda->cuIpcCloseMemHandle) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    int was_known = p && vgpu_objects_take(&p->objects, VGPU_KIND_IMPORT, address, &open);
    CUresult result = cuda->cuIpcCloseMemHandle(address);
    return was_known ? vgpu_import_closed(p, &open, result) : result;
}
