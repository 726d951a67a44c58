#include "cuda_handle.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { KEPT = 4096 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct cuda_handle *living[CUDA_HANDLE_KINDS];
static struct cuda_handle *ended[KEPT];
static unsigned endings;

void *cuda_handle_make(enum cuda_handle_kind kind, size_t bytes, struct CUctx_st *context)
{
    struct cuda_handle *handle = calloc(1, bytes);
    if (!handle) {
        return NULL;
    }
    pthread_mutex_lock(&lock);
    handle->context = context;
    handle->next = living[kind];
    if (handle->next) {
        handle->next->before = handle;
    }
    living[kind] = handle;
    __atomic_store_n(&handle->kind, (uint32_t)kind, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&lock);
    return handle;
}

static void count(struct state *s, void *argument)
{
    (void)argument;
    s->dead_uses++;
}

int cuda_handle_lives(const void *handle, enum cuda_handle_kind kind)
{
    const struct cuda_handle *h = handle;
    if (__atomic_load_n(&h->kind, __ATOMIC_ACQUIRE) == (uint32_t)kind) {
        return 1;
    }
    state_change(cuda_session()->machine, count, NULL);
    return 0;
}

/* End a handle. Its memory is freed after KEPT other handles have ended. The caller holds the lock. */
static void end(struct cuda_handle *handle)
{
    uint32_t kind = handle->kind;
    if (handle->before) {
        handle->before->next = handle->next;
    } else {
        living[kind] = handle->next;
    }
    if (handle->next) {
        handle->next->before = handle->before;
    }
    __atomic_store_n(&handle->kind, 0, __ATOMIC_RELEASE);
    struct cuda_handle **place = &ended[endings++ % KEPT];
    free(*place);
    *place = handle;
}

void cuda_handle_end(void *handle)
{
    pthread_mutex_lock(&lock);
    end(handle);
    pthread_mutex_unlock(&lock);
}

void cuda_handles_end(const struct CUctx_st *context, enum cuda_handle_kind kind, void (*release)(void *))
{
    pthread_mutex_lock(&lock);
    for (struct cuda_handle *handle = living[kind], *next; handle; handle = next) {
        next = handle->next;
        if (handle->context == context) {
            if (release) {
                release(handle);
            }
            end(handle);
        }
    }
    pthread_mutex_unlock(&lock);
}
