/* ledger_shared.c - a process's record, in its slot, of memory that others may have open (exports.h). */
#include <stdatomic.h>

#include "ledger.h"

typedef _Atomic uint32_t halfword;
typedef _Atomic uint16_t quarterword;

uint32_t vgpu_ledger_imports(const struct vgpu_region *region)
{
    uint32_t sum = 0, high = vgpu_ledger_high(region);
    for (uint32_t i = 0; i < high; i++) {
        uint32_t open = atomic_load((const halfword *)&region->slots[i].imports);
        sum = sum > UINT32_MAX - open ? UINT32_MAX : sum + open;
    }
    return sum;
}

void vgpu_ledger_import(struct vgpu_region_slot *mine, int change)
{
    atomic_fetch_add((halfword *)&mine->imports, (uint32_t)change);
}

static uint64_t in_units(uint64_t bytes, uint64_t unit)
{
    return bytes / unit + (bytes % unit != 0);
}

void vgpu_ledger_exported(struct vgpu_region_slot *mine, unsigned column, uint64_t bytes)
{
    uint64_t small = in_units(bytes, VGPU_EXPORTED_UNIT), large = in_units(bytes, VGPU_EXPORTED_LARGE_UNIT);
    uint64_t word = small < VGPU_EXPORTED_LARGE                     ? small
                    : large < UINT16_MAX - VGPU_EXPORTED_LARGE + 1u ? VGPU_EXPORTED_LARGE | large
                                                                    : UINT16_MAX;
    atomic_store((quarterword *)&mine->exported[column], (uint16_t)word);
}

uint64_t vgpu_ledger_exported_bytes(const struct vgpu_region_slot *slot, unsigned column)
{
    uint64_t word = atomic_load((const quarterword *)&slot->exported[column]);
    return word < VGPU_EXPORTED_LARGE ? word * VGPU_EXPORTED_UNIT : (word - VGPU_EXPORTED_LARGE) * VGPU_EXPORTED_LARGE_UNIT;
}
