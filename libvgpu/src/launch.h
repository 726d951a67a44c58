/* launch.h - what every hook that launches does around its call: pace.h for this process and this thread.
 *
 *     struct vgpu_pass pass;
 *     vgpu_pass_kernel(&pass, cuda, function, blocks, threads, vgpu_stream_named(stream, per_thread));
 *     return vgpu_pass_end(&pass, cuda->cuLaunchKernel(...));
 *
 * Where nothing limits compute this is two comparisons; with a limit, and budget in hand, a subtraction more.
 */
#ifndef VGPU_LAUNCH_H
#define VGPU_LAUNCH_H

#include "pace.h"
#include "process.h"

struct vgpu_pass {
    struct vgpu_pace *pace; /* NULL: nothing to do afterwards */
    struct vgpu_launch launch;
    struct vgpu_ticket ticket;
};

/* A stream as functions without _ptsz understand it. */
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

static inline void vgpu_pass_begin(struct vgpu_pass *pass, const struct vgpu_cuda *cuda, uint64_t function,
                                   uint64_t blocks, uint32_t threads, CUstream stream)
{
    struct vgpu_process *p = vgpu_process();
    int ordinal = 0;
    pass->pace = NULL;
    if (!p) {
        return;
    }
    struct vgpu_hand *hand = &vgpu_hand;
    uint32_t page = vgpu_page_seq(p);
    if (hand->all_unlimited && hand->process == p->cookie && hand->page == page) {
        return;
    }
    if (atomic_load_explicit(&p->device_count, memory_order_relaxed) == 1 ||
        (cuda->cuCtxGetDevice && cuda->cuCtxGetDevice(&ordinal) == CUDA_SUCCESS)) {
        if (!vgpu_pace_fast(hand, p->cookie, page, ordinal, vgpu_cost_key(function, blocks, threads))) {
            vgpu_pass_slowly(pass, p, cuda, function, blocks, threads, stream, ordinal);
        }
    }
}

static inline void vgpu_pass_kernel(struct vgpu_pass *pass, const struct vgpu_cuda *cuda, CUfunction function,
                                    uint64_t blocks, uint32_t threads, CUstream stream)
{
    vgpu_pass_begin(pass, cuda, (uint64_t)(uintptr_t)function, blocks ? blocks : 1, threads, stream);
}

static inline void vgpu_pass_graph(struct vgpu_pass *pass, const struct vgpu_cuda *cuda, CUgraphExec graph, CUstream stream)
{
    vgpu_pass_begin(pass, cuda, (uint64_t)(uintptr_t)graph, 0, 0, stream);
}

static inline CUresult vgpu_pass_end(struct vgpu_pass *pass, CUresult result)
{
    if (pass->pace) {
        vgpu_pace_end(pass->pace, &pass->launch, &pass->ticket, result);
    }
    return result;
}

/* An instantiated graph before it is destroyed. */
void vgpu_launch_forget(CUgraphExec graph);

/* What this container may use of a card, as the page says now. */
struct vgpu_share vgpu_share_of(struct vgpu_process *p, int ordinal);

/* The same in percent of the device behind a handle of NVML; 0: no limit. */
uint32_t vgpu_share_of_handle(struct vgpu_process *p, const struct vgpu_nvml *nvml, nvmlDevice_t device);

#endif
