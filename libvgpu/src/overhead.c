#include "overhead.h"

#include <stdlib.h>
#include <string.h>

#include "authority.h"
#include "devices.h"
#include "ledger.h"
#include "pools.h"
#include "usage.h"

#define LOOK_EVERY_NS UINT64_C(100000000)
#define LOOK_SELDOM_NS UINT64_C(1000000000)
#define LOOK_ANYWAY 256 /* allocations after which it is read in any case */
/* Reading may take one part in this many of the time. */
#define LOOK_SHARE 100
/* The cost of a context is unknown until the driver or the agent has shown one. Until then this much is assumed for each,
 * an estimate above what is reported for V100 to H100. */
#define GUESS_BYTES (UINT64_C(64) << 20)
#define GUESS_BYTES_A_PROCESSOR (UINT64_C(4) << 20)
/* The stored cost if contexts were seen to take nothing. */
#define COSTS_NOTHING UINT64_C(1)
/* How long to wait, in naps, for another process of the container to find out. */
#define PATIENCE_NS UINT64_C(250000000)
#define NAP_NS UINT64_C(1000000)

typedef _Atomic uint64_t word;

/* Read what the agent found. */
static int seen_by_agent(const struct vgpu_device *device, const struct vgpu_region_slot *slot, uint64_t *out)
{
    int is_told = device->column < (int)VGPU_SEEN_COLUMNS;
    *out = is_told ? atomic_load((const _Atomic uint32_t *)&slot->seen[device->column]) * (uint64_t)VGPU_MANAGED_UNIT : 0;
    return *out != 0;
}

