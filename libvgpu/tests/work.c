#include "work.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "compute.h"
#include "stage.h"
#include "state.h"

static CUmodule module;

void work_begin(void)
{
    CUcontext context;
    if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context) ||
        (!module && cuModuleLoadData(&module, "image"))) {
        fprintf(stderr, "no context\n");
        exit(3);
    }
}

CUfunction work_kernel(const char *name)
{
    CUfunction function = NULL;
    cuModuleGetFunction(&function, module, name);
    return function;
}

CUresult work_launch(CUfunction function, unsigned blocks, CUstream stream)
{
    return cuLaunchKernel(function, blocks, 1, 1, 256, 1, 1, 0, stream, NULL, NULL);
}

pid_t work_start_worker(char *word)
{
    pid_t worker = fork();
    if (worker == 0) {
        char *argv[] = {"/proc/self/exe", word, NULL};
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        execv("/proc/self/exe", argv);
        _exit(9);
    }
    return worker;
}

uint64_t work_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

struct engine *work_engine(int *mine)
{
    return compute_enter(machine_current(), 0, 0, mine);
}

void work_engine_leave(void)
{
    compute_leave(0);
}

uint64_t work_busy_ns(void)
{
    int context, mine = state_serial(machine_current());
    uint64_t busy = 0;
    struct engine *e = compute_enter(machine_current(), 0, 0, &context);
    for (int i = 0; e && i < ENGINE_CONTEXTS; i++) {
        busy += compute_owner(e, i) == mine ? e->contexts[i].busy_ns : 0;
    }
    if (e) {
        compute_leave(0);
    }
    return busy;
}
