/* cuda_graph.c - graphs of kernels, memory and other graphs: made by hand or by capture, instantiated, launched.
 *
 * A graph is the list of its nodes; launched, they run one after the other as one piece of work.
 */
#include <stdlib.h>

#include "cuda_graph_memory.h"
#include "cuda_work.h"

struct CUgraphNode_st {
    struct CUgraphNode_st *next;
    int type;
    struct shape shape;
    struct graph_memory *memory; /* of a node that allocates or frees */
    CUDA_MEM_ALLOC_NODE_PARAMS params;
    struct CUgraph_st *child;
};

struct CUgraph_st {
    struct CUgraphNode_st *first, *last;
    size_t count;
};

struct CUgraphExec_st {
    struct shape shape;
    struct graph_step *steps;
    size_t step_count;
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

CUresult cuGraphAddMemAllocNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, size_t count,
                                CUDA_MEM_ALLOC_NODE_PARAMS *params);

CUresult cuda_graph_capture_alloc(struct CUgraph_st *graph, CUdevice device, size_t bytes, CUdeviceptr *out)
{
    CUDA_MEM_ALLOC_NODE_PARAMS params = {.bytes = bytes};
    CUgraphNode node;
    params.pool.alloc_type = 1;
    params.pool.location_type = CU_MEM_LOCATION_TYPE_DEVICE;
    params.pool.location_id = device;
    CUresult result = cuGraphAddMemAllocNode(&node, graph, NULL, 0, &params);
    *out = params.address;
    return result;
}

CUDA_API CUresult cuGraphAddMemAllocNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, size_t count,
                                         CUDA_MEM_ALLOC_NODE_PARAMS *params)
{
    (void)after, (void)count;
    if (!out || !graph || !params || params->pool.location_type != CU_MEM_LOCATION_TYPE_DEVICE ||
        cuda_check_device(params->pool.location_id) != CUDA_SUCCESS || !params->bytes) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct graph_memory *memory = cuda_graph_memory_new(params->pool.location_id, params->bytes);
    *out = memory ? add(graph, CU_GRAPH_NODE_TYPE_MEM_ALLOC, (struct shape){0}) : NULL;
    if (!*out) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    params->address = cuda_graph_memory_address(memory);
    (*out)->memory = memory;
    (*out)->params = *params;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuGraphAddMemFreeNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, size_t count,
                                        CUdeviceptr address)
{
    struct graph_memory *memory = cuda_graph_memory_at(address);
    (void)after, (void)count;
    if (!out || !graph || !memory) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *out = add(graph, CU_GRAPH_NODE_TYPE_MEM_FREE, (struct shape){0});
    if (*out) {
        (*out)->memory = memory;
    }
    return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* The child is taken as it is; who changes or destroys it afterwards is on their own here. */
CUDA_API CUresult cuGraphAddChildGraphNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, size_t count,
                                           CUgraph child)
{
    (void)after, (void)count;
    if (!out || !graph || !child) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *out = add(graph, CU_GRAPH_NODE_TYPE_GRAPH, (struct shape){0});
    if (*out) {
        (*out)->child = child;
    }
    return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUDA_API CUresult cuGraphAddNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, size_t count, CUgraphNodeParams *params)
{
    if (!params) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    switch (params->type) {
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
        return cuGraphAddMemAllocNode(out, graph, after, count, &params->as.alloc);
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
        return cuGraphAddMemFreeNode(out, graph, after, count, params->as.free);
    default:
        return CUDA_ERROR_NOT_SUPPORTED;
    }
}

CUDA_API CUresult cuGraphAddNode_v2(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, const void *edges, size_t count,
                                    CUgraphNodeParams *params)
{
    (void)edges;
    return cuGraphAddNode(out, graph, after, count, params);
}

CUDA_API CUresult cuGraphNodeGetType(CUgraphNode node, int *out)
{
    if (!node || !out) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *out = node->type;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuGraphMemAllocNodeGetParams(CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS *out)
{
    if (!node || !out || node->type != CU_GRAPH_NODE_TYPE_MEM_ALLOC) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *out = node->params;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode node, CUgraph *out)
{
    if (!node || !out || !node->child) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *out = node->child;
    return CUDA_SUCCESS;
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
        struct shape own = node->child ? sum(node->child) : node->shape;
        shape.ns += own.ns;
        shape.fraction = own.fraction > shape.fraction ? own.fraction : shape.fraction;
    }
    return shape;
}

/* The steps of a graph and its children, in order; with `steps` NULL only how many. */
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
