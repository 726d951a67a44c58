/* test_graph.c - memory that graphs allocate counts from the moment when the driver takes it, however the graph was made. */
#include <stdlib.h>
#include <string.h>

#include "on_card.h"

#define MIB (UINT64_C(1) << 20)
#define LIMIT (100 * MIB)

CUresult cuGraphCreate(CUgraph *out, unsigned flags);
CUresult cuGraphDestroy(CUgraph graph);
CUresult cuGraphAddMemAllocNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, size_t count,
                                CUDA_MEM_ALLOC_NODE_PARAMS *params);
CUresult cuGraphAddMemFreeNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, size_t count, CUdeviceptr address);
CUresult cuGraphAddChildGraphNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, size_t count, CUgraph child);
CUresult cuGraphAddNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, size_t count, CUgraphNodeParams *params);
CUresult cuGraphAddNode_v2(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, const void *edges, size_t count,
                           CUgraphNodeParams *params);
CUresult cuStreamBeginCapture_v2(CUstream stream, int mode);
CUresult cuStreamEndCapture(CUstream stream, CUgraph *out);

static CUstream stream;

static void start(void)
{
    start_under(LIMIT);
    CHECK_EQ(cuDeviceGraphMemTrim(0), CUDA_SUCCESS);
    CHECK_EQ(stage_card_used(), 0);
    CHECK_EQ(stage_ledger_sum(), 0);
    CHECK_EQ(cuStreamCreate(&stream, 1), CUDA_SUCCESS);
    stage_card_reset_peak();
}

static CUDA_MEM_ALLOC_NODE_PARAMS of(size_t bytes)
{
    CUDA_MEM_ALLOC_NODE_PARAMS params = {.bytes = bytes};
    params.pool.alloc_type = 1;
    params.pool.location_type = CU_MEM_LOCATION_TYPE_DEVICE;
    return params;
}

/* Create a graph that allocates `bytes`, in one of the possible ways. */
static void by_node(size_t bytes, CUgraph *graph, CUdeviceptr *out)
{
    CUDA_MEM_ALLOC_NODE_PARAMS params = of(bytes);
    CUgraphNode node;
    CHECK_EQ(cuGraphCreate(graph, 0), CUDA_SUCCESS);
    CHECK_EQ(cuGraphAddMemAllocNode(&node, *graph, NULL, 0, &params), CUDA_SUCCESS);
    *out = params.address;
}

static void by_any_node(size_t bytes, CUgraph *graph, CUdeviceptr *out)
{
    CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC, .as.alloc = of(bytes)};
    CUgraphNode node;
    CHECK_EQ(cuGraphCreate(graph, 0), CUDA_SUCCESS);
    CHECK_EQ(cuGraphAddNode(&node, *graph, NULL, 0, &params), CUDA_SUCCESS);
    *out = params.as.alloc.address;
}

static void by_any_node_with_edges(size_t bytes, CUgraph *graph, CUdeviceptr *out)
{
    CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC, .as.alloc = of(bytes)};
    CUgraphNode node;
    CHECK_EQ(cuGraphCreate(graph, 0), CUDA_SUCCESS);
    CHECK_EQ(cuGraphAddNode_v2(&node, *graph, NULL, NULL, 0, &params), CUDA_SUCCESS);
    *out = params.as.alloc.address;
}

