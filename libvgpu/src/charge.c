#include "charge.h"

#include "devices.h"
#include "exports.h"
#include "ledger.h"
#include "authority.h"
#include "overhead.h"
#include "pools.h"

static int take(struct vgpu_charge *charge, uint64_t bytes, const char *uuid)
{
    struct vgpu_process *p = charge->process;
    return vgpu_ledger_reserve(p->region, charge->slot, &p->self, (unsigned)charge->column, bytes,
                               vgpu_budget(p, uuid, charge->ordinal));
}

CUresult vgpu_charge_begin(struct vgpu_charge *charge, const struct vgpu_cuda *cuda, CUdevice ordinal, uint64_t bytes)
{
    struct vgpu_process *p = vgpu_process();
    charge->cuda = cuda;
    charge->process = NULL;
    if (!p) {
        return CUDA_SUCCESS;
    }
    vgpu_overhead_look(p, cuda);
    const struct vgpu_device *device = vgpu_device_of_ordinal(p, cuda, ordinal);
    charge->slot = device && device->column >= 0 ? vgpu_process_slot(p) : NULL;
    if (!charge->slot) {
        return CUDA_ERROR_OUT_OF_MEMORY; /* memory that cannot be counted cannot be allowed */
    }
    charge->process = p;
    charge->ordinal = ordinal;
    charge->column = device->column;
    charge->bytes = vgpu_ledger_rounded(bytes);
    if (!take(charge, charge->bytes, device->uuid) &&
        !((vgpu_exports_reclaim(p) | vgpu_pools_squeeze(p, cuda)) && take(charge, charge->bytes, device->uuid))) {
        if (vgpu_budget(p, device->uuid, ordinal).total == VGPU_UNLIMITED) {
            vgpu_ledger_denied(p->region, (unsigned)device->column); /* otherwise there may be room in host memory */
        }
        charge->process = NULL;
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return CUDA_SUCCESS;
}

CUresult vgpu_charge_host(struct vgpu_charge *charge, const struct vgpu_cuda *cuda, uint64_t bytes)
{
    struct vgpu_process *p = vgpu_process();
    *charge = (struct vgpu_charge){.cuda = cuda, .ordinal = VGPU_NOWHERE, .column = VGPU_HOST};
    if (!p) {
        return CUDA_SUCCESS;
    }
    uint64_t limit = vgpu_host_limit(p);
    charge->slot = vgpu_process_slot(p);
    if (!charge->slot) {
        return limit == VGPU_UNLIMITED ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    }
    charge->bytes = vgpu_ledger_rounded(bytes);
    if (!vgpu_ledger_charge(p->region, charge->slot, &p->self, VGPU_HOST, charge->bytes, limit)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    charge->process = p;
    return CUDA_SUCCESS;
}

CUresult vgpu_charge_current(struct vgpu_charge *charge, const struct vgpu_cuda *cuda, uint64_t bytes)
{
    CUdevice ordinal;
    CUresult result = vgpu_current_ordinal(cuda, &ordinal);
    return result == CUDA_SUCCESS ? vgpu_charge_begin(charge, cuda, ordinal, bytes) : result;
}

CUresult vgpu_charge_correct(struct vgpu_charge *charge, uint64_t bytes)
{
    uint64_t real = vgpu_ledger_rounded(bytes);
    if (!charge->process || real == charge->bytes) {
        return CUDA_SUCCESS;
    }
    if (real < charge->bytes) {
        vgpu_ledger_release(charge->slot, (unsigned)charge->column, charge->bytes - real);
    } else if (!take(charge, real - charge->bytes, charge->process->devices[charge->ordinal].uuid)) {
        vgpu_ledger_denied(charge->process->region, (unsigned)charge->column);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    charge->bytes = real;
    return CUDA_SUCCESS;
}

int vgpu_is_oversubscribed(struct vgpu_process *p, const struct vgpu_cuda *cuda, CUdevice ordinal)
{
    const struct vgpu_device *device = vgpu_device_of_ordinal(p, cuda, ordinal);
    return device && vgpu_budget(p, device->uuid, ordinal).total != VGPU_UNLIMITED;
}

CUresult vgpu_charge_managed(struct vgpu_process *p, const struct vgpu_cuda *cuda, CUdevice ordinal, CUdeviceptr *out,
                             uint64_t bytes, unsigned flags)
{
    const struct vgpu_device *device = vgpu_device_of_ordinal(p, cuda, ordinal);
    struct vgpu_region_slot *slot = device && device->column >= 0 ? vgpu_process_slot(p) : NULL;
    uint64_t units = bytes > UINT64_MAX / 2 ? UINT64_MAX / 2 : (bytes + VGPU_MANAGED_UNIT - 1) / VGPU_MANAGED_UNIT;
    if (!slot || !cuda->cuMemAllocManaged || units > UINT32_MAX) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    uint64_t charged = units * VGPU_MANAGED_UNIT;
    unsigned column = (unsigned)device->column;
    if (!vgpu_ledger_reserve_managed(p->region, slot, &p->self, column, charged, vgpu_budget(p, device->uuid, ordinal).total)) {
        vgpu_ledger_denied(p->region, column);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    CUresult result = cuda->cuMemAllocManaged(out, bytes, flags);
    if (result == CUDA_SUCCESS) {
        CUcontext context = NULL;
        cuda->cuCtxGetCurrent(&context);
        struct vgpu_object object = {
            .handle = *out, .bytes = charged, .context = context, .column = device->column, .kind = VGPU_KIND_MANAGED};
        if (vgpu_charge_remember(p, cuda, object) == 0) {
            return CUDA_SUCCESS;
        }
        cuda->cuMemFree_v2(*out);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    vgpu_ledger_release_managed(slot, column, charged);
    return result;
}

void vgpu_charge_drop(struct vgpu_process *p, const struct vgpu_object *object)
{
    struct vgpu_region_slot *slot = vgpu_process_slot(p);
    switch (object->kind) {
    case VGPU_KIND_MANAGED:
        vgpu_ledger_release_managed(slot, (unsigned)object->column, object->bytes);
        break;
    case VGPU_KIND_EXPORT: /* freed with the memory itself; it gets here only if others may have it open */
        vgpu_ledger_add(slot, (unsigned)object->column, object->bytes);
        vgpu_export_freed(p, object->column, object->bytes);
        break;
    case VGPU_KIND_IMPORT:
        vgpu_import(p, -1);
        break;
    default:
        vgpu_ledger_release(slot, (unsigned)object->column, object->bytes);
    }
}

void vgpu_charge_displaced(struct vgpu_process *p, const struct vgpu_cuda *cuda, const struct vgpu_object *old)
{
    if (old->kind == VGPU_KIND_POOLED) {
        vgpu_pool_freed(p, cuda, (struct vgpu_pool *)(uintptr_t)old->context);
    } else {
        vgpu_charge_drop(p, old);
    }
}

int vgpu_charge_remember(struct vgpu_process *p, const struct vgpu_cuda *cuda, struct vgpu_object object)
{
    struct vgpu_object old;
    int known = vgpu_objects_replace(&p->objects, object, &old);
    if (known > 0) {
        vgpu_charge_displaced(p, cuda, &old);
    }
    return known < 0 ? -1 : 0;
}

static void free_address(const struct vgpu_cuda *cuda, uint64_t address)
{
    cuda->cuMemFree_v2(address);
}

CUresult vgpu_charge_end(struct vgpu_charge *charge, CUresult result, const CUdeviceptr *address)
{
    return vgpu_charge_keep(charge, result, VGPU_KIND_MEMORY, result == CUDA_SUCCESS ? *address : 0, free_address);
}

CUresult vgpu_charge_keep(struct vgpu_charge *charge, CUresult result, enum vgpu_kind kind, uint64_t handle,
                          void (*undo)(const struct vgpu_cuda *, uint64_t handle))
{
    if (!charge->process) {
        return result;
    }
    if (result == CUDA_SUCCESS) {
        CUcontext context = NULL;
        charge->cuda->cuCtxGetCurrent(&context);
        struct vgpu_object object = {
            .handle = handle, .bytes = charge->bytes, .context = context, .column = charge->column, .kind = kind};
        if (vgpu_charge_remember(charge->process, charge->cuda, object) == 0) {
            return CUDA_SUCCESS;
        }
        undo(charge->cuda, handle); /* no host memory for the record */
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    vgpu_ledger_release(charge->slot, (unsigned)charge->column, charge->bytes);
    return result;
}

int vgpu_charge_forget(struct vgpu_process *p, enum vgpu_kind kind, uint64_t handle, struct vgpu_object *out)
{
    return p && vgpu_objects_take(&p->objects, kind, handle, out);
}

void vgpu_charge_return(struct vgpu_process *p, const struct vgpu_object *object, CUresult result)
{
    if (result == CUDA_SUCCESS) {
        vgpu_charge_drop(p, object);
    } else if (vgpu_objects_add(&p->objects, *object)) {
        vgpu_world->log("vgpu: no memory to remember an allocation: it stays charged\n");
    }
}

CUresult vgpu_charge_free(struct vgpu_process *p, const struct vgpu_cuda *cuda, CUdeviceptr address,
                          CUresult (*call)(void *, CUdeviceptr), void *argument)
{
    struct vgpu_object object;
    if (!vgpu_charge_forget(p, VGPU_KIND_MEMORY, address, &object) &&
        !vgpu_charge_forget(p, VGPU_KIND_POOLED, address, &object) &&
        !vgpu_charge_forget(p, VGPU_KIND_MANAGED, address, &object)) {
        struct vgpu_object open;
        int was_open = vgpu_charge_forget(p, VGPU_KIND_IMPORT, address, &open); /* it belonged to another process's pool */
        CUresult unknown = call(argument, address);
        if (was_open) {
            return vgpu_import_closed(p, &open, unknown);
        }
        if (p && unknown == CUDA_SUCCESS && atomic_load_explicit(&p->graphs_known, memory_order_relaxed)) {
            vgpu_pools_reconcile(p, cuda); /* it may belong to a graph */
        }
        return unknown;
    }
    struct vgpu_object exported;
    int was_exported = object.kind != VGPU_KIND_MANAGED && atomic_load_explicit(&p->exports_known, memory_order_relaxed) &&
                       vgpu_charge_forget(p, VGPU_KIND_EXPORT, address, &exported);
    CUresult result = call(argument, address);
    if (was_exported && result == CUDA_SUCCESS && object.kind == VGPU_KIND_POOLED) {
        vgpu_export_freed_to_pool(p, cuda, (struct vgpu_pool *)(uintptr_t)object.context, exported.column, exported.bytes);
        return result;
    }
    if (was_exported && result == CUDA_SUCCESS) {
        vgpu_export_freed(p, object.column, object.bytes);
        return result;
    }
    if (was_exported && vgpu_objects_add(&p->objects, exported)) {
        vgpu_world->log("vgpu: no memory to remember an export\n");
    }
    if (object.kind == VGPU_KIND_POOLED && result == CUDA_SUCCESS) {
        vgpu_pool_freed(p, cuda, (struct vgpu_pool *)(uintptr_t)object.context);
    } else {
        vgpu_charge_return(p, &object, result);
    }
    return result;
}
