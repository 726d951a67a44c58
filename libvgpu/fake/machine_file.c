/* machine_file.c - reads the text file that describes a simulated machine. */
#include "machine.h"

#include <ctype.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "vgpu_nvml.h"

#define MIB (UINT64_C(1) << 20)

struct line {
    char *words[16]; /* words[0] is the keyword; the others key=value or bare */
    int count;
};

/* Split in place at blanks; "..." keeps blanks. */
static int split(char *text, struct line *out)
{
    out->count = 0;
    char *in = text;
    while (*in) {
        while (isspace((unsigned char)*in)) {
            in++;
        }
        if (!*in || *in == '#') {
            break;
        }
        if (out->count == (int)(sizeof out->words / sizeof out->words[0])) {
            return -1;
        }
        char *to = in;
        out->words[out->count++] = to;
        int quoted = 0;
        while (*in && (quoted || !isspace((unsigned char)*in))) {
            if (*in == '"') {
                quoted = !quoted;
            } else {
                *to++ = *in;
            }
            in++;
        }
        if (quoted) {
            return -1;
        }
        if (*in) {
            in++;
        }
        *to = '\0';
    }
    return 0;
}

static int number(const char *text, long long low, long long high, long long *out)
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
        if (number(value, 1, 1LL << 30, &n)) {
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
        {"sms", 1, 1024, offsetof(struct machine_card, sms)},
        {"minor", 0, 255, offsetof(struct machine_card, minor)},
    };
    for (size_t i = 0; i < sizeof ints / sizeof ints[0]; i++) {
        if (!strcmp(key, ints[i].key)) {
            if (number(value, ints[i].low, ints[i].high, &n)) {
                return -1;
            }
            *(int *)((char *)card + ints[i].offset) = (int)n;
            return 0;
        }
    }
    if (!strcmp(key, "power_w")) {
        if (number(value, 1, 10000, &n)) {
            return -1;
        }
        card->power_limit_mw = (unsigned)n * 1000;
        return 0;
    }
    return -1;
}

static int parse_card(struct machine *m, struct line *line, char *why, size_t why_bytes)
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
static int parse_instance(struct machine *m, struct line *line, char *why, size_t why_bytes)
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
                bad = number(value, 0, 63, &n);
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

int machine_card_named(const struct machine *m, const char *name)
{
    long long n;
    if (!number(name, 0, m->card_count - 1, &n)) {
        return (int)n;
    }
    return machine_card_by_uuid(m, name);
}

static int level_named(const char *name)
{
    static const struct {
        const char *name;
        int level;
    } levels[] = {
        {"INTERNAL", NVML_TOPOLOGY_INTERNAL}, {"SINGLE", NVML_TOPOLOGY_SINGLE},
        {"PIX", NVML_TOPOLOGY_SINGLE},        {"MULTIPLE", NVML_TOPOLOGY_MULTIPLE},
        {"PXB", NVML_TOPOLOGY_MULTIPLE},      {"HOSTBRIDGE", NVML_TOPOLOGY_HOSTBRIDGE},
        {"PHB", NVML_TOPOLOGY_HOSTBRIDGE},    {"NODE", NVML_TOPOLOGY_NODE},
        {"SYSTEM", NVML_TOPOLOGY_SYSTEM},     {"SYS", NVML_TOPOLOGY_SYSTEM},
    };
    for (size_t i = 0; i < sizeof levels / sizeof levels[0]; i++) {
        if (!strcmp(name, levels[i].name)) {
            return levels[i].level;
        }
    }
    return -1;
}

static int parse_link(struct machine *m, struct line *line, char *why, size_t why_bytes)
{
    int a = line->count > 2 ? machine_card_named(m, line->words[1]) : -1;
    int b = line->count > 2 ? machine_card_named(m, line->words[2]) : -1;
    if (a < 0 || b < 0 || a == b) {
        snprintf(why, why_bytes, "a link joins two different cards named before it");
        return -1;
    }
    struct machine_link link = {.level = -1};
    for (int i = 3; i < line->count; i++) {
        long long n;
        if (!strncmp(line->words[i], "nvlinks=", 8) && !number(line->words[i] + 8, 0, NVML_NVLINK_MAX_LINKS, &n)) {
            link.nvlinks = (int)n;
        } else if (!strncmp(line->words[i], "level=", 6) && level_named(line->words[i] + 6) >= 0) {
            link.level = level_named(line->words[i] + 6);
        } else {
            snprintf(why, why_bytes, "bad '%s'", line->words[i]);
            return -1;
        }
    }
    m->links[a][b] = m->links[b][a] = link;
    return 0;
}