static void by_capture(size_t bytes, CUgraph *graph, CUdeviceptr *out)
{
    CHECK_EQ(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
    CHECK_EQ(cuMemAllocAsync(out, bytes, stream), CUDA_SUCCESS);
    CHECK_EQ(cuStreamEndCapture(stream, graph), CUDA_SUCCESS);
}

static void by_capture_from_a_pool(size_t bytes, CUgraph *graph, CUdeviceptr *out)
{
    CUmemoryPool pool;
    CHECK_EQ(cuDeviceGetDefaultMemPool(&pool, 0), CUDA_SUCCESS);
    CHECK_EQ(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
    CHECK_EQ(cuMemAllocFromPoolAsync(out, bytes, pool, stream), CUDA_SUCCESS);
    CHECK_EQ(cuStreamEndCapture(stream, graph), CUDA_SUCCESS);
}

static void by_child(size_t bytes, CUgraph *graph, CUdeviceptr *out)
{
    CUgraph child;
    CUgraphNode node;
    by_node(bytes, &child, out);
    CHECK_EQ(cuGraphCreate(graph, 0), CUDA_SUCCESS);
    CHECK_EQ(cuGraphAddChildGraphNode(&node, *graph, NULL, 0, child), CUDA_SUCCESS);
}

TEST(every_way_to_allocate_in_a_graph_is_charged_at_launch_and_refused_beyond_the_limit)
{
    static void (*const ways[])(size_t, CUgraph *, CUdeviceptr *) = {
        by_node, by_any_node, by_any_node_with_edges, by_capture, by_capture_from_a_pool, by_child};
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        CUgraph fits, does_not;
        CUgraphExec exec, refused = NULL;
        CUdeviceptr memory = 0, more = 0, plain = 0;
        start();
        ways[i](60 * MIB, &fits, &memory);
        ways[i](41 * MIB, &does_not, &more);
        CHECK_EQ(stage_ledger_sum(), 0);
        CHECK_EQ(cuGraphInstantiateWithFlags(&exec, fits, 0), CUDA_SUCCESS);
        CHECK_EQ(cuGraphInstantiateWithFlags(&refused, does_not, 0), CUDA_SUCCESS);
        CHECK_EQ(stage_ledger_sum(), 0);
        CHECK_EQ(cuGraphLaunch(exec, stream), CUDA_SUCCESS);
        CHECK_EQ(stage_ledger_sum(), 60 * MIB);
        CHECK_EQ(stage_card_used(), 60 * MIB);
        CHECK_EQ(cuGraphLaunch(refused, stream), CUDA_ERROR_OUT_OF_MEMORY);
        CHECK_EQ(cuGraphUpload(refused, stream), CUDA_ERROR_OUT_OF_MEMORY);
        CHECK_EQ(cuGraphLaunch_ptsz(refused, stream), CUDA_ERROR_OUT_OF_MEMORY);
        CHECK_EQ(cuMemAlloc_v2(&plain, 40 * MIB + 1), CUDA_ERROR_OUT_OF_MEMORY);
        CHECK_EQ(cuMemAlloc_v2(&plain, 40 * MIB), CUDA_SUCCESS);
        CHECK_EQ(cuMemFree_v2(plain), CUDA_SUCCESS);
        CHECK_EQ(cuMemFreeAsync(memory, stream), CUDA_SUCCESS);
        CHECK_EQ(cuGraphExecDestroy(exec), CUDA_SUCCESS);
        CHECK_EQ(cuGraphExecDestroy(refused), CUDA_SUCCESS);
        CHECK_EQ(cuDeviceGraphMemTrim(0), CUDA_SUCCESS);
        CHECK_EQ(stage_ledger_sum(), 0);
        CHECK_EQ(stage_card_used(), 0);
        CHECK(stage_card_peak() <= LIMIT);
    }
}

/* Return a graph that frees what it allocates, so that it may be launched repeatedly. */
static CUgraphExec round_trip(size_t bytes)
{
    CUgraph graph;
    CUgraphExec exec;
    CUgraphNode node;
    CUdeviceptr memory;
    by_node(bytes, &graph, &memory);
    CHECK_EQ(cuGraphAddMemFreeNode(&node, graph, NULL, 0, memory), CUDA_SUCCESS);
    CHECK_EQ(cuGraphInstantiateWithFlags(&exec, graph, 0), CUDA_SUCCESS);
    return exec;
}

TEST(a_graph_launched_again_and_again_is_charged_once)
{
    start();
    CUgraphExec exec = round_trip(60 * MIB);
    for (int i = 0; i < 100; i++) {
        CHECK_EQ(cuGraphLaunch(exec, stream), CUDA_SUCCESS);
        CHECK_EQ(stage_ledger_sum(), 60 * MIB);
    }
    CHECK_EQ(stage_card_used(), 60 * MIB);
    CHECK_EQ(cuGraphExecDestroy(exec), CUDA_SUCCESS);
    CHECK_EQ(stage_ledger_sum(), 60 * MIB); /* the driver keeps it until it is trimmed */
}

TEST(what_graphs_only_keep_is_trimmed_before_anything_is_refused)
{
    CUdeviceptr plain = 0;
    start();
    CUgraphExec one = round_trip(60 * MIB), other = round_trip(70 * MIB);
    for (int i = 0; i < 3; i++) {
        CHECK_EQ(cuGraphLaunch(one, stream), CUDA_SUCCESS);
        CHECK_EQ(cuGraphLaunch(other, stream), CUDA_SUCCESS);
        CHECK_EQ(cuMemAlloc_v2(&plain, 80 * MIB), CUDA_SUCCESS);
        CHECK_EQ(cuGraphLaunch(one, stream), CUDA_ERROR_OUT_OF_MEMORY);
        CHECK_EQ(cuMemFree_v2(plain), CUDA_SUCCESS);
    }
    CHECK(stage_card_peak() <= LIMIT);
    CHECK_EQ(cuGraphExecDestroy(one), CUDA_SUCCESS);
    CHECK_EQ(cuGraphExecDestroy(other), CUDA_SUCCESS);
}

TEST(an_upload_is_charged_like_a_launch)
{
    start();
    CUgraphExec exec = round_trip(60 * MIB);
    CHECK_EQ(cuGraphUpload(exec, stream), CUDA_SUCCESS);
    CHECK_EQ(stage_ledger_sum(), 60 * MIB);
    CHECK_EQ(cuGraphExecDestroy(exec), CUDA_SUCCESS);
    CHECK_EQ(cuDeviceGraphMemTrim(0), CUDA_SUCCESS);

    CUgraph graph, big;
    CUdeviceptr memory;
    by_node(60 * MIB, &graph, &memory);
    by_node(LIMIT + 1, &big, &memory);
    CHECK_EQ(cuGraphInstantiateWithFlags(&exec, graph, CU_GRAPH_INSTANTIATE_UPLOAD), CUDA_SUCCESS);
    CHECK_EQ(stage_ledger_sum(), 60 * MIB);
    CHECK_EQ(cuGraphInstantiateWithFlags(&exec, big, CU_GRAPH_INSTANTIATE_UPLOAD), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(stage_card_peak() <= LIMIT);
}

TEST(memory_that_a_graph_leaves_behind_is_charged_until_it_is_freed)
{
    CUgraph graph;
    CUgraphExec exec;
    CUdeviceptr memory, plain;
    start();
    by_capture(60 * MIB, &graph, &memory);
    CHECK_EQ(cuGraphInstantiateWithFlags(&exec, graph, 0), CUDA_SUCCESS);
    CHECK_EQ(cuGraphLaunch(exec, stream), CUDA_SUCCESS);
    CHECK_EQ(cuDeviceGraphMemTrim(0), CUDA_SUCCESS); /* in use: not given back */
    CHECK_EQ(stage_ledger_sum(), 60 * MIB);
    CHECK_EQ(cuMemAlloc_v2(&plain, 50 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ(cuMemFree_v2(memory), CUDA_SUCCESS);
    CHECK_EQ(cuMemAlloc_v2(&plain, 50 * MIB), CUDA_SUCCESS);
    CHECK_EQ(stage_ledger_sum(), 50 * MIB);
    CHECK_EQ(cuMemFree_v2(plain), CUDA_SUCCESS);
}

int main(int argc, char **argv)
{
    (void)argc;
    stage_enter(argv, NULL);
    return t_run();
}
