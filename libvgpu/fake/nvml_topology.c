/* nvml_topology.c - how two cards are connected, and the processes on a card. */
#include <limits.h>
#include <stdio.h>

#include "nvml.h"

static nvmlReturn_t two_cards(const char *function, nvmlDevice_t a, nvmlDevice_t b, int *card_a, int *card_b)
{
    nvmlReturn_t result = nvml_card_for(function, a, card_a);
    return result == NVML_SUCCESS ? nvml_card_for(function, b, card_b) : result;
}

NVML_API nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t a, nvmlDevice_t b, int *level)
{
    int x = -1, y = -1;
    nvmlReturn_t result = two_cards(__func__, a, b, &x, &y);
    if (result != NVML_SUCCESS) {
        return result;
    }
    if (!level || x == y) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    *level = machine_level(nvml_session()->machine, x, y);
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t a, nvmlDevice_t b, int kind, int *status)
{
    int x = -1, y = -1;
    nvmlReturn_t result = two_cards(__func__, a, b, &x, &y);
    enum { P2P_READ = 0, P2P_WRITE = 1, P2P_NVLINK = 2, P2P_OK = 0, P2P_NOT_SUPPORTED = 5 };
    if (result != NVML_SUCCESS) {
        return result;
    }
    if (!status || x == y) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    const struct machine *m = nvml_session()->machine;
    int linked = m->links[x][y].nvlinks > 0 || (m->cards[x].switch_links && m->cards[y].switch_links);
    int ok = linked || ((kind == P2P_READ || kind == P2P_WRITE) && machine_level(m, x, y) < NVML_TOPOLOGY_SYSTEM);
    *status = ok ? P2P_OK : P2P_NOT_SUPPORTED;
    return NVML_SUCCESS;
}

enum { NO_PEER = -1, SWITCH = -2 };

/* Return the card at the far end of `link`, SWITCH, or NO_PEER if the link is unused. Links are assigned to the peers in card
 * order, and then to the switch. */
static int peer_of_link(const struct machine *m, int card, unsigned link)
{
    unsigned first = 0;
    for (int peer = 0; peer < m->card_count; peer++) {
        unsigned count = (unsigned)m->links[card][peer].nvlinks;
        if (link >= first && link < first + count) {
            return peer;
        }
        first += count;
    }
    return link >= first && link < first + (unsigned)m->cards[card].switch_links ? SWITCH : NO_PEER;
}

static nvmlReturn_t link_peer(const char *function, nvmlDevice_t device, unsigned link, int *card, int *peer)
{
    nvmlReturn_t result = nvml_card_for(function, device, card);
    if (result != NVML_SUCCESS) {
        return result;
    }
    if (link >= NVML_NVLINK_MAX_LINKS) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    const struct machine *m = nvml_session()->machine;
    if (peer_of_link(m, *card, 0) == NO_PEER) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    *peer = peer_of_link(m, *card, link);
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned link, unsigned *active)
{
    int card = -1, peer = -1;
    nvmlReturn_t result = link_peer(__func__, device, link, &card, &peer);
    if (result == NVML_SUCCESS && !active) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    if (result == NVML_SUCCESS) {
        *active = peer != NO_PEER;
    }
    return result;
}

