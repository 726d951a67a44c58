/* cuda_graph_memory.h - memory that the nodes of graphs allocate and free.
 *
 * A node's address is fixed when the node is added. The card's memory is taken when the graph is launched or uploaded, in
 * whole chunks from one pool for each device, and stays there until the pool is trimmed.
 */
#ifndef FAKE_CUDA_GRAPH_MEMORY_H
#define FAKE_CUDA_GRAPH_MEMORY_H

#include "cuda.h"

struct graph_memory; /* one allocation of a graph */

/* Return an address for `bytes` of a device, with no memory behind it yet, or NULL if there is none. */
struct graph_memory *cuda_graph_memory_new(CUdevice device, size_t bytes);
CUdeviceptr cuda_graph_memory_address(const struct graph_memory *memory);

/* Return the allocation at an address; NULL if no graph has made one there. */
struct graph_memory *cuda_graph_memory_at(CUdeviceptr address);

/* Run one node of a graph. */
struct graph_step {
    struct graph_memory *memory;
    int is_free;
};

/* Run all steps of a graph, or, with `only_back`, only provide memory for them. */
CUresult cuda_graph_memory_run(const struct graph_step *steps, size_t count, int only_back);

/* Free an allocation that a graph left; CUDA_ERROR_INVALID_VALUE if there is none. */
CUresult cuda_graph_memory_free(struct graph_memory *memory);

#endif
