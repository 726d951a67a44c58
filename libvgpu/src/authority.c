#include "authority.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

#include "page.h"

/* Bytes of a stand-alone setting; 0 for nonsense. */
static uint64_t parse_limit(const char *text)
{
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    int shift = 0;
    switch (tolower((unsigned char)*end)) {
    case 'k':
        shift = 10;
        break;
    case 'm':
        shift = 20;
        break;
    case 'g':
        shift = 30;
        break;
    default:
        break;
    }
    end += shift != 0;
    if (errno || !isdigit((unsigned char)*text) || *end || value > UINT64_MAX >> shift) {
        return 0;
    }
    return value ? value << shift : VGPU_UNLIMITED;
}

/* Percent of a stand-alone setting; 0, no limit, for nonsense. */
static uint32_t parse_percent(const char *text)
{
    char *end;
    unsigned long value = strtoul(text, &end, 10);
    return isdigit((unsigned char)*text) && !*end && value <= 100 ? (uint32_t)value : 0;
}

static int read_env_cores(struct vgpu_process *p)
{
    const char *all = vgpu_world->env("CUDA_DEVICE_SM_LIMIT"), *policy = vgpu_world->env("GPU_CORE_UTILIZATION_POLICY");
    int found = all != NULL;
    p->env_policy = policy && !strcasecmp(policy, "force")     ? VGPU_CORES_FORCE
                    : policy && !strcasecmp(policy, "disable") ? VGPU_CORES_DISABLE
                                                               : VGPU_CORES_DEFAULT;
    for (unsigned i = 0; i < VGPU_MAX_DEVICES; i++) {
        char name[48];
        snprintf(name, sizeof name, "CUDA_DEVICE_SM_LIMIT_%u", i);
        const char *own = vgpu_world->env(name);
        p->env_cores[i] = own ? parse_percent(own) : all ? parse_percent(all) : 0;
        found |= own != NULL;
    }
    return found;
}

static int read_env(struct vgpu_process *p)
{
    const char *all = vgpu_world->env("CUDA_DEVICE_MEMORY_LIMIT"), *host = vgpu_world->env("CUDA_HOST_MEMORY_LIMIT");
    int found = all != NULL || host != NULL;
    p->env_host_limit = host ? parse_limit(host) : VGPU_UNLIMITED;
    for (unsigned i = 0; i < VGPU_MAX_DEVICES; i++) {
        char name[48];
        snprintf(name, sizeof name, "CUDA_DEVICE_MEMORY_LIMIT_%u", i);
        const char *own = vgpu_world->env(name);
        const char *text = own ? own : all;
        p->env_limit[i] = text ? parse_limit(text) : VGPU_UNLIMITED;
        found |= own != NULL;
    }
    return found | read_env_cores(p);
}

void vgpu_authority_open(struct vgpu_process *p)
{
    const char *page = VGPU_FIXED_PAGE, *region = VGPU_FIXED_REGION;
    if (!vgpu_world->exists(page)) {
        page = vgpu_world->env("VGPU_LIMIT_PAGE");
        region = vgpu_world->env("VGPU_USAGE_REGION");
    }
    if (page) {
        p->authority = VGPU_PAGE;
        p->page = vgpu_world->map(page, VGPU_PAGE_BYTES, VGPU_MAP_READ);
        p->region = region ? vgpu_world->map(region, VGPU_REGION_BYTES, VGPU_MAP_WRITE) : NULL;
        if (!p->page || !p->region) {
            vgpu_world->log("vgpu: limit page or usage region cannot be used: denying\n");
        }
        return;
    }
    if (!read_env(p)) {
        p->authority = VGPU_NOTHING;
        return;
    }
    p->authority = VGPU_ENV;
    p->region = region ? vgpu_world->map(region, VGPU_REGION_BYTES, VGPU_MAP_CREATE) : vgpu_world->map_private(VGPU_REGION_BYTES);
}

static struct vgpu_limits limits_of(struct vgpu_process *p, const char *uuid, int ordinal)
{
    if (ordinal >= 0 && ordinal < (int)VGPU_MAX_DEVICES && uuid == p->devices[ordinal].uuid) {
        return vgpu_page_limits_kept(p->page, uuid, &p->limits[ordinal]);
    }
    return vgpu_page_limits(p->page, uuid);
}

uint64_t vgpu_limit(struct vgpu_process *p, const char *uuid, int ordinal)
{
    if (!p->region) {
        return 0;
    }
    if (p->authority == VGPU_PAGE) {
        return p->page ? limits_of(p, uuid, ordinal).limit : 0;
    }
    return ordinal >= 0 && ordinal < (int)VGPU_MAX_DEVICES ? p->env_limit[ordinal] : VGPU_UNLIMITED;
}

struct vgpu_budget vgpu_budget(struct vgpu_process *p, const char *uuid, int ordinal)
{
    if (p->authority == VGPU_PAGE && p->region && p->page) {
        struct vgpu_limits limits = limits_of(p, uuid, ordinal);
        if (limits.physical && limits.physical < limits.limit) {
            return (struct vgpu_budget){.device = limits.physical, .total = limits.limit};
        }
        return (struct vgpu_budget){.device = limits.limit, .total = VGPU_UNLIMITED};
    }
    return (struct vgpu_budget){.device = vgpu_limit(p, uuid, ordinal), .total = VGPU_UNLIMITED};
}

uint64_t vgpu_context_price(struct vgpu_process *p, const char *uuid, int ordinal)
{
    return p->authority == VGPU_PAGE && p->page ? limits_of(p, uuid, ordinal).context : 0;
}

uint64_t vgpu_host_limit(const struct vgpu_process *p)
{
    if (!p->region) {
        return 0;
    }
    if (p->authority == VGPU_PAGE) {
        return p->page ? vgpu_page_host_limit(p->page) : 0;
    }
    return p->env_host_limit;
}

int vgpu_limits_of_compute(struct vgpu_process *p, const char *uuid, int ordinal, struct vgpu_limits *out)
{
    if (p->authority == VGPU_PAGE) {
        *out = p->page ? limits_of(p, uuid, ordinal) : (struct vgpu_limits){0};
        return out->limit != 0;
    }
    *out = (struct vgpu_limits){.limit = VGPU_UNLIMITED,
                                .cores = ordinal >= 0 && ordinal < (int)VGPU_MAX_DEVICES ? p->env_cores[ordinal] : 0,
                                .policy = p->env_policy};
    return 1;
}

int vgpu_limits_nothing(const struct vgpu_process *p)
{
    if (!p->region) {
        return 0;
    }
    if (p->authority == VGPU_PAGE) {
        return p->page && vgpu_page_is_unlimited(p->page);
    }
    for (unsigned i = 0; i < VGPU_MAX_DEVICES; i++) {
        if (p->env_limit[i] != VGPU_UNLIMITED) {
            return 0;
        }
    }
    return 1;
}
