/* mig.c - the existing MIG instances: changed in the shared state, copied into each process's machine. */
#include "mig.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "state_inside.h"

static pthread_mutex_t copy_lock = PTHREAD_MUTEX_INITIALIZER;
static uint32_t copied; /* the generation that this process has read */

unsigned mig_number(const struct machine *m, int room)
{
    unsigned number = 1;
    for (int i = 0; i < room; i++) {
        number += m->cards[i].parent == m->cards[room].parent;
    }
    return number;
}

/* Combine the card's UUID with the generation, so that every compute instance gets a new UUID. */
static void name_it(struct machine_card *it, const struct machine_card *card, uint32_t generation)
{
    static const int dashes[] = {4, 6, 8, 10};
    char *out = it->uuid + snprintf(it->uuid, sizeof it->uuid, "MIG-");
    memcpy(it->uuid_bytes, card->uuid_bytes, sizeof it->uuid_bytes);
    it->uuid_bytes[4] ^= (unsigned char)(generation >> 8);
    it->uuid_bytes[5] ^= (unsigned char)generation;
    it->uuid_bytes[6] ^= 0x10; /* not the card's own UUID, in any generation */
    for (int i = 0, dash = 0; i < 16; i++) {
        if (dash < 4 && i == dashes[dash]) {
            *out++ = '-';
            dash++;
        }
        out += snprintf(out, 3, "%02x", it->uuid_bytes[i]);
    }
}

void mig_refresh(const struct machine *m)
{
    const struct state *shared = state_open(m);
    if (!shared ||
        __atomic_load_n(&shared->instance_generation, __ATOMIC_ACQUIRE) == __atomic_load_n(&copied, __ATOMIC_ACQUIRE)) {
        return;
    }
    pthread_mutex_lock(&copy_lock);
    struct state *s = state_enter(m);
    for (int room = 0; s && room < m->card_count; room++) {
        const struct machine_card *card = &m->cards[m->cards[room].parent < 0 ? 0 : m->cards[room].parent];
        const struct state_instance *of = &s->instances[room];
        const struct mig_profile *profile = of->compute_made ? mig_profile_by_id(card, of->profile) : NULL;
        struct machine_card *it = (struct machine_card *)&m->cards[room]; /* the cast is safe: the machine is not const */
        if (!it->is_room) {
            continue;
        }
        it->uuid[0] = '\0';
        if (profile) {
            it->memory_bytes = (uint64_t)profile->memory_mib << 20;
            it->sms = (int)profile->sms;
            char model[sizeof it->model];
            snprintf(model, sizeof model, "%.64s MIG %s", card->model, profile->name);
            memcpy(it->model, model, sizeof model);
            it->gi = mig_number(m, room);
            it->ci = 0;
            name_it(it, card, of->generation);
        }
    }
    if (s) {
        __atomic_store_n(&copied, s->instance_generation, __ATOMIC_RELEASE);
        state_leave();
    }
    pthread_mutex_unlock(&copy_lock);
}

static unsigned slices(unsigned start, unsigned size)
{
    return ((1u << size) - 1) << start;
}

/* Return the memory slices of a card that are in use; all of them if no more instances of a profile may be created. */
static unsigned taken(const struct machine *m, const struct state *s, int card, const struct mig_profile *profile)
{
    unsigned found = 0, alike = 0;
    for (int i = 0; i < m->card_count; i++) {
        const struct state_instance *of = &s->instances[i];
        if (m->cards[i].is_room && m->cards[i].parent == card && of->gpu_made) {
            found |= slices(of->start, of->size);
            alike += of->profile == profile->id;
        }
    }
    return alike < profile->most ? found : ~0u;
}

static int may_lie(const struct mig_profile *profile, unsigned start, unsigned used)
{
    return start < 8 && profile->starts >> start & 1 && !(used & slices(start, profile->size));
}

static int free_room(const struct machine *m, const struct state *s, int card)
{
    for (int i = 0; i < m->card_count; i++) {
        if (m->cards[i].is_room && m->cards[i].parent == card && !s->instances[i].gpu_made) {
            return i;
        }
    }
    return -1;
}

