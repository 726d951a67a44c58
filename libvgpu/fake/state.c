/* state.c - the resources that the simulated machine's processes hold, and the faults of its cards. */
#include "state_inside.h"

#include <limits.h>
#include <linux/futex.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

static uint64_t sum(const struct state *s, int card)
{
    uint64_t total = 0;
    for (uint32_t i = 0; i < s->process_high; i++) {
        total += s->processes[i].pid ? s->processes[i].used[card] : 0;
    }
    for (int i = 0; i < STATE_MAX_SHARES; i++) {
        total += s->shares[i].card == card ? s->shares[i].bytes : 0;
    }
    return total;
}

int state_share_make(const struct machine *m, int card, uint64_t bytes, uint64_t inode)
{
    struct state *s = state_enter(m);
    struct state_process *mine = s ? state_mine(s) : NULL;
    int number = -1;
    for (int i = 0; mine && number < 0 && i < STATE_MAX_SHARES; i++) {
        number = s->shares[i].bytes ? -1 : i;
    }
    if (number >= 0) {
        struct state_share *share = &s->shares[number];
        *share = (struct state_share){.bytes = bytes, .inode = inode, .card = card, .generation = share->generation + 1};
        mine->used[card] -= bytes;
        mine->shares[number] = 1;
    }
    if (s) {
        state_leave();
    }
    return number;
}

int state_share_open(const struct machine *m, uint64_t inode, int number, uint32_t generation)
{
    struct state *s = state_enter(m);
    struct state_process *mine = s ? state_mine(s) : NULL;
    int found = -1;
    if (mine) {
        state_clear(s); /* what only dead processes had open can no longer be opened */
    }
    for (int i = 0; mine && found < 0 && i < STATE_MAX_SHARES; i++) {
        const struct state_share *share = &s->shares[i];
        found = share->bytes && (inode ? share->inode == inode : i == number && share->generation == generation) ? i : -1;
    }
    if (found >= 0) {
        mine->shares[found]++;
    }
    if (s) {
        state_leave();
    }
    return found;
}

void state_share_close(const struct machine *m, int number)
{
    struct state *s = state_enter(m);
    struct state_process *mine = s ? state_mine(s) : NULL;
    if (mine && mine->shares[number]) {
        mine->shares[number]--;
        state_drop_unused(s, number);
    }
    if (s) {
        state_leave();
    }
}

static int fails_on_demand(struct state_card *c)
{
    if (!c->fail_after) {
        return 0;
    }
    c->fail_after--;
    return c->fail_after == 0;
}

enum state_result state_take(const struct machine *m, int card, uint64_t bytes, int contexts)
{
    struct state *s = state_enter(m);
    if (!s) {
        return STATE_BROKEN;
    }
    struct state_card *c = &s->cards[card];
    struct state_process *mine = state_mine(s);
    enum state_result result = STATE_OK;
    if (!mine) {
        result = STATE_BROKEN;
    } else if (c->lost) {
        result = STATE_LOST;
    } else if (fails_on_demand(c) || bytes > m->cards[card].memory_bytes) {
        result = STATE_NO_MEMORY;
    } else {
        uint64_t total = sum(s, card);
        if (total + bytes > c->peak_bytes || total + bytes > m->cards[card].memory_bytes) {
            state_clear(s);
            total = sum(s, card);
        }
        if (total + bytes > m->cards[card].memory_bytes || bytes > state_limit_left(s, card)) {
            result = STATE_NO_MEMORY;
        } else {
            mine->used[card] += bytes;
            mine->contexts[card] += (uint32_t)contexts;
            c->alloc_count += bytes && !contexts;
            c->peak_bytes = total + bytes > c->peak_bytes ? total + bytes : c->peak_bytes;
        }
    }
    state_leave();
    return result;
}

void state_give(const struct machine *m, int card, uint64_t bytes, int contexts)
{
    struct state *s = state_enter(m);
    if (!s) {
        return;
    }
    struct state_process *mine = state_mine(s);
    if (mine) {
        mine->used[card] -= bytes <= mine->used[card] ? bytes : mine->used[card];
        mine->contexts[card] -= (uint32_t)contexts <= mine->contexts[card] ? (uint32_t)contexts : mine->contexts[card];
    }
    state_leave();
}

enum state_result state_lock_host(const struct machine *m, uint64_t bytes)
{
    struct state *s = state_enter(m);
    struct state_process *mine = s ? state_mine(s) : NULL;
    if (mine) {
        uint64_t total = 0;
        mine->host_bytes += bytes;
        state_clear(s);
        for (uint32_t i = 0; i < s->process_high; i++) {
            total += s->processes[i].pid ? s->processes[i].host_bytes : 0;
        }
        s->host_peak = total > s->host_peak ? total : s->host_peak;
    }
    if (s) {
        state_leave();
    }
    return mine ? STATE_OK : STATE_BROKEN;
}

void state_unlock_host(const struct machine *m, uint64_t bytes)
{
    struct state *s = state_enter(m);
    struct state_process *mine = s ? state_mine(s) : NULL;
    if (mine) {
        mine->host_bytes -= bytes < mine->host_bytes ? bytes : mine->host_bytes;
    }
    if (s) {
        state_leave();
    }
}

uint64_t state_room(const struct machine *m, int card)
{
    struct state *s = state_enter(m);
    uint64_t room = s ? state_limit_left(s, card) : UINT64_MAX;
    if (s) {
        state_leave();
    }
    return room;
}

uint64_t state_used(const struct machine *m, int card)
{
    struct state *s = state_enter(m);
    if (!s) {
        return 0;
    }
    state_clear(s);
    uint64_t total = sum(s, card);
    state_leave();
    return total;
}

void state_change(const struct machine *m, void (*change)(struct state *, void *), void *argument)
{
    struct state *s = state_enter(m);
    if (s) {
        change(s, argument);
        state_leave();
    }
}

void state_clear_dead(const struct machine *m)
{
    struct state *s = state_enter(m);
    if (s) {
        state_clear(s);
        state_leave();
    }
}

void state_event(const struct machine *m, int card, uint32_t xid)
{
    struct state *s = state_enter(m);
    if (!s) {
        return;
    }
    s->events[s->event_count % STATE_MAX_EVENTS] = (struct state_event){.card = card, .xid = xid};
    __atomic_add_fetch(&s->event_count, 1, __ATOMIC_RELEASE);
    syscall(SYS_futex, &s->event_count, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
    state_leave();
}
