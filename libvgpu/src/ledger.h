/* ledger.h - how many bytes of which device each process holds: the protocol of slots and sums in the usage region.
 *
 * To charge n bytes, a process adds n to its own word and then sums the words of that device over all slots. If the sum
 * is over the limit, the process subtracts n again and the allocation is refused. There is no lock and no shared
 * counter, so a process may die between any two instructions without corrupting anything. The sum cannot overshoot
 * either. Suppose the admitted charges together exceeded the limit. The one that was added last saw all others when it
 * summed, so its sum was over the limit, and it was not admitted. (Two processes that race near the limit may both be
 * refused although one of them would fit. Therefore a refused charge is tried once more.)
 *
 * The next process that is refused clears the words of dead processes. The right to clear a slot is its owner word,
 * taken by compare-and-swap, so two processes never work on the same slot.
 */
#ifndef VGPU_LEDGER_H
#define VGPU_LEDGER_H

#include "vgpu_abi.h"
#include "world.h"

/* Return how many slots from the first one on may have been used. At most the number that exists, even if the region is
 * corrupt. */
uint32_t vgpu_ledger_high(const struct vgpu_region *region);

/* The column number that means page-locked host memory. */
#define VGPU_HOST VGPU_MAX_DEVICES

/* The driver rounds linear memory up to this size. */
#define VGPU_GRAIN 512u

/* Round bytes up to that size. Return UINT64_MAX if the result would wrap. */
static inline uint64_t vgpu_ledger_rounded(uint64_t bytes)
{
    return bytes > UINT64_MAX - (VGPU_GRAIN - 1) ? UINT64_MAX : (bytes + VGPU_GRAIN - 1) & ~(uint64_t)(VGPU_GRAIN - 1);
}

/* Claim a slot for this process, and clear one that it left behind before an exec. Return NULL if all slots are taken. */
struct vgpu_region_slot *vgpu_ledger_join(struct vgpu_region *region, const struct vgpu_identity *self);

/* Charge `bytes` of a column. Return 1, or 0 if that would exceed `limit`; VGPU_UNLIMITED never refuses.
 * vgpu_ledger_charge counts a refusal in the region. vgpu_ledger_try does not, because its caller has another way left. */
int vgpu_ledger_try(struct vgpu_region *region, struct vgpu_region_slot *mine, const struct vgpu_identity *self, unsigned column,
                    uint64_t bytes, uint64_t limit);
int vgpu_ledger_charge(struct vgpu_region *region, struct vgpu_region_slot *mine, const struct vgpu_identity *self,
                       unsigned column, uint64_t bytes, uint64_t limit);

/* The limits of a device: for its own memory, and for that together with managed memory. If the device is not
 * oversubscribed, `total` is VGPU_UNLIMITED and managed memory is charged like any other. */
struct vgpu_budget {
    uint64_t device, total;
};

/* Do the same as vgpu_ledger_try within a budget. The second function charges managed memory of an oversubscribed
 * device, in whole units. The argument above also holds for the sum of both words, because each reservation is one
 * addition to one of them. */
int vgpu_ledger_reserve(struct vgpu_region *region, struct vgpu_region_slot *mine, const struct vgpu_identity *self,
                        unsigned column, uint64_t bytes, struct vgpu_budget budget);
int vgpu_ledger_reserve_managed(struct vgpu_region *region, struct vgpu_region_slot *mine, const struct vgpu_identity *self,
                                unsigned column, uint64_t bytes, uint64_t total);
void vgpu_ledger_release_managed(struct vgpu_region_slot *mine, unsigned column, uint64_t bytes);

/* Return the managed memory of a device that all slots hold, in bytes. */
uint64_t vgpu_ledger_managed(const struct vgpu_region *region, unsigned column);

/* Count a refusal, and log it. */
void vgpu_ledger_denied(struct vgpu_region *region, unsigned column);

/* Charge memory that exists already, even if it does not fit, so that nothing else is admitted. */
void vgpu_ledger_add(struct vgpu_region_slot *mine, unsigned column, uint64_t bytes);

/* Give back a charge. */
void vgpu_ledger_release(struct vgpu_region_slot *mine, unsigned column, uint64_t bytes);

/* Return the bytes of a column that all slots hold. The sum saturates. */
uint64_t vgpu_ledger_used(const struct vgpu_region *region, unsigned column);

/* Return how much memory of other processes is open in all slots; the second function adds one to the count of this
 * process, or subtracts one. */
uint32_t vgpu_ledger_imports(const struct vgpu_region *region);
void vgpu_ledger_import(struct vgpu_region_slot *mine, int change);

/* Record how many bytes charged to this process may be open in other processes, and read it back. The record is rounded up. */
void vgpu_ledger_exported(struct vgpu_region_slot *mine, unsigned column, uint64_t bytes);
uint64_t vgpu_ledger_exported_bytes(const struct vgpu_region_slot *slot, unsigned column);

/* Clear the slots of dead processes and return how many there were. What such a process had exported stays charged
 * while any process has anything open, because the region does not record which process opened which export. */
int vgpu_ledger_reap(struct vgpu_region *region, const struct vgpu_identity *self);

#endif
