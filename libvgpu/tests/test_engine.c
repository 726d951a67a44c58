/* The simulated engine on the heap, in simulated time. */
#include <stdlib.h>
#include <string.h>

#include "engine.h"
#include "t.h"

#define MS UINT64_C(1000000)

static struct engine *e;

static void fresh(void)
{
    if (!e) {
        e = malloc(sizeof *e);
    }
    memset(e, 0, sizeof *e);
    engine_start(e, 0, 2 * MS, 0, 100 * MS);
}

static struct engine_op kernel(uint64_t ns, uint32_t fraction)
{
    return (struct engine_op){.kind = ENGINE_KERNEL, .left_ns = ns, .fraction = fraction};
}

static struct engine_op record(uint32_t event)
{
    return (struct engine_op){.kind = ENGINE_RECORD, .event = event};
}

TEST(two_kernels_of_one_queue_run_one_after_the_other)
{
    fresh();
    int c = engine_join(e, 1);
    CHECK(engine_submit(e, c, 1, kernel(3 * MS, 10)) && engine_submit(e, c, 1, kernel(4 * MS, 10)));
    engine_submit(e, c, 1, record(0));
    engine_advance(e, 100 * MS);
    CHECK_EQ(e->contexts[c].events[0].at_ns, 7 * MS);
    CHECK_EQ(e->contexts[c].busy_ns, 7 * MS);
}

TEST(small_kernels_of_two_queues_run_side_by_side_and_large_ones_do_not)
{
    fresh();
    int c = engine_join(e, 1);
    engine_submit(e, c, 1, kernel(3 * MS, ENGINE_WHOLE / 2));
    engine_submit(e, c, 2, kernel(3 * MS, ENGINE_WHOLE / 2));
    engine_advance(e, 10 * MS);
    CHECK_EQ(e->contexts[c].busy_ns, 3 * MS);
    engine_submit(e, c, 1, kernel(3 * MS, ENGINE_WHOLE));
    engine_submit(e, c, 2, kernel(3 * MS, ENGINE_WHOLE / 2));
    engine_advance(e, 20 * MS);
    CHECK_EQ(e->contexts[c].busy_ns, 9 * MS);
}

TEST(a_small_kernel_beside_a_large_one_of_another_process_waits_one_slice)
{
    fresh();
    int a = engine_join(e, 1), b = engine_join(e, 2);
    engine_submit(e, a, 1, kernel(1000 * MS, ENGINE_WHOLE));
    engine_submit(e, b, 1, kernel(MS, ENGINE_WHOLE));
    engine_submit(e, b, 1, record(0));
    engine_advance(e, 50 * MS);
    CHECK_EQ(e->contexts[b].events[0].at_ns, 3 * MS);
    CHECK_EQ(e->contexts[a].busy_ns, 49 * MS);
    CHECK_EQ(e->busy_ns, 50 * MS);
}

TEST(busy_processes_get_equal_parts_of_the_device)
{
    fresh();
    for (int i = 0; i < 4; i++) {
        engine_submit(e, engine_join(e, i + 1), 1, kernel(10000 * MS, ENGINE_WHOLE));
    }
    engine_advance(e, 800 * MS);
    for (int i = 0; i < 4; i++) {
        CHECK_EQ(e->contexts[i].busy_ns, 200 * MS);
    }
}

TEST(changing_over_costs_time_in_which_nothing_runs)
{
    fresh();
    e->switch_ns = MS;
    int a = engine_join(e, 1), b = engine_join(e, 2);
    engine_submit(e, a, 1, kernel(1000 * MS, 10));
    engine_submit(e, b, 1, kernel(1000 * MS, 10));
    engine_advance(e, 300 * MS);
    CHECK_EQ(e->busy_ns, 200 * MS);
}

/* A process that waits asks every few microseconds, so each call advances by less than a change-over. */
TEST(a_change_over_costs_as_much_however_often_the_time_is_asked_for)
{
    for (uint64_t step = 7000; step < 2 * MS; step *= 3) {
        fresh();
        e->switch_ns = MS;
        int a = engine_join(e, 1), b = engine_join(e, 2);
        engine_submit(e, a, 1, kernel(1000 * MS, 10));
        engine_submit(e, b, 1, kernel(1000 * MS, 10));
        for (uint64_t at = 0; at < 300 * MS; at += step) {
            engine_advance(e, at);
        }
        engine_advance(e, 300 * MS);
        CHECK_EQ(e->busy_ns, 200 * MS);
    }
}

TEST(a_change_over_to_a_process_that_leaves_meanwhile_is_not_finished)
{
    fresh();
    e->switch_ns = MS;
    int a = engine_join(e, 1), b = engine_join(e, 2);
    engine_submit(e, a, 1, kernel(1000 * MS, 10));
    engine_submit(e, b, 1, kernel(1000 * MS, 10));
    engine_advance(e, 3 * MS + MS / 2);
    CHECK_EQ(e->current, b);
    engine_leave(e, b);
    engine_advance(e, 10 * MS);
    CHECK_EQ(e->contexts[a].busy_ns, 2 * MS + 5 * MS + MS / 2);
}

