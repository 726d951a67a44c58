#include "probe.h"

#include "step.h"

#define PROBE_EVERY_NS UINT64_C(1000000)
#define FIRST_COST_NS UINT64_C(20000000)
#define TURN_NS UINT64_C(3000000)          /* about what a process gets at a time on a shared card */
#define PRIOR 0.65                        /* its part of what events say */
#define BLIND_NS UINT64_C(2000000000)      /* until NVML has been heard */
#define LOST_NS UINT64_C(60000000000)     /* a measurement that will not come any more */

/* ------------------------------------------------------------------ captures
 * Nothing that is being recorded runs, so it costs nothing and must not be held up; and a recording must never notice
 * us: our calls are made in the relaxed mode, and no event of ours is put into a stream that is being recorded, nor into
 * the legacy stream while another is. */

static int relax(const struct vgpu_cuda *cuda)
{
    int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    if (cuda->cuThreadExchangeStreamCaptureMode) {
        cuda->cuThreadExchangeStreamCaptureMode(&mode);
    }
    return mode;
}

static void restore(const struct vgpu_cuda *cuda, int mode)
{
    if (cuda->cuThreadExchangeStreamCaptureMode) {
        cuda->cuThreadExchangeStreamCaptureMode(&mode);
    }
}

enum vgpu_recording vgpu_probe_recording(const struct vgpu_launch *l)
{
    int status = 0;
    if (!l->cuda->cuStreamIsCapturing) {
        return VGPU_NOT_RECORDED; /* a driver without captures */
    }
    CUresult result = l->cuda->cuStreamIsCapturing(l->stream, &status);
    return result != CUDA_SUCCESS ? VGPU_PERHAPS_RECORDED : status ? VGPU_RECORDED : VGPU_NOT_RECORDED;
}

/* ------------------------------------------------------------------ measurements by events */

int vgpu_probe_can(const struct vgpu_cuda *cuda)
{
    return cuda->cuEventCreate && cuda->cuEventRecord && cuda->cuEventQuery && cuda->cuEventElapsedTime &&
           cuda->cuCtxGetCurrent;
}

/* Under the lock: a pair of events of the current context. */
static struct vgpu_probe *free_probe(struct vgpu_pace *pace, const struct vgpu_cuda *cuda)
{
    CUcontext context = NULL;
    struct vgpu_probe *unused = NULL;
    if (cuda->cuCtxGetCurrent(&context) != CUDA_SUCCESS || !context) {
        return NULL;
    }
    for (unsigned i = 0; i < VGPU_PROBES; i++) {
        struct vgpu_probe *probe = &pace->probes[i];
        if (!probe->busy && probe->context == context) {
            return probe;
        }
        unused = !unused && !probe->busy && !probe->context ? probe : unused;
    }
    if (unused && cuda->cuEventCreate(&unused->start, 0) == CUDA_SUCCESS) {
        if (cuda->cuEventCreate(&unused->end, 0) == CUDA_SUCCESS) {
            unused->context = context;
            return unused;
        }
        cuda->cuEventDestroy_v2(unused->start);
    }
    return NULL;
}

/* Before the launch: does it get measured? */
void vgpu_probe_start(struct vgpu_pace *pace, const struct vgpu_launch *l, const struct vgpu_geometry *what,
                        struct vgpu_cost *cost, uint64_t now, uint64_t raw, int alone, int learned, struct vgpu_ticket *ticket)
{
    uint64_t last = atomic_load_explicit(&pace->probed_ns, memory_order_relaxed);
    if (!cost || !vgpu_probe_can(l->cuda) || (learned && now - last < PROBE_EVERY_NS) || !vgpu_lock_try(&pace->lock)) {
        return;
    }
    if (atomic_compare_exchange_strong(&pace->probed_ns, &last, now)) {
        int mode = relax(l->cuda);
        struct vgpu_probe *probe = free_probe(pace, l->cuda);
        if (probe && l->cuda->cuEventRecord(probe->start, l->stream) == CUDA_SUCCESS) {
            probe->busy = 1;
            probe->alone = alone;
            probe->cost = cost;
            probe->what = *what;
            probe->ordinal = l->ordinal;
            probe->launched_ns = now;
            probe->raw_ns = raw;
            ticket->probe = probe;
        }
        restore(l->cuda, mode);
    }
    vgpu_lock_drop(&pace->lock);
}

/* Under the lock: a launch of that moment has run. */
static void caught_up(struct vgpu_pace_card *card, uint64_t launched_ns)
{
    uint64_t freed = atomic_load_explicit(&card->freed_ns, memory_order_relaxed);
    if (freed && launched_ns >= freed) {
        atomic_store_explicit(&card->freed_ns, 0, memory_order_relaxed);
        card->settle.count = 0;
    }
}

static void drop(struct vgpu_probe *probe)
{
    probe->busy = 0;
    atomic_store(&probe->cost->running_ns, 0);
    atomic_fetch_sub(&probe->cost->pending, 1);
}

