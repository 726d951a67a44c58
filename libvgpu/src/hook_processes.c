/* hook_processes.c - NVML's other process lists, accounting, BAR1, fields and limits, for this container alone.
 *
 * The driver has process lists that do not come from the ledger (graphics, MPS, accounting, utilisation). Each is
 * read whole into our own memory, so that neither entries of other containers nor their number reach the caller.
 * Processes without a host PID from the agent are not shown there.
 */
#include <stdlib.h>

#include "launch.h"
#include "region.h"
#include "usage.h"
#include "view.h"

#define RETRIES 4 /* attempts, because the list can grow between calls */
#define MORE 16     /* entries beyond the list's former length */

/* Return what a slot holds of a device by the ledger. */
static uint64_t recorded(const struct vgpu_process *p, nvmlDevice_t device, int slot)
{
    const struct vgpu_nvml *nvml = vgpu_world->nvml();
    char uuid[VGPU_UUID_BYTES];
    int known = nvml->nvmlDeviceGetUUID && nvml->nvmlDeviceGetUUID(device, uuid, sizeof uuid) == NVML_SUCCESS;
    int column = known ? vgpu_region_column(p->region, uuid) : -1;
    return column >= 0 ? atomic_load((const _Atomic uint64_t *)&p->region->slots[slot].used[column]) : 0;
}

/* Keep the container's own entries of the driver's list, with the container's PID in place of the driver's. */
static unsigned own_entries(const struct vgpu_process *p, nvmlDevice_t device, nvmlProcessInfo_t *list, unsigned count)
{
    unsigned kept = 0;
    enum vgpu_pids pids = vgpu_usage_pids(p, &list->pid, count, sizeof *list);
    for (unsigned i = 0; i < count; i++) {
        int slot = vgpu_usage_slot(p, list[i].pid, pids);
        if (slot >= 0) {
            list[kept] = list[i];
            list[kept].pid = p->region->slots[slot].pid;
            if (!list[kept].usedGpuMemory || list[kept].usedGpuMemory == UINT64_MAX) { /* some drivers do not report it */
                list[kept].usedGpuMemory = recorded(p, device, slot);
            }
            kept++;
        }
    }
    return kept;
}

typedef nvmlReturn_t (*processes)(nvmlDevice_t, unsigned *, nvmlProcessInfo_t *);

/* Return the container's entries of a driver's list; the caller frees `*out`. */
static nvmlReturn_t filtered(const struct vgpu_process *p, processes list_processes, nvmlDevice_t device, unsigned *count,
                             nvmlProcessInfo_t **out)
{
    nvmlReturn_t result = NVML_ERROR_INSUFFICIENT_SIZE;
    unsigned room = 0;
    *out = NULL;
    for (int i = 0; i < RETRIES && result == NVML_ERROR_INSUFFICIENT_SIZE; i++) {
        free(*out);
        room += MORE;
        *out = calloc(room, sizeof **out);
        if (!*out) {
            return NVML_ERROR_MEMORY;
        }
        *count = room;
        result = list_processes(device, count, *out);
        room = *count > room ? *count : room;
    }
    *count = result == NVML_SUCCESS ? own_entries(p, device, *out, *count) : 0;
    return result;
}

static void put_first(void *out, unsigned at, const nvmlProcessInfo_t *entry)
{
    ((nvmlProcessInfo_v1_t *)out)[at] = (nvmlProcessInfo_v1_t){.pid = entry->pid, .usedGpuMemory = entry->usedGpuMemory};
}

static void put_later(void *out, unsigned at, const nvmlProcessInfo_t *entry)
{
    ((nvmlProcessInfo_t *)out)[at] = *entry;
}

static void put_detail(void *out, unsigned at, const nvmlProcessInfo_t *entry)
{
    ((nvmlProcessDetail_t *)out)[at] = (nvmlProcessDetail_t){.pid = entry->pid,
                                                             .usedGpuMemory = entry->usedGpuMemory,
                                                             .gpuInstanceId = entry->gpuInstanceId,
                                                             .computeInstanceId = entry->computeInstanceId};
}

static nvmlReturn_t own_of(const struct vgpu_process *p, processes list_processes, nvmlDevice_t device, unsigned *count,
                           void *out, void (*put)(void *out, unsigned at, const nvmlProcessInfo_t *entry))
{
    nvmlProcessInfo_t *list = NULL;
    unsigned found = 0, room;
    if (!count || (*count && !out)) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    room = *count;
    nvmlReturn_t result = list_processes ? filtered(p, list_processes, device, &found, &list) : NVML_SUCCESS;
    for (unsigned i = 0; result == NVML_SUCCESS && i < found && i < room; i++) {
        put(out, i, &list[i]);
    }
    free(list);
    *count = found;
    return result == NVML_SUCCESS && found > room ? NVML_ERROR_INSUFFICIENT_SIZE : result;
}

