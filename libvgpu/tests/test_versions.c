/* test_versions.c - on drivers of several generations, cuGetProcAddress never returns a function that has a hook, whatever
 * version and stream kind is requested, and what it returns keeps the limit. */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "driver_api.h"
#include "stage.h"
#include "t.h"

#define MIB (UINT64_C(1) << 20)

static const char *const drivers[] = {"cuda=11.4", "cuda=12.2", "cuda=12.8", "cuda=13.0"};
static const int versions[] = {2000,  3020,  4000,  6000,  7000,  10000, 10020, 11000,
                               11020, 11040, 12000, 12020, 12030, 13000, 13050};

static const struct {
    const char *name, *base;
    int since, cuda;
} symbols[] = {
#define IS_cuda 1
#define IS_nvml 0
#define VGPU_HOOK(class, library, symbol, base, since, per_thread, ret, parameters) {#symbol, #base, since, IS_##library},
#define VGPU_GATE(class, library, symbol, base, since, per_thread) {#symbol, #base, since, IS_##library},
#include "../src/symbols.def"
};
#define COUNT (sizeof symbols / sizeof symbols[0])

typedef CUresult (*look_up_v1)(const char *, void **, int, uint64_t);
typedef CUresult (*look_up_v2)(const char *, void **, int, uint64_t, int *);

static void *driver(void)
{
    return dlopen("libcuda.so.1", RTLD_NOW);
}

static int driver_version(void)
{
    int version = 0;
    CUresult (*ask)(int *) = (CUresult (*)(int *))dlsym(driver(), "cuDriverGetVersion");
    ask(&version);
    return version;
}

static int is_hooked(const char *name)
{
    for (size_t i = 0; i < COUNT; i++) {
        if (!strcmp(symbols[i].name, name)) {
            return 1;
        }
    }
    return 0;
}

static void check_answer(const char *base, CUresult result, void *found)
{
    Dl_info info = {0};
    CHECK(result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_FOUND);
    if (result == CUDA_SUCCESS) {
        if (!found || !dladdr(found, &info) || !info.dli_sname) {
            fprintf(stderr, "    %s: %p\n", base, found);
            CHECK(0);
        }
        if (!strstr(info.dli_fname, "libvgpu.so") && is_hooked(info.dli_sname)) {
            fprintf(stderr, "    %s: the driver's own %s\n", base, info.dli_sname);
            CHECK(0);
        }
    }
}

TEST(no_version_and_no_stream_kind_leads_past_a_hook)
{
    static const char *const doors[] = {"cuGetProcAddress", "cuGetProcAddress_ptsz"};
    static const char *const later_doors[] = {"cuGetProcAddress_v2", "cuGetProcAddress_v2_ptsz"};
    for (size_t i = 0; i < COUNT; i++) {
        for (size_t v = 0; symbols[i].cuda && v < sizeof versions / sizeof versions[0]; v++) {
            for (uint64_t flags = 0; flags <= CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM; flags++) {
                for (int door = 0; door < 2; door++) {
                    void *found = NULL;
                    int status = -1;
                    look_up_v1 old = (look_up_v1)dlsym(driver(), doors[door]);
                    look_up_v2 new = (look_up_v2)dlsym(driver(), later_doors[door]);
                    CUresult result = old(symbols[i].base, &found, versions[v], flags);
                    check_answer(symbols[i].base, result, found);
                    found = NULL;
                    result = new(symbols[i].base, &found, versions[v], flags, &status);
                    check_answer(symbols[i].base, result, found);
                    CHECK((result == CUDA_SUCCESS) == (status == CU_GET_PROC_ADDRESS_SUCCESS));
                }
            }
        }
    }
}

TEST(what_a_driver_does_not_have_yet_it_does_not_get_from_us)
{
    look_up_v2 ask = (look_up_v2)dlsym(driver(), "cuGetProcAddress_v2");
    void *found = &found;
    int has_it = driver_version() >= 12000;
    CHECK_EQ(ask("cuGraphInstantiateWithParams", &found, 13000, 0, NULL), has_it ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND);
    CHECK((found != NULL) == has_it);
}

TEST(the_limit_holds_on_this_driver)
{
    look_up_v2 ask = (look_up_v2)dlsym(driver(), "cuGetProcAddress_v2");
    CUresult (*allocate)(CUdeviceptr *, size_t) = NULL;
    CUcontext context;
    CUdeviceptr out;
    stage_grant(10 * MIB);
    CHECK_EQ(cuInit(0), CUDA_SUCCESS);
    CHECK_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    CHECK_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
    CHECK_EQ(ask("cuMemAlloc", (void **)&allocate, driver_version(), 0, NULL), CUDA_SUCCESS);
    CHECK_EQ(allocate(&out, 10 * MIB + 1), CUDA_ERROR_OUT_OF_MEMORY);
    CHECK_EQ(allocate(&out, 10 * MIB), CUDA_SUCCESS);
    CHECK_EQ(cuMemFree_v2(out), CUDA_SUCCESS);
}

int main(int argc, char **argv)
{
    (void)argc;
    if (getenv("VGPU_STAGE")) {
        return t_run();
    }
    int failed = 0;
    for (size_t i = 0; i < sizeof drivers / sizeof drivers[0]; i++) {
        int status = 1;
        fflush(NULL);
        if (fork() == 0) {
            stage_enter(argv, drivers[i]);
        }
        wait(&status);
        failed |= status != 0;
    }
    return failed;
}
