#include "page.h"

#include <stdatomic.h>
#include <string.h>
#include <strings.h>

#include "world.h"

#define PATIENCE_NS UINT64_C(20000000)
#define SLICE_NS UINT64_C(200000)

const char *vgpu_uuid_tail(const char *uuid)
{
    return !strncmp(uuid, "GPU-", 4) || !strncmp(uuid, "MIG-", 4) ? uuid + 4 : uuid;
}

int vgpu_uuid_same(const char *a, const char *b)
{
    return strncasecmp(vgpu_uuid_tail(a), vgpu_uuid_tail(b), VGPU_UUID_BYTES - 4) == 0;
}

/* The values from one consistent read of the page. */
struct reading {
    struct vgpu_limits limits; /* the limits of the requested device */
    uint64_t host_limit;
    int unlimited;
};

/* The writer may be active while we read. The sequence number decides afterwards if the values are valid. */
static uint32_t read32(const uint32_t *at)
{
    return atomic_load_explicit((const _Atomic uint32_t *)at, memory_order_relaxed);
}

static uint64_t read64(const uint64_t *at)
{
    return atomic_load_explicit((const _Atomic uint64_t *)at, memory_order_relaxed);
}

static void read_uuid(const struct vgpu_page_device *device, char name[VGPU_UUID_BYTES + 1])
{
    for (size_t i = 0; i < VGPU_UUID_BYTES; i += sizeof(uint64_t)) {
        uint64_t word = read64((const uint64_t *)(const void *)(device->uuid + i));
        memcpy(name + i, &word, sizeof word);
    }
    name[VGPU_UUID_BYTES] = '\0';
}

static struct reading read_once(const struct vgpu_page *page, const char *uuid)
{
    struct reading reading = {0};
    uint32_t count = read32(&page->device_count);
    if (read64(&page->magic) != VGPU_PAGE_MAGIC || read32(&page->abi_version) != VGPU_ABI_VERSION ||
        read32(&page->size) != VGPU_PAGE_BYTES || read32(&page->state) != VGPU_PAGE_GRANT || count > VGPU_MAX_DEVICES) {
        return reading;
    }
    reading.host_limit = read64(&page->host_limit_bytes);
    reading.host_limit = reading.host_limit ? reading.host_limit : VGPU_UNLIMITED;
    reading.unlimited = count > 0;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t limit = read64(&page->devices[i].memory_limit_bytes);
        char name[VGPU_UUID_BYTES + 1];
        read_uuid(&page->devices[i], name);
        reading.unlimited = reading.unlimited && limit == VGPU_UNLIMITED;
        if (uuid && name[0] && vgpu_uuid_same(name, uuid)) {
            reading.limits.limit = limit;
            reading.limits.physical = read64(&page->devices[i].physical_bytes);
            reading.limits.context = read64(&page->devices[i].context_bytes);
            reading.limits.cores = read32(&page->devices[i].cores_percent);
            reading.limits.policy = read32(&page->devices[i].core_policy);
            reading.limits.ceiling = read32(&page->devices[i].cores_ceiling);
            reading.limits.alone_until_ns = read64(&page->devices[i].alone_until_ns);
        }
    }
    return reading;
}

/* If `seen` is not NULL, store the sequence of the values in it, or 0 if the page could not be read. */
static struct reading read_stable(const struct vgpu_page *page, const char *uuid, uint32_t *seen)
{
    const _Atomic uint32_t *seq = (const _Atomic uint32_t *)&page->seq;
    struct vgpu_instant deadline = {0};
    for (;;) {
        uint32_t before = atomic_load_explicit(seq, memory_order_acquire);
        if (before % 2 == 0) {
            struct reading reading = read_once(page, uuid);
            atomic_thread_fence(memory_order_acquire);
            if (atomic_load_explicit(seq, memory_order_relaxed) == before) {
                if (seen) {
                    *seen = before;
                }
                return reading;
            }
        }
        struct vgpu_instant now = vgpu_world->now();
        deadline = deadline.ns ? deadline : vgpu_later(now, PATIENCE_NS);
        if (!vgpu_is_before(now, deadline)) {
            if (seen) {
                *seen = 0;
            }
            return (struct reading){0};
        }
        vgpu_world->sleep_for(SLICE_NS);
    }
}

struct vgpu_limits vgpu_page_limits(const struct vgpu_page *page, const char *uuid)
{
    return read_stable(page, uuid, NULL).limits;
}

/* Use release stores and acquire loads and no fences, because thread sanitizers do not understand fences. */
static void keep(struct vgpu_kept_limits *kept, const struct vgpu_limits *limits, uint32_t seq)
{
    uint32_t version = atomic_load_explicit(&kept->version, memory_order_relaxed);
    if (version % 2 || !atomic_compare_exchange_strong(&kept->version, &version, version + 1)) {
        return; /* another thread is doing it */
    }
    atomic_store_explicit(&kept->page_seq, seq, memory_order_release);
    atomic_store_explicit(&kept->limit, limits->limit, memory_order_release);
    atomic_store_explicit(&kept->physical, limits->physical, memory_order_release);
    atomic_store_explicit(&kept->context, limits->context, memory_order_release);
    atomic_store_explicit(&kept->cores, limits->cores, memory_order_release);
    atomic_store_explicit(&kept->policy, limits->policy, memory_order_release);
    atomic_store_explicit(&kept->ceiling, limits->ceiling, memory_order_release);
    atomic_store_explicit(&kept->version, version + 2, memory_order_release);
}

struct vgpu_limits vgpu_page_limits_kept(const struct vgpu_page *page, const char *uuid, struct vgpu_kept_limits *kept)
{
    uint32_t seq = atomic_load_explicit((const _Atomic uint32_t *)&page->seq, memory_order_acquire);
    uint32_t version = atomic_load_explicit(&kept->version, memory_order_acquire);
    struct vgpu_limits limits = {.limit = atomic_load_explicit(&kept->limit, memory_order_acquire),
                                 .physical = atomic_load_explicit(&kept->physical, memory_order_acquire),
                                 .context = atomic_load_explicit(&kept->context, memory_order_acquire),
                                 .cores = (uint32_t)atomic_load_explicit(&kept->cores, memory_order_acquire),
                                 .policy = (uint32_t)atomic_load_explicit(&kept->policy, memory_order_acquire),
                                 .ceiling = (uint32_t)atomic_load_explicit(&kept->ceiling, memory_order_acquire)};
    uint32_t of = atomic_load_explicit(&kept->page_seq, memory_order_acquire);
    if (seq && seq % 2 == 0 && of == seq && version % 2 == 0 &&
        atomic_load_explicit(&kept->version, memory_order_acquire) == version) {
        return limits;
    }
    limits = read_stable(page, uuid, &seq).limits;
    if (seq) {
        keep(kept, &limits, seq);
    }
    return limits;
}

uint64_t vgpu_page_limit(const struct vgpu_page *page, const char *uuid)
{
    return read_stable(page, uuid, NULL).limits.limit;
}

uint64_t vgpu_page_host_limit(const struct vgpu_page *page)
{
    return read_stable(page, NULL, NULL).host_limit;
}

int vgpu_page_is_unlimited(const struct vgpu_page *page)
{
    return read_stable(page, NULL, NULL).unlimited;
}
