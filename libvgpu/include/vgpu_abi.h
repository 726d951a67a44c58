/* vgpu_abi.h - the two files that the node agent and libvgpu.so share.
 *
 *   limit page     written by the agent, mapped read-only by every process of a container.
 *                  It is the authority: what it does not grant, the library denies.
 *   usage region   mapped read-write by every process of a container, read by the agent.
 *                  It holds the ledger: who holds how many bytes of which device.
 *
 * Both are files of a fixed size, little-endian, created zero-filled at full size before the
 * container starts and only ever changed in place (a rename would not reach a bind mount).
 * Offsets never move; new fields come out of reserved space. This header is self-contained so
 * that a test can compile it and compare every offset with its mirror in another language.
 *
 * Writing the page (one writer, the agent): seq += 1 (now odd), change the fields, seq += 1 (even).
 * The first filling does the same from the all-zero file, so seq goes 0 -> 1 -> 2.
 * Reading it: copy while seq is even and the same before and after. A page that is all zero, odd for
 * longer than a reader cares to wait, of another magic, version or size, too short, or in any state
 * but GRANT grants nothing: allocations fail with CUDA_ERROR_OUT_OF_MEMORY and views show a total of 0.
 * A device whose UUID is not on a granting page has a limit of 0.
 *
 * The region needs no lock. A process claims a slot with one compare-and-swap of `owner`, and from then
 * on is the only one to change the words of that slot. The use of a device is the sum of one column over
 * slots [0, slot_high), whatever their owner: words of free slots are zero. See src/ledger.h for the protocol.
 */
#ifndef VGPU_ABI_H
#define VGPU_ABI_H

#include <stddef.h>
#include <stdint.h>

#define VGPU_ABI_VERSION 1u
#define VGPU_MAX_DEVICES 64u
#define VGPU_UUID_BYTES 64u       /* text with its NUL, such as "GPU-6f3c1c2e-..." or "MIG-..." */
#define VGPU_UNLIMITED UINT64_MAX

/* ---------------------------------------------------------------- limit page */

#define VGPU_PAGE_MAGIC UINT64_C(0x4547415055504756) /* the bytes "VGPUPAGE" */
#define VGPU_PAGE_BYTES 16384u

enum vgpu_page_state {
    VGPU_PAGE_DENY = 0,   /* created but not granted yet, or withdrawn for a while */
    VGPU_PAGE_GRANT = 1,  /* the devices below are granted */
    VGPU_PAGE_CLOSED = 2, /* the grant has ended; a container that starts again may get another one */
};

enum vgpu_core_policy {
    VGPU_CORES_DEFAULT = 0, /* limit compute while others are active on the device */
    VGPU_CORES_FORCE = 1,   /* limit always */
    VGPU_CORES_DISABLE = 2, /* never limit */
};

struct vgpu_page_device {
    char uuid[VGPU_UUID_BYTES];
    uint64_t memory_limit_bytes; /* VGPU_UNLIMITED: the device's own memory is the limit */
    uint32_t cores_percent;      /* 1-100; 0: no limit */
    uint32_t core_policy;        /* enum vgpu_core_policy */
    uint32_t priority;           /* 0: highest */
    uint32_t flags;              /* none defined yet: 0 */
    uint64_t physical_bytes;     /* if below the limit, memory beyond this size is managed memory; 0: no oversubscription */
    uint64_t context_bytes;      /* the known cost of a context on this kind of device; 0: not known */
    uint32_t cores_ceiling;      /* no more than this percentage while neighbours of higher priority work; 0: none */
    uint32_t reserved_word;
    /* CLOCK_MONOTONIC: until then the agent knows of no other process on the device; 0: there are some, or it does not know.
     * Renewed about once a second without a change of `seq`. */
    uint64_t alone_until_ns;
    uint8_t reserved[72];
};

struct vgpu_page {
    uint64_t magic; /* VGPU_PAGE_MAGIC */
    uint32_t abi_version; /* VGPU_ABI_VERSION */
    uint32_t size; /* VGPU_PAGE_BYTES */
    uint32_t seq; /* seqlock: even is stable */
    uint32_t state; /* enum vgpu_page_state */
    uint64_t epoch; /* grows with every change of the grant */
    uint32_t device_count; /* <= VGPU_MAX_DEVICES */
    uint32_t flags; /* none defined yet: 0 */
    char nonce[64]; /* name of the allocation, NUL-terminated */
    uint64_t host_limit_bytes; /* page-locked memory of the host; 0: no limit */
    uint8_t reserved_header[144];
    struct vgpu_page_device devices[VGPU_MAX_DEVICES];
    uint8_t reserved_tail[3840];
};

