#include "launch.h"

#include <sys/mman.h>

#include "authority.h"
#include "devices.h"
#include "guesses.h"
#include "kernel.h"
#include "usage.h"

_Thread_local struct vgpu_hand vgpu_hand;

static struct vgpu_share share_by(struct vgpu_process *p, const char *uuid, int ordinal, struct vgpu_share otherwise)
{
    struct vgpu_limits limits;
    if (!vgpu_limits_of_compute(p, uuid, ordinal, &limits)) {
        return otherwise;
    }
    if (limits.policy == VGPU_CORES_DISABLE || !limits.cores || limits.cores >= 100) {
        limits.cores = 0;
    }
    if (limits.ceiling && limits.ceiling < 100 && (!limits.cores || limits.ceiling < limits.cores)) {
        return (struct vgpu_share){.percent = limits.ceiling, .always = 1};
    }
    return (struct vgpu_share){.percent = limits.cores, .always = limits.policy == VGPU_CORES_FORCE};
}

struct vgpu_share vgpu_share_of(struct vgpu_process *p, int ordinal)
{
    /* A page that no longer grants anything does not lift the limit: programs that run continue, new ones hardly progress. */
    struct vgpu_share otherwise = {.percent = 1, .always = 1};
    struct vgpu_throttle *throttle = atomic_load_explicit(&p->throttle, memory_order_acquire);
    if (ordinal < 0 || ordinal >= (int)VGPU_MAX_DEVICES) {
        return otherwise;
    }
    uint64_t last = throttle ? atomic_load_explicit(&throttle->devices[ordinal].last, memory_order_relaxed) : 0;
    if (last) {
        otherwise = (struct vgpu_share){.percent = (uint32_t)last & 0xff, .always = last >> 8 & 1};
    }
    const struct vgpu_device *device = vgpu_device_of_ordinal(p, vgpu_world->cuda(), ordinal);
    struct vgpu_share share = device ? share_by(p, device->uuid, ordinal, otherwise) : otherwise;
    if (throttle) {
        uint64_t now = UINT64_C(1) << 9 | (uint64_t)(share.always != 0) << 8 | (share.percent & 0xff);
        atomic_store_explicit(&throttle->devices[ordinal].last, now, memory_order_relaxed);
    }
    return share;
}

uint32_t vgpu_share_of_handle(struct vgpu_process *p, const struct vgpu_nvml *nvml, nvmlDevice_t device)
{
    char uuid[VGPU_UUID_BYTES];
    unsigned index = 0;
    if (!nvml->nvmlDeviceGetUUID || nvml->nvmlDeviceGetUUID(device, uuid, sizeof uuid) != NVML_SUCCESS) {
        return 0;
    }
    if (p->authority == VGPU_ENV && nvml->nvmlDeviceGetIndex) {
        nvml->nvmlDeviceGetIndex(device, &index);
    }
    return share_by(p, uuid, (int)index, (struct vgpu_share){0}).percent;
}

unsigned vgpu_percent_of_slice(struct vgpu_process *p, const struct vgpu_nvml *nvml, nvmlDevice_t device, unsigned percent)
{
    uint32_t share = vgpu_share_of_handle(p, nvml, device);
    percent = share && share < 100 ? percent * 100 / share : percent;
    return percent > 100 ? 100 : percent;
}

/* The throttle asks for the share before it looks at the region: at first, and after each nap. */
static struct vgpu_share share_of(void *owner, int ordinal)
{
    struct vgpu_instant now = vgpu_world->now();
    vgpu_process_check(owner, now);
    vgpu_guesses_collect(owner, now);
    return vgpu_share_of(owner, ordinal);
}

/* Return the device's bucket in the region, or the process's own one if there is no region. */
static struct vgpu_region_bucket *bucket_of(void *owner, int ordinal)
{
    struct vgpu_process *p = owner;
    const struct vgpu_device *device = vgpu_device_of_ordinal(p, vgpu_world->cuda(), ordinal);
    if (device && device->column >= 0) {
        return &p->region->columns[device->column].bucket;
    }
    return &atomic_load_explicit(&p->throttle, memory_order_acquire)->own[ordinal];
}

/* Return the buckets of other devices, whichever processes use them: each rank of a job has a device. */
static struct vgpu_region_bucket *peer_of(void *owner, int ordinal, unsigned n)
{
    struct vgpu_process *p = owner;
    const struct vgpu_device *device = vgpu_device_of_ordinal(p, vgpu_world->cuda(), ordinal);
    int listed = device && device->column >= 0;
    unsigned at = n + (n >= (unsigned)(listed ? device->column : ordinal));
    if (at >= VGPU_MAX_DEVICES) {
        return NULL;
    }
    return listed ? &p->region->columns[at].bucket : &atomic_load_explicit(&p->throttle, memory_order_acquire)->own[at];
}

static void guessed(void *owner, int ordinal, struct vgpu_instant since, uint64_t charged_ns)
{
    struct vgpu_process *p = owner;
    const struct vgpu_device *device = since.ns ? vgpu_device_of_ordinal(p, vgpu_world->cuda(), ordinal) : NULL;
    struct vgpu_share share = device ? vgpu_share_of(p, ordinal) : (struct vgpu_share){0};
    int listed = device && device->column >= 0;
    int held = listed && vgpu_share_is_limited(&share) &&
               (share.always || vgpu_bucket_has_company(&p->region->columns[device->column].bucket, since));
    if (p->region) {
        vgpu_guess_write(p, listed ? device->column : 0, held ? share.percent : 0, since, charged_ns);
    }
}

