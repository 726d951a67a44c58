/* charge.h - reserve, call the driver, correct: what every allocating hook does around its call.
 *
 *     struct vgpu_charge charge = {0};
 *     CUresult result = vgpu_charge_begin(&charge, cuda, ordinal, bytes);
 *     if (result != CUDA_SUCCESS) return result;              // refused; the driver was not asked
 *     result = cuda->cuMemAlloc_v2(out, bytes);
 *     return vgpu_charge_end(&charge, result, out);
 *
 * The ledger is charged before the driver is, so at no moment does the driver hold more than the ledger has.
 */
#ifndef VGPU_CHARGE_H
#define VGPU_CHARGE_H

#include "process.h"

struct vgpu_charge {
    struct vgpu_process *process; /* NULL: nothing is counted */
    const struct vgpu_cuda *cuda;
    struct vgpu_region_slot *slot;
    int ordinal, column;
    uint64_t bytes;
};

/* Reserve `bytes` (rounded here) of a device. CUDA_ERROR_OUT_OF_MEMORY if that exceeds the limit. */
CUresult vgpu_charge_begin(struct vgpu_charge *charge, const struct vgpu_cuda *cuda, CUdevice ordinal, uint64_t bytes);

/* The same for page-locked memory of the host. */
CUresult vgpu_charge_host(struct vgpu_charge *charge, const struct vgpu_cuda *cuda, uint64_t bytes);

/* The same for the device of the current context; with no context, the driver's error. */
CUresult vgpu_charge_current(struct vgpu_charge *charge, const struct vgpu_cuda *cuda, uint64_t bytes);

/* Return 1 if managed memory of this device is counted beside its own memory, which is then less than the limit. */
int vgpu_is_oversubscribed(struct vgpu_process *p, const struct vgpu_cuda *cuda, CUdevice ordinal);

/* Allocate managed memory beside an oversubscribed device. */
CUresult vgpu_charge_managed(struct vgpu_process *p, const struct vgpu_cuda *cuda, CUdevice ordinal, CUdeviceptr *out,
                             uint64_t bytes, unsigned flags);

/* Return the charge of an object. */
void vgpu_charge_drop(struct vgpu_process *p, const struct vgpu_object *object);

/* Remember an object; what its handle stood for before is gone, and gives back its charge. 0, or -1 without memory. */
int vgpu_charge_remember(struct vgpu_process *p, const struct vgpu_cuda *cuda, struct vgpu_object object);

/* The second half of that, under no pool's lock: the driver has given out anew what `old` stood for. */
void vgpu_charge_displaced(struct vgpu_process *p, const struct vgpu_cuda *cuda, const struct vgpu_object *old);

/* Adjust the reservation to what the driver really took. CUDA_ERROR_OUT_OF_MEMORY if the difference does not fit. */
CUresult vgpu_charge_correct(struct vgpu_charge *charge, uint64_t bytes);

/* After the driver's call: record the result, or cancel the reservation if the call failed. */
CUresult vgpu_charge_end(struct vgpu_charge *charge, CUresult result, const CUdeviceptr *address);

/* The same for handles. `undo` makes the driver take the object back if there is no host memory to record it. */
CUresult vgpu_charge_keep(struct vgpu_charge *charge, CUresult result, enum vgpu_kind kind, uint64_t handle,
                          void (*undo)(const struct vgpu_cuda *, uint64_t handle));

/* Forget an allocation before the driver frees it (afterwards its address may already belong to another thread).
 * 1 when it was known. */
int vgpu_charge_forget(struct vgpu_process *p, enum vgpu_kind kind, uint64_t handle, struct vgpu_object *out);

/* Free an address by `call(argument, address)`, however it was allocated, and return its charge. */
CUresult vgpu_charge_free(struct vgpu_process *p, const struct vgpu_cuda *cuda, CUdeviceptr address,
                          CUresult (*call)(void *argument, CUdeviceptr address), void *argument);

/* After the driver's call: return the bytes, or record the allocation again if it was not freed. */
void vgpu_charge_return(struct vgpu_process *p, const struct vgpu_object *object, CUresult result);

#endif