static int parse_setting(struct machine *m, struct line *line, char *why, size_t why_bytes)
{
    char *value = strchr(line->words[0], '=');
    int major, minor;
    long long n;
    if (line->count == 1 && value) {
        *value++ = '\0';
        const char *key = line->words[0];
        if (!strcmp(key, "driver")) {
            snprintf(m->driver_version, sizeof m->driver_version, "%s", value);
            return 0;
        }
        if (!strcmp(key, "cuda") && sscanf(value, "%d.%d", &major, &minor) == 2 && major > 0 && minor >= 0) {
            m->cuda_version = major * 1000 + minor * 10;
            return 0;
        }
        if (!strcmp(key, "context_mib") && !number(value, 0, 1 << 20, &n)) {
            m->context_bytes = (uint64_t)n * MIB;
            return 0;
        }
        if (!strcmp(key, "granularity") && !number(value, 1, 1 << 30, &n) && (n & (n - 1)) == 0) {
            m->granularity = (uint64_t)n;
            return 0;
        }
        if (!strcmp(key, "pool_chunk_mib") && !number(value, 1, 1 << 20, &n)) {
            m->pool_chunk = (uint64_t)n << 20;
            return 0;
        }
        if (!strcmp(key, "pools_wait") && !number(value, 0, 1, &n)) {
            m->pools_wait = (int)n;
            return 0;
        }
        if (!strcmp(key, "device_nodes") && *value && strlen(value) < sizeof m->device_nodes) {
            snprintf(m->device_nodes, sizeof m->device_nodes, "%s", value);
            return 0;
        }
        if (!strcmp(key, "slice_us") && !number(value, 1, 1000000, &n)) {
            m->slice_ns = (uint64_t)n * 1000;
            return 0;
        }
        if (!strcmp(key, "switch_us") && !number(value, 0, 1000000, &n)) {
            m->switch_ns = (uint64_t)n * 1000;
            return 0;
        }
        if (!strcmp(key, "sample_ms") && !number(value, 1, 10000, &n)) {
            m->sample_ns = (uint64_t)n * 1000000;
            return 0;
        }
        if (!strcmp(key, "nvml_lag_ms") && !number(value, 0, 6000, &n)) {
            m->lag_ns = (uint64_t)n * 1000000;
            return 0;
        }
        if (!strcmp(key, "managed_lazy") && !number(value, 0, 1, &n)) {
            m->managed_lazy = (int)n;
            return 0;
        }
        if (!strcmp(key, "fork_works") && !number(value, 0, 1, &n)) {
            m->fork_works = (int)n;
            return 0;
        }
    }
    snprintf(why, why_bytes, "unknown or bad setting '%s'", line->words[0]);
    return -1;
}

int machine_read(struct machine *out, const char *path, char *why, size_t why_bytes)
{
    memset(out, 0, sizeof *out);
    for (int a = 0; a < MACHINE_MAX_CARDS; a++) {
        for (int b = 0; b < MACHINE_MAX_CARDS; b++) {
            out->links[a][b].level = -1;
        }
    }
    snprintf(out->driver_version, sizeof out->driver_version, "570.86.15");
    out->cuda_version = 12080;
    out->granularity = 512;
    out->pool_chunk = 512;
    out->slice_ns = UINT64_C(2000000);
    out->sample_ns = UINT64_C(100000000);
    out->lag_ns = UINT64_C(100000000);
    FILE *file = (size_t)snprintf(out->path, sizeof out->path, "%s", path) < sizeof out->path ? fopen(path, "re") : NULL;
    if (!file) {
        snprintf(why, why_bytes, "cannot read %s", path);
        return -1;
    }
    char text[1024];
    int number_of_line = 0, bad = 0;
    while (!bad && fgets(text, sizeof text, file)) {
        struct line line;
        number_of_line++;
        if (split(text, &line)) {
            snprintf(why, why_bytes, "too many words or an open quote");
            bad = -1;
        } else if (line.count && !strcmp(line.words[0], "card")) {
            bad = parse_card(out, &line, why, why_bytes);
        } else if (line.count && !strcmp(line.words[0], "mig")) {
            bad = parse_instance(out, &line, why, why_bytes);
        } else if (line.count && !strcmp(line.words[0], "link")) {
            bad = parse_link(out, &line, why, why_bytes);
        } else if (line.count) {
            bad = parse_setting(out, &line, why, why_bytes);
        }
    }
    fclose(file);
    return bad ? number_of_line : 0;
}
