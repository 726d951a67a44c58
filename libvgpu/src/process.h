/* process.h - the library's state of its own process.
 *
 * Everything is in one arena that the kernel zeroes in every child that does not share memory (MADV_WIPEONFORK),
 * whichever call created the child. A child therefore starts with nothing: no slot, no charges, no held locks.
 */
#ifndef VGPU_PROCESS_H
#define VGPU_PROCESS_H

#include "objects.h"
#include "page.h"
#include "source.h"
#include "vgpu_abi.h"
#include "world.h"

struct vgpu_device {
    _Atomic uint32_t known;
    int column; /* the device's column in the region, or VGPU_NOWHERE */
    char uuid[VGPU_UUID_BYTES];
};

struct vgpu_pool;
struct vgpu_throttle;

/* Device memory that contexts of this process take by themselves (overhead.h). */
struct vgpu_overhead {
    struct vgpu_calm_lock lock;
    uint32_t contexts;
    uint64_t charged;
    int is_guess; /* 1 if a part of `charged` was never measured */
    uint64_t last_used, last_real; /* what the ledger and the driver said at the last comparison */
    _Atomic uint32_t retained; /* uses of the primary context by this process's calls */
    _Atomic uint64_t of_primary; /* what was charged when the primary context was created */
};

struct vgpu_process {
    _Atomic uint32_t ready;
    struct vgpu_calm_lock lock; /* protects everything below except the objects */
    pid_t pid;             /* checked only if the kernel cannot wipe */
    enum vgpu_authority authority; /* copied from the source, like the next two, and never changed (source.h) */
    const struct vgpu_page *page;
    struct vgpu_region *region;
    _Atomic uint32_t cut;       /* 1: the region's file was truncated, and private memory is mapped in its place */
    _Atomic struct vgpu_instant checked; /* when the region's file was last checked */
    struct vgpu_identity self;
    struct vgpu_region_slot *_Atomic slot; /* NULL until the first charge */
    _Atomic struct vgpu_instant reaped;
    struct vgpu_pool *_Atomic pools; /* every pool seen so far (pools.h) */
    _Atomic uint64_t pool_chunk;     /* by how much pools were seen to grow; 0: by no more than the request */
    _Atomic uint32_t pools_in_use;   /* how many pools have a charge */
    _Atomic uint32_t graphs_known;   /* 1: a graph that takes memory was seen (graphs.h) */
    _Atomic uint64_t graph_trims;    /* how often memory of graphs was trimmed */
    _Atomic uint64_t exported[VGPU_MAX_DEVICES]; /* by column: what others may have open, to the byte (exports.h) */
    _Atomic uint64_t orphans[VGPU_MAX_DEVICES]; /* by column: exported, freed and still charged (exports.h) */
    _Atomic uint32_t has_orphans;
    _Atomic uint32_t exports_known; /* 1: linear memory was exported */
    struct vgpu_calm_lock mappings; /* protects exports, handles, mappings and what they refer to (hook_mapping.c) */
    struct vgpu_standalone standalone;
    struct vgpu_device devices[VGPU_MAX_DEVICES]; /* by CUDA ordinal */
    struct vgpu_kept_limits limits[VGPU_MAX_DEVICES];   /* what the page last said about these devices */
    struct vgpu_overhead overheads[VGPU_MAX_DEVICES]; /* by CUDA ordinal */
    _Atomic struct vgpu_instant overhead_next; /* when it may be read again */
    _Atomic vgpu_duration overhead_wait;
    _Atomic uint32_t overhead_due; /* 1: it may have grown */
    _Atomic uint32_t nvml_started;
    uint64_t cookie;                /* unique to this process; never 0 */
    struct vgpu_region_guess *_Atomic guess; /* its entry in the region (guesses.h), under the throttle's lock */
    _Atomic struct vgpu_instant collected; /* when entries of dead processes were last looked for */
    struct vgpu_throttle *_Atomic throttle; /* for its launches (launch.h); NULL until one must be throttled */
    _Atomic int device_count;       /* 0: not asked yet */
    struct vgpu_objects objects;
};

/* Return the state of this process, setting it up at the first call. NULL if nothing limits it, or if there is no memory. */
struct vgpu_process *vgpu_process(void);

/* Check that the region's file is still whole. Call this before the region is touched: every user of the container can
 * truncate the file, and an access beyond its end is a SIGBUS. If it was truncated, private memory takes the place of
 * the region and nothing more is granted. The check is a system call, so it is skipped for 20 us after the last one.
 * Callers that use the coarse clock skip it for one of its ticks. */
void vgpu_process_check(struct vgpu_process *p, struct vgpu_instant now);

/* Return the state of this process after checking the region, for calls that need not be fast. */
struct vgpu_process *vgpu_process_checked(void);

/* Return the slot of this process, claiming one at the first call. NULL if the region is full or unusable. */
struct vgpu_region_slot *vgpu_process_slot(struct vgpu_process *p);

#endif
