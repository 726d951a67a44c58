#include "usage.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "devices.h"
#include "kernel.h"
#include "ledger.h"

enum { SAMPLES = 256, MOST = 64 };

/* The inode of a kernel's first pid namespace, which is constant. */
#define FIRST_NAMESPACE UINT64_C(0xeffffffc)
#define RECENT_US UINT64_C(20000000)
#define COMPANY_NS UINT64_C(2000000000)

static uint32_t host_pid(const struct vgpu_region_slot *slot)
{
    uint32_t said = atomic_load_explicit((const _Atomic uint32_t *)&slot->host_pid, memory_order_relaxed);
    return said ? said : slot->pid_namespace == FIRST_NAMESPACE ? slot->pid : 0;
}

/* Return the PID by which NVML names the process of a slot to us; 0 if it cannot be known. */
static uint32_t named(const struct vgpu_process *p, const struct vgpu_region_slot *slot, enum vgpu_pids pids)
{
    if (pids == VGPU_PIDS_OWN) {
        return slot->pid_namespace == p->self.pid_namespace ? slot->pid : 0;
    }
    return pids == VGPU_PIDS_HOST ? host_pid(slot) : 0;
}

static uint32_t slots_of(const struct vgpu_process *p)
{
    return p->region ? vgpu_ledger_high(p->region) : 0;
}

int vgpu_usage_slot(const struct vgpu_process *p, uint32_t pid, enum vgpu_pids pids)
{
    uint32_t high = slots_of(p);
    for (uint32_t i = 0; i < high; i++) {
        const struct vgpu_region_slot *slot = &p->region->slots[i];
        if (atomic_load((const _Atomic uint64_t *)&slot->owner) && pid && named(p, slot, pids) == pid) {
            return (int)i;
        }
    }
    return -1;
}

uint32_t vgpu_usage_host_pid(const struct vgpu_process *p, uint32_t pid)
{
    int slot = vgpu_usage_slot(p, pid, VGPU_PIDS_OWN);
    return slot >= 0 ? host_pid(&p->region->slots[slot]) : 0;
}

int vgpu_usage_is_known(const struct vgpu_process *p, enum vgpu_pids pids)
{
    uint32_t high = slots_of(p), known = 0;
    for (uint32_t i = 0; i < high; i++) {
        const struct vgpu_region_slot *slot = &p->region->slots[i];
        uint64_t owner = atomic_load((const _Atomic uint64_t *)&slot->owner);
        if (owner && named(p, slot, pids)) {
            known = 1;
        } else if (owner && !vgpu_world->is_dead(owner & ~VGPU_OWNER_REAPING, &p->self)) {
            return 0;
        }
    }
    return (int)known;
}

static uint32_t pid_at(const unsigned *first, unsigned at, size_t stride)
{
    return *(const unsigned *)(const void *)((const char *)first + at * stride);
}

/* Return 1 if our namespace has a process for each of these PIDs, which is so if the list omits all other processes. */
static int are_in_sight(const unsigned *first, unsigned count, size_t stride)
{
    for (unsigned i = 0; i < count; i++) {
        if (vgpu_call(SYS_kill, (long)pid_at(first, i, stride), 0, 0, 0) == -ESRCH) {
            return 0;
        }
    }
    return 1;
}

enum vgpu_pids vgpu_usage_pids(const struct vgpu_process *p, const unsigned *first, unsigned count, size_t stride)
{
    unsigned own = 0, host = 0, self_own = 0, self_host = 0;
    if (p->self.pid_namespace == FIRST_NAMESPACE) {
        return VGPU_PIDS_HOST; /* both are the same */
    }
    for (unsigned i = 0; i < count; i++) {
        uint32_t pid = pid_at(first, i, stride);
        int by_own = vgpu_usage_slot(p, pid, VGPU_PIDS_OWN), by_host = vgpu_usage_slot(p, pid, VGPU_PIDS_HOST);
        own += by_own >= 0;
        host += by_host >= 0;
        self_own |= pid == p->self.pid;
        self_host |= by_host >= 0 && &p->region->slots[by_host] == atomic_load(&p->slot);
    }
    if (self_own != self_host) {
        return self_own ? VGPU_PIDS_OWN : VGPU_PIDS_HOST;
    }
    if (own != host) {
        return own > host ? VGPU_PIDS_OWN : VGPU_PIDS_HOST;
    }
    return !own ? VGPU_PIDS_UNKNOWN : are_in_sight(first, count, stride) ? VGPU_PIDS_OWN : VGPU_PIDS_HOST;
}

