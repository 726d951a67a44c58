/* mig_profiles.c - the MIG profiles of known cards.
 *
 * Figures as the drivers of these cards list them; a card has seven compute slices and eight memory slices. */
#include "mig.h"

#include <string.h>

#define EVERY 0x7fu  /* 0 to 6 */
#define PAIRS 0x55u  /* 0, 2, 4, 6 */
#define TWOS 0x15u   /* 0, 2, 4 */
#define HALVES 0x11u /* 0, 4 */

static const struct mig_profile a100_40[] = {
    {"1g.5gb", 0, 19, 1, 7, 4864, 14, 1, EVERY, 0},   {"2g.10gb", 1, 14, 2, 3, 9984, 28, 2, TWOS, 1},
    {"3g.20gb", 2, 9, 3, 2, 20096, 42, 4, HALVES, 2}, {"4g.20gb", 3, 5, 4, 1, 20096, 56, 4, 1, 3},
    {"7g.40gb", 4, 0, 7, 1, 40320, 98, 8, 1, 4},      {"1g.5gb+me", 7, 20, 1, 1, 4864, 14, 1, EVERY, 0},
    {"1g.10gb", 9, 15, 1, 4, 9984, 14, 2, PAIRS, 0},
};

static const struct mig_profile a100_80[] = {
    {"1g.10gb", 0, 19, 1, 7, 9728, 14, 1, EVERY, 0},  {"2g.20gb", 1, 14, 2, 3, 19968, 28, 2, TWOS, 1},
    {"3g.40gb", 2, 9, 3, 2, 40192, 42, 4, HALVES, 2}, {"4g.40gb", 3, 5, 4, 1, 40192, 56, 4, 1, 3},
    {"7g.80gb", 4, 0, 7, 1, 80896, 98, 8, 1, 4},      {"1g.10gb+me", 7, 20, 1, 1, 9728, 14, 1, EVERY, 0},
    {"1g.20gb", 9, 15, 1, 4, 19968, 14, 2, PAIRS, 0},
};

static const struct mig_profile h100_80[] = {
    {"1g.10gb", 0, 19, 1, 7, 9984, 16, 1, EVERY, 0},  {"2g.20gb", 1, 14, 2, 3, 20096, 32, 2, TWOS, 1},
    {"3g.40gb", 2, 9, 3, 2, 40448, 60, 4, HALVES, 2}, {"4g.40gb", 3, 5, 4, 1, 40448, 64, 4, 1, 3},
    {"7g.80gb", 4, 0, 7, 1, 81152, 132, 8, 1, 4},     {"1g.10gb+me", 7, 20, 1, 1, 9984, 16, 1, EVERY, 0},
    {"1g.20gb", 9, 15, 1, 4, 20096, 26, 2, PAIRS, 0},
};

#define COUNT (sizeof a100_40 / sizeof a100_40[0])

static const struct mig_profile *table(const struct machine_card *card)
{
    uint64_t mib = card->memory_bytes >> 20;
    if (strstr(card->model, "A100")) {
        return mib >= 81920 ? a100_80 : mib >= 40960 ? a100_40 : NULL;
    }
    return strstr(card->model, "H100") && mib >= 81152 ? h100_80 : NULL;
}

const struct mig_profile *mig_profile_at(const struct machine_card *card, unsigned at)
{
    const struct mig_profile *all = table(card);
    return all && at < COUNT ? &all[at] : NULL;
}

const struct mig_profile *mig_profile_of_kind(const struct machine_card *card, unsigned kind)
{
    const struct mig_profile *profile;
    for (unsigned i = 0; (profile = mig_profile_at(card, i)); i++) {
        if (profile->kind == kind) {
            return profile;
        }
    }
    return NULL;
}

const struct mig_profile *mig_profile_by_id(const struct machine_card *card, unsigned id)
{
    const struct mig_profile *profile;
    for (unsigned i = 0; (profile = mig_profile_at(card, i)); i++) {
        if (profile->id == id) {
            return profile;
        }
    }
    return NULL;
}
