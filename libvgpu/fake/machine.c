#include "machine.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "vgpu_nvml.h"

static struct machine current;
static int current_ok;
static pthread_once_t current_once = PTHREAD_ONCE_INIT;

static void read_current(void)
{
    const char *path = getenv("VGPU_FAKE_MACHINE");
    char why[256] = "";
    if (!path && access(MACHINE_DEFAULT_PATH, R_OK)) {
        return;
    }
    path = path ? path : MACHINE_DEFAULT_PATH;
    int line = machine_read(&current, path, why, sizeof why);
    if (line) {
        /* An invalid description of a machine is its author's mistake, so it ends the process. */
        fprintf(stderr, "VGPU_FAKE_MACHINE: %s:%d: %s\n", path, line, why);
        return;
    }
    current_ok = 1;
}

const struct machine *machine_current(void)
{
    pthread_once(&current_once, read_current);
    return current_ok ? &current : NULL;
}

int machine_level(const struct machine *m, int a, int b)
{
    int level = m->links[a][b].level;
    if (level >= 0) {
        return level;
    }
    return m->cards[a].numa == m->cards[b].numa ? NVML_TOPOLOGY_NODE : NVML_TOPOLOGY_SYSTEM;
}

int machine_card_by_uuid(const struct machine *m, const char *uuid)
{
    int found = -1;
    size_t length = strlen(uuid);
    for (int i = 0; length > 4 && i < m->card_count; i++) {
        if (!strncmp(m->cards[i].uuid, uuid, length)) {
            if (found >= 0) {
                return -1;
            }
            found = i;
        }
    }
    return found;
}

static int can_open(const struct machine *m, int card)
{
    char path[320];
    snprintf(path, sizeof path, "%s/nvidia%d", m->device_nodes, m->cards[card].minor);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd >= 0) {
        close(fd);
    }
    return fd >= 0 || errno == ENXIO; /* ENXIO: allowed, but no driver is behind the node */
}

int machine_first_instance(const struct machine *m, int card)
{
    for (int i = 0; i < m->card_count; i++) {
        if (m->cards[i].parent == card && m->cards[i].uuid[0]) {
            return i;
        }
    }
    return -1;
}

int machine_visible(const struct machine *m, const char *list, int cards[MACHINE_MAX_CARDS])
{
    if (m->device_nodes[0]) {
        int open_ones = 0;
        for (int i = 0; i < m->card_count; i++) {
            if (m->cards[i].parent < 0 && can_open(m, i)) {
                cards[open_ones++] = i;
            }
        }
        return open_ones;
    }
    int all = !list || !strcmp(list, "all"), count = 0;
    char chosen[MACHINE_MAX_CARDS] = {0};
    char text[4096];
    if (!all && strcmp(list, "void") != 0 && strcmp(list, "none") != 0) {
        char *rest = NULL;
        snprintf(text, sizeof text, "%s", list);
        for (char *word = strtok_r(text, ", ", &rest); word; word = strtok_r(NULL, ", ", &rest)) {
            int card = machine_card_named(m, word);
            if (card >= 0) {
                chosen[card] = 1;
            }
        }
    }
    for (int i = 0; i < m->card_count; i++) {
        if (chosen[i] || (all && m->cards[i].parent < 0)) {
            cards[count++] = i;
        }
    }
    return count;
}