/* Start NVML and find the device, or an instance of that UUID: CUDA's bytes name either kind. */
static const struct vgpu_nvml *started(struct vgpu_process *p, const struct vgpu_device *device, nvmlDevice_t *handle)
{
    const struct vgpu_nvml *nvml = vgpu_world->nvml();
    char uuid[VGPU_UUID_BYTES];
    memcpy(uuid, device->uuid, sizeof uuid);
    if (!nvml || !nvml->nvmlDeviceGetHandleByUUID || !vgpu_devices_start_nvml(p, nvml)) {
        return NULL;
    }
    if (nvml->nvmlDeviceGetHandleByUUID(uuid, handle) != NVML_SUCCESS) {
        memcpy(uuid, "MIG", 3);
        return nvml->nvmlDeviceGetHandleByUUID(uuid, handle) == NVML_SUCCESS ? nvml : NULL;
    }
    return nvml;
}

/* A device's processes by the driver; freed by the caller where there are more than `few`. */
struct list {
    nvmlProcessInfo_t few[MOST], *all;
    unsigned count;
    enum vgpu_pids pids;
};

static int read_list(const struct vgpu_process *p, const struct vgpu_nvml *nvml, nvmlDevice_t handle, struct list *out)
{
    nvmlReturn_t (*read)(nvmlDevice_t, unsigned *, nvmlProcessInfo_t *) = nvml->nvmlDeviceGetComputeRunningProcesses_v3;
    read = read ? read : nvml->nvmlDeviceGetComputeRunningProcesses_v2;
    *out = (struct list){.all = out->few, .count = MOST};
    nvmlReturn_t result = read ? read(handle, &out->count, out->few) : NVML_ERROR_NOT_SUPPORTED;
    if (result == NVML_ERROR_INSUFFICIENT_SIZE) {
        out->count += 16; /* space for processes that start between the two calls */
        out->all = calloc(out->count, sizeof *out->all);
        result = out->all ? read(handle, &out->count, out->all) : NVML_ERROR_MEMORY;
    }
    out->count = result == NVML_SUCCESS ? out->count : 0;
    out->pids = vgpu_usage_pids(p, &out->all->pid, out->count, sizeof *out->all);
    /* Without a PID from the agent, a neighbour on the host may have the number that is ours here. */
    int is_nameless = out->pids == VGPU_PIDS_OWN && !vgpu_usage_host_pid(p, p->self.pid);
    if (is_nameless && !are_in_sight(&out->all->pid, out->count, sizeof *out->all)) {
        out->pids = VGPU_PIDS_UNKNOWN;
    }
    return result == NVML_SUCCESS;
}

static void drop_list(struct list *list)
{
    if (list->all != list->few) {
        free(list->all);
    }
}

int vgpu_usage_device(struct vgpu_process *p, const struct vgpu_device *device, uint64_t *used)
{
    nvmlDevice_t handle;
    nvmlMemory_t memory;
    const struct vgpu_nvml *nvml = started(p, device, &handle);
    if (!nvml || !nvml->nvmlDeviceGetMemoryInfo || nvml->nvmlDeviceGetMemoryInfo(handle, &memory) != NVML_SUCCESS) {
        return 0;
    }
    *used = memory.used;
    return 1;
}

int vgpu_usage_memory(struct vgpu_process *p, const struct vgpu_device *device, uint64_t *out)
{
    nvmlDevice_t handle;
    nvmlMemory_t memory;
    struct list list;
    const struct vgpu_nvml *nvml = started(p, device, &handle);
    int known = nvml && read_list(p, nvml, handle, &list);
    uint32_t pid = known ? named(p, atomic_load(&p->slot), list.pids) : 0;
    *out = 0;
    for (unsigned i = 0; known && i < list.count; i++) {
        if (pid && list.all[i].pid == pid) {
            *out = *out > UINT64_MAX - list.all[i].usedGpuMemory ? UINT64_MAX : *out + list.all[i].usedGpuMemory;
        }
    }
    if (known) {
        drop_list(&list);
    }
    /* Drivers that cannot tell return 0 or "not available"; no process holds more than the device has. */
    int is_lie = *out && nvml->nvmlDeviceGetMemoryInfo && nvml->nvmlDeviceGetMemoryInfo(handle, &memory) == NVML_SUCCESS &&
                 *out > memory.total;
    return *out && *out != UINT64_MAX && !is_lie;
}

