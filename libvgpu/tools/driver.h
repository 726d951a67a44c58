/* driver.h - finds the CUDA driver and NVML for a program that is not linked to them.
 *
 * The driver is found in the way of libcudart: dlopen libcuda.so.1, then look everything up by cuGetProcAddress (`_v2` from
 * CUDA 12 on, else the form of CUDA 11.3, else the exported name). NVML is found in the way of monitoring tools.
 *
 * A function that the driver lacks returns CUDA_ERROR_NOT_FOUND or NVML_ERROR_FUNCTION_NOT_FOUND, so an old driver fails only
 * the measurement that needs it.
 */
#ifndef TOOLS_DRIVER_H
#define TOOLS_DRIVER_H

#include <stddef.h>

#include "vgpu_cuda.h"
#include "vgpu_nvml.h"

/* Name, version and exported name of each function, and its parameters. */
#define DRIVER_FUNCTIONS(X)                                                                                          \
    X(cuInit, 2000, cuInit, (unsigned))                                                                              \
    X(cuDriverGetVersion, 2020, cuDriverGetVersion, (int *))                                                         \
    X(cuDeviceGetCount, 2000, cuDeviceGetCount, (int *))                                                             \
    X(cuDeviceGet, 2000, cuDeviceGet, (CUdevice *, int))                                                             \
    X(cuDeviceGetName, 2000, cuDeviceGetName, (char *, int, CUdevice))                                               \
    X(cuDeviceGetUuid, 11040, cuDeviceGetUuid, (CUuuid *, CUdevice))                                                 \
    X(cuDeviceGetAttribute, 2000, cuDeviceGetAttribute, (int *, int, CUdevice))                                      \
    X(cuDeviceTotalMem, 3020, cuDeviceTotalMem_v2, (size_t *, CUdevice))                                             \
    X(cuDevicePrimaryCtxRetain, 7000, cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice))                             \
    X(cuDevicePrimaryCtxReset, 11000, cuDevicePrimaryCtxReset_v2, (CUdevice))                                        \
    X(cuDevicePrimaryCtxRelease, 11000, cuDevicePrimaryCtxRelease_v2, (CUdevice))                                    \
    X(cuCtxSetCurrent, 4000, cuCtxSetCurrent, (CUcontext))                                                           \
    X(cuCtxSynchronize, 2000, cuCtxSynchronize, (void))                                                              \
    X(cuMemGetInfo, 3020, cuMemGetInfo_v2, (size_t *, size_t *))                                                     \
    X(cuMemAlloc, 3020, cuMemAlloc_v2, (CUdeviceptr *, size_t))                                                      \
    X(cuMemAllocManaged, 6000, cuMemAllocManaged, (CUdeviceptr *, size_t, unsigned))                                 \
    X(cuMemAllocPitch, 3020, cuMemAllocPitch_v2, (CUdeviceptr *, size_t *, size_t, size_t, unsigned))                \
    X(cuMemAllocAsync, 11020, cuMemAllocAsync, (CUdeviceptr *, size_t, CUstream))                                    \
    X(cuMemFreeAsync, 11020, cuMemFreeAsync, (CUdeviceptr, CUstream))                                                \
    X(cuMemAllocFromPoolAsync, 11020, cuMemAllocFromPoolAsync, (CUdeviceptr *, size_t, CUmemoryPool, CUstream))      \
    X(cuMemPoolCreate, 11020, cuMemPoolCreate, (CUmemoryPool *, const CUmemPoolProps *))                             \
    X(cuMemFree, 3020, cuMemFree_v2, (CUdeviceptr))                                                                  \
    X(cuMemCreate, 10020, cuMemCreate,                                                                               \
      (CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, unsigned long long))                     \
    X(cuMemRelease, 10020, cuMemRelease, (CUmemGenericAllocationHandle))                                             \
    X(cuArray3DCreate, 3020, cuArray3DCreate_v2, (CUarray *, const CUDA_ARRAY3D_DESCRIPTOR *))                       \
    X(cuArrayDestroy, 2000, cuArrayDestroy, (CUarray))                                                               \
    X(cuStreamCreate, 2000, cuStreamCreate, (CUstream *, unsigned))                                                  \
    X(cuStreamSynchronize, 2000, cuStreamSynchronize, (CUstream))                                                    \
    X(cuStreamBeginCapture, 10010, cuStreamBeginCapture_v2, (CUstream, int))                                         \
    X(cuStreamEndCapture, 10000, cuStreamEndCapture, (CUstream, CUgraph *))                                          \
    X(cuEventCreate, 2000, cuEventCreate, (CUevent *, unsigned))                                                     \
    X(cuEventRecord, 2000, cuEventRecord, (CUevent, CUstream))                                                       \
    X(cuEventQuery, 2000, cuEventQuery, (CUevent))                                                                   \
    X(cuEventSynchronize, 2000, cuEventSynchronize, (CUevent))                                                       \
    X(cuEventElapsedTime, 2000, cuEventElapsedTime, (float *, CUevent, CUevent))                                     \
    X(cuGraphInstantiateWithFlags, 11040, cuGraphInstantiateWithFlags, (CUgraphExec *, CUgraph, unsigned long long)) \
    X(cuGraphLaunch, 10000, cuGraphLaunch, (CUgraphExec, CUstream))                                                  \
    X(cuModuleLoadData, 2000, cuModuleLoadData, (CUmodule *, const void *))                                          \
    X(cuModuleUnload, 2000, cuModuleUnload, (CUmodule))                                                              \
    X(cuModuleGetFunction, 2000, cuModuleGetFunction, (CUfunction *, CUmodule, const char *))                        \
    X(cuLaunchKernel, 4000, cuLaunchKernel,                                                                          \
      (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **))

