/* page.h - reads the limit page.
 *
 * A look-up reads the live page under its seqlock. What it has of a device may be kept for as long as the page's sequence is
 * the same (struct vgpu_kept_limits), so a change holds from the next call on and a page of many devices costs no scan a call.
 */
#ifndef VGPU_PAGE_H
#define VGPU_PAGE_H

#include <stdatomic.h>

#include "vgpu_abi.h"

/* Start of the part of a UUID text that identifies: after "GPU-" or "MIG-". */
const char *vgpu_uuid_tail(const char *uuid);

/* Same device? Prefix and case are ignored. */
int vgpu_uuid_same(const char *a, const char *b);

/* The limits of one device; all zero for a device or page without a grant. */
struct vgpu_limits {
    uint64_t limit;
    uint64_t physical; /* of it in the device's own memory; 0: all */
    uint64_t context;  /* known cost of a context; 0: not known */
    uint32_t cores, policy, ceiling; /* as on the page */
    uint64_t alone_until_ns; /* as on the page; never kept */
};
struct vgpu_limits vgpu_page_limits(const struct vgpu_page *page, const char *uuid);

/* What was last read of one device, by many threads. All zero at first. */
struct vgpu_kept_limits {
    _Atomic uint32_t version; /* even: stable */
    _Atomic uint32_t page_seq; /* that it was read at; 0: nothing was */
    _Atomic uint64_t limit, physical, context, cores, policy, ceiling;
};

/* Like vgpu_page_limits, but the page is read again only if it has changed since. */
struct vgpu_limits vgpu_page_limits_kept(const struct vgpu_page *page, const char *uuid, struct vgpu_kept_limits *kept);

/* Bytes of page-locked host memory: VGPU_UNLIMITED, or 0 for a page without a grant. */
uint64_t vgpu_page_host_limit(const struct vgpu_page *page);

/* Bytes this page grants of a device: its limit, VGPU_UNLIMITED, or 0 for a device or page that grants nothing.
 * Waits up to 20 ms for a page that is being written, then denies. */
uint64_t vgpu_page_limit(const struct vgpu_page *page, const char *uuid);

/* Return 1 if the page grants every one of its devices without a memory limit. */
int vgpu_page_is_unlimited(const struct vgpu_page *page);

#endif
