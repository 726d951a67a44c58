/* test_routing.c - every way to a driver function leads to its hook, and every other look-up is unchanged. */
#include <dlfcn.h>
#include <string.h>

#include "stage.h"
#include "t.h"
#include "vgpu_cuda.h"

void *behind_next(const char *name);
int t_in_both(void);

int t_in_both(void)
{
    return 1;
}

/* Versions of libc's symbols: of the oldest libc on this architecture, and of memcpy. */
#if defined(__x86_64__)
#define OLDEST_LIBC "GLIBC_2.2.5"
#define MEMCPY_LIBC "GLIBC_2.14"
#else
#define OLDEST_LIBC "GLIBC_2.17"
#define MEMCPY_LIBC "GLIBC_2.17"
#endif

/* Only addresses matter here, so every symbol has the same type. */
#define VGPU_HOOK(class, library, symbol, base, since, per_thread, ret, parameters) extern void symbol(void);
#define VGPU_GATE(class, library, symbol, base, since, per_thread) extern void symbol(void);
#include "../src/symbols.def"

static const struct {
    const char *name, *base;
    int since, per_thread, cuda;
    void (*linked)(void);
} symbols[] = {
#define IS_cuda 1
#define IS_nvml 0
#define VGPU_HOOK(class, library, symbol, base, since, per_thread, ret, parameters) \
    {#symbol, #base, since, per_thread, IS_##library, symbol},
#define VGPU_GATE(class, library, symbol, base, since, per_thread) {#symbol, #base, since, per_thread, IS_##library, symbol},
#include "../src/symbols.def"
};
#define COUNT (sizeof symbols / sizeof symbols[0])

static int lies_in(const void *address, const char *library)
{
    Dl_info info;
    return address && dladdr(address, &info) && strstr(info.dli_fname, library) != NULL;
}

#define CHECK_OURS(address, name)                                                                                      \
    do {                                                                                                               \
        void *t_address = (void *)(address);                                                                           \
        Dl_info t_info = {0};                                                                                          \
        if (!lies_in(t_address, "libvgpu.so") ||                                                                       \
            !(dladdr(t_address, &t_info) && t_info.dli_sname && !strcmp(t_info.dli_sname, name))) {                    \
            fprintf(stderr, "    %s:%d: %s is %s of %s\n", __FILE__, __LINE__, name,                                   \
                    t_info.dli_sname ? t_info.dli_sname : "nothing", t_info.dli_fname ? t_info.dli_fname : "nowhere"); \
            longjmp(t_out, 1);                                                                                         \
        }                                                                                                              \
    } while (0)

static void *handle_of(int cuda)
{
    return dlopen(cuda ? "libcuda.so.1" : "libnvidia-ml.so.1", RTLD_NOW);
}

TEST(linked_programs_get_the_hooks)
{
    for (size_t i = 0; i < COUNT; i++) {
        CHECK_OURS(symbols[i].linked, symbols[i].name);
    }
}

TEST(dlsym_on_the_driver_gets_the_hooks)
{
    for (size_t i = 0; i < COUNT; i++) {
        CHECK_OURS(dlsym(handle_of(symbols[i].cuda), symbols[i].name), symbols[i].name);
    }
}

TEST(dlvsym_on_the_driver_gets_the_hooks_or_what_libc_says)
{
    for (size_t i = 0; i < COUNT; i++) {
        void *found = dlvsym(handle_of(symbols[i].cuda), symbols[i].name, OLDEST_LIBC);
        CHECK(!lies_in(found, "libcuda") && !lies_in(found, "libnvidia"));
        if (found) {
            CHECK_OURS(found, symbols[i].name);
        }
    }
}

TEST(the_pseudo_handles_get_the_hooks)
{
    for (size_t i = 0; i < COUNT; i++) {
        CHECK_OURS(dlsym(RTLD_DEFAULT, symbols[i].name), symbols[i].name);
        CHECK_OURS(dlsym(RTLD_NEXT, symbols[i].name), symbols[i].name);
        CHECK_OURS(dlsym(dlopen(NULL, RTLD_NOW), symbols[i].name), symbols[i].name);
    }
}

TEST(libc_s_own_dlsym_cannot_be_had_by_name)
{
    static const char *const names[] = {"dlsym", "dlvsym"};
    void *libc = dlopen("libc.so.6", RTLD_NOW);
    CHECK(libc);
    for (size_t i = 0; i < 2; i++) {
        CHECK_OURS(dlsym(libc, names[i]), names[i]);
        CHECK_OURS(dlvsym(libc, names[i], OLDEST_LIBC), names[i]);
        CHECK_OURS(dlsym(RTLD_DEFAULT, names[i]), names[i]);
        CHECK_OURS(dlsym(RTLD_NEXT, names[i]), names[i]);
        CHECK_OURS(behind_next(names[i]), names[i]);
        CHECK_OURS(dlsym(handle_of(1), names[i]), names[i]); /* libc is one of the libraries that the driver needs */
    }
    void *(*find)(void *, const char *) = (void *(*)(void *, const char *))dlsym(libc, "dlsym");
    for (size_t i = 0; i < COUNT; i++) {
        CHECK_OURS(find(handle_of(symbols[i].cuda), symbols[i].name), symbols[i].name);
    }
    CHECK(dlvsym(libc, "dlsym", "GLIBC_9.9") == NULL);
    CHECK(lies_in(dlsym(libc, "dlopen"), "libc.so") && lies_in(dlsym(libc, "printf"), "libc.so"));
}

TEST(rtld_next_from_behind_us_does_not_go_past_us)
{
    for (size_t i = 0; i < COUNT; i++) {
        CHECK_OURS(behind_next(symbols[i].name), symbols[i].name);
    }
}

TEST(get_proc_address_gets_the_hook_of_each_version_and_stream_kind)
{
    CUresult (*v1)(const char *, void **, int, uint64_t) = NULL;
    CUresult (*v2)(const char *, void **, int, uint64_t, int *) = NULL;
    *(void **)&v1 = dlsym(handle_of(1), "cuGetProcAddress");
    *(void **)&v2 = dlsym(handle_of(1), "cuGetProcAddress_v2");
    for (size_t i = 0; i < COUNT; i++) {
        void *found = NULL;
        int status = -1;
        uint64_t flags = symbols[i].per_thread ? CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM : 0;
        if (!symbols[i].cuda) {
            continue;
        }
        CHECK_EQ(v1(symbols[i].base, &found, symbols[i].since, flags), CUDA_SUCCESS);
        CHECK_OURS(found, symbols[i].name);
        found = NULL;
        CHECK_EQ(v2(symbols[i].base, &found, symbols[i].since, flags, &status), CUDA_SUCCESS);
        CHECK_EQ(status, CU_GET_PROC_ADDRESS_SUCCESS);
        CHECK_OURS(found, symbols[i].name);
    }
}

TEST(get_proc_address_of_per_thread_programs_gets_per_thread_hooks)
{
    CUresult (*ptsz)(const char *, void **, int, uint64_t, int *) = NULL;
    void *found = NULL;
    *(void **)&ptsz = dlsym(handle_of(1), "cuGetProcAddress_v2_ptsz");
    CHECK_EQ(ptsz("cuMemAllocAsync", &found, 12000, 0, NULL), CUDA_SUCCESS);
    CHECK_OURS(found, "cuMemAllocAsync_ptsz");
}

TEST(get_proc_address_keeps_the_drivers_errors)
{
    CUresult (*v2)(const char *, void **, int, uint64_t, int *) = NULL;
    void *found = &found;
    int status = -1;
    *(void **)&v2 = dlsym(handle_of(1), "cuGetProcAddress_v2");
    CHECK_EQ(v2("", &found, 12000, 0, &status), CUDA_ERROR_NOT_FOUND);
    CHECK(found == NULL && status == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
    CHECK_EQ(v2("cuMemAllocAsync", &found, 11010, 0, &status), CUDA_ERROR_NOT_FOUND);
    CHECK_EQ(status, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
    CHECK_EQ(v2(NULL, &found, 12000, 0, &status), CUDA_ERROR_INVALID_VALUE);
    CHECK_EQ(v2("cuMemAlloc", NULL, 12000, 0, &status), CUDA_ERROR_INVALID_VALUE);
}

TEST(functions_without_a_hook_stay_the_drivers)
{
    static const char *const names[] = {"cuInit", "cuDeviceGet", "cuStreamQuery", "cuMemcpyHtoD_v2", "cuCtxGetCurrent"};
    CUresult (*v2)(const char *, void **, int, uint64_t, int *) = NULL;
    void *found = NULL;
    *(void **)&v2 = dlsym(handle_of(1), "cuGetProcAddress_v2");
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        CHECK(lies_in(dlsym(handle_of(1), names[i]), "libcuda.so"));
    }
    CHECK_EQ(v2("cuStreamQuery", &found, 12000, 0, NULL), CUDA_SUCCESS);
    CHECK(found == dlsym(handle_of(1), "cuStreamQuery"));
    CHECK(lies_in(dlsym(handle_of(0), "nvmlDeviceGetName"), "libnvidia-ml.so"));
}

TEST(rtld_next_sees_the_real_caller)
{
    int (*next)(void) = NULL;
    *(void **)&next = dlsym(RTLD_NEXT, "t_in_both");
    CHECK(next != NULL);
    CHECK_EQ(next(), 2);
    CHECK(behind_next("t_in_both") == NULL);
    CHECK_EQ(t_in_both(), 1);
}

TEST(other_look_ups_and_their_errors_are_libcs_own)
{
    CHECK(lies_in(dlsym(RTLD_NEXT, "malloc"), "libc.so"));
    CHECK(lies_in(dlvsym(RTLD_DEFAULT, "memcpy", MEMCPY_LIBC), "libc.so"));
    dlerror();
    CHECK(dlsym(RTLD_DEFAULT, "no_such_symbol_anywhere") == NULL);
    const char *why = dlerror();
    CHECK(why && strstr(why, "no_such_symbol_anywhere"));
    CHECK(dlsym(handle_of(1), "cuNoSuchFunction") == NULL);
    CHECK(dlerror() != NULL);
}

int main(int argc, char **argv)
{
    (void)argc;
    stage_enter(argv, "cuda=13.5");
    return t_run();
}
