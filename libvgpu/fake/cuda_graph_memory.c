#include "cuda_graph_memory.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "cuda_memory.h"

enum { USED_CURRENT = 0, USED_HIGH = 1, RESERVED_CURRENT = 2, RESERVED_HIGH = 3 };

struct graph_memory {
    struct graph_memory *next;
    uintptr_t address;
    CUdevice device;
    size_t bytes; /* rounded */
    int allocated;
};

static struct graph_memory *all;
static struct {
    uint64_t reserved, reserved_high, used, used_high;
} pools[MACHINE_MAX_CARDS]; /* used: allocated by a graph that ran, and not freed since then */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

struct graph_memory *cuda_graph_memory_new(CUdevice device, size_t bytes)
{
    const struct machine *m = cuda_session()->machine;
    struct graph_memory *memory = calloc(1, sizeof *memory);
    size_t rounded = (bytes + m->granularity - 1) & ~(size_t)(m->granularity - 1);
    void *at = memory && bytes ? mmap(NULL, rounded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
                               : MAP_FAILED;
    if (at == MAP_FAILED || cuda_memory_show((uintptr_t)at, bytes)) {
        free(memory);
        return NULL;
    }
    *memory = (struct graph_memory){.address = (uintptr_t)at, .device = device, .bytes = rounded};
    pthread_mutex_lock(&lock);
    memory->next = all;
    all = memory;
    pthread_mutex_unlock(&lock);
    return memory;
}

CUdeviceptr cuda_graph_memory_address(const struct graph_memory *memory)
{
    return memory->address;
}

struct graph_memory *cuda_graph_memory_at(CUdeviceptr address)
{
    struct graph_memory *found = NULL;
    pthread_mutex_lock(&lock);
    for (struct graph_memory *at = all; at && !found; at = at->next) {
        found = at->address == address ? at : NULL;
    }
    pthread_mutex_unlock(&lock);
    return found;
}

/* Return the largest amount that a device needs while the steps run. The caller holds the lock. */
static uint64_t most_of(const struct graph_step *steps, size_t count, CUdevice device)
{
    uint64_t used = pools[device].used, most = used;
    for (size_t i = 0; i < count; i++) {
        if (steps[i].memory->device == device) {
            used = steps[i].is_free ? used - steps[i].memory->bytes : used + steps[i].memory->bytes;
            most = used > most ? used : most;
        }
    }
    return most;
}

static CUresult back(const struct graph_step *steps, size_t count)
{
    const struct machine *m = cuda_session()->machine;
    for (CUdevice device = 0; device < cuda_session()->count; device++) {
        uint64_t most = most_of(steps, count, device), have = pools[device].reserved;
        uint64_t more = most > have ? (most - have + m->pool_chunk - 1) / m->pool_chunk * m->pool_chunk : 0;
        CUresult result = more ? cuda_result(state_take(m, cuda_session()->visible[device], more, 0)) : CUDA_SUCCESS;
        if (result != CUDA_SUCCESS) {
            return result;
        }
        pools[device].reserved += more;
        if (pools[device].reserved > pools[device].reserved_high) {
            pools[device].reserved_high = pools[device].reserved;
        }
    }
    return CUDA_SUCCESS;
}

CUresult cuda_graph_memory_run(const struct graph_step *steps, size_t count, int only_back)
{
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++) {
        result = !steps[i].is_free && steps[i].memory->allocated ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    }
    result = result == CUDA_SUCCESS ? back(steps, count) : result;
    for (size_t i = 0; i < count && result == CUDA_SUCCESS && !only_back; i++) {
        struct graph_memory *memory = steps[i].memory;
        memory->allocated = !steps[i].is_free;
        pools[memory->device].used += steps[i].is_free ? -memory->bytes : memory->bytes;
        if (pools[memory->device].used > pools[memory->device].used_high) {
            pools[memory->device].used_high = pools[memory->device].used;
        }
    }
    pthread_mutex_unlock(&lock);
    return result;
}

CUresult cuda_graph_memory_free(struct graph_memory *memory)
{
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    if (memory->allocated) {
        memory->allocated = 0;
        pools[memory->device].used -= memory->bytes;
        result = CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

CUDA_API CUresult cuDeviceGraphMemTrim(CUdevice device)
{
    const struct machine *m = cuda_session() ? cuda_session()->machine : NULL;
    CUresult result = cuda_check_device(device);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    pthread_mutex_lock(&lock);
    uint64_t keep = (pools[device].used + m->pool_chunk - 1) / m->pool_chunk * m->pool_chunk;
    if (keep < pools[device].reserved) {
        state_give(m, cuda_session()->visible[device], pools[device].reserved - keep, 0);
        pools[device].reserved = keep;
    }
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuDeviceGetGraphMemAttribute(CUdevice device, int attribute, void *out)
{
    CUresult result = cuda_check_device(device);
    if (result != CUDA_SUCCESS || !out || attribute < USED_CURRENT || attribute > RESERVED_HIGH) {
        return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_VALUE;
    }
    pthread_mutex_lock(&lock);
    uint64_t values[] = {pools[device].used, pools[device].used_high, pools[device].reserved, pools[device].reserved_high};
    pthread_mutex_unlock(&lock);
    memcpy(out, &values[attribute], sizeof values[0]);
    return CUDA_SUCCESS;
}
