/* nvml_use.c - the use of one device: its memory, its compute processes, its temperature and power. */
#include "compute.h"
#include "nvml.h"

#include <stdlib.h>
#include <unistd.h>

/* Return the use of a card. In MIG mode it includes that of its instances. */
static uint64_t used_of(const struct machine *m, int card)
{
    uint64_t used = state_used(m, card);
    for (int i = 0; i < m->card_count; i++) {
        used += m->cards[i].parent == card ? state_used(m, i) : 0;
    }
    return used;
}

/* Return how much the calling process could still take; the limit of its cgroup counts. */
static uint64_t free_of(const struct machine *m, int card, uint64_t used)
{
    uint64_t free_bytes = m->cards[card].memory_bytes - used, room = state_room(m, card);
    return room < free_bytes ? room : free_bytes;
}

NVML_API nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *out)
{
    QUERY(device, out);
    uint64_t used = used_of(s->machine, card);
    *out = (nvmlMemory_t){.total = c->memory_bytes, .used = used, .free = free_of(s->machine, card, used)};
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
        .version = NVML_MEMORY_V2, .total = c->memory_bytes, .used = used, .free = free_of(s->machine, card, used)};
    return NVML_SUCCESS;
}

/* Source: NVML's reference. Only on Linux, as root, and for devices that are not in MIG mode. */
NVML_API nvmlReturn_t nvmlDeviceSetMemoryLimits_v1(nvmlDevice_t device, const nvmlSetMemoryLimits_v1_t *limits)
{
    QUERY(device, limits && limits->nameSpace);
    if (!s->machine->memory_limits || c->parent >= 0) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    if (geteuid() != 0) {
        return NVML_ERROR_NO_PERMISSION;
    }
    if (limits->softLimit > limits->hardLimit ||
        state_limit_set(s->machine, card, limits->nameSpace, limits->softLimit, limits->hardLimit)) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetMemoryLimits_v1(nvmlDevice_t device, nvmlGetMemoryLimits_v1_t *limits)
{
    QUERY(device, limits && limits->nameSpace);
    struct state_limit found;
    uint64_t used = 0;
    if (!s->machine->memory_limits || c->parent >= 0) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    if (state_limit_get(s->machine, card, limits->nameSpace, &found, &used)) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    limits->softLimit = found.soft;
    limits->hardLimit = found.hard;
    limits->currentUsed = used;
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *out)
{
    QUERY(device, out);
    /* Return the value set by vgpu-fake-ctl or the value from the engine, whichever is larger. */
    int mine;
    uint64_t end;
    unsigned seen = 0;
    struct engine *e = compute_enter(s->machine, card, 0, &mine);
    if (e) {
        seen = engine_utilisation(e, -1, s->machine->lag_ns, &end);
        compute_leave(card);
    }
    *out =
        (nvmlUtilization_t){.gpu = seen > now->gpu_utilisation ? seen : now->gpu_utilisation, .memory = now->memory_utilisation};
    return NVML_SUCCESS;
}

/* A process that ran in the newest sample, if that is newer than `since`. Microseconds since 1970. */
struct sample {
    int serial;
    unsigned pid, percent;
    uint64_t stamp_us;
};

static const struct state_process *owner_of(const struct machine *m, int serial)
{
    return serial ? state_living(m, serial) : NULL;
}

static unsigned take_samples(const struct nvml_session *s, int card, uint64_t since, unsigned room, struct sample *out)
{
    int mine;
    unsigned found = 0;
    struct engine *e = compute_enter(s->machine, card, 0, &mine);
    for (uint32_t i = 0; e && i < e->high; i++) {
        uint64_t end;
        unsigned percent = engine_utilisation(e, (int)i, s->machine->lag_ns, &end);
        uint64_t stamp_us = compute_wall_ns(e, end) / 1000;
        const struct state_process *p = percent && stamp_us > since ? owner_of(s->machine, compute_owner(e, (int)i)) : NULL;
        if (!p) {
            continue;
        }
        if (found < room) {
            out[found] = (struct sample){.serial = p->serial,
                                         .pid = state_pid_shown(s->machine, p, STATE_SAMPLES),
                                         .percent = percent,
                                         .stamp_us = stamp_us};
        }
        found++;
    }
    if (e) {
        compute_leave(card);
    }
    return found;
}

NVML_API nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *out, unsigned *count,
                                                      unsigned long long since)
{
    QUERY(device, count);
    struct sample samples[ENGINE_CONTEXTS];
    unsigned room = out ? *count : 0, found = take_samples(s, card, since, ENGINE_CONTEXTS, samples);
    for (unsigned i = 0; i < found && i < room; i++) {
        out[i] = (nvmlProcessUtilizationSample_t){
            .pid = samples[i].pid, .timeStamp = samples[i].stamp_us, .smUtil = samples[i].percent};
    }
    *count = found;
    return !found ? NVML_ERROR_NOT_FOUND : found > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device, nvmlProcessesUtilizationInfo_t *list)
{
    QUERY(device, list);
    if (list->version != NVML_PROCESSES_UTILIZATION_V1) {
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    }
    struct sample samples[ENGINE_CONTEXTS];
    unsigned room = list->procUtilArray ? list->processSamplesCount : 0;
    unsigned found = take_samples(s, card, list->lastSeenTimeStamp, ENGINE_CONTEXTS, samples);
    for (unsigned i = 0; i < found && i < room; i++) {
        list->procUtilArray[i] =
            (nvmlProcessUtilizationInfo_t){.pid = samples[i].pid, .timeStamp = samples[i].stamp_us, .smUtil = samples[i].percent};
    }
    list->processSamplesCount = found;
    return !found ? NVML_ERROR_NOT_FOUND : found > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

/* Accounting is enabled and covers live processes. */
NVML_API nvmlReturn_t nvmlDeviceGetAccountingMode(nvmlDevice_t device, unsigned *out)
{
    QUERY(device, out);
    *out = 1;
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetAccountingPids(nvmlDevice_t device, unsigned *count, unsigned *pids)
{
    QUERY(device, count);
    unsigned room = pids ? *count : 0, found = 0;
    state_clear_dead(s->machine);
    for (uint32_t i = 0; i < s->state->process_high; i++) {
        const struct state_process *p = &s->state->processes[i];
        if (p->pid && (p->used[card] || p->contexts[card])) {
            if (found < room) {
                pids[found] = state_pid_shown(s->machine, p, STATE_ACCOUNTING);
            }
            found++;
        }
    }
    *count = found;
    return found > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

/* The open kernel modules also accept a PID of the caller's own namespace. */
static int is_meant(const struct machine *m, const struct state_process *p, unsigned pid)
{
    return pid && (state_pid_shown(m, p, STATE_ACCOUNTING) == pid || state_pid_shown(m, p, STATE_SAMPLES) == pid);
}

NVML_API nvmlReturn_t nvmlDeviceGetAccountingStats(nvmlDevice_t device, unsigned pid, nvmlAccountingStats_t *out)
{
    QUERY(device, out);
    struct sample samples[ENGINE_CONTEXTS];
    unsigned ran = take_samples(s, card, 0, ENGINE_CONTEXTS, samples);
    for (uint32_t i = 0; i < s->state->process_high; i++) {
        const struct state_process *p = &s->state->processes[i];
        if (p->pid && is_meant(s->machine, p, pid) && (p->used[card] || p->contexts[card])) {
            *out = (nvmlAccountingStats_t){.maxMemoryUsage = p->used[card], .isRunning = 1};
            for (unsigned n = 0; n < ran; n++) {
                out->gpuUtilization = samples[n].serial == p->serial ? samples[n].percent : out->gpuUtilization;
            }
            return NVML_SUCCESS;
        }
    }
    return NVML_ERROR_NOT_FOUND;
}

NVML_API nvmlReturn_t nvmlDeviceClearAccountingPids(nvmlDevice_t device)
{
    QUERY(device, 1);
    return NVML_SUCCESS; /* live processes stay */
}

/* A window as large as the card; every allocation uses its part of it. */
NVML_API nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *out)
{
    QUERY(device, out);
    uint64_t used = used_of(s->machine, card);
    *out = (nvmlBAR1Memory_t){.bar1Total = c->memory_bytes, .bar1Used = used, .bar1Free = c->memory_bytes - used};
    return NVML_SUCCESS;
}

/* Temperature, power, one counter of the whole card's traffic, and (since R570) the repair that the card needs. */
NVML_API nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values)
{
    enum { MEMORY_TEMP = 82, POWER_INSTANT = 186, PCIE_TX_BYTES = NVML_FI_PCIE_BYTES_FIRST };
    QUERY(device, values && count > 0);
    int has_repairs = atoi(s->machine->driver_version) >= 570;
    for (int i = 0; i < count; i++) {
        nvmlFieldValue_t *v = &values[i];
        v->nvmlReturn = NVML_SUCCESS;
        v->valueType = v->fieldId == PCIE_TX_BYTES ? NVML_VALUE_TYPE_UNSIGNED_LONG_LONG : NVML_VALUE_TYPE_UNSIGNED_INT;
        v->timestamp = v->latencyUsec = 0;
        switch (v->fieldId) {
        case MEMORY_TEMP:
            v->value.ullVal = now->temperature_c;
            break;
        case POWER_INSTANT:
            v->value.ullVal = now->power_mw;
            break;
        case PCIE_TX_BYTES:
            v->value.ullVal = used_of(s->machine, card);
            break;
        case NVML_FI_DEV_GET_GPU_RECOVERY_ACTION:
            v->value.ullVal = now->recovery_action;
            v->nvmlReturn = has_repairs ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
            break;
        default:
            v->nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
            v->value.ullVal = 0;
        }
    }
    return NVML_SUCCESS;
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

/* These return zero on a quiet card: P0, persistence and compute mode default, no display. */
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
    return NVML_ERROR_NOT_SUPPORTED; /* data-centre cards have no fan */
}
