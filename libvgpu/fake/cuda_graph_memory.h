/* cuda_graph_memory.h - what the nodes of graphs allocate and free.
 *
 * A node's address is settled when it is added; memory of the card is taken when the graph is launched or uploaded, from
 * one pool for each device, by whole chunks, and stays there until that is trimmed.
 */
#ifndef FAKE_CUDA_GRAPH_MEMORY_H
#define FAKE_CUDA_GRAPH_MEMORY_H

#include "cuda.h"

struct graph_memory; /* one allocation of a graph */

/* An address for `bytes` of a device, without memory behind it yet. NULL: none to be had. */
struct graph_memory *cuda_graph_memory_new(CUdevice device, size_t bytes);
CUdeviceptr cuda_graph_memory_address(const struct graph_memory *memory);

/* The allocation at an address, NULL when no graph has made one there. */
struct graph_memory *cuda_graph_memory_at(CUdeviceptr address);

/* What one node does when its graph runs. */
struct graph_step {
    struct graph_memory *memory;
    int is_free;
};

/* Run (or with `only_back` just provide for) all steps of a graph. */
CUresult cuda_graph_memory_run(const struct graph_step *steps, size_t count, int only_back);

/* Free what a graph left allocated; CUDA_ERROR_INVALID_VALUE when it is not allocated. */
CUresult cuda_graph_memory_free(struct graph_memory *memory);

#endif
