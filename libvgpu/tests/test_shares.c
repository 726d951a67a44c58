/* The limiter in virtual time: scenes of the bench, in its simulator, compared with the bars that the bench reports. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "simulate.h"
#include "t.h"

#define MS UINT64_C(1000000)
#define S UINT64_C(1000000000)

static uint64_t used[SIMULATION_STEPS][MAX_CONTAINERS];

static const struct workload *workload(const char *name)
{
    for (unsigned i = 0; i < workload_count; i++) {
        if (!strcmp(workloads[i].name, name)) {
            return &workloads[i];
        }
    }
    abort();
}

static struct simulation scene(unsigned seconds, uint64_t lag_ns)
{
    return (struct simulation){.scene = {.seed = 7, .sms = 108, .lag_ns = lag_ns},
                               .length_ns = seconds * S,
                               .unlimited = -1,
                               .step_ns = 100 * MS,
                               .used = used};
}

static void add(struct simulation *s, const char *name, unsigned cores)
{
    s->scene.tenants[s->scene.count++] = (struct tenant){workload(name), cores};
}

static double use(const struct simulation *s, unsigned tenant, double from_s, double to_s)
{
    unsigned from = (unsigned)(from_s * (double)S / (double)s->step_ns), to = (unsigned)(to_s * (double)S / (double)s->step_ns);
    to = to < s->steps ? to : s->steps - 1;
    return 100.0 * (double)(used[to][tenant] - used[from][tenant]) / (double)((to - from) * s->step_ns);
}

static int near(double is, double wanted, double points)
{
    if (fabs(is - wanted) > points) {
        fprintf(stderr, "    %.2f, wanted %.2f\n", is, wanted);
        return 0;
    }
    return 1;
}

TEST(alone_every_kind_of_program_gets_its_share_from_the_first_second_on)
{
    static const char *const names[] = {"5us",         "500us",       "5ms",   "20us_sync",  "burst_long",
                                        "graph_small", "graph_large", "waves", "small_grids"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        for (unsigned lag = 0; lag < 2; lag++) {
            struct simulation s = scene(10, lag ? 1000 * MS : 100 * MS);
            add(&s, names[i], 30);
            simulate(&s);
            CHECK(near(use(&s, 0, 0, 5), 30, 3) && near(use(&s, 0, 5, 10), 30, 3));
        }
    }
}

TEST(kernels_as_rare_as_every_second_or_fifth_sample_get_their_share_whatever_the_seed)
{
    static const struct {
        uint64_t first_seed;
        unsigned cores, window_s;
    } kinds[] = {{1000, 10, 17}, {2000, 25, 6}};
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        for (uint64_t seed = kinds[k].first_seed; seed < kinds[k].first_seed + 100; seed++) {
            struct simulation s = scene(3 * kinds[k].window_s, 500 * MS);
            uint64_t state = seed;
            s.scene.seed = chance(&state);
            add(&s, "50ms", kinds[k].cores);
            simulate(&s);
            for (unsigned window = 0; window < 3; window++) {
                unsigned from = window * kinds[k].window_s;
                CHECK(near(use(&s, 0, from, from + kinds[k].window_s), kinds[k].cores, 1.5));
            }
        }
    }
}

TEST(of_many_neighbours_who_wait_for_each_kernel_none_starts_far_behind)
{
    for (uint64_t seed = 1; seed <= 6; seed++) {
        struct simulation s = scene(15, 1000 * MS);
        s.scene.seed = seed;
        for (unsigned t = 0; t < 16; t++) {
            add(&s, "2ms_sync", 6);
        }
        simulate(&s);
        for (unsigned t = 0; t < 16; t++) {
            /* Measured: 0.94, which is 0.4 points of the device. A bound of 0.97 held while the limiter used marks in a
             * stream of its own, which no device has confirmed. NVML counts whole percents, and one percent is a sixth of
             * such a share. */
            CHECK(use(&s, t, 0, 15) > 0.93 * 6);
        }
    }
}

/* It rarely gets the device, only between the timeslices of others, so it must not be held up then. */
TEST(a_small_share_that_waits_for_each_kernel_gets_what_it_could_use_between_busy_neighbours)
{
    double could = 0;
    for (int limited = 0; limited < 2; limited++) {
        struct simulation s = scene(30, 500 * MS);
        s.unlimited = limited ? -1 : 5;
        add(&s, "5ms", 60);
        add(&s, "processes", 12);
        add(&s, "5ms", 11);
        add(&s, "burst_short", 7);
        add(&s, "50ms", 5);
        add(&s, "20us_sync", 5);
        simulate(&s);
        double got = use(&s, 5, 0, 30);
        if (!limited) {
            could = got < 5 ? got : 5;
        } else {
            CHECK(got > 0.95 * could && got < 6);
        }
    }
}

TEST(processes_and_threads_of_a_container_have_one_share_together)
{
    struct simulation s = scene(10, 100 * MS);
    add(&s, "processes", 40);
    simulate(&s);
    CHECK(near(use(&s, 0, 2, 10), 40, 3));
}

