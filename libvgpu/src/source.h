/* source.h - where the limits come from: the agent's page, the environment, or nowhere.
 *
 * The page at its fixed path is the authority. A library that was loaded from its own fixed path accepts no other
 * source. Otherwise, if the page's path does not exist, VGPU_LIMIT_PAGE and VGPU_USAGE_REGION name other files (for a
 * node without mount namespaces). If they do not exist either, stand-alone settings apply. CUDA_DEVICE_MEMORY_LIMIT and
 * CUDA_DEVICE_MEMORY_LIMIT_<CUDA ordinal> are in bytes, or have a suffix k, m or g; 0 means no limit, and an invalid
 * value means 0 bytes. CUDA_HOST_MEMORY_LIMIT has the same form. CUDA_DEVICE_SM_LIMIT and
 * CUDA_DEVICE_SM_LIMIT_<ordinal> are a percentage of the device's time, and GPU_CORE_UTILIZATION_POLICY is default,
 * force or disable. Nothing in the environment can weaken a page.
 */
#ifndef VGPU_SOURCE_H
#define VGPU_SOURCE_H

#include <stdint.h>

#include "vgpu_abi.h"

#define VGPU_FIXED_LIBRARY "/usr/local/vgpu/libvgpu.so"
#define VGPU_FIXED_PAGE "/usr/local/vgpu/limits"
#define VGPU_FIXED_REGION "/usr/local/vgpu/usage/region"

enum vgpu_authority {
    VGPU_NOTHING, /* no page and no setting: pass everything through */
    VGPU_PAGE,    /* the agent's limit page */
    VGPU_ENV,     /* stand-alone settings in the environment */
};

/* The settings of the environment, by CUDA ordinal. */
struct vgpu_standalone {
    uint64_t limit[VGPU_MAX_DEVICES]; /* bytes, or VGPU_UNLIMITED */
    uint64_t host_limit;
    uint32_t cores[VGPU_MAX_DEVICES]; /* percent; 0: no limit */
    uint32_t policy;
};

struct vgpu_source {
    enum vgpu_authority authority;
    const struct vgpu_page *page; /* authority VGPU_PAGE; NULL: unusable, deny */
    struct vgpu_region *region;   /* NULL: unusable, deny */
    struct vgpu_standalone standalone;
};

/* Find the source of limits and map its files. */
void vgpu_source_open(struct vgpu_source *out);

#endif
