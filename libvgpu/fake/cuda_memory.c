#include "cuda_memory.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

/* The array is sorted by address: copies look up any address inside an allocation, and tests are small enough for insertion in
 * O(n). */
struct allocation {
    uintptr_t start;
    size_t bytes;   /* as requested */
    size_t rounded; /* up to the machine's granularity */
    size_t charged; /* charged to the card: all of it, or nothing for lazy managed memory */
    struct CUmemPoolHandle_st *pool; /* NULL: straight from the card */
    struct CUctx_st *context; /* NULL: shown for another process */
    int share;                /* the machine's share plus one; 0: only our own */
};

static struct allocation *list;
static size_t count, room;
static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;

/* Return the index of the first allocation that starts above `address`. */
static size_t above(uintptr_t address)
{
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (list[middle].start <= address) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

static int insert(struct allocation a)
{
    if (count == room) {
        size_t more = room ? room * 2 : 64;
        struct allocation *bigger = realloc(list, more * sizeof *list);
        if (!bigger) {
            return -1;
        }
        list = bigger;
        room = more;
    }
    size_t at = above(a.start);
    for (size_t i = count; i > at; i--) {
        list[i] = list[i - 1];
    }
    list[at] = a;
    count++;
    return 0;
}

static void erase(size_t at)
{
    for (size_t i = at; i + 1 < count; i++) {
        list[i] = list[i + 1];
    }
    count--;
}

static size_t mapping_of(size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return (bytes + page - 1) & ~(page - 1);
}

static void unmap_and_give(const struct machine *m, struct allocation a)
{
    if (a.start) {
        munmap((void *)a.start, mapping_of(a.rounded));
    }
    if (a.share) {
        state_share_close(m, a.share - 1);
        if (a.pool) {
            cuda_pool_lose(a.pool, a.charged);
        }
    } else if (a.pool) {
        cuda_pool_give(a.pool, a.charged);
    } else {
        state_give(m, a.context->card, a.charged, 0);
    }
}

static size_t rounded_up(const struct machine *m, size_t bytes)
{
    return (bytes + m->granularity - 1) & ~(size_t)(m->granularity - 1);
}

/* Find addresses for memory that has been charged. */
static CUresult place(struct CUctx_st *context, struct CUmemPoolHandle_st *pool, size_t bytes, size_t charged, CUdeviceptr *out)
{
    const struct machine *m = cuda_session()->machine;
    size_t rounded = rounded_up(m, bytes);
    void *start = mmap(NULL, mapping_of(rounded), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    struct allocation a = {
        .start = (uintptr_t)start, .bytes = bytes, .rounded = rounded, .charged = charged, .pool = pool, .context = context};
    if (start == MAP_FAILED) {
        a.start = 0;
        unmap_and_give(m, a);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    pthread_mutex_lock(&list_lock);
    int failed = insert(a);
    pthread_mutex_unlock(&list_lock);
    if (failed) {
        unmap_and_give(m, a);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *out = (CUdeviceptr)a.start;
    return CUDA_SUCCESS;
}

CUresult cuda_memory_take(struct CUctx_st *context, size_t bytes, CUdeviceptr *out)
{
    return cuda_memory_take_pooled(context, NULL, bytes, out);
}

CUresult cuda_memory_take_pooled(struct CUctx_st *context, struct CUmemPoolHandle_st *pool, size_t bytes, CUdeviceptr *out)
{
    const struct machine *m = cuda_session()->machine;
    if (bytes == 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (bytes > m->cards[context->card].memory_bytes) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    size_t charged = rounded_up(m, bytes);
    CUresult result = pool ? cuda_pool_take(pool, charged) : cuda_result(state_take(m, context->card, charged, 0));
    return result == CUDA_SUCCESS ? place(context, pool, bytes, charged, out) : result;
}

CUresult cuda_memory_take_lazy(struct CUctx_st *context, size_t bytes, CUdeviceptr *out)
{
    return bytes ? place(context, NULL, bytes, 0, out) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuda_memory_share(CUdeviceptr address, int pooled, int *number)
{
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&list_lock);
    size_t at = above((uintptr_t)address);
    struct allocation *a = at > 0 ? &list[at - 1] : NULL;
    if (a && a->context && !a->pool == !pooled && (uintptr_t)address - a->start < a->bytes) {
        if (!a->share) {
            a->share = 1 + state_share_make(cuda_session()->machine, a->context->card, a->charged, 0);
        }
        *number = a->share - 1;
        result = a->share ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    }
    pthread_mutex_unlock(&list_lock);
    return result;
}

CUresult cuda_memory_open_share(struct CUctx_st *context, int number, size_t bytes, CUdeviceptr *out)
{
    CUresult result = place(context, NULL, bytes, 0, out);
    if (result == CUDA_SUCCESS) {
        pthread_mutex_lock(&list_lock);
        list[above((uintptr_t)*out) - 1].share = number + 1;
        pthread_mutex_unlock(&list_lock);
    }
    return result;
}

CUresult cuda_memory_give(CUdeviceptr address)
{
    const struct cuda_session *s = cuda_session();
    if (!s) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    if (!address) {
        return CUDA_SUCCESS; /* freeing nothing is allowed */
    }
    struct allocation a = {0};
    pthread_mutex_lock(&list_lock);
    size_t at = above((uintptr_t)address);
    int broken = 0;
    if (at > 0 && list[at - 1].start == (uintptr_t)address && list[at - 1].context) {
        broken = list[at - 1].context->broken && list[at - 1].context->alive;
        a = list[at - 1];
        if (!broken) {
            erase(at - 1);
        }
    }
    pthread_mutex_unlock(&list_lock);
    if (broken) {
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    }
    if (!a.start) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    unmap_and_give(s->machine, a);
    return CUDA_SUCCESS;
}

int cuda_memory_show(uintptr_t start, size_t bytes)
{
    pthread_mutex_lock(&list_lock);
    int failed = insert((struct allocation){.start = start, .bytes = bytes});
    pthread_mutex_unlock(&list_lock);
    return failed;
}

void cuda_memory_hide(uintptr_t start)
{
    pthread_mutex_lock(&list_lock);
    size_t at = above(start);
    if (at > 0 && list[at - 1].start == start && !list[at - 1].context) {
        erase(at - 1);
    }
    pthread_mutex_unlock(&list_lock);
}

int cuda_memory_find(CUdeviceptr address, size_t bytes, CUdeviceptr *base, size_t *size)
{
    int found = 0;
    pthread_mutex_lock(&list_lock);
    size_t at = above((uintptr_t)address);
    if (at > 0) {
        const struct allocation *a = &list[at - 1];
        uintptr_t offset = (uintptr_t)address - a->start;
        found = offset < a->bytes && bytes <= a->bytes - offset;
        if (found && base) {
            *base = (CUdeviceptr)a->start;
        }
        if (found && size) {
            *size = a->bytes;
        }
    }
    pthread_mutex_unlock(&list_lock);
    return found;
}

void cuda_memory_drop_context(struct CUctx_st *context)
{
    const struct machine *m = cuda_session()->machine;
    for (;;) {
        struct allocation a = {0};
        pthread_mutex_lock(&list_lock);
        for (size_t i = count; i-- > 0;) {
            if (list[i].context == context) {
                a = list[i];
                erase(i);
                break;
            }
        }
        pthread_mutex_unlock(&list_lock);
        if (!a.start) {
            return;
        }
        unmap_and_give(m, a);
    }
}
