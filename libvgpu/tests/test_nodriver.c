/* test_nodriver.c - in a process without a driver, the library has no effect. */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "t.h"

TEST(a_program_that_looks_for_cuda_does_not_find_it)
{
    dlerror();
    CHECK(dlsym(RTLD_DEFAULT, "cuMemAlloc_v2") == NULL);
    CHECK(dlerror() != NULL);
    CHECK(dlsym(RTLD_DEFAULT, "nvmlDeviceGetMemoryInfo") == NULL);
}

TEST(a_symbol_of_the_program_that_looks_like_cuda_stays_its_own)
{
    CHECK(dlsym(RTLD_DEFAULT, "cuArrayCreate_v2") != NULL);
    int (*own)(void) = NULL;
    *(void **)&own = dlsym(dlopen(NULL, RTLD_NOW), "cuArrayCreate_v2");
    CHECK(own != NULL);
    CHECK_EQ(own(), 42);
}

__attribute__((visibility("default"))) int cuArrayCreate_v2(void);
int cuArrayCreate_v2(void)
{
    return 42;
}

int main(int argc, char **argv)
{
    char library[4096];
    (void)argc;
    if (!getenv("LD_PRELOAD")) {
        ssize_t got = readlink("/proc/self/exe", library, sizeof library - 32);
        library[got > 0 ? got : 0] = '\0';
        char *cut = strstr(library, "/tests/");
        if (!cut) {
            return 3;
        }
        strcpy(cut, "/libvgpu.so");
        setenv("LD_PRELOAD", library, 1);
        unsetenv("LD_LIBRARY_PATH");
        execv("/proc/self/exe", argv);
        return 3;
    }
    return t_run();
}
