/* process.h - what libvgpu knows about the process it is in.
 *
 * It all lies in one arena that the kernel zeroes in every child that does not share memory (MADV_WIPEONFORK), by
 * whatever call the child was made. A child therefore starts as a stranger: no slot, no charges, no held locks.
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
    int column; /* of the region, or VGPU_NOWHERE */
    char uuid[VGPU_UUID_BYTES];
};

struct vgpu_pool;
struct vgpu_throttle;

/* What contexts of this process take of a device by themselves (overhead.h). */
struct vgpu_overhead {
    struct vgpu_calm_lock lock;
    uint32_t contexts;
    uint64_t charged;
    int is_guess; /* of `charged`, something was never measured */
    uint64_t last_used, last_real; /* what the ledger and the driver said at the last look */
    _Atomic uint32_t retained; /* of the primary context, by this process's calls */
    _Atomic uint64_t of_primary; /* of it, when the primary context was created */
};

struct vgpu_process {
    _Atomic uint32_t ready;
    struct vgpu_calm_lock lock; /* of everything below but the objects */
    pid_t pid;             /* checked only where the kernel cannot wipe */
    enum vgpu_authority authority; /* this and the next two are the source's, decided once (source.h) */
    const struct vgpu_page *page;
    struct vgpu_region *region;
    _Atomic uint32_t cut;       /* 1: its file was truncated, and our own memory is mapped there now */
    _Atomic struct vgpu_instant checked; /* when that was last checked */
    struct vgpu_identity self;
    struct vgpu_region_slot *_Atomic slot; /* NULL until the first charge */
    _Atomic struct vgpu_instant reaped;
    struct vgpu_pool *_Atomic pools; /* every pool that was ever seen (pools.h) */
    _Atomic uint64_t pool_chunk;     /* by how much pools were seen to grow; 0: by nothing beyond the request */
    _Atomic uint32_t pools_in_use;   /* how many have a charge */
    _Atomic uint32_t graphs_known;   /* 1: a graph that takes memory was seen (graphs.h) */
    _Atomic uint64_t graph_trims;    /* how often memory of graphs was trimmed */
    _Atomic uint64_t exported[VGPU_MAX_DEVICES]; /* by column: what others may have open, to the byte (exports.h) */
    _Atomic uint64_t orphans[VGPU_MAX_DEVICES]; /* by column: exported, freed and still charged (exports.h) */
    _Atomic uint32_t has_orphans;
    _Atomic uint32_t exports_known; /* 1: linear memory was exported */
    struct vgpu_calm_lock mappings; /* of exports, and of handles, mappings and what they refer to (hook_mapping.c) */
    struct vgpu_standalone standalone;
    struct vgpu_device devices[VGPU_MAX_DEVICES]; /* by CUDA ordinal */
    struct vgpu_kept_limits limits[VGPU_MAX_DEVICES];   /* of these devices, by the page, when last read */
    struct vgpu_overhead overheads[VGPU_MAX_DEVICES]; /* by CUDA ordinal */
    _Atomic struct vgpu_instant overhead_next; /* when it may be read again */
    _Atomic vgpu_duration overhead_wait;
    _Atomic uint32_t overhead_due; /* 1: it may have grown */
    _Atomic uint32_t nvml_started;
    uint64_t cookie;                /* of this process and no other; never 0 */
    struct vgpu_region_guess *_Atomic guess; /* its entry in the region (guesses.h), under the throttle's lock */
    _Atomic struct vgpu_instant collected; /* when entries of dead processes were last looked for */
    struct vgpu_throttle *_Atomic throttle; /* its launches (launch.h); NULL until one must be throttled */
    _Atomic int device_count;       /* 0: not asked yet */
    struct vgpu_objects objects;
};

/* This process, set up at the first call. NULL if nothing limits it, or there is no memory for the arena. */
struct vgpu_process *vgpu_process(void);

/* Before the region is touched: every user of the container can make its file shorter, and what is beyond its end is a SIGBUS. The
 * region is then given up for memory of our own, and nothing is granted any more. The look is a system call, which is not made
 * again for 20 us of this time; the cheaper clock makes that one of its ticks. */
void vgpu_process_check(struct vgpu_process *p, struct vgpu_instant now);

/* This process, after checking its region: for calls that need not be fast. */
struct vgpu_process *vgpu_process_checked(void);

/* The slot of this process, claimed at the first call; NULL if the region is full or unusable. */
struct vgpu_region_slot *vgpu_process_slot(struct vgpu_process *p);

#endif
