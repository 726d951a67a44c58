/* graphs.h - memory that graphs allocate.
 *
 * Adding an allocation node to a graph takes no memory and only fixes an address. The driver provides the memory when
 * the graph is launched or uploaded, from a pool for each device, which keeps it until it is trimmed. So the library
 * computes at instantiation how much all nodes of the graph can take, reserves it at the first launch, and after each
 * launch sets the charge to what the driver has reserved. Graphs that do not run at the same time share memory, so a
 * reservation that fails is tried again after a trim. Most graphs allocate nothing; they are not remembered and cost
 * one read of a word.
 */
#ifndef VGPU_GRAPHS_H
#define VGPU_GRAPHS_H

#include "process.h"

/* Call `call(argument)`, which makes `*out` out of `graph`, and remember how much memory it will take. */
CUresult vgpu_graph_instantiate(const struct vgpu_cuda *cuda, CUgraph graph, const CUgraphExec *out,
                                CUresult (*call)(void *argument), void *argument);

/* Launch or upload `exec` into `stream`. */
CUresult vgpu_graph_run(const struct vgpu_cuda *cuda, CUgraphExec exec, CUstream stream, CUresult (*call)(CUgraphExec, CUstream));

/* Forget an instantiated graph before the driver destroys it. */
void vgpu_graph_forget(CUgraphExec exec);

#endif
