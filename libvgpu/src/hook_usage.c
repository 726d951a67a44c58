/* hook_usage.c - what NVML says about utilisation: this container's, in its own terms. 100 % is the whole slice. */
#include "launch.h"
#include "usage.h"

/* Samples no further apart than this are of one moment. */
#define SAME_US UINT64_C(1100000)

/* Of the card -> of the slice. */
static unsigned of_slice(struct vgpu_process *p, const struct vgpu_nvml *nvml, nvmlDevice_t device, unsigned percent)
{
    uint32_t share = vgpu_share_of_handle(p, nvml, device);
    percent = share && share < 100 ? percent * 100 / share : percent;
    return percent > 100 ? 100 : percent;
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *out)
{
    const struct vgpu_nvml *nvml = vgpu_world->nvml();
    struct vgpu_process *p = vgpu_process();
    if (!nvml || !nvml->nvmlDeviceGetUtilizationRates) {
        return nvml ? NVML_ERROR_FUNCTION_NOT_FOUND : NVML_ERROR_UNINITIALIZED;
    }
    nvmlReturn_t result = nvml->nvmlDeviceGetUtilizationRates(device, out);
    if (result != NVML_SUCCESS || !p || !nvml->nvmlDeviceGetProcessUtilization || !vgpu_usage_is_known(p)) {
        return result; /* who cannot tell his own from the others' shows the card */
    }
    nvmlProcessUtilizationSample_t samples[256];
    unsigned count = sizeof samples / sizeof samples[0], sum = 0, memory = 0;
    uint64_t newest = 0;
    if (nvml->nvmlDeviceGetProcessUtilization(device, samples, &count, 0) != NVML_SUCCESS) {
        count = 0;
    }
    for (unsigned i = 0; i < count && i < sizeof samples / sizeof samples[0]; i++) {
        newest = samples[i].timeStamp > newest ? samples[i].timeStamp : newest;
    }
    for (unsigned i = 0; i < count && i < sizeof samples / sizeof samples[0]; i++) {
        if (newest - samples[i].timeStamp < SAME_US && vgpu_usage_slot(p, samples[i].pid) >= 0) {
            sum += samples[i].smUtil;
            memory += samples[i].memUtil;
        }
    }
    out->gpu = of_slice(p, nvml, device, sum > 100 ? 100 : sum);
    out->memory = memory > 100 ? 100 : memory;
    return result;
}

nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *out, unsigned *count,
                                             unsigned long long since)
{
    const struct vgpu_nvml *nvml = vgpu_world->nvml();
    struct vgpu_process *p = vgpu_process();
    if (!nvml || !nvml->nvmlDeviceGetProcessUtilization) {
        return nvml ? NVML_ERROR_FUNCTION_NOT_FOUND : NVML_ERROR_UNINITIALIZED;
    }
    nvmlReturn_t result = nvml->nvmlDeviceGetProcessUtilization(device, out, count, since);
    if (result != NVML_SUCCESS || !p || !out || !count) {
        return result; /* a size asked for may be more than is given in the end */
    }
    unsigned kept = 0;
    for (unsigned i = 0; i < *count; i++) {
        int slot = vgpu_usage_slot(p, out[i].pid);
        if (slot >= 0) {
            out[kept] = out[i];
            out[kept].pid = p->region->slots[slot].pid;
            out[kept].smUtil = of_slice(p, nvml, device, out[i].smUtil);
            kept++;
        }
    }
    *count = kept;
    return kept ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}
