/* nvml_use.c - what one device is busy with: its memory, who computes on it, its warmth and power. */
#include "compute.h"
#include "nvml.h"

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
