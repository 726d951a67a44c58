/* page.h - reads the limit page.
 *
 * A look-up reads the live page under its seqlock. What it says about a device may be kept while the page's sequence
 * number stays the same (struct vgpu_kept_limits). So a change applies from the next call on, and calls do not search a
 * page of many devices.
 */
#ifndef VGPU_PAGE_H
#define VGPU_PAGE_H

#include <stdatomic.h>

#include "vgpu_abi.h"

/* Return the part of a UUID text that identifies the device: what follows "GPU-" or "MIG-". */
const char *vgpu_uuid_tail(const char *uuid);

/* Return 1 if both UUIDs name the same device. Prefix and case do not matter. */
int vgpu_uuid_same(const char *a, const char *b);

/* The limits of one device; all zero for a device or page without a grant. */
struct vgpu_limits {
    uint64_t limit;
    uint64_t physical; /* how much of it may be in the device's own memory; 0: all */
    uint64_t context;  /* known cost of a context; 0: not known */
    uint32_t cores, policy, ceiling; /* as on the page */
    uint64_t alone_until_ns; /* as on the page; never cached */
};
struct vgpu_limits vgpu_page_limits(const struct vgpu_page *page, const char *uuid);

/* What was last read about one device, shared by all threads. All zero at first. */
struct vgpu_kept_limits {
    _Atomic uint32_t version; /* even: stable */
    _Atomic uint32_t page_seq; /* the page's sequence when it was read; 0 if nothing was */
    _Atomic uint64_t limit, physical, context, cores, policy, ceiling;
};

/* Like vgpu_page_limits, but the page is read again only if it has changed since. */
struct vgpu_limits vgpu_page_limits_kept(const struct vgpu_page *page, const char *uuid, struct vgpu_kept_limits *kept);

/* Return the limit of page-locked host memory: VGPU_UNLIMITED, or 0 if the page has no grant. */
uint64_t vgpu_page_host_limit(const struct vgpu_page *page);

/* Return how many bytes of a device the page grants: its limit, VGPU_UNLIMITED, or 0 if the page or the device has no
 * grant. Waits up to 20 ms for a page that is being written, then denies. */
uint64_t vgpu_page_limit(const struct vgpu_page *page, const char *uuid);

/* Return 1 if the page grants all its devices without a memory limit. */
int vgpu_page_is_unlimited(const struct vgpu_page *page);

#endif
