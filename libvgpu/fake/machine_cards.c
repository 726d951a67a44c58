/* machine_cards.c - the cards and MIG instances in a machine's file, and how lines refer to them. */
#include "machine_lines.h"
#include "mig.h"
#include "vgpu_nvml.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int machine_number(const char *text, long long low, long long high, long long *out)
{
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (errno || end == text || *end || value < low || value > high) {
        return -1;
    }
    *out = value;
    return 0;
}

int machine_card_named(const struct machine *m, const char *name)
{
    long long n;
    if (!machine_number(name, 0, m->card_count - 1, &n)) {
        return m->cards[n].uuid[0] ? (int)n : -1;
    }
    return machine_card_by_uuid(m, name);
}

static int parse_uuid(struct machine_card *card, const char *text)
{
    if (strlen(text) != 40 || strncmp(text, "GPU-", 4) != 0) {
        return -1;
    }
    int n = 0;
    for (const char *c = text + 4; *c;) {
        size_t at = (size_t)(c - text - 4);
        if (at == 8 || at == 13 || at == 18 || at == 23) {
            if (*c++ != '-') {
                return -1;
            }
            continue;
        }
        unsigned byte;
        if (!isxdigit((unsigned char)c[0]) || !isxdigit((unsigned char)c[1]) || sscanf(c, "%2x", &byte) != 1) {
            return -1;
        }
        card->uuid_bytes[n++] = (unsigned char)byte;
        c += 2;
    }
    snprintf(card->uuid, sizeof card->uuid, "%s", text);
    for (char *c = card->uuid + 4; *c; c++) {
        *c = (char)tolower((unsigned char)*c);
    }
    return 0;
}

static int card_field(struct machine_card *card, const char *key, const char *value)
{
    long long n;
    unsigned domain, bus, device, function;
    if (!strcmp(key, "uuid")) {
        return parse_uuid(card, value);
    }
    if (!strcmp(key, "model")) {
        return (size_t)snprintf(card->model, sizeof card->model, "%s", value) < sizeof card->model ? 0 : -1;
    }
    if (!strcmp(key, "serial")) {
        return (size_t)snprintf(card->serial, sizeof card->serial, "%s", value) < sizeof card->serial ? 0 : -1;
    }
    if (!strcmp(key, "bus")) {
        if (sscanf(value, "%x:%x:%x.%x", &domain, &bus, &device, &function) != 4 || bus > 255 || device > 31) {
            return -1;
        }
        card->domain = domain;
        card->bus = bus;
        card->device = device;
        return 0;
    }
    if (!strcmp(key, "cc")) {
        return sscanf(value, "%d.%d", &card->cc_major, &card->cc_minor) == 2 ? 0 : -1;
    }
    if (!strcmp(key, "mig")) {
        card->mig_capable = strcmp(value, "none") != 0;
        card->mig_enabled = !strcmp(value, "on");
        return !strcmp(value, "none") || !strcmp(value, "on") || !strcmp(value, "off") ? 0 : -1;
    }
    if (!strcmp(key, "memory_mib")) {
        if (machine_number(value, 1, 1LL << 30, &n)) {
            return -1;
        }
        card->memory_bytes = (uint64_t)n * MIB;
        return 0;
    }
    static const struct {
        const char *key;
        long long low, high;
        size_t offset;
    } ints[] = {
        {"numa", -1, 1023, offsetof(struct machine_card, numa)},
        {"numa_of_memory", -1, 1023, offsetof(struct machine_card, numa_of_memory)},
        {"switch_links", 0, NVML_NVLINK_MAX_LINKS, offsetof(struct machine_card, switch_links)},
        {"sms", 1, 1024, offsetof(struct machine_card, sms)},
        {"minor", 0, 255, offsetof(struct machine_card, minor)},
    };
    for (size_t i = 0; i < sizeof ints / sizeof ints[0]; i++) {
        if (!strcmp(key, ints[i].key)) {
            if (machine_number(value, ints[i].low, ints[i].high, &n)) {
                return -1;
            }
            *(int *)((char *)card + ints[i].offset) = (int)n;
            return 0;
        }
    }
    if (!strcmp(key, "power_w")) {
        if (machine_number(value, 1, 10000, &n)) {
            return -1;
        }
        card->power_limit_mw = (unsigned)n * 1000;
        return 0;
    }
    return -1;
}

