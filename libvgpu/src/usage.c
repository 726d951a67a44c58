#include "usage.h"

#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "devices.h"
#include "ledger.h"

enum { SAMPLES = 256 };

/* The inode of a kernel's first pid namespace, which is constant. */
#define FIRST_NAMESPACE UINT64_C(0xeffffffc)
#define RECENT_US UINT64_C(20000000)

static uint32_t host_pid(const struct vgpu_region_slot *slot)
{
    uint32_t said = atomic_load_explicit((const _Atomic uint32_t *)&slot->host_pid, memory_order_relaxed);
    return said ? said : slot->pid_namespace == FIRST_NAMESPACE ? slot->pid : 0;
}

static uint32_t slots_of(const struct vgpu_process *p)
{
    return p->region ? vgpu_ledger_high(p->region) : 0;
}

int vgpu_usage_slot(const struct vgpu_process *p, uint32_t pid)
{
    uint32_t high = slots_of(p);
    for (uint32_t i = 0; i < high; i++) {
        const struct vgpu_region_slot *slot = &p->region->slots[i];
        if (atomic_load((const _Atomic uint64_t *)&slot->owner) && host_pid(slot) == pid) {
            return (int)i;
        }
    }
    return -1;
}

uint32_t vgpu_usage_host_pid(const struct vgpu_process *p, uint32_t pid)
{
    uint32_t high = slots_of(p);
    for (uint32_t i = 0; i < high; i++) {
        const struct vgpu_region_slot *slot = &p->region->slots[i];
        if (atomic_load((const _Atomic uint64_t *)&slot->owner) && slot->pid == pid) {
            return host_pid(slot);
        }
    }
    return 0;
}

int vgpu_usage_is_known(const struct vgpu_process *p)
{
    uint32_t high = slots_of(p), known = 0;
    for (uint32_t i = 0; i < high; i++) {
        const struct vgpu_region_slot *slot = &p->region->slots[i];
        if (atomic_load((const _Atomic uint64_t *)&slot->owner)) {
            if (!host_pid(slot)) {
                return 0;
            }
            known = 1;
        }
    }
    return (int)known;
}

static const struct vgpu_nvml *started(struct vgpu_process *p)
{
    const struct vgpu_nvml *nvml = vgpu_world->nvml();
    if (!nvml || !nvml->nvmlDeviceGetHandleByUUID || !nvml->nvmlDeviceGetProcessUtilization) {
        return NULL;
    }
    return vgpu_devices_start_nvml(p, nvml) ? nvml : NULL;
}

/* Return 1 if others have a context on the device, or if NVML does not even show ours. */
static int has_neighbours(const struct vgpu_process *p, const struct vgpu_nvml *nvml, nvmlDevice_t device)
{
    nvmlProcessInfo_t list[64];
    unsigned count = sizeof list / sizeof list[0], ours = 0;
    if (!nvml->nvmlDeviceGetComputeRunningProcesses_v3 ||
        nvml->nvmlDeviceGetComputeRunningProcesses_v3(device, &count, list) != NVML_SUCCESS) {
        return 1;
    }
    for (unsigned i = 0; i < count; i++) {
        ours += vgpu_usage_slot(p, list[i].pid) >= 0;
    }
    return !ours || ours < count;
}

static uint64_t clock_us(clockid_t clock)
{
    struct timespec t = vgpu_clock_read(clock);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

/* Return 1 for a time stamp in the future: the wall clock was set back since. */
static int is_ahead(uint64_t stamp_us)
{
    return stamp_us > clock_us(CLOCK_REALTIME) + 1000000 && stamp_us > clock_us(CLOCK_MONOTONIC);
}

/* NVML's time stamps use the wall clock, in some versions the monotonic clock. */
static struct vgpu_instant by_our_clock(uint64_t stamp_us)
{
    static const clockid_t clocks[] = {CLOCK_REALTIME, CLOCK_MONOTONIC};
    for (size_t i = 0; i < sizeof clocks / sizeof clocks[0]; i++) {
        uint64_t now_us = clock_us(clocks[i]);
        if (stamp_us <= now_us && now_us - stamp_us < RECENT_US) {
            return vgpu_earlier(vgpu_world->now(), (now_us - stamp_us) * 1000);
        }
    }
    return vgpu_at(0);
}

int vgpu_usage_measure(void *owner, int ordinal, uint64_t since_us, struct vgpu_measurement *out)
{
    struct vgpu_process *p = owner;
    const struct vgpu_device *device = vgpu_device_of_ordinal(p, vgpu_world->cuda(), ordinal);
    const struct vgpu_nvml *nvml;
    nvmlProcessUtilizationSample_t samples[SAMPLES];
    char uuid[VGPU_UUID_BYTES];
    nvmlDevice_t handle;
    unsigned count = SAMPLES;
    *out = (struct vgpu_measurement){.others = 1, .neighbours = 1, .others_known = 1}; /* until proven otherwise */
    if (!device || !vgpu_process_slot(p) || !vgpu_usage_is_known(p) || !(nvml = started(p))) {
        return 0;
    }
    memcpy(uuid, device->uuid, sizeof uuid);
    if (nvml->nvmlDeviceGetHandleByUUID(uuid, &handle) != NVML_SUCCESS) {
        return 0;
    }
    uint64_t after_us = is_ahead(since_us) ? 0 : since_us;
    nvmlReturn_t result = nvml->nvmlDeviceGetProcessUtilization(handle, samples, &count, after_us);
    if (result != NVML_SUCCESS && result != NVML_ERROR_NOT_FOUND) {
        return 0;
    }
    count = result == NVML_SUCCESS ? count : 0;
    out->others = 0;
    out->neighbours = has_neighbours(p, nvml, handle);
    for (unsigned i = 0; i < count && i < SAMPLES; i++) {
        if (vgpu_usage_slot(p, samples[i].pid) >= 0) {
            out->percent += samples[i].smUtil <= 100 ? samples[i].smUtil : 0;
            out->stamp_us = samples[i].timeStamp > out->stamp_us ? samples[i].timeStamp : out->stamp_us;
        } else {
            out->others |= samples[i].smUtil > 0;
            if (!out->other || samples[i].pid < out->other) {
                out->other = samples[i].pid;
                out->other_us = samples[i].timeStamp;
            }
        }
    }
    out->percent = out->percent > 100 ? 100 : out->percent;
    out->end = by_our_clock(out->stamp_us);
    return out->stamp_us > after_us;
}
