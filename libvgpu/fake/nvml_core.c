/* nvml_core.c - init, versions, and finding a device. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "mig.h"
#include "nvml.h"

static struct nvml_session session;
static int users;
static pthread_mutex_t users_lock = PTHREAD_MUTEX_INITIALIZER;
static char handles[MACHINE_MAX_CARDS]; /* a handle is the address of its card's byte */

const struct nvml_session *nvml_session(void)
{
    return __atomic_load_n(&users, __ATOMIC_ACQUIRE) > 0 ? &session : NULL;
}

int nvml_index_of(const struct nvml_session *s, int card)
{
    for (int i = 0; i < s->count; i++) {
        if (s->visible[i] == card) {
            return i;
        }
    }
    return -1;
}

nvmlDevice_t nvml_handle(int card)
{
    return (nvmlDevice_t)(void *)&handles[card];
}

/* An instance is visible with its card, unless others of that card were named. */
int nvml_is_visible(const struct nvml_session *s, int card)
{
    int parent = s->machine->cards[card].parent;
    if (parent >= 0 && (!s->machine->cards[card].uuid[0] || (s->is_narrow[parent] && !s->named[card]))) {
        return 0;
    }
    return nvml_index_of(s, parent < 0 ? card : parent) >= 0;
}

/* `nvmlDeviceGetMemoryInfo` stands for all its versions. */
static int is_named(const char *name, const char *function)
{
    size_t length = strlen(name);
    return length && !strncmp(function, name, length) && (!function[length] || !strncmp(function + length, "_v", 2));
}

nvmlReturn_t nvml_fault(const struct nvml_session *s, const char *function, int card)
{
    const struct state_fault *faults = s->state->cards[card].faults;
    for (int i = 0; i < STATE_MAX_FAULTS; i++) {
        if (is_named(faults[i].function, function)) {
            return (nvmlReturn_t)faults[i].result;
        }
    }
    return NVML_SUCCESS;
}

nvmlReturn_t nvml_card_for(const char *function, nvmlDevice_t device, int *card)
{
    const struct nvml_session *s = nvml_session();
    if (!s) {
        return NVML_ERROR_UNINITIALIZED;
    }
    mig_refresh(s->machine);
    uintptr_t at = (uintptr_t)device - (uintptr_t)handles;
    if (!device || at >= (uintptr_t)s->machine->card_count || !nvml_is_visible(s, (int)at)) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    *card = (int)at;
    uint32_t slow = s->state->cards[at].slow_ms;
    if (slow) {
        struct timespec time = {.tv_sec = slow / 1000, .tv_nsec = (long)(slow % 1000) * 1000000};
        nanosleep(&time, NULL);
    }
    return s->state->cards[*card].lost ? NVML_ERROR_GPU_IS_LOST : nvml_fault(s, function, *card);
}

/* A process that sees an instance also sees its card. */
static void show_cards(const struct machine *m)
{
    int count = 0;
    char whole[MACHINE_MAX_CARDS] = {0};
    for (int i = 0; i < session.count; i++) {
        whole[session.visible[i]] = 1;
    }
    for (int i = 0; i < session.count; i++) {
        int card = session.visible[i], known = 0;
        if (m->cards[card].parent >= 0) {
            session.named[card] = 1;
            card = m->cards[card].parent;
            session.is_narrow[card] = !whole[card];
        }
        for (int k = 0; k < count; k++) {
            known |= session.visible[k] == card;
        }
        if (!known) {
            session.visible[count++] = card;
        }
    }
    session.count = count;
}

static nvmlReturn_t start(void)
{
    const struct machine *m = machine_current();
    nvmlReturn_t result = NVML_SUCCESS;
    if (!m) {
        return NVML_ERROR_DRIVER_NOT_LOADED;
    }
    pthread_mutex_lock(&users_lock);
    if (users == 0) {
        session.machine = m;
        session.state = state_open(m);
        mig_refresh(m);
        memset(session.named, 0, sizeof session.named);
        memset(session.is_narrow, 0, sizeof session.is_narrow);
        session.count = machine_visible(m, getenv("NVIDIA_VISIBLE_DEVICES"), session.visible);
        show_cards(m);
        result = session.state ? NVML_SUCCESS : NVML_ERROR_UNKNOWN;
    }
    if (result == NVML_SUCCESS) {
        __atomic_add_fetch(&users, 1, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&users_lock);
    return result;
}

NVML_API nvmlReturn_t nvmlInit_v2(void)
{
    return start();
}

NVML_API nvmlReturn_t nvmlInit(void)
{
    return start();
}

NVML_API nvmlReturn_t nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    return start();
}

NVML_API nvmlReturn_t nvmlShutdown(void)
{
    nvmlReturn_t result = NVML_ERROR_UNINITIALIZED;
    pthread_mutex_lock(&users_lock);
    if (users > 0) {
        __atomic_sub_fetch(&users, 1, __ATOMIC_RELEASE);
        result = NVML_SUCCESS;
    }
    pthread_mutex_unlock(&users_lock);
    return result;
}