NVML_API nvmlReturn_t nvmlDeviceGetNvLinkVersion(nvmlDevice_t device, unsigned link, unsigned *version)
{
    int card = -1, peer = -1;
    nvmlReturn_t result = link_peer(__func__, device, link, &card, &peer);
    if (result != NVML_SUCCESS || !version) {
        return result != NVML_SUCCESS ? result : NVML_ERROR_INVALID_ARGUMENT;
    }
    *version = nvml_session()->machine->cards[card].cc_major >= 9 ? 4 : 3;
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetNvLinkCapability(nvmlDevice_t device, unsigned link, int capability, unsigned *out)
{
    int card = -1, peer = -1;
    nvmlReturn_t result = link_peer(__func__, device, link, &card, &peer);
    if (result != NVML_SUCCESS || !out) {
        return result != NVML_SUCCESS ? result : NVML_ERROR_INVALID_ARGUMENT;
    }
    *out = peer != NO_PEER && capability == 0; /* NVML_NVLINK_CAP_P2P_SUPPORTED */
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned link, int *type)
{
    int card = -1, peer = -1;
    enum { TYPE_GPU = 0, TYPE_SWITCH = 2 };
    nvmlReturn_t result = link_peer(__func__, device, link, &card, &peer);
    if (result != NVML_SUCCESS || !type || peer == NO_PEER) {
        return result != NVML_SUCCESS ? result : NVML_ERROR_INVALID_ARGUMENT;
    }
    *type = peer == SWITCH ? TYPE_SWITCH : TYPE_GPU;
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned link, nvmlPciInfo_t *out)
{
    int card = -1, peer = -1;
    nvmlReturn_t result = link_peer(__func__, device, link, &card, &peer);
    if (result != NVML_SUCCESS || !out) {
        return result != NVML_SUCCESS ? result : NVML_ERROR_INVALID_ARGUMENT;
    }
    if (peer == NO_PEER) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    /* One switch, at an address that no card has. */
    static const struct machine_card a_switch = {.domain = 0xfffe, .bus = 0xff, .device = 0x1f};
    const struct machine_card *c = peer == SWITCH ? &a_switch : &nvml_session()->machine->cards[peer];
    *out = (nvmlPciInfo_t){.domain = c->domain, .bus = c->bus, .device = c->device, .pciDeviceId = 0x20b010de};
    snprintf(out->busIdLegacy, sizeof out->busIdLegacy, "%04X:%02X:%02X.0", c->domain & 0xffff, c->bus & 0xff, c->device & 0x1f);
    snprintf(out->busId, sizeof out->busId, "%08X:%02X:%02X.0", c->domain, c->bus, c->device);
    return NVML_SUCCESS;
}

/* Add the users of one card or instance to a list with `room` entries. Return how many there are so far. */
static unsigned list_processes(const struct nvml_session *s, int card, unsigned gi, unsigned ci, unsigned found, unsigned room,
                               nvmlProcessInfo_t *out)
{
    for (uint32_t i = 0; i < s->state->process_high; i++) {
        const struct state_process *p = &s->state->processes[i];
        unsigned pid = p->pid && (p->used[card] || p->contexts[card]) ? state_pid_shown(s->machine, p, STATE_LIST) : 0;
        if (!pid) {
            continue;
        }
        if (found < room) {
            out[found] = (nvmlProcessInfo_t){.pid = pid,
                                             .usedGpuMemory = state_bytes_shown(s->machine, p, card),
                                             .gpuInstanceId = gi,
                                             .computeInstanceId = ci};
        }
        found++;
    }
    return found;
}

NVML_API nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *out)
{
    int card = -1;
    nvmlReturn_t result = nvml_card(device, &card);
    if (result != NVML_SUCCESS) {
        return result;
    }
    if (!count || (*count && !out)) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    const struct nvml_session *s = nvml_session();
    unsigned room = *count, found = 0;
    state_clear_dead(s->machine);
    for (int at = 0; at < s->machine->card_count; at++) {
        const struct machine_card *c = &s->machine->cards[at];
        if (at == card || c->parent == card) {
            found = list_processes(s, at, c->parent < 0 ? UINT_MAX : c->gi, c->parent < 0 ? UINT_MAX : c->ci, found, room, out);
        }
    }
    *count = found;
    return found > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

/* The older forms of a list, converted from its newest. */
#define OLDER(symbol)                                                                               \
    NVML_API nvmlReturn_t symbol##_v2(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *out) \
    {                                                                                               \
        return symbol##_v3(device, count, out);                                                     \
    }                                                                                               \
    NVML_API nvmlReturn_t symbol(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_v1_t *out)   \
    {                                                                                               \
        return first_form(symbol##_v3, device, count, out);                                         \
    }

static nvmlReturn_t first_form(nvmlReturn_t (*newest)(nvmlDevice_t, unsigned *, nvmlProcessInfo_t *), nvmlDevice_t device,
                               unsigned *count, nvmlProcessInfo_v1_t *out)
{
    nvmlProcessInfo_t wide[64];
    unsigned room = count ? *count : 0, found = 64;
    if (!count || (room && !out)) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    nvmlReturn_t result = newest(device, &found, wide);
    if (result != NVML_SUCCESS) {
        return result;
    }
    for (unsigned i = 0; i < found && i < room; i++) {
        out[i] = (nvmlProcessInfo_v1_t){.pid = wide[i].pid, .usedGpuMemory = wide[i].usedGpuMemory};
    }
    *count = found;
    return found > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

OLDER(nvmlDeviceGetComputeRunningProcesses)

/* Return a list that the machine file enables. It then contains all compute processes. */
static nvmlReturn_t list_if(nvmlDevice_t device, int mps, unsigned *count, nvmlProcessInfo_t *out)
{
    QUERY(device, count && (!*count || out));
    if (mps ? s->machine->mps : s->machine->draws) {
        return nvmlDeviceGetComputeRunningProcesses_v3(device, count, out);
    }
    *count = 0;
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *out)
{
    return list_if(device, 0, count, out);
}

NVML_API nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *out)
{
    return list_if(device, 1, count, out);
}

OLDER(nvmlDeviceGetGraphicsRunningProcesses)
OLDER(nvmlDeviceGetMPSComputeRunningProcesses)

NVML_API nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_t *list)
{
    QUERY(device, list && list->version == NVML_PROCESS_DETAIL_LIST_V1 && list->mode <= NVML_PROCESS_MODE_ALL);
    nvmlProcessInfo_t wide[64];
    unsigned room = list->procArray ? list->numProcArrayEntries : 0, found = 64;
    nvmlReturn_t result = list->mode == NVML_PROCESS_MODE_GRAPHICS ? list_if(device, 0, &found, wide)
                          : list->mode == NVML_PROCESS_MODE_MPS ? list_if(device, 1, &found, wide)
                                                                : nvmlDeviceGetComputeRunningProcesses_v3(device, &found, wide);
    for (unsigned i = 0; result == NVML_SUCCESS && i < found && i < room; i++) {
        list->procArray[i] = (nvmlProcessDetail_t){.pid = wide[i].pid,
                                                   .usedGpuMemory = wide[i].usedGpuMemory,
                                                   .gpuInstanceId = wide[i].gpuInstanceId,
                                                   .computeInstanceId = wide[i].computeInstanceId};
    }
    list->numProcArrayEntries = found;
    return result == NVML_SUCCESS && found > room ? NVML_ERROR_INSUFFICIENT_SIZE : result;
}
