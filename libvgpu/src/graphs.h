/* graphs.h - memory that graphs allocate.
 *
 * A node that allocates takes nothing when it is added, and an address is all it ever gets: the driver backs it with
 * memory when the graph is launched or uploaded, out of a pool of its own for each device, which keeps what it has until
 * it is trimmed. So what all nodes of a graph together may take is found when it is instantiated, reserved at its
 * first launch, and after each launch the charge is what the driver has reserved. Graphs share that memory when they
 * do not run at once: a reservation that fails is tried again after a trim. Graphs that allocate nothing, as most, are
 * not remembered and cost one look at a word.
 */
#ifndef VGPU_GRAPHS_H
#define VGPU_GRAPHS_H

#include "process.h"

/* Run `call(argument)`, which makes `*out` of `graph`, and remember what that will take. */
CUresult vgpu_graph_instantiate(const struct vgpu_cuda *cuda, CUgraph graph, const CUgraphExec *out,
                                CUresult (*call)(void *argument), void *argument);

/* Launch or upload `exec` into `stream`. */
CUresult vgpu_graph_run(const struct vgpu_cuda *cuda, CUgraphExec exec, CUstream stream, CUresult (*call)(CUgraphExec, CUstream));

/* Forget an instantiated graph before the driver destroys it. */
void vgpu_graph_forget(CUgraphExec exec);

#endif