static nvmlReturn_t text(char *out, unsigned bytes, const char *value)
{
    if (!nvml_session()) {
        return NVML_ERROR_UNINITIALIZED;
    }
    if (!out) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    return (unsigned)snprintf(out, bytes, "%s", value) < bytes ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
}

NVML_API nvmlReturn_t nvmlSystemGetDriverVersion(char *out, unsigned bytes)
{
    return text(out, bytes, session.machine ? session.machine->driver_version : "");
}

NVML_API nvmlReturn_t nvmlSystemGetNVMLVersion(char *out, unsigned bytes)
{
    char version[96] = "";
    if (session.machine) {
        snprintf(version, sizeof version, "%d.%s", session.machine->cuda_version / 1000, session.machine->driver_version);
    }
    return text(out, bytes, version);
}

NVML_API nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    if (!nvml_session()) {
        return NVML_ERROR_UNINITIALIZED;
    }
    if (!version) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    *version = session.machine->cuda_version;
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version)
{
    return nvmlSystemGetCudaDriverVersion_v2(version);
}

NVML_API nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count)
{
    const struct nvml_session *s = nvml_session();
    if (!s) {
        return NVML_ERROR_UNINITIALIZED;
    }
    if (!count) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    *count = (unsigned)s->count;
    return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetCount(unsigned *count)
{
    return nvmlDeviceGetCount_v2(count);
}

static nvmlReturn_t found(const char *function, const struct nvml_session *s, int card, nvmlDevice_t *device)
{
    if (card < 0 || !nvml_is_visible(s, card)) {
        return NVML_ERROR_NOT_FOUND;
    }
    if (s->state->cards[card].lost) {
        return NVML_ERROR_GPU_IS_LOST;
    }
    *device = nvml_handle(card);
    return nvml_fault(s, function, card);
}

NVML_API nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device)
{
    const struct nvml_session *s = nvml_session();
    if (!s) {
        return NVML_ERROR_UNINITIALIZED;
    }
    if (!device || index >= (unsigned)s->count) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    return found(__func__, s, s->visible[index], device);
}

NVML_API nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned index, nvmlDevice_t *device)
{
    return nvmlDeviceGetHandleByIndex_v2(index, device);
}

NVML_API nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    const struct nvml_session *s = nvml_session();
    if (!s) {
        return NVML_ERROR_UNINITIALIZED;
    }
    if (!uuid || !device) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    mig_refresh(s->machine);
    for (int i = 0; i < s->machine->card_count; i++) {
        if (!strcasecmp(s->machine->cards[i].uuid, uuid)) {
            return found(__func__, s, i, device);
        }
    }
    return NVML_ERROR_NOT_FOUND;
}

NVML_API nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *device)
{
    const struct nvml_session *s = nvml_session();
    unsigned domain, bus, slot, function = 0;
    if (!s) {
        return NVML_ERROR_UNINITIALIZED;
    }
    if (!bus_id || !device || sscanf(bus_id, "%x:%x:%x.%x", &domain, &bus, &slot, &function) < 3) {
        return NVML_ERROR_INVALID_ARGUMENT;
    }
    for (int i = 0; i < s->machine->card_count; i++) {
        const struct machine_card *c = &s->machine->cards[i];
        if (c->domain == domain && c->bus == bus && c->device == slot) {
            return found(__func__, s, i, device);
        }
    }
    return NVML_ERROR_NOT_FOUND;
}

NVML_API nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *bus_id, nvmlDevice_t *device)
{
    return nvmlDeviceGetHandleByPciBusId_v2(bus_id, device);
}

NVML_API const char *nvmlErrorString(nvmlReturn_t result)
{
    static const struct {
        nvmlReturn_t result;
        const char *text;
    } texts[] = {
        {NVML_SUCCESS, "Success"},
        {NVML_ERROR_UNINITIALIZED, "Uninitialized"},
        {NVML_ERROR_INVALID_ARGUMENT, "Invalid Argument"},
        {NVML_ERROR_NOT_SUPPORTED, "Not Supported"},
        {NVML_ERROR_NO_PERMISSION, "Insufficient Permissions"},
        {NVML_ERROR_NOT_FOUND, "Not Found"},
        {NVML_ERROR_INSUFFICIENT_SIZE, "Insufficient Size"},
        {NVML_ERROR_DRIVER_NOT_LOADED, "Driver Not Loaded"},
        {NVML_ERROR_TIMEOUT, "Timeout"},
        {NVML_ERROR_LIBRARY_NOT_FOUND, "NVML Shared Library Not Found"},
        {NVML_ERROR_FUNCTION_NOT_FOUND, "Function Not Found"},
        {NVML_ERROR_GPU_IS_LOST, "GPU is lost"},
        {NVML_ERROR_IN_USE, "In use by another client"},
        {NVML_ERROR_MEMORY, "Insufficient Memory"},
        {NVML_ERROR_INSUFFICIENT_RESOURCES, "Insufficient Resources"},
        {NVML_ERROR_ARGUMENT_VERSION_MISMATCH, "Argument Version Mismatch"},
    };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        if (texts[i].result == result) {
            return texts[i].text;
        }
    }
    return "Unknown Error";
}
