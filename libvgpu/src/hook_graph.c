/* hook_graph.c - graph nodes of any type: one that allocates would do so at each launch, where nothing charges it. */
#include "authority.h"

static int is_refused(const void *params)
{
    const struct vgpu_process *p = vgpu_process();
    /* CUgraphNodeParams begins with the type of the node. */
    return p && params && *(const int *)params == CU_GRAPH_NODE_TYPE_MEM_ALLOC && !vgpu_limits_nothing(p);
}

CUresult cuGraphAddNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, size_t count, void *params)
{
    const struct vgpu_cuda *cuda = vgpu_world->cuda();
    if (!cuda || !cuda->cuGraphAddNode) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    return is_refused(params) ? CUDA_ERROR_NOT_SUPPORTED : cuda->cuGraphAddNode(out, graph, after, count, params);
}

CUresult cuGraphAddNode_v2(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, const void *edges, size_t count,
                           void *params)
{
    const struct vgpu_cuda *cuda = vgpu_world->cuda();
    if (!cuda || !cuda->cuGraphAddNode_v2) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    return is_refused(params) ? CUDA_ERROR_NOT_SUPPORTED
                              : cuda->cuGraphAddNode_v2(out, graph, after, edges, count, params);
}

CUresult cuGraphAddNode_v3(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, const void *edges, size_t count,
                           void *params)
{
    const struct vgpu_cuda *cuda = vgpu_world->cuda();
    if (!cuda || !cuda->cuGraphAddNode_v3) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    return is_refused(params) ? CUDA_ERROR_NOT_SUPPORTED
                              : cuda->cuGraphAddNode_v3(out, graph, after, edges, count, params);
}
