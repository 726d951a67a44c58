/* mig.h - instances of cards in MIG mode that NVML creates and removes while the machine runs.
 *
 * The list of instances is in the shared state, so it outlives the process that created one, as in a real driver. Every
 * process keeps a copy in its machine, in the entries reserved for such a card (`is_room`), and updates it whenever it asks.
 * A GPU instance has either no compute instance or one that covers all of it.
 */
#ifndef FAKE_MIG_H
#define FAKE_MIG_H

#include "machine.h"
#include "state.h"

#define MIG_MAX_INSTANCES 7 /* the highest number of instances of a card */

struct mig_profile {
    const char *name;
    unsigned kind;    /* NVML_GPU_INSTANCE_PROFILE_* */
    unsigned id;
    unsigned slices;  /* compute slices */
    unsigned most;    /* most instances of this profile on a card */
    unsigned memory_mib;
    unsigned sms;
    unsigned size;    /* memory slices of an instance */
    unsigned starts;  /* possible first slices, one bit each */
    unsigned compute_kind; /* NVML_COMPUTE_INSTANCE_PROFILE_* for the whole instance */
};

/* Return a profile of the card, in NVML's order of kinds; NULL past the last, and for cards that cannot be partitioned. */
const struct mig_profile *mig_profile_at(const struct machine_card *card, unsigned at);
const struct mig_profile *mig_profile_of_kind(const struct machine_card *card, unsigned kind);
const struct mig_profile *mig_profile_by_id(const struct machine_card *card, unsigned id);

enum mig_result { MIG_OK = 0, MIG_NO_ROOM, MIG_IN_USE, MIG_GONE };

/* Bring this process's copy up to date. */
void mig_refresh(const struct machine *m);

/* Create a GPU instance of `card` at `start`, or at the first free place if it is -1. Sets `*room`, its number. */
enum mig_result mig_make(const struct machine *m, int card, const struct mig_profile *profile, int start, int *room);

/* Destroy a GPU instance. It is in use as long as it has a compute instance. */
enum mig_result mig_unmake(const struct machine *m, int room);

/* Create or destroy the compute instance of a GPU instance. Creating it gives the instance a name. A live process that uses
 * it prevents its destruction. */
enum mig_result mig_make_compute(const struct machine *m, int room);
enum mig_result mig_unmake_compute(const struct machine *m, int room);

/* Return the instance in a room; `gpu_made` is 0 if there is none. */
struct state_instance mig_instance(const struct machine *m, int room);

/* Return how many more instances of a profile fit on a card. */
unsigned mig_capacity(const struct machine *m, int card, const struct mig_profile *profile);

/* Return the number of an instance in its card, as NVML shows it. */
unsigned mig_number(const struct machine *m, int room);

#endif
