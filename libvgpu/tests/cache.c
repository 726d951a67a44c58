/* cache.c - a library like those of MPI: it is linked before the driver and defines cuMemFree, to learn what is freed. */
#include <dlfcn.h>
#include <stdlib.h>

#include "vgpu_cuda.h"

CUresult cuMemFree_v2(CUdeviceptr address);

unsigned cache_seen;

CUresult cuMemFree_v2(CUdeviceptr address)
{
    void *where = getenv("CACHE_BY_HANDLE") ? dlopen("libcuda.so.1", RTLD_NOW) : RTLD_NEXT;
    CUresult (*volatile real)(CUdeviceptr) = (CUresult (*)(CUdeviceptr))dlsym(where, "cuMemFree_v2");
    cache_seen++;
    return real(address);
}
