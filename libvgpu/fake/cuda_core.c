/* cuda_core.c - cuInit, versions, and error texts of the simulated driver. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cuda.h"
#include "mig.h"

static struct cuda_session session;
static int ready;
static pthread_mutex_t init_lock = PTHREAD_MUTEX_INITIALIZER;

const struct cuda_session *cuda_session(void)
{
    if (!__atomic_load_n(&ready, __ATOMIC_ACQUIRE)) {
        return NULL;
    }
    return session.machine->fork_works || session.pid == (int)getpid() ? &session : NULL;
}

CUresult cuda_result(enum state_result result)
{
    switch (result) {
    case STATE_OK:
        return CUDA_SUCCESS;
    case STATE_NO_MEMORY:
        return CUDA_ERROR_OUT_OF_MEMORY;
    case STATE_LOST:
        return CUDA_ERROR_UNKNOWN;
    case STATE_BROKEN:
        break;
    }
    return CUDA_ERROR_NOT_INITIALIZED;
}

/* A card in MIG mode appears as its first instance, or not at all if it has none; a process sees only one instance. */
static void take_instances(void)
{
    const struct machine *m = session.machine;
    int count = 0, instances = 0;
    for (int i = 0; i < session.count; i++) {
        int card = session.visible[i], first = m->cards[card].parent < 0 ? machine_first_instance(m, card) : -1;
        card = first >= 0 ? first : card;
        if (m->cards[card].parent < 0 ? !m->cards[card].mig_enabled : !instances++) {
            session.visible[count++] = card;
        }
    }
    session.count = count;
}

/* Return 1 if the container sees this card, or the card of this instance. */
static int is_within(int card)
{
    for (int i = 0; card >= 0 && i < session.count; i++) {
        if (session.visible[i] == card || session.visible[i] == session.machine->cards[card].parent) {
            return 1;
        }
    }
    return 0;
}

/* CUDA_VISIBLE_DEVICES selects and orders the cards of the container; the list ends at its first invalid entry. */
static void narrow(const char *list)
{
    int cards[MACHINE_MAX_CARDS], count = 0;
    char text[4096], *rest = NULL;
    snprintf(text, sizeof text, "%s", list);
    for (char *word = strtok_r(text, ", ", &rest); word; word = strtok_r(NULL, ", ", &rest)) {
        char *end;
        long index = strtol(word, &end, 10);
        int card = -1;
        if (*end == '\0' && index >= 0 && index < session.count) {
            card = session.visible[index];
        } else {
            int named = machine_card_by_uuid(session.machine, word);
            card = is_within(named) ? named : -1;
        }
        for (int i = 0; i < count; i++) {
            card = cards[i] == card ? -1 : card;
        }
        if (card < 0) {
            break;
        }
        cards[count++] = card;
    }
    memcpy(session.visible, cards, sizeof cards[0] * (size_t)count);
    session.count = count;
}

CUDA_API CUresult cuInit(unsigned flags)
{
    const struct machine *m = machine_current();
    if (flags) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!m || !state_open(m)) {
        return CUDA_ERROR_NO_DEVICE;
    }
    pthread_mutex_lock(&init_lock);
    if (!ready) {
        const char *list = getenv("CUDA_VISIBLE_DEVICES");
        session.machine = m;
        mig_refresh(m);
        session.pid = (int)getpid();
        session.count = machine_visible(m, getenv("NVIDIA_VISIBLE_DEVICES"), session.visible);
        if (list) {
            narrow(list);
        }
        take_instances();
        __atomic_store_n(&ready, 1, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&init_lock);
    if (!cuda_session()) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    return session.count ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

CUDA_API CUresult cuDriverGetVersion(int *version)
{
    const struct machine *m = machine_current();
    if (!version) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *version = m ? m->cuda_version : 0;
    return CUDA_SUCCESS;
}

static const struct {
    CUresult result;
    const char *name, *text;
} errors[] = {
    {CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
    {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {CUDA_ERROR_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {CUDA_ERROR_CONTEXT_IS_DESTROYED, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
    {CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {CUDA_ERROR_UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

static CUresult describe(CUresult error, const char **name, const char **text)
{
    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++) {
        if (errors[i].result == error) {
            *name = errors[i].name;
            *text = errors[i].text;
            return CUDA_SUCCESS;
        }
    }
    *name = *text = NULL;
    return CUDA_ERROR_INVALID_VALUE;
}

CUDA_API CUresult cuGetErrorName(CUresult error, const char **out)
{
    const char *text;
    return out ? describe(error, out, &text) : CUDA_ERROR_INVALID_VALUE;
}

CUDA_API CUresult cuGetErrorString(CUresult error, const char **out)
{
    const char *name;
    return out ? describe(error, &name, out) : CUDA_ERROR_INVALID_VALUE;
}

CUDA_API CUresult cuGetExportTable(const void **table, const CUuuid *id)
{
    (void)id;
    if (table) {
        *table = NULL;
    }
    return CUDA_ERROR_NOT_FOUND; /* undocumented tables are not simulated */
}
