#include "source.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

#include "elf_tables.h"
#include "world.h"

/* Return the bytes of a stand-alone setting, or 0 if it is malformed. */
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

/* Return the percent of a stand-alone setting, or 0 (no limit) if it is malformed. */
static uint32_t parse_percent(const char *text)
{
    char *end;
    unsigned long value = strtoul(text, &end, 10);
    return isdigit((unsigned char)*text) && !*end && value <= 100 ? (uint32_t)value : 0;
}

static int read_cores(struct vgpu_standalone *out)
{
    const char *all = vgpu_world->env("CUDA_DEVICE_SM_LIMIT"), *policy = vgpu_world->env("GPU_CORE_UTILIZATION_POLICY");
    int found = all != NULL;
    out->policy = policy && !strcasecmp(policy, "force")     ? VGPU_CORES_FORCE
                  : policy && !strcasecmp(policy, "disable") ? VGPU_CORES_DISABLE
                                                             : VGPU_CORES_DEFAULT;
    for (unsigned i = 0; i < VGPU_MAX_DEVICES; i++) {
        char name[48];
        snprintf(name, sizeof name, "CUDA_DEVICE_SM_LIMIT_%u", i);
        const char *own = vgpu_world->env(name);
        out->cores[i] = own ? parse_percent(own) : all ? parse_percent(all) : 0;
        found |= own != NULL;
    }
    return found;
}

/* Return 1 if there is any stand-alone setting. */
static int read_standalone(struct vgpu_standalone *out)
{
    const char *all = vgpu_world->env("CUDA_DEVICE_MEMORY_LIMIT"), *host = vgpu_world->env("CUDA_HOST_MEMORY_LIMIT");
    int found = all != NULL || host != NULL;
    out->host_limit = host ? parse_limit(host) : VGPU_UNLIMITED;
    for (unsigned i = 0; i < VGPU_MAX_DEVICES; i++) {
        char name[48];
        snprintf(name, sizeof name, "CUDA_DEVICE_MEMORY_LIMIT_%u", i);
        const char *own = vgpu_world->env(name);
        const char *text = own ? own : all;
        out->limit[i] = text ? parse_limit(text) : VGPU_UNLIMITED;
        found |= own != NULL;
    }
    return found | read_cores(out);
}

/* Return 1 if the agent mounted this library. It never does so without a page, so a process that finds no page has changed
 * its root or its mounts, and the missing page denies. */
static int is_mounted_by_agent(void)
{
    return vgpu_world->own_path && vgpu_is_name(vgpu_world->own_path(), VGPU_FIXED_LIBRARY);
}

void vgpu_source_open(struct vgpu_source *out)
{
    const char *page = VGPU_FIXED_PAGE, *region = VGPU_FIXED_REGION;
    *out = (struct vgpu_source){.authority = VGPU_NOTHING};
    if (!is_mounted_by_agent() && !vgpu_world->exists(page)) {
        page = vgpu_world->env("VGPU_LIMIT_PAGE");
        region = vgpu_world->env("VGPU_USAGE_REGION");
    }
    if (page) {
        out->authority = VGPU_PAGE;
        out->page = vgpu_world->map(page, VGPU_PAGE_BYTES, VGPU_MAP_READ);
        out->region = region ? vgpu_world->map(region, VGPU_REGION_BYTES, VGPU_MAP_WRITE) : NULL;
        if (!out->page || !out->region) {
            vgpu_world->log("vgpu: limit page or usage region cannot be used: denying\n");
        }
        return;
    }
    if (!read_standalone(&out->standalone)) {
        return;
    }
    out->authority = VGPU_ENV;
    out->region =
        region ? vgpu_world->map(region, VGPU_REGION_BYTES, VGPU_MAP_CREATE) : vgpu_world->map_private(VGPU_REGION_BYTES);
}
