/* state.h - the state of the simulated machine, shared by all its processes.
 *
 * It is kept in `<machine file>.state`, which the first process creates. It is the tests' oracle: it knows how many bytes of
 * a card each live process really holds, and the most that were ever held at once. Every change is made under one file lock,
 * which the kernel releases if its holder dies. A process writes only its own record, so it may die at any point. A dead
 * process's memory still counts until somebody reads its record, which is then cleared.
 */
#ifndef FAKE_STATE_H
#define FAKE_STATE_H

#include <stdint.h>
#include <sys/types.h>

#include "machine.h"

#define STATE_MAX_PROCESSES 4096
#define STATE_MAX_EVENTS 256
#define STATE_MAX_SHARES 256
#define STATE_MAX_LIMITS 256
#define STATE_GROUP_BYTES 512
#define STATE_MAX_FAULTS 8
#define STATE_FUNCTION_BYTES 64

/* Memory that several processes have open. It belongs to all of them, not to one. */
struct state_share {
    uint64_t bytes; /* 0: a free record */
    uint64_t inode; /* inode of the file that identifies it; 0: it is identified by its number */
    int32_t card;
    uint32_t generation; /* distinguishes it from earlier ones in the same record */
};

/* The limit on the device memory that the processes of a cgroup may use. */
struct state_limit {
    char group[STATE_GROUP_BYTES]; /* its folder; "": a free record */
    int32_t card;
    uint64_t soft, hard; /* UINT64_MAX: none */
};

/* An NVML function that returns an error for one card. */
struct state_fault {
    char function[STATE_FUNCTION_BYTES]; /* without its version suffix; "": a free record */
    uint32_t result;
};

struct state_card {
    uint64_t peak_bytes;  /* most bytes ever held at once by live processes */
    uint64_t alloc_count; /* successful allocations since the start */
    uint32_t fail_after;  /* fault: 1 makes the next allocation fail, 2 the one after, 0 none */
    uint32_t slow_ms;     /* fault: NVML takes this long to answer about the card */
    uint32_t lost;        /* fault: the card has fallen off the bus */
    uint32_t gpu_utilisation, memory_utilisation; /* percent */
    uint32_t temperature_c, power_mw;
    uint64_t ecc_corrected, ecc_uncorrected;
    uint32_t remapped_correctable, remapped_uncorrectable, remap_pending, remap_failed;
    uint32_t pages_pending;   /* retired pages that stay in use until the driver is reloaded */
    uint32_t recovery_action; /* NVML_GPU_RECOVERY_ACTION_* */
    struct state_fault faults[STATE_MAX_FAULTS];
};

/* An instance of a card in MIG mode. Its index is that of its entry among the machine's cards. */
struct state_instance {
    uint32_t gpu_made, compute_made;
    uint32_t profile; /* id */
    uint32_t start, size;
    uint32_t generation; /* distinguishes the compute instance from earlier ones: its UUID is derived from it */
};

struct state_process {
    int32_t pid; /* 0: free record */
    int32_t serial; /* unique among all processes of this machine, never reused */
    uint32_t space; /* its PID namespace */
    uint32_t host_pid; /* its PID on the host if it is in another namespace, once somebody on the host has looked */
    uint64_t start_time;
    uint64_t image; /* changes with exec */
    uint64_t host_bytes; /* page-locked */
    uint8_t shares[STATE_MAX_SHARES]; /* how often it has each share open */
    uint64_t used[MACHINE_MAX_CARDS];
    uint32_t contexts[MACHINE_MAX_CARDS];
};

struct state_event {
    int32_t card;
    uint32_t xid;
};

