#include "graphs.h"

#include <stdlib.h>

#include "authority.h"
#include "devices.h"
#include "ledger.h"
#include "pools.h"

/* Limit of graphs nested in graphs; real ones are never this deep. */
enum { DEEPEST = 16 };

struct vgpu_graph {
    uint64_t backed; /* the process's trim count when it was last backed, plus one; 0 means never */
    uint64_t bytes[VGPU_MAX_DEVICES]; /* the bytes that its nodes take of each device */
};

static void add_node(struct vgpu_process *p, const struct vgpu_cuda *cuda, CUgraphNode node, struct vgpu_graph *sum, int depth);

static int can_look(const struct vgpu_cuda *cuda)
{
    return cuda->cuGraphGetNodes && cuda->cuGraphNodeGetType && cuda->cuGraphMemAllocNodeGetParams;
}

static void add_graph(struct vgpu_process *p, const struct vgpu_cuda *cuda, CUgraph graph, struct vgpu_graph *sum, int depth)
{
    size_t count = 0;
    if (depth > DEEPEST || cuda->cuGraphGetNodes(graph, NULL, &count) != CUDA_SUCCESS || !count) {
        return;
    }
    CUgraphNode *nodes = calloc(count, sizeof(CUgraphNode));
    if (nodes && cuda->cuGraphGetNodes(graph, nodes, &count) == CUDA_SUCCESS) {
        for (size_t i = 0; i < count; i++) {
            add_node(p, cuda, nodes[i], sum, depth);
        }
    }
    free(nodes);
}

static void add_node(struct vgpu_process *p, const struct vgpu_cuda *cuda, CUgraphNode node, struct vgpu_graph *sum, int depth)
{
    int type = -1;
    CUgraph child;
    CUDA_MEM_ALLOC_NODE_PARAMS params = {0};
    CUdevice ordinal = VGPU_NOWHERE;
    if (cuda->cuGraphNodeGetType(node, &type) != CUDA_SUCCESS) {
        return;
    }
    if (type == CU_GRAPH_NODE_TYPE_GRAPH && cuda->cuGraphChildGraphNodeGetGraph &&
        cuda->cuGraphChildGraphNodeGetGraph(node, &child) == CUDA_SUCCESS) {
        add_graph(p, cuda, child, sum, depth + 1);
    }
    if (type != CU_GRAPH_NODE_TYPE_MEM_ALLOC || cuda->cuGraphMemAllocNodeGetParams(node, &params) != CUDA_SUCCESS ||
        vgpu_location_ordinal(cuda, params.pool.location_type, params.pool.location_id, &ordinal) != CUDA_SUCCESS ||
        ordinal < 0 || ordinal >= (int)VGPU_MAX_DEVICES) {
        return;
    }
    uint64_t *bytes = &sum->bytes[ordinal], more = (uint64_t)params.bytes;
    *bytes = *bytes > UINT64_MAX / 4 || more > UINT64_MAX / 4 ? UINT64_MAX / 2 : *bytes + more;
}

static int takes_memory(const struct vgpu_graph *graph)
{
    for (unsigned i = 0; i < VGPU_MAX_DEVICES; i++) {
        if (graph->bytes[i]) {
            return 1;
        }
    }
    return 0;
}

