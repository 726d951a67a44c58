/* nvml_stubs.c - every other function of NVML exists too, as on a device without the feature: not supported.
 *
 * Generated from libvgpu's table of symbols; the definitions are weak, so what another file simulates wins.
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
