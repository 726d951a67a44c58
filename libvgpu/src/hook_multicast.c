/* hook_multicast.c - binding memory to multicast objects, which are not tracked here.
 *
 * Such an object keeps the bound memory for longer than we can see, so one reference to the memory is never dropped.
 * It is taken before the driver's call, because afterwards another thread may have dropped the last one.
 */
#include "backing.h"

static struct vgpu_backing *keep(struct vgpu_process *p, const struct vgpu_cuda *cuda, enum vgpu_kind kind, uint64_t handle)
{
    struct vgpu_backing *backing = NULL;
    struct vgpu_object object;
    if (!p) {
        return NULL;
    }
    vgpu_calm_take(&p->mappings);
    if (kind == VGPU_KIND_MAPPING ? vgpu_backing_find_mapping(p, cuda, handle, &object)
                                  : vgpu_objects_find(&p->objects, kind, handle, &object)) {
        backing = vgpu_backing_of(&object);
        backing->references++;
    }
    vgpu_calm_drop(&p->mappings);
    return backing;
}

static CUresult kept(struct vgpu_process *p, struct vgpu_backing *backing, CUresult result)
{
    if (backing && result != CUDA_SUCCESS) {
        vgpu_calm_take(&p->mappings);
        vgpu_backing_let_go(p, backing);
        vgpu_calm_drop(&p->mappings);
    }
    return result;
}

#define BIND(symbol, kind, handle, arguments)                       \
    {                                                               \
        const struct vgpu_cuda *cuda = vgpu_world->cuda();          \
        struct vgpu_process *p = vgpu_process();                    \
        if (!cuda || !cuda->symbol) {                               \
            return CUDA_ERROR_NOT_INITIALIZED;                      \
        }                                                           \
        struct vgpu_backing *backing = keep(p, cuda, kind, handle); \
        return kept(p, backing, cuda->symbol arguments);            \
    }

CUresult cuMulticastBindMem(CUmemGenericAllocationHandle multicast, size_t at, CUmemGenericAllocationHandle handle, size_t offset,
                            size_t bytes, uint64_t flags)
    BIND(cuMulticastBindMem, VGPU_KIND_HANDLE, handle, (multicast, at, handle, offset, bytes, flags))

        CUresult cuMulticastBindMem_v2(CUmemGenericAllocationHandle multicast, CUdevice device, size_t at,
                                       CUmemGenericAllocationHandle handle, size_t offset, size_t bytes, uint64_t flags)
            BIND(cuMulticastBindMem_v2, VGPU_KIND_HANDLE, handle, (multicast, device, at, handle, offset, bytes, flags))

                CUresult
    cuMulticastBindAddr(CUmemGenericAllocationHandle multicast, size_t at, CUdeviceptr address, size_t bytes, uint64_t flags)
        BIND(cuMulticastBindAddr, VGPU_KIND_MAPPING, address, (multicast, at, address, bytes, flags))

            CUresult cuMulticastBindAddr_v2(CUmemGenericAllocationHandle multicast, CUdevice device, size_t at,
                                            CUdeviceptr address, size_t bytes, uint64_t flags)
                BIND(cuMulticastBindAddr_v2, VGPU_KIND_MAPPING, address, (multicast, device, at, address, bytes, flags))
