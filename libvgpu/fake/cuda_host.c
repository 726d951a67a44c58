/* cuda_host.c - page-locked host memory: counted, and otherwise ordinary memory. */
#include <pthread.h>
#include <stdlib.h>

#include "cuda.h"

struct locked {
    struct locked *next;
    void *address;
    size_t bytes;
    int is_registered;
    struct CUctx_st *context;
};

static struct locked *all;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static CUresult note(void *address, size_t bytes, int is_registered, struct CUctx_st *context)
{
    struct locked *it = malloc(sizeof *it);
    CUresult result = it ? cuda_result(state_lock_host(cuda_session()->machine, bytes)) : CUDA_ERROR_OUT_OF_MEMORY;
    if (result != CUDA_SUCCESS) {
        free(it);
        return result;
    }
    pthread_mutex_lock(&lock);
    *it = (struct locked){.next = all, .address = address, .bytes = bytes, .is_registered = is_registered, .context = context};
    all = it;
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

static void let_go(struct locked *it)
{
    state_unlock_host(cuda_session()->machine, it->bytes);
    if (!it->is_registered) {
        free(it->address);
    }
    free(it);
}

static CUresult forget(void *address, int is_registered)
{
    struct locked *found = NULL;
    pthread_mutex_lock(&lock);
    for (struct locked **at = &all; *at && !found; at = found ? at : &(*at)->next) {
        if ((*at)->address == address && (*at)->is_registered == is_registered) {
            found = *at;
            *at = found->next;
            break;
        }
    }
    pthread_mutex_unlock(&lock);
    if (!found) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    let_go(found);
    return CUDA_SUCCESS;
}

void cuda_host_drop_context(struct CUctx_st *context)
{
    for (int more = 1; more;) {
        struct locked *found = NULL;
        pthread_mutex_lock(&lock);
        for (struct locked **at = &all; *at; at = &(*at)->next) {
            if ((*at)->context == context) {
                found = *at;
                *at = found->next;
                break;
            }
        }
        pthread_mutex_unlock(&lock);
        more = found != NULL;
        if (found) {
            let_go(found);
        }
    }
}

CUDA_API CUresult cuMemHostAlloc(void **out, size_t bytes, unsigned flags)
{
    CUresult result = CUDA_SUCCESS;
    struct CUctx_st *context = cuda_current(&result);
    (void)flags;
    if (!context || !out || !bytes) {
        return context ? CUDA_ERROR_INVALID_VALUE : result;
    }
    void *made = malloc(bytes);
    result = made ? note(made, bytes, 0, context) : CUDA_ERROR_OUT_OF_MEMORY;
    if (result != CUDA_SUCCESS) {
        free(made);
        return result;
    }
    *out = made;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuMemAllocHost_v2(void **out, size_t bytes)
{
    return cuMemHostAlloc(out, bytes, 0);
}

CUDA_API CUresult cuMemAllocHost(void **out, unsigned bytes)
{
    return cuMemHostAlloc(out, bytes, 0);
}

CUDA_API CUresult cuMemFreeHost(void *address)
{
    return cuda_session() ? forget(address, 0) : CUDA_ERROR_NOT_INITIALIZED;
}

CUDA_API CUresult cuMemHostRegister_v2(void *address, size_t bytes, unsigned flags)
{
    CUresult result = CUDA_SUCCESS;
    struct CUctx_st *context = cuda_current(&result);
    (void)flags;
    if (!context || !address || !bytes) {
        return context ? CUDA_ERROR_INVALID_VALUE : result;
    }
    return note(address, bytes, 1, context);
}

CUDA_API CUresult cuMemHostRegister(void *address, size_t bytes, unsigned flags)
{
    return cuMemHostRegister_v2(address, bytes, flags);
}

CUDA_API CUresult cuMemHostUnregister(void *address)
{
    return cuda_session() ? forget(address, 1) : CUDA_ERROR_NOT_INITIALIZED;
}
