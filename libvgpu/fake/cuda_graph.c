/* cuda_graph.c - graphs of kernels: made by hand or by capture, instantiated, launched.
 *
 * A graph is the list of its nodes; launched, they run one after the other as one piece of work.
 */
#include <stdlib.h>

#include "cuda_work.h"

struct CUgraphNode_st {
    struct CUgraphNode_st *next;
    int type;
    struct shape shape;
};

struct CUgraph_st {
    struct CUgraphNode_st *first, *last;
    size_t count;
};

struct CUgraphExec_st {
    struct shape shape;
};

CUDA_API CUresult cuGraphCreate(CUgraph *out, unsigned flags)
{
    (void)flags;
    if (!out) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *out = calloc(1, sizeof **out);
    return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUDA_API CUresult cuGraphDestroy(CUgraph graph)
{
    if (!graph) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    while (graph->first) {
        struct CUgraphNode_st *next = graph->first->next;
        free(graph->first);
        graph->first = next;
    }
    free(graph);
    return CUDA_SUCCESS;
}

static struct CUgraphNode_st *add(struct CUgraph_st *graph, int type, struct shape shape)
{
    struct CUgraphNode_st *node = calloc(1, sizeof *node);
    if (node) {
        *node = (struct CUgraphNode_st){.type = type, .shape = shape};
        *(graph->last ? &graph->last->next : &graph->first) = node;
        graph->last = node;
        graph->count++;
    }
    return node;
}

CUresult cuda_graph_capture(struct CUgraph_st *graph, int type, struct shape shape)
{
    return add(graph, type, shape) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUDA_API CUresult cuGraphAddKernelNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, size_t count,
                                       const CUDA_KERNEL_NODE_PARAMS *params)
{
    CUresult result = CUDA_SUCCESS;
    struct CUctx_st *context = cuda_current(&result);
    struct shape shape = {0};
    (void)after, (void)count;
    if (!context || !out || !graph || !params || !params->function) {
        return context ? CUDA_ERROR_INVALID_VALUE : result;
    }
    if (params->function->block_ns) {
        engine_shape((unsigned)cuda_session()->machine->cards[context->card].sms,
                     (uint64_t)params->grid[0] * params->grid[1] * params->grid[2],
                     params->block[0] * params->block[1] * params->block[2], params->function->block_ns, &shape.ns,
                     &shape.fraction);
    }
    *out = add(graph, CU_GRAPH_NODE_TYPE_KERNEL, shape);
    return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* The second form has two more fields at its end. */
CUDA_API CUresult cuGraphAddKernelNode_v2(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, size_t count,
                                          const CUDA_KERNEL_NODE_PARAMS *params)
{
    return cuGraphAddKernelNode(out, graph, after, count, params);
}

CUDA_API CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
    if (!graph || !count) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (nodes) {
        size_t n = 0;
        for (struct CUgraphNode_st *node = graph->first; node && n < *count; node = node->next) {
            nodes[n++] = node;
        }
    }
    *count = graph->count;
    return CUDA_SUCCESS;
}

static struct shape sum(const struct CUgraph_st *graph)
{
    struct shape shape = {0};
    for (const struct CUgraphNode_st *node = graph->first; node; node = node->next) {
        shape.ns += node->shape.ns;
        shape.fraction = node->shape.fraction > shape.fraction ? node->shape.fraction : shape.fraction;
    }
    return shape;
}

CUDA_API CUresult cuGraphInstantiateWithFlags(CUgraphExec *out, CUgraph graph, unsigned long long flags)
{
    (void)flags;
    if (!out || !graph) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *out = calloc(1, sizeof **out);
    if (!*out) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    (*out)->shape = sum(graph);
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuGraphInstantiateWithParams(CUgraphExec *out, CUgraph graph, void *params)
{
    (void)params;
    return cuGraphInstantiateWithFlags(out, graph, 0);
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
    free(graph_exec);
    return CUDA_SUCCESS;
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
    if (!graph_exec->shape.ns) {
        return CUDA_SUCCESS;
    }
    return cuda_work_submit(stream, (struct engine_op){.kind = ENGINE_KERNEL,
                                                       .left_ns = graph_exec->shape.ns,
                                                       .fraction = graph_exec->shape.fraction});
}

CUDA_API CUresult cuGraphLaunch(CUgraphExec graph_exec, CUstream stream)
{
    return launch(graph_exec, stream, 0);
}

CUDA_API CUresult cuGraphLaunch_ptsz(CUgraphExec graph_exec, CUstream stream)
{
    return launch(graph_exec, stream, 1);
}
