/* cuda_graph_exec.c - instantiated graphs: when launched, their nodes run one after the other as one piece of work. */
#include <stdlib.h>

#include "cuda_graph.h"

struct CUgraphExec_st {
    struct shape shape;
    struct graph_step *steps;
    size_t step_count;
};

static struct shape sum(const struct CUgraph_st *graph)
{
    struct shape shape = {0};
    for (const struct CUgraphNode_st *node = graph->first; node; node = node->next) {
        struct shape own = node->child ? sum(node->child) : node->shape;
        shape.ns += own.ns;
        shape.fraction = own.fraction > shape.fraction ? own.fraction : shape.fraction;
    }
    return shape;
}

/* Collect the steps of a graph and its children, in order; if `steps` is NULL, only count them. */
static size_t steps_of(const struct CUgraph_st *graph, struct graph_step *steps)
{
    size_t n = 0;
    for (const struct CUgraphNode_st *node = graph->first; node; node = node->next) {
        if (node->child) {
            n += steps_of(node->child, steps ? steps + n : NULL);
        } else if (node->memory) {
            if (steps) {
                steps[n] = (struct graph_step){.memory = node->memory, .is_free = node->type == CU_GRAPH_NODE_TYPE_MEM_FREE};
            }
            n++;
        }
    }
    return n;
}

CUDA_API CUresult cuGraphInstantiateWithFlags(CUgraphExec *out, CUgraph graph, unsigned long long flags)
{
    if (!out || !graph) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct CUgraphExec_st *made = calloc(1, sizeof *made);
    size_t count = steps_of(graph, NULL);
    struct graph_step *steps = count ? calloc(count, sizeof *steps) : NULL;
    if (!made || (count && !steps)) {
        free(made);
        free(steps);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    steps_of(graph, steps);
    *made = (struct CUgraphExec_st){.shape = sum(graph), .steps = steps, .step_count = count};
    CUresult result = flags & CU_GRAPH_INSTANTIATE_UPLOAD ? cuda_graph_memory_run(steps, count, 1) : CUDA_SUCCESS;
    if (result != CUDA_SUCCESS) {
        free(steps);
        free(made);
        return result;
    }
    *out = made;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuGraphInstantiateWithParams(CUgraphExec *out, CUgraph graph, void *params)
{
    return cuGraphInstantiateWithFlags(out, graph, params ? *(const unsigned long long *)params : 0);
}

CUDA_API CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *out, CUgraph graph, void *params)
{
    return cuGraphInstantiateWithParams(out, graph, params);
}

CUDA_API CUresult cuGraphInstantiate_v2(CUgraphExec *out, CUgraph graph, CUgraphNode *bad, char *log, size_t size)
{
    (void)bad, (void)log, (void)size;
    return cuGraphInstantiateWithFlags(out, graph, 0);
}

CUDA_API CUresult cuGraphInstantiate(CUgraphExec *out, CUgraph graph, CUgraphNode *bad, char *log, size_t size)
{
    return cuGraphInstantiate_v2(out, graph, bad, log, size);
}

CUDA_API CUresult cuGraphExecUpdate_v2(CUgraphExec graph_exec, CUgraph graph, void *info)
{
    (void)info;
    if (!graph_exec || !graph) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    graph_exec->shape = sum(graph);
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuGraphExecDestroy(CUgraphExec graph_exec)
{
    if (!graph_exec) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    free(graph_exec->steps);
    free(graph_exec);
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuGraphUpload(CUgraphExec graph_exec, CUstream stream)
{
    (void)stream;
    return graph_exec ? cuda_graph_memory_run(graph_exec->steps, graph_exec->step_count, 1) : CUDA_ERROR_INVALID_VALUE;
}

CUDA_API CUresult cuGraphUpload_ptsz(CUgraphExec graph_exec, CUstream stream)
{
    return cuGraphUpload(graph_exec, stream);
}

static CUresult launch(CUgraphExec graph_exec, CUstream handle, int thread)
{
    CUresult result = CUDA_SUCCESS;
    struct CUstream_st *stream = cuda_stream(handle, thread, &result);
    if (!stream || !graph_exec) {
        return stream ? CUDA_ERROR_INVALID_VALUE : result;
    }
    if (stream->capture) {
        return cuda_graph_capture(stream->capture, 4 /* child graph */, graph_exec->shape);
    }
    result = cuda_graph_memory_run(graph_exec->steps, graph_exec->step_count, 0);
    if (result != CUDA_SUCCESS || !graph_exec->shape.ns) {
        return result;
    }
    return cuda_work_submit(
        stream,
        (struct engine_op){.kind = ENGINE_KERNEL, .left_ns = graph_exec->shape.ns, .fraction = graph_exec->shape.fraction});
}

CUDA_API CUresult cuGraphLaunch(CUgraphExec graph_exec, CUstream stream)
{
    return launch(graph_exec, stream, 0);
}

CUDA_API CUresult cuGraphLaunch_ptsz(CUgraphExec graph_exec, CUstream stream)
{
    return launch(graph_exec, stream, 1);
}
