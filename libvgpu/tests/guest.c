/* guest.c - a library that uses the driver in the same ways as the libraries of real programs. Tests load it in unusual ways.
 *
 * Each function allocates pieces of `piece` bytes until it is refused and returns how many it got, or -1 if there is no
 * driver.
 */
#include <dlfcn.h>

#include "vgpu_cuda.h"

CUresult cuInit(unsigned flags);
CUresult cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice device);
CUresult cuCtxSetCurrent(CUcontext context);
CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t bytes);

int guest_linked(size_t piece, int most);
int guest_looked_up(size_t piece, int most);
int guest_replays_cudart(size_t piece, int most);
int guest_asks_libc(size_t piece, int most);

static int fill(CUresult (*allocate)(CUdeviceptr *, size_t), size_t piece, int most)
{
    CUdeviceptr out;
    int got = 0;
    while (got < most && allocate(&out, piece) == CUDA_SUCCESS) {
        got++;
    }
    return got;
}

int guest_linked(size_t piece, int most)
{
    CUcontext context;
    if (cuInit(0) != CUDA_SUCCESS || cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS ||
        cuCtxSetCurrent(context) != CUDA_SUCCESS) {
        return -1;
    }
    return fill(cuMemAlloc_v2, piece, most);
}

typedef CUresult (*init)(unsigned);
typedef CUresult (*retain)(CUcontext *, CUdevice);
typedef CUresult (*set_current)(CUcontext);
typedef CUresult (*allocate)(CUdeviceptr *, size_t);
typedef CUresult (*look_up)(const char *, void **, int, uint64_t, int *);

int guest_looked_up(size_t piece, int most)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    CUcontext context;
    if (!driver || ((init)dlsym(driver, "cuInit"))(0) != CUDA_SUCCESS ||
        ((retain)dlsym(driver, "cuDevicePrimaryCtxRetain"))(&context, 0) != CUDA_SUCCESS ||
        ((set_current)dlsym(driver, "cuCtxSetCurrent"))(context) != CUDA_SUCCESS) {
        return -1;
    }
    return fill((allocate)dlsym(driver, "cuMemAlloc_v2"), piece, most);
}

/* Use libc's own dlsym, like a program that does not trust preloaded libraries. */
int guest_asks_libc(size_t piece, int most)
{
    void *libc = dlopen("libc.so.6", RTLD_NOW), *driver = dlopen("libcuda.so.1", RTLD_NOW);
    void *(*find)(void *, const char *) = libc ? (void *(*)(void *, const char *))dlsym(libc, "dlsym") : NULL;
    CUcontext context;
    if (!driver || !find || ((init)find(driver, "cuInit"))(0) != CUDA_SUCCESS ||
        ((retain)find(driver, "cuDevicePrimaryCtxRetain"))(&context, 0) != CUDA_SUCCESS ||
        ((set_current)find(driver, "cuCtxSetCurrent"))(context) != CUDA_SUCCESS) {
        return -1;
    }
    return fill((allocate)find(driver, "cuMemAlloc_v2"), piece, most);
}

static void *ask(look_up find, const char *name, int version, uint64_t flags)
{
    void *found = NULL;
    int status = 0;
    return find(name, &found, version, flags, &status) == CUDA_SUCCESS ? found : NULL;
}

/* Look functions up like the CUDA runtime, shared or static: one dlsym, then cuGetProcAddress for everything, first with an
 * empty name, with old versions and for every kind of stream. */
int guest_replays_cudart(size_t piece, int most)
{
    static const int versions[] = {3020, 4000, 6000, 10000, 11020, 11040, 12000, 12080, 13000};
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    look_up find = driver ? (look_up)dlsym(driver, "cuGetProcAddress_v2") : NULL;
    int got = 0;
    CUcontext context;
    if (!find) {
        return -1;
    }
    ask(find, "", 12000, 0);
    if (((init)ask(find, "cuInit", 2000, 0))(0) != CUDA_SUCCESS ||
        ((retain)ask(find, "cuDevicePrimaryCtxRetain", 7000, 0))(&context, 0) != CUDA_SUCCESS ||
        ((set_current)ask(find, "cuCtxSetCurrent", 4000, 0))(context) != CUDA_SUCCESS) {
        return -1;
    }
    for (size_t i = 0; i < sizeof versions / sizeof versions[0]; i++) {
        for (uint64_t flags = 0; flags <= CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM; flags++) {
            allocate one = (allocate)ask(find, "cuMemAlloc", versions[i], flags);
            look_up again = (look_up)ask(find, "cuGetProcAddress", 12000, flags);
            allocate other = (allocate)ask(again, "cuMemAlloc", versions[i], flags);
            got += fill(one, piece, most - got) + fill(other, piece, most - got);
        }
    }
    return got;
}
