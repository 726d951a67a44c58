/* test_forms.c - older and newer forms of calls that take memory are counted like the usual forms. */
#include <stdlib.h>
#include <sys/types.h>
#include <unistd.h>

#include "machine.h"
#include "on_card.h"
#include "state.h"

#define MIB (UINT64_C(1) << 20)
#define CONTEXT (300 * MIB)
#define LIMIT (100 * MIB)
#define GRAIN (2 * MIB)

CUresult cuGraphCreate(CUgraph *out, unsigned flags);
CUresult cuGraphAddMemAllocNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, size_t count,
                                CUDA_MEM_ALLOC_NODE_PARAMS *params);

/* The driver's contexts cost nothing here, but the container assumes that they do. */
static CUresult context_1(CUcontext *out)
{
    return cuCtxCreate(out, 0, 0);
}

static CUresult context_2(CUcontext *out)
{
    return cuCtxCreate_v2(out, 0, 0);
}

static CUresult context_3(CUcontext *out)
{
    return cuCtxCreate_v3(out, NULL, 0, 0, 0);
}

static CUresult context_4(CUcontext *out)
{
    return cuCtxCreate_v4(out, NULL, 0, 0);
}

TEST(a_context_of_every_form_is_reserved_before_it_is_made)
{
    static CUresult (*const forms[])(CUcontext *) = {context_1, context_2, context_3, context_4};
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        CUcontext first = NULL, second = NULL;
        start_under(CONTEXT + 10 * MIB);
        stage_region()->columns[0].context_bytes = CONTEXT;
        CHECK_EQ(forms[i](&first), CUDA_SUCCESS);
        CHECK_EQ(stage_ledger_sum(), CONTEXT);
        CHECK_EQ(forms[i](&second), CUDA_ERROR_OUT_OF_MEMORY);
        CHECK_EQ(i % 2 ? cuCtxDestroy(first) : cuCtxDestroy_v2(first), CUDA_SUCCESS);
        CHECK_EQ(stage_ledger_sum(), 0);
        stage_region()->columns[0].context_bytes = 0;
    }
}

TEST(a_primary_context_that_is_reset_by_its_old_name_takes_its_memory_with_it)
{
    CUdeviceptr out = 0;
    start_under(LIMIT);
    CHECK_EQ(cuMemAlloc_v2(&out, LIMIT), CUDA_SUCCESS);
    CHECK_EQ(cuDevicePrimaryCtxReset(0), CUDA_SUCCESS);
    CHECK_EQ(stage_ledger_sum(), 0);
}

static CUresult default_pool(CUmemoryPool *out, CUmemLocation *location)
{
    return cuMemGetDefaultMemPool(out, location, 1);
}

static CUresult current_pool(CUmemoryPool *out, CUmemLocation *location)
{
    return cuMemGetMemPool(out, location, 1);
}

TEST(a_pool_found_by_its_location_is_charged_to_its_device)
{
    static CUresult (*const forms[])(CUmemoryPool *, CUmemLocation *) = {default_pool, current_pool};
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        CUmemLocation here = {.type = CU_MEM_LOCATION_TYPE_DEVICE}, other = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 1};
        CUmemoryPool pool = NULL;
        CUdeviceptr out = 0, more = 0;
        start_under(LIMIT);
        uint64_t before = stage_ledger_sum();
        CHECK_EQ(forms[i](&pool, &here), CUDA_SUCCESS);
        CHECK_EQ(cuMemAllocFromPoolAsync_ptsz(&more, LIMIT + MIB, pool, NULL), CUDA_ERROR_OUT_OF_MEMORY);
        CHECK_EQ(cuMemAllocFromPoolAsync_ptsz(&out, 64 * MIB, pool, NULL), CUDA_SUCCESS);
        CHECK_EQ(stage_ledger_sum(), before + 64 * MIB);
        CHECK_EQ(cuMemFreeAsync_ptsz(out, NULL), CUDA_SUCCESS);
        CHECK_EQ(cuCtxSynchronize_v2(NULL), CUDA_SUCCESS);
        CHECK_EQ(stage_ledger_sum(), before);
        CHECK_EQ(forms[i](&pool, &other), CUDA_SUCCESS); /* not on the page */
        CHECK_EQ(cuMemAllocFromPoolAsync_ptsz(&out, MIB, pool, NULL), CUDA_ERROR_OUT_OF_MEMORY);
    }
}

