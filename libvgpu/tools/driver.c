#include "driver.h"

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { UUID_BYTES = 64 };

struct driver cu;
struct driver_nvml nvml;

int driver_failed(const char *what, CUresult result)
{
    printf("{\"error\": \"%s\", \"result\": %d}\n", what, result);
    fflush(stdout);
    return 1;
}

int driver_load(void)
{
    static int loaded;
    CUresult (*get)(const char *, void **, int, uint64_t, int *) = NULL;
    if (loaded) {
        return 0;
    }
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (driver) {
        *(void **)&get = dlsym(driver, "cuGetProcAddress_v2");
    }
    if (!get) {
        return driver_failed("no driver: libcuda.so.1 with cuGetProcAddress_v2", CUDA_ERROR_NOT_FOUND);
    }
#define LOOK_UP(name, version, parameters)                                                  \
    if (get(#name, (void **)&cu.name, version, 0, &(int){0}) != CUDA_SUCCESS || !cu.name) { \
        return driver_failed("missing " #name, CUDA_ERROR_NOT_FOUND);                       \
    }
    DRIVER_FUNCTIONS(LOOK_UP)
#undef LOOK_UP
    CUresult result = cu.cuInit(0);
    if (result != CUDA_SUCCESS) {
        return driver_failed("cuInit", result);
    }
    loaded = 1;
    return 0;
}

int driver_load_nvml(void)
{
    if (nvml.memory) {
        return 0;
    }
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library) {
        *(void **)&nvml.init = dlsym(library, "nvmlInit_v2");
        *(void **)&nvml.by_uuid = dlsym(library, "nvmlDeviceGetHandleByUUID");
        *(void **)&nvml.utilisation = dlsym(library, "nvmlDeviceGetUtilizationRates");
        *(void **)&nvml.by_process = dlsym(library, "nvmlDeviceGetProcessUtilization");
        *(void **)&nvml.memory = dlsym(library, "nvmlDeviceGetMemoryInfo");
    }
    if (!nvml.init || !nvml.by_uuid || !nvml.memory || !nvml.utilisation || nvml.init() != NVML_SUCCESS) {
        nvml.memory = NULL;
        return driver_failed("no NVML: libnvidia-ml.so.1", CUDA_ERROR_NOT_FOUND);
    }
    return 0;
}

int driver_use(int device)
{
    CUcontext context;
    CUresult result = cu.cuDevicePrimaryCtxRetain(&context, device);
    if (result == CUDA_SUCCESS) {
        result = cu.cuCtxSetCurrent(context);
    }
    return result == CUDA_SUCCESS ? 0 : driver_failed("primary context", result);
}

nvmlReturn_t driver_nvml_device(int device, char *uuid, nvmlDevice_t *out)
{
    CUuuid id = {{0}};
    cu.cuDeviceGetUuid(&id, device);
    int at = snprintf(uuid, UUID_BYTES, "GPU-");
    for (int b = 0; b < 16; b++) {
        const char *dash = b == 4 || b == 6 || b == 8 || b == 10 ? "-" : "";
        at += snprintf(uuid + at, UUID_BYTES - (size_t)at, "%s%02x", dash, id.bytes[b]);
    }
    nvmlReturn_t found = nvml.by_uuid(uuid, out);
    if (found != NVML_SUCCESS) {
        memcpy(uuid, "MIG", 3); /* CUDA's bytes name either kind */
        found = nvml.by_uuid(uuid, out);
    }
    return found;
}
