/* driver.h - the CUDA driver and NVML as a program finds them that is linked to neither.
 *
 * The driver the way libcudart does: dlopen libcuda.so.1, dlsym cuGetProcAddress_v2, everything else through that. NVML the
 * way monitoring tools do.
 */
#ifndef TOOLS_DRIVER_H
#define TOOLS_DRIVER_H

#include "vgpu_cuda.h"
#include "vgpu_nvml.h"

#define DRIVER_FUNCTIONS(X)                                                                                          \
    X(cuInit, 2000, (unsigned))                                                                                      \
    X(cuDriverGetVersion, 2020, (int *))                                                                             \
    X(cuDeviceGetCount, 2000, (int *))                                                                               \
    X(cuDeviceGet, 2000, (CUdevice *, int))                                                                          \
    X(cuDeviceGetName, 2000, (char *, int, CUdevice))                                                                \
    X(cuDeviceGetUuid, 11040, (CUuuid *, CUdevice))                                                                  \
    X(cuDeviceGetAttribute, 2000, (int *, int, CUdevice))                                                            \
    X(cuDeviceTotalMem, 3020, (size_t *, CUdevice))                                                                  \
    X(cuDevicePrimaryCtxRetain, 7000, (CUcontext *, CUdevice))                                                       \
    X(cuDevicePrimaryCtxReset, 11000, (CUdevice))                                                                    \
    X(cuDevicePrimaryCtxRelease, 11000, (CUdevice))                                                                  \
    X(cuCtxSetCurrent, 4000, (CUcontext))                                                                            \
    X(cuCtxSynchronize, 2000, (void))                                                                                \
    X(cuMemGetInfo, 3020, (size_t *, size_t *))                                                                      \
    X(cuMemAlloc, 3020, (CUdeviceptr *, size_t))                                                                     \
    X(cuMemAllocManaged, 6000, (CUdeviceptr *, size_t, unsigned))                                                    \
    X(cuMemAllocPitch, 3020, (CUdeviceptr *, size_t *, size_t, size_t, unsigned))                                    \
    X(cuMemAllocAsync, 11020, (CUdeviceptr *, size_t, CUstream))                                                     \
    X(cuMemAllocFromPoolAsync, 11020, (CUdeviceptr *, size_t, CUmemoryPool, CUstream))                               \
    X(cuMemPoolCreate, 11020, (CUmemoryPool *, const CUmemPoolProps *))                                              \
    X(cuMemFree, 3020, (CUdeviceptr))                                                                                \
    X(cuMemCreate, 10020, (CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, unsigned long long)) \
    X(cuMemRelease, 10020, (CUmemGenericAllocationHandle))                                                           \
    X(cuArray3DCreate, 3020, (CUarray *, const CUDA_ARRAY3D_DESCRIPTOR *))                                           \
    X(cuArrayDestroy, 2000, (CUarray))                                                                               \
    X(cuStreamCreate, 2000, (CUstream *, unsigned))                                                                  \
    X(cuStreamBeginCapture, 10010, (CUstream, int))                                                                  \
    X(cuStreamEndCapture, 10000, (CUstream, CUgraph *))                                                              \
    X(cuEventCreate, 2000, (CUevent *, unsigned))                                                                    \
    X(cuEventRecord, 2000, (CUevent, CUstream))                                                                      \
    X(cuEventQuery, 2000, (CUevent))                                                                                 \
    X(cuEventSynchronize, 2000, (CUevent))                                                                           \
    X(cuEventElapsedTime, 2000, (float *, CUevent, CUevent))                                                         \
    X(cuGraphInstantiateWithFlags, 11040, (CUgraphExec *, CUgraph, unsigned long long))                              \
    X(cuGraphLaunch, 10000, (CUgraphExec, CUstream))                                                                 \
    X(cuModuleLoadData, 2000, (CUmodule *, const void *))                                                            \
    X(cuModuleGetFunction, 2000, (CUfunction *, CUmodule, const char *))                                             \
    X(cuLaunchKernel, 4000,                                                                                          \
      (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **))

struct driver {
#define MEMBER(name, version, parameters) CUresult(*name) parameters;
    DRIVER_FUNCTIONS(MEMBER)
#undef MEMBER
};

struct driver_nvml {
    nvmlReturn_t (*init)(void);
    nvmlReturn_t (*by_uuid)(const char *, nvmlDevice_t *);
    nvmlReturn_t (*memory)(nvmlDevice_t, nvmlMemory_t *);
    nvmlReturn_t (*utilisation)(nvmlDevice_t, nvmlUtilization_t *);
    nvmlReturn_t (*by_process)(nvmlDevice_t, nvmlProcessUtilizationSample_t *, unsigned *, unsigned long long);
};

extern struct driver cu;
extern struct driver_nvml nvml;

/* Print on standard output what failed, as one JSON object. 1. */
int driver_failed(const char *what, CUresult result);

/* Find it and start it, once. What is missing is printed, and the result is 1. */
int driver_load(void);
int driver_load_nvml(void);

/* Make the device's primary context the current one. */
int driver_use(int device);

/* NVML's handle and name (64 bytes) of a CUDA device. */
nvmlReturn_t driver_nvml_device(int device, char *uuid, nvmlDevice_t *out);

#endif
