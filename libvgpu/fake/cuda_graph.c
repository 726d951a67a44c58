/* cuda_graph.c - graphs of kernels, memory and other graphs, and how they are built, by calls or by capture. */
#include <stdlib.h>

#include "cuda_graph.h"

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
    (void)after, (void)count;
    if (context && params && params->function && !cuda_handle_lives(params->function, CUDA_FUNCTION)) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (!context || !out || !graph || !params || !params->function) {
        return context ? CUDA_ERROR_INVALID_VALUE : result;
    }
    *out = add(graph, CU_GRAPH_NODE_TYPE_KERNEL,
               cuda_kernel_shape(context, params->function, params->grid, params->block, params->parameters));
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

/* The child is not copied; changing or destroying it afterwards has undefined results here. */
CUDA_API CUresult cuGraphAddChildGraphNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, size_t count, CUgraph child)
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

CUDA_API CUresult cuGraphAddNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, size_t count,
                                 CUgraphNodeParams *params)
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
