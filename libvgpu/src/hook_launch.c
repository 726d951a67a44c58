/* hook_launch.c - every way to launch a kernel waits for the container's share of the device. Graphs: hook_graph.c. */
#include "devices.h"
#include "launch.h"

/* Once paid for, a launch continues to the driver by a jump, with its arguments in place. */
#define KERNEL(symbol, per_thread, parameters, arguments)                                                                     \
    static __attribute__((noinline)) CUresult held_##symbol parameters                                                        \
    {                                                                                                                         \
        const struct vgpu_cuda *cuda = vgpu_world->cuda();                                                                    \
        struct vgpu_pass pass;                                                                                                \
        vgpu_pass_kernel(&pass, cuda, function, (uint64_t)gx * gy * gz, bx * by * bz, vgpu_stream_named(stream, per_thread)); \
        return vgpu_pass_end(&pass, cuda->symbol arguments);                                                                  \
    }                                                                                                                         \
    static __attribute__((noinline)) CUresult limited_##symbol parameters                                                     \
    {                                                                                                                         \
        const struct vgpu_cuda *cuda = vgpu_world->cuda();                                                                    \
        if (!cuda || !cuda->symbol) {                                                                                         \
            return CUDA_ERROR_NOT_INITIALIZED;                                                                                \
        }                                                                                                                     \
        uint64_t blocks = (uint64_t)gx * gy * gz;                                                                             \
        if (vgpu_pass_at_once(cuda, (uint64_t)(uintptr_t)function, blocks ? blocks : 1, bx * by * bz)) {                      \
            return cuda->symbol arguments;                                                                                    \
        }                                                                                                                     \
        return held_##symbol arguments;                                                                                       \
    }                                                                                                                         \
    CUresult symbol parameters                                                                                                \
    {                                                                                                                         \
        const struct vgpu_hand *hand = &vgpu_hand;                                                                            \
        return vgpu_hand_is_free(hand) && hand->cuda->symbol ? hand->cuda->symbol arguments : limited_##symbol arguments;     \
    }

#define PARAMETERS                                                                                                      \
    CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, \
        CUstream stream, void **parameters

KERNEL(cuLaunchKernel, 0, (PARAMETERS, void **extra), (function, gx, gy, gz, bx, by, bz, shared, stream, parameters, extra))
KERNEL(cuLaunchKernel_ptsz, 1, (PARAMETERS, void **extra), (function, gx, gy, gz, bx, by, bz, shared, stream, parameters, extra))
KERNEL(cuLaunchCooperativeKernel, 0, (PARAMETERS), (function, gx, gy, gz, bx, by, bz, shared, stream, parameters))
KERNEL(cuLaunchCooperativeKernel_ptsz, 1, (PARAMETERS), (function, gx, gy, gz, bx, by, bz, shared, stream, parameters))

static CUresult launch_ex(CUresult (*real)(const CUlaunchConfig *, CUfunction, void **, void **), int per_thread,
                          const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra)
{
    const struct vgpu_cuda *cuda = vgpu_world->cuda();
    struct vgpu_pass pass = {0};
    if (config) {
        vgpu_pass_kernel(&pass, cuda, function, (uint64_t)config->grid[0] * config->grid[1] * config->grid[2],
                         config->block[0] * config->block[1] * config->block[2], vgpu_stream_named(config->stream, per_thread));
    }
    return vgpu_pass_end(&pass, real(config, function, parameters, extra));
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra)
{
    const struct vgpu_cuda *cuda = vgpu_world->cuda();
    return cuda && cuda->cuLaunchKernelEx ? launch_ex(cuda->cuLaunchKernelEx, 0, config, function, parameters, extra)
                                          : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra)
{
    const struct vgpu_cuda *cuda = vgpu_world->cuda();
    return cuda && cuda->cuLaunchKernelEx_ptsz ? launch_ex(cuda->cuLaunchKernelEx_ptsz, 1, config, function, parameters, extra)
                                               : CUDA_ERROR_NOT_INITIALIZED;
}

/* All devices pay before any of them starts: kernels that wait for each other must not be held up half-way. */
CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *list, unsigned count, unsigned flags)
{
    const struct vgpu_cuda *cuda = vgpu_world->cuda();
    if (!cuda || !cuda->cuLaunchCooperativeKernelMultiDevice) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    struct vgpu_process *p = vgpu_process();
    for (unsigned i = 0; p && list && i < count && i < VGPU_MAX_DEVICES; i++) {
        const CUDA_LAUNCH_PARAMS *one = &list[i];
        struct vgpu_pass pass = {0};
        CUdevice ordinal;
        if (vgpu_stream_ordinal(cuda, one->stream, &ordinal) == CUDA_SUCCESS) {
            vgpu_pass_slowly(&pass, p, cuda, (uint64_t)(uintptr_t)one->function,
                             (uint64_t)one->grid[0] * one->grid[1] * one->grid[2], one->block[0] * one->block[1] * one->block[2],
                             one->stream, ordinal);
            vgpu_pass_end(&pass, CUDA_ERROR_NOT_READY); /* not measured: its events would precede all of the launches */
        }
    }
    return cuda->cuLaunchCooperativeKernelMultiDevice(list, count, flags);
}

/* Before CUDA 4, the block's shape was set on the function, so the launch does not carry it and its cost is learned. */
CUresult cuLaunchGridAsync(CUfunction function, int width, int height, CUstream stream)
{
    const struct vgpu_cuda *cuda = vgpu_world->cuda();
    struct vgpu_pass pass;
    if (!cuda || !cuda->cuLaunchGridAsync) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    vgpu_pass_kernel(&pass, cuda, function, (uint64_t)(uint32_t)width * (uint32_t)height, 256, stream);
    return vgpu_pass_end(&pass, cuda->cuLaunchGridAsync(function, width, height, stream));
}

CUresult cuLaunchGrid(CUfunction function, int width, int height)
{
    const struct vgpu_cuda *cuda = vgpu_world->cuda();
    struct vgpu_pass pass;
    if (!cuda || !cuda->cuLaunchGrid) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    vgpu_pass_kernel(&pass, cuda, function, (uint64_t)(uint32_t)width * (uint32_t)height, 256, NULL);
    return vgpu_pass_end(&pass, cuda->cuLaunchGrid(function, width, height));
}

CUresult cuLaunch(CUfunction function)
{
    const struct vgpu_cuda *cuda = vgpu_world->cuda();
    struct vgpu_pass pass;
    if (!cuda || !cuda->cuLaunch) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    vgpu_pass_kernel(&pass, cuda, function, 1, 256, NULL);
    return vgpu_pass_end(&pass, cuda->cuLaunch(function));
}
