#include "ledger.h"

#include <stdatomic.h>
#include <stdio.h>

/* The ABI defines the region as plain integers; words that other processes touch are always accessed atomically. */
typedef _Atomic uint64_t word;
typedef _Atomic uint32_t halfword;
typedef _Atomic uint16_t quarterword;

uint32_t vgpu_ledger_high(const struct vgpu_region *region)
{
    uint32_t high = atomic_load((const halfword *)&region->slot_high);
    return high < VGPU_REGION_SLOTS ? high : VGPU_REGION_SLOTS;
}

static void raise(word *at, uint64_t to)
{
    uint64_t seen = atomic_load_explicit(at, memory_order_relaxed);
    while (seen < to && !atomic_compare_exchange_weak_explicit(at, &seen, to, memory_order_relaxed, memory_order_relaxed)) {
    }
}

static word *used_of(const struct vgpu_region_slot *slot, unsigned column)
{
    return (word *)(column == VGPU_HOST ? &slot->host_used : &slot->used[column]);
}

uint64_t vgpu_ledger_used(const struct vgpu_region *region, unsigned column)
{
    uint64_t sum = 0;
    uint32_t high = vgpu_ledger_high(region);
    for (uint32_t i = 0; i < high; i++) {
        uint64_t used = atomic_load(used_of(&region->slots[i], column));
        sum = sum > UINT64_MAX - used ? UINT64_MAX : sum + used;
    }
    return sum;
}

/* Only the process that owns the right to this slot may call this. */
static void empty(struct vgpu_region_slot *slot)
{
    atomic_store((word *)&slot->layout_owner, 0);
    for (unsigned i = 0; i < VGPU_MAX_DEVICES; i++) {
        atomic_store((word *)&slot->used[i], 0);
        atomic_store((word *)&slot->peak[i], 0);
        atomic_store((word *)&slot->overhead[i], 0);
        atomic_store((halfword *)&slot->managed[i], 0);
        atomic_store((quarterword *)&slot->exported[i], 0);
    }
    for (unsigned i = 0; i < VGPU_SEEN_COLUMNS; i++) {
        atomic_store((halfword *)&slot->seen[i], 0);
    }
    atomic_store((word *)&slot->host_used, 0);
    atomic_store((halfword *)&slot->imports, 0);
    atomic_store((halfword *)&slot->host_pid, 0);
}

/* Keep only what was exported; return 1 if there is anything. Only the process with the right to a dead slot may call this. */
static int strip(struct vgpu_region_slot *slot)
{
    int left = 0;
    atomic_store((halfword *)&slot->imports, 0);
    atomic_store((word *)&slot->host_used, 0);
    for (unsigned i = 0; i < VGPU_MAX_DEVICES; i++) {
        uint64_t exported = vgpu_ledger_exported_bytes(slot, i);
        uint64_t used = atomic_load((word *)&slot->used[i]);
        atomic_store((word *)&slot->used[i], used < exported ? used : exported);
        atomic_store((word *)&slot->overhead[i], 0);
        atomic_store((halfword *)&slot->managed[i], 0);
        left |= exported && used;
    }
    return left;
}

/* Return 1 if the process runs, but exec has replaced the program that held this and so released everything. */
static int was_replaced(const struct vgpu_region_slot *slot, uint64_t owner, const struct vgpu_identity *self)
{
    uint64_t layout = atomic_load((const word *)&slot->layout);
    if (owner == vgpu_owner_word(self)) {
        return slot->image != self->image && atomic_load((const word *)&slot->layout_owner) == owner;
    }
    if (!layout || !vgpu_world->layout_of || (owner & VGPU_OWNER_REAPING) ||
        atomic_load((const word *)&slot->layout_owner) != owner || slot->pid_namespace != self->pid_namespace) {
        return 0;
    }
    uint64_t now = vgpu_world->layout_of(slot->pid);
    return now && now != layout;
}

/* Take over a dead process's slot from `owner`, and clear it except for exports that others have open. Return 0 if another
 * process was first. */
static int clear(struct vgpu_region *region, struct vgpu_region_slot *slot, uint64_t owner, uint64_t me, int *kept)
{
    /* A reaper that died half-way is itself a dead owner, so the next one starts over. */
    if (!atomic_compare_exchange_strong((word *)&slot->owner, &owner, me | VGPU_OWNER_REAPING)) {
        return 0;
    }
    if (strip(slot) && vgpu_ledger_imports(region)) {
        atomic_store((word *)&slot->owner, owner & ~VGPU_OWNER_REAPING);
        *kept = 1;
    } else {
        empty(slot);
        atomic_store((word *)&slot->owner, 0);
    }
    return 1;
}

