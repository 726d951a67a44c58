/* nvml_stubs.c - defines every other function of NVML as "not supported", as on a device without the feature.
 *
 * Generated from libvgpu's table of symbols. The definitions are weak, so what another file simulates takes precedence.
 */
#include "missing.h"

#define STUB(symbol)                                               \
    __attribute__((weak, visibility("default"))) int symbol(void); \
    int symbol(void)                                               \
    {                                                              \
        missing(#symbol);                                          \
        return 3; /* NVML_ERROR_NOT_SUPPORTED */                   \
    }

#define STUB_cuda(symbol)
#define STUB_nvml(symbol) STUB(symbol)
#define VGPU_HOOK(class, library, symbol, base, since, per_thread, ret, parameters) STUB_##library(symbol)
#define VGPU_PLAIN(class, library, symbol) STUB_##library(symbol)
#include "../src/symbols.def"
