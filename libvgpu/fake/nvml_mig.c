/* nvml_mig.c - NVML's functions for MIG: listing the profiles of a card, and creating and destroying instances. */
#include <stdio.h>
#include <string.h>

#include "mig.h"
#include "nvml.h"

static char gpu_handles[MACHINE_MAX_CARDS], compute_handles[MACHINE_MAX_CARDS]; /* a handle is an address in one of them */

static nvmlReturn_t answer(enum mig_result result)
{
    switch (result) {
    case MIG_OK:
        return NVML_SUCCESS;
    case MIG_NO_ROOM:
        return NVML_ERROR_INSUFFICIENT_RESOURCES;
    case MIG_IN_USE:
        return NVML_ERROR_IN_USE;
    case MIG_GONE:
        break;
    }
    return NVML_ERROR_INVALID_ARGUMENT;
}

/* Start a call about a card, which must be in MIG mode. */
#define MIG_DEVICE(device, out_ok)           \
    QUERY(device, out_ok);                   \
    if (!c->mig_enabled || c->parent >= 0) { \
        return NVML_ERROR_NOT_SUPPORTED;     \
    }

/* Start a call about an instance: define its `room`, what it `is`, its `card` and its `profile`. */
#define INSTANCE(handle, handles, made, out_ok)                                                                    \
    const struct nvml_session *s = nvml_session();                                                                 \
    if (!s) {                                                                                                      \
        return NVML_ERROR_UNINITIALIZED;                                                                           \
    }                                                                                                              \
    uintptr_t room = (uintptr_t)(handle) - (uintptr_t)(handles);                                                   \
    if (!(handle) || room >= (uintptr_t)s->machine->card_count || !s->machine->cards[room].is_room || !(out_ok)) { \
        return NVML_ERROR_INVALID_ARGUMENT;                                                                        \
    }                                                                                                              \
    const struct state_instance is = mig_instance(s->machine, (int)room);                                          \
    const int card = s->machine->cards[room].parent;                                                               \
    const struct mig_profile *profile = mig_profile_by_id(&s->machine->cards[card], is.profile);                   \
    if (!is.made || !profile) {                                                                                    \
        return NVML_ERROR_INVALID_ARGUMENT;                                                                        \
    }

static nvmlGpuInstance_t gpu_handle(int room)
{
    return (nvmlGpuInstance_t)(void *)&gpu_handles[room];
}

static nvmlComputeInstance_t compute_handle(int room)
{
    return (nvmlComputeInstance_t)(void *)&compute_handles[room];
}

static nvmlReturn_t describe(const struct mig_profile *p, nvmlGpuInstanceProfileInfo_v2_t *out)
{
    if (out->version != NVML_GPU_INSTANCE_PROFILE_INFO_V2) {
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    }
    *out = (nvmlGpuInstanceProfileInfo_v2_t){.version = NVML_GPU_INSTANCE_PROFILE_INFO_V2,
                                             .id = p->id,
                                             .sliceCount = p->slices,
                                             .instanceCount = p->most,
                                             .multiprocessorCount = p->sms,
                                             .copyEngineCount = p->slices,
                                             .memorySizeMB = p->memory_mib};
    snprintf(out->name, sizeof out->name, "MIG %s", p->name);
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice_t device, unsigned kind,
                                                           nvmlGpuInstanceProfileInfo_v2_t *out)
{
    QUERY(device, out && kind < NVML_GPU_INSTANCE_PROFILE_COUNT);
    const struct mig_profile *p = c->mig_enabled && c->parent < 0 ? mig_profile_of_kind(c, kind) : NULL;
    return p ? describe(p, out) : NVML_ERROR_NOT_SUPPORTED;
}

NVML_API nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice_t device, unsigned kind, nvmlGpuInstanceProfileInfo_t *out)
{
    nvmlGpuInstanceProfileInfo_v2_t more = {.version = NVML_GPU_INSTANCE_PROFILE_INFO_V2};
    nvmlReturn_t result = nvmlDeviceGetGpuInstanceProfileInfoV(device, kind, out ? &more : NULL);
    if (result == NVML_SUCCESS) {
        *out = (nvmlGpuInstanceProfileInfo_t){.id = more.id,
                                              .sliceCount = more.sliceCount,
                                              .instanceCount = more.instanceCount,
                                              .multiprocessorCount = more.multiprocessorCount,
                                              .copyEngineCount = more.copyEngineCount,
                                              .memorySizeMB = more.memorySizeMB};
    }
    return result;
}

