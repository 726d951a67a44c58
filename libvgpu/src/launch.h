/* launch.h - what every launching hook does around its driver call: throttle.h applied to this process and this thread.
 *
 *     if (vgpu_pass_at_once(cuda, function, blocks, threads)) return cuda->cuLaunchKernel(...);
 *     struct vgpu_pass pass;
 *     vgpu_pass_kernel(&pass, cuda, function, blocks, threads, vgpu_stream_named(stream, per_thread));
 *     return vgpu_pass_end(&pass, cuda->cuLaunchKernel(...));
 *
 * Without a compute limit this costs two comparisons. With a limit and prepaid time it costs one subtraction more.
 */
#ifndef VGPU_LAUNCH_H
#define VGPU_LAUNCH_H

#include "throttle.h"
#include "process.h"

struct vgpu_pass {
    struct vgpu_throttle *throttle; /* NULL: nothing to do afterwards */
    struct vgpu_launch launch;
    struct vgpu_ticket ticket;
};

/* Return a stream in the form that functions without _ptsz expect. */
static inline CUstream vgpu_stream_named(CUstream stream, int per_thread)
{
    return stream || !per_thread ? stream : CU_STREAM_PER_THREAD;
}

extern _Thread_local struct vgpu_hand vgpu_hand;

void vgpu_pass_slowly(struct vgpu_pass *pass, struct vgpu_process *p, const struct vgpu_cuda *cuda, uint64_t function,
                      uint64_t blocks, uint32_t threads, CUstream stream, int ordinal);

static inline uint32_t vgpu_page_seq(const struct vgpu_process *p)
{
    return p->page ? atomic_load_explicit((const _Atomic uint32_t *)&p->page->seq, memory_order_relaxed) : 0;
}

/* Return 1 if no device of this process has a limited share; hand->cuda is the driver then. Reads only its own memory
 * and the page. In a forked child the process's word has been wiped. */
static inline int vgpu_hand_is_free(const struct vgpu_hand *hand)
{
    return hand->all_unlimited && *hand->process_now == hand->process &&
           atomic_load_explicit(hand->page_now, memory_order_relaxed) == hand->page;
}

/* Return 1 if nothing limits this launch, or if prepaid time covers it. Then no pass is needed. */
static inline int vgpu_pass_at_once(const struct vgpu_cuda *cuda, uint64_t function, uint64_t blocks, uint32_t threads)
{
    struct vgpu_process *p = vgpu_process();
    int ordinal = 0;
    if (!p) {
        return 1;
    }
    struct vgpu_hand *hand = &vgpu_hand;
    uint32_t page = vgpu_page_seq(p);
    if (hand->process != p->cookie || hand->page != page) {
        return 0;
    }
    if (hand->all_unlimited) {
        return 1;
    }
    return (atomic_load_explicit(&p->device_count, memory_order_relaxed) == 1 ||
            (cuda->cuCtxGetDevice && cuda->cuCtxGetDevice(&ordinal) == CUDA_SUCCESS)) &&
           vgpu_throttle_fast(hand, ordinal, vgpu_cost_key(function, blocks, threads));
}

/* Handle all other launches. */
void vgpu_pass_begin(struct vgpu_pass *pass, const struct vgpu_cuda *cuda, uint64_t function, uint64_t blocks, uint32_t threads,
                     CUstream stream);

static inline void vgpu_pass_kernel(struct vgpu_pass *pass, const struct vgpu_cuda *cuda, CUfunction function, uint64_t blocks,
                                    uint32_t threads, CUstream stream)
{
    vgpu_pass_begin(pass, cuda, (uint64_t)(uintptr_t)function, blocks ? blocks : 1, threads, stream);
}

static inline void vgpu_pass_graph(struct vgpu_pass *pass, const struct vgpu_cuda *cuda, CUgraphExec graph, CUstream stream)
{
    vgpu_pass_begin(pass, cuda, (uint64_t)(uintptr_t)graph, 0, 0, stream);
}

static inline CUresult vgpu_pass_end(struct vgpu_pass *pass, CUresult result)
{
    if (pass->throttle) {
        vgpu_throttle_end(pass->throttle, &pass->launch, &pass->ticket, result);
    }
    return result;
}

/* Call this after a driver call that waited for the device (throttle.h). */
void vgpu_launch_waited(struct vgpu_process *p, const struct vgpu_cuda *cuda);

/* Call this before an instantiated graph is destroyed. */
void vgpu_launch_forget(CUgraphExec graph);

/* Call this before the driver ends a context. */
void vgpu_launch_end_context(struct vgpu_process *p, const struct vgpu_cuda *cuda, CUcontext context);

/* Return the share of a device that the page gives this container now. */
struct vgpu_share vgpu_share_of(struct vgpu_process *p, int ordinal);

/* Return the share, in percent, of the device with this NVML handle; 0 means no limit. */
uint32_t vgpu_share_of_handle(struct vgpu_process *p, const struct vgpu_nvml *nvml, nvmlDevice_t device);

/* Convert a percentage of that device into a percentage of the slice. */
unsigned vgpu_percent_of_slice(struct vgpu_process *p, const struct vgpu_nvml *nvml, nvmlDevice_t device, unsigned percent);

#endif
