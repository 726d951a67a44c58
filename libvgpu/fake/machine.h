/* machine.h - the simulated machine, as its text file describes it (format: fake/README.md).
 *
 * A process parses the description once and it never changes; everything that changes is in state.h. `machine_visible`
 * returns the part that a container would see through its device nodes.
 */
#ifndef FAKE_MACHINE_H
#define FAKE_MACHINE_H

#include <stddef.h>
#include <stdint.h>

#define MACHINE_MAX_CARDS 64

struct machine_card {
    char uuid[48]; /* GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx */
    unsigned char uuid_bytes[16];
    char model[96];
    char serial[32];
    uint64_t memory_bytes;
    int numa;          /* nearest NUMA node of the host; -1: the platform does not report it */
    int numa_of_memory; /* NUMA node that consists of its own memory (Grace); -1: none */
    int switch_links;  /* NVLinks to a switch */
    unsigned domain, bus, device;
    int cc_major, cc_minor;
    int sms;
    int minor;
    int mig_capable;
    int mig_enabled;
    int parent;         /* of a MIG instance: the card that it belongs to; -1: it is a card itself */
    unsigned gi, ci;    /* numbers of an instance */
    int is_room;        /* 1: room for an instance that NVML may make (mig.h); no uuid: there is none now */
    unsigned power_limit_mw;
};

struct machine_link {
    int nvlinks;
    int level; /* NVML_TOPOLOGY_*, or -1: follow the NUMA nodes */
};

/* How NVML names processes to a caller in a PID namespace (README.md). */
enum machine_pids { MACHINE_PIDS_HOST = 0, MACHINE_PIDS_OWN, MACHINE_PIDS_MIXED };

/* How much memory NVML's lists report for a process. */
enum machine_bytes { MACHINE_BYTES_SHOWN = 0, MACHINE_BYTES_ZERO, MACHINE_BYTES_UNAVAILABLE, MACHINE_BYTES_HUGE };

struct machine {
    char path[4000];
    char driver_version[64];
    int cuda_version; /* 12080 for 12.8 */
    uint64_t context_bytes; /* what every context costs on its card */
    uint64_t granularity;   /* every allocation is rounded up to this */
    uint64_t pool_chunk;    /* pools grow by multiples of this */
    int pools_wait;         /* 1: pools release memory only at the next synchronisation */
    uint64_t slice_ns;      /* timeslice of a process on a card */
    uint64_t switch_ns;     /* cost of a context switch */
    uint64_t sample_ns;     /* utilisation is sampled this often */
    uint64_t lag_ns;        /* utilisation is reported this late */
    int managed_lazy;       /* 1: managed memory takes none of a card until it is used there, and so here: never */
    int mps;                /* 1: the lists of MPS processes show who computes */
    int draws;              /* 1: the lists of graphics processes show who computes */
    int memory_limits;      /* 1: limits the memory of cgroups, as from r615 on */
    int fork_works;         /* 1: a forked child may keep using the driver (a real one cannot) */
    enum machine_pids pids;
    enum machine_bytes bytes;
    char device_nodes[256]; /* folder of device nodes that decide which cards are visible; "": the environment does */
    int card_count;
    struct machine_card cards[MACHINE_MAX_CARDS];
    struct machine_link links[MACHINE_MAX_CARDS][MACHINE_MAX_CARDS];
};

/* Parse `path` into `out`. Returns 0, or the 1-based line that is wrong (with `why` filled), or -1 when the
 * file cannot be read. */
int machine_read(struct machine *out, const char *path, char *why, size_t why_bytes);

/* Return the value called `name`; -1 if there is none. */
int machine_pids_named(const char *name);
int machine_bytes_named(const char *name);

/* The path of the description if VGPU_FAKE_MACHINE is not set: a container's environment may have been cleared. */
#define MACHINE_DEFAULT_PATH "/run/vgpu-fake/machine"

/* The machine of this process, read at the first call; NULL if there is none or it is invalid. */
const struct machine *machine_current(void);

/* Return the topology level between two different cards. */
int machine_level(const struct machine *m, int a, int b);

/* Make room for instances in every card in MIG mode whose file names none; 0, or -1 with `why` filled. */
int machine_make_room(struct machine *m, char *why, size_t why_bytes);

/* Return the first instance of a card in MIG mode; -1 if it has none. */
int machine_first_instance(const struct machine *m, int card);

/* Cards that can be opened, where the machine has device nodes; `list` is ignored then. Elsewhere the cards that
 * a list such as NVIDIA_VISIBLE_DEVICES selects, in card order: `list` NULL or "all" selects all; "",
 * "void" and "none" none; else indices and UUIDs separated by commas, unknown ones ignored. MIG instances only by name.
 * Fills `cards` with card indices, returns how many. */
int machine_visible(const struct machine *m, const char *list, int cards[MACHINE_MAX_CARDS]);

/* Return the index of a card by its index or UUID; -1 if there is none. */
int machine_card_named(const struct machine *m, const char *name);

/* Return the index of the card with this UUID text (a unique prefix suffices); -1 if there is none. */
int machine_card_by_uuid(const struct machine *m, const char *uuid);

#endif
