/* hook_context.c - contexts: the cost of a context is reserved before it is created, and its memory is freed with it.
 *
 * The allocations to drop are chosen before the driver is called. Memory that another thread allocates in the meantime in a
 * new context with the same handle is newer and stays charged.
 */
#include "authority.h"
#include "charge.h"
#include "launch.h"
#include "overhead.h"
#include "pools.h"
#include "process.h"

static void release_one(void *argument, const struct vgpu_object *object)
{
    vgpu_charge_drop(argument, object);
}

/* Record a context's device and charge, because the call that destroys it does not name them. */
static void remember(struct vgpu_process *p, CUcontext context, CUdevice device, uint64_t charged)
{
    struct vgpu_object object = {.handle = (uintptr_t)context, .bytes = charged, .column = device, .kind = VGPU_KIND_CONTEXT};
    if (vgpu_objects_add(&p->objects, object)) {
        vgpu_world->log("vgpu: no memory to remember a context: what it costs stays charged\n");
    }
}

/* Create a context by `call`, whose result is returned and which has set `out`. */
#define CREATE(symbol, parameters, arguments)                           \
    CUresult symbol parameters                                          \
    {                                                                   \
        const struct vgpu_cuda *cuda = vgpu_world->cuda();              \
        struct vgpu_new_context it;                                     \
        if (!cuda || !cuda->symbol) {                                   \
            return CUDA_ERROR_NOT_INITIALIZED;                          \
        }                                                               \
        CUresult result = vgpu_context_begin(&it, cuda, device);        \
        if (result != CUDA_SUCCESS) {                                   \
            return result;                                              \
        }                                                               \
        return created(&it, cuda, cuda->symbol arguments, out, device); \
    }

static CUresult created(struct vgpu_new_context *it, const struct vgpu_cuda *cuda, CUresult result, CUcontext *out,
                        CUdevice device)
{
    it->made = result == CUDA_SUCCESS ? *out : NULL;
    CUresult made = vgpu_context_made(it, cuda, result);
    if (made != CUDA_SUCCESS && result == CUDA_SUCCESS && cuda->cuCtxDestroy_v2) {
        cuda->cuCtxDestroy_v2(*out);
    }
    vgpu_context_end(it, made);
    if (made == CUDA_SUCCESS && it->process) {
        remember(it->process, *out, device, it->charged);
    }
    return made;
}

CREATE(cuCtxCreate, (CUcontext *out, unsigned flags, CUdevice device), (out, flags, device))
CREATE(cuCtxCreate_v2, (CUcontext *out, unsigned flags, CUdevice device), (out, flags, device))
CREATE(cuCtxCreate_v3, (CUcontext *out, void *affinity, int affinities, unsigned flags, CUdevice device),
       (out, affinity, affinities, flags, device))
CREATE(cuCtxCreate_v4, (CUcontext *out, void *parameters, unsigned flags, CUdevice device), (out, parameters, flags, device))

static CUresult destroy(CUresult (*real)(CUcontext), CUcontext context)
{
    struct vgpu_process *p = vgpu_process();
    uint64_t until = p ? vgpu_objects_now(&p->objects) : 0;
    struct vgpu_object known;
    int was_known = p && vgpu_objects_take(&p->objects, VGPU_KIND_CONTEXT, (uintptr_t)context, &known);
    vgpu_launch_end_context(p, vgpu_world->cuda(), context);
    CUresult result = real(context);
    if (p && result == CUDA_SUCCESS) {
        vgpu_objects_drop_context(&p->objects, context, until, release_one, p);
        vgpu_pools_reconcile(p, vgpu_world->cuda());
    }
    if (was_known && result == CUDA_SUCCESS) {
        vgpu_context_gone(p, vgpu_world->cuda(), known.column, known.bytes);
    } else if (was_known) {
        vgpu_objects_add(&p->objects, known);
    }
    return result;
}