static CUresult bind_handle(CUmemGenericAllocationHandle handle, CUdeviceptr at)
{
    (void)at;
    return cuMulticastBindMem_v2(1, 0, 0, handle, 0, GRAIN, 0);
}

static CUresult bind_address(CUmemGenericAllocationHandle handle, CUdeviceptr at)
{
    (void)handle;
    return cuMulticastBindAddr(1, 0, at, GRAIN, 0);
}

static CUresult bind_address_2(CUmemGenericAllocationHandle handle, CUdeviceptr at)
{
    (void)handle;
    return cuMulticastBindAddr_v2(1, 0, 0, at, GRAIN, 0);
}

TEST(memory_bound_to_a_multicast_object_stays_charged_however_it_was_bound)
{
    static CUresult (*const forms[])(CUmemGenericAllocationHandle, CUdeviceptr) = {bind_handle, bind_address, bind_address_2};
    static const CUmemAllocationProp on_card = {.type = 1, .location_type = CU_MEM_LOCATION_TYPE_DEVICE};
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        CUmemGenericAllocationHandle handle = 0;
        CUdeviceptr at = 0;
        start_under(LIMIT);
        uint64_t before = stage_ledger_sum();
        CHECK_EQ(cuMemCreate(&handle, GRAIN, &on_card, 0), CUDA_SUCCESS);
        CHECK_EQ(cuMemAddressReserve(&at, GRAIN, 0, 0, 0), CUDA_SUCCESS);
        CHECK_EQ(cuMemMap(at, GRAIN, 0, handle, 0), CUDA_SUCCESS);
        CHECK_EQ(forms[i](handle, at), CUDA_SUCCESS);
        CHECK_EQ(cuMemUnmap(at, GRAIN), CUDA_SUCCESS);
        CHECK_EQ(cuMemRelease(handle), CUDA_SUCCESS);
        CHECK_EQ(stage_ledger_sum(), before + GRAIN);
        CHECK_EQ(stage_card_used(), before + GRAIN);
    }
}

static CUresult graph_1(CUgraphExec *out, CUgraph graph)
{
    return cuGraphInstantiate(out, graph, NULL, NULL, 0);
}

static CUresult graph_2(CUgraphExec *out, CUgraph graph)
{
    return cuGraphInstantiate_v2(out, graph, NULL, NULL, 0);
}

static CUresult graph_with_params(CUgraphExec *out, CUgraph graph)
{
    unsigned long long params[8] = {0};
    return cuGraphInstantiateWithParams_ptsz(out, graph, params);
}

TEST(a_graph_instantiated_by_any_form_is_charged_when_it_is_uploaded)
{
    static CUresult (*const forms[])(CUgraphExec *, CUgraph) = {graph_1, graph_2, graph_with_params};
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        CUDA_MEM_ALLOC_NODE_PARAMS params = {.bytes = 64 * MIB};
        CUgraphExec first = NULL, second = NULL;
        CUgraphNode node;
        CUgraph graph;
        start_under(LIMIT);
        CHECK_EQ(cuDeviceGraphMemTrim(0), CUDA_SUCCESS);
        uint64_t before = stage_ledger_sum();
        params.pool.alloc_type = 1;
        params.pool.location_type = CU_MEM_LOCATION_TYPE_DEVICE;
        CHECK_EQ(cuGraphCreate(&graph, 0), CUDA_SUCCESS);
        CHECK_EQ(cuGraphAddMemAllocNode(&node, graph, NULL, 0, &params), CUDA_SUCCESS);
        params.bytes = LIMIT + MIB;
        CHECK_EQ(forms[i](&first, graph), CUDA_SUCCESS);
        CHECK_EQ(cuGraphUpload_ptsz(first, NULL), CUDA_SUCCESS);
        CHECK_EQ(stage_ledger_sum(), before + 64 * MIB);
        CHECK_EQ(cuGraphCreate(&graph, 0), CUDA_SUCCESS);
        CHECK_EQ(cuGraphAddMemAllocNode(&node, graph, NULL, 0, &params), CUDA_SUCCESS);
        CUresult result = forms[i](&second, graph); /* or at once, if it could never be uploaded */
        CHECK_EQ(result == CUDA_SUCCESS ? cuGraphUpload_ptsz(second, NULL) : result, CUDA_ERROR_OUT_OF_MEMORY);
        CHECK_EQ(cuGraphExecDestroy(first), CUDA_SUCCESS);
        CHECK_EQ(cuDeviceGraphMemTrim(0), CUDA_SUCCESS);
    }
}