/* A driver that has only the first form of a list reports too little, so the list is empty. */
#define LIST(symbol, kind, type, put)                                                                     \
    nvmlReturn_t symbol(nvmlDevice_t device, unsigned *count, type *out)                                  \
    {                                                                                                     \
        const struct vgpu_nvml *nvml = vgpu_world->nvml();                                                \
        struct vgpu_process *p = vgpu_process_checked();                                                  \
        if (!nvml || !nvml->symbol) {                                                                     \
            return nvml ? NVML_ERROR_FUNCTION_NOT_FOUND : NVML_ERROR_UNINITIALIZED;                       \
        }                                                                                                 \
        processes list_processes = nvml->kind##_v3 ? nvml->kind##_v3 : nvml->kind##_v2;                   \
        return p ? own_of(p, list_processes, device, count, out, put) : nvml->symbol(device, count, out); \
    }

LIST(nvmlDeviceGetGraphicsRunningProcesses, nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t, put_first)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_t, put_later)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_t, put_later)
LIST(nvmlDeviceGetMPSComputeRunningProcesses, nvmlDeviceGetMPSComputeRunningProcesses, nvmlProcessInfo_v1_t, put_first)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlDeviceGetMPSComputeRunningProcesses, nvmlProcessInfo_t, put_later)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlDeviceGetMPSComputeRunningProcesses, nvmlProcessInfo_t, put_later)

/* Compute processes come from the ledger, as in the lists by kind. */
static processes list_of_mode(const struct vgpu_nvml *nvml, unsigned mode)
{
    switch (mode) {
    case NVML_PROCESS_MODE_GRAPHICS:
        return nvml->nvmlDeviceGetGraphicsRunningProcesses_v3;
    case NVML_PROCESS_MODE_MPS:
        return nvml->nvmlDeviceGetMPSComputeRunningProcesses_v3;
    default:
        return nvmlDeviceGetComputeRunningProcesses_v3;
    }
}

nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_t *list)
{
    const struct vgpu_nvml *nvml = vgpu_world->nvml();
    struct vgpu_process *p = vgpu_process_checked();
    if (!nvml || !nvml->nvmlDeviceGetRunningProcessDetailList) {
        return nvml ? NVML_ERROR_FUNCTION_NOT_FOUND : NVML_ERROR_UNINITIALIZED;
    }
    if (!p || !list) {
        return nvml->nvmlDeviceGetRunningProcessDetailList(device, list);
    }
    /* The driver checks version, mode and device; without room it writes no entry. */
    nvmlProcessDetailList_t empty = {.version = list->version, .mode = list->mode};
    nvmlReturn_t result = nvml->nvmlDeviceGetRunningProcessDetailList(device, &empty);
    if (result != NVML_SUCCESS && result != NVML_ERROR_INSUFFICIENT_SIZE) {
        return result;
    }
    processes list_processes = list_of_mode(nvml, list->mode);
    if (list_processes != nvmlDeviceGetComputeRunningProcesses_v3) {
        return own_of(p, list_processes, device, &list->numProcArrayEntries, list->procArray, put_detail);
    }
    unsigned room = list->numProcArrayEntries, found = 0;
    if (room && !list->procArray) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    list_processes(device, &found, NULL);
    nvmlProcessInfo_t *own = calloc(found + MORE, sizeof *own);
    if (!own) {
        return NVML_ERROR_MEMORY;
    }
    found += MORE;
    result = list_processes(device, &found, own);
    for (unsigned i = 0; result == NVML_SUCCESS && i < found && i < room; i++) {
        put_detail(list->procArray, i, &own[i]);
    }
    free(own);
    list->numProcArrayEntries = found;
    return result == NVML_SUCCESS && found > room ? NVML_ERROR_INSUFFICIENT_SIZE : result;
}

nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device, nvmlProcessesUtilizationInfo_t *list)
{
    const struct vgpu_nvml *nvml = vgpu_world->nvml();
    struct vgpu_process *p = vgpu_process_checked();
    if (!nvml || !nvml->nvmlDeviceGetProcessesUtilizationInfo) {
        return nvml ? NVML_ERROR_FUNCTION_NOT_FOUND : NVML_ERROR_UNINITIALIZED;
    }
    if (!p || !list) {
        return nvml->nvmlDeviceGetProcessesUtilizationInfo(device, list);
    }
    nvmlProcessesUtilizationInfo_t all = *list;
    nvmlReturn_t result = NVML_ERROR_INSUFFICIENT_SIZE;
    unsigned room = list->procUtilArray ? list->processSamplesCount : 0, kept = 0, had = 0;
    all.procUtilArray = NULL;
    for (int i = 0; i < RETRIES && result == NVML_ERROR_INSUFFICIENT_SIZE; i++) {
        free(all.procUtilArray);
        had += MORE;
        all.processSamplesCount = had;
        all.procUtilArray = calloc(had, sizeof *all.procUtilArray);
        if (!all.procUtilArray) {
            return NVML_ERROR_MEMORY;
        }
        result = nvml->nvmlDeviceGetProcessesUtilizationInfo(device, &all);
        had = all.processSamplesCount > had ? all.processSamplesCount : had;
    }
    enum vgpu_pids pids = vgpu_usage_pids(p, &all.procUtilArray->pid, result == NVML_SUCCESS ? all.processSamplesCount : 0,
                                          sizeof *all.procUtilArray);
    for (unsigned i = 0; result == NVML_SUCCESS && i < all.processSamplesCount; i++) {
        int slot = vgpu_usage_slot(p, all.procUtilArray[i].pid, pids);
        if (slot < 0) {
            continue;
        }
        if (kept < room) {
            list->procUtilArray[kept] = all.procUtilArray[i];
            list->procUtilArray[kept].pid = p->region->slots[slot].pid;
            list->procUtilArray[kept].smUtil = vgpu_percent_of_slice(p, nvml, device, all.procUtilArray[i].smUtil);
        }
        kept++;
    }
    free(all.procUtilArray);
    if (result != NVML_SUCCESS) {
        return result;
    }
    list->processSamplesCount = kept;
    return !kept ? NVML_ERROR_NOT_FOUND : kept > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetAccountingPids(nvmlDevice_t device, unsigned *count, unsigned *pids)
{
    const struct vgpu_nvml *nvml = vgpu_world->nvml();
    struct vgpu_process *p = vgpu_process_checked();
    if (!nvml || !nvml->nvmlDeviceGetAccountingPids) {
        return nvml ? NVML_ERROR_FUNCTION_NOT_FOUND : NVML_ERROR_UNINITIALIZED;
    }
    if (!p || !count) {
        return nvml->nvmlDeviceGetAccountingPids(device, count, pids);
    }
    nvmlReturn_t result = NVML_ERROR_INSUFFICIENT_SIZE;
    unsigned room = pids ? *count : 0, all = 0, kept = 0, *known = NULL;
    for (int i = 0; i < RETRIES && result == NVML_ERROR_INSUFFICIENT_SIZE; i++) {
        free(known);
        unsigned had = all + MORE;
        known = calloc(had, sizeof *known);
        if (!known) {
            return NVML_ERROR_MEMORY;
        }
        all = had;
        result = nvml->nvmlDeviceGetAccountingPids(device, &all, known);
    }
    enum vgpu_pids speaks = vgpu_usage_pids(p, known, result == NVML_SUCCESS ? all : 0, sizeof *known);
    for (unsigned i = 0; result == NVML_SUCCESS && i < all; i++) {
        int slot = vgpu_usage_slot(p, known[i], speaks);
        if (slot >= 0 && kept < room) {
            pids[kept] = p->region->slots[slot].pid;
        }
        kept += slot >= 0;
    }
    free(known);
    if (result != NVML_SUCCESS) {
        return result;
    }
    *count = kept;
    return kept > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetAccountingStats(nvmlDevice_t device, unsigned pid, nvmlAccountingStats_t *out)
{
    const struct vgpu_nvml *nvml = vgpu_world->nvml();
    struct vgpu_process *p = vgpu_process_checked();
    if (!nvml || !nvml->nvmlDeviceGetAccountingStats) {
        return nvml ? NVML_ERROR_FUNCTION_NOT_FOUND : NVML_ERROR_UNINITIALIZED;
    }
    if (!p || !out) {
        return nvml->nvmlDeviceGetAccountingStats(device, pid, out);
    }
    uint32_t host = vgpu_usage_host_pid(p, pid);
    nvmlReturn_t result = host ? nvml->nvmlDeviceGetAccountingStats(device, host, out) : NVML_ERROR_NOT_FOUND;
    if (result == NVML_SUCCESS) {
        out->gpuUtilization = vgpu_percent_of_slice(p, nvml, device, out->gpuUtilization);
    }
    return result;
}

nvmlReturn_t nvmlDeviceGetAccountingStats_v2(nvmlDevice_t device, nvmlAccountingStats_v2_t *out)
{
    const struct vgpu_nvml *nvml = vgpu_world->nvml();
    struct vgpu_process *p = vgpu_process_checked();
    if (!nvml || !nvml->nvmlDeviceGetAccountingStats_v2) {
        return nvml ? NVML_ERROR_FUNCTION_NOT_FOUND : NVML_ERROR_UNINITIALIZED;
    }
    if (!p || !out) {
        return nvml->nvmlDeviceGetAccountingStats_v2(device, out);
    }
    unsigned pid = out->pid;
    out->pid = vgpu_usage_host_pid(p, pid);
    nvmlReturn_t result = out->pid ? nvml->nvmlDeviceGetAccountingStats_v2(device, out) : NVML_ERROR_NOT_FOUND;
    out->pid = pid;
    if (result == NVML_SUCCESS) {
        out->gpuUtilization = vgpu_percent_of_slice(p, nvml, device, out->gpuUtilization);
    }
    return result;
}

/* Not supported: the record covers all processes. */
nvmlReturn_t nvmlDeviceClearAccountingPids(nvmlDevice_t device)
{
    const struct vgpu_nvml *nvml = vgpu_world->nvml();
    if (!nvml || !nvml->nvmlDeviceClearAccountingPids) {
        return nvml ? NVML_ERROR_FUNCTION_NOT_FOUND : NVML_ERROR_UNINITIALIZED;
    }
    return vgpu_process_checked() ? NVML_ERROR_NO_PERMISSION : nvml->nvmlDeviceClearAccountingPids(device);
}

/* Show no more of the device's window as used than the container uses of the device. */
nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *out)
{
    const struct vgpu_nvml *nvml = vgpu_world->nvml();
    struct vgpu_process *p = vgpu_process_checked();
    if (!nvml || !nvml->nvmlDeviceGetBAR1MemoryInfo) {
        return nvml ? NVML_ERROR_FUNCTION_NOT_FOUND : NVML_ERROR_UNINITIALIZED;
    }
    nvmlReturn_t result = nvml->nvmlDeviceGetBAR1MemoryInfo(device, out);
    if (result == NVML_SUCCESS && p) {
        struct vgpu_view view = vgpu_view_of_handle(p, nvml, device, UINT64_MAX, UINT64_MAX);
        out->bar1Used = out->bar1Used < view.used ? out->bar1Used : view.used;
        out->bar1Free = out->bar1Total - out->bar1Used;
    }
    return result;
}

static int counts_for_everybody(unsigned field)
{
    static const struct {
        unsigned first, last;
    } fields[] = {
        {NVML_FI_NVLINK_BANDWIDTH_FIRST, NVML_FI_NVLINK_BANDWIDTH_LAST},
        {NVML_FI_NVLINK_BANDWIDTH_MORE_FIRST, NVML_FI_NVLINK_BANDWIDTH_MORE_LAST},
        {NVML_FI_NVLINK_THROUGHPUT_FIRST, NVML_FI_NVLINK_THROUGHPUT_LAST},
        {NVML_FI_PCIE_BYTES_FIRST, NVML_FI_PCIE_BYTES_LAST},
        {NVML_FI_NVLINK_COUNT_FIRST, NVML_FI_NVLINK_COUNT_LAST},
        {NVML_FI_MMA_STALL_PERCENT, NVML_FI_MMA_STALL_PERCENT},
    };
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        if (field >= fields[i].first && field <= fields[i].last) {
            return 1;
        }
    }
    return 0;
}

