/* Tests which launches are measured, and how much of the measured time is spent waiting for other streams. If kernels in two
 * streams fill the device, a start event is stamped as soon as its own stream reaches it, although the kernel after it still
 * has to wait for the other stream. */
#include <stddef.h>

#include "throttle.h"
#include "one_bucket.h"
#include "t.h"

#define US UINT64_C(1000)
#define MS UINT64_C(1000000)
#define S UINT64_C(1000000000)

struct CUevent_st {
    uint64_t at_ns;
};

static uint64_t now_ns, device_ns, stream_ns[3]; /* until when the device, and each stream, has something to run */
static struct vgpu_throttle throttle;

static struct vgpu_instant clock_now(void)
{
    return vgpu_at(now_ns);
}

static void sleep_for(vgpu_duration ns)
{
    now_ns += ns;
}

static const struct vgpu_world world = {.now = clock_now, .sleep_for = sleep_for};
const struct vgpu_world *vgpu_world = &world;

static CUresult make_event(CUevent *out, unsigned flags)
{
    static struct CUevent_st events[2 * 2 * VGPU_PROBES]; /* a pair for each probe, in two tests */
    static size_t made;
    (void)flags;
    if (made == sizeof events / sizeof *events) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *out = &events[made++];
    return CUDA_SUCCESS;
}

static CUresult record(CUevent event, CUstream stream)
{
    uint64_t reached_ns = stream_ns[(uintptr_t)stream];
    event->at_ns = reached_ns > now_ns ? reached_ns : now_ns;
    return CUDA_SUCCESS;
}

static CUresult query(CUevent event)
{
    return event->at_ns <= now_ns ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

static CUresult elapsed(float *out, CUevent start, CUevent end)
{
    if (start->at_ns > now_ns || end->at_ns > now_ns) {
        return CUDA_ERROR_NOT_READY;
    }
    *out = (float)(((double)end->at_ns - (double)start->at_ns) / 1e6);
    return CUDA_SUCCESS;
}

static CUresult current(CUcontext *out)
{
    *out = (CUcontext)(void *)&bucket;
    return CUDA_SUCCESS;
}

static const struct vgpu_cuda driver = {.cuEventCreate = make_event,
                                        .cuEventRecord = record,
                                        .cuEventQuery = query,
                                        .cuEventElapsedTime = elapsed,
                                        .cuCtxGetCurrent = current};

static struct vgpu_share share_of(void *owner, int ordinal)
{
    (void)owner, (void)ordinal;
    return (struct vgpu_share){.percent = 60, .always = 1};
}

static const struct vgpu_launch a_launch = {
    .cuda = &driver, .page = 2, .process = 1, .function = 7, .blocks = UINT64_C(8) * 100, .threads = 256};

static void launch(struct vgpu_hand *hand, uintptr_t stream, uint64_t ns)
{
    struct vgpu_launch l = a_launch;
    struct vgpu_ticket ticket = {0};
    l.stream = (CUstream)stream; /* NOLINT(performance-no-int-to-ptr) */
    if (hand->process != 1 || !vgpu_throttle_fast(hand, 0, vgpu_cost_key(l.function, l.blocks, l.threads))) {
        vgpu_throttle_begin(&throttle, hand, &l, &ticket);
    }
    uint64_t begins_ns = stream_ns[stream] > device_ns ? stream_ns[stream] : device_ns;
    begins_ns = begins_ns > now_ns ? begins_ns : now_ns;
    stream_ns[stream] = device_ns = begins_ns + ns;
    vgpu_throttle_end(&throttle, &l, &ticket, CUDA_SUCCESS);
}

TEST(what_a_kernel_waits_for_another_stream_of_its_process_costs_nothing)
{
    static struct vgpu_hand hands[3];
    int learned;
    struct vgpu_geometry what = {.function = 7, .blocks = UINT64_C(8) * 100, .threads = 256, .sms = 100};
    throttle = (struct vgpu_throttle){.share = share_of, .bucket = bucket_of, .sms = sms_of};
    now_ns = 100 * S;
    for (uint64_t from_ns = now_ns; now_ns < from_ns + 2 * S; now_ns += 2 * MS) { /* a rest that pays for both */
        uintptr_t first = 1 + now_ns / (2 * MS) / 3 % 2;
        launch(&hands[first], first, 200 * US);
        launch(&hands[3 - first], 3 - first, 200 * US);
    }
    uint64_t ns = vgpu_cost_ns(&throttle.costs, vgpu_cost_of(&throttle.costs, &what), &what, vgpu_at(0), &learned);
    CHECK(ns > 190 * US && ns < 220 * US);
}

TEST(of_what_is_launched_at_once_as_much_is_measured_as_of_what_comes_in_time)
{
    static struct vgpu_hand hand;
    struct vgpu_geometry what = {.function = 7, .blocks = UINT64_C(8) * 100, .threads = 256, .sms = 100};
    throttle = (struct vgpu_throttle){.share = share_of, .bucket = bucket_of, .sms = sms_of};
    bucket = (struct vgpu_region_bucket){0};
    for (uint64_t from_ns = now_ns; now_ns < from_ns + 3 * S; now_ns += MS) {
        launch(&hand, 1, 100 * US);
    }
    struct vgpu_cost *cost = vgpu_cost_of(&throttle.costs, &what);
    now_ns += S;
    uint32_t before = cost->samples;
    for (int i = 0; i < 600; i++) { /* 60 ms of the device: one of each five */
        launch(&hand, 1, 100 * US);
    }
    for (int i = 0; i < 20; i++) {
        now_ns += 50 * MS;
        launch(&hand, 1, 100 * US);
    }
    CHECK(cost->samples - before > 12);
}

int main(void)
{
    return t_run();
}