int machine_parse_card(struct machine *m, struct line *line, char *why, size_t why_bytes)
{
    if (m->card_count == MACHINE_MAX_CARDS) {
        snprintf(why, why_bytes, "more than %d cards", MACHINE_MAX_CARDS);
        return -1;
    }
    int index = m->card_count;
    struct machine_card *card = &m->cards[index];
    *card = (struct machine_card){
        .model = "Simulated GPU",
        .memory_bytes = 16384 * MIB,
        .numa = -1,
        .numa_of_memory = -1,
        .parent = -1,
        .bus = (unsigned)index + 1,
        .cc_major = 8,
        .sms = 108,
        .minor = index,
        .power_limit_mw = 400000,
    };
    snprintf(card->serial, sizeof card->serial, "16500%08d", index);
    for (int i = 1; i < line->count; i++) {
        char *value = strchr(line->words[i], '=');
        if (!value) {
            snprintf(why, why_bytes, "'%s' is not key=value", line->words[i]);
            return -1;
        }
        *value++ = '\0';
        if (card_field(card, line->words[i], value)) {
            snprintf(why, why_bytes, "bad %s '%s'", line->words[i], value);
            return -1;
        }
    }
    if (!card->uuid[0] || machine_card_by_uuid(m, card->uuid) >= 0) {
        snprintf(why, why_bytes, "a card needs a uuid of its own");
        return -1;
    }
    m->card_count++;
    return 0;
}

/* mig OF uuid=MIG-... memory_mib=... sms=... gi=... ci=...: otherwise like the card it is part of. */
int machine_parse_instance(struct machine *m, struct line *line, char *why, size_t why_bytes)
{
    int parent = line->count > 1 ? machine_card_named(m, line->words[1]) : -1;
    long long n;
    if (parent < 0 || m->card_count == MACHINE_MAX_CARDS || !m->cards[parent].mig_enabled || m->cards[parent].parent >= 0) {
        snprintf(why, why_bytes, "an instance is part of a card with mig=on named before it");
        return -1;
    }
    struct machine_card *it = &m->cards[m->card_count];
    *it = m->cards[parent];
    it->parent = parent;
    it->uuid[0] = '\0';
    it->gi = (unsigned)m->card_count;
    for (int i = 2; i < line->count; i++) {
        char *value = strchr(line->words[i], '=');
        int bad = !value;
        if (value) {
            *value++ = '\0';
            if (!strcmp(line->words[i], "gi") || !strcmp(line->words[i], "ci")) {
                bad = machine_number(value, 0, 63, &n);
                *(line->words[i][0] == 'g' ? &it->gi : &it->ci) = (unsigned)n;
            } else if (!strcmp(line->words[i], "uuid") && !strncmp(value, "MIG-", 4)) {
                memcpy(value, "GPU", 3);
                bad = machine_card_by_uuid(m, value) >= 0 || parse_uuid(it, value);
                memcpy(it->uuid, "MIG", 3);
            } else {
                bad = (strcmp(line->words[i], "memory_mib") != 0 && strcmp(line->words[i], "sms") != 0) ||
                      card_field(it, line->words[i], value);
            }
        }
        if (bad) {
            snprintf(why, why_bytes, "bad '%s' of an instance", line->words[i]);
            return -1;
        }
    }
    if (!it->uuid[0] || machine_card_by_uuid(m, it->uuid) >= 0) {
        snprintf(why, why_bytes, "an instance needs a uuid of its own");
        return -1;
    }
    m->card_count++;
    return 0;
}

int machine_make_room(struct machine *m, char *why, size_t why_bytes)
{
    int cards = m->card_count;
    for (int card = 0; card < cards; card++) {
        if (!m->cards[card].mig_enabled || m->cards[card].parent >= 0 || machine_first_instance(m, card) >= 0 ||
            !mig_profile_at(&m->cards[card], 0)) {
            continue;
        }
        if (m->card_count + MIG_MAX_INSTANCES > MACHINE_MAX_CARDS) {
            snprintf(why, why_bytes, "more than %d cards and places for instances", MACHINE_MAX_CARDS);
            return -1;
        }
        for (int i = 0; i < MIG_MAX_INSTANCES; i++) {
            struct machine_card *room = &m->cards[m->card_count++];
            *room = m->cards[card];
            room->parent = card;
            room->is_room = 1;
            room->uuid[0] = '\0';
        }
    }
    return 0;
}
