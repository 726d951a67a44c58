/* nvml_device.c - what one device says about itself. */
#include <stdio.h>
#include <string.h>

#include "compute.h"
#include "nvml.h"

/* Opens a query: checks the handle and the out pointers, and leaves `c` (description) and `now` (state). */
#define QUERY(device, out_ok)                                          \
    int card = -1;                                                     \
    nvmlReturn_t handle_result = nvml_card(device, &card);             \
    if (handle_result != NVML_SUCCESS) {                               \
        return handle_result;                                          \
    }                                                                  \
    if (!(out_ok)) {                                                   \
        return NVML_ERROR_INVALID_ARGUMENT;                            \
    }                                                                  \
    const struct nvml_session *s = nvml_session();                     \
    const struct machine_card *c = &s->machine->cards[card];           \
    const struct state_card *now = &s->state->cards[card];             \
    (void)c;                                                           \
    (void)now

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
    if (c->numa < 0) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    *out = (unsigned)c->numa;
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *out)
{
    QUERY(device, out);
    *out = (nvmlPciInfo_t){
        .domain = c->domain, .bus = c->bus, .device = c->device, .pciDeviceId = 0x20b010de, .pciSubSystemId = 0x134f10de};
    snprintf(out->busIdLegacy, sizeof out->busIdLegacy, "%04X:%02X:%02X.0", c->domain & 0xffff, c->bus & 0xff,
             c->device & 0x1f);
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

/* The index counts places for instances, of which some may be empty: here none before the last. */
NVML_API nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned index, nvmlDevice_t *out)
{
    QUERY(device, out);
    for (int i = 0; i < s->machine->card_count; i++) {
        if (s->machine->cards[i].parent == card && index-- == 0) {
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

/* Of a card in MIG mode: what its instances use, too. */
static uint64_t used_of(const struct machine *m, int card)
{
    uint64_t used = state_used(m, card);
    for (int i = 0; i < m->card_count; i++) {
        used += m->cards[i].parent == card ? state_used(m, i) : 0;
    }
    return used;
}

NVML_API nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *out)
{
    QUERY(device, out);
    uint64_t used = used_of(s->machine, card);
    *out = (nvmlMemory_t){.total = c->memory_bytes, .used = used, .free = c->memory_bytes - used};
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *out)
{
    QUERY(device, out);
    if (out->version != NVML_MEMORY_V2) {
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    }
    uint64_t used = used_of(s->machine, card);
    *out = (nvmlMemory_v2_t){
        .version = NVML_MEMORY_V2, .total = c->memory_bytes, .used = used, .free = c->memory_bytes - used};
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *out)
{
    QUERY(device, out);
    /* What was set from outside, or what the engine saw, whichever is more. */
    int mine;
    uint64_t end;
    unsigned seen = 0;
    struct engine *e = compute_enter(s->machine, card, 0, &mine);
    if (e) {
        seen = engine_utilisation(e, -1, s->machine->lag_ns, &end);
        compute_leave(card);
    }
    *out = (nvmlUtilization_t){.gpu = seen > now->gpu_utilisation ? seen : now->gpu_utilisation,
                               .memory = now->memory_utilisation};
    return NVML_SUCCESS;
}

/* One sample a process that ran anything in it, when it is newer than `since`. Microseconds of CLOCK_MONOTONIC. */
NVML_API nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *out,
                                                      unsigned *count, unsigned long long since)
{
    QUERY(device, count);
    int mine;
    unsigned found = 0, room = out ? *count : 0;
    struct engine *e = compute_enter(s->machine, card, 0, &mine);
    for (uint32_t i = 0; e && i < e->high; i++) {
        uint64_t end;
        unsigned percent = engine_utilisation(e, (int)i, s->machine->lag_ns, &end);
        if (!compute_owner(e, (int)i) || !percent || end / 1000 <= since) {
            continue;
        }
        if (found < room) {
            out[found] = (nvmlProcessUtilizationSample_t){
                .pid = (unsigned)compute_owner(e, (int)i), .timeStamp = end / 1000, .smUtil = percent};
        }
        found++;
    }
    if (e) {
        compute_leave(card);
    }
    *count = found;
    return !found ? NVML_ERROR_NOT_FOUND : found > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, unsigned sensor, unsigned *out)
{
    QUERY(device, out && sensor == 0);
    *out = now->temperature_c;
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned *out)
{
    QUERY(device, out);
    *out = now->power_mw;
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetPowerManagementLimit(nvmlDevice_t device, unsigned *out)
{
    QUERY(device, out);
    *out = c->power_limit_mw;
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t device, unsigned *out)
{
    return nvmlDeviceGetPowerManagementLimit(device, out);
}

/* Zero is what these say on a quiet card: P0, persistence and compute mode default, no display. */
static nvmlReturn_t zero(nvmlDevice_t device, unsigned *out)
{
    QUERY(device, out);
    *out = 0;
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetPerformanceState(nvmlDevice_t device, unsigned *out)
{
    return zero(device, out);
}

NVML_API nvmlReturn_t nvmlDeviceGetPersistenceMode(nvmlDevice_t device, unsigned *out)
{
    return zero(device, out);
}

NVML_API nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, unsigned *out)
{
    return zero(device, out);
}

NVML_API nvmlReturn_t nvmlDeviceGetDisplayMode(nvmlDevice_t device, unsigned *out)
{
    return zero(device, out);
}

NVML_API nvmlReturn_t nvmlDeviceGetDisplayActive(nvmlDevice_t device, unsigned *out)
{
    return zero(device, out);
}

NVML_API nvmlReturn_t nvmlDeviceGetFanSpeed(nvmlDevice_t device, unsigned *out)
{
    QUERY(device, out);
    return NVML_ERROR_NOT_SUPPORTED; /* data-centre cards have none */
}