NVML_API nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoByIdV(nvmlDevice_t device, unsigned id,
                                                               nvmlGpuInstanceProfileInfo_v2_t *out)
{
    MIG_DEVICE(device, out)
    const struct mig_profile *p = mig_profile_by_id(c, id);
    return p ? describe(p, out) : NVML_ERROR_INVALID_ARGUMENT;
}

NVML_API nvmlReturn_t nvmlDeviceGetGpuInstanceRemainingCapacity(nvmlDevice_t device, unsigned id, unsigned *out)
{
    MIG_DEVICE(device, out)
    const struct mig_profile *p = mig_profile_by_id(c, id);
    *out = p ? mig_capacity(s->machine, card, p) : 0;
    return p ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

NVML_API nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements_v2(nvmlDevice_t device, unsigned id,
                                                                    nvmlGpuInstancePlacement_t *out, unsigned *count)
{
    MIG_DEVICE(device, count)
    const struct mig_profile *p = mig_profile_by_id(c, id);
    if (!p) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    *count = 0;
    for (unsigned start = 0; start < 8; start++) {
        if (p->starts >> start & 1) {
            if (out) {
                out[*count] = (nvmlGpuInstancePlacement_t){.start = start, .size = p->size};
            }
            ++*count;
        }
    }
    return NVML_SUCCESS;
}

static nvmlReturn_t create(nvmlDevice_t device, unsigned id, const nvmlGpuInstancePlacement_t *place, nvmlGpuInstance_t *out)
{
    MIG_DEVICE(device, out)
    const struct mig_profile *p = mig_profile_by_id(c, id);
    int room;
    if (!p || (place && (place->size != p->size || place->start >= 8 || !(p->starts >> place->start & 1)))) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    enum mig_result result = mig_make(s->machine, card, p, place ? (int)place->start : -1, &room);
    if (result == MIG_OK) {
        *out = gpu_handle(room);
    }
    return answer(result);
}

NVML_API nvmlReturn_t nvmlDeviceCreateGpuInstance(nvmlDevice_t device, unsigned id, nvmlGpuInstance_t *out)
{
    return create(device, id, NULL, out);
}

NVML_API nvmlReturn_t nvmlDeviceCreateGpuInstanceWithPlacement(nvmlDevice_t device, unsigned id,
                                                               const nvmlGpuInstancePlacement_t *place, nvmlGpuInstance_t *out)
{
    return place ? create(device, id, place, out) : NVML_ERROR_INVALID_ARGUMENT;
}

NVML_API nvmlReturn_t nvmlGpuInstanceDestroy(nvmlGpuInstance_t instance)
{
    INSTANCE(instance, gpu_handles, gpu_made, 1)
    return answer(mig_unmake(s->machine, (int)room));
}

NVML_API nvmlReturn_t nvmlDeviceGetGpuInstances(nvmlDevice_t device, unsigned id, nvmlGpuInstance_t *out, unsigned *count)
{
    MIG_DEVICE(device, out && count)
    if (!mig_profile_by_id(c, id)) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    *count = 0;
    for (int i = 0; i < s->machine->card_count; i++) {
        if (s->machine->cards[i].is_room && s->machine->cards[i].parent == card) {
            struct state_instance is = mig_instance(s->machine, i);
            if (is.gpu_made && is.profile == id) {
                out[(*count)++] = gpu_handle(i);
            }
        }
    }
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetGpuInstanceById(nvmlDevice_t device, unsigned number, nvmlGpuInstance_t *out)
{
    MIG_DEVICE(device, out)
    for (int i = 0; i < s->machine->card_count; i++) {
        if (s->machine->cards[i].is_room && s->machine->cards[i].parent == card && mig_number(s->machine, i) == number &&
            mig_instance(s->machine, i).gpu_made) {
            *out = gpu_handle(i);
            return NVML_SUCCESS;
        }
    }
    return NVML_ERROR_NOT_FOUND;
}

NVML_API nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t instance, nvmlGpuInstanceInfo_t *out)
{
    INSTANCE(instance, gpu_handles, gpu_made, out)
    *out = (nvmlGpuInstanceInfo_t){.device = nvml_handle(card),
                                   .id = mig_number(s->machine, (int)room),
                                   .profileId = is.profile,
                                   .placement = {.start = is.start, .size = is.size}};
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfoV(nvmlGpuInstance_t instance, unsigned kind, unsigned engines,
                                                                    nvmlComputeInstanceProfileInfo_v2_t *out)
{
    INSTANCE(instance, gpu_handles, gpu_made, out && kind < NVML_COMPUTE_INSTANCE_PROFILE_COUNT && !engines)
    if (out->version != NVML_COMPUTE_INSTANCE_PROFILE_INFO_V2) {
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    }
    if (kind != profile->compute_kind) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    *out = (nvmlComputeInstanceProfileInfo_v2_t){.version = NVML_COMPUTE_INSTANCE_PROFILE_INFO_V2,
                                                 .id = kind,
                                                 .sliceCount = profile->slices,
                                                 .instanceCount = 1,
                                                 .multiprocessorCount = profile->sms,
                                                 .sharedCopyEngineCount = profile->slices};
    snprintf(out->name, sizeof out->name, "MIG %s", profile->name);
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfo(nvmlGpuInstance_t instance, unsigned kind, unsigned engines,
                                                                   nvmlComputeInstanceProfileInfo_t *out)
{
    nvmlComputeInstanceProfileInfo_v2_t more = {.version = NVML_COMPUTE_INSTANCE_PROFILE_INFO_V2};
    nvmlReturn_t result = nvmlGpuInstanceGetComputeInstanceProfileInfoV(instance, kind, engines, out ? &more : NULL);
    if (result == NVML_SUCCESS) {
        *out = (nvmlComputeInstanceProfileInfo_t){.id = more.id,
                                                  .sliceCount = more.sliceCount,
                                                  .instanceCount = more.instanceCount,
                                                  .multiprocessorCount = more.multiprocessorCount,
                                                  .sharedCopyEngineCount = more.sharedCopyEngineCount};
    }
    return result;
}

NVML_API nvmlReturn_t nvmlGpuInstanceGetComputeInstanceRemainingCapacity(nvmlGpuInstance_t instance, unsigned id, unsigned *out)
{
    INSTANCE(instance, gpu_handles, gpu_made, out)
    *out = id == profile->compute_kind && !is.compute_made;
    return id == profile->compute_kind ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

NVML_API nvmlReturn_t nvmlGpuInstanceGetComputeInstancePossiblePlacements(nvmlGpuInstance_t instance, unsigned id,
                                                                          nvmlComputeInstancePlacement_t *out, unsigned *count)
{
    INSTANCE(instance, gpu_handles, gpu_made, count)
    if (id != profile->compute_kind) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    if (out) {
        *out = (nvmlComputeInstancePlacement_t){.start = 0, .size = profile->slices};
    }
    *count = 1;
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlGpuInstanceCreateComputeInstance(nvmlGpuInstance_t instance, unsigned id, nvmlComputeInstance_t *out)
{
    INSTANCE(instance, gpu_handles, gpu_made, out)
    if (id != profile->compute_kind) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    *out = compute_handle((int)room);
    return answer(mig_make_compute(s->machine, (int)room));
}

NVML_API nvmlReturn_t nvmlGpuInstanceCreateComputeInstanceWithPlacement(nvmlGpuInstance_t instance, unsigned id,
                                                                        const nvmlComputeInstancePlacement_t *place,
                                                                        nvmlComputeInstance_t *out)
{
    INSTANCE(instance, gpu_handles, gpu_made, out && place)
    if (place->start || place->size != profile->slices) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    return nvmlGpuInstanceCreateComputeInstance(instance, id, out);
}

NVML_API nvmlReturn_t nvmlComputeInstanceDestroy(nvmlComputeInstance_t instance)
{
    INSTANCE(instance, compute_handles, compute_made, 1)
    return answer(mig_unmake_compute(s->machine, (int)room));
}

NVML_API nvmlReturn_t nvmlGpuInstanceGetComputeInstances(nvmlGpuInstance_t instance, unsigned id, nvmlComputeInstance_t *out,
                                                         unsigned *count)
{
    INSTANCE(instance, gpu_handles, gpu_made, out && count)
    *count = is.compute_made && id == profile->compute_kind;
    if (*count) {
        *out = compute_handle((int)room);
    }
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlGpuInstanceGetComputeInstanceById(nvmlGpuInstance_t instance, unsigned number,
                                                            nvmlComputeInstance_t *out)
{
    INSTANCE(instance, gpu_handles, gpu_made, out)
    if (!is.compute_made || number) {
        return NVML_ERROR_NOT_FOUND;
    }
    *out = compute_handle((int)room);
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlComputeInstanceGetInfo_v2(nvmlComputeInstance_t instance, nvmlComputeInstanceInfo_t *out)
{
    INSTANCE(instance, compute_handles, compute_made, out)
    *out = (nvmlComputeInstanceInfo_t){.device = nvml_handle(card),
                                       .gpuInstance = gpu_handle((int)room),
                                       .profileId = profile->compute_kind,
                                       .placement = {.size = profile->slices}};
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlComputeInstanceGetInfo(nvmlComputeInstance_t instance, nvmlComputeInstanceInfo_t *out)
{
    return nvmlComputeInstanceGetInfo_v2(instance, out);
}