/* Beside neighbours the first measurements of a kind may hold any number of their turns: believe a part, and leave the
 * rest to the comparison with NVML. */
uint64_t vgpu_probe_believed(const struct vgpu_pace_card *card, const struct vgpu_cost *cost, uint64_t ns)
{
    uint64_t part = ns / 8 > FIRST_COST_NS ? ns / 8 : FIRST_COST_NS;
    return card->crowded && cost && atomic_load_explicit(&cost->samples, memory_order_relaxed) < 3 && ns > part ? part : ns;
}

/* What to multiply an estimate with. Beside neighbours, and before NVML has been heard, what is longer than a turn is
 * taken for others' in part: who is charged too little pays later, but time that was not used is lost. */
double vgpu_pace_factor(const struct vgpu_pace_card *card, uint64_t ns, uint64_t now)
{
    double factor = (double)vgpu_bucket_factor(card->bucket) / (double)VGPU_FACTOR_ONE;
    uint64_t first = atomic_load_explicit(&card->first_ns, memory_order_relaxed);
    return factor > PRIOR && card->crowded && now - first < BLIND_NS && ns > TURN_NS ? PRIOR : factor;
}

static void settle_probe(struct vgpu_pace *pace, struct vgpu_probe *probe, uint64_t ns, uint64_t now)
{
    struct vgpu_pace_card *card = &pace->cards[probe->ordinal];
    caught_up(card, probe->launched_ns);
    int others_in_it = vgpu_step_ran(pace, probe, ns, now) || card->crowded;
    vgpu_cost_learn(&pace->costs, probe->cost, &probe->what, ns, others_in_it);
    if (others_in_it) {
        uint64_t usual = atomic_load(&probe->cost->ns);
        ns = ns > usual ? usual : ns; /* the rest was others' */
    }
    ns = vgpu_probe_believed(card, probe->cost, ns);
    if (probe->alone) {
        int64_t raw = (int64_t)ns - (int64_t)probe->raw_ns;
        int64_t charged = (int64_t)((double)raw * vgpu_pace_factor(card, ns, now));
        struct vgpu_share share = pace->share(pace->who, probe->ordinal);
        vgpu_bucket_count(card->bucket, raw, charged);
        if (vgpu_share_is_limited(&share) && (share.always || vgpu_bucket_has_company(card->bucket, now))) {
            vgpu_bucket_correct(card->bucket, now, share.percent, charged);
        }
    }
    if (ns > (uint64_t)VGPU_CHUNK_NS * 50) {
        vgpu_settle_lump(&card->settle, (uint64_t)((double)ns * vgpu_pace_factor(card, ns, now)));
    }
}

/* Under the lock: take in what has come. */
void vgpu_probe_harvest(struct vgpu_pace *pace, const struct vgpu_cuda *cuda, uint64_t now)
{
    int mode = relax(cuda), asked = 0;
    for (unsigned i = 0; i < VGPU_PROBES && asked < 8; i++) {
        struct vgpu_probe *probe = &pace->probes[i];
        float ms = 0;
        if (probe->busy != 2) {
            continue;
        }
        asked++;
        CUresult result = cuda->cuEventQuery(probe->end);
        if (result == CUDA_SUCCESS) {
            result = cuda->cuEventElapsedTime(&ms, probe->start, probe->end);
            if (result == CUDA_SUCCESS && ms >= 0) {
                settle_probe(pace, probe, (uint64_t)((double)ms * 1e6), now);
            }
            drop(probe);
        } else if (result == CUDA_ERROR_NOT_READY && !atomic_load(&probe->cost->running_ns)) {
            if (cuda->cuEventQuery(probe->start) == CUDA_SUCCESS) {
                atomic_store(&probe->cost->running_ns, now);
            }
        }
        if (probe->busy == 2 && result != CUDA_SUCCESS && (result != CUDA_ERROR_NOT_READY || now - probe->launched_ns > LOST_NS)) {
            drop(probe);
            probe->context = NULL; /* gone with its context: the events are not ours to touch any more */
        }
    }
    restore(cuda, mode);
}

void vgpu_pace_end(struct vgpu_pace *pace, const struct vgpu_launch *l, struct vgpu_ticket *ticket, CUresult result)
{
    struct vgpu_probe *probe = ticket->probe;
    if (!probe) {
        return;
    }
    int mode = relax(l->cuda);
    int recorded = result == CUDA_SUCCESS && l->cuda->cuEventRecord(probe->end, l->stream) == CUDA_SUCCESS;
    restore(l->cuda, mode);
    vgpu_lock_take(&pace->lock);
    if (recorded) {
        atomic_fetch_add(&probe->cost->pending, 1);
        probe->busy = 2;
    } else {
        probe->busy = 0;
    }
    vgpu_lock_drop(&pace->lock);
}
