#include "probe.h"

#include "capture.h"
#include "lockstep.h"

#define PROBE_EVERY_NS UINT64_C(1000000)
#define FIRST_COST_NS UINT64_C(20000000)
#define TIMESLICE_NS UINT64_C(3000000)          /* about the turn of one process on a shared device */
#define PRIOR 0.65                        /* assumed share of a measured time that is the process's own */
#define BLIND_NS UINT64_C(2000000000)      /* until the first figure from NVML */
#define SHORT_NS UINT64_C(1000000)          /* shorter kernels often fit into one timeslice */
#define SURE 8                             /* watched measurements needed to be sure */
#define AGAIN 16                           /* measurements after which one is watched again */
#define MOST_PENDING 8                       /* unanswered probes at a time */
#define AT_ONCE 4                          /* pauses' worth of launched device time after which a launch is measured (claim) */
#define MOST_COMPARED 16                     /* other launches that may have delayed one */
#define PAIR_NS UINT64_C(2000000)          /* launches this close together follow each other */
#define LOOK_NS UINT64_C(200000)
#define LOST_NS UINT64_C(60000000000)     /* after this time a measurement is lost */

int vgpu_probe_can(const struct vgpu_cuda *cuda)
{
    return cuda->cuEventCreate && cuda->cuEventRecord && cuda->cuEventQuery && cuda->cuEventElapsedTime && cuda->cuCtxGetCurrent;
}

/* Under the lock: return 1 if this probe has run but must still be compared with one that has not. If its events were reused
 * earlier, we would lose the pairs in which the first kernel ended before the second began. */
static int is_awaited(const struct vgpu_throttle *throttle, const struct vgpu_probe *first)
{
    for (unsigned i = 0; i < VGPU_PROBES; i++) {
        const struct vgpu_probe *probe = &throttle->probes[i];
        if ((probe->state == VGPU_PROBE_CLAIMED || probe->state == VGPU_PROBE_ON_ITS_WAY) && probe->before == first &&
            probe->before_generation == first->generation) {
            return 1;
        }
    }
    return 0;
}

/* Under the lock: return a pair of events of the current context that are not those of `first`. Choose the one that has been
 * free for longest, because a kernel that ended recently may have delayed the one that ends next (own_time). */
