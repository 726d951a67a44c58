#include "overhead.h"

#include <stdlib.h>
#include <string.h>

#include "authority.h"
#include "devices.h"
#include "ledger.h"
#include "pools.h"

#define LOOK_EVERY_NS UINT64_C(100000000)
#define LOOK_SELDOM_NS UINT64_C(5000000000)
#define LOOK_ANYWAY 256 /* allocations after which it looks in any case */
/* Looking may take one part in this many of the time. */
#define LOOK_SHARE 100
/* The inode of a kernel's first pid namespace, which is constant. */
#define FIRST_NAMESPACE UINT64_C(0xeffffffc)

typedef _Atomic uint64_t word;

static uint32_t host_pid(const struct vgpu_process *p, const struct vgpu_region_slot *slot)
{
    uint32_t said = atomic_load((const _Atomic uint32_t *)&slot->host_pid);
    return said ? said : p->self.pid_namespace == FIRST_NAMESPACE ? p->self.pid : 0;
}

static const struct vgpu_nvml *started_nvml(struct vgpu_process *p)
{
    const struct vgpu_nvml *nvml = vgpu_world->nvml();
    if (!nvml || !nvml->nvmlDeviceGetHandleByUUID || !nvml->nvmlDeviceGetComputeRunningProcesses_v3) {
        return NULL;
    }
    return vgpu_devices_start_nvml(p, nvml) ? nvml : NULL;
}

/* Read from NVML how many bytes of a device this process holds. Return 0 if NVML does not report it. */
static int figure_of(struct vgpu_process *p, const struct vgpu_device *device, uint32_t pid, uint64_t *out)
{
    const struct vgpu_nvml *nvml = pid ? started_nvml(p) : NULL;
    char uuid[VGPU_UUID_BYTES];
    nvmlDevice_t handle;
    unsigned count = 0;
    int known = 0;
    *out = 0;
    memcpy(uuid, device->uuid, sizeof uuid);
    if (!nvml) {
        return 0;
    }
    if (nvml->nvmlDeviceGetHandleByUUID(uuid, &handle) != NVML_SUCCESS) {
        memcpy(uuid, "MIG", 3); /* an instance; CUDA's bytes name either kind */
        if (nvml->nvmlDeviceGetHandleByUUID(uuid, &handle) != NVML_SUCCESS) {
            return 0;
        }
    }
    nvml->nvmlDeviceGetComputeRunningProcesses_v3(handle, &count, NULL);
    count += 16; /* room for processes that start meanwhile */
    nvmlProcessInfo_t *list = calloc(count, sizeof *list);
    if (list && nvml->nvmlDeviceGetComputeRunningProcesses_v3(handle, &count, list) == NVML_SUCCESS) {
        for (unsigned i = 0; i < count; i++) {
            if (list[i].pid == pid && list[i].usedGpuMemory != UINT64_MAX) {
                *out += list[i].usedGpuMemory;
                known = 1;
            }
        }
    }
    free(list);
    return known;
}

/* Under the device's lock: measure the real overhead. Return 0 if that is not possible. */
static int measure(struct vgpu_process *p, const struct vgpu_device *device, struct vgpu_region_slot *slot,
                   const struct vgpu_overhead *over, uint64_t *out)
{
    const word *used = (const word *)&slot->used[device->column];
    for (int tries = 0; tries < 3; tries++) {
        uint64_t before = atomic_load(used), figure;
        if (!figure_of(p, device, host_pid(p, slot), &figure)) {
            return 0;
        }
        /* Other threads may change both amounts meanwhile; a figure that mixes two moments is useless. */
        if (atomic_load(used) == before && before >= over->charged) {
            uint64_t memory = before - over->charged;
            *out = figure > memory ? figure - memory : 0;
            return 1;
        }
    }
    return 0;
}

static void book(const struct vgpu_device *device, struct vgpu_region_slot *slot, struct vgpu_overhead *over, uint64_t bytes)
{
    over->charged = bytes;
    atomic_store((word *)&slot->overhead[device->column], bytes);
}

static void lower_to(const struct vgpu_device *device, struct vgpu_region_slot *slot, struct vgpu_overhead *over, uint64_t bytes)
{
    if (bytes < over->charged) {
        vgpu_ledger_release(slot, (unsigned)device->column, over->charged - bytes);
        book(device, slot, over, bytes);
    }
}

