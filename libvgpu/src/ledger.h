/* ledger.h - who holds how many bytes of which device: the sum-of-slots protocol of the usage region.
 *
 * To charge n bytes of a device a process adds n to its own word, then sums that device's words over all slots. Over the
 * limit: it takes its n back, and is refused. There is no lock and no shared counter, so a process may die between
 * any two instructions and corrupt nothing. And it cannot overshoot: suppose admitted charges together exceed the
 * limit; of those, the one added last saw all others when it summed, so its sum was over the limit and it was not
 * admitted. (Two that race near the limit may both be refused although one would fit: hence the retry.)
 *
 * Words of dead processes are emptied by the next process that is refused. The right to empty a slot is the owner word itself,
 * taken by compare-and-swap, so two reapers, or a reaper and a newcomer, never meet in one slot.
 */
#ifndef VGPU_LEDGER_H
#define VGPU_LEDGER_H

#include "vgpu_abi.h"
#include "world.h"

/* How many slots, counted from the first, may have been used; never more than exist, whatever the region says. */
uint32_t vgpu_ledger_high(const struct vgpu_region *region);

/* Used instead of a column: page-locked host memory. */
#define VGPU_HOST VGPU_MAX_DEVICES

/* The driver allocates linear memory in grains of this size. */
#define VGPU_GRAIN 512u

/* Round bytes up to grains; UINT64_MAX if that would wrap. */
static inline uint64_t vgpu_ledger_rounded(uint64_t bytes)
{
    return bytes > UINT64_MAX - (VGPU_GRAIN - 1) ? UINT64_MAX : (bytes + VGPU_GRAIN - 1) & ~(uint64_t)(VGPU_GRAIN - 1);
}

/* Claim a slot for this process, first emptying one it left behind before an exec. NULL if all are taken. */
struct vgpu_region_slot *vgpu_ledger_join(struct vgpu_region *region, const struct vgpu_identity *self);

/* Charge `bytes` of a column: 1, or 0 when that would exceed `limit`. VGPU_UNLIMITED never refuses. A refusal is
 * counted in the region; by vgpu_ledger_try it is not: there the caller has something else to try. */
int vgpu_ledger_try(struct vgpu_region *region, struct vgpu_region_slot *mine, const struct vgpu_identity *self, unsigned column,
                    uint64_t bytes, uint64_t limit);
int vgpu_ledger_charge(struct vgpu_region *region, struct vgpu_region_slot *mine, const struct vgpu_identity *self,
                       unsigned column, uint64_t bytes, uint64_t limit);

/* What may be charged of a device: in its own memory, and together with managed memory beside it. Where the device is not
 * oversubscribed `total` is VGPU_UNLIMITED, and managed memory is charged like any other. */
struct vgpu_budget {
    uint64_t device, total;
};

/* vgpu_ledger_try within a budget; and the same for managed memory of an oversubscribed device, in whole units. The
 * argument above holds for the sum of both words too: each reservation is one addition to one of them. */
int vgpu_ledger_reserve(struct vgpu_region *region, struct vgpu_region_slot *mine, const struct vgpu_identity *self,
                        unsigned column, uint64_t bytes, struct vgpu_budget budget);
int vgpu_ledger_reserve_managed(struct vgpu_region *region, struct vgpu_region_slot *mine, const struct vgpu_identity *self,
                                unsigned column, uint64_t bytes, uint64_t total);
void vgpu_ledger_release_managed(struct vgpu_region_slot *mine, unsigned column, uint64_t bytes);

/* Bytes of managed memory of a device that all slots hold. */
uint64_t vgpu_ledger_managed(const struct vgpu_region *region, unsigned column);

/* Count a refusal. */
void vgpu_ledger_denied(struct vgpu_region *region, unsigned column);

/* Charge what exists already, whether it fits or not, so that others are not admitted. */
void vgpu_ledger_add(struct vgpu_region_slot *mine, unsigned column, uint64_t bytes);

/* Return what was charged. */
void vgpu_ledger_release(struct vgpu_region_slot *mine, unsigned column, uint64_t bytes);

/* Bytes of a column that all slots hold, saturating. */
uint64_t vgpu_ledger_used(const struct vgpu_region *region, unsigned column);

/* What processes have open of each other's memory: how much in all slots, and one more or one less in ours. */
uint32_t vgpu_ledger_imports(const struct vgpu_region *region);
void vgpu_ledger_import(struct vgpu_region_slot *mine, int change);

/* So many bytes that are charged to us may be open in other processes. Written down rounded up, and read back. */
void vgpu_ledger_exported(struct vgpu_region_slot *mine, unsigned column, uint64_t bytes);
uint64_t vgpu_ledger_exported_bytes(const struct vgpu_region_slot *slot, unsigned column);

/* Empty the slots of processes that are dead. Returns how many. What one had exported stays charged as long as any process
 * has anything open: who has what is not known here. */
int vgpu_ledger_reap(struct vgpu_region *region, const struct vgpu_identity *self);

#endif