/* -------------------------------------------------------------- usage region */

#define VGPU_REGION_MAGIC UINT64_C(0x4e47455255504756) /* the bytes "VGPUREGN" */
#define VGPU_REGION_SLOTS 1024u
#define VGPU_REGION_BYTES 2113536u
#define VGPU_EXPORTED_UNIT 4194304u
#define VGPU_EXPORTED_LARGE 0x8000u /* flag in `exported`: the other bits count larger units */
#define VGPU_EXPORTED_LARGE_UNIT UINT64_C(1073741824)
#define VGPU_MANAGED_UNIT 65536u /* bytes */
#define VGPU_SEEN_COLUMNS 12u

/* GPU time of the container on one device (src/bucket.h). Totals only grow; all times are CLOCK_MONOTONIC. */
struct vgpu_region_bucket {
    uint64_t paid_until_ns; /* everything taken so far is paid for until then, at the container's share */
    uint64_t raw_ns; /* GPU time charged by estimates, ever */
    uint64_t charged_ns; /* the same, each estimate multiplied by the factor that applied then */
    uint64_t measured_ns; /* GPU time that NVML reported, as far as it was compared */
    uint64_t calibrated_us; /* time stamp of the last sample of NVML that was compared */
    uint64_t factor; /* the factor for estimates, in parts of 65536; 0: not known */
    uint64_t debt_ns; /* measured but not yet charged; signed */
    uint64_t tick_ns; /* when the next comparison is due; the process that moves it forward makes the comparison */
    uint64_t others_ns; /* when others were last seen active on the device */
    uint64_t waited_ns; /* total time that launches were held up */
    /* Older libraries write one percentage, at most 100, over the next two fields. It reads as a wait of 3 ms, with
     * neighbours unknown. */
    uint16_t queued; /* how long launches wait in queues, parts of 32768 ns */
    uint16_t neighbours; /* 1: others have a context on the device; 2: none has; any other value: not known */
    uint32_t blind; /* 0: every sample was seen; 2: some may have been missed; any other value: do not compare the next one */
};

/* One device of the container, and the column that belongs to it in every slot. `key` is the 64-bit FNV-1a hash of the UUID's
 * 36 characters after "GPU-" or "MIG-", in lower case. It is claimed by compare-and-swap (0: free). The text, always the same
 * bytes, is written right after it; readers match devices by the text. */
struct vgpu_region_column {
    uint64_t key;
    char uuid[VGPU_UUID_BYTES];
    uint64_t denied_count; /* allocations refused because of the limit */
    uint64_t denied_last_ns; /* CLOCK_MONOTONIC of the last refusal */
    uint64_t peak_bytes; /* highest sum ever seen by an admitted reservation */
    struct vgpu_region_bucket bucket;
    uint64_t context_bytes; /* the highest cost of a context that was observed */
};

/* owner: 0 if the slot is free, else the identity of a process in one word, so that one compare-and-swap has everything that
 * a reaper needs:
 *
 *   bits  0-21  pid in the process's own pid namespace
 *   bits 22-41  low 20 bits of the inode of that namespace (/proc/self/ns/pid)
 *   bits 42-62  low 21 bits of the start time (field 22 of /proc/self/stat, clock ticks)
 *   bit  63     set while that process clears the slot of a dead one
 */
#define VGPU_OWNER_PID_BITS 22
#define VGPU_OWNER_NS_BITS 20
#define VGPU_OWNER_START_BITS 21
#define VGPU_OWNER_REAPING (UINT64_C(1) << 63)

