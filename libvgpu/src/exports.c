#include "exports.h"

#include "ledger.h"

/* The slot only has a rounded amount, so the exact one is kept here. If threads change it at the same time, the last
 * write wins. */
static void note(struct vgpu_process *p, int column)
{
    uint64_t seen;
    do {
        seen = atomic_load(&p->exported[column]);
        vgpu_ledger_exported(vgpu_process_slot(p), (unsigned)column, seen);
    } while (atomic_load(&p->exported[column]) != seen);
}

void vgpu_export(struct vgpu_process *p, int column, uint64_t bytes)
{
    atomic_fetch_add(&p->exported[column], bytes);
    note(p, column);
}

static void unexport(struct vgpu_process *p, int column, uint64_t bytes)
{
    uint64_t seen = atomic_load(&p->exported[column]);
    while (!atomic_compare_exchange_weak(&p->exported[column], &seen, seen > bytes ? seen - bytes : 0)) {
    }
    note(p, column);
}

static void release(struct vgpu_process *p, int column, uint64_t bytes)
{
    unexport(p, column, bytes);
    vgpu_ledger_release(vgpu_process_slot(p), (unsigned)column, bytes);
}

void vgpu_export_freed(struct vgpu_process *p, int column, uint64_t bytes)
{
    if (!vgpu_ledger_imports(p->region)) {
        release(p, column, bytes);
        return;
    }
    atomic_fetch_add(&p->orphans[column], bytes);
    atomic_store(&p->has_orphans, 1);
}

void vgpu_export_freed_to_pool(struct vgpu_process *p, const struct vgpu_cuda *cuda, struct vgpu_pool *pool, int column,
                               uint64_t bytes)
{
    struct vgpu_region_slot *slot = vgpu_process_slot(p);
    unexport(p, column, bytes);
    if (!vgpu_ledger_imports(p->region)) {
        vgpu_pool_freed(p, cuda, pool);
        return;
    }
    vgpu_ledger_add(slot, (unsigned)column, bytes); /* the bytes now count for the other processes, unless the pool keeps them */
    uint64_t let_go = vgpu_pool_freed(p, cuda, pool), kept = bytes > let_go ? bytes - let_go : 0;
    vgpu_ledger_release(slot, (unsigned)column, kept);
    if (bytes > kept) {
        vgpu_export(p, column, bytes - kept);
        vgpu_export_freed(p, column, bytes - kept);
    }
}

void vgpu_import(struct vgpu_process *p, int change)
{
    struct vgpu_region_slot *slot = vgpu_process_slot(p);
    if (slot) {
        vgpu_ledger_import(slot, change);
    }
}

CUresult vgpu_import_closed(struct vgpu_process *p, const struct vgpu_object *open, CUresult result)
{
    if (result == CUDA_SUCCESS) {
        vgpu_import(p, -1);
        vgpu_exports_reclaim(p);
    } else {
        vgpu_objects_add(&p->objects, *open);
    }
    return result;
}

int vgpu_exports_reclaim(struct vgpu_process *p)
{
    int shrank = 0;
    if (!atomic_load_explicit(&p->has_orphans, memory_order_relaxed) || vgpu_ledger_imports(p->region)) {
        return 0;
    }
    atomic_store(&p->has_orphans, 0);
    for (int i = 0; i < (int)VGPU_MAX_DEVICES; i++) {
        uint64_t bytes = atomic_exchange(&p->orphans[i], 0);
        if (bytes) {
            release(p, i, bytes);
            shrank = 1;
        }
    }
    return shrank;
}
