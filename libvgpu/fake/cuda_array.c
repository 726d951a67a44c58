/* cuda_array.c - arrays and mipmapped arrays: only their size is simulated. */
#include <pthread.h>
#include <stdlib.h>

#include "cuda.h"

struct CUarray_st {
    struct CUctx_st *context; /* NULL: destroyed with its context */
    uint64_t charged;
    struct CUarray_st *next;
};

static struct CUarray_st *arrays;
static pthread_mutex_t array_lock = PTHREAD_MUTEX_INITIALIZER;

static unsigned element_of(int format, unsigned channels)
{
    static const unsigned char bytes[] = {[CU_AD_FORMAT_UNSIGNED_INT8] = 1,  [CU_AD_FORMAT_UNSIGNED_INT16] = 2,
                                          [CU_AD_FORMAT_UNSIGNED_INT32] = 4, [CU_AD_FORMAT_SIGNED_INT8] = 1,
                                          [CU_AD_FORMAT_SIGNED_INT16] = 2,   [CU_AD_FORMAT_SIGNED_INT32] = 4,
                                          [CU_AD_FORMAT_HALF] = 2,           [CU_AD_FORMAT_FLOAT] = 4};
    int known = format > 0 && format < (int)sizeof bytes && (channels == 1 || channels == 2 || channels == 4);
    return known ? bytes[format] * channels : 0;
}

static CUresult make(struct CUarray_st **out, const CUDA_ARRAY3D_DESCRIPTOR *what, unsigned levels)
{
    CUresult result = CUDA_SUCCESS;
    struct CUctx_st *context = cuda_current(&result);
    if (!context) {
        return result;
    }
    unsigned element = out && what ? element_of(what->format, what->channels) : 0;
    if (!element || !what->width || !levels || what->width > 1 << 20 || what->height > 1 << 20 || what->depth > 1 << 20) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    uint64_t bytes = 0, w = what->width, h = what->height ? what->height : 1, d = what->depth ? what->depth : 1;
    for (unsigned level = 0; level < levels; level++) {
        bytes += w * h * d * element;
        if (w == 1 && h == 1 && (d == 1 || what->flags & CUDA_ARRAY3D_LAYERED)) {
            break;
        }
        w = w > 1 ? w / 2 : 1;
        h = h > 1 ? h / 2 : 1;
        d = what->flags & CUDA_ARRAY3D_LAYERED ? d : d > 1 ? d / 2 : 1;
    }
    const struct machine *m = cuda_session()->machine;
    bytes = what->flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING) ? 0 : bytes;
    bytes = (bytes + m->granularity - 1) & ~(m->granularity - 1);
    struct CUarray_st *array = calloc(1, sizeof *array);
    if (!array) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    result = cuda_result(state_take(m, context->card, bytes, 0));
    if (result != CUDA_SUCCESS) {
        free(array);
        return result;
    }
    *array = (struct CUarray_st){.context = context, .charged = bytes};
    pthread_mutex_lock(&array_lock);
    array->next = arrays;
    arrays = array;
    pthread_mutex_unlock(&array_lock);
    *out = array;
    return CUDA_SUCCESS;
}

/* Destroy `only`, or all arrays of `context` if it is NULL. Return how many. */
static int destroy(struct CUarray_st *only, struct CUctx_st *context)
{
    int count = 0;
    pthread_mutex_lock(&array_lock);
    for (struct CUarray_st **at = &arrays; *at;) {
        struct CUarray_st *array = *at;
        if (only ? array != only : array->context != context) {
            at = &array->next;
            continue;
        }
        *at = array->next;
        state_give(cuda_session()->machine, array->context->card, array->charged, 0);
        free(array);
        count++;
    }
    pthread_mutex_unlock(&array_lock);
    return count;
}

void cuda_array_drop_context(struct CUctx_st *context)
{
    destroy(NULL, context);
}

CUDA_API CUresult cuArrayCreate_v2(CUarray *out, const CUDA_ARRAY_DESCRIPTOR *what)
{
    if (!what) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUDA_ARRAY3D_DESCRIPTOR flat = {
        .width = what->width, .height = what->height, .format = what->format, .channels = what->channels};
    return make(out, &flat, 1);
}

CUDA_API CUresult cuArray3DCreate_v2(CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR *what)
{
    return make(out, what, 1);
}

CUDA_API CUresult cuMipmappedArrayCreate(CUmipmappedArray *out, const CUDA_ARRAY3D_DESCRIPTOR *what, unsigned levels)
{
    return make((CUarray *)(void *)out, what, levels);
}

CUDA_API CUresult cuArrayDestroy(CUarray array)
{
    if (!cuda_session()) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    return array && destroy(array, NULL) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUDA_API CUresult cuMipmappedArrayDestroy(CUmipmappedArray array)
{
    return cuArrayDestroy((CUarray)(void *)array);
}

/* These functions are not simulated, but they check their arguments first, as a driver does: 32-bit descriptions, memory
 * mapped into sparse arrays, logical endpoints. */
#define ELSEWHERE(symbol)                                                                           \
    CUDA_API CUresult symbol(const void *what, size_t count, const void *more)                      \
    {                                                                                               \
        (void)more;                                                                                 \
        return cuda_session() ? what && count ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE \
                              : CUDA_ERROR_NOT_INITIALIZED;                                         \
    }

ELSEWHERE(cuArrayCreate)
ELSEWHERE(cuArray3DCreate)
ELSEWHERE(cuMemMapArrayAsync)
ELSEWHERE(cuMemMapArrayAsync_ptsz)
ELSEWHERE(cuLogicalEndpointBindMem)
ELSEWHERE(cuLogicalEndpointBindAddr)
