/* state_limits.c - the driver's own memory limits for cgroups (r615 and later).
 *
 * A process belongs to a group if its PID is in the cgroup.procs of the group or of a group inside it. So only processes of
 * the PID namespace that sees the group's folder are limited; a real driver sees all of them (README.md).
 */
#include "state_inside.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { DEEPEST = 8, MOST_MEMBERS = 4096 };

struct members {
    int count;
    pid_t pids[MOST_MEMBERS];
};

static void add_members(const char *group, int depth, struct members *out)
{
    char path[2 * STATE_GROUP_BYTES];
    if ((size_t)snprintf(path, sizeof path, "%s/cgroup.procs", group) >= sizeof path) {
        return;
    }
    FILE *procs = fopen(path, "re");
    long long pid;
    while (procs && out->count < MOST_MEMBERS && fscanf(procs, "%lld", &pid) == 1) {
        out->pids[out->count++] = (pid_t)pid;
    }
    if (procs) {
        fclose(procs);
    }
    DIR *folder = depth < DEEPEST ? opendir(group) : NULL;
    const struct dirent *entry;
    while (folder && (entry = readdir(folder)) != NULL) {
        if (entry->d_type == DT_DIR && entry->d_name[0] != '.' &&
            (size_t)snprintf(path, sizeof path, "%s/%s", group, entry->d_name) < sizeof path) {
            add_members(path, depth + 1, out);
        }
    }
    if (folder) {
        closedir(folder);
    }
}

static int has(const struct members *members, pid_t pid)
{
    for (int i = 0; i < members->count; i++) {
        if (members->pids[i] == pid) {
            return 1;
        }
    }
    return 0;
}

/* Return how much of a card the group's members hold, according to the records of our PID namespace. */
static uint64_t used_by(struct state *s, int card, const struct members *members)
{
    const struct state_process *mine = state_mine(s);
    uint64_t used = 0;
    for (uint32_t i = 0; mine && i < s->process_high; i++) {
        const struct state_process *p = &s->processes[i];
        used += p->pid && p->space == mine->space && has(members, p->pid) ? p->used[card] : 0;
    }
    return used;
}

static int exists(const char *group)
{
    struct stat is;
    return !stat(group, &is) && S_ISDIR(is.st_mode);
}

uint64_t state_limit_left(struct state *s, int card)
{
    static struct members members;
    uint64_t left = UINT64_MAX;
    for (uint32_t i = 0; i < s->limit_high; i++) {
        const struct state_limit *limit = &s->limits[i];
        if (!limit->group[0] || limit->card != card) {
            continue;
        }
        members.count = 0;
        add_members(limit->group, 0, &members);
        if (has(&members, getpid())) {
            state_clear(s);
            uint64_t used = used_by(s, card, &members), more = limit->hard > used ? limit->hard - used : 0;
            left = more < left ? more : left;
        }
    }
    return left;
}

/* Return the limit of this group on this card, or a free record for it; NULL if there is none. */
static struct state_limit *find(struct state *s, int card, const char *group)
{
    struct state_limit *unused = NULL;
    for (uint32_t i = 0; i < STATE_MAX_LIMITS; i++) {
        struct state_limit *limit = &s->limits[i];
        if (limit->group[0] && !exists(limit->group)) {
            limit->group[0] = '\0'; /* limits disappear with their cgroup */
        }
        if (limit->group[0] && limit->card == card && !strcmp(limit->group, group)) {
            return limit;
        }
        unused = !unused && !limit->group[0] ? limit : unused;
    }
    return unused;
}

int state_limit_set(const struct machine *m, int card, const char *group, uint64_t soft, uint64_t hard)
{
    struct state *s = strlen(group) < STATE_GROUP_BYTES && exists(group) ? state_enter(m) : NULL;
    struct state_limit *limit = s ? find(s, card, group) : NULL;
    if (limit) {
        uint32_t high = (uint32_t)(limit - s->limits) + 1;
        *limit = (struct state_limit){.card = card, .soft = soft, .hard = hard};
        if (soft || hard != UINT64_MAX) {
            snprintf(limit->group, sizeof limit->group, "%s", group);
            s->limit_high = high > s->limit_high ? high : s->limit_high;
        }
    }
    if (s) {
        state_leave();
    }
    return limit ? 0 : -1;
}

int state_limit_get(const struct machine *m, int card, const char *group, struct state_limit *out, uint64_t *used)
{
    static struct members members;
    struct state *s = strlen(group) < STATE_GROUP_BYTES && exists(group) ? state_enter(m) : NULL;
    if (!s) {
        return -1;
    }
    const struct state_limit *limit = find(s, card, group);
    *out = limit && limit->group[0] ? *limit : (struct state_limit){.card = card, .hard = UINT64_MAX};
    members.count = 0;
    add_members(group, 0, &members);
    state_clear(s);
    *used = used_by(s, card, &members);
    state_leave();
    return 0;
}
