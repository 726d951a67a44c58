/* hook_graph.c - the memory that graphs take (graphs.h). */
#include "launch.h"
#include "graphs.h"
#include "pools.h"

struct instantiation {
    const struct vgpu_cuda *cuda;
    CUgraphExec *out;
    CUgraph graph;
    CUgraphNode *bad;
    char *log;
    size_t size;
    unsigned long long flags;
    void *params;
};

#define INSTANTIATE(symbol, parameters, arguments, ...)                                                     \
    static CUresult call_##symbol(void *argument)                                                           \
    {                                                                                                       \
        const struct instantiation *it = argument;                                                          \
        return it->cuda->symbol arguments;                                                                  \
    }                                                                                                       \
    CUresult symbol parameters                                                                              \
    {                                                                                                       \
        struct instantiation it = {.cuda = vgpu_world->cuda(), .out = out, .graph = graph, __VA_ARGS__};    \
        return it.cuda && it.cuda->symbol ? vgpu_graph_instantiate(it.cuda, graph, out, call_##symbol, &it) \
                                          : CUDA_ERROR_NOT_INITIALIZED;                                     \
    }

INSTANTIATE(cuGraphInstantiate, (CUgraphExec *out, CUgraph graph, CUgraphNode *bad, char *log, size_t size),
            (it->out, it->graph, it->bad, it->log, it->size), .bad = bad, .log = log, .size = size)
INSTANTIATE(cuGraphInstantiate_v2, (CUgraphExec *out, CUgraph graph, CUgraphNode *bad, char *log, size_t size),
            (it->out, it->graph, it->bad, it->log, it->size), .bad = bad, .log = log, .size = size)
INSTANTIATE(cuGraphInstantiateWithFlags, (CUgraphExec *out, CUgraph graph, unsigned long long flags),
            (it->out, it->graph, it->flags), .flags = flags)
INSTANTIATE(cuGraphInstantiateWithParams, (CUgraphExec *out, CUgraph graph, void *params), (it->out, it->graph, it->params),
            .params = params)
INSTANTIATE(cuGraphInstantiateWithParams_ptsz, (CUgraphExec *out, CUgraph graph, void *params), (it->out, it->graph, it->params),
            .params = params)

#define RUN(symbol)                                                                                                  \
    CUresult symbol(CUgraphExec exec, CUstream stream)                                                               \
    {                                                                                                                \
        const struct vgpu_cuda *cuda = vgpu_world->cuda();                                                           \
        return cuda && cuda->symbol ? vgpu_graph_run(cuda, exec, stream, cuda->symbol) : CUDA_ERROR_NOT_INITIALIZED; \
    }

RUN(cuGraphUpload)
RUN(cuGraphUpload_ptsz)

#define LAUNCH(symbol, per_thread)                                                     \
    CUresult symbol(CUgraphExec exec, CUstream stream)                                 \
    {                                                                                  \
        const struct vgpu_cuda *cuda = vgpu_world->cuda();                             \
        struct vgpu_pass pass;                                                         \
        if (!cuda || !cuda->symbol) {                                                  \
            return CUDA_ERROR_NOT_INITIALIZED;                                         \
        }                                                                              \
        vgpu_pass_graph(&pass, cuda, exec, vgpu_stream_named(stream, per_thread));     \
        return vgpu_pass_end(&pass, vgpu_graph_run(cuda, exec, stream, cuda->symbol)); \
    }

LAUNCH(cuGraphLaunch, 0)
LAUNCH(cuGraphLaunch_ptsz, 1)

static CUresult reconciled(const struct vgpu_cuda *cuda, CUresult result)
{
    struct vgpu_process *p = vgpu_process();
    if (p) {
        vgpu_pools_reconcile(p, cuda);
    }
    return result;
}

CUresult cuGraphExecDestroy(CUgraphExec exec)
{
    const struct vgpu_cuda *cuda = vgpu_world->cuda();
    if (!cuda || !cuda->cuGraphExecDestroy) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    vgpu_launch_forget(exec);
    vgpu_graph_forget(exec); /* before the call, because afterwards its handle may be another thread's */
    return reconciled(cuda, cuda->cuGraphExecDestroy(exec));
}

CUresult cuDeviceGraphMemTrim(CUdevice device)
{
    const struct vgpu_cuda *cuda = vgpu_world->cuda();
    struct vgpu_process *p = vgpu_process();
    if (!cuda || !cuda->cuDeviceGraphMemTrim) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    if (p) {
        atomic_fetch_add(&p->graph_trims, 1);
    }
    return reconciled(cuda, cuda->cuDeviceGraphMemTrim(device));
}
