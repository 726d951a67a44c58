/* hook_usage.c - NVML's queries of utilisation, answered for this container; 100 % is the whole slice. */
#include <stdlib.h>

#include "launch.h"
#include "usage.h"

#define RETRIES 4 /* attempts, because the list can grow between calls */
#define MORE 16     /* entries beyond the list's former length */

/* Samples this close together belong to one moment. */
#define SAME_US UINT64_C(1100000)

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *out)
{
    const struct vgpu_nvml *nvml = vgpu_world->nvml();
    struct vgpu_process *p = vgpu_process_checked();
    if (!nvml || !nvml->nvmlDeviceGetUtilizationRates) {
        return nvml ? NVML_ERROR_FUNCTION_NOT_FOUND : NVML_ERROR_UNINITIALIZED;
    }
    nvmlReturn_t result = nvml->nvmlDeviceGetUtilizationRates(device, out);
    if (result != NVML_SUCCESS || !p || !nvml->nvmlDeviceGetProcessUtilization) {
        return result;
    }
    nvmlProcessUtilizationSample_t samples[256];
    unsigned count = sizeof samples / sizeof samples[0], sum = 0, memory = 0;
    uint64_t newest = 0;
    if (nvml->nvmlDeviceGetProcessUtilization(device, samples, &count, 0) != NVML_SUCCESS) {
        count = 0;
    }
    count = count < sizeof samples / sizeof samples[0] ? count : sizeof samples / sizeof samples[0];
    enum vgpu_pids pids = vgpu_usage_pids(p, &samples[0].pid, count, sizeof samples[0]);
    if (count && !vgpu_usage_is_known(p, pids)) {
        return result; /* our own use cannot be told from others', so the device's is shown */
    }
    for (unsigned i = 0; i < count; i++) {
        newest = samples[i].timeStamp > newest ? samples[i].timeStamp : newest;
    }
    for (unsigned i = 0; i < count; i++) {
        if (newest - samples[i].timeStamp < SAME_US && vgpu_usage_slot(p, samples[i].pid, pids) >= 0) {
            sum += samples[i].smUtil;
            memory += samples[i].memUtil;
        }
    }
    out->gpu = vgpu_percent_of_slice(p, nvml, device, sum > 100 ? 100 : sum);
    out->memory = memory > 100 ? 100 : memory;
    return result;
}

nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *out, unsigned *count,
                                             unsigned long long since)
{
    const struct vgpu_nvml *nvml = vgpu_world->nvml();
    struct vgpu_process *p = vgpu_process_checked();
    if (!nvml || !nvml->nvmlDeviceGetProcessUtilization) {
        return nvml ? NVML_ERROR_FUNCTION_NOT_FOUND : NVML_ERROR_UNINITIALIZED;
    }
    if (!p || !count) {
        return nvml->nvmlDeviceGetProcessUtilization(device, out, count, since);
    }
    nvmlReturn_t result = NVML_ERROR_INSUFFICIENT_SIZE;
    nvmlProcessUtilizationSample_t *all = NULL;
    unsigned room = out ? *count : 0, had = 0, kept = 0;
    for (int i = 0; i < RETRIES && result == NVML_ERROR_INSUFFICIENT_SIZE; i++) {
        unsigned most = had + MORE;
        free(all);
        all = calloc(most, sizeof *all); /* read into our own memory, so that the caller never sees a neighbour */
        if (!all) {
            return NVML_ERROR_MEMORY;
        }
        had = most;
        result = nvml->nvmlDeviceGetProcessUtilization(device, all, &had, since);
    }
    enum vgpu_pids pids = vgpu_usage_pids(p, &all->pid, result == NVML_SUCCESS ? had : 0, sizeof *all);
    for (unsigned i = 0; result == NVML_SUCCESS && i < had; i++) {
        int slot = vgpu_usage_slot(p, all[i].pid, pids);
        if (slot >= 0 && kept < room) {
            out[kept] = all[i];
            out[kept].pid = p->region->slots[slot].pid;
            out[kept].smUtil = vgpu_percent_of_slice(p, nvml, device, all[i].smUtil);
        }
        kept += slot >= 0;
    }
    free(all);
    if (result != NVML_SUCCESS) {
        return result;
    }
    *count = kept;
    return !kept ? NVML_ERROR_NOT_FOUND : kept > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}