static uint32_t sms_of(void *owner, int ordinal)
{
    const struct vgpu_cuda *cuda = vgpu_world->cuda();
    int sms = 0;
    (void)owner;
    if (!cuda->cuDeviceGetAttribute ||
        cuda->cuDeviceGetAttribute(&sms, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, ordinal) != CUDA_SUCCESS || sms <= 0) {
        return 64;
    }
    return (uint32_t)sms;
}

static struct vgpu_throttle *throttle_of(struct vgpu_process *p)
{
    struct vgpu_throttle *throttle = atomic_load_explicit(&p->throttle, memory_order_acquire), *seen = NULL;
    if (throttle) {
        return throttle;
    }
    void *fresh = vgpu_kernel_map(sizeof *throttle, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    if (!fresh) {
        return NULL;
    }
    throttle = fresh;
    throttle->owner = p;
    throttle->share = share_of;
    throttle->bucket = bucket_of;
    throttle->sms = sms_of;
    throttle->peer = peer_of;
    throttle->measure = vgpu_usage_measure;
    throttle->guessed = guessed;
    if (!atomic_compare_exchange_strong(&p->throttle, &seen, throttle)) {
        vgpu_call(SYS_munmap, (long)fresh, sizeof *throttle, 0, 0);
        return seen;
    }
    return throttle;
}

/* Return 1 if this process has a device with a share to enforce. */
static int anything_limited(struct vgpu_process *p, const struct vgpu_cuda *cuda)
{
    int count = atomic_load_explicit(&p->device_count, memory_order_relaxed);
    if (!count) {
        if (!cuda->cuDeviceGetCount || cuda->cuDeviceGetCount(&count) != CUDA_SUCCESS) {
            return 1;
        }
        atomic_store_explicit(&p->device_count, count, memory_order_relaxed);
    }
    for (int i = 0; i < count && i < (int)VGPU_MAX_DEVICES; i++) {
        struct vgpu_share share = vgpu_share_of(p, i);
        if (share.percent && share.percent < 100) {
            return 1;
        }
    }
    return count > (int)VGPU_MAX_DEVICES;
}

void vgpu_pass_slowly(struct vgpu_pass *pass, struct vgpu_process *p, const struct vgpu_cuda *cuda, uint64_t function,
                      uint64_t blocks, uint32_t threads, CUstream stream, int ordinal)
{
    uint32_t page = vgpu_page_seq(p);
    if (vgpu_hand.process != p->cookie || vgpu_hand.page != page) {
        /* New to this thread, or the page has changed. A process that launches belongs to the container and has a slot. */
        vgpu_process_slot(p);
        if (!anything_limited(p, cuda)) {
            static const _Atomic uint32_t no_page;
            vgpu_hand = (struct vgpu_hand){.cuda = cuda,
                                           .process_now = &p->cookie,
                                           .page_now = p->page ? (const _Atomic uint32_t *)&p->page->seq : &no_page,
                                           .process = p->cookie,
                                           .page = page,
                                           .all_unlimited = page % 2 == 0};
            return;
        }
    }
    struct vgpu_throttle *throttle = throttle_of(p);
    if (!throttle) {
        return;
    }
    pass->launch = (struct vgpu_launch){.cuda = cuda,
                                        .stream = stream,
                                        .ordinal = ordinal,
                                        .page = page,
                                        .process = p->cookie,
                                        .function = function,
                                        .blocks = blocks,
                                        .threads = threads};
    pass->ticket = (struct vgpu_ticket){0};
    vgpu_throttle_begin(throttle, &vgpu_hand, &pass->launch, &pass->ticket);
    pass->throttle = pass->ticket.probe ? throttle : NULL;
}

void vgpu_pass_begin(struct vgpu_pass *pass, const struct vgpu_cuda *cuda, uint64_t function, uint64_t blocks, uint32_t threads,
                     CUstream stream)
{
    struct vgpu_process *p = vgpu_process();
    int ordinal = 0;
    pass->throttle = NULL;
    if (p && !vgpu_pass_at_once(cuda, function, blocks, threads) &&
        (atomic_load_explicit(&p->device_count, memory_order_relaxed) == 1 ||
         (cuda->cuCtxGetDevice && cuda->cuCtxGetDevice(&ordinal) == CUDA_SUCCESS))) {
        vgpu_pass_slowly(pass, p, cuda, function, blocks, threads, stream, ordinal);
    }
}

void vgpu_launch_waited(struct vgpu_process *p, const struct vgpu_cuda *cuda)
{
    struct vgpu_throttle *throttle = p ? atomic_load_explicit(&p->throttle, memory_order_acquire) : NULL;
    if (throttle) {
        vgpu_throttle_waited(throttle, cuda);
    }
}

void vgpu_launch_end_context(struct vgpu_process *p, const struct vgpu_cuda *cuda, CUcontext context)
{
    struct vgpu_throttle *throttle = p ? atomic_load_explicit(&p->throttle, memory_order_acquire) : NULL;
    if (throttle && context) {
        vgpu_throttle_end_context(throttle, cuda, context);
    }
}

void vgpu_launch_forget(CUgraphExec graph)
{
    struct vgpu_process *p = vgpu_process();
    struct vgpu_throttle *throttle = p ? atomic_load_explicit(&p->throttle, memory_order_acquire) : NULL;
    if (throttle) {
        vgpu_throttle_forget(throttle, (uint64_t)(uintptr_t)graph);
    }
}
