#include "driver.h"

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

struct driver cu;
struct driver_nvml nvml;

typedef CUresult (*get_v1_fn)(const char *, void **, int, uint64_t);
typedef CUresult (*get_v2_fn)(const char *, void **, int, uint64_t, int *);

static CUresult not_in_this_driver(void)
{
    return CUDA_ERROR_NOT_FOUND;
}

static nvmlReturn_t not_in_this_nvml(void)
{
    return NVML_ERROR_FUNCTION_NOT_FOUND;
}

int driver_failed(const char *what, CUresult result)
{
    printf("{\"error\": \"%s\", \"result\": %d}\n", what, result);
    fflush(stdout);
    return 1;
}

static void *look_up(void *driver, const char *name, int version, const char *symbol)
{
    get_v1_fn get_v1 = NULL;
    get_v2_fn get_v2 = NULL;
    void *found = NULL;
    *(void **)&get_v1 = dlsym(driver, "cuGetProcAddress");
    *(void **)&get_v2 = dlsym(driver, "cuGetProcAddress_v2");
    if ((get_v2 && get_v2(name, &found, version, 0, &(int){0}) == CUDA_SUCCESS && found) ||
        (!get_v2 && get_v1 && get_v1(name, &found, version, 0) == CUDA_SUCCESS && found)) {
        return found;
    }
    found = dlsym(driver, symbol);
    return found ? found : (void *)not_in_this_driver;
}

int driver_load(void)
{
    static int loaded;
    if (loaded) {
        return 0;
    }
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!driver) {
        return driver_failed("no driver: libcuda.so.1", CUDA_ERROR_NOT_FOUND);
    }
#define LOOK_UP(name, version, symbol, parameters) *(void **)&cu.name = look_up(driver, #name, version, #symbol);
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
    static int loaded;
    if (loaded) {
        return 0;
    }
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        return driver_failed("no NVML: libnvidia-ml.so.1", CUDA_ERROR_NOT_FOUND);
    }
#define LOOK_UP(name, symbol, parameters)           \
    *(void **)&nvml.name = dlsym(library, #symbol); \
    *(void **)&nvml.name = nvml.name ? *(void **)&nvml.name : (void *)not_in_this_nvml;
    NVML_FUNCTIONS(LOOK_UP)
#undef LOOK_UP
    nvmlReturn_t result = nvml.init();
    if (result != NVML_SUCCESS) {
        return driver_failed("nvmlInit", result);
    }
    loaded = 1;
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
    int at = snprintf(uuid, DRIVER_UUID_BYTES, "GPU-");
    for (int b = 0; b < 16; b++) {
        const char *dash = b == 4 || b == 6 || b == 8 || b == 10 ? "-" : "";
        at += snprintf(uuid + at, DRIVER_UUID_BYTES - (size_t)at, "%s%02x", dash, id.bytes[b]);
    }
    nvmlReturn_t found = nvml.by_uuid(uuid, out);
    if (found != NVML_SUCCESS) {
        memcpy(uuid, "MIG", 3); /* CUDA's bytes name either kind */
        found = nvml.by_uuid(uuid, out);
    }
    return found;
}