static int raise_to(struct vgpu_process *p, const struct vgpu_cuda *cuda, int ordinal, const struct vgpu_device *device,
                    struct vgpu_region_slot *slot, struct vgpu_overhead *over, uint64_t bytes)
{
    struct vgpu_budget budget = vgpu_budget(p, device->uuid, ordinal);
    uint64_t more = bytes > over->charged ? bytes - over->charged : 0;
    if (more && !vgpu_ledger_reserve(p->region, slot, &p->self, (unsigned)device->column, more, budget) &&
        !(vgpu_pools_squeeze(p, cuda) &&
          vgpu_ledger_reserve(p->region, slot, &p->self, (unsigned)device->column, more, budget))) {
        vgpu_ledger_denied(p->region, (unsigned)device->column);
        return 0;
    }
    book(device, slot, over, over->charged + more);
    return 1;
}

/* Return the cost of a context as this container has learned it, or as its page says. */
static uint64_t known_cost(struct vgpu_process *p, const struct vgpu_device *device, int ordinal)
{
    uint64_t seen = atomic_load((const word *)&p->region->columns[device->column].context_bytes);
    uint64_t given = vgpu_context_price(p, device->uuid, ordinal);
    return seen > given ? seen : given;
}

static void learn(struct vgpu_process *p, const struct vgpu_device *device, uint64_t bytes)
{
    word *at = (word *)&p->region->columns[device->column].context_bytes;
    uint64_t seen = atomic_load(at);
    while (seen < bytes && !atomic_compare_exchange_weak(at, &seen, bytes)) {
    }
}

