/* overhead.h - device memory that contexts, modules and local memory take by themselves.
 *
 * The driver does not say in advance how much this will be, so the library learns it. After a context was created, its
 * cost is NVML's figure for the process minus what the ledger knows. From then on this amount is reserved before any
 * process of the container creates another context. Once the price is known, no call waits for NVML; its figure is read
 * later. What grows (modules, stacks) is found by the same comparison. It is charged even if it does not fit, because
 * it exists and must keep new memory out. The charge shrinks only when a context is destroyed.
 *
 * Some drivers do not show a container how much its processes hold (usage.h). A context is then charged by how much the
 * device's use grew, within bounds, until the agent writes down what it sees from the host.
 */
#ifndef VGPU_OVERHEAD_H
#define VGPU_OVERHEAD_H

#include "process.h"

/* A context that is about to be created. Its device's lock is held from begin to end. */
struct vgpu_new_context {
    struct vgpu_process *process; /* NULL: nothing is counted */
    int ordinal;
    uint64_t cost;    /* known in advance, and reserved; 0 if it is not known */
    uint64_t guess;   /* the likely cost if it is not known; as much of it is reserved as fits */
    int is_told;      /* 1 if NVML reported how much of the device was in use before */
    uint64_t device_used;
    uint64_t ledger_used; /* the part of it that this container uses, including the reservation */
    CUcontext made;
    uint64_t before;  /* overhead charged before */
    uint64_t charged; /* overhead charged for this context, once it exists */
};

/* Reserve the cost of a context, if it is known. If this returns CUDA_ERROR_OUT_OF_MEMORY, the context must not be
 * created, and nothing is reserved. */
CUresult vgpu_context_begin(struct vgpu_new_context *it, const struct vgpu_cuda *cuda, CUdevice ordinal);

/* Note that the context was created, or by `result` why not. Returns CUDA_ERROR_OUT_OF_MEMORY if its real cost does not
 * fit; the caller must then destroy it before vgpu_context_end. */
CUresult vgpu_context_made(struct vgpu_new_context *it, const struct vgpu_cuda *cuda, CUresult result);
void vgpu_context_end(struct vgpu_new_context *it, CUresult result);

/* Note that a context of this device was destroyed. `charged` is what was charged for it when it was created. */
void vgpu_context_gone(struct vgpu_process *p, const struct vgpu_cuda *cuda, int ordinal, uint64_t charged);

/* Note that the overhead may have grown, so it must be compared soon. */
void vgpu_overhead_grew(struct vgpu_process *p);

/* Compare, if there is a reason to and the last comparison is not recent. */
void vgpu_overhead_look(struct vgpu_process *p, const struct vgpu_cuda *cuda);

#endif
