/* Threads of one process, each with its own hand, share one budget. Real threads in virtual time; also run under the sanitizers. */
#include <pthread.h>
#include <stdlib.h>

#include "throttle.h"
#include "one_bucket.h"
#include "t.h"
#include "virtual_time.h"

#define MS UINT64_C(1000000)

enum { THREADS = 4 };

static struct vgpu_throttle throttle;
static _Atomic uint64_t work_ns;
static _Atomic uint32_t percent = 50;
static char events[2];

static struct vgpu_instant clock_now(void)
{
    return vgpu_at(virtual_now_ns());
}

static const struct vgpu_world world = {.now = clock_now, .sleep_for = virtual_sleep_ns};
const struct vgpu_world *vgpu_world = &world;

static CUresult make_event(CUevent *out, unsigned flags)
{
    (void)flags;
    *out = (CUevent)(void *)events;
    return CUDA_SUCCESS;
}

static CUresult one(CUevent event)
{
    return event ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

static CUresult record(CUevent event, CUstream stream)
{
    (void)stream;
    return one(event);
}

static CUresult elapsed(float *out, CUevent start, CUevent end)
{
    (void)end;
    *out = 0.1f;
    return one(start);
}

static CUresult current(CUcontext *out)
{
    *out = (CUcontext)(void *)events;
    return CUDA_SUCCESS;
}

static const struct vgpu_cuda driver = {.cuEventCreate = make_event,
                                        .cuEventDestroy_v2 = one,
                                        .cuEventRecord = record,
                                        .cuEventQuery = one,
                                        .cuEventElapsedTime = elapsed,
                                        .cuCtxGetCurrent = current};

static struct vgpu_share share_of(void *owner, int ordinal)
{
    (void)owner, (void)ordinal;
    return (struct vgpu_share){.percent = atomic_load(&percent), .always = 1};
}

static uint64_t end_ns;

static void *launches(void *argument)
{
    struct vgpu_hand hand = {0};
    int place = (int)(uintptr_t)argument;
    uint64_t function = 1 + (uintptr_t)argument % 2;
    virtual_join(place);
    while (virtual_now_ns() < end_ns) {
        struct vgpu_launch l = {
            .cuda = &driver, .ordinal = 0, .page = 2, .process = 1, .function = function, .blocks = 800, .threads = 256};
        struct vgpu_ticket ticket = {0};
        if (hand.process != 1 || hand.page != 2 ||
            !vgpu_throttle_fast(&hand, 0, vgpu_cost_key(l.function, l.blocks, l.threads))) {
            vgpu_throttle_begin(&throttle, &hand, &l, &ticket);
        }
        atomic_fetch_add(&work_ns, 100000);
        vgpu_throttle_end(&throttle, &l, &ticket, CUDA_SUCCESS);
    }
    virtual_leave(place);
    return NULL;
}

/* Return the percentage of the device that all threads together have taken, launching for `ms`. */
static double share_of_all(unsigned ms)
{
    pthread_t threads[THREADS];
    int places[THREADS];
    uint64_t start = virtual_now_ns();
    end_ns = start + ms * MS;
    atomic_store(&work_ns, 0);
    for (int i = 0; i < THREADS; i++) {
        places[i] = virtual_reserve();
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_create(&threads[i], NULL, launches, (void *)(uintptr_t)places[i]);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
    }
    return 100.0 * (double)atomic_load(&work_ns) / (double)(virtual_now_ns() - start);
}

TEST(threads_that_launch_at_once_get_one_share_together)
{
    throttle = (struct vgpu_throttle){.share = share_of, .bucket = bucket_of, .sms = sms_of, .measure = nothing_measured};
    share_of_all(1000); /* costs are learned, the burst of the start is spent */
    double got = share_of_all(3000);
    CHECK(got > 48 && got < 52);
    atomic_store(&percent, 0);
    CHECK(share_of_all(20) > 1000); /* no process is held */
    atomic_store(&percent, 10);
    share_of_all(1000);
    got = share_of_all(3000);
    CHECK(got > 9 && got < 11);
}

int main(void)
{
    return t_run();
}
