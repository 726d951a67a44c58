/* cuda_stubs.c - defines every other function of the driver API as "not supported", like a driver without the feature.
 *
 * Generated from libvgpu's table of symbols. The definitions are weak, so what another file simulates takes precedence.
 */
#include "missing.h"

#define STUB(symbol)                                               \
    __attribute__((weak, visibility("default"))) int symbol(void); \
    int symbol(void)                                               \
    {                                                              \
        missing(#symbol);                                          \
        return 801; /* CUDA_ERROR_NOT_SUPPORTED */                 \
    }

#define STUB_cuda(symbol) STUB(symbol)
#define STUB_nvml(symbol)
#define VGPU_HOOK(class, library, symbol, base, since, per_thread, ret, parameters) STUB_##library(symbol)
#define VGPU_GATE(class, library, symbol, base, since, per_thread) STUB_##library(symbol)
#define VGPU_PLAIN(class, library, symbol) STUB_##library(symbol)
#include "../src/symbols.def"
