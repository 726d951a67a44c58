#include "region.h"

#include <ctype.h>
#include <stdatomic.h>
#include <string.h>

#include "page.h"

int vgpu_region_prepare(struct vgpu_region *region)
{
    _Atomic uint64_t *magic = (_Atomic uint64_t *)&region->magic;
    _Atomic uint32_t *state = (_Atomic uint32_t *)&region->state;
    uint64_t seen = 0;
    if (!atomic_compare_exchange_strong(magic, &seen, VGPU_REGION_MAGIC) && seen != VGPU_REGION_MAGIC) {
        return -1;
    }
    if (atomic_load_explicit(state, memory_order_acquire) == VGPU_REGION_EMPTY) {
        /* The process that set the magic may have died right afterwards, so every process completes the header. */
        atomic_store((_Atomic uint32_t *)&region->abi_version, VGPU_ABI_VERSION);
        atomic_store((_Atomic uint32_t *)&region->size, VGPU_REGION_BYTES);
        atomic_store((_Atomic uint32_t *)&region->slot_count, VGPU_REGION_SLOTS);
        atomic_store((_Atomic uint32_t *)&region->device_count, VGPU_MAX_DEVICES);
        atomic_store_explicit(state, VGPU_REGION_READY, memory_order_release);
    }
    return region->abi_version == VGPU_ABI_VERSION && region->size == VGPU_REGION_BYTES &&
                   region->slot_count == VGPU_REGION_SLOTS && region->device_count == VGPU_MAX_DEVICES
               ? 0
               : -1;
}

static uint64_t key_of(const char *uuid)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (const char *c = vgpu_uuid_tail(uuid); *c; c++) {
        hash = (hash ^ (unsigned char)tolower((unsigned char)*c)) * UINT64_C(0x100000001b3);
    }
    return hash ? hash : 1;
}

int vgpu_region_column(struct vgpu_region *region, const char *uuid)
{
    uint64_t key = key_of(uuid);
    for (int i = 0; i < (int)VGPU_MAX_DEVICES; i++) {
        struct vgpu_region_column *column = &region->columns[i];
        uint64_t seen = 0;
        if (atomic_compare_exchange_strong((_Atomic uint64_t *)&column->key, &seen, key) || seen == key) {
            if (!column->uuid[0]) {
                strncpy(column->uuid, uuid, sizeof column->uuid - 1);
            }
            return i;
        }
    }
    return -1;
}