enum mig_result mig_make(const struct machine *m, int card, const struct mig_profile *profile, int start, int *room)
{
    struct state *s = state_enter(m);
    if (!s) {
        return MIG_GONE;
    }
    enum mig_result result = MIG_NO_ROOM;
    unsigned used = taken(m, s, card, profile);
    int at = start < 0 ? 0 : start;
    while (start < 0 && at < 8 && !may_lie(profile, (unsigned)at, used)) {
        at++;
    }
    *room = may_lie(profile, (unsigned)at, used) ? free_room(m, s, card) : -1;
    if (*room >= 0) {
        s->instances[*room] =
            (struct state_instance){.gpu_made = 1, .profile = profile->id, .start = (uint32_t)at, .size = profile->size};
        __atomic_add_fetch(&s->instance_generation, 1, __ATOMIC_RELEASE);
        result = MIG_OK;
    }
    state_leave();
    return result;
}

enum mig_result mig_unmake(const struct machine *m, int room)
{
    struct state *s = state_enter(m);
    if (!s) {
        return MIG_GONE;
    }
    struct state_instance *of = &s->instances[room];
    enum mig_result result = !of->gpu_made ? MIG_GONE : of->compute_made ? MIG_IN_USE : MIG_OK;
    if (result == MIG_OK) {
        of->gpu_made = 0;
        __atomic_add_fetch(&s->instance_generation, 1, __ATOMIC_RELEASE);
    }
    state_leave();
    return result;
}

enum mig_result mig_make_compute(const struct machine *m, int room)
{
    struct state *s = state_enter(m);
    if (!s) {
        return MIG_GONE;
    }
    struct state_instance *of = &s->instances[room];
    enum mig_result result = !of->gpu_made ? MIG_GONE : of->compute_made ? MIG_NO_ROOM : MIG_OK;
    if (result == MIG_OK) {
        of->compute_made = 1;
        of->generation = __atomic_add_fetch(&s->instance_generation, 1, __ATOMIC_RELEASE);
        s->cards[room].peak_bytes = 0;
    }
    state_leave();
    mig_refresh(m);
    return result;
}

enum mig_result mig_unmake_compute(const struct machine *m, int room)
{
    struct state *s = state_enter(m);
    if (!s) {
        return MIG_GONE;
    }
    struct state_instance *of = &s->instances[room];
    enum mig_result result = of->gpu_made && of->compute_made ? MIG_OK : MIG_GONE;
    state_clear(s);
    for (uint32_t i = 0; result == MIG_OK && i < s->process_high; i++) {
        const struct state_process *p = &s->processes[i];
        result = p->pid && (p->used[room] || p->contexts[room]) ? MIG_IN_USE : MIG_OK;
    }
    for (int i = 0; result == MIG_OK && i < STATE_MAX_SHARES; i++) {
        result = s->shares[i].bytes && s->shares[i].card == room ? MIG_IN_USE : MIG_OK;
    }
    if (result == MIG_OK) {
        of->compute_made = 0;
        __atomic_add_fetch(&s->instance_generation, 1, __ATOMIC_RELEASE);
    }
    state_leave();
    mig_refresh(m);
    return result;
}

struct state_instance mig_instance(const struct machine *m, int room)
{
    struct state *s = state_enter(m);
    struct state_instance found = {0};
    if (s) {
        found = s->instances[room];
        state_leave();
    }
    return found;
}

unsigned mig_capacity(const struct machine *m, int card, const struct mig_profile *profile)
{
    struct state *s = state_enter(m);
    unsigned count = 0;
    if (s) {
        unsigned used = taken(m, s, card, profile), alike = 0;
        for (int i = 0; i < m->card_count; i++) {
            alike += m->cards[i].is_room && m->cards[i].parent == card && s->instances[i].gpu_made &&
                     s->instances[i].profile == profile->id;
        }
        for (unsigned start = 0; start < 8 && alike + count < profile->most; start++) {
            if (may_lie(profile, start, used)) {
                used |= slices(start, profile->size);
                count++;
            }
        }
        state_leave();
    }
    return count;
}