struct vgpu_region_slot {
    uint64_t owner;
    uint64_t start_time; /* all bits; `owner` has only the low ones */
    uint64_t pid_namespace; /* inode, all bits */
    uint64_t image; /* random bytes of the loaded program: a process has others after an exec */
    uint32_t pid; /* in the process's own namespace */
    uint32_t host_pid; /* written by the agent; 0: not known */
    uint64_t registered_ns; /* CLOCK_MONOTONIC */
    uint64_t host_used; /* bytes of page-locked memory of the host */
    uint32_t imports; /* how many pieces of memory of other processes it has open */
    uint32_t reserved_word;
    /* A hash of where the kernel put the program; 0: not known. An exec changes it, and other processes can see it. */
    uint64_t layout;
    uint64_t layout_owner; /* `owner` when it was written */
    /* Like `overhead`, but the driver's figure on the host, in units of 64 KiB; 0: not known. Written by the agent while `used`
     * and `overhead` do not change. */
    uint32_t seen[VGPU_SEEN_COLUMNS];
    uint64_t used[VGPU_MAX_DEVICES]; /* bytes charged, by column */
    uint64_t peak[VGPU_MAX_DEVICES]; /* highest value of used */
    uint64_t overhead[VGPU_MAX_DEVICES]; /* part of `used`: contexts, modules and the like */
    uint32_t managed[VGPU_MAX_DEVICES]; /* not part of `used`: managed memory of an oversubscribed device, in units of 64 KiB */
    /* Part of `used`: what others may have open, in units of 4 MiB, or of 1 GiB if the highest bit is set. When its process is
     * dead, it stays charged while any process has anything open. */
    uint16_t exported[VGPU_MAX_DEVICES];
};

/* Kernels of a process that were charged by a guess and not measured yet. If the process ends first, another one charges the
 * time. `owner` has the form of a slot's owner; its highest bit is set while the entry is being written. */
#define VGPU_REGION_GUESSES 120u
struct vgpu_region_guess {
    uint64_t owner;
    uint64_t layout; /* like a slot's `layout` */
    uint64_t since_ns; /* CLOCK_MONOTONIC: when the first of them was launched */
    uint32_t charged_us; /* GPU time charged for them so far */
    uint16_t column;
    uint16_t percent; /* the container's share at that time */
};

enum vgpu_region_state {
    VGPU_REGION_EMPTY = 0, /* zero-filled by the agent */
    VGPU_REGION_READY = 1, /* header written; this word is set last */
};

struct vgpu_region {
    uint64_t magic; /* VGPU_REGION_MAGIC */
    uint32_t abi_version; /* VGPU_ABI_VERSION */
    uint32_t size; /* VGPU_REGION_BYTES */
    uint32_t slot_count; /* VGPU_REGION_SLOTS */
    uint32_t device_count; /* VGPU_MAX_DEVICES */
    uint32_t state; /* enum vgpu_region_state */
    uint32_t slot_high; /* slots at or above this index were never used */
    uint64_t host_denied_count; /* page-locked memory refused because of the limit */
    uint8_t reserved_header[216];
    struct vgpu_region_column columns[VGPU_MAX_DEVICES];
    struct vgpu_region_guess guesses[VGPU_REGION_GUESSES];
    struct vgpu_region_slot slots[VGPU_REGION_SLOTS];
};

/* ------------------------------------------------------- the layout is a promise */

#define VGPU_AT(type, field, offset) _Static_assert(offsetof(struct type, field) == (offset), #type "." #field)
#define VGPU_SIZE(type, bytes) _Static_assert(sizeof(struct type) == (bytes), "size of " #type)

VGPU_AT(vgpu_page_device, uuid, 0);
VGPU_AT(vgpu_page_device, memory_limit_bytes, 64);
VGPU_AT(vgpu_page_device, cores_percent, 72);
VGPU_AT(vgpu_page_device, core_policy, 76);
VGPU_AT(vgpu_page_device, priority, 80);
VGPU_AT(vgpu_page_device, flags, 84);
VGPU_AT(vgpu_page_device, physical_bytes, 88);
VGPU_AT(vgpu_page_device, context_bytes, 96);
VGPU_AT(vgpu_page_device, cores_ceiling, 104);
VGPU_AT(vgpu_page_device, alone_until_ns, 112);
VGPU_AT(vgpu_page_device, reserved, 120);
VGPU_SIZE(vgpu_page_device, 192);

VGPU_AT(vgpu_page, magic, 0);
VGPU_AT(vgpu_page, abi_version, 8);
VGPU_AT(vgpu_page, size, 12);
VGPU_AT(vgpu_page, seq, 16);
VGPU_AT(vgpu_page, state, 20);
VGPU_AT(vgpu_page, epoch, 24);
VGPU_AT(vgpu_page, device_count, 32);
VGPU_AT(vgpu_page, flags, 36);
VGPU_AT(vgpu_page, nonce, 40);
VGPU_AT(vgpu_page, host_limit_bytes, 104);
VGPU_AT(vgpu_page, reserved_header, 112);
VGPU_AT(vgpu_page, devices, 256);
VGPU_AT(vgpu_page, reserved_tail, 12544);
VGPU_SIZE(vgpu_page, VGPU_PAGE_BYTES);

