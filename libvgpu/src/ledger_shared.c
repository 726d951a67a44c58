/* ledger_shared.c - what a process says of memory that others may have open, in its slot (exports.h). */
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

static uint16_t units_of(uint64_t bytes)
{
    uint64_t units = bytes / VGPU_EXPORTED_UNIT + (bytes % VGPU_EXPORTED_UNIT != 0);
    return units > UINT16_MAX ? UINT16_MAX : (uint16_t)units;
}

void vgpu_ledger_export(struct vgpu_region_slot *mine, unsigned column, uint64_t bytes)
{
    quarterword *at = (quarterword *)&mine->exported[column];
    uint16_t seen = atomic_load(at), units = units_of(bytes), to;
    do {
        to = seen > UINT16_MAX - units ? UINT16_MAX : (uint16_t)(seen + units);
    } while (!atomic_compare_exchange_weak(at, &seen, to));
}

void vgpu_ledger_unexport(struct vgpu_region_slot *mine, unsigned column, uint64_t bytes)
{
    quarterword *at = (quarterword *)&mine->exported[column];
    uint16_t seen = atomic_load(at), units = units_of(bytes), to;
    do {
        to = seen > units ? (uint16_t)(seen - units) : 0;
    } while (!atomic_compare_exchange_weak(at, &seen, to));
}