static struct vgpu_probe *free_probe(struct vgpu_throttle *throttle, const struct vgpu_cuda *cuda, const struct vgpu_probe *first)
{
    CUcontext context = NULL;
    struct vgpu_probe *unused = NULL, *oldest = NULL;
    if (cuda->cuCtxGetCurrent(&context) != CUDA_SUCCESS || !context) {
        return NULL;
    }
    for (unsigned i = 0; i < VGPU_PROBES; i++) {
        struct vgpu_probe *probe = &throttle->probes[i];
        if (probe->state == VGPU_PROBE_FREE && probe->context == context && probe != first &&
            (!oldest || vgpu_is_before(probe->launched, oldest->launched)) && !is_awaited(throttle, probe)) {
            oldest = probe;
        }
        unused = !unused && probe->state == VGPU_PROBE_FREE && !probe->context ? probe : unused;
    }
    if (oldest) {
        return oldest;
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

/* Under the lock: return 1 if a measured launch is on its way to the device. */
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

/* Return 1 until the first figure from NVML. */
static int is_blind(const struct vgpu_throttle_device *device, struct vgpu_instant now)
{
    return vgpu_between(atomic_load_explicit(&device->first_launch, memory_order_relaxed), now) < BLIND_NS;
}

int vgpu_probe_wants_any(const struct vgpu_throttle_device *device, const struct vgpu_geometry *what, struct vgpu_instant now,
                         uint64_t apart_ns)
{
    return apart_ns >= PROBE_EVERY_NS + PROBE_EVERY_NS / 2 && atomic_load_explicit(&device->crowded, memory_order_relaxed) &&
           is_blind(device, now) && vgpu_cost_fit(what) > 1;
}

/* Under the lock: until NVML reports, measure both of some launches that follow each other in different streams. */
static void pair(struct vgpu_throttle *throttle, const struct vgpu_launch *l, struct vgpu_probe *probe, int is_second,
                 struct vgpu_instant now)
{
    struct vgpu_throttle_device *device = &throttle->devices[l->ordinal];
    int wants_second = !is_second && is_blind(device, now);
    struct vgpu_probe *single = throttle->single;
    probe->stream = (uintptr_t)l->stream;
    probe->is_second = is_second;
    probe->before = is_second && single && single->context == probe->context && single->ordinal == l->ordinal ? single : NULL;
    probe->before_generation = probe->before ? single->generation : 0;
    if (!is_second) {
        vgpu_overlap_launched(&device->overlap, (uintptr_t)l->stream);
        throttle->single = probe;
    }
    atomic_store_explicit(&throttle->single_stream, wants_second ? (uintptr_t)l->stream + 1 : 0, memory_order_relaxed);
}

/* Return a pair of events for this launch, or NULL if it is not measured. A launch is measured after each pause of about a
 * millisecond. A thread that waited for room in its queue launches many at once; then a launch is also measured each time four
 * pauses' worth of device time has been launched, or one pause's worth while only events are known. */
static struct vgpu_probe *claim(struct vgpu_throttle *throttle, const struct vgpu_launch *l, struct vgpu_instant now, int learned)
{
    const struct vgpu_cuda *cuda = l->cuda;
    struct vgpu_instant last = atomic_load_explicit(&throttle->probed, memory_order_relaxed);
    vgpu_duration pause = PROBE_EVERY_NS + last.ns / 64 * 40503 % (PROBE_EVERY_NS / 2); /* out of step with the program */
    struct vgpu_probe *probe = NULL;
    uintptr_t single = atomic_load_explicit(&throttle->single_stream, memory_order_relaxed);
    int is_second = single && single != (uintptr_t)l->stream + 1 && vgpu_between(last, now) < PAIR_NS;
    struct vgpu_throttle_device *device = &throttle->devices[l->ordinal];
    vgpu_duration much = is_blind(device, now) ? pause : AT_ONCE * pause;
    int is_due = vgpu_between(last, now) >= pause || atomic_load_explicit(&device->unprobed_ns, memory_order_relaxed) >= much;
    if (!vgpu_probe_can(cuda) || (learned && !is_second && !is_due) || !vgpu_calm_try(&throttle->lock)) {
        return NULL;
    }
    if (atomic_compare_exchange_strong(&throttle->probed, &last, now)) {
        atomic_store_explicit(&device->unprobed_ns, 0, memory_order_relaxed);
        int mode = vgpu_capture_relax(cuda);
        probe = free_probe(throttle, cuda, is_second ? throttle->single : NULL);
        vgpu_capture_restore(cuda, mode);
    }
    if (probe) {
        probe->is_first = !is_busy(throttle, l->ordinal);
        probe->state = VGPU_PROBE_CLAIMED;
        probe->generation++;
        probe->ordinal = l->ordinal; /* set here and not by the launch, because a later launch may compare with it */
        pair(throttle, l, probe, is_second, now);
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
            probe->launches = charge->launches;
            ticket->probe = probe;
        } else {
            release(throttle, probe);
        }
    }
    atomic_fetch_add_explicit(&throttle->devices[l->ordinal].unprobed_ns, (uint64_t)charge->raw_ns, memory_order_relaxed);
    vgpu_overlap_charged(&throttle->devices[l->ordinal].overlap, (uint64_t)charge->raw_ns);
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

/* Under the lock: a launch from that moment has run. */
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

int vgpu_probe_guessed(const struct vgpu_throttle *throttle)
{
    const struct vgpu_probe *first = first_guess(throttle);
    return first ? first->ordinal : -1;
}

/* Under the lock, after a launch that was charged by a guess has come to be under way, or has ended. */
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

/* Under the lock: no measurement will arrive. */
static void lose(struct vgpu_throttle *throttle, struct vgpu_probe *probe)
{
    if (probe->alone) {
        vgpu_bucket_count(throttle->devices[probe->ordinal].bucket, probe->raw_ns, probe->charged_ns);
    }
    drop(throttle, probe);
}

static int is_watched(const struct vgpu_cost *cost)
{
    return cost && atomic_load_explicit(&cost->watched, memory_order_relaxed);
}

/* Return 1 if it is worth watching which part of a kernel's time is its own: for the first kernels of a kind that is longer
 * than a turn, and for some later ones. */
static int is_worth_watching(const struct vgpu_throttle_device *device, const struct vgpu_cost *cost)
{
    uint32_t samples = atomic_load_explicit(&cost->samples, memory_order_relaxed);
    uint32_t watched = atomic_load_explicit(&cost->watched, memory_order_relaxed);
    if (!device->crowded || (samples && atomic_load_explicit(&cost->ns, memory_order_relaxed) < SHORT_NS)) {
        return 0;
    }
    return (watched < SURE && samples < 4 * SURE) || samples % AGAIN == 0;
}

/* Beside neighbours, the first measurements of a kind may contain any number of their timeslices. Believe a part, and leave
 * the rest to the comparison with NVML. */
uint64_t vgpu_probe_believed(const struct vgpu_throttle_device *device, const struct vgpu_cost *cost,
                             const struct vgpu_geometry *what, uint64_t ns)
{
    uint64_t part = ns / 8 > FIRST_COST_NS ? ns / 8 : FIRST_COST_NS;
    ns = device->crowded ? vgpu_overlap_of(&device->overlap, ns, vgpu_cost_fit(what)) : ns;
    return device->crowded && cost && !is_watched(cost) && atomic_load_explicit(&cost->samples, memory_order_relaxed) < 3 &&
                   ns > part
               ? part
               : ns;
}

/* Return the factor for an estimate. Beside neighbours, and before NVML reports, a part of a time longer than a timeslice is
 * taken for others'. A process that is charged too little pays later, but device time that is not used is lost. */
double vgpu_probe_factor(const struct vgpu_throttle_device *device, const struct vgpu_cost *cost, uint64_t ns,
                         struct vgpu_instant now)
{
    double factor = (double)vgpu_bucket_factor(device->bucket) / (double)VGPU_FACTOR_ONE;
    struct vgpu_instant first = atomic_load_explicit(&device->first_launch, memory_order_relaxed);
    return factor > PRIOR && device->crowded && !is_watched(cost) && vgpu_between(first, now) < BLIND_NS && ns > TIMESLICE_NS
               ? PRIOR
               : factor;
}

/* A launch with those behind it: two streams that meet in the middle of their chunks run side by side as well. */
static struct vgpu_overlap_run run_of(const struct vgpu_probe *probe, float from_ms)
{
    double usual = (double)atomic_load(&probe->cost->ns), took = (double)probe->took_ns, from = (double)from_ms * 1e6;
    double cost = usual < took ? usual : took, behind = cost * (probe->launches - 1);
    return (struct vgpu_overlap_run){probe->stream, from, from + took + behind, cost + behind};
}

/* Record what ran beside what. */
static void compare_times(struct vgpu_throttle_device *device, const struct vgpu_cuda *cuda, const struct vgpu_probe *probe)
{
    const struct vgpu_probe *first = probe->is_second ? probe->before : device->origin;
    float ms = 0;
    if (!first || first->context != probe->context || (probe->is_second && first->generation != probe->before_generation) ||
        (first->state != VGPU_PROBE_FREE && first->state != VGPU_PROBE_KEPT) ||
        (first != probe && cuda->cuEventElapsedTime(&ms, first->start, probe->start) != CUDA_SUCCESS)) {
        return;
    }
    struct vgpu_overlap_run run = run_of(probe, ms);
    if (probe->is_second) {
        struct vgpu_overlap_run before = run_of(first, 0);
        vgpu_overlap_pair(&device->overlap, &before, &run);
    } else {
        vgpu_overlap_single(&device->overlap, &run);
    }
}

static void drop_origin(struct vgpu_throttle_device *device)
{
    if (device->origin) {
        device->origin->state = VGPU_PROBE_FREE;
    }
    device->origin = NULL;
}

/* Under the lock: a finished launch shows what runs side by side. Once NVML reports, it shows that too, and the knowledge
 * from events fades, because following both would make a share swing. */
static void learn_overlap(struct vgpu_throttle_device *device, const struct vgpu_cuda *cuda, struct vgpu_probe *probe,
                          struct vgpu_instant now)
{
    if (!is_blind(device, now)) {
        drop_origin(device);
        vgpu_overlap_fade(&device->overlap, now);
        return;
    }
    if (!probe->is_second && (!device->origin || device->origin->context != probe->context)) {
        drop_origin(device);
        probe->state = VGPU_PROBE_KEPT;
        device->origin = probe;
        vgpu_overlap_restart(&device->overlap);
    }
    compare_times(device, cuda, probe);
}

/* Return for how long a finished launch delayed one in another stream, which took longer because of it; 0 if it did not. */
static vgpu_duration kept_waiting(const struct vgpu_cuda *cuda, const struct vgpu_probe *other, const struct vgpu_probe *probe)
{
    float ms = 0;
    if (other->context != probe->context || other->ordinal != probe->ordinal || vgpu_cost_fit(&other->what) > 1 ||
        cuda->cuEventElapsedTime(&ms, other->end, probe->end) != CUDA_SUCCESS || ms <= 0) {
        return 0;
    }
    vgpu_duration since = (vgpu_duration)((double)ms * 1e6), ran = other->own_ns ? other->own_ns : atomic_load(&other->cost->ns);
    vgpu_duration both = since < probe->took_ns ? probe->took_ns - since : 0;
    return ran < both ? ran : both;
}

/* Under the lock: return the device time of a launch. An event gets its time when its stream reaches it, and kernels that
 * fill the device do not run side by side: while one ran in another stream of the process, this one waited. The launches in
 * `ended` have just been seen to have ended, like this one; of the others, those count that ended shortly before it began or
 * later. */
static vgpu_duration own_time(const struct vgpu_throttle *throttle, const struct vgpu_cuda *cuda, const struct vgpu_probe *probe,
                              struct vgpu_probe *const *ended, unsigned count)
{
    vgpu_duration waited = 0;
    struct vgpu_instant since = vgpu_earlier(throttle->passed, probe->took_ns);
    unsigned compared = 0;
    if (vgpu_cost_fit(&probe->what) > 1) {
        return probe->took_ns;
    }
    for (unsigned i = 0; i < count; i++) {
        if (ended[i]->stream != probe->stream && compared++ < MOST_COMPARED) {
            waited += kept_waiting(cuda, ended[i], probe);
        }
    }
    for (unsigned i = 0; i < VGPU_PROBES; i++) {
        const struct vgpu_probe *other = &throttle->probes[i];
        if ((other->state == VGPU_PROBE_FREE || other->state == VGPU_PROBE_KEPT) && other->stream != probe->stream &&
            !vgpu_is_before(other->came, since) && vgpu_is_before(other->came, probe->came) && compared++ < MOST_COMPARED) {
            waited += kept_waiting(cuda, other, probe);
        }
    }
    return waited < probe->took_ns ? probe->took_ns - waited : 1;
}

static void resolve_probe(struct vgpu_throttle *throttle, struct vgpu_probe *probe, struct vgpu_instant now)
{
    struct vgpu_throttle_device *device = &throttle->devices[probe->ordinal];
    vgpu_duration took = probe->took_ns;
    uint64_t ns = probe->own_ns;
    vgpu_duration age = vgpu_between(probe->launched, now);
    vgpu_bucket_learn_queued(device->bucket, age > ns ? age - ns : 0);
    double part = probe->runs.ns ? vgpu_timeslice_part(&device->timeslice, probe->looks, probe->ours) : 0;
    enum vgpu_sample_kind kind = !device->crowded ? VGPU_ITS_OWN : part > 0 ? VGPU_WATCHED : VGPU_WITH_OTHERS;
    ns = kind == VGPU_WATCHED ? (uint64_t)((double)ns * part) : ns;
    caught_up(device, probe->launched);
    enum vgpu_lockstep lockstep = vgpu_lockstep_ran(throttle, probe, took, now);
    if (lockstep != VGPU_NO_LOCKSTEP) {
        kind = VGPU_WITH_WAITS;
        ns = took;
    }
    if (lockstep != VGPU_WAITED) {
        vgpu_cost_learn(&throttle->costs, probe->cost, &probe->what, ns, kind);
    }
    if (kind == VGPU_WITH_OTHERS || kind == VGPU_WITH_WAITS) {
        uint64_t usual = atomic_load(&probe->cost->ns);
        ns = ns > usual ? usual : ns; /* the rest was others' time */
    }
    ns = vgpu_probe_believed(device, probe->cost, &probe->what, ns);
    if (probe->alone) {
        double factor = vgpu_probe_factor(device, probe->cost, ns, now);
        int beside = kind == VGPU_WATCHED || kind == VGPU_WITH_OTHERS; /* then its charge was based on the assumed share */
        int64_t charged = beside ? (int64_t)((double)ns * factor)
                                 : probe->charged_ns + (int64_t)(((double)ns - (double)probe->raw_ns) * factor);
        struct vgpu_share share = throttle->share(throttle->owner, probe->ordinal);
        vgpu_bucket_count(device->bucket, (int64_t)ns, charged);
        struct vgpu_instant from = vgpu_earlier(now, took); /* at the latest */
        from = probe->is_first ? vgpu_first_of(from, probe->launched) : from;
        vgpu_calibrate_ran(&device->calibration, from, vgpu_later(from, took), (int64_t)ns, charged);
        if (vgpu_share_is_limited(&share) && (share.always || vgpu_bucket_has_company(device->bucket, now))) {
            vgpu_bucket_correct(device->bucket, now, share.percent, charged - probe->charged_ns);
        }
    }
    if (ns > (uint64_t)VGPU_CHUNK_NS * 50) {
        vgpu_calibrate_lump(&device->calibration, (uint64_t)((double)ns * vgpu_probe_factor(device, probe->cost, ns, now)));
    }
}

static void note_start(struct vgpu_throttle_device *device, const struct vgpu_cuda *cuda, struct vgpu_probe *probe,
                       struct vgpu_instant now)
{
    struct vgpu_instant never = {0};
    if (!probe->runs.ns && cuda->cuEventQuery(probe->start) == CUDA_SUCCESS) {
        probe->runs = now;
        probe->looks = device->timeslice.looks;
        probe->ours = device->timeslice.ours;
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

static enum arrival arrival_of(struct vgpu_throttle *throttle, const struct vgpu_cuda *cuda, struct vgpu_probe *probe,
                               struct vgpu_instant now)
{
    float ms = 0;
    CUresult result = cuda->cuEventQuery(probe->end);
    if (result == CUDA_ERROR_NOT_READY && vgpu_between(probe->launched, now) <= LOST_NS) {
        note_start(&throttle->devices[probe->ordinal], cuda, probe, now);
        return STILL_OUT;
    }
    if (result != CUDA_SUCCESS || cuda->cuEventElapsedTime(&ms, probe->start, probe->end) != CUDA_SUCCESS || ms < 0) {
        return LOST;
    }
    probe->took_ns = (uint64_t)((double)ms * 1e6);
    probe->own_ns = 0;
    probe->came = now;
    return ENDED;
}

/* Launches that ended in one pass are compared together, because any of them may have delayed any other. */
void vgpu_probe_harvest(struct vgpu_throttle *throttle, const struct vgpu_launch *l, struct vgpu_instant now)
{
    const struct vgpu_cuda *cuda = l->cuda;
    struct vgpu_throttle_device *device = &throttle->devices[l->ordinal];
    struct vgpu_probe *probe = next_probe(throttle, NULL), *ended[VGPU_PROBES];
    int mode = vgpu_capture_relax(cuda), missing = 0, watched = 0;
    unsigned count = 0;
    for (; probe && missing < MOST_PENDING; probe = next_probe(throttle, probe)) {
        switch (arrival_of(throttle, cuda, probe, now)) {
        case STILL_OUT:
            missing++;
            watched |= probe->ordinal == l->ordinal && is_worth_watching(device, probe->cost);
            break;
        case ENDED:
            ended[count++] = probe;
            break;
        case LOST:
            probe->context = NULL; /* gone with its context: the events are no longer ours to touch */
            lose(throttle, probe);
            break;
        }
    }
    for (unsigned i = 0; i < count; i++) {
        ended[i]->own_ns = own_time(throttle, cuda, ended[i], ended, count);
        resolve_probe(throttle, ended[i], now);
        drop(throttle, ended[i]);
        learn_overlap(&throttle->devices[ended[i]->ordinal], cuda, ended[i], now);
    }
    throttle->passed = now;
    watched = watched && vgpu_timeslice_can(cuda);
    atomic_store_explicit(&device->watched, watched, memory_order_relaxed);
    if (watched && vgpu_between(device->timeslice.looked, now) >= LOOK_NS) {
        vgpu_timeslice_look(&device->timeslice, cuda, now);
    }
    vgpu_capture_restore(cuda, mode);
}

/* Under the lock: the driver is about to wait for what was launched in this context. Wait first, for what was charged by a guess. */
static void measure_guesses(struct vgpu_throttle *throttle, const struct vgpu_cuda *cuda, CUcontext context)
{
    struct vgpu_launch l = {.cuda = cuda};
    for (int i = 0; i < VGPU_PROBES && cuda->cuEventSynchronize; i++) {
        const struct vgpu_probe *first = first_guess(throttle);
        if (!first || first->context != context || cuda->cuEventSynchronize(first->end) != CUDA_SUCCESS) {
            return;
        }
        l.ordinal = first->ordinal;
        vgpu_probe_harvest(throttle, &l, vgpu_world->now());
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
        if (throttle->devices[probe->ordinal].origin == probe) {
            throttle->devices[probe->ordinal].origin = NULL;
        }
    }
    for (unsigned i = 0; i < VGPU_MAX_DEVICES; i++) {
        vgpu_timeslice_end_context(&throttle->devices[i].timeslice, cuda, context);
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