TEST(the_legacy_stream_waits_for_blocking_streams_and_they_for_it)
{
    fresh();
    int c = engine_join(e, 1);
    engine_submit(e, c, 1, kernel(2 * MS, 10));
    engine_submit(e, c, 0, kernel(3 * MS, 10));
    engine_submit(e, c, 2, kernel(4 * MS, 10));
    engine_submit(e, c, 2, record(0));
    engine_submit(e, c, ENGINE_FIRST_FREE, kernel(MS, 10));
    engine_submit(e, c, ENGINE_FIRST_FREE, record(1));
    engine_advance(e, 100 * MS);
    CHECK_EQ(e->contexts[c].events[0].at_ns, 9 * MS);
    CHECK_EQ(e->contexts[c].events[1].at_ns, MS); /* a non-blocking stream does not wait */
}

TEST(a_stream_waits_for_the_event_of_another)
{
    fresh();
    int c = engine_join(e, 1);
    engine_submit(e, c, 1, kernel(5 * MS, 10));
    engine_submit(e, c, 1, record(0));
    engine_submit(e, c, 2, (struct engine_op){.kind = ENGINE_AWAIT, .event = 0, .recording = 1});
    engine_submit(e, c, 2, kernel(MS, 10));
    engine_submit(e, c, 2, record(1));
    engine_advance(e, 100 * MS);
    CHECK_EQ(e->contexts[c].events[1].at_ns, 6 * MS);
}

TEST(of_kernels_that_do_not_fit_together_the_one_of_higher_priority_goes_first)
{
    fresh();
    int c = engine_join(e, 1);
    struct engine_op urgent = kernel(MS, ENGINE_WHOLE);
    urgent.priority = -1;
    engine_submit(e, c, 1, kernel(5 * MS, ENGINE_WHOLE));
    engine_submit(e, c, 2, urgent);
    engine_submit(e, c, 2, record(0));
    engine_advance(e, 100 * MS);
    CHECK_EQ(e->contexts[c].events[0].at_ns, MS);
}

TEST(a_full_queue_takes_no_more)
{
    fresh();
    int c = engine_join(e, 1), taken = 0;
    while (engine_submit(e, c, 1, kernel(MS, 10))) {
        taken++;
    }
    CHECK_EQ(taken, ENGINE_DEPTH);
    engine_advance(e, MS);
    CHECK(engine_submit(e, c, 1, kernel(MS, 10)));
}

TEST(time_stops_where_a_record_asked_to_be_told)
{
    fresh();
    int c = engine_join(e, 1);
    struct engine_op notified = record(0);
    notified.notify = 1;
    engine_submit(e, c, 1, kernel(3 * MS, 10));
    engine_submit(e, c, 1, notified);
    engine_submit(e, c, 1, kernel(3 * MS, 10));
    CHECK_EQ(engine_advance(e, 100 * MS), 3 * MS);
    CHECK_EQ(e->notified, 1);
}

TEST(utilisation_is_of_whole_samples_and_late)
{
    uint64_t end;
    fresh();
    int a = engine_join(e, 1);
    for (int i = 0; i < 20; i++) {
        engine_submit(e, a, 1, kernel(25 * MS, 10));
        engine_advance(e, (uint64_t)(i + 1) * 100 * MS);
    }
    CHECK_EQ(engine_utilisation(e, a, 0, &end), 25);
    CHECK_EQ(end, 2000 * MS);
    CHECK_EQ(engine_utilisation(e, -1, 350 * MS, &end), 25);
    CHECK_EQ(end, 1600 * MS);
}

TEST(a_grid_runs_in_waves_over_the_multiprocessors)
{
    uint64_t ns;
    uint32_t fraction;
    engine_shape(108, 108 * 8, 256, 5000, &ns, &fraction);
    CHECK_EQ(ns, 5000);
    CHECK_EQ(fraction, ENGINE_WHOLE);
    engine_shape(108, 108 * 8 + 1, 256, 5000, &ns, &fraction);
    CHECK_EQ(ns, 10000);
    engine_shape(20, 8, 256, 5000, &ns, &fraction);
    CHECK_EQ(ns, 5000);
    CHECK_EQ(fraction, ENGINE_WHOLE / 20);
}

TEST(a_process_that_leaves_gives_its_timeslice_back)
{
    fresh();
    int a = engine_join(e, 1), b = engine_join(e, 2);
    engine_submit(e, a, 1, kernel(1000 * MS, 10));
    engine_submit(e, b, 1, kernel(1000 * MS, 10));
    engine_advance(e, 10 * MS);
    uint64_t before = e->contexts[b].busy_ns;
    engine_leave(e, a);
    engine_advance(e, 20 * MS);
    CHECK_EQ(e->contexts[b].busy_ns - before, 10 * MS);
}

TEST(utilisation_by_looks_is_that_of_the_moments_in_which_a_context_ran)
{
    fresh();
    e->look_ns = 5 * MS;
    int a = engine_join(e, 1), b = engine_join(e, 2);
    uint64_t end, sum = 0;
    engine_submit(e, a, 1, kernel(10000 * MS, ENGINE_WHOLE));
    engine_submit(e, b, 1, kernel(10000 * MS, ENGINE_WHOLE));
    int differ = 0;
    for (unsigned sample = 1; sample <= 40; sample++) {
        engine_advance(e, sample * 100 * MS);
        unsigned of_a = engine_utilisation(e, a, 0, &end);
        if (sample > 1) {
            CHECK_EQ(of_a + engine_utilisation(e, b, 0, &end), 100);
            differ |= of_a != 50;
            sum += of_a;
        }
    }
    CHECK(differ && sum / 39 > 40 && sum / 39 < 60);
}

int main(void)
{
    return t_run();
}
