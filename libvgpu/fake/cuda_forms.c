/* cuda_forms.c - older and newer forms of functions that are simulated elsewhere. */
#include "cuda_memory.h"
#include "cuda_work.h"

CUresult cuModuleLoadData(CUmodule *out, const void *image);
CUresult cuCtxSynchronize(void);
CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *out, CUdevice device);
CUresult cuDeviceGetMemPool(CUmemoryPool *out, CUdevice device);

/* ------------------------------------------------------------------ code, whose content is ignored */

CUDA_API CUresult cuModuleLoad(CUmodule *out, const char *name)
{
    return name ? cuModuleLoadData(out, "a file") : CUDA_ERROR_INVALID_VALUE;
}

CUDA_API CUresult cuModuleLoadDataEx(CUmodule *out, const void *image, unsigned count, int *options, void **values)
{
    (void)count, (void)options, (void)values;
    return cuModuleLoadData(out, image);
}

CUDA_API CUresult cuModuleLoadFatBinary(CUmodule *out, const void *binary)
{
    return binary ? cuModuleLoadData(out, "a binary") : CUDA_ERROR_INVALID_VALUE;
}

CUDA_API CUresult cuLibraryLoadData(void **out, const void *code, int *jit, void **jit_values, unsigned jits, int *options,
                                    void **values, unsigned count)
{
    (void)jit, (void)jit_values, (void)jits, (void)options, (void)values, (void)count;
    return cuModuleLoadData((CUmodule *)out, code);
}

CUDA_API CUresult cuLibraryLoadFromFile(void **out, const char *name, int *jit, void **jit_values, unsigned jits, int *options,
                                        void **values, unsigned count)
{
    return name ? cuLibraryLoadData(out, "a file", jit, jit_values, jits, options, values, count) : CUDA_ERROR_INVALID_VALUE;
}

CUDA_API CUresult cuGreenCtxCreate(void **out, void *resources, CUdevice device, unsigned flags)
{
    (void)resources, (void)flags;
    CUresult result = cuda_check_device(device);
    return result == CUDA_SUCCESS ? cuModuleLoadData((CUmodule *)out, "a green context") : result;
}

CUDA_API CUresult cuCtxSetLimit(int which, size_t value)
{
    CUresult result = CUDA_SUCCESS;
    (void)value;
    return !cuda_current(&result) ? result : which < 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

/* ------------------------------------------------------------------ CUDA 13 */

CUDA_API CUresult cuCtxSynchronize_v2(CUcontext context)
{
    CUresult result = CUDA_SUCCESS;
    if (context && context != cuda_current(&result)) {
        return CUDA_ERROR_NOT_SUPPORTED; /* only the current one is modelled */
    }
    return cuCtxSynchronize();
}

CUDA_API CUresult cuMemGetDefaultMemPool(CUmemoryPool *out, CUmemLocation *location, int type)
{
    enum { PINNED = 1 };
    if (!location || type != PINNED || location->type != CU_MEM_LOCATION_TYPE_DEVICE) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return cuDeviceGetDefaultMemPool(out, location->id);
}

CUDA_API CUresult cuMemGetMemPool(CUmemoryPool *out, CUmemLocation *location, int type)
{
    CUresult result = cuMemGetDefaultMemPool(out, location, type);
    return result == CUDA_SUCCESS ? cuDeviceGetMemPool(out, location->id) : result;
}