TEST(neighbours_get_their_own_shares_whatever_they_run)
{
    struct simulation s = scene(40, 500 * MS);
    add(&s, "50us", 45);
    add(&s, "5ms", 30);
    add(&s, "graph_small", 15);
    simulate(&s);
    CHECK(near(use(&s, 0, 20, 40), 45, 3) && near(use(&s, 1, 20, 40), 30, 3) && near(use(&s, 2, 20, 40), 15, 3));
}

/* Until NVML is compared, a second or more after the start, 0.35 plus half of the share, here 0.475, of each measured time is
 * charged. With four equal tenants only a quarter of that time was their own, so they pay almost twice: tenants with kernels
 * of 50 ms get 20.5 of 25 in the first five seconds. A lower factor would give a tenant with long kernels and one neighbour
 * more than its share. */
TEST(a_start_beside_busy_neighbours_costs_at_most_a_fifth_of_five_seconds_however_late_nvml_is)
{
    static const char *const names[] = {"5ms", "50ms", "graph_large"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        struct simulation s = scene(10, 1000 * MS);
        for (unsigned t = 0; t < 4; t++) {
            add(&s, names[i], 25);
        }
        simulate(&s);
        for (unsigned t = 0; t < 4; t++) {
            CHECK(near(use(&s, t, 0, 5), 25, 5) && near(use(&s, t, 5, 10), 25, 3));
        }
    }
}

/* Until NVML has reported, each kernel is charged its whole time although three run at once: 54.4 of 60 in the first five
 * seconds. Finding out by events what runs at once was rejected (docs/design/compute-limiter.md). */
TEST(kernels_side_by_side_get_nearly_their_share_beside_busy_neighbours_from_the_start_however_late_nvml_is)
{
    struct simulation s = scene(15, 1000 * MS);
    add(&s, "small_grids", 60);
    add(&s, "50ms", 19);
    add(&s, "graph_large", 16);
    add(&s, "small_grids", 5);
    simulate(&s);
    CHECK(near(use(&s, 0, 0, 5), 60, 6) && near(use(&s, 0, 5, 10), 60, 5) && near(use(&s, 3, 0, 5), 5, 2));
}

/* Threads that are held up one after the other never overlap on the device, although each has its own stream. */
TEST(streams_whose_kernels_do_not_meet_are_charged_their_whole_times_before_nvml_is_heard)
{
    struct simulation s = scene(5, 1000 * MS);
    add(&s, "waves", 19);
    add(&s, "20us_sync", 56);
    add(&s, "small_grids", 25);
    simulate(&s);
    CHECK(near(use(&s, 2, 0, 1.5), 25, 4) && near(use(&s, 2, 0, 5), 25, 2));
}

/* A program that waits for its bursts reads NVML only at their ends; once only one in six samples was compared. */
TEST(streams_that_begin_together_at_their_turn_are_charged_for_the_rest_too_before_nvml_is_heard)
{
    for (unsigned seed = 1; seed <= 4; seed++) {
        struct simulation s = scene(5, 1000 * MS);
        s.scene.seed = seed;
        add(&s, "small_grids", 16);
        add(&s, "outliers", 52);
        add(&s, "burst_long", 21);
        add(&s, "50us", 11);
        simulate(&s);
        CHECK(near(use(&s, 0, 0, 2), 16, 5));
    }
}

/* An event gets its time when its stream has reached it, but the kernel behind it waits for those of the other stream. */
TEST(streams_of_kernels_that_fill_the_device_start_at_their_share_in_each_process_of_a_container)
{
    for (uint64_t seed = 1; seed <= 8; seed++) {
        struct simulation s = scene(5, 1000 * MS);
        s.scene.seed = seed;
        add(&s, "processes", 60);
        add(&s, "50ms", 25);
        add(&s, "graph_large", 15);
        simulate(&s);
        CHECK(near(use(&s, 0, 0, 5), 60, 2.5));
    }
}

/* The shares add up to the whole device, so a process must not be credited for launches that wait in its queues. Windows
 * of five seconds differ from the share by up to 2.8 points in both directions; a queue that fills at a neighbour's cost
 * takes more than that from it. */
TEST(no_queue_fills_at_the_cost_of_a_neighbour)
{
    struct simulation s = scene(60, 1000 * MS);
    add(&s, "waves", 11);
    add(&s, "processes", 60);
    add(&s, "2ms_sync", 13);
    add(&s, "50us", 5);
    add(&s, "2ms_sync", 6);
    add(&s, "small_grids", 5);
    simulate(&s);
    for (unsigned from_s = 0; from_s < 60; from_s += 5) {
        CHECK(near(use(&s, 1, from_s, from_s + 5), 60, 3));
    }
    CHECK(use(&s, 2, 0, 60) > 0.97 * 12.9);
}

