#include "probe.h"

#include "capture.h"
#include "lockstep.h"

#define PROBE_EVERY_NS UINT64_C(1000000)
#define TIMESLICE_NS UINT64_C(3000000)    /* about the turn of one process on a shared device */
#define OWN_PART 0.35 /* part of a measured time that is charged, plus half of the share */
#define MOST_PENDING 8 /* unanswered probes at a time */
#define AT_ONCE 4 /* pauses' worth of launched device time after which a launch is measured (claim) */
#define LOST_NS UINT64_C(60000000000) /* after this time a measurement is lost */

int vgpu_probe_can(const struct vgpu_cuda *cuda)
{
    return cuda->cuEventCreate && cuda->cuEventRecord && cuda->cuEventQuery && cuda->cuEventElapsedTime && cuda->cuCtxGetCurrent;
}

/* Return a pair of events of the current context. The caller holds the lock. */
static struct vgpu_probe *free_probe(struct vgpu_throttle *throttle, const struct vgpu_cuda *cuda)
{
    CUcontext context = NULL;
    struct vgpu_probe *unused = NULL;
    if (cuda->cuCtxGetCurrent(&context) != CUDA_SUCCESS || !context) {
        return NULL;
    }
    for (unsigned i = 0; i < VGPU_PROBES; i++) {
        struct vgpu_probe *probe = &throttle->probes[i];
        if (probe->state == VGPU_PROBE_FREE && probe->context == context) {
            return probe;
        }
        unused = !unused && probe->state == VGPU_PROBE_FREE && !probe->context ? probe : unused;
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

/* Return 1 if a measured launch is on its way to the device. The caller holds the lock. */
static int is_busy(const struct vgpu_throttle *throttle, int ordinal)
{
    for (unsigned i = 0; i < VGPU_PROBES; i++) {
        const struct vgpu_probe *probe = &throttle->probes[i];
        if (probe->state == VGPU_PROBE_CLAIMED || (probe->state == VGPU_PROBE_ON_ITS_WAY && probe->ordinal == ordinal)) {
            return 1;
        }
    }
    return 0;
}

/* Return a pair of events for this launch, or NULL if it is not measured. A launch is measured after each pause of about a
 * millisecond. A thread that waited for room in its queue launches many at once; then a launch is also measured each time four
 * pauses' worth of device time has been launched. */
static struct vgpu_probe *claim(struct vgpu_throttle *throttle, const struct vgpu_launch *l, struct vgpu_instant now, int learned)
{
    const struct vgpu_cuda *cuda = l->cuda;
    struct vgpu_instant last = atomic_load_explicit(&throttle->probed, memory_order_relaxed);
    vgpu_duration pause = PROBE_EVERY_NS + last.ns / 64 * 40503 % (PROBE_EVERY_NS / 2); /* out of step with the program */
    struct vgpu_probe *probe = NULL;
    struct vgpu_throttle_device *device = &throttle->devices[l->ordinal];
    int is_due =
        vgpu_between(last, now) >= pause || atomic_load_explicit(&device->unprobed_ns, memory_order_relaxed) >= AT_ONCE * pause;
    if (!vgpu_probe_can(cuda) || (learned && !is_due) || !vgpu_calm_try(&throttle->lock)) {
        return NULL;
    }
    if (atomic_compare_exchange_strong(&throttle->probed, &last, now)) {
        atomic_store_explicit(&device->unprobed_ns, 0, memory_order_relaxed);
        int mode = vgpu_capture_relax(cuda);
        probe = free_probe(throttle, cuda);
        vgpu_capture_restore(cuda, mode);
    }
    if (probe) {
        probe->is_first = !is_busy(throttle, l->ordinal);
        probe->state = VGPU_PROBE_CLAIMED;
        probe->ordinal = l->ordinal;
    }
    vgpu_calm_drop(&throttle->lock);
    return probe;
}

static void release(struct vgpu_throttle *throttle, struct vgpu_probe *probe)
{
    vgpu_calm_take(&throttle->lock);
    probe->state = VGPU_PROBE_FREE;
    vgpu_calm_drop(&throttle->lock);
}

void vgpu_probe_start(struct vgpu_throttle *throttle, const struct vgpu_launch *l, const struct vgpu_geometry *what,
                      struct vgpu_cost *cost, struct vgpu_instant now, const struct vgpu_charge *charge,
                      struct vgpu_ticket *ticket)
{
    struct vgpu_probe *probe = cost ? claim(throttle, l, now, charge->learned) : NULL;
    if (probe) {
        int mode = vgpu_capture_relax(l->cuda);
        CUresult result = l->cuda->cuEventRecord(probe->start, l->stream); /* without the lock, because a full stream blocks */
        vgpu_capture_restore(l->cuda, mode);
        if (result == CUDA_SUCCESS) {
            probe->alone = charge->alone;
            probe->guessed = charge->alone && !charge->learned;
            probe->cost = cost;
            probe->what = *what;
            probe->launched = now;
            probe->raw_ns = charge->raw_ns;
            probe->charged_ns = charge->charged_ns;
            ticket->probe = probe;
        } else {
            release(throttle, probe);
        }
    }
    atomic_fetch_add_explicit(&throttle->devices[l->ordinal].unprobed_ns, (uint64_t)charge->raw_ns, memory_order_relaxed);
    if (!ticket->probe || !charge->alone) {
        vgpu_bucket_count(throttle->devices[l->ordinal].bucket, charge->raw_ns, charge->charged_ns);
    }
}

struct vgpu_instant vgpu_probe_known(const struct vgpu_throttle *throttle, int ordinal, struct vgpu_instant now)
{
    for (unsigned i = 0; i < VGPU_PROBES; i++) {
        const struct vgpu_probe *probe = &throttle->probes[i];
        if (probe->state != VGPU_PROBE_ON_ITS_WAY || !probe->alone || probe->ordinal != ordinal ||
            !(probe->runs.ns || probe->is_first)) {
            continue; /* a claimed probe is being written by a launch; read nothing else of it */
        }
        now = vgpu_first_of(now, probe->is_first ? probe->launched : vgpu_earlier(probe->runs, VGPU_TICK_NS));
    }
    return now;
}

/* Note that a launch made at this time has run. The caller holds the lock. */
static void caught_up(struct vgpu_throttle_device *device, struct vgpu_instant launched)
{
    struct vgpu_instant freed = atomic_load_explicit(&device->freed, memory_order_relaxed);
    if (freed.ns && !vgpu_is_before(launched, freed)) {
        atomic_store_explicit(&device->freed, vgpu_at(0), memory_order_relaxed);
        device->calibration.count = device->calibration.held_count = device->calibration.studied = 0;
    }
}

static const struct vgpu_probe *first_guess(const struct vgpu_throttle *throttle)
{
    const struct vgpu_probe *first = NULL;
    for (unsigned i = 0; i < VGPU_PROBES; i++) {
        const struct vgpu_probe *probe = &throttle->probes[i];
        if (probe->state == VGPU_PROBE_ON_ITS_WAY && probe->guessed &&
            (!first || vgpu_is_before(probe->launched, first->launched))) {
            first = probe;
        }
    }
    return first;
}

/* Tell the owner since when launches that were charged by a guess are under way. Called under the lock when one was
 * added or has ended. */
static void tell_guesses(struct vgpu_throttle *throttle, int more)
{
    const struct vgpu_probe *first = first_guess(throttle);
    atomic_fetch_add(&throttle->guesses, more);
    if (throttle->guessed) {
        throttle->guessed(throttle->owner, first ? first->ordinal : 0, first ? first->launched : vgpu_at(0),
                          first ? (uint64_t)first->charged_ns : 0);
    }
}

static void drop(struct vgpu_throttle *throttle, struct vgpu_probe *probe)
{
    probe->state = VGPU_PROBE_FREE;
    probe->runs = vgpu_at(0);
    atomic_store(&probe->cost->running, vgpu_at(0));
    atomic_fetch_sub(&probe->cost->pending, 1);
    if (probe->guessed) {
        tell_guesses(throttle, -1);
    }
}

/* Give up a measurement that will not arrive. The caller holds the lock. */
static void lose(struct vgpu_throttle *throttle, struct vgpu_probe *probe)
{
    if (probe->alone) {
        vgpu_bucket_count(throttle->devices[probe->ordinal].bucket, probe->raw_ns, probe->charged_ns);
    }
    drop(throttle, probe);
}

/* Return the factor by which an estimate is scaled. If there are neighbours, and NVML has not shown any usage by this
 * container yet, a measured time longer than a timeslice is attributed to them in part. The larger the container's share, the
 * smaller that part, since the neighbours only have the rest. (Rejected: charging the whole time. A container that NVML never
 * shows would get a quarter of its due.) */
double vgpu_probe_factor(const struct vgpu_throttle_device *device, uint64_t ns)
{
    double factor = (double)vgpu_bucket_factor(device->bucket) / (double)VGPU_FACTOR_ONE;
    double own = OWN_PART + atomic_load_explicit(&device->percent, memory_order_relaxed) / 200.0;
    return factor > own && device->crowded && ns > TIMESLICE_NS && !vgpu_bucket_is_compared(device->bucket) ? own : factor;
}

static void resolve_probe(struct vgpu_throttle *throttle, struct vgpu_probe *probe, struct vgpu_instant now)
{
    struct vgpu_throttle_device *device = &throttle->devices[probe->ordinal];
    vgpu_duration took = probe->took_ns;
    uint64_t ns = took; /* the part that is charged */
    vgpu_duration age = vgpu_between(probe->launched, now);
    vgpu_bucket_learn_queued(device->bucket, age > ns ? age - ns : 0);
    enum vgpu_sample_kind kind = device->crowded ? VGPU_WITH_OTHERS : VGPU_ITS_OWN;
    caught_up(device, probe->launched);
    enum vgpu_lockstep lockstep = vgpu_lockstep_ran(throttle, probe, took, now);
    if (lockstep != VGPU_NO_LOCKSTEP) {
        kind = VGPU_WITH_WAITS;
    }
    if (lockstep != VGPU_WAITED) {
        vgpu_cost_learn(&throttle->costs, probe->cost, &probe->what, ns, kind);
    }
    if (kind == VGPU_WITH_OTHERS || kind == VGPU_WITH_WAITS) {
        uint64_t usual = atomic_load(&probe->cost->ns);
        ns = ns > usual ? usual : ns; /* the rest is attributed to other containers */
    }
    if (probe->alone) {
        double factor = vgpu_probe_factor(device, ns);
        /* Beside others the first charge was based on an assumed share. */
        int64_t charged = kind == VGPU_WITH_OTHERS ? (int64_t)((double)ns * factor)
                                                   : probe->charged_ns + (int64_t)(((double)ns - (double)probe->raw_ns) * factor);
        struct vgpu_share share = throttle->share(throttle->owner, probe->ordinal);
        vgpu_bucket_count(device->bucket, (int64_t)ns, charged);
        struct vgpu_instant from = vgpu_earlier(now, took); /* it began no later than this */
        from = probe->is_first ? vgpu_first_of(from, probe->launched) : from;
        vgpu_calibrate_ran(&device->calibration, from, vgpu_later(from, took), (int64_t)ns, charged);
        if (vgpu_share_is_limited(&share) && (share.always || vgpu_bucket_has_company(device->bucket, now))) {
            vgpu_bucket_correct(device->bucket, now, share.percent, charged - probe->charged_ns);
        }
    }
    if (ns > (uint64_t)VGPU_CHUNK_NS * 50) {
        vgpu_calibrate_lump(&device->calibration, (uint64_t)((double)ns * vgpu_probe_factor(device, ns)));
    }
}

static void note_start(const struct vgpu_cuda *cuda, struct vgpu_probe *probe, struct vgpu_instant now)
{
    struct vgpu_instant never = {0};
    if (!probe->runs.ns && cuda->cuEventQuery(probe->start) == CUDA_SUCCESS) {
        probe->runs = now;
        atomic_compare_exchange_strong(&probe->cost->running, &never, now);
    }
}

/* Return the oldest probe launched after `after`, by launch and place. */
static struct vgpu_probe *next_probe(struct vgpu_throttle *throttle, const struct vgpu_probe *after)
{
    struct vgpu_probe *next = NULL;
    for (unsigned i = 0; i < VGPU_PROBES; i++) {
        struct vgpu_probe *probe = &throttle->probes[i];
        if (probe->state == VGPU_PROBE_ON_ITS_WAY && probe != after &&
            (!after || vgpu_is_before(after->launched, probe->launched) ||
             (probe > after && !vgpu_is_before(probe->launched, after->launched))) &&
            (!next || vgpu_is_before(probe->launched, next->launched))) {
            next = probe;
        }
    }
    return next;
}

/* The state of a probe on its way. */
enum arrival { STILL_OUT, ENDED, LOST };

static enum arrival arrival_of(const struct vgpu_cuda *cuda, struct vgpu_probe *probe, struct vgpu_instant now)
{
    float ms = 0;
    CUresult result = cuda->cuEventQuery(probe->end);
    if (result == CUDA_ERROR_NOT_READY && vgpu_between(probe->launched, now) <= LOST_NS) {
        note_start(cuda, probe, now);
        return STILL_OUT;
    }
    if (result != CUDA_SUCCESS || cuda->cuEventElapsedTime(&ms, probe->start, probe->end) != CUDA_SUCCESS || ms < 0) {
        return LOST;
    }
    probe->took_ns = (uint64_t)((double)ms * 1e6);
    return ENDED;
}

void vgpu_probe_harvest(struct vgpu_throttle *throttle, const struct vgpu_cuda *cuda, struct vgpu_instant now)
{
    struct vgpu_probe *probe = next_probe(throttle, NULL), *next;
    int mode = vgpu_capture_relax(cuda), missing = 0;
    for (; probe && missing < MOST_PENDING; probe = next) {
        next = next_probe(throttle, probe);
        switch (arrival_of(cuda, probe, now)) {
        case STILL_OUT:
            missing++;
            break;
        case ENDED:
            resolve_probe(throttle, probe, now);
            drop(throttle, probe);
            break;
        case LOST:
            probe->context = NULL; /* the events are gone with their context and must not be used */
            lose(throttle, probe);
            break;
        }
    }
    vgpu_capture_restore(cuda, mode);
}

/* Measure what was charged by a guess in a context that the driver is about to end; the driver would wait for it
 * anyway. The caller holds the lock. */
static void measure_guesses(struct vgpu_throttle *throttle, const struct vgpu_cuda *cuda, CUcontext context)
{
    for (int i = 0; i < VGPU_PROBES && cuda->cuEventSynchronize; i++) {
        const struct vgpu_probe *first = first_guess(throttle);
        if (!first || first->context != context || cuda->cuEventSynchronize(first->end) != CUDA_SUCCESS) {
            return;
        }
        vgpu_probe_harvest(throttle, cuda, vgpu_world->now());
    }
}

/* A probe claimed by a launch on its way loses its context, and its events with it; vgpu_throttle_end handles that. */
void vgpu_probe_end_context(struct vgpu_throttle *throttle, const struct vgpu_cuda *cuda, CUcontext context)
{
    vgpu_calm_take(&throttle->lock);
    measure_guesses(throttle, cuda, context);
    for (unsigned i = 0; i < VGPU_PROBES; i++) {
        struct vgpu_probe *probe = &throttle->probes[i];
        if (probe->context != context) {
            continue;
        }
        probe->context = NULL;
        if (probe->state == VGPU_PROBE_CLAIMED) {
            continue;
        }
        if (probe->state == VGPU_PROBE_ON_ITS_WAY) {
            lose(throttle, probe);
        }
        if (cuda->cuEventDestroy_v2) {
            cuda->cuEventDestroy_v2(probe->start);
            cuda->cuEventDestroy_v2(probe->end);
        }
        probe->state = VGPU_PROBE_FREE;
    }
    vgpu_calm_drop(&throttle->lock);
}

static int is_lost(struct vgpu_throttle *throttle, const struct vgpu_probe *probe)
{
    vgpu_calm_take(&throttle->lock);
    int lost = !probe->context;
    vgpu_calm_drop(&throttle->lock);
    return lost;
}

void vgpu_probe_end(struct vgpu_throttle *throttle, const struct vgpu_launch *l, struct vgpu_probe *probe, CUresult result)
{
    int mode = vgpu_capture_relax(l->cuda);
    int recorded =
        result == CUDA_SUCCESS && !is_lost(throttle, probe) && l->cuda->cuEventRecord(probe->end, l->stream) == CUDA_SUCCESS;
    vgpu_capture_restore(l->cuda, mode);
    if (!recorded) {
        if (probe->alone) {
            vgpu_bucket_count(throttle->devices[probe->ordinal].bucket, probe->raw_ns, probe->charged_ns);
        }
        release(throttle, probe);
        return;
    }
    vgpu_calm_take(&throttle->lock);
    atomic_fetch_add(&probe->cost->pending, 1);
    probe->state = VGPU_PROBE_ON_ITS_WAY;
    if (probe->guessed) {
        tell_guesses(throttle, 1);
    }
    if (!probe->context) {
        lose(throttle, probe); /* the context is gone */
    }
    vgpu_calm_drop(&throttle->lock);
}
