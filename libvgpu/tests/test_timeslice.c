/* Whose timeslice runs, by marks on a simulated device: its clock drifts from ours, and timeslices come round as the test sets. */
#include "timeslice.h"

#include <stdlib.h>

#include "t.h"

#define US UINT64_C(1000)
#define MS UINT64_C(1000000)

/* Of each `round` the context has the first `slice`. */
static uint64_t now_ns, slice_ns, round_ns;
static double drift;
static CUcontext context;
static int streams, lost;

struct CUevent_st {
    uint64_t recorded_ns, done_ns;
};

static CUresult create_stream(CUstream *out, unsigned flags)
{
    streams++;
    *out = (CUstream)(void *)&streams;
    return flags == CU_STREAM_NON_BLOCKING ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult create_event(CUevent *out, unsigned flags)
{
    (void)flags;
    *out = calloc(1, sizeof **out);
    return CUDA_SUCCESS;
}

static CUresult record(CUevent event, CUstream stream)
{
    uint64_t within = now_ns % round_ns;
    (void)stream;
    event->recorded_ns = now_ns;
    event->done_ns = within < slice_ns ? now_ns : now_ns - within + round_ns;
    return lost ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
}

static CUresult query(CUevent event)
{
    return lost ? CUDA_ERROR_INVALID_HANDLE : event->done_ns <= now_ns ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

static CUresult elapsed(float *out, CUevent start, CUevent end)
{
    *out = (float)((double)(end->done_ns - start->done_ns) * (1 + drift) / 1e6);
    return CUDA_SUCCESS;
}

static CUresult current(CUcontext *out)
{
    *out = context;
    return CUDA_SUCCESS;
}

static const struct vgpu_cuda driver = {.cuStreamCreate = create_stream,
                                        .cuEventCreate = create_event,
                                        .cuEventRecord = record,
                                        .cuEventQuery = query,
                                        .cuEventElapsedTime = elapsed,
                                        .cuCtxGetCurrent = current};

static void stage(uint64_t slice, uint64_t round, double clocks)
{
    now_ns = 1000 * MS;
    slice_ns = slice;
    round_ns = round;
    drift = clocks;
    context = (CUcontext)(void *)&driver;
    streams = lost = 0;
}

/* Looks for so long, every 300 to 500 us; the part that was ours. */
static double watch(struct vgpu_timeslice *timeslice, uint64_t for_ns)
{
    uint32_t looks = timeslice->looks, ours = timeslice->ours;
    unsigned state = 7;
    for (uint64_t until = now_ns + for_ns; now_ns < until;
         now_ns += 300 * US + (state = state * 1103515245 + 12345) / 65536 % 200 * US) {
        vgpu_timeslice_look(timeslice, &driver, vgpu_at(now_ns));
    }
    return vgpu_timeslice_part(timeslice, looks, ours);
}

static void end(struct vgpu_timeslice *timeslice)
{
    free(timeslice->marks[0]);
    free(timeslice->marks[1]);
}

TEST(marks_tell_which_part_of_the_time_was_ours)
{
    static const struct {
        uint64_t slice, round;
    } cases[] = {{2 * MS, 4 * MS}, {2 * MS, 8 * MS}, {2 * MS, 32 * MS}, {5 * MS, 6 * MS}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (int d = -1; d <= 1; d++) {
            struct vgpu_timeslice timeslice = {0};
            stage(cases[i].slice, cases[i].round, d * 5e-5);
            double part = watch(&timeslice, 1000 * MS), is = (double)cases[i].slice / (double)cases[i].round;
            CHECK(part > is * 0.9 && part < is * 1.15);
            end(&timeslice);
        }
    }
}

TEST(alone_on_a_device_every_timeslice_is_ours)
{
    struct vgpu_timeslice timeslice = {0};
    stage(8 * MS, 8 * MS, 5e-5);
    CHECK(watch(&timeslice, 500 * MS) > 0.99);
    end(&timeslice);
}

TEST(a_few_looks_prove_nothing_nor_do_marks_that_never_come)
{
    struct vgpu_timeslice timeslice = {0};
    stage(2 * MS, 8 * MS, 0);
    CHECK(watch(&timeslice, MS) == 0);
    round_ns = 1000000 * MS;
    now_ns = 10 * MS;
    CHECK(watch(&timeslice, 100 * MS) == 0);
    end(&timeslice);
}

TEST(after_a_long_pause_the_clocks_are_set_against_each_other_anew)
{
    struct vgpu_timeslice timeslice = {0};
    stage(8 * MS, 8 * MS, 5e-4);
    watch(&timeslice, 10 * MS);
    now_ns += 60000 * MS;
    CHECK(watch(&timeslice, 5 * MS) > 0.9);
    end(&timeslice);
}

TEST(a_stream_that_was_lost_with_its_context_is_left_alone_and_made_anew_only_so_often)
{
    struct vgpu_timeslice timeslice = {0};
    stage(8 * MS, 8 * MS, 0);
    watch(&timeslice, 10 * MS);
    CHECK_EQ(streams, 1);
    CUevent marks[2] = {timeslice.marks[0], timeslice.marks[1]};
    lost = 1;
    vgpu_timeslice_look(&timeslice, &driver, vgpu_at(now_ns));
    CHECK(timeslice.context == NULL);
    free(marks[0]);
    free(marks[1]);
    lost = 0;
    CHECK(watch(&timeslice, 10 * MS) > 0.9);
    CHECK_EQ(streams, 2);
    end(&timeslice);
    for (uintptr_t i = 1; i < 50; i++) {
        context = (CUcontext)(i * 64);
        vgpu_timeslice_look(&timeslice, &driver, vgpu_at(now_ns));
        if (timeslice.context) {
            end(&timeslice);
        }
    }
    CHECK(streams < 10);
}

int main(void)
{
    return t_run();
}
