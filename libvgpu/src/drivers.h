/* drivers.h - tables of the driver's own functions, generated from symbols.def.
 *
 * A member is NULL if the driver lacks the function.
 */
#ifndef VGPU_DRIVERS_H
#define VGPU_DRIVERS_H

#include "vgpu_cuda.h"
#include "vgpu_nvml.h"

typedef void (*vgpu_function)(void);

struct vgpu_cuda {
#define VGPU_MEMBER_cuda(symbol, ret, parameters) ret(*symbol) parameters;
#define VGPU_MEMBER_nvml(symbol, ret, parameters)
#define VGPU_HOOK(class, library, symbol, base, since, per_thread, ret, parameters) VGPU_MEMBER_##library(symbol, ret, parameters)
#define VGPU_GATE(class, library, symbol, base, since, per_thread) VGPU_MEMBER_##library(symbol, void, (void))
#define VGPU_USED(library, symbol, ret, parameters) VGPU_MEMBER_##library(symbol, ret, parameters)
#include "symbols.def"
#undef VGPU_MEMBER_cuda
#undef VGPU_MEMBER_nvml
};

struct vgpu_nvml {
#define VGPU_MEMBER_cuda(symbol, ret, parameters)
#define VGPU_MEMBER_nvml(symbol, ret, parameters) ret(*symbol) parameters;
#define VGPU_HOOK(class, library, symbol, base, since, per_thread, ret, parameters) VGPU_MEMBER_##library(symbol, ret, parameters)
#define VGPU_USED(library, symbol, ret, parameters) VGPU_MEMBER_##library(symbol, ret, parameters)
#include "symbols.def"
#undef VGPU_MEMBER_cuda
#undef VGPU_MEMBER_nvml
};

/* The hooks have the names and the ABI of the driver's functions, and are exported. */
#define VGPU_EXPORT __attribute__((visibility("default")))
#define VGPU_HOOK(class, library, symbol, base, since, per_thread, ret, parameters) VGPU_EXPORT ret symbol parameters;
#define VGPU_GATE(class, library, symbol, base, since, per_thread) VGPU_EXPORT void symbol(void);
#include "symbols.def"

#endif
