#include "timeslice.h"

#include <stddef.h>

#define NEAR_NS 50000.0                    /* a mark that arrives this soon ran in our timeslice */
#define DRIFT 1e-4                         /* between the clocks of device and host */
#define STALE_NS UINT64_C(10000000000)     /* beyond this, the clocks are compared again */
#define ENOUGH 6                           /* looks needed for a result */
#define MOST_MADE 8                        /* for a process that changes its contexts */

int vgpu_timeslice_can(const struct vgpu_cuda *cuda)
{
    return cuda->cuStreamCreate && cuda->cuEventCreate && cuda->cuEventRecord && cuda->cuEventQuery && cuda->cuEventElapsedTime &&
           cuda->cuCtxGetCurrent;
}

/* Streams and marks of other contexts are left in place: at most MOST_MADE per process. */
static int make(struct vgpu_timeslice *t, const struct vgpu_cuda *cuda, CUcontext context)
{
    *t = (struct vgpu_timeslice){.looks = t->looks, .ours = t->ours, .made = t->made + 1, .looked = t->looked};
    if (t->made > MOST_MADE || cuda->cuStreamCreate(&t->stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS ||
        cuda->cuEventCreate(&t->marks[0], 0) != CUDA_SUCCESS || cuda->cuEventCreate(&t->marks[1], 0) != CUDA_SUCCESS) {
        return 0;
    }
    t->context = context;
    return 1;
}

/* Take in the newest mark: its delay follows from the previous one and both clocks, relative to the quickest mark. */
static void take_in(struct vgpu_timeslice *t, const struct vgpu_cuda *cuda)
{
    struct vgpu_instant before = t->marked[!t->newest];
    vgpu_duration since = vgpu_between(before, t->marked[t->newest]);
    float ms = 0;
    if (!before.ns || since > STALE_NS ||
        cuda->cuEventElapsedTime(&ms, t->marks[!t->newest], t->marks[t->newest]) != CUDA_SUCCESS) {
        t->late_ns = 0;
        return;
    }
    t->late_ns += (double)ms * 1e6 - (double)since * (1 + DRIFT);
    t->late_ns = t->late_ns < 0 ? 0 : t->late_ns;
    t->looks++;
    t->ours += t->late_ns < NEAR_NS;
}

void vgpu_timeslice_look(struct vgpu_timeslice *t, const struct vgpu_cuda *cuda, struct vgpu_instant now)
{
    CUcontext context = NULL;
    t->looked = now;
    if (cuda->cuCtxGetCurrent(&context) != CUDA_SUCCESS || !context || (context != t->context && !make(t, cuda, context))) {
        return;
    }
    CUresult result = t->out ? cuda->cuEventQuery(t->marks[t->newest]) : CUDA_SUCCESS;
    if (result == CUDA_ERROR_NOT_READY) {
        t->looks++; /* it is still others' turn */
        return;
    }
    if (result == CUDA_SUCCESS && t->out) {
        take_in(t, cuda);
    }
    t->newest = !t->newest;
    t->marked[t->newest] = now;
    t->out = 1;
    if (result != CUDA_SUCCESS || cuda->cuEventRecord(t->marks[t->newest], t->stream) != CUDA_SUCCESS) {
        t->context = NULL; /* gone: its stream and marks are no longer ours to touch */
    }
}

void vgpu_timeslice_end_context(struct vgpu_timeslice *t, const struct vgpu_cuda *cuda, CUcontext context)
{
    if (!t->context || t->context != context) {
        return;
    }
    if (cuda->cuEventDestroy_v2 && cuda->cuStreamDestroy_v2) {
        cuda->cuEventDestroy_v2(t->marks[0]);
        cuda->cuEventDestroy_v2(t->marks[1]);
        cuda->cuStreamDestroy_v2(t->stream);
    }
    *t = (struct vgpu_timeslice){.looks = t->looks, .ours = t->ours, .made = t->made - 1, .looked = t->looked};
}

double vgpu_timeslice_part(const struct vgpu_timeslice *t, uint32_t looks, uint32_t ours)
{
    looks = t->looks - looks;
    ours = t->ours - ours;
    /* If it was never our turn, the marks are queued behind the work that they should observe. */
    return looks < ENOUGH || !ours ? 0 : (double)ours / (double)looks;
}