TEST(bursts_beside_busy_neighbours_get_no_more_than_their_share)
{
    struct simulation s = scene(30, 0);
    CHECK(scene_at(279, 1013, &s.scene));
    CHECK(!strcmp(s.scene.tenants[2].workload->name, "burst_long"));
    simulate(&s);
    for (unsigned t = 0; t < s.scene.count; t++) {
        CHECK(near(use(&s, t, 5, 30), s.scene.tenants[t].cores, 1));
    }
}

TEST(samples_missed_while_a_program_waits_for_its_kernels_change_nothing)
{
    struct simulation s = scene(60, 500 * MS);
    add(&s, "300ms_sync", 50);
    simulate(&s);
    CHECK(near(use(&s, 0, 0, 20), 50, 3) && near(use(&s, 0, 20, 40), 50, 3) && near(use(&s, 0, 40, 60), 50, 3));
}

TEST(kernels_that_vary_tenfold_cost_what_they_cost_on_average)
{
    struct simulation s = scene(20, 100 * MS);
    add(&s, "outliers", 50);
    simulate(&s);
    CHECK(near(use(&s, 0, 2, 20), 50, 3));
}

TEST(a_new_share_holds_at_once)
{
    struct simulation s = scene(10, 100 * MS);
    s.resize_at_ns = 5 * S;
    s.resize_to = 75;
    add(&s, "500us", 25);
    simulate(&s);
    CHECK(near(use(&s, 0, 3, 5), 25, 3) && near(use(&s, 0, 5, 6), 75, 5) && near(use(&s, 0, 6, 10), 75, 3));
}

TEST(by_default_the_whole_device_is_free_until_others_are_active)
{
    struct simulation s = scene(10, 100 * MS);
    s.by_default = 1;
    add(&s, "500us", 20);
    simulate(&s);
    CHECK(use(&s, 0, 1, 10) > 95);
    s = scene(20, 100 * MS);
    s.by_default = 1;
    add(&s, "500us", 20);
    add(&s, "500us", 60);
    simulate(&s);
    CHECK(near(use(&s, 0, 10, 20), 20, 3) && near(use(&s, 1, 10, 20), 60, 3));
}

TEST(what_was_launched_before_a_limit_came_is_not_owed)
{
    static const struct {
        const char *name;
        unsigned to;
        unsigned from_s; /* by then, launches from before have run, and what was used until the kernels were known is paid */
    } scenes[] = {{"500us", 5, 7}, {"5ms", 5, 8}, {"5ms", 40, 8}, {"graph_large", 40, 12}, {"20us_sync", 5, 7}};
    for (size_t i = 0; i < sizeof scenes / sizeof scenes[0]; i++) {
        for (unsigned lag = 0; lag < 2; lag++) {
            struct simulation s = scene(30, lag ? 1000 * MS : 100 * MS);
            s.resize_at_ns = 5 * S;
            s.resize_to = scenes[i].to;
            add(&s, scenes[i].name, 0);
            simulate(&s);
            CHECK(use(&s, 0, 3, 5) > 75);
            for (unsigned at = scenes[i].from_s; at <= 25; at++) {
                CHECK(near(use(&s, 0, at, at + 5), scenes[i].to, scenes[i].to > 10 ? 3 : 0.5));
            }
        }
    }
}

TEST(nor_what_was_launched_before_others_came)
{
    struct simulation s = scene(40, 100 * MS);
    s.by_default = 1;
    s.late_ns = 5 * S;
    add(&s, "5ms", 20);
    add(&s, "500us", 30);
    simulate(&s);
    CHECK(near(use(&s, 0, 12, 17), 20, 3) && near(use(&s, 0, 17, 40), 20, 3) && near(use(&s, 1, 6, 40), 30, 1));
}

/* The events of kernels longer than a turn include the neighbour's turns, and nothing tells how many. */
TEST(no_tenant_starves_beside_a_busy_neighbour_where_nvml_cannot_be_matched)
{
    static const char *const names[] = {"5ms", "50ms", "graph_large"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        struct simulation s = scene(20, 500 * MS);
        s.device = device_nominal();
        s.device.unmatched = 1;
        add(&s, names[i], 30);
        add(&s, "500us", 70);
        simulate(&s);
        CHECK(use(&s, 0, 0, 20) > 0.9 * 30 && use(&s, 1, 0, 20) > 0.85 * 70);
    }
}

TEST(a_lone_tenant_keeps_its_share_where_nvml_cannot_be_matched)
{
    struct simulation s = scene(20, 500 * MS);
    s.device = device_nominal();
    s.device.unmatched = 1;
    add(&s, "50ms", 30);
    simulate(&s);
    CHECK(near(use(&s, 0, 0, 20), 30, 1));
}

TEST(a_seed_gives_the_same_run_again)
{
    struct simulation s = scene(3, 100 * MS);
    add(&s, "outliers", 50);
    add(&s, "burst_short", 30);
    simulate(&s);
    uint64_t launches = s.launches, first = used[20][0], second = used[20][1];
    simulate(&s);
    CHECK(launches == s.launches && first == used[20][0] && second == used[20][1]);
}

int main(void)
{
    return t_run();
}
