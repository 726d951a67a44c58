/* hook_nvml.c - what NVML says about memory: the slice. */
#include "view.h"

/* Slice of the device behind a handle; nothing when NVML does not say which card that is. */
static struct vgpu_view slice(struct vgpu_process *p, const struct vgpu_nvml *nvml, nvmlDevice_t device, uint64_t total,
                              uint64_t free)
{
    char uuid[VGPU_UUID_BYTES + 32];
    unsigned index = 0;
    if (!nvml->nvmlDeviceGetUUID || nvml->nvmlDeviceGetUUID(device, uuid, VGPU_UUID_BYTES) != NVML_SUCCESS) {
        return (struct vgpu_view){0};
    }
    uuid[VGPU_UUID_BYTES - 1] = '\0';
    /* Stand-alone settings count devices: here NVML's index stands for the CUDA ordinal. */
    int ordinal = p->authority == VGPU_ENV && nvml->nvmlDeviceGetIndex &&
                          nvml->nvmlDeviceGetIndex(device, &index) == NVML_SUCCESS
                      ? (int)index
                      : -1;
    return vgpu_view_of(p, uuid, ordinal, total, free);
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *out)
{
    const struct vgpu_nvml *nvml = vgpu_world->nvml();
    struct vgpu_process *p = vgpu_process();
    if (!nvml || !nvml->nvmlDeviceGetMemoryInfo) {
        return NVML_ERROR_UNINITIALIZED;
    }
    nvmlReturn_t result = nvml->nvmlDeviceGetMemoryInfo(device, out);
    if (result == NVML_SUCCESS && p) {
        struct vgpu_view view = slice(p, nvml, device, out->total, out->free);
        *out = (nvmlMemory_t){.total = view.total, .used = view.used, .free = view.total - view.used};
    }
    return result;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *out)
{
    const struct vgpu_nvml *nvml = vgpu_world->nvml();
    struct vgpu_process *p = vgpu_process();
    if (!nvml || !nvml->nvmlDeviceGetMemoryInfo_v2) {
        return NVML_ERROR_UNINITIALIZED;
    }
    nvmlReturn_t result = nvml->nvmlDeviceGetMemoryInfo_v2(device, out);
    if (result == NVML_SUCCESS && p) {
        struct vgpu_view view = slice(p, nvml, device, out->total, out->free);
        out->total = view.total;
        out->used = view.used;
        out->free = view.total - view.used;
        out->reserved = 0; /* the driver's own share is not part of a slice */
    }
    return result;
}
