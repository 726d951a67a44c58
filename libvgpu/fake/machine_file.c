/* machine_file.c - reads the text file that describes a simulated machine: its lines, its links, its settings. */
#include "machine_lines.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "vgpu_nvml.h"

/* Split at blanks in place; "..." keeps blanks. */
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

static int level_named(const char *name)
{
    static const struct {
        const char *name;
        int level;
    } levels[] = {
        {"INTERNAL", NVML_TOPOLOGY_INTERNAL}, {"SINGLE", NVML_TOPOLOGY_SINGLE}, {"PIX", NVML_TOPOLOGY_SINGLE},
        {"MULTIPLE", NVML_TOPOLOGY_MULTIPLE}, {"PXB", NVML_TOPOLOGY_MULTIPLE},  {"HOSTBRIDGE", NVML_TOPOLOGY_HOSTBRIDGE},
        {"PHB", NVML_TOPOLOGY_HOSTBRIDGE},    {"NODE", NVML_TOPOLOGY_NODE},     {"SYSTEM", NVML_TOPOLOGY_SYSTEM},
        {"SYS", NVML_TOPOLOGY_SYSTEM},
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
        if (!strncmp(line->words[i], "nvlinks=", 8) && !machine_number(line->words[i] + 8, 0, NVML_NVLINK_MAX_LINKS, &n)) {
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

/* Numeric settings: their bounds and the unit in which they are stored. */
static const struct amount {
    const char *key;
    long long low, high;
    uint64_t unit;
    size_t offset;
} amounts[] = {
    {"context_mib", 0, 1 << 20, MIB, offsetof(struct machine, context_bytes)},
    {"granularity", 1, 1 << 30, 1, offsetof(struct machine, granularity)},
    {"pool_chunk_mib", 1, 1 << 20, MIB, offsetof(struct machine, pool_chunk)},
    {"slice_us", 1, 1000000, 1000, offsetof(struct machine, slice_ns)},
    {"switch_us", 0, 1000000, 1000, offsetof(struct machine, switch_ns)},
    {"sample_ms", 1, 10000, 1000000, offsetof(struct machine, sample_ns)},
    {"nvml_lag_ms", 0, 6000, 1000000, offsetof(struct machine, lag_ns)},
};

/* Settings that are 0 or 1. */
static const struct {
    const char *key;
    size_t offset;
} switches[] = {
    {"pools_wait", offsetof(struct machine, pools_wait)},
    {"managed_lazy", offsetof(struct machine, managed_lazy)},
    {"mps", offsetof(struct machine, mps)},
    {"draws", offsetof(struct machine, draws)},
    {"memory_limits", offsetof(struct machine, memory_limits)},
    {"fork_works", offsetof(struct machine, fork_works)},
};

static int position(const char *const *names, const char *name)
{
    for (int i = 0; names[i]; i++) {
        if (!strcmp(name, names[i])) {
            return i;
        }
    }
    return -1;
}

int machine_pids_named(const char *name)
{
    static const char *const names[] = {"host", "own", "mixed", NULL};
    return position(names, name);
}

int machine_bytes_named(const char *name)
{
    static const char *const names[] = {"shown", "zero", "unavailable", "huge", NULL};
    return position(names, name);
}

static int setting(struct machine *m, const char *key, const char *value)
{
    int major, minor;
    long long n;
    if (!strcmp(key, "driver")) {
        snprintf(m->driver_version, sizeof m->driver_version, "%s", value);
        return 0;
    }
    if (!strcmp(key, "cuda") && sscanf(value, "%d.%d", &major, &minor) == 2 && major > 0 && minor >= 0) {
        m->cuda_version = major * 1000 + minor * 10;
        return 0;
    }
    if (!strcmp(key, "device_nodes") && *value && strlen(value) < sizeof m->device_nodes) {
        snprintf(m->device_nodes, sizeof m->device_nodes, "%s", value);
        return 0;
    }
    if (!strcmp(key, "pids") && machine_pids_named(value) >= 0) {
        m->pids = (enum machine_pids)machine_pids_named(value);
        return 0;
    }
    if (!strcmp(key, "bytes") && machine_bytes_named(value) >= 0) {
        m->bytes = (enum machine_bytes)machine_bytes_named(value);
        return 0;
    }
    for (size_t i = 0; i < sizeof amounts / sizeof amounts[0]; i++) {
        const struct amount *of = &amounts[i];
        if (!strcmp(key, of->key) && !machine_number(value, of->low, of->high, &n)) {
            *(uint64_t *)((char *)m + of->offset) = (uint64_t)n * of->unit;
            return m->granularity & (m->granularity - 1) ? -1 : 0;
        }
    }
    for (size_t i = 0; i < sizeof switches / sizeof switches[0]; i++) {
        if (!strcmp(key, switches[i].key) && !machine_number(value, 0, 1, &n)) {
            *(int *)((char *)m + switches[i].offset) = (int)n;
            return 0;
        }
    }
    return -1;
}

static int parse_setting(struct machine *m, struct line *line, char *why, size_t why_bytes)
{
    char *value = strchr(line->words[0], '=');
    if (line->count == 1 && value) {
        *value++ = '\0';
        if (!setting(m, line->words[0], value)) {
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
            bad = machine_parse_card(out, &line, why, why_bytes);
        } else if (line.count && !strcmp(line.words[0], "mig")) {
            bad = machine_parse_instance(out, &line, why, why_bytes);
        } else if (line.count && !strcmp(line.words[0], "link")) {
            bad = parse_link(out, &line, why, why_bytes);
        } else if (line.count) {
            bad = parse_setting(out, &line, why, why_bytes);
        }
    }
    fclose(file);
    bad = bad ? bad : machine_make_room(out, why, why_bytes);
    return bad ? number_of_line : 0;
}