/* Try once: charge what the graph may take of every device, make the call, and correct the charges to the real amounts. */
static CUresult attempt(struct vgpu_process *p, const struct vgpu_cuda *cuda, const struct vgpu_graph *graph, int is_backed,
                        CUresult (*call)(void *), void *argument)
{
    struct vgpu_pool *pools[VGPU_MAX_DEVICES] = {0};
    CUresult result = CUDA_SUCCESS;
    int last = 0;
    /* Always lock in the order of devices, so that two launches never wait for each other. */
    for (int i = 0; i < (int)VGPU_MAX_DEVICES && result == CUDA_SUCCESS; i++) {
        if (!graph->bytes[i]) {
            continue;
        }
        pools[i] = vgpu_pool_of_graphs(p, i);
        if (!pools[i]) {
            result = CUDA_ERROR_OUT_OF_MEMORY;
            break;
        }
        vgpu_calm_take(&pools[i]->lock);
        last = i + 1;
        if (!is_backed && !vgpu_pool_expect(p, cuda, pools[i], graph->bytes[i])) {
            result = CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    if (result == CUDA_SUCCESS) {
        result = call(argument);
    }
    for (int i = last; i-- > 0;) { /* in reverse order, because each lock restores the state from before it */
        if (pools[i]) {
            vgpu_pool_account(p, cuda, pools[i]);
            vgpu_pool_leave(p, cuda, pools[i]);
        }
    }
    return result;
}

static void count_refusals(struct vgpu_process *p, const struct vgpu_cuda *cuda, const struct vgpu_graph *graph)
{
    for (int i = 0; i < (int)VGPU_MAX_DEVICES; i++) {
        const struct vgpu_device *device = graph->bytes[i] ? vgpu_device_of_ordinal(p, cuda, i) : NULL;
        if (device && device->column >= 0 && p->region) {
            vgpu_ledger_denied(p->region, (unsigned)device->column);
        }
    }
}

static CUresult paid(struct vgpu_process *p, const struct vgpu_cuda *cuda, struct vgpu_graph *graph, CUresult (*call)(void *),
                     void *argument)
{
    uint64_t trims = atomic_load(&p->graph_trims) + 1;
    CUresult result = attempt(p, cuda, graph, graph->backed == trims, call, argument);
    if (result == CUDA_ERROR_OUT_OF_MEMORY && vgpu_pools_squeeze(p, cuda)) {
        trims = atomic_load(&p->graph_trims) + 1;
        result = attempt(p, cuda, graph, 0, call, argument);
    }
    if (result == CUDA_ERROR_OUT_OF_MEMORY) {
        count_refusals(p, cuda, graph);
    }
    graph->backed = result == CUDA_SUCCESS ? trims : 0;
    return result;
}

CUresult vgpu_graph_instantiate(const struct vgpu_cuda *cuda, CUgraph graph, const CUgraphExec *out, CUresult (*call)(void *),
                                void *argument)
{
    struct vgpu_process *p = vgpu_process();
    if (!p || !graph || !out || !can_look(cuda)) {
        return call(argument);
    }
    struct vgpu_graph *sum = calloc(1, sizeof *sum);
    if (!sum) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    add_graph(p, cuda, graph, sum, 0);
    if (!takes_memory(sum)) {
        free(sum);
        return call(argument);
    }
    /* The graph may be uploaded right away. If it is not, nothing is reserved afterwards and so nothing is charged. */
    CUresult result = paid(p, cuda, sum, call, argument);
    sum->backed = 0;
    if (result == CUDA_SUCCESS) {
        struct vgpu_object object = {.handle = (uintptr_t)*out, .context = sum, .kind = VGPU_KIND_GRAPH};
        if (vgpu_objects_add(&p->objects, object) == 0) {
            atomic_store(&p->graphs_known, 1);
            return CUDA_SUCCESS;
        }
        cuda->cuGraphExecDestroy(*out);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    free(sum);
    return result;
}

struct run {
    CUgraphExec exec;
    CUstream stream;
    CUresult (*call)(CUgraphExec, CUstream);
};

static CUresult run(void *argument)
{
    const struct run *it = argument;
    return it->call(it->exec, it->stream);
}

CUresult vgpu_graph_run(const struct vgpu_cuda *cuda, CUgraphExec exec, CUstream stream, CUresult (*call)(CUgraphExec, CUstream))
{
    struct vgpu_process *p = vgpu_process();
    struct run it = {.exec = exec, .stream = stream, .call = call};
    struct vgpu_object object;
    int capturing = 0;
    if (!p || !atomic_load_explicit(&p->graphs_known, memory_order_relaxed) ||
        !vgpu_objects_find(&p->objects, VGPU_KIND_GRAPH, (uintptr_t)exec, &object) ||
        (cuda->cuStreamIsCapturing && cuda->cuStreamIsCapturing(stream, &capturing) == CUDA_SUCCESS && capturing)) {
        return call(exec, stream); /* under capture, it becomes a node of another graph */
    }
    return paid(p, cuda, (struct vgpu_graph *)(uintptr_t)object.context, run, &it);
}

void vgpu_graph_forget(CUgraphExec exec)
{
    struct vgpu_process *p = vgpu_process();
    struct vgpu_object object;
    if (p && atomic_load_explicit(&p->graphs_known, memory_order_relaxed) &&
        vgpu_objects_take(&p->objects, VGPU_KIND_GRAPH, (uintptr_t)exec, &object)) {
        free((void *)(uintptr_t)object.context);
    }
}