/* Measure the real overhead. Return 0 if that is not possible. The caller holds the device's lock. */
static int measure(struct vgpu_process *p, const struct vgpu_device *device, struct vgpu_region_slot *slot,
                   const struct vgpu_overhead *over, uint64_t *out)
{
    const word *used = (const word *)&slot->used[device->column];
    for (int tries = 0; tries < 3; tries++) {
        uint64_t before = atomic_load(used), figure;
        if (!vgpu_usage_memory(p, device, &figure)) {
            return 0;
        }
        /* Other threads may change both amounts in between; a figure that mixes two moments is useless. */
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

/* Forget the figure that the agent wrote: it is older than the change. */
static void forget_seen(const struct vgpu_device *device, struct vgpu_region_slot *slot)
{
    if (device->column < (int)VGPU_SEEN_COLUMNS) {
        atomic_store((_Atomic uint32_t *)&slot->seen[device->column], 0);
    }
}

static void lower_to(const struct vgpu_device *device, struct vgpu_region_slot *slot, struct vgpu_overhead *over, uint64_t bytes)
{
    if (bytes < over->charged) {
        forget_seen(device, slot);
        vgpu_ledger_release(slot, (unsigned)device->column, over->charged - bytes);
        book(device, slot, over, bytes);
    }
}

static int reserve(struct vgpu_process *p, const struct vgpu_device *device, int ordinal, struct vgpu_region_slot *slot,
                   struct vgpu_overhead *over, uint64_t more)
{
    if (more &&
        !vgpu_ledger_reserve(p->region, slot, &p->self, (unsigned)device->column, more, vgpu_budget(p, device->uuid, ordinal))) {
        return 0;
    }
    book(device, slot, over, over->charged + more);
    return 1;
}

static int raise_to(struct vgpu_process *p, const struct vgpu_cuda *cuda, int ordinal, const struct vgpu_device *device,
                    struct vgpu_region_slot *slot, struct vgpu_overhead *over, uint64_t bytes)
{
    uint64_t more = bytes > over->charged ? bytes - over->charged : 0;
    if (reserve(p, device, ordinal, slot, over, more) ||
        (vgpu_pools_squeeze(p, cuda) && reserve(p, device, ordinal, slot, over, more))) {
        return 1;
    }
    vgpu_ledger_denied(p->region, (unsigned)device->column);
    return 0;
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
    bytes = bytes ? bytes : COSTS_NOTHING;
    while (seen < bytes && !atomic_compare_exchange_weak(at, &seen, bytes)) {
    }
}

/* Return what a context of this device may cost. */
static uint64_t guess(const struct vgpu_cuda *cuda, CUdevice ordinal)
{
    int processors = 0;
    if (!cuda->cuDeviceGetAttribute ||
        cuda->cuDeviceGetAttribute(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, ordinal) != CUDA_SUCCESS) {
        processors = 0;
    }
    return GUESS_BYTES + GUESS_BYTES_A_PROCESSOR * (uint64_t)(processors > 0 ? processors : 0);
}

/* Reserve the cost of a context. If it is not known, reserve what it may cost. If that does not fit, wait for another process
 * to learn the cost; if nothing else is held, this context itself shows whether it fits. Return 0 if it must not be created. */
static int reserve_cost(struct vgpu_new_context *it, const struct vgpu_cuda *cuda, const struct vgpu_device *device,
                        struct vgpu_region_slot *slot, struct vgpu_overhead *over)
{
    struct vgpu_process *p = it->process;
    uint64_t limit = vgpu_budget(p, device->uuid, it->ordinal).device, cost;
    struct vgpu_instant began = vgpu_world->now();
    while (!(cost = known_cost(p, device, it->ordinal)) && limit && limit != VGPU_UNLIMITED) {
        it->guess = guess(cuda, it->ordinal);
        if (reserve(p, device, it->ordinal, slot, over, it->guess)) {
            break;
        }
        vgpu_ledger_reap(p->region, &p->self);
        if (!vgpu_ledger_used(p->region, (unsigned)device->column) && reserve(p, device, it->ordinal, slot, over, limit)) {
            break;
        }
        if (vgpu_between(began, vgpu_world->now()) > PATIENCE_NS) {
            vgpu_ledger_denied(p->region, (unsigned)device->column);
            return 0;
        }
        it->guess = 0;
        vgpu_world->sleep_for(NAP_NS);
    }
    if (it->guess) {
        it->ledger_used = vgpu_ledger_used(p->region, (unsigned)device->column);
        it->is_told = vgpu_usage_device(p, device, &it->device_used);
        return 1;
    }
    it->cost = limit && cost > COSTS_NOTHING ? cost : 0;
    return raise_to(p, cuda, it->ordinal, device, slot, over, over->charged + it->cost);
}

CUresult vgpu_context_begin(struct vgpu_new_context *it, const struct vgpu_cuda *cuda, CUdevice ordinal)
{
    struct vgpu_process *p = vgpu_process();
    *it = (struct vgpu_new_context){.ordinal = ordinal};
    if (!p || vgpu_limits_nothing(p)) {
        return CUDA_SUCCESS;
    }
    const struct vgpu_device *device = vgpu_device_of_ordinal(p, cuda, ordinal);
    if (!device) {
        return CUDA_SUCCESS; /* no such device: the driver returns its own error */
    }
    struct vgpu_region_slot *slot = device->column >= 0 ? vgpu_process_slot(p) : NULL;
    if (!slot) {
        return CUDA_SUCCESS; /* memory will be denied, but a context alone may be created, as without a grant */
    }
    struct vgpu_overhead *over = &p->overheads[ordinal];
    vgpu_calm_take(&over->lock);
    it->process = p;
    it->before = over->charged;
    if (!reserve_cost(it, cuda, device, slot, over)) {
        vgpu_calm_drop(&over->lock);
        it->process = NULL;
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return CUDA_SUCCESS;
}

/* Postpone NVML: starting it takes time, and a program that is just starting must not wait for it. */
static void look_later(struct vgpu_process *p)
{
    struct vgpu_instant never = {0};
    atomic_compare_exchange_strong(&p->overhead_next, &never, vgpu_later(vgpu_world->now(), LOOK_EVERY_NS));
    vgpu_overhead_grew(p);
}

/* Find out how much of its device is in use, from NVML or else from the new context. */
static int used_now(const struct vgpu_new_context *it, const struct vgpu_cuda *cuda, const struct vgpu_device *device,
                    uint64_t *out)
{
    size_t free_bytes = 0, total = 0;
    CUcontext context = it->made;
    if (vgpu_usage_device(it->process, device, out)) {
        return 1;
    }
    if (!cuda->cuMemGetInfo_v2 || !cuda->cuCtxPushCurrent_v2 || cuda->cuCtxPushCurrent_v2(context) != CUDA_SUCCESS) {
        return 0;
    }
    CUresult result = cuda->cuMemGetInfo_v2(&free_bytes, &total);
    cuda->cuCtxPopCurrent_v2(&context);
    *out = total - free_bytes;
    return result == CUDA_SUCCESS && free_bytes <= total;
}

/* Return what to charge for a context if the driver does not show its process: by how much the device's use grew. If others
 * may have taken or freed memory in the meantime, this only counts as far as it is likely. */
static uint64_t believed(const struct vgpu_new_context *it, const struct vgpu_cuda *cuda, const struct vgpu_device *device)
{
    uint64_t used;
    if (!used_now(it, cuda, device, &used)) {
        return it->guess;
    }
    if (!it->is_told) {
        return used < it->guess ? used : it->guess;
    }
    uint64_t grew = used > it->device_used ? used - it->device_used : 0;
    int is_quiet = vgpu_usage_is_alone(it->process, device) && used >= it->device_used &&
                   vgpu_ledger_used(it->process->region, (unsigned)device->column) == it->ledger_used;
    return used == it->device_used || (is_quiet && grew < it->guess) ? grew
           : grew < it->guess                                        ? it->guess
           : grew > 2 * it->guess                                    ? 2 * it->guess
                                                                     : grew;
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
    uint64_t grew = it->guess ? believed(it, cuda, device) : 0;
    int is_known = measure(p, device, slot, over, &real);
    if (it->guess && !grew) {
        real = it->before;
        learn(p, device, 0);
    } else if (!is_known) {
        real = it->before + grew;
        over->is_guess |= grew != 0;
        vgpu_overhead_grew(p); /* compare later, when the driver or the agent knows */
    } else if (!over->contexts) {
        learn(p, device, real > it->before ? real - it->before : 0);
    } else if (it->guess) {
        /* Reservations of other threads that are not used yet look like less overhead, so it stays until that is certain. */
        real = real > over->charged ? real : over->charged;
        over->is_guess = 1;
        vgpu_overhead_grew(p);
    }
    if (real > over->charged && vgpu_limit(p, device->uuid, it->ordinal) &&
        !raise_to(p, cuda, it->ordinal, device, slot, over, real)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (it->guess) {
        lower_to(device, slot, over, real);
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
        forget_seen(&it->process->devices[it->ordinal], vgpu_process_slot(it->process));
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
        over->is_guess &= over->contexts != 0;
    }
    vgpu_calm_drop(&over->lock);
}

void vgpu_overhead_grew(struct vgpu_process *p)
{
    atomic_store_explicit(&p->overhead_due, 1, memory_order_relaxed);
}

/* Give back a guess that was too high once two comparisons agree, because no reservation lasts that long. */
static void replace_guess(struct vgpu_process *p, const struct vgpu_device *device, struct vgpu_region_slot *slot,
                          struct vgpu_overhead *over, uint64_t real)
{
    uint64_t used = atomic_load((const word *)&slot->used[device->column]);
    if (used == over->last_used && real == over->last_real) {
        lower_to(device, slot, over, real);
        over->is_guess = 0;
        if (over->contexts == 1) {
            learn(p, device, real);
        }
    }
    over->last_used = used;
    over->last_real = real;
    if (over->is_guess) {
        vgpu_overhead_grew(p);
    }
}

/* Compare one device. Everything it holds is charged, even above the limit. */
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
        int is_told = known || seen_by_agent(device, slot, &real);
        if (is_told && real > over->charged) {
            vgpu_ledger_add(slot, (unsigned)device->column, real - over->charged);
            book(device, slot, over, real);
            if (over->contexts == 1) {
                learn(p, device, real); /* the next process here will probably load the same modules */
            }
        } else if (is_told && over->is_guess) {
            replace_guess(p, device, slot, over, real);
        }
    }
    vgpu_calm_drop(&over->lock);
    return known;
}

void vgpu_overhead_look(struct vgpu_process *p, const struct vgpu_cuda *cuda)
{
    (void)cuda;
    /* Kernels are loaded at their first launch, which no hook sees, so the figure is also read from time to time. */
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
    /* Ask less and less often if the driver itself never gives a figure (the agent looks once a second), and rarely if it
     * answers slowly. */
    vgpu_duration took = vgpu_between(now, vgpu_world->now()), wait = atomic_load(&p->overhead_wait);
    wait = known ? LOOK_EVERY_NS : wait < LOOK_EVERY_NS ? LOOK_EVERY_NS : wait > LOOK_SELDOM_NS / 2 ? LOOK_SELDOM_NS : wait * 2;
    atomic_store(&p->overhead_wait, wait);
    atomic_store(&p->overhead_next, vgpu_later(now, took > wait / LOOK_SHARE ? took * LOOK_SHARE : wait));
    if (!known) {
        vgpu_overhead_grew(p);
    }
}