static int reap_once(struct vgpu_region *region, const struct vgpu_identity *self, int *kept)
{
    uint64_t me = vgpu_owner_word(self);
    uint32_t high = vgpu_ledger_high(region);
    int count = 0;
    *kept = 0;
    for (uint32_t i = 0; i < high; i++) {
        struct vgpu_region_slot *slot = &region->slots[i];
        uint64_t owner = atomic_load((word *)&slot->owner);
        uint64_t who = owner & ~VGPU_OWNER_REAPING;
        if (owner && (was_replaced(slot, owner, self) || (who != me && vgpu_world->is_dead(who, self)))) {
            count += clear(region, slot, owner, me, kept);
        }
    }
    return count;
}

int vgpu_ledger_reap(struct vgpu_region *region, const struct vgpu_identity *self)
{
    int kept, count = reap_once(region, self, &kept);
    /* The process that had it open may be dead as well, and may have been found only afterwards. */
    return kept && !vgpu_ledger_imports(region) ? count + reap_once(region, self, &kept) : count;
}

static struct vgpu_region_slot *claim(struct vgpu_region *region, uint64_t me)
{
    for (uint32_t i = 0; i < VGPU_REGION_SLOTS; i++) {
        struct vgpu_region_slot *slot = &region->slots[i];
        uint64_t unowned = 0;
        if (atomic_load_explicit((word *)&slot->owner, memory_order_relaxed) ||
            !atomic_compare_exchange_strong((word *)&slot->owner, &unowned, me)) {
            continue;
        }
        empty(slot);
        uint32_t high = atomic_load((halfword *)&region->slot_high);
        while (high < i + 1 && !atomic_compare_exchange_weak((halfword *)&region->slot_high, &high, i + 1)) {
        }
        return slot;
    }
    return NULL;
}

struct vgpu_region_slot *vgpu_ledger_join(struct vgpu_region *region, const struct vgpu_identity *self)
{
    uint64_t me = vgpu_owner_word(self);
    uint32_t high = vgpu_ledger_high(region);
    for (uint32_t i = 0; i < high; i++) {
        struct vgpu_region_slot *past = &region->slots[i];
        uint64_t owner = atomic_load((word *)&past->owner);
        int kept;
        if (owner == me && was_replaced(past, owner, self)) {
            clear(region, past, owner, me, &kept); /* this process before its exec; the driver freed everything */
        }
    }
    struct vgpu_region_slot *slot = claim(region, me);
    if (!slot && vgpu_ledger_reap(region, self)) {
        slot = claim(region, me);
    }
    if (slot) {
        slot->start_time = self->start_time;
        slot->pid_namespace = self->pid_namespace;
        slot->image = self->image;
        slot->pid = self->pid;
        slot->registered_ns = vgpu_world->now().ns;
        atomic_store((word *)&slot->layout, self->layout);
        atomic_store((word *)&slot->layout_owner, me); /* last: no process compares layouts before this */
    }
    return slot;
}

uint64_t vgpu_ledger_managed(const struct vgpu_region *region, unsigned column)
{
    uint64_t units = 0;
    uint32_t high = vgpu_ledger_high(region);
    for (uint32_t i = 0; i < high; i++) {
        units += atomic_load((const halfword *)&region->slots[i].managed[column]);
    }
    return units * VGPU_MANAGED_UNIT;
}

/* Return 1 if everything charged, the newest charge included, is within the budget. */
static int fits(const struct vgpu_region *region, unsigned column, uint64_t sum, struct vgpu_budget budget)
{
    if (sum > budget.device) {
        return 0;
    }
    if (budget.total == VGPU_UNLIMITED) {
        return 1;
    }
    uint64_t managed = vgpu_ledger_managed(region, column);
    return managed <= budget.total && sum <= budget.total - managed;
}

static int try_charge(struct vgpu_region *region, struct vgpu_region_slot *mine, unsigned column, uint64_t bytes,
                      struct vgpu_budget budget)
{
    uint64_t own = atomic_fetch_add(used_of(mine, column), bytes) + bytes;
    uint64_t sum = vgpu_ledger_used(region, column);
    if (!fits(region, column, sum, budget)) {
        atomic_fetch_sub(used_of(mine, column), bytes);
        return 0;
    }
    if (column == VGPU_HOST) {
        return 1;
    }
    raise((word *)&mine->peak[column], own);
    raise((word *)&region->columns[column].peak_bytes, sum);
    return 1;
}

