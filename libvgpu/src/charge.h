/* charge.h - reserve, call the driver, correct: what every allocating hook does around its driver call.
 *
 *     struct vgpu_charge charge = {0};
 *     CUresult result = vgpu_charge_begin(&charge, cuda, ordinal, bytes);
 *     if (result != CUDA_SUCCESS) return result;              // refused; the driver was not asked
 *     result = cuda->cuMemAlloc_v2(out, bytes);
 *     return vgpu_charge_end(&charge, result, out);
 *
 * The ledger is charged before the driver is called, so the driver never holds more than the ledger says.
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

/* Reserve `bytes` of a device, rounded up as the driver does. Return CUDA_ERROR_OUT_OF_MEMORY if that exceeds the limit. */
CUresult vgpu_charge_begin(struct vgpu_charge *charge, const struct vgpu_cuda *cuda, CUdevice ordinal, uint64_t bytes);

/* Reserve page-locked host memory. */
CUresult vgpu_charge_host(struct vgpu_charge *charge, const struct vgpu_cuda *cuda, uint64_t bytes);

/* Reserve memory of the current context's device. Return the driver's error if there is no context. */
CUresult vgpu_charge_current(struct vgpu_charge *charge, const struct vgpu_cuda *cuda, uint64_t bytes);

/* Return 1 if the device is oversubscribed: managed memory is then counted separately from the device's own memory. */
int vgpu_is_oversubscribed(struct vgpu_process *p, const struct vgpu_cuda *cuda, CUdevice ordinal);

/* Allocate managed memory on an oversubscribed device. */
CUresult vgpu_charge_managed(struct vgpu_process *p, const struct vgpu_cuda *cuda, CUdevice ordinal, CUdeviceptr *out,
                             uint64_t bytes, unsigned flags);

/* Give back the charge of an object. */
void vgpu_charge_drop(struct vgpu_process *p, const struct vgpu_object *object);

/* Remember an object. If its handle was known, the former object is gone, and its charge is given back. Return 0, or -1
 * without memory. */
int vgpu_charge_remember(struct vgpu_process *p, const struct vgpu_cuda *cuda, struct vgpu_object object);

/* Give back the charge of an object whose handle the driver has reused. The caller must hold no pool's lock. */
void vgpu_charge_displaced(struct vgpu_process *p, const struct vgpu_cuda *cuda, const struct vgpu_object *old);

/* Correct the reservation to what the driver really took. Return CUDA_ERROR_OUT_OF_MEMORY if the difference does not fit. */
CUresult vgpu_charge_correct(struct vgpu_charge *charge, uint64_t bytes);

/* Record the result of the driver's call, or cancel the reservation if the call failed. */
CUresult vgpu_charge_end(struct vgpu_charge *charge, CUresult result, const CUdeviceptr *address);

/* Do the same for a handle. If there is no host memory to record it, `undo` frees the object again. */
CUresult vgpu_charge_keep(struct vgpu_charge *charge, CUresult result, enum vgpu_kind kind, uint64_t handle,
                          void (*undo)(const struct vgpu_cuda *, uint64_t handle));

/* Forget an allocation before the driver frees it, because afterwards another thread may already own the address.
 * Return 1 if it was known. */
int vgpu_charge_forget(struct vgpu_process *p, enum vgpu_kind kind, uint64_t handle, struct vgpu_object *out);

/* Free an address by `call(argument, address)` and return its charge, however it was allocated. */
CUresult vgpu_charge_free(struct vgpu_process *p, const struct vgpu_cuda *cuda, CUdeviceptr address,
                          CUresult (*call)(void *argument, CUdeviceptr address), void *argument);

/* Return the charge after the driver's call, or record the allocation again if it was not freed. */
void vgpu_charge_return(struct vgpu_process *p, const struct vgpu_object *object, CUresult result);

#endif
