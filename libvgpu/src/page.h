/* page.h - reads the limit page.
 *
 * No cache: a look-up reads the live page under its seqlock, so a change holds from the next call on.
 */
#ifndef VGPU_PAGE_H
#define VGPU_PAGE_H

#include "vgpu_abi.h"

/* Start of the part of a UUID text that identifies: after "GPU-" or "MIG-". */
const char *vgpu_uuid_tail(const char *uuid);

/* Same card? Prefix and case do not matter. */
int vgpu_uuid_same(const char *a, const char *b);

/* Bytes this page grants of a card: its limit, VGPU_UNLIMITED, or 0 for a card or page that grants nothing.
 * Waits up to 20 ms for a page that is being written, then denies. */
uint64_t vgpu_page_limit(const struct vgpu_page *page, const char *uuid);

/* 1 when the page grants every one of its cards without a memory limit. */
int vgpu_page_is_unlimited(const struct vgpu_page *page);

#endif