TEST(what_takes_memory_that_is_not_accounted_is_refused_under_a_limit_by_every_name)
{
    static void (*const doors[])(void) = {cuMemAlloc,
                                          cuMemAllocPitch,
                                          cuArrayCreate,
                                          cuArray3DCreate,
                                          cuMemMapArrayAsync,
                                          cuMemMapArrayAsync_ptsz,
                                          cuLogicalEndpointBindMem,
                                          cuLogicalEndpointBindAddr};
    for (size_t i = 0; i < sizeof doors / sizeof doors[0]; i++) {
        CUresult (*door)(void *, size_t, size_t) = (CUresult (*)(void *, size_t, size_t))doors[i];
        start_under(LIMIT);
        CHECK_EQ(door(NULL, 0, 0), CUDA_ERROR_NOT_SUPPORTED);
        start_under(VGPU_UNLIMITED); /* no 64-bit driver has the first two */
        CHECK(i < 2 || door(NULL, 0, 0) != CUDA_ERROR_NOT_SUPPORTED);
    }
}

/* This must be the last one, because the process keeps what the driver took for itself. */
static CUresult a_module(void)
{
    CUmodule module;
    return cuModuleLoad(&module, "x.cubin");
}

static CUresult module_data(void)
{
    CUmodule module;
    return cuModuleLoadData(&module, "image");
}

static CUresult module_data_ex(void)
{
    CUmodule module;
    return cuModuleLoadDataEx(&module, "image", 0, NULL, NULL);
}

static CUresult fat_binary(void)
{
    CUmodule module;
    return cuModuleLoadFatBinary(&module, "binary");
}

static CUresult library_data(void)
{
    void *library;
    return cuLibraryLoadData(&library, "code", NULL, NULL, 0, NULL, NULL, 0);
}

static CUresult library_file(void)
{
    void *library;
    return cuLibraryLoadFromFile(&library, "x.cubin", NULL, NULL, 0, NULL, NULL, 0);
}

static CUresult green_context(void)
{
    void *green;
    return cuGreenCtxCreate(&green, NULL, 0, 0);
}

static CUresult heap(void)
{
    enum { MALLOC_HEAP_SIZE = 2 };
    return cuCtxSetLimit(MALLOC_HEAP_SIZE, 64 * MIB);
}

TEST(what_code_green_contexts_and_limits_take_is_found_whichever_call_made_it)
{
    static CUresult (*const forms[])(void) = {a_module,     module_data,  module_data_ex, fat_binary,
                                              library_data, library_file, green_context,  heap};
    CUdeviceptr out = 0;
    uint64_t before;
    start_under(LIMIT);
    CHECK_EQ(cuMemAlloc_v2(&out, MIB), CUDA_SUCCESS);
    stage_name_processes();
    before = stage_ledger_sum();
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        CHECK_EQ(state_take(machine_current(), 0, 4 * MIB, 0), STATE_OK);
        CHECK_EQ(forms[i](), CUDA_SUCCESS);
        stage_see_memory();
        until_ledger_is(before + (i + 1) * 4 * MIB);
    }
    CHECK_EQ(cuMemAlloc_v2(&out, LIMIT - stage_ledger_sum() + 1), CUDA_ERROR_OUT_OF_MEMORY);
    state_give(machine_current(), 0, sizeof forms / sizeof forms[0] * 4 * MIB, 0);
    CHECK_EQ(cuDevicePrimaryCtxReset_v2(0), CUDA_SUCCESS);
}

int main(int argc, char **argv)
{
    (void)argc;
    stage_enter(argv, NULL);
    return t_run();
}
