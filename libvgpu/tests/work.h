/* work.h - kernels for tests: the device, a stream, and functions whose blocks take as long as their names say. */
#ifndef VGPU_WORK_H
#define VGPU_WORK_H

#include <stdint.h>
#include <sys/types.h>

#include "engine.h"
#include "vgpu_cuda.h"
#include "vgpu_nvml.h"

CUresult cuInit(unsigned flags);
CUresult cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice device);
CUresult cuCtxSetCurrent(CUcontext context);
CUresult cuCtxSynchronize(void);
CUresult cuStreamCreate(CUstream *out, unsigned flags);
CUresult cuStreamDestroy_v2(CUstream stream);
CUresult cuStreamSynchronize(CUstream stream);
CUresult cuStreamQuery(CUstream stream);
CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags);
CUresult cuStreamBeginCapture_v2(CUstream stream, int mode);
CUresult cuStreamEndCapture(CUstream stream, CUgraph *out);
CUresult cuStreamIsCapturing(CUstream stream, int *out);
CUresult cuThreadExchangeStreamCaptureMode(int *mode);
CUresult cuEventCreate(CUevent *out, unsigned flags);
CUresult cuEventDestroy_v2(CUevent event);
CUresult cuEventRecord(CUevent event, CUstream stream);
CUresult cuEventQuery(CUevent event);
CUresult cuEventSynchronize(CUevent event);
CUresult cuEventElapsedTime(float *out, CUevent start, CUevent end);
CUresult cuModuleLoadData(CUmodule *out, const void *image);
CUresult cuModuleGetFunction(CUfunction *out, CUmodule module, const char *name);
CUresult cuFuncSetBlockShape(CUfunction function, int x, int y, int z);
CUresult cuLaunch(CUfunction function);
CUresult cuLaunchGrid(CUfunction function, int width, int height);
CUresult cuLaunchGridAsync(CUfunction function, int width, int height, CUstream stream);
CUresult cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                        unsigned shared, CUstream stream, void **parameters, void **extra);
CUresult cuLaunchKernel_ptsz(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                             unsigned shared, CUstream stream, void **parameters, void **extra);
CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                                   unsigned bz, unsigned shared, CUstream stream, void **parameters);
CUresult cuLaunchCooperativeKernel_ptsz(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                                        unsigned bz, unsigned shared, CUstream stream, void **parameters);
CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra);
CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra);
CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *list, unsigned count, unsigned flags);
CUresult cuGraphCreate(CUgraph *out, unsigned flags);
CUresult cuGraphDestroy(CUgraph graph);
CUresult cuGraphAddKernelNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, size_t count,
                              const CUDA_KERNEL_NODE_PARAMS *params);
CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count);
CUresult cuGraphInstantiateWithFlags(CUgraphExec *out, CUgraph graph, unsigned long long flags);
CUresult cuGraphExecDestroy(CUgraphExec graph_exec);
CUresult cuGraphLaunch(CUgraphExec graph_exec, CUstream stream);
CUresult cuGraphLaunch_ptsz(CUgraphExec graph_exec, CUstream stream);
nvmlReturn_t nvmlInit_v2(void);
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device);
nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *out);
nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *out, unsigned *count,
                                             unsigned long long since);

/* Use the first device. */
void work_begin(void);

/* Return the kernel with this name. */
CUfunction work_kernel(const char *name);

/* Launch this many blocks of 256 threads. */
CUresult work_launch(CUfunction function, unsigned blocks, CUstream stream);

/* Start this program again as a worker, with `argv[1]` set to the word. It ends with this process at the latest. */
pid_t work_start_worker(char *word);

/* Return CLOCK_MONOTONIC in ns. */
uint64_t work_now_ns(void);

/* Return the first device's engine, locked and brought up to the present. */
struct engine *work_engine(int *mine);
void work_engine_leave(void);

/* Return the GPU time that this process has used on the first device, according to the oracle. */
uint64_t work_busy_ns(void);

#endif
