/* overhead.h - what contexts, modules and local memory take of a device by themselves.
 *
 * The driver does not report how much that will be, so it is learned: after a context was made, NVML's figure for this
 * process minus what the ledger knows of is what it cost, and from then on that much is reserved before any process of the
 * container makes another. Where a price is known no call waits for NVML: its figure is read later. What grows (modules,
 * stacks) is found by the same comparison, and charged though it may not fit: it is there, and keeps new memory away. Only a
 * context that goes gives any of it back.
 *
 * Some drivers do not show a container how much its processes hold (usage.h). Then a context is charged by how much the device's
 * use grew, within bounds, until the agent writes down what it sees from the host.
 */
#ifndef VGPU_OVERHEAD_H
#define VGPU_OVERHEAD_H

#include "process.h"

/* A context about to be made. Holds the lock of its device from begin to end. */
struct vgpu_new_context {
    struct vgpu_process *process; /* NULL: nothing is counted */
    int ordinal;
    uint64_t cost;    /* known beforehand, and reserved; 0: not known */
    uint64_t guess;   /* then: what it may cost, of which as much is reserved as fits */
    int is_told;      /* by NVML: how much of the device was in use before */
    uint64_t device_used;
    uint64_t ledger_used; /* of that, by this container, including the reservation */
    CUcontext made;
    uint64_t before;  /* overhead charged by then */
    uint64_t charged; /* for this one, once it is made */
};

/* Reserve the known cost of a context. CUDA_ERROR_OUT_OF_MEMORY: do not create it; nothing is reserved then. */
CUresult vgpu_context_begin(struct vgpu_new_context *it, const struct vgpu_cuda *cuda, CUdevice ordinal);

/* The context was created, or `result` says why not. CUDA_ERROR_OUT_OF_MEMORY if its real cost does not fit: the caller
 * destroys it before vgpu_context_end. */
CUresult vgpu_context_made(struct vgpu_new_context *it, const struct vgpu_cuda *cuda, CUresult result);
void vgpu_context_end(struct vgpu_new_context *it, CUresult result);

/* A context of this device has been destroyed; `charged` is what was charged for it when it was created. */
void vgpu_context_gone(struct vgpu_process *p, const struct vgpu_cuda *cuda, int ordinal, uint64_t charged);

/* Something happened that may have increased the overhead: compare soon. */
void vgpu_overhead_grew(struct vgpu_process *p);

/* Compare, if there is reason to and the last comparison was a while ago. */
void vgpu_overhead_look(struct vgpu_process *p, const struct vgpu_cuda *cuda);

#endif
