/* hook_nvml.c - NVML's queries of memory and processes, answered for the slice and this container's processes. */
#include <limits.h>
#include <stdatomic.h>

#include "ledger.h"
#include "region.h"
#include "view.h"

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *out)
{
    const struct vgpu_nvml *nvml = vgpu_world->nvml();
    struct vgpu_process *p = vgpu_process_checked();
    if (!nvml || !nvml->nvmlDeviceGetMemoryInfo) {
        return NVML_ERROR_UNINITIALIZED;
    }
    nvmlReturn_t result = nvml->nvmlDeviceGetMemoryInfo(device, out);
    if (result == NVML_SUCCESS && p) {
        struct vgpu_view view = vgpu_view_of_handle(p, nvml, device, out->total, out->free);
        *out = (nvmlMemory_t){.total = view.total, .used = view.used, .free = view.total - view.used};
    }
    return result;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *out)
{
    const struct vgpu_nvml *nvml = vgpu_world->nvml();
    struct vgpu_process *p = vgpu_process_checked();
    if (!nvml || !nvml->nvmlDeviceGetMemoryInfo_v2) {
        return NVML_ERROR_UNINITIALIZED;
    }
    nvmlReturn_t result = nvml->nvmlDeviceGetMemoryInfo_v2(device, out);
    if (result == NVML_SUCCESS && p) {
        struct vgpu_view view = vgpu_view_of_handle(p, nvml, device, out->total, out->free);
        out->total = view.total;
        out->used = view.used;
        out->free = view.total - view.used;
        out->reserved = 0; /* the driver's own share is not part of a slice */
    }
    return result;
}

/* Return the processes of this container that have memory on the device, by their PIDs in its own namespace. `put` writes one
 * entry in the caller's version. */
static nvmlReturn_t own_processes(struct vgpu_process *p, const struct vgpu_nvml *nvml, nvmlDevice_t device, unsigned *count,
                                  void *out, void (*put)(void *out, unsigned at, unsigned pid, uint64_t used))
{
    char uuid[VGPU_UUID_BYTES];
    unsigned room, found = 0;
    nvmlReturn_t result = nvml->nvmlDeviceGetUUID ? nvml->nvmlDeviceGetUUID(device, uuid, sizeof uuid) : NVML_ERROR_NOT_SUPPORTED;
    if (result != NVML_SUCCESS) {
        return result;
    }
    if (!count || (*count && !out)) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    room = *count;
    int column = p->region ? vgpu_region_column(p->region, uuid) : -1;
    uint32_t high = column >= 0 ? vgpu_ledger_high(p->region) : 0;
    for (uint32_t i = 0; i < high; i++) {
        struct vgpu_region_slot *slot = &p->region->slots[i];
        uint64_t owner = atomic_load((_Atomic uint64_t *)&slot->owner);
        uint64_t used = atomic_load((_Atomic uint64_t *)&slot->used[column]);
        used += (uint64_t)atomic_load((_Atomic uint32_t *)&slot->managed[column]) * VGPU_MANAGED_UNIT;
        if (!owner || !used || vgpu_world->is_dead(owner & ~VGPU_OWNER_REAPING, &p->self)) {
            continue;
        }
        if (found < room) {
            put(out, found, (unsigned)(owner & ((UINT64_C(1) << VGPU_OWNER_PID_BITS) - 1)), used);
        }
        found++;
    }
    *count = found;
    return found > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

static void put_first(void *out, unsigned at, unsigned pid, uint64_t used)
{
    ((nvmlProcessInfo_v1_t *)out)[at] = (nvmlProcessInfo_v1_t){.pid = pid, .usedGpuMemory = used};
}

static void put_later(void *out, unsigned at, unsigned pid, uint64_t used)
{
    ((nvmlProcessInfo_t *)out)[at] =
        (nvmlProcessInfo_t){.pid = pid, .usedGpuMemory = used, .gpuInstanceId = UINT_MAX, .computeInstanceId = UINT_MAX};
}

#define PROCESSES(symbol, type, put)                                                                   \
    nvmlReturn_t symbol(nvmlDevice_t device, unsigned *count, type *out)                               \
    {                                                                                                  \
        const struct vgpu_nvml *nvml = vgpu_world->nvml();                                             \
        struct vgpu_process *p = vgpu_process_checked();                                               \
        if (!nvml || !nvml->symbol) {                                                                  \
            return nvml ? NVML_ERROR_FUNCTION_NOT_FOUND : NVML_ERROR_UNINITIALIZED;                    \
        }                                                                                              \
        return p ? own_processes(p, nvml, device, count, out, put) : nvml->symbol(device, count, out); \
    }

PROCESSES(nvmlDeviceGetComputeRunningProcesses, nvmlProcessInfo_v1_t, put_first)
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v2, nvmlProcessInfo_t, put_later)
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3, nvmlProcessInfo_t, put_later)