struct driver {
#define MEMBER(name, version, symbol, parameters) CUresult(*name) parameters;
    DRIVER_FUNCTIONS(MEMBER)
#undef MEMBER
};

#define NVML_FUNCTIONS(X)                                                                                       \
    X(init, nvmlInit_v2, (void))                                                                                \
    X(shutdown, nvmlShutdown, (void))                                                                           \
    X(driver_version, nvmlSystemGetDriverVersion, (char *, unsigned))                                           \
    X(by_uuid, nvmlDeviceGetHandleByUUID, (const char *, nvmlDevice_t *))                                       \
    X(memory, nvmlDeviceGetMemoryInfo, (nvmlDevice_t, nvmlMemory_t *))                                          \
    X(utilisation, nvmlDeviceGetUtilizationRates, (nvmlDevice_t, nvmlUtilization_t *))                          \
    X(mig_mode, nvmlDeviceGetMigMode, (nvmlDevice_t, unsigned *, unsigned *))                                   \
    X(by_process, nvmlDeviceGetProcessUtilization,                                                              \
      (nvmlDevice_t, nvmlProcessUtilizationSample_t *, unsigned *, unsigned long long))                         \
    X(by_process_info, nvmlDeviceGetProcessesUtilizationInfo, (nvmlDevice_t, nvmlProcessesUtilizationInfo_t *)) \
    X(compute_v3, nvmlDeviceGetComputeRunningProcesses_v3, (nvmlDevice_t, unsigned *, nvmlProcessInfo_t *))     \
    X(compute_v2, nvmlDeviceGetComputeRunningProcesses_v2, (nvmlDevice_t, unsigned *, nvmlProcessInfo_t *))     \
    X(compute_v1, nvmlDeviceGetComputeRunningProcesses, (nvmlDevice_t, unsigned *, nvmlProcessInfo_v1_t *))     \
    X(graphics_v3, nvmlDeviceGetGraphicsRunningProcesses_v3, (nvmlDevice_t, unsigned *, nvmlProcessInfo_t *))   \
    X(mps_v3, nvmlDeviceGetMPSComputeRunningProcesses_v3, (nvmlDevice_t, unsigned *, nvmlProcessInfo_t *))      \
    X(details, nvmlDeviceGetRunningProcessDetailList, (nvmlDevice_t, nvmlProcessDetailList_t *))                \
    X(accounting_pids, nvmlDeviceGetAccountingPids, (nvmlDevice_t, unsigned *, unsigned *))

struct driver_nvml {
#define MEMBER(name, symbol, parameters) nvmlReturn_t(*name) parameters;
    NVML_FUNCTIONS(MEMBER)
#undef MEMBER
};

enum { DRIVER_UUID_BYTES = 64 };

extern struct driver cu;
extern struct driver_nvml nvml;

/* Print the failure as one JSON object on standard output; return 1. */
int driver_failed(const char *what, CUresult result);

/* Load and initialise the driver, once. If something is missing, print that and return 1. */
int driver_load(void);
int driver_load_nvml(void);

/* Make the device's primary context the current one. */
int driver_use(int device);

/* Return NVML's handle and the UUID (DRIVER_UUID_BYTES) of a CUDA device. */
nvmlReturn_t driver_nvml_device(int device, char *uuid, nvmlDevice_t *out);

/* If the call fails, print the failure and return it from the enclosing function. */
#define TRY(call)                                 \
    do {                                          \
        CUresult result_ = (call);                \
        if (result_ != CUDA_SUCCESS) {            \
            return driver_failed(#call, result_); \
        }                                         \
    } while (0)

#endif
