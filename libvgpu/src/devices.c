#include "devices.h"

#include <stdio.h>

#include "region.h"

static int read_uuid(const struct vgpu_cuda *cuda, CUdevice ordinal, char text[VGPU_UUID_BYTES])
{
    CUuuid id;
    CUresult result = CUDA_ERROR_NOT_FOUND;
    if (cuda->cuDeviceGetUuid_v2) {
        result = cuda->cuDeviceGetUuid_v2(&id, ordinal); /* this call distinguishes MIG instances */
    }
    if (result != CUDA_SUCCESS && cuda->cuDeviceGetUuid) {
        result = cuda->cuDeviceGetUuid(&id, ordinal);
    }
    if (result != CUDA_SUCCESS) {
        return -1;
    }
    const unsigned char *b = id.bytes;
    snprintf(text, VGPU_UUID_BYTES, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0], b[1], b[2],
             b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
    return 0;
}

const struct vgpu_device *vgpu_device_of_ordinal(struct vgpu_process *p, const struct vgpu_cuda *cuda, CUdevice ordinal)
{
    if (ordinal < 0 || ordinal >= (int)VGPU_MAX_DEVICES) {
        return NULL;
    }
    struct vgpu_device *device = &p->devices[ordinal];
    if (atomic_load_explicit(&device->known, memory_order_acquire)) {
        return device;
    }
    char uuid[VGPU_UUID_BYTES];
    if (read_uuid(cuda, ordinal, uuid)) {
        return NULL;
    }
    vgpu_calm_take(&p->lock);
    if (!atomic_load_explicit(&device->known, memory_order_relaxed)) {
        snprintf(device->uuid, sizeof device->uuid, "%s", uuid);
        device->column = p->region ? vgpu_region_column(p->region, uuid) : VGPU_NOWHERE;
        atomic_store_explicit(&device->known, 1, memory_order_release);
    }
    vgpu_calm_drop(&p->lock);
    return device;
}

CUresult vgpu_current_ordinal(const struct vgpu_cuda *cuda, CUdevice *ordinal)
{
    return cuda->cuCtxGetDevice ? cuda->cuCtxGetDevice(ordinal) : CUDA_ERROR_NOT_INITIALIZED;
}

int vgpu_location_is_nowhere(const struct vgpu_cuda *cuda, int type, int id)
{
    int count;
    return type == CU_MEM_LOCATION_TYPE_DEVICE && cuda->cuDeviceGetCount && cuda->cuDeviceGetCount(&count) == CUDA_SUCCESS &&
           (id < 0 || id >= count);
}

CUresult vgpu_location_ordinal(const struct vgpu_cuda *cuda, int type, int id, CUdevice *ordinal)
{
    switch (type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
        *ordinal = id;
        return CUDA_SUCCESS;
    case CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN:
        *ordinal = id & 0xff;
        return CUDA_SUCCESS;
    case CU_MEM_LOCATION_TYPE_HOST:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
        *ordinal = VGPU_NOWHERE;
        return CUDA_SUCCESS;
    default:
        return vgpu_current_ordinal(cuda, ordinal);
    }
}

CUresult vgpu_stream_ordinal(const struct vgpu_cuda *cuda, CUstream stream, CUdevice *ordinal)
{
    CUcontext context;
    if (!stream || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD || !cuda->cuStreamGetCtx) {
        return vgpu_current_ordinal(cuda, ordinal);
    }
    CUresult result = cuda->cuStreamGetCtx(stream, &context);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    result = cuda->cuCtxPushCurrent_v2(context);
    if (result == CUDA_SUCCESS) {
        result = vgpu_current_ordinal(cuda, ordinal);
        cuda->cuCtxPopCurrent_v2(&context);
    }
    return result;
}

int vgpu_devices_start_nvml(struct vgpu_process *p, const struct vgpu_nvml *nvml)
{
    if (!atomic_load_explicit(&p->nvml_started, memory_order_acquire)) {
        if (!nvml->nvmlInit_v2 || nvml->nvmlInit_v2() != NVML_SUCCESS) {
            return 0;
        }
        atomic_store_explicit(&p->nvml_started, 1, memory_order_release);
    }
    return 1;
}