struct state {
    uint64_t magic;
    uint32_t host_space; /* PID namespace of the process that created this file, taken as the host's */
    int32_t serials; /* the number of serial numbers assigned so far */
    uint32_t pids,
        bytes; /* 1 more than the value that replaces the machine's setting, as after an upgrade of the driver; 0: none */
    uint32_t process_high;
    uint64_t dead_uses; /* calls with a handle that had ended (cuda_handle.h) */
    uint64_t host_peak; /* most page-locked memory ever held at once by live processes */
    uint32_t event_count; /* since the start; also a futex. event n is at n % STATE_MAX_EVENTS */
    struct state_event events[STATE_MAX_EVENTS];
    struct state_card cards[MACHINE_MAX_CARDS];
    uint32_t instance_generation; /* incremented by every change of an instance */
    struct state_instance instances[MACHINE_MAX_CARDS];
    struct state_share shares[STATE_MAX_SHARES];
    uint32_t limit_high; /* records of limits from here on were never used */
    struct state_limit limits[STATE_MAX_LIMITS];
    struct state_process processes[STATE_MAX_PROCESSES];
};

enum state_result { STATE_OK = 0, STATE_NO_MEMORY, STATE_LOST, STATE_BROKEN };

/* Return the shared state of this machine, mapped at the first call, or NULL if its file cannot be used. */
struct state *state_open(const struct machine *m);

/* Charge `bytes` of a card to the calling process, or return why not. `contexts` is added to its context count. */
enum state_result state_take(const struct machine *m, int card, uint64_t bytes, int contexts);

/* Release bytes and contexts. */
void state_give(const struct machine *m, int card, uint64_t bytes, int contexts);

/* Make a share of `bytes` that the calling process holds of a card. Return its number, or -1. */
int state_share_make(const struct machine *m, int card, uint64_t bytes, uint64_t inode);

/* Open the share with this inode (or, for inode 0, this number and generation) once more. Return its number, or -1 if there
 * is none. */
int state_share_open(const struct machine *m, uint64_t inode, int number, uint32_t generation);
void state_share_close(const struct machine *m, int number);

/* Page-lock host memory for the calling process, or release it. */
enum state_result state_lock_host(const struct machine *m, uint64_t bytes);
void state_unlock_host(const struct machine *m, uint64_t bytes);

/* Set how much of a card the processes of a cgroup may use (soft 0 and hard UINT64_MAX remove the limit), or read the limit
 * and their use. Return 0, or -1 if there is no such group. */
int state_limit_set(const struct machine *m, int card, const char *group, uint64_t soft, uint64_t hard);
int state_limit_get(const struct machine *m, int card, const char *group, struct state_limit *out, uint64_t *used);

/* Return how many bytes of a card the limits of its cgroups leave the calling process, or UINT64_MAX if it has none. */
uint64_t state_room(const struct machine *m, int card);

/* Return how many bytes of a card all live processes hold. */
uint64_t state_used(const struct machine *m, int card);

/* Run `change` on the state with its lock held. */
void state_change(const struct machine *m, void (*change)(struct state *, void *), void *argument);

/* Record an XID and wake the waiters for events. */
void state_event(const struct machine *m, int card, uint32_t xid);

/* Return a number that only this process has, or 0 if there is no room. The second function returns the record with this
 * number, or NULL once its process is dead. */
int32_t state_serial(const struct machine *m);
const struct state_process *state_living(const struct machine *m, int32_t serial);

/* The kinds of NVML calls that name processes. */
enum state_call { STATE_LIST, STATE_SAMPLES, STATE_ACCOUNTING };

/* Return the PID by which calls of this kind name a process to the caller, or 0 if they omit it. */
unsigned state_pid_shown(const struct machine *m, const struct state_process *p, enum state_call call);

/* Return the bytes of a card that NVML's lists report for a process. */
uint64_t state_bytes_shown(const struct machine *m, const struct state_process *p, int card);

/* Return the host PID of a process if the caller can know it, else a unique number above all PIDs. */
unsigned state_host_pid(const struct machine *m, const struct state_process *p);

/* Clear the records of dead processes. */
void state_clear_dead(const struct machine *m);

#endif
