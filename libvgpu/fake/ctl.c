/* ctl.c - vgpu-fake-ctl: inspects a simulated machine and injects faults.
 *
 *   vgpu-fake-ctl MACHINE status                    JSON: bytes held, peak and faults of every card
 *   vgpu-fake-ctl MACHINE xid CARD NUMBER           report an XID error
 *   vgpu-fake-ctl MACHINE lost CARD 0|1             the card falls off the bus, or comes back
 *   vgpu-fake-ctl MACHINE fail CARD N               the N-th allocation from now on fails
 *   vgpu-fake-ctl MACHINE slow CARD MS              NVML takes this long to answer about the card
 *   vgpu-fake-ctl MACHINE error CARD FUNCTION CODE  all versions of an NVML function return this nvmlReturn_t; 0 ends that
 *   vgpu-fake-ctl MACHINE ecc CARD COUNT            uncorrected ECC errors so far
 *   vgpu-fake-ctl MACHINE remap CARD 0|1            row remapping failed
 *   vgpu-fake-ctl MACHINE remap-pending CARD 0|1    a row will be remapped at the next reset
 *   vgpu-fake-ctl MACHINE pages-pending CARD 0|1    a page will be retired when the driver is reloaded
 *   vgpu-fake-ctl MACHINE recovery CARD ACTION      the action that NVML asks for: 0 nothing, 1 a reset, 2 a reboot, ...
 *   vgpu-fake-ctl MACHINE util CARD PERCENT         the utilisation that NVML reports
 *   vgpu-fake-ctl MACHINE reset-peak CARD           forget the highest use
 *   vgpu-fake-ctl MACHINE pids host|own|mixed       change how the driver names processes, as an upgrade does
 *   vgpu-fake-ctl MACHINE bytes shown|zero|unavailable|huge
 *
 * CARD is an index or a UUID.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "machine.h"
#include "mig.h"
#include "state.h"

struct order {
    const char *verb;
    int card;
    uint32_t value;
    const char *function;
    int is_refused;
};

static void set_fault(struct state_card *card, struct order *order)
{
    struct state_fault *at = NULL;
    for (int i = STATE_MAX_FAULTS - 1; i >= 0; i--) {
        struct state_fault *fault = &card->faults[i];
        if (!strcmp(fault->function, order->function)) {
            at = fault;
            break;
        }
        at = fault->function[0] ? at : fault;
    }
    if (!at || strlen(order->function) >= sizeof at->function) {
        order->is_refused = 1;
        return;
    }
    snprintf(at->function, sizeof at->function, "%s", order->value ? order->function : "");
    at->result = order->value;
}

static void carry_out(struct state *s, void *argument)
{
    struct order *order = argument;
    struct state_card *card = &s->cards[order->card];
    if (!strcmp(order->verb, "lost")) {
        card->lost = order->value;
    } else if (!strcmp(order->verb, "fail")) {
        card->fail_after = order->value;
    } else if (!strcmp(order->verb, "slow")) {
        card->slow_ms = order->value;
    } else if (!strcmp(order->verb, "error")) {
        set_fault(card, order);
    } else if (!strcmp(order->verb, "ecc")) {
        card->ecc_uncorrected = order->value;
    } else if (!strcmp(order->verb, "remap")) {
        card->remap_failed = order->value;
    } else if (!strcmp(order->verb, "remap-pending")) {
        card->remap_pending = order->value;
    } else if (!strcmp(order->verb, "pages-pending")) {
        card->pages_pending = order->value;
    } else if (!strcmp(order->verb, "recovery")) {
        card->recovery_action = order->value;
    } else if (!strcmp(order->verb, "util")) {
        card->gpu_utilisation = order->value;
    } else if (!strcmp(order->verb, "reset-peak")) {
        card->peak_bytes = 0;
    }
}

static void set_words(struct state *s, void *argument)
{
    const struct order *order = argument;
    uint32_t *word = !strcmp(order->verb, "pids") ? &s->pids : &s->bytes;
    __atomic_store_n(word, order->value, __ATOMIC_RELAXED);
}

/* Replace the machine's settings of how the driver names processes. */
static int speak(const struct machine *m, const char *verb, const char *value)
{
    int at = !strcmp(verb, "pids") ? machine_pids_named(value) : machine_bytes_named(value);
    struct order order = {.verb = verb, .value = (uint32_t)at + 1};
    if (at < 0) {
        fprintf(stderr, "%s: no such value: %s\n", verb, value);
        return 2;
    }
    state_change(m, set_words, &order);
    return 0;
}

static int status(const struct machine *m)
{
    struct state *s = state_open(m);
    if (!s) {
        fprintf(stderr, "cannot use %s.state\n", m->path);
        return 1;
    }
    mig_refresh(m);
    printf("{\"cards\": [");
    for (int i = 0; i < m->card_count; i++) {
        if (!m->cards[i].uuid[0]) {
            continue;
        }
        printf("%s{\"index\": %d, \"uuid\": \"%s\", \"total\": %llu, \"used\": %llu, \"peak\": %llu, \"lost\": %s}",
               i ? ", " : "", i, m->cards[i].uuid, (unsigned long long)m->cards[i].memory_bytes,
               (unsigned long long)state_used(m, i), (unsigned long long)s->cards[i].peak_bytes,
               s->cards[i].lost ? "true" : "false");
    }
    printf("], \"events\": %u}\n", s->event_count);
    return 0;
}

int main(int argc, char **argv)
{
    static const char *const verbs[] = {"xid",           "lost",          "fail",     "slow", "ecc",        "remap",
                                        "remap-pending", "pages-pending", "recovery", "util", "reset-peak", "error"};
    static struct machine m;
    char why[256] = "";
    if (argc < 3) {
        fprintf(stderr, "usage: %s MACHINE status | VERB CARD [VALUE]\n", argv[0]);
        return 2;
    }
    int line = machine_read(&m, argv[1], why, sizeof why);
    if (line) {
        fprintf(stderr, "%s:%d: %s\n", argv[1], line, why);
        return 1;
    }
    if (!strcmp(argv[2], "status")) {
        return status(&m);
    }
    if (argc > 3 && (!strcmp(argv[2], "pids") || !strcmp(argv[2], "bytes"))) {
        return speak(&m, argv[2], argv[3]);
    }
    struct order order = {.verb = argv[2], .card = argc > 3 ? machine_card_named(&m, argv[3]) : -1};
    int is_error = !strcmp(order.verb, "error");
    order.function = is_error && argc > 5 ? argv[4] : "";
    order.value = argc > 4 + is_error ? (uint32_t)strtoul(argv[4 + is_error], NULL, 10) : 0;
    int known = 0;
    for (size_t i = 0; i < sizeof verbs / sizeof verbs[0]; i++) {
        known |= !strcmp(order.verb, verbs[i]);
    }
    if (!known || order.card < 0 || (argc < 5 + is_error && strcmp(order.verb, "reset-peak") != 0)) {
        fprintf(stderr, "%s: no such verb, card or value\n", argv[2]);
        return 2;
    }
    if (!strcmp(order.verb, "xid")) {
        state_event(&m, order.card, order.value);
    } else {
        state_change(&m, carry_out, &order);
    }
    if (order.is_refused) {
        fprintf(stderr, "%s: no room for another function, or too long a name\n", order.function);
        return 1;
    }
    return 0;
}
