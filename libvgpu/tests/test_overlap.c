/* Kernels side by side, one after the other, and behind each other, as their events show them. */
#include "overlap.h"

#include <math.h>
#include <string.h>

#include "t.h"

#define MS 1e6

static struct vgpu_overlap overlap;

static double factor(void)
{
    return 1e9 / (double)vgpu_overlap_of(&overlap, 1000000000, 8);
}

/* So many pairs: each of `streams` in turn launches a kernel of 1 ms, the next one `apart` later. The second takes `took`. */
static void run_pairs(unsigned pairs, uintptr_t streams, double apart_ns, double took_ns)
{
    memset(&overlap, 0, sizeof overlap);
    for (unsigned i = 0; i < pairs; i++) {
        uintptr_t stream = i % streams + 1;
        struct vgpu_overlap_run first = {stream, 0, MS, MS};
        struct vgpu_overlap_run second = {stream % streams + 1, apart_ns, apart_ns + took_ns, took_ns < MS ? took_ns : MS};
        vgpu_overlap_launched(&overlap, stream);
        vgpu_overlap_pair(&overlap, &first, &second);
    }
}

/* Streams that are never without work; one launch in `every` is measured. Kernels of 1 ms, all streams in step. */
static void run_singles(uintptr_t streams, unsigned every, int are_side_by_side)
{
    unsigned launches = 0;
    uint64_t chance = 1;
    memset(&overlap, 0, sizeof overlap);
    for (unsigned row = 0; row < 4000; row++) {
        for (uintptr_t stream = 1; stream <= streams; stream++, launches++) {
            double from = MS * (are_side_by_side ? row : launches);
            struct vgpu_overlap_run run = {stream, from, from + MS, MS};
            vgpu_overlap_charged(&overlap, vgpu_overlap_of(&overlap, (uint64_t)MS, 8));
            chance = chance * UINT64_C(6364136223846793005) + 1442695040888963407;
            if ((chance >> 33) % every == 0) {
                vgpu_overlap_launched(&overlap, stream);
                vgpu_overlap_single(&overlap, &run);
            }
        }
    }
}

TEST(nothing_is_divided_before_anything_was_measured)
{
    memset(&overlap, 0, sizeof overlap);
    CHECK_EQ(vgpu_overlap_of(&overlap, 12345, 8), 12345);
}

TEST(kernels_one_after_the_other_cost_their_whole_times)
{
    run_pairs(100, 2, MS, MS);
    CHECK(factor() < 1.001);
    run_pairs(100, 2, -5 * MS, MS);
    CHECK(factor() < 1.001);
}

TEST(kernels_side_by_side_cost_the_time_in_which_any_of_them_runs)
{
    run_pairs(100, 2, 0, MS);
    CHECK(fabs(factor() - 2) < 0.1);
    run_pairs(100, 3, 0, MS);
    CHECK(fabs(factor() - 3) < 0.2);
    run_pairs(100, 2, MS / 2, MS);
    CHECK(fabs(factor() - 4.0 / 3) < 0.05);
}

TEST(a_kernel_that_waits_for_the_other_to_leave_the_device_is_not_beside_it)
{
    run_pairs(100, 2, 0, 2 * MS);
    CHECK(factor() < 1.001);
}

TEST(kernels_that_wait_for_a_neighbour_wait_together)
{
    memset(&overlap, 0, sizeof overlap);
    for (unsigned i = 0; i < 100; i++) {
        struct vgpu_overlap_run first = {i % 2 + 1, 0, 3 * MS, MS}, second = {2 - i % 2, 0, 3 * MS, MS};
        vgpu_overlap_launched(&overlap, first.stream);
        vgpu_overlap_pair(&overlap, &first, &second);
    }
    CHECK(fabs(factor() - 2) < 0.1);
}

TEST(no_more_run_side_by_side_than_the_device_has_room_for)
{
    run_pairs(100, 3, 0, MS);
    CHECK_EQ(vgpu_overlap_of(&overlap, 12345, 1), 12345);
    CHECK_EQ(vgpu_overlap_of(&overlap, 12345, 2), 12345 / 2);
}

TEST(streams_that_are_seldom_used_hardly_count)
{
    memset(&overlap, 0, sizeof overlap);
    for (unsigned i = 0; i < 160; i++) {
        struct vgpu_overlap_run first = {1, 0, MS, MS}, second = {2, 0, MS, MS};
        vgpu_overlap_launched(&overlap, i % VGPU_OVERLAP_STREAMS ? 1 : 2);
        vgpu_overlap_pair(&overlap, &first, &second);
    }
    CHECK(factor() < 1.2);
}

TEST(streams_with_a_backlog_show_what_runs_beside_what_by_chance)
{
    run_singles(3, 10, 1);
    CHECK(fabs(factor() - 3) < 0.5);
    run_singles(3, 10, 0);
    CHECK(factor() < 1.001);
    run_singles(1, 10, 1);
    CHECK(factor() < 1.001);
}

TEST(too_few_measurements_show_nothing_by_chance)
{
    run_singles(3, 400, 1);
    CHECK(factor() < 1.001);
}

TEST(what_events_showed_fades_once_nvml_is_heard)
{
    run_pairs(100, 3, 0, MS);
    double before = factor();
    for (uint64_t now = 1000000000; now < 2000000000; now += 1000000) {
        vgpu_overlap_fade(&overlap, vgpu_at(now));
    }
    CHECK(factor() > before - 0.1 && factor() < before);
    for (uint64_t now = 2000000000; now < 600000000000; now += 50000000) {
        vgpu_overlap_fade(&overlap, vgpu_at(now));
    }
    CHECK_EQ(vgpu_overlap_of(&overlap, 12345, 8), 12345);
}

int main(void)
{
    return t_run();
}
