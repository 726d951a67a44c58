#include "buffer.h"

#include <string.h>

#define PHYSICAL_GRAIN (UINT64_C(2) << 20)

static struct {
    enum buffer_kind kind;
    int device;
    union {
        CUdeviceptr address;
        CUmemGenericAllocationHandle physical;
        CUarray array;
    } what;
} held[65536];
static size_t held_count;

int buffer_kind_named(const char *word, enum buffer_kind *out)
{
    static const char *const names[] = {[BUFFER_MANAGED] = "--managed",   [BUFFER_ASYNC] = "--async",
                                        [BUFFER_PITCH] = "--pitch",       [BUFFER_POOL] = "--pool",
                                        [BUFFER_PHYSICAL] = "--physical", [BUFFER_ARRAY] = "--array"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (names[i] && !strcmp(word, names[i])) {
            *out = (enum buffer_kind)i;
            return 1;
        }
    }
    return 0;
}

/* Allocate from a new pool that is used for this allocation only. */
static CUresult take_pooled(int device, uint64_t bytes, CUdeviceptr *out)
{
    CUmemPoolProps props = {.alloc_type = 1, .location_type = CU_MEM_LOCATION_TYPE_DEVICE, .location_id = device};
    CUmemoryPool pool;
    CUresult result = cu.cuMemPoolCreate(&pool, &props);
    return result == CUDA_SUCCESS ? cu.cuMemAllocFromPoolAsync(out, bytes, pool, NULL) : result;
}

static CUresult take_physical(int device, uint64_t bytes, CUmemGenericAllocationHandle *out)
{
    CUmemAllocationProp prop = {.type = 1, .location_type = CU_MEM_LOCATION_TYPE_DEVICE, .location_id = device};
    return cu.cuMemCreate(out, (bytes + PHYSICAL_GRAIN - 1) / PHYSICAL_GRAIN * PHYSICAL_GRAIN, &prop, 0);
}

static CUresult take_array(uint64_t bytes, CUarray *out)
{
    enum { SIDE = 1024, ELEMENT = 16 };
    CUDA_ARRAY3D_DESCRIPTOR what = {.width = SIDE, .height = SIDE, .format = CU_AD_FORMAT_FLOAT, .channels = 4};
    what.depth = (bytes + SIDE * SIDE * ELEMENT - 1) / (SIDE * SIDE * ELEMENT);
    return cu.cuArray3DCreate(out, &what);
}

CUresult buffer_take(enum buffer_kind kind, int device, uint64_t bytes)
{
    CUdeviceptr *address = &held[held_count].what.address;
    size_t pitch;
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    if (held_count == sizeof held / sizeof held[0]) {
        return CUDA_ERROR_UNKNOWN;
    }
    switch (kind) {
    case BUFFER_LINEAR:
        result = cu.cuMemAlloc(address, bytes);
        break;
    case BUFFER_MANAGED:
        result = cu.cuMemAllocManaged(address, bytes, CU_MEM_ATTACH_GLOBAL);
        break;
    case BUFFER_ASYNC:
        result = cu.cuMemAllocAsync(address, bytes, NULL);
        break;
    case BUFFER_PITCH:
        result = cu.cuMemAllocPitch(address, &pitch, BUFFER_GRAIN, (bytes + BUFFER_GRAIN - 1) / BUFFER_GRAIN, 4);
        break;
    case BUFFER_POOL:
        result = take_pooled(device, bytes, address);
        break;
    case BUFFER_PHYSICAL:
        result = take_physical(device, bytes, &held[held_count].what.physical);
        break;
    case BUFFER_ARRAY:
        result = take_array(bytes, &held[held_count].what.array);
        break;
    }
    if (result == CUDA_SUCCESS) {
        held[held_count].kind = kind;
        held[held_count++].device = device;
    }
    return result;
}

static CUresult give_back(size_t at)
{
    if (driver_use(held[at].device)) {
        return CUDA_ERROR_UNKNOWN;
    }
    return held[at].kind == BUFFER_PHYSICAL ? cu.cuMemRelease(held[at].what.physical)
           : held[at].kind == BUFFER_ARRAY  ? cu.cuArrayDestroy(held[at].what.array)
                                            : cu.cuMemFree(held[at].what.address);
}

size_t buffer_count(void)
{
    return held_count;
}

CUresult buffer_release_all(void)
{
    CUresult worst = CUDA_SUCCESS;
    while (held_count) {
        CUresult result = give_back(held_count - 1);
        worst = result != CUDA_SUCCESS ? result : worst;
        held_count--;
    }
    return worst;
}
