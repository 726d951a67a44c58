/* faulty_driver.c - a libcuda.so.1 with one fault, named by FAULTY_DRIVER, for tests of the check on real GPUs:
 *
 *   fast-clock      event times run 300 ppm faster than the host's clock
 *   slow-clock      event times run 300 ppm slower
 *   marks-at-once   an event in a stream without work gets its time at once, even if another context is running
 *
 * Only functions that vgpu-measure looks up by cuGetProcAddress_v2 differ. The rest comes from the simulated driver, the file
 * that FAULTY_DRIVER_REAL names.
 */
#include <dlfcn.h>
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "vgpu_cuda.h"

enum { EVENTS = 4096 };
#define DRIFT 300e-6

static struct {
    CUevent event;
    uint64_t at_ns; /* 0: it has the simulated driver's time */
} events[EVENTS];

static void *real(const char *name)
{
    static void *driver;
    if (!driver) {
        driver = dlopen(getenv("FAULTY_DRIVER_REAL"), RTLD_NOW | RTLD_LOCAL);
    }
    void *found = driver ? dlsym(driver, name) : NULL;
    if (!found) {
        abort();
    }
    return found;
}

static int is_fault(const char *name)
{
    const char *fault = getenv("FAULTY_DRIVER");
    return fault && !strcmp(fault, name) && !strcmp(program_invocation_short_name, "vgpu-measure");
}

static uint64_t *at_of(CUevent event)
{
    size_t i = 0;
    while (i < EVENTS - 1 && events[i].event && events[i].event != event) {
        i++;
    }
    events[i].event = event;
    return &events[i].at_ns;
}

static CUresult elapsed_drifts(float *ms, CUevent start, CUevent end)
{
    CUresult (*call)(float *, CUevent, CUevent);
    *(void **)&call = real("cuEventElapsedTime");
    CUresult result = call(ms, start, end);
    *ms = (float)((double)*ms * (is_fault("fast-clock") ? 1 + DRIFT : 1 - DRIFT));
    return result;
}

static CUresult record_at_once(CUevent event, CUstream stream)
{
    CUresult (*record)(CUevent, CUstream), (*query)(CUstream);
    struct timespec t;
    *(void **)&record = real("cuEventRecord");
    *(void **)&query = real("cuStreamQuery");
    int is_empty = query(stream) == CUDA_SUCCESS;
    clock_gettime(CLOCK_MONOTONIC, &t);
    *at_of(event) = is_empty ? (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec : 0;
    /* An event that does not wait for the device is not put into its queue either. */
    return is_empty ? CUDA_SUCCESS : record(event, stream);
}

static CUresult query_at_once(CUevent event)
{
    CUresult (*call)(CUevent);
    *(void **)&call = real("cuEventQuery");
    return *at_of(event) ? CUDA_SUCCESS : call(event);
}

static CUresult wait_at_once(CUevent event)
{
    CUresult (*call)(CUevent);
    *(void **)&call = real("cuEventSynchronize");
    return *at_of(event) ? CUDA_SUCCESS : call(event);
}

static CUresult elapsed_at_once(float *ms, CUevent start, CUevent end)
{
    CUresult (*call)(float *, CUevent, CUevent);
    uint64_t from = *at_of(start), to = *at_of(end);
    *(void **)&call = real("cuEventElapsedTime");
    if (from && to) {
        *ms = (float)((double)(int64_t)(to - from) / 1e6);
        return CUDA_SUCCESS;
    }
    return call(ms, start, end);
}

static const struct {
    const char *fault, *name;
    void *address;
} differs[] = {
    {"fast-clock", "cuEventElapsedTime", (void *)elapsed_drifts},
    {"slow-clock", "cuEventElapsedTime", (void *)elapsed_drifts},
    {"marks-at-once", "cuEventRecord", (void *)record_at_once},
    {"marks-at-once", "cuEventQuery", (void *)query_at_once},
    {"marks-at-once", "cuEventSynchronize", (void *)wait_at_once},
    {"marks-at-once", "cuEventElapsedTime", (void *)elapsed_at_once},
};

CUresult cuGetProcAddress_v2(const char *name, void **out, int version, uint64_t flags, int *status);
CUresult cuGetProcAddress_v2(const char *name, void **out, int version, uint64_t flags, int *status)
{
    CUresult (*call)(const char *, void **, int, uint64_t, int *);
    *(void **)&call = real("cuGetProcAddress_v2");
    CUresult result = call(name, out, version, flags, status);
    for (size_t i = 0; i < sizeof differs / sizeof differs[0]; i++) {
        if (result == CUDA_SUCCESS && is_fault(differs[i].fault) && !strcmp(differs[i].name, name)) {
            *out = differs[i].address;
        }
    }
    return result;
}