CUresult vgpu_context_begin(struct vgpu_new_context *it, const struct vgpu_cuda *cuda, CUdevice ordinal)
{
    struct vgpu_process *p = vgpu_process();
    it->process = NULL;
    if (!p || vgpu_limits_nothing(p)) {
        return CUDA_SUCCESS;
    }
    const struct vgpu_device *device = vgpu_device_of_ordinal(p, cuda, ordinal);
    if (!device) {
        return CUDA_SUCCESS; /* no such device: the driver returns its own error */
    }
    struct vgpu_region_slot *slot = device->column >= 0 ? vgpu_process_slot(p) : NULL;
    if (!slot) {
        return CUDA_SUCCESS; /* memory will be denied; a context alone may be created, as where nothing is granted */
    }
    struct vgpu_overhead *over = &p->overheads[ordinal];
    vgpu_calm_take(&over->lock);
    it->before = over->charged;
    it->cost = vgpu_limit(p, device->uuid, ordinal) ? known_cost(p, device, ordinal) : 0;
    if (!raise_to(p, cuda, ordinal, device, slot, over, over->charged + it->cost)) {
        vgpu_calm_drop(&over->lock);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    it->process = p;
    it->ordinal = ordinal;
    return CUDA_SUCCESS;
}

/* Postpone NVML: starting it takes time, and a program that is just starting must not wait for it. */
static void look_later(struct vgpu_process *p)
{
    struct vgpu_instant never = {0};
    atomic_compare_exchange_strong(&p->overhead_next, &never, vgpu_later(vgpu_world->now(), LOOK_EVERY_NS));
    vgpu_overhead_grew(p);
}

CUresult vgpu_context_made(struct vgpu_new_context *it, const struct vgpu_cuda *cuda, CUresult result)
{
    struct vgpu_process *p = it->process;
    uint64_t real = 0;
    if (!p || result != CUDA_SUCCESS) {
        return result;
    }
    if (it->cost) {
        look_later(p);
        return CUDA_SUCCESS;
    }
    const struct vgpu_device *device = &p->devices[it->ordinal];
    struct vgpu_region_slot *slot = vgpu_process_slot(p);
    struct vgpu_overhead *over = &p->overheads[it->ordinal];
    if (!measure(p, device, slot, over, &real)) {
        vgpu_overhead_grew(p); /* later, once the agent has written our host PID */
        return CUDA_SUCCESS;
    }
    if (!over->contexts) {
        learn(p, device, real > it->before ? real - it->before : 0);
    }
    /* A figure never lowers the charge: reservations of other threads that are not used yet would look like shrinking
     * overhead. */
    if (real > over->charged && vgpu_limit(p, device->uuid, it->ordinal) &&
        !raise_to(p, cuda, it->ordinal, device, slot, over, real)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return CUDA_SUCCESS;
}

void vgpu_context_end(struct vgpu_new_context *it, CUresult result)
{
    if (!it->process) {
        return;
    }
    struct vgpu_overhead *over = &it->process->overheads[it->ordinal];
    if (result == CUDA_SUCCESS) {
        it->charged = over->charged - it->before;
        over->contexts++;
    } else {
        lower_to(&it->process->devices[it->ordinal], vgpu_process_slot(it->process), over, it->before);
    }
    vgpu_calm_drop(&over->lock);
}

void vgpu_context_gone(struct vgpu_process *p, const struct vgpu_cuda *cuda, int ordinal, uint64_t charged)
{
    if (!p || ordinal < 0 || ordinal >= (int)VGPU_MAX_DEVICES) {
        return;
    }
    const struct vgpu_device *device = vgpu_device_of_ordinal(p, cuda, ordinal);
    struct vgpu_overhead *over = &p->overheads[ordinal];
    vgpu_calm_take(&over->lock);
    if (over->contexts && device) {
        over->contexts--;
        uint64_t left = over->charged > charged ? over->charged - charged : 0;
        lower_to(device, vgpu_process_slot(p), over, over->contexts ? left : 0);
    }
    vgpu_calm_drop(&over->lock);
}

void vgpu_overhead_grew(struct vgpu_process *p)
{
    atomic_store_explicit(&p->overhead_due, 1, memory_order_relaxed);
}

/* Look at one device. Whatever it holds is charged, even beyond the limit. */
static int look(struct vgpu_process *p, int ordinal)
{
    struct vgpu_overhead *over = &p->overheads[ordinal];
    const struct vgpu_device *device = &p->devices[ordinal];
    uint64_t real = 0;
    int known = 1;
    if (!vgpu_calm_try(&over->lock)) {
        return 0; /* a context is being created, which may take long; no allocation waits for that */
    }
    if (over->contexts && atomic_load_explicit(&device->known, memory_order_acquire)) {
        struct vgpu_region_slot *slot = vgpu_process_slot(p);
        known = measure(p, device, slot, over, &real);
        if (known && real > over->charged) {
            vgpu_ledger_add(slot, (unsigned)device->column, real - over->charged);
            book(device, slot, over, real);
            if (over->contexts == 1) {
                learn(p, device, real); /* the next process here will probably load the same modules */
            }
        }
    }
    vgpu_calm_drop(&over->lock);
    return known;
}

void vgpu_overhead_look(struct vgpu_process *p, const struct vgpu_cuda *cuda)
{
    (void)cuda;
    /* Kernels are loaded at their first launch, which no hook sees, so the figure is read now and then in any case. */
    if (!atomic_load_explicit(&p->overhead_due, memory_order_relaxed) &&
        vgpu_objects_now(&p->objects) % LOOK_ANYWAY != LOOK_ANYWAY - 1) {
        return;
    }
    struct vgpu_instant next = atomic_load_explicit(&p->overhead_next, memory_order_relaxed);
    if (next.ns && vgpu_is_before(vgpu_world->about_now(), next)) {
        return;
    }
    struct vgpu_instant now = vgpu_world->now();
    if (vgpu_is_before(now, next) || !atomic_compare_exchange_strong(&p->overhead_next, &next, vgpu_at(UINT64_MAX))) {
        return; /* too soon, or another thread is doing it */
    }
    atomic_store(&p->overhead_due, 0);
    int known = 1;
    for (int i = 0; i < (int)VGPU_MAX_DEVICES; i++) {
        known &= look(p, i);
    }
    /* Ask less and less often for a figure that never comes, and seldom if the driver answers slowly. */
    vgpu_duration took = vgpu_between(now, vgpu_world->now()), wait = atomic_load(&p->overhead_wait);
    wait = known ? LOOK_EVERY_NS : wait < LOOK_EVERY_NS ? LOOK_EVERY_NS : wait > LOOK_SELDOM_NS / 2 ? LOOK_SELDOM_NS : wait * 2;
    atomic_store(&p->overhead_wait, wait);
    atomic_store(&p->overhead_next, vgpu_later(now, took > wait / LOOK_SHARE ? took * LOOK_SHARE : wait));
    if (!known) {
        vgpu_overhead_grew(p);
    }
}
