#include "view.h"

#include "ledger.h"
#include "authority.h"
#include "region.h"

#define REAP_EVERY_NS UINT64_C(50000000)

static void reap_sometimes(struct vgpu_process *p)
{
    struct vgpu_instant now = vgpu_world->about_now(), last = atomic_load_explicit(&p->reaped, memory_order_relaxed);
    int due = !last.ns || (vgpu_is_before(last, now) && vgpu_between(last, now) >= REAP_EVERY_NS);
    if (due && atomic_compare_exchange_strong(&p->reaped, &last, now)) {
        vgpu_ledger_reap(p->region, &p->self);
    }
}

struct vgpu_view vgpu_view_of(struct vgpu_process *p, const char *uuid, int ordinal, uint64_t total, uint64_t free)
{
    struct vgpu_view view = {0};
    vgpu_process_check(p, vgpu_world->about_now());
    struct vgpu_budget budget = vgpu_budget(p, uuid, ordinal);
    int oversubscribed = budget.total != VGPU_UNLIMITED;
    uint64_t limit = oversubscribed ? budget.total : budget.device;
    if (!limit) {
        return view;
    }
    if (limit == VGPU_UNLIMITED) {
        return (struct vgpu_view){.total = total, .used = total - (free < total ? free : total), .free = free};
    }
    reap_sometimes(p);
    int listed = ordinal >= 0 && ordinal < (int)VGPU_MAX_DEVICES && uuid == p->devices[ordinal].uuid;
    int column = listed ? p->devices[ordinal].column : vgpu_region_column(p->region, uuid);
    view.total = limit < total || oversubscribed ? limit : total;
    view.used = column >= 0 ? vgpu_ledger_used(p->region, (unsigned)column) : 0;
    view.used += column >= 0 ? vgpu_ledger_managed(p->region, (unsigned)column) : 0;
    view.used = view.used < view.total ? view.used : view.total;
    view.free = view.total - view.used;
    view.free = view.free < free || oversubscribed ? view.free : free;
    return view;
}

struct vgpu_view vgpu_view_of_handle(struct vgpu_process *p, const struct vgpu_nvml *nvml, nvmlDevice_t device, uint64_t total,
                                     uint64_t free)
{
    char uuid[VGPU_UUID_BYTES + 32];
    unsigned index = 0;
    if (!nvml->nvmlDeviceGetUUID || nvml->nvmlDeviceGetUUID(device, uuid, VGPU_UUID_BYTES) != NVML_SUCCESS) {
        return (struct vgpu_view){0};
    }
    uuid[VGPU_UUID_BYTES - 1] = '\0';
    /* Stand-alone settings number the devices; here NVML's index stands for the CUDA ordinal. */
    int ordinal = p->authority == VGPU_ENV && nvml->nvmlDeviceGetIndex && nvml->nvmlDeviceGetIndex(device, &index) == NVML_SUCCESS
                      ? (int)index
                      : -1;
    return vgpu_view_of(p, uuid, ordinal, total, free);
}