CUresult cuCtxDestroy(CUcontext context)
{
    const struct vgpu_cuda *cuda = vgpu_world->cuda();
    return cuda && cuda->cuCtxDestroy ? destroy(cuda->cuCtxDestroy, context) : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult cuCtxDestroy_v2(CUcontext context)
{
    const struct vgpu_cuda *cuda = vgpu_world->cuda();
    return cuda && cuda->cuCtxDestroy_v2 ? destroy(cuda->cuCtxDestroy_v2, context) : CUDA_ERROR_NOT_INITIALIZED;
}

/* End a context with its last use. The driver does not say if this was the last use, so the context's memory stays charged. */
CUresult cuCtxDetach(CUcontext context)
{
    const struct vgpu_cuda *cuda = vgpu_world->cuda();
    if (!cuda || !cuda->cuCtxDetach) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    vgpu_launch_end_context(vgpu_process(), cuda, context);
    return cuda->cuCtxDetach(context);
}

/* A context made from a green context lives in it. */
CUresult cuGreenCtxDestroy(void *green)
{
    const struct vgpu_cuda *cuda = vgpu_world->cuda();
    CUcontext context = NULL;
    if (!cuda || !cuda->cuGreenCtxDestroy) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    if (green && cuda->cuCtxFromGreenCtx && cuda->cuCtxFromGreenCtx(&context, green) == CUDA_SUCCESS) {
        vgpu_launch_end_context(vgpu_process(), cuda, context);
    }
    return cuda->cuGreenCtxDestroy(green);
}

static int is_active(const struct vgpu_cuda *cuda, CUdevice device)
{
    unsigned flags;
    int active = 0;
    return cuda->cuDevicePrimaryCtxGetState && cuda->cuDevicePrimaryCtxGetState(device, &flags, &active) == CUDA_SUCCESS &&
           active;
}

static _Atomic uint32_t *uses_of(struct vgpu_process *p, CUdevice device)
{
    return p && device >= 0 && device < (int)VGPU_MAX_DEVICES ? &p->overheads[device].retained : NULL;
}

static CUresult retained(struct vgpu_process *p, CUdevice device, CUresult result)
{
    _Atomic uint32_t *uses = uses_of(p, device);
    if (uses && result == CUDA_SUCCESS) {
        atomic_fetch_add(uses, 1);
    }
    return result;
}

/* The first retain creates the context; later ones only count. */
CUresult cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice device)
{
    const struct vgpu_cuda *cuda = vgpu_world->cuda();
    struct vgpu_new_context it;
    if (!cuda || !cuda->cuDevicePrimaryCtxRetain) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    struct vgpu_process *p = vgpu_process();
    if (!p || !out || is_active(cuda, device)) {
        return retained(p, device, cuda->cuDevicePrimaryCtxRetain(out, device));
    }
    CUresult result = vgpu_context_begin(&it, cuda, device);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    int was_active = is_active(cuda, device); /* another thread was first, and has finished */
    result = cuda->cuDevicePrimaryCtxRetain(out, device);
    it.made = result == CUDA_SUCCESS ? *out : NULL;
    CUresult made = was_active ? result : vgpu_context_made(&it, cuda, result);
    if (made != CUDA_SUCCESS && result == CUDA_SUCCESS) {
        cuda->cuDevicePrimaryCtxRelease_v2 ? cuda->cuDevicePrimaryCtxRelease_v2(device) : cuda->cuDevicePrimaryCtxRelease(device);
    }
    vgpu_context_end(&it, was_active ? CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE : made);
    if (!was_active && made == CUDA_SUCCESS && it.process) {
        it.process->overheads[device].of_primary = it.charged;
    }
    return retained(p, device, made);
}

/* The driver decides what modules and limits of a context take, so compare with NVML when convenient. */
#define GROWS(symbol, parameters, arguments)                          \
    CUresult symbol parameters                                        \
    {                                                                 \
        const struct vgpu_cuda *cuda = vgpu_world->cuda();            \
        struct vgpu_process *p = vgpu_process();                      \
        if (!cuda || !cuda->symbol) {                                 \
            return CUDA_ERROR_NOT_INITIALIZED;                        \
        }                                                             \
        CUresult result = cuda->symbol arguments;                     \
        if (p && result == CUDA_SUCCESS && !vgpu_limits_nothing(p)) { \
            vgpu_overhead_grew(p);                                    \
            vgpu_overhead_look(p, cuda);                              \
        }                                                             \
        return result;                                                \
    }