VGPU_AT(vgpu_region_bucket, paid_until_ns, 0);
VGPU_AT(vgpu_region_bucket, raw_ns, 8);
VGPU_AT(vgpu_region_bucket, charged_ns, 16);
VGPU_AT(vgpu_region_bucket, measured_ns, 24);
VGPU_AT(vgpu_region_bucket, calibrated_us, 32);
VGPU_AT(vgpu_region_bucket, factor, 40);
VGPU_AT(vgpu_region_bucket, debt_ns, 48);
VGPU_AT(vgpu_region_bucket, tick_ns, 56);
VGPU_AT(vgpu_region_bucket, others_ns, 64);
VGPU_AT(vgpu_region_bucket, waited_ns, 72);
VGPU_AT(vgpu_region_bucket, queued, 80);
VGPU_AT(vgpu_region_bucket, neighbours, 82);
VGPU_AT(vgpu_region_bucket, blind, 84);
VGPU_SIZE(vgpu_region_bucket, 88);

VGPU_AT(vgpu_region_column, key, 0);
VGPU_AT(vgpu_region_column, uuid, 8);
VGPU_AT(vgpu_region_column, denied_count, 72);
VGPU_AT(vgpu_region_column, denied_last_ns, 80);
VGPU_AT(vgpu_region_column, peak_bytes, 88);
VGPU_AT(vgpu_region_column, bucket, 96);
VGPU_AT(vgpu_region_column, context_bytes, 184);
VGPU_SIZE(vgpu_region_column, 192);

VGPU_AT(vgpu_region_slot, owner, 0);
VGPU_AT(vgpu_region_slot, start_time, 8);
VGPU_AT(vgpu_region_slot, pid_namespace, 16);
VGPU_AT(vgpu_region_slot, image, 24);
VGPU_AT(vgpu_region_slot, pid, 32);
VGPU_AT(vgpu_region_slot, host_pid, 36);
VGPU_AT(vgpu_region_slot, registered_ns, 40);
VGPU_AT(vgpu_region_slot, host_used, 48);
VGPU_AT(vgpu_region_slot, imports, 56);
VGPU_AT(vgpu_region_slot, layout, 64);
VGPU_AT(vgpu_region_slot, layout_owner, 72);
VGPU_AT(vgpu_region_slot, seen, 80);
VGPU_AT(vgpu_region_slot, used, 128);
VGPU_AT(vgpu_region_slot, peak, 640);
VGPU_AT(vgpu_region_slot, overhead, 1152);
VGPU_AT(vgpu_region_slot, managed, 1664);
VGPU_AT(vgpu_region_slot, exported, 1920);
VGPU_SIZE(vgpu_region_slot, 2048);

VGPU_AT(vgpu_region_guess, owner, 0);
VGPU_AT(vgpu_region_guess, layout, 8);
VGPU_AT(vgpu_region_guess, since_ns, 16);
VGPU_AT(vgpu_region_guess, charged_us, 24);
VGPU_AT(vgpu_region_guess, column, 28);
VGPU_AT(vgpu_region_guess, percent, 30);
VGPU_SIZE(vgpu_region_guess, 32);

VGPU_AT(vgpu_region, magic, 0);
VGPU_AT(vgpu_region, abi_version, 8);
VGPU_AT(vgpu_region, size, 12);
VGPU_AT(vgpu_region, slot_count, 16);
VGPU_AT(vgpu_region, device_count, 20);
VGPU_AT(vgpu_region, state, 24);
VGPU_AT(vgpu_region, slot_high, 28);
VGPU_AT(vgpu_region, host_denied_count, 32);
VGPU_AT(vgpu_region, reserved_header, 40);
VGPU_AT(vgpu_region, columns, 256);
VGPU_AT(vgpu_region, guesses, 12544);
VGPU_AT(vgpu_region, slots, 16384);
VGPU_SIZE(vgpu_region, VGPU_REGION_BYTES);

#undef VGPU_AT
#undef VGPU_SIZE

#endif