/* Not supported: counters of traffic and stalls cover the whole device and not a process. */
nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values)
{
    const struct vgpu_nvml *nvml = vgpu_world->nvml();
    if (!nvml || !nvml->nvmlDeviceGetFieldValues) {
        return nvml ? NVML_ERROR_FUNCTION_NOT_FOUND : NVML_ERROR_UNINITIALIZED;
    }
    nvmlReturn_t result = nvml->nvmlDeviceGetFieldValues(device, count, values);
    if (result != NVML_SUCCESS || !vgpu_process_checked()) {
        return result;
    }
    for (int i = 0; i < count; i++) {
        if (counts_for_everybody(values[i].fieldId)) {
            values[i].nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
            values[i].value.ullVal = 0;
        }
    }
    return result;
}

/* Reading cgroup limits is left to the agent; a container's limit is its slice, regardless of the group it names. */
nvmlReturn_t nvmlDeviceGetMemoryLimits_v1(nvmlDevice_t device, nvmlGetMemoryLimits_v1_t *out)
{
    const struct vgpu_nvml *nvml = vgpu_world->nvml();
    struct vgpu_process *p = vgpu_process_checked();
    nvmlMemory_t whole;
    if (!nvml || !nvml->nvmlDeviceGetMemoryLimits_v1 || !nvml->nvmlDeviceGetMemoryInfo) {
        return nvml ? NVML_ERROR_FUNCTION_NOT_FOUND : NVML_ERROR_UNINITIALIZED;
    }
    if (!p || !out) {
        return nvml->nvmlDeviceGetMemoryLimits_v1(device, out);
    }
    nvmlReturn_t result = nvml->nvmlDeviceGetMemoryInfo(device, &whole);
    if (result == NVML_SUCCESS) {
        struct vgpu_view view = vgpu_view_of_handle(p, nvml, device, whole.total, whole.free);
        out->softLimit = out->hardLimit = view.total;
        out->currentUsed = view.used;
    }
    return result;
}
