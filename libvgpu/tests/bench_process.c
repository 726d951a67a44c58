/* bench_process.c - measures on the simulated device what the library adds to the start of a process, how soon the memory of
 * a killed process is free again, and whether many processes together exceed the limit. Prints one JSON object. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "driver_api.h"
#include "stage.h"

#define LIMIT (UINT64_C(256) << 20)
#define CONTEXT (UINT64_C(1) << 20)
#define MOST (LIMIT - 2 * CONTEXT) /* the memory that two processes' contexts leave free */
enum { EXECS = 301, STARTS = 31, TOGETHER = 64, KILLS = 31, FILLERS = 8, FILL_SECONDS = 3 };

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static void need(int ok, const char *what)
{
    if (!ok) {
        fprintf(stderr, "bench: %s\n", what);
        exit(1);
    }
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, by_value);
    return values[count / 2];
}

static void open_card(void)
{
    CUcontext context;
    need(cuInit(0) == CUDA_SUCCESS && cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS &&
             cuCtxSetCurrent(context) == CUDA_SUCCESS,
         "no context");
}

/* Run a child: cuInit, a context, the first allocation; report how long that took. */
static int child_starts(void)
{
    CUdeviceptr address;
    double start = now_ms();
    open_card();
    need(cuMemAlloc_v2(&address, 512) == CUDA_SUCCESS, "no memory");
    double took = now_ms() - start;
    return write(STDOUT_FILENO, &took, sizeof took) == sizeof took ? 0 : 1;
}

/* Start `count` children at once, with or without the library; store their times in `took`. */
static void starts(char *program, int with_library, int count, double *took)
{
    int ends[2];
    need(pipe(ends) == 0, "pipe");
    for (int i = 0; i < count; i++) {
        pid_t child = fork();
        need(child >= 0, "fork");
        if (child == 0) {
            dup2(ends[1], STDOUT_FILENO);
            if (!with_library) {
                unsetenv("LD_PRELOAD");
            }
            execl(program, program, "start", (char *)NULL);
            _exit(3);
        }
    }
    close(ends[1]);
    for (int i = 0; i < count; i++) {
        int status = 1;
        need(read(ends[0], &took[i], sizeof *took) == sizeof *took, "a child said nothing");
        wait(&status);
        need(status == 0, "a child failed");
    }
    close(ends[0]);
}

/* Return how long a program without CUDA takes from fork to exit. */
static double one_exec(int with_library)
{
    int status = 1;
    double start = now_ms();
    pid_t child = fork();
    if (child == 0) {
        if (!with_library) {
            unsetenv("LD_PRELOAD");
        }
        execl("/bin/true", "true", (char *)NULL);
        _exit(3);
    }
    waitpid(child, &status, 0);
    need(status == 0, "/bin/true failed");
    return now_ms() - start;
}

static double one_kill(void)
{
    int ready[2];
    char byte;
    CUdeviceptr address = 0;
    need(pipe(ready) == 0, "pipe");
    pid_t child = fork();
    if (child == 0) {
        open_card();
        need(cuMemAlloc_v2(&address, MOST) == CUDA_SUCCESS && write(ready[1], "x", 1) == 1, "child has no memory");
        pause();
    }
    close(ready[1]);
    need(read(ready[0], &byte, 1) == 1, "child said nothing");
    close(ready[0]);
    double start = now_ms();
    kill(child, SIGKILL);
    while (cuMemAlloc_v2(&address, MOST) != CUDA_SUCCESS) {
        need(now_ms() - start < 10000, "a killed process's memory does not come back");
    }
    double took = now_ms() - start;
    cuMemFree_v2(address);
    waitpid(child, NULL, 0);
    return took;
}

static void fill(unsigned seed)
{
    CUdeviceptr held[16] = {0};
    CUcontext context;
    need(cuInit(0) == CUDA_SUCCESS, "no driver");
    while (cuDevicePrimaryCtxRetain(&context, 0) == CUDA_ERROR_OUT_OF_MEMORY) {
    } /* the others may hold all of it */
    need(cuCtxSetCurrent(context) == CUDA_SUCCESS, "no context");
    for (;;) {
        CUdeviceptr *one = &held[rand_r(&seed) % 16];
        if (*one) {
            cuMemFree_v2(*one);
            *one = 0;
        } else if (cuMemAlloc_v2(one, 1 + (size_t)rand_r(&seed) % (LIMIT / 32)) != CUDA_SUCCESS) {
            *one = 0;
        }
    }
}

static uint64_t overshoot(void)
{
    pid_t children[FILLERS];
    struct timespec time = {.tv_sec = FILL_SECONDS};
    stage_card_reset_peak();
    for (int i = 0; i < FILLERS; i++) {
        children[i] = fork();
        if (children[i] == 0) {
            fill((unsigned)i + 1);
        }
    }
    nanosleep(&time, NULL);
    for (int i = 0; i < FILLERS; i++) {
        kill(children[i], SIGKILL);
        waitpid(children[i], NULL, 0);
    }
    uint64_t peak = stage_card_peak();
    need(peak > LIMIT / 10 * 9, "the limit was never tried");
    return peak > LIMIT ? peak - LIMIT : 0;
}

int main(int argc, char **argv)
{
    double without[EXECS], preloaded[EXECS], direct[STARTS], with[STARTS], together[TOGETHER], kills[KILLS];
    if (argc > 1 && !strcmp(argv[1], "start")) {
        return child_starts();
    }
    stage_enter(argv, "fork_works=1\ncontext_mib=1");
    stage_grant(LIMIT);
    for (int i = 0; i < EXECS; i++) {
        without[i] = one_exec(0);
        preloaded[i] = one_exec(1);
    }
    for (int i = 0; i < STARTS; i++) {
        starts(argv[0], 0, 1, &direct[i]);
        starts(argv[0], 1, 1, &with[i]);
    }
    starts(argv[0], 0, TOGETHER, together);
    double alone = median(together, TOGETHER);
    starts(argv[0], 1, TOGETHER, together);
    uint64_t over = overshoot(); /* before this process has a device: its children must be able to open one */
    open_card();
    for (int i = 0; i < KILLS; i++) {
        kills[i] = one_kill();
    }
    printf("{\"exec_ms\": {\"direct\": %.3f, \"shim\": %.3f}, ", median(without, EXECS), median(preloaded, EXECS));
    printf("\"init_ms\": {\"direct\": %.3f, \"shim\": %.3f, \"parallel_64_direct\": %.3f, \"parallel_64\": %.3f}, ",
           median(direct, STARTS), median(with, STARTS), alone, median(together, TOGETHER));
    double middle = median(kills, KILLS);
    printf("\"kill_to_free_ms\": %.3f, \"kill_to_free_median_ms\": %.3f, \"overshoot_bytes\": %llu}\n", kills[KILLS - 1], middle,
           (unsigned long long)over);
    return 0;
}
