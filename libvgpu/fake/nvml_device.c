/* nvml_device.c - the properties of one device: names, kind, location and instances. */
#include <stdio.h>
#include <string.h>

#include "nvml.h"

static nvmlReturn_t text(char *out, unsigned bytes, const char *value)
{
    return (unsigned)snprintf(out, bytes, "%s", value) < bytes ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
}

NVML_API nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *out, unsigned bytes)
{
    QUERY(device, out);
    return text(out, bytes, c->model);
}

NVML_API nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *out, unsigned bytes)
{
    QUERY(device, out);
    return text(out, bytes, c->uuid);
}

NVML_API nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t device, char *out, unsigned bytes)
{
    QUERY(device, out);
    return text(out, bytes, c->serial);
}

NVML_API nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned *out)
{
    QUERY(device, out);
    *out = (unsigned)nvml_index_of(s, card);
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned *out)
{
    QUERY(device, out);
    *out = (unsigned)c->minor;
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetBrand(nvmlDevice_t device, unsigned *out)
{
    QUERY(device, out);
    *out = 2; /* NVML_BRAND_TESLA */
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetArchitecture(nvmlDevice_t device, unsigned *out)
{
    QUERY(device, out);
    static const struct {
        int cc;
        unsigned architecture;
    } known[] = {{100, 10}, {90, 9}, {89, 8}, {80, 7}, {75, 6}, {70, 5}, {60, 4}, {50, 3}, {30, 2}};
    int cc = c->cc_major * 10 + c->cc_minor;
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (cc >= known[i].cc) {
            *out = known[i].architecture;
            return NVML_SUCCESS;
        }
    }
    return NVML_ERROR_UNKNOWN;
}

NVML_API nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
    QUERY(device, major && minor);
    *major = c->cc_major;
    *minor = c->cc_minor;
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetNumGpuCores(nvmlDevice_t device, unsigned *out)
{
    QUERY(device, out);
    *out = (unsigned)c->sms * 64;
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetNumaNodeId(nvmlDevice_t device, unsigned *out)
{
    QUERY(device, out);
    if (c->numa_of_memory < 0) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    *out = (unsigned)c->numa_of_memory;
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned words, unsigned long *out, int scope)
{
    QUERY(device, out && words && (scope == NVML_AFFINITY_SCOPE_NODE || scope == NVML_AFFINITY_SCOPE_SOCKET));
    unsigned bits = 8 * sizeof *out;
    if (c->numa < 0) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    for (unsigned word = 0; word < words; word++) {
        out[word] = (unsigned)c->numa / bits == word ? 1ul << (unsigned)c->numa % bits : 0;
    }
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *out)
{
    QUERY(device, out);
    *out = (nvmlPciInfo_t){
        .domain = c->domain, .bus = c->bus, .device = c->device, .pciDeviceId = 0x20b010de, .pciSubSystemId = 0x134f10de};
    snprintf(out->busIdLegacy, sizeof out->busIdLegacy, "%04X:%02X:%02X.0", c->domain & 0xffff, c->bus & 0xff, c->device & 0x1f);
    snprintf(out->busId, sizeof out->busId, "%08X:%02X:%02X.0", c->domain, c->bus, c->device);
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_t *out)
{
    return nvmlDeviceGetPciInfo_v3(device, out);
}

NVML_API nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *current, unsigned *pending)
{
    QUERY(device, current && pending);
    if (!c->mig_capable) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    *current = *pending = (unsigned)c->mig_enabled;
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned *out)
{
    QUERY(device, out);
    *out = c->mig_capable ? 7 : 0;
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned *out)
{
    QUERY(device, out);
    *out = c->parent >= 0;
    return NVML_SUCCESS;
}

/* The index counts places for instances, some of which may be empty, though here none before the last. */
NVML_API nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned index, nvmlDevice_t *out)
{
    QUERY(device, out);
    for (int i = 0; i < s->machine->card_count; i++) {
        if (s->machine->cards[i].parent == card && nvml_is_visible(s, i) && index-- == 0) {
            *out = nvml_handle(i);
            return NVML_SUCCESS;
        }
    }
    return c->mig_enabled && c->parent < 0 ? NVML_ERROR_NOT_FOUND : NVML_ERROR_NOT_SUPPORTED;
}

NVML_API nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t device, nvmlDevice_t *out)
{
    QUERY(device, out);
    if (c->parent < 0) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    *out = nvml_handle(c->parent);
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned *out)
{
    QUERY(device, out);
    *out = c->gi;
    return c->parent < 0 ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned *out)
{
    QUERY(device, out);
    *out = c->ci;
    return c->parent < 0 ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
}
