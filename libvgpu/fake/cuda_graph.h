/* cuda_graph.h - graphs of the simulated driver: a list of nodes in the order in which they were added. */
#ifndef FAKE_CUDA_GRAPH_H
#define FAKE_CUDA_GRAPH_H

#include "cuda_graph_memory.h"
#include "cuda_work.h"

struct CUgraphNode_st {
    struct CUgraphNode_st *next;
    int type;
    struct shape shape;
    struct graph_memory *memory; /* for a node that allocates or frees */
    CUDA_MEM_ALLOC_NODE_PARAMS params;
    struct CUgraph_st *child;
};

struct CUgraph_st {
    struct CUgraphNode_st *first, *last;
    size_t count;
};

#endif