GROWS(cuModuleLoad, (CUmodule *out, const char *name), (out, name))
GROWS(cuModuleLoadData, (CUmodule *out, const void *image), (out, image))
GROWS(cuModuleLoadDataEx, (CUmodule *out, const void *image, unsigned count, int *options, void **values),
      (out, image, count, options, values))
GROWS(cuModuleLoadFatBinary, (CUmodule *out, const void *binary), (out, binary))
GROWS(cuLibraryLoadData,
      (void **out, const void *code, int *jit, void **jit_values, unsigned jits, int *options, void **values, unsigned count),
      (out, code, jit, jit_values, jits, options, values, count))
GROWS(cuLibraryLoadFromFile,
      (void **out, const char *name, int *jit, void **jit_values, unsigned jits, int *options, void **values, unsigned count),
      (out, name, jit, jit_values, jits, options, values, count))
GROWS(cuGreenCtxCreate, (void **out, void *resources, CUdevice device, unsigned flags), (out, resources, device, flags))
GROWS(cuCtxSetLimit, (int which, size_t value), (which, value))

/* Return the handle of a device's primary context, or NULL if it is not active. The only way to get it is to retain it. */
static CUcontext primary_of(const struct vgpu_cuda *cuda, CUdevice device, CUresult (*release)(CUdevice))
{
    CUcontext context = NULL;
    if (!release || !cuda->cuDevicePrimaryCtxRetain || !is_active(cuda, device) ||
        cuda->cuDevicePrimaryCtxRetain(&context, device) != CUDA_SUCCESS) {
        return NULL;
    }
    release(device);
    return context;
}

/* End uses of the primary context; `all` marks a call that ends every use, a reset. Events are released before what may be
 * the last use ends, because afterwards they would belong to a context that no longer exists. */
static CUresult end_primary(const struct vgpu_cuda *cuda, CUresult (*real)(CUdevice), CUdevice device, int all)
{
    struct vgpu_process *p = vgpu_process();
    if (!p) {
        return real(device);
    }
    CUresult (*release)(CUdevice) =
        cuda->cuDevicePrimaryCtxRelease_v2 ? cuda->cuDevicePrimaryCtxRelease_v2 : cuda->cuDevicePrimaryCtxRelease;
    CUcontext context = primary_of(cuda, device, release);
    uint64_t until = vgpu_objects_now(&p->objects);
    _Atomic uint32_t *uses = uses_of(p, device);
    uint32_t known = uses ? atomic_load(uses) : 0;
    if (all || known <= 1) {
        vgpu_launch_end_context(p, cuda, context);
    }
    CUresult result = real(device);
    while (uses && result == CUDA_SUCCESS && known && !atomic_compare_exchange_weak(uses, &known, all ? 0 : known - 1)) {
    }
    if (context && result == CUDA_SUCCESS && !is_active(cuda, device)) {
        vgpu_objects_drop_context(&p->objects, context, until, release_one, p);
        vgpu_pools_reconcile(p, cuda);
        vgpu_context_gone(p, cuda, device, p->overheads[device].of_primary);
    }
    return result;
}

#define END_PRIMARY(symbol, all)                                                                                 \
    CUresult symbol(CUdevice device)                                                                             \
    {                                                                                                            \
        const struct vgpu_cuda *cuda = vgpu_world->cuda();                                                       \
        return cuda && cuda->symbol ? end_primary(cuda, cuda->symbol, device, all) : CUDA_ERROR_NOT_INITIALIZED; \
    }

END_PRIMARY(cuDevicePrimaryCtxRelease, 0)
END_PRIMARY(cuDevicePrimaryCtxRelease_v2, 0)
END_PRIMARY(cuDevicePrimaryCtxReset, 1)
END_PRIMARY(cuDevicePrimaryCtxReset_v2, 1)
