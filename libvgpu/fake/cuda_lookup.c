/* cuda_lookup.c - cuGetProcAddress of the simulated driver, from cuda_symbols.def.
 *
 * Only names and addresses matter here, so all symbols are declared with the same type. The functions defined here therefore
 * have other names in C, and get their exported names from the assembler.
 */
#include <string.h>

#include "machine.h"
#include "missing.h"
#include "vgpu_cuda.h"

#define FAKE(base, since, symbol) extern void symbol(void);
#define FAKE_PT(base, since, symbol) extern void symbol(void);
#include "cuda_symbols.def"
#undef FAKE
#undef FAKE_PT

static const struct {
    const char *base;
    int since;
    int per_thread;
    void (*address)(void);
} symbols[] = {
#define FAKE(base, since, symbol) {#base, since, 0, symbol},
#define FAKE_PT(base, since, symbol) {#base, since, 1, symbol},
#include "cuda_symbols.def"
};

static CUresult look_up(const char *name, void **out, int version, uint64_t flags, int *status)
{
    const struct machine *m = machine_current();
    int driver = m ? m->cuda_version : 12080;
    int best = -1, newer = 0, want_per_thread = flags == CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
    if (!name || !out || flags > CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    looked_up(name, version, flags);
    for (int i = 0; i < (int)(sizeof symbols / sizeof symbols[0]); i++) {
        if (strcmp(symbols[i].base, name) != 0 || symbols[i].per_thread > want_per_thread || symbols[i].since > driver) {
            continue;
        }
        if (symbols[i].since > version) {
            newer = 1;
        } else if (best < 0 || symbols[i].per_thread > symbols[best].per_thread ||
                   (symbols[i].per_thread == symbols[best].per_thread && symbols[i].since > symbols[best].since)) {
            best = i;
        }
    }
    if (status) {
        *status = best >= 0 ? CU_GET_PROC_ADDRESS_SUCCESS
                  : newer   ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                            : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    }
    *out = best >= 0 ? (void *)symbols[best].address : NULL;
    return best >= 0 ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

__attribute__((visibility("default"))) CUresult look_up_v1(const char *, void **, int, uint64_t) __asm__("cuGetProcAddress");
__attribute__((visibility("default"))) CUresult look_up_v2(const char *, void **, int, uint64_t,
                                                           int *) __asm__("cuGetProcAddress_v2");

__attribute__((visibility("default"))) CUresult look_up_v2_ptsz(const char *, void **, int, uint64_t,
                                                                int *) __asm__("cuGetProcAddress_v2_ptsz");

__attribute__((visibility("default"))) CUresult look_up_v1_ptsz(const char *, void **, int,
                                                                uint64_t) __asm__("cuGetProcAddress_ptsz");

CUresult look_up_v1(const char *name, void **out, int version, uint64_t flags)
{
    return look_up(name, out, version, flags, NULL);
}

CUresult look_up_v2(const char *name, void **out, int version, uint64_t flags, int *status)
{
    return look_up(name, out, version, flags, status);
}

/* In a program compiled for per-thread default streams, the default stream means the thread's own. */
static uint64_t meant(uint64_t flags)
{
    return flags == CU_GET_PROC_ADDRESS_DEFAULT ? CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM : flags;
}

CUresult look_up_v1_ptsz(const char *name, void **out, int version, uint64_t flags)
{
    return look_up(name, out, version, meant(flags), NULL);
}

CUresult look_up_v2_ptsz(const char *name, void **out, int version, uint64_t flags, int *status)
{
    return look_up(name, out, version, meant(flags), status);
}
