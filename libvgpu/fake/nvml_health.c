/* nvml_health.c - ECC, row remapping, and the events that report faults. */
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "nvml.h"

struct nvmlEventSet_st {
    uint32_t seen; /* number of the next event to report */
    unsigned char registered[MACHINE_MAX_CARDS];
};

NVML_API nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, int kind, int counter, unsigned long long *out)
{
    int card = -1;
    nvmlReturn_t result = nvml_card(device, &card);
    (void)counter; /* the simulated machine never reboots: volatile is aggregate */
    if (result != NVML_SUCCESS) {
        return result;
    }
    if (!out || kind < 0 || kind > 1) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    const struct state_card *now = &nvml_session()->state->cards[card];
    *out = kind == 0 ? now->ecc_corrected : now->ecc_uncorrected;
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t device, int kind, int counter, int location,
                                                      unsigned long long *out)
{
    (void)location;
    return nvmlDeviceGetTotalEccErrors(device, kind, counter, out);
}

NVML_API nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, unsigned *current, unsigned *pending)
{
    int card = -1;
    nvmlReturn_t result = nvml_card(device, &card);
    if (result != NVML_SUCCESS) {
        return result;
    }
    if (!current || !pending) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    *current = *pending = 1;
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned *corrected, unsigned *uncorrected,
                                                unsigned *pending, unsigned *failed)
{
    int card = -1;
    nvmlReturn_t result = nvml_card(device, &card);
    if (result != NVML_SUCCESS) {
        return result;
    }
    if (!corrected || !uncorrected || !pending || !failed) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    const struct state_card *now = &nvml_session()->state->cards[card];
    *corrected = now->remapped_correctable;
    *uncorrected = now->remapped_uncorrectable;
    *pending = now->remap_pending;
    *failed = now->remap_failed;
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetRetiredPagesPendingStatus(nvmlDevice_t device, unsigned *out)
{
    QUERY(device, out);
    if (c->cc_major >= 8) {
        return NVML_ERROR_NOT_SUPPORTED; /* these remap rows instead */
    }
    *out = now->pages_pending;
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *out)
{
    const struct nvml_session *s = nvml_session();
    if (!s) {
        return NVML_ERROR_UNINITIALIZED;
    }
    nvmlEventSet_t set = out ? calloc(1, sizeof *set) : NULL;
    if (!set) {
        return out ? NVML_ERROR_MEMORY : NVML_ERROR_INVALID_ARGUMENT;
    }
    set->seen = __atomic_load_n(&s->state->event_count, __ATOMIC_ACQUIRE);
    *out = set;
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set)
{
    if (!set) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    free(set);
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *out)
{
    int card = -1;
    nvmlReturn_t result = nvml_card(device, &card);
    if (result != NVML_SUCCESS) {
        return result;
    }
    if (!out) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    *out = NVML_EVENT_XID_CRITICAL_ERROR;
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set)
{
    int card = -1;
    nvmlReturn_t result = nvml_card(device, &card);
    if (result != NVML_SUCCESS) {
        return result;
    }
    if (!set) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    if (types & ~(unsigned long long)NVML_EVENT_XID_CRITICAL_ERROR) {
        return NVML_ERROR_NOT_SUPPORTED;
    }
    set->registered[card] = 1;
    return NVML_SUCCESS;
}

static int next_event(const struct nvml_session *s, nvmlEventSet_t set, nvmlEventData_t *out)
{
    uint32_t count = __atomic_load_n(&s->state->event_count, __ATOMIC_ACQUIRE);
    if (count - set->seen > STATE_MAX_EVENTS) {
        set->seen = count - STATE_MAX_EVENTS; /* too late for the ones that were overwritten */
    }
    while (set->seen != count) {
        struct state_event event = s->state->events[set->seen++ % STATE_MAX_EVENTS];
        if (event.card >= 0 && event.card < MACHINE_MAX_CARDS && set->registered[event.card]) {
            *out = (nvmlEventData_t){.device = nvml_handle(event.card),
                                     .eventType = NVML_EVENT_XID_CRITICAL_ERROR,
                                     .eventData = event.xid,
                                     .gpuInstanceId = UINT_MAX,
                                     .computeInstanceId = UINT_MAX};
            return 1;
        }
    }
    return 0;
}

static int64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

NVML_API nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *out, unsigned timeout_ms)
{
    const struct nvml_session *s = nvml_session();
    if (!s) {
        return NVML_ERROR_UNINITIALIZED;
    }
    if (!set || !out) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    int64_t deadline = now_ms() + timeout_ms;
    for (int card = 0; card < MACHINE_MAX_CARDS; card++) {
        if (set->registered[card] && s->state->cards[card].lost) {
            return NVML_ERROR_GPU_IS_LOST;
        }
    }
    for (;;) {
        if (next_event(s, set, out)) {
            return NVML_SUCCESS;
        }
        int64_t left = deadline - now_ms();
        if (left <= 0) {
            return NVML_ERROR_TIMEOUT;
        }
        struct timespec wait = {.tv_sec = left / 1000, .tv_nsec = left % 1000 * 1000000};
        syscall(SYS_futex, &s->state->event_count, FUTEX_WAIT, set->seen, &wait, NULL, 0);
    }
}

NVML_API nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_t *out, unsigned timeout_ms)
{
    return nvmlEventSetWait_v2(set, out, timeout_ms);
}