static int try_managed(struct vgpu_region *region, struct vgpu_region_slot *mine, unsigned column, uint64_t bytes,
                       struct vgpu_budget budget)
{
    uint32_t units = (uint32_t)(bytes / VGPU_MANAGED_UNIT);
    atomic_fetch_add((halfword *)&mine->managed[column], units);
    if (!fits(region, column, vgpu_ledger_used(region, column), budget)) {
        atomic_fetch_sub((halfword *)&mine->managed[column], units);
        return 0;
    }
    return 1;
}

typedef int (*attempt)(struct vgpu_region *, struct vgpu_region_slot *, unsigned, uint64_t, struct vgpu_budget);

static int persist(attempt try_once, struct vgpu_region *region, struct vgpu_region_slot *mine, const struct vgpu_identity *self,
                   unsigned column, uint64_t bytes, struct vgpu_budget budget)
{
    if (try_once(region, mine, column, bytes, budget)) {
        return 1;
    }
    /* Another process may be taking back an amount that did not fit either. Waits differ between processes, so that the same
     * two do not collide again. */
    vgpu_world->sleep_for(1000 + (uint64_t)self->pid % 16 * 1000);
    return try_once(region, mine, column, bytes, budget) ||
           (vgpu_ledger_reap(region, self) && try_once(region, mine, column, bytes, budget));
}

int vgpu_ledger_reserve(struct vgpu_region *region, struct vgpu_region_slot *mine, const struct vgpu_identity *self,
                        unsigned column, uint64_t bytes, struct vgpu_budget budget)
{
    /* A single word must never wrap, so amounts above the limit or half the address space are refused without trying. */
    return bytes <= budget.device && bytes <= UINT64_MAX / 2 && persist(try_charge, region, mine, self, column, bytes, budget);
}

int vgpu_ledger_reserve_managed(struct vgpu_region *region, struct vgpu_region_slot *mine, const struct vgpu_identity *self,
                                unsigned column, uint64_t bytes, uint64_t total)
{
    struct vgpu_budget budget = {.device = VGPU_UNLIMITED, .total = total};
    return bytes <= total && bytes / VGPU_MANAGED_UNIT <= UINT32_MAX / 2 &&
           persist(try_managed, region, mine, self, column, bytes, budget);
}

void vgpu_ledger_release_managed(struct vgpu_region_slot *mine, unsigned column, uint64_t bytes)
{
    atomic_fetch_sub((halfword *)&mine->managed[column], (uint32_t)(bytes / VGPU_MANAGED_UNIT));
}

int vgpu_ledger_try(struct vgpu_region *region, struct vgpu_region_slot *mine, const struct vgpu_identity *self, unsigned column,
                    uint64_t bytes, uint64_t limit)
{
    struct vgpu_budget budget = {.device = limit, .total = VGPU_UNLIMITED};
    return vgpu_ledger_reserve(region, mine, self, column, bytes, budget);
}

/* The amount in use is not in the line: memory of dead processes counts until somebody looks for it. */
static void report_denied(unsigned column)
{
    char of[32] = "page-locked host memory", line[128];
    if (column != VGPU_HOST) {
        snprintf(of, sizeof of, "device %u", column);
    }
    snprintf(line, sizeof line, "vgpu: out of memory: the request would exceed this container's limit of %s\n", of);
    vgpu_world->log(line);
}

void vgpu_ledger_denied(struct vgpu_region *region, unsigned column)
{
    report_denied(column);
    if (column == VGPU_HOST) {
        atomic_fetch_add((word *)&region->host_denied_count, 1);
        return;
    }
    struct vgpu_region_column *book = &region->columns[column];
    atomic_fetch_add((word *)&book->denied_count, 1);
    atomic_store((word *)&book->denied_last_ns, vgpu_world->now().ns);
}

int vgpu_ledger_charge(struct vgpu_region *region, struct vgpu_region_slot *mine, const struct vgpu_identity *self,
                       unsigned column, uint64_t bytes, uint64_t limit)
{
    if (vgpu_ledger_try(region, mine, self, column, bytes, limit)) {
        return 1;
    }
    vgpu_ledger_denied(region, column);
    return 0;
}

void vgpu_ledger_add(struct vgpu_region_slot *mine, unsigned column, uint64_t bytes)
{
    uint64_t own = atomic_fetch_add((word *)&mine->used[column], bytes) + bytes;
    raise((word *)&mine->peak[column], own);
}

void vgpu_ledger_release(struct vgpu_region_slot *mine, unsigned column, uint64_t bytes)
{
    atomic_fetch_sub(used_of(mine, column), bytes);
}
