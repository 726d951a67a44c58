/* cuda_device.c - devices of the simulated driver. */
#include <stdio.h>
#include <string.h>

#include "cuda.h"

CUresult cuda_check_device(CUdevice device)
{
    const struct cuda_session *s = cuda_session();
    if (!s) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    return device >= 0 && device < s->count ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

/* Start a query: check the device and the output pointers, and define `c`, the card's description. */
#define QUERY(device, out_ok)                           \
    CUresult device_result = cuda_check_device(device); \
    if (device_result != CUDA_SUCCESS) {                \
        return device_result;                           \
    }                                                   \
    if (!(out_ok)) {                                    \
        return CUDA_ERROR_INVALID_VALUE;                \
    }                                                   \
    const struct cuda_session *s = cuda_session();      \
    const struct machine_card *c = &s->machine->cards[s->visible[device]]

CUDA_API CUresult cuDeviceGetCount(int *count)
{
    const struct cuda_session *s = cuda_session();
    if (!s) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    if (!count) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *count = s->count;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    CUresult result = cuda_check_device(ordinal);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (!device) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *device = ordinal;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuDeviceGetName(char *name, int bytes, CUdevice device)
{
    QUERY(device, name && bytes > 0);
    snprintf(name, (size_t)bytes, "%s", c->model);
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device)
{
    QUERY(device, uuid);
    memcpy(uuid->bytes, c->uuid_bytes, sizeof uuid->bytes);
    return CUDA_SUCCESS;
}

/* The first form returns the card's UUID, even for an instance. */
CUDA_API CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device)
{
    QUERY(device, uuid);
    memcpy(uuid->bytes, c->parent < 0 ? c->uuid_bytes : s->machine->cards[c->parent].uuid_bytes, sizeof uuid->bytes);
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
    QUERY(device, bytes);
    *bytes = c->memory_bytes;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuDeviceTotalMem(unsigned *bytes, CUdevice device)
{
    QUERY(device, bytes);
    *bytes = c->memory_bytes > UINT32_MAX ? UINT32_MAX : (unsigned)c->memory_bytes;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice device)
{
    QUERY(device, major && minor);
    *major = c->cc_major;
    *minor = c->cc_minor;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device)
{
    QUERY(device, value);
    switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
        *value = 1024;
        break;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE:
        *value = 32;
        break;
    case CU_DEVICE_ATTRIBUTE_CLOCK_RATE:
        *value = 1410000;
        break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
        *value = c->sms;
        break;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR:
        *value = 2048;
        break;
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
        *value = (int)c->bus;
        break;
    case CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID:
        *value = (int)c->device;
        break;
    case CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID:
        *value = (int)c->domain;
        break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
        *value = c->cc_major;
        break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
        *value = c->cc_minor;
        break;
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY:
    case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED:
        *value = 1;
        break;
    default:
        *value = 0;
        return attribute > 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuDeviceGetPCIBusId(char *text, int bytes, CUdevice device)
{
    QUERY(device, text && bytes > 0);
    snprintf(text, (size_t)bytes, "%04x:%02x:%02x.0", c->domain, c->bus, c->device);
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuDeviceGetByPCIBusId(CUdevice *device, const char *text)
{
    const struct cuda_session *s = cuda_session();
    unsigned domain, bus, slot, function = 0;
    if (!s) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    if (!device || !text || sscanf(text, "%x:%x:%x.%x", &domain, &bus, &slot, &function) < 3) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    for (int i = 0; i < s->count; i++) {
        const struct machine_card *c = &s->machine->cards[s->visible[i]];
        if (c->domain == domain && c->bus == bus && c->device == slot) {
            *device = i;
            return CUDA_SUCCESS;
        }
    }
    return CUDA_ERROR_INVALID_DEVICE;
}