int vgpu_usage_is_alone(const struct vgpu_process *p, const struct vgpu_device *device)
{
    return p->page && vgpu_is_before(vgpu_world->now(), vgpu_at(vgpu_page_limits(p->page, device->uuid).alone_until_ns));
}

/* Return 1 if others were active recently. Where lists hide contexts, this stands for them. */
static int had_company(const struct vgpu_process *p, const struct vgpu_device *device)
{
    uint64_t seen_ns = atomic_load((const _Atomic uint64_t *)&p->region->columns[device->column].bucket.others_ns);
    struct vgpu_instant seen = vgpu_at(seen_ns), now = vgpu_world->now();
    return seen.ns && (!vgpu_is_before(seen, now) || vgpu_between(seen, now) < COMPANY_NS);
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

/* Add up the samples of this container, and note whether others have any. */
static void add_up(const struct vgpu_process *p, const nvmlProcessUtilizationSample_t *samples, unsigned count,
                   enum vgpu_pids pids, struct vgpu_measurement *out)
{
    for (unsigned i = 0; i < count; i++) {
        if (vgpu_usage_slot(p, samples[i].pid, pids) >= 0) {
            out->percent += samples[i].smUtil <= 100 ? samples[i].smUtil : 0;
            out->stamp_us = samples[i].timeStamp > out->stamp_us ? samples[i].timeStamp : out->stamp_us;
        } else {
            out->others |= samples[i].smUtil > 0;
        }
    }
    out->percent = out->percent > 100 ? 100 : out->percent;
}

int vgpu_usage_measure(void *owner, int ordinal, uint64_t since_us, struct vgpu_measurement *out)
{
    struct vgpu_process *p = owner;
    const struct vgpu_device *device = vgpu_device_of_ordinal(p, vgpu_world->cuda(), ordinal);
    const struct vgpu_nvml *nvml;
    nvmlProcessUtilizationSample_t samples[SAMPLES];
    struct list list;
    nvmlDevice_t handle;
    unsigned count = SAMPLES;
    /* Without the region this is unknown: the limit applies, and no part of a kernel's time is attributed to neighbours.
     * Otherwise a container could get more of an idle device by truncating its region. */
    *out = (struct vgpu_measurement){.others = 1, .neighbours = 0, .others_known = 1};
    if (!device || device->column < 0 || !vgpu_process_slot(p) || !slots_of(p)) {
        return 0;
    }
    int is_alone = vgpu_usage_is_alone(p, device);
    out->others = out->neighbours = !is_alone;
    if (!(nvml = started(p, device, &handle)) || !nvml->nvmlDeviceGetProcessUtilization) {
        return 0;
    }
    uint64_t after_us = is_ahead(since_us) ? 0 : since_us;
    nvmlReturn_t result = nvml->nvmlDeviceGetProcessUtilization(handle, samples, &count, after_us);
    if ((result != NVML_SUCCESS || count > SAMPLES) && result != NVML_ERROR_NOT_FOUND) {
        return 0;
    }
    count = result == NVML_SUCCESS ? count : 0;
    unsigned ours = 0;
    read_list(p, nvml, handle, &list);
    for (unsigned i = 0; i < list.count; i++) {
        ours += vgpu_usage_slot(p, list.all[i].pid, list.pids) >= 0;
    }
    int shows_all = list.pids == VGPU_PIDS_HOST && ours, shows_others = ours < list.count;
    /* No driver translates samples without translating lists. */
    enum vgpu_pids pids = shows_all ? VGPU_PIDS_HOST : vgpu_usage_pids(p, &samples[0].pid, count, sizeof samples[0]);
    drop_list(&list);
    if (count && !vgpu_usage_is_known(p, pids)) {
        return 0; /* what looks like others may be us */
    }
    out->others = 0;
    add_up(p, samples, count, pids, out);
    out->neighbours = shows_all ? shows_others : out->others || had_company(p, device);
    if (is_alone) {
        out->others = out->neighbours = 0; /* the remaining samples are from processes that have ended */
    }
    out->end = by_our_clock(out->stamp_us);
    return out->stamp_us > after_us;
}
