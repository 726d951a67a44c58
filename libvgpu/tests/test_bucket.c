/* Budget and costs in simulated time; threads and kills on real memory. */
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bucket.h"
#include "cost.h"
#include "calibrate.h"
#include "t.h"

#define MS UINT64_C(1000000)
#define S UINT64_C(1000000000)

TEST(what_is_taken_is_paid_for_in_time_at_the_share)
{
    struct vgpu_region_bucket b = {.paid_until_ns = 10 * S};
    CHECK_EQ(vgpu_bucket_take(&b, vgpu_at(10 * S), 25, 10 * MS).ns, 0);
    CHECK_EQ(vgpu_bucket_take(&b, vgpu_at(10 * S), 25, 10 * MS).ns, 10 * S + 40 * MS);
    CHECK_EQ(vgpu_bucket_take(&b, vgpu_at(10 * S + 40 * MS), 25, 10 * MS).ns, 0);
}

TEST(a_new_budget_has_10_ms_of_the_device_whatever_the_share)
{
    static const uint32_t percents[] = {99, 50, 10, 2};
    for (size_t i = 0; i < sizeof percents / sizeof percents[0]; i++) {
        struct vgpu_region_bucket b = {0};
        uint64_t taken = 0;
        while (!vgpu_bucket_take(&b, vgpu_at(100 * S), percents[i], MS / 10).ns) {
            taken += MS / 10;
        }
        CHECK(taken >= 10 * MS && taken <= 10 * MS + MS / 5);
    }
}

TEST(time_that_was_not_used_is_kept_for_a_burst_and_no_longer)
{
    struct vgpu_region_bucket b = {.paid_until_ns = 90 * S};
    uint64_t taken = 0;
    while (!vgpu_bucket_take(&b, vgpu_at(100 * S), 50, MS).ns) {
        taken += MS;
    }
    CHECK_EQ(taken, 101 * MS); /* half of 200 ms, and the one that began at the edge */
}

TEST(a_small_share_keeps_50_ms_of_the_device_and_what_it_did_not_use_for_a_second_at_most)
{
    static const struct {
        uint32_t percent;
        uint64_t kept, taken;
    } shares[] = {
        {99, 200 * MS, 199 * MS}, {25, 200 * MS, 51 * MS}, {10, 500 * MS, 51 * MS}, {5, 1 * S, 51 * MS}, {1, 1 * S, 11 * MS}};
    for (size_t i = 0; i < sizeof shares / sizeof shares[0]; i++) {
        struct vgpu_region_bucket b = {.paid_until_ns = 90 * S};
        uint64_t taken = 0;
        CHECK_EQ(vgpu_bucket_burst(shares[i].percent), shares[i].kept);
        while (!vgpu_bucket_take(&b, vgpu_at(100 * S), shares[i].percent, MS).ns) {
            taken += MS;
        }
        CHECK_EQ(taken, shares[i].taken);
    }
}

TEST(any_word_in_the_region_gives_one_burst_at_most)
{
    static const uint64_t words[] = {0, 1, 99 * S, 100 * S, 101 * S, 160 * S, 161 * S, UINT64_MAX / 2, UINT64_MAX};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        struct vgpu_region_bucket b = {.paid_until_ns = words[i], .factor = words[i]};
        uint64_t taken = 0, until;
        while (!(until = vgpu_bucket_take(&b, vgpu_at(100 * S), 50, MS).ns)) {
            taken += MS;
            CHECK(taken <= 101 * MS);
        }
        CHECK(until > 100 * S && (until <= 100 * S + VGPU_DEBT_NS || until == words[i]));
        uint64_t factor = vgpu_bucket_factor(&b);
        CHECK(factor >= VGPU_FACTOR_ONE / 10 && factor <= VGPU_FACTOR_ONE * 20);
    }
}

/* Return what a process takes in its turn of a second, at 25 %, with naps like those of a thread. */
static uint64_t take_for_a_second(struct vgpu_region_bucket *b, uint64_t now)
{
    uint64_t taken = 0, end = now + S;
    while (now < end) {
        uint64_t until = vgpu_bucket_take(b, vgpu_at(now), 25, 10 * MS).ns;
        taken += until ? 0 : 10 * MS;
        now += !until ? MS : until - now < 50 * MS ? until - now : 50 * MS;
    }
    return taken;
}

TEST(two_clocks_that_differ_by_a_day_get_one_share_together)
{
    struct vgpu_region_bucket b = {0};
    uint64_t taken = 0;
    for (uint64_t now = 1000 * S; now < 1020 * S; now += 2 * S) {
        taken += take_for_a_second(&b, now);
        taken += take_for_a_second(&b, now + S + 86400 * S);
    }
    CHECK(taken <= 20 * S / 4 + 2 * VGPU_BURST_GPU_NS);
    CHECK(taken >= 20 * S / 10);
}

TEST(corrections_move_the_debt_both_ways_within_its_bounds)
{
    struct vgpu_region_bucket b = {.paid_until_ns = 100 * S};
    vgpu_bucket_correct(&b, vgpu_at(100 * S), 50, (int64_t)(3 * S));
    CHECK_EQ(vgpu_bucket_take(&b, vgpu_at(100 * S), 50, 1).ns, 106 * S);
    vgpu_bucket_correct(&b, vgpu_at(100 * S), 50, -(int64_t)(2 * S));
    CHECK_EQ(vgpu_bucket_take(&b, vgpu_at(100 * S), 50, 1).ns, 102 * S);
    vgpu_bucket_correct(&b, vgpu_at(100 * S), 50, INT64_MIN);
    CHECK_EQ(b.paid_until_ns, 100 * S - VGPU_BURST_NS);
    vgpu_bucket_correct(&b, vgpu_at(100 * S), 1, INT64_MAX);
    CHECK_EQ(b.paid_until_ns, 100 * S - VGPU_BURST_NS + VGPU_DEBT_NS);
}

static void *take_many(void *argument)
{
    uint64_t taken = 0;
    for (uint64_t now = 100 * S; now < 110 * S; now += MS) {
        taken += !vgpu_bucket_take(argument, vgpu_at(now), 50, MS / 4).ns;
    }
    return (void *)(uintptr_t)taken;
}

TEST(threads_together_get_one_share)
{
    struct vgpu_region_bucket b = {.paid_until_ns = 100 * S};
    pthread_t threads[4];
    uint64_t taken = 0;
    for (int i = 0; i < 4; i++) {
        pthread_create(&threads[i], NULL, take_many, &b);
    }
    for (int i = 0; i < 4; i++) {
        void *count;
        pthread_join(threads[i], &count);
        taken += (uint64_t)(uintptr_t)count;
    }
    /* A process whose clock is behind the others' may get nothing, or an older burst, but never more than its share, a burst
     * and one chunk for each process. */
    CHECK(taken * (MS / 4) <= 5 * S + VGPU_BURST_NS / 2 + 4 * MS);
}

TEST(processes_killed_at_any_instruction_leave_a_budget_that_works)
{
    struct vgpu_region_bucket *b = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    uint64_t now = 100 * S;
    for (int round = 0; round < 60; round++) {
        pid_t child = fork();
        if (child == 0) {
            for (uint64_t i = 0;; i++) {
                vgpu_bucket_take(b, vgpu_at(now + i * 100), 50, 1000);
                vgpu_bucket_correct(b, vgpu_at(now + i * 100), 50, i % 2 ? 700 : -700);
                vgpu_bucket_count(b, 1000, 1000);
            }
        }
        usleep((useconds_t)(random() % 3000));
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
        now += 100 * S; /* later than everything it took */
        CHECK_EQ(vgpu_bucket_take(b, vgpu_at(now), 50, MS).ns, 0);
    }
    munmap(b, 4096);
}

static struct vgpu_costs costs;

static struct vgpu_geometry grid(uint64_t function, uint64_t blocks)
{
    return (struct vgpu_geometry){.function = function, .blocks = blocks, .threads = 256, .sms = 100};
}

TEST(a_kernel_costs_what_was_measured_and_before_that_a_guess_by_its_waves)
{
    struct vgpu_geometry small = grid(1, 800), large = grid(1, 8000);
    int learned;
    memset(&costs, 0, sizeof costs);
    struct vgpu_cost *cost = vgpu_cost_of(&costs, &small);
    CHECK_EQ(vgpu_cost_ns(&costs, cost, &small, vgpu_at(0), &learned), 5000);
    CHECK_EQ(learned, 0);
    CHECK_EQ(vgpu_cost_ns(&costs, NULL, &large, vgpu_at(0), &learned), 50000);
    vgpu_cost_learn(&costs, cost, &small, 30000, VGPU_ITS_OWN);
    CHECK_EQ(vgpu_cost_ns(&costs, cost, &small, vgpu_at(0), &learned), 30000);
    CHECK_EQ(learned, 1);
    CHECK_EQ(vgpu_cost_ns(&costs, vgpu_cost_of(&costs, &large), &large, vgpu_at(0), &learned), 300000); /* ten waves of it */
}

TEST(measurements_are_averaged)
{
    struct vgpu_geometry what = grid(2, 800);
    int learned;
    memset(&costs, 0, sizeof costs);
    struct vgpu_cost *cost = vgpu_cost_of(&costs, &what);
    for (int i = 0; i < 400; i++) {
        vgpu_cost_learn(&costs, cost, &what, i % 2 ? 10000 : 20000, VGPU_ITS_OWN);
    }
    uint64_t alone = vgpu_cost_ns(&costs, cost, &what, vgpu_at(0), &learned);
    CHECK(alone > 14000 && alone < 16000);
}

TEST(a_kernel_that_others_interrupted_shows_nothing_unless_most_are)
{
    struct vgpu_geometry what = grid(5, 800);
    int learned;
    memset(&costs, 0, sizeof costs);
    struct vgpu_cost *cost = vgpu_cost_of(&costs, &what);
    for (int i = 0; i < 1000; i++) {
        vgpu_cost_learn(&costs, cost, &what, i % 10 == 9 ? 8 * MS : 200000, VGPU_WITH_OTHERS);
    }
    CHECK_EQ(vgpu_cost_ns(&costs, cost, &what, vgpu_at(0), &learned), 200000);
    for (int i = 0; i < 1000; i++) {
        vgpu_cost_learn(&costs, cost, &what, 8 * MS, VGPU_WITH_OTHERS); /* this is how long it has been running */
    }
    CHECK(vgpu_cost_ns(&costs, cost, &what, vgpu_at(0), &learned) > 7 * MS);
}

/* One kernel in 32 takes ten times as long. */
TEST(the_more_measurements_differ_the_more_of_them_are_averaged)
{
    struct vgpu_geometry what = grid(6, 800);
    int learned;
    uint64_t state = 7, least = UINT64_MAX, most = 0;
    memset(&costs, 0, sizeof costs);
    struct vgpu_cost *cost = vgpu_cost_of(&costs, &what);
    for (int i = 0; i < 20000; i++) {
        state = state * UINT64_C(6364136223846793005) + 1442695040888963407u;
        vgpu_cost_learn(&costs, cost, &what, state >> 59 ? 100000 : 1000000, VGPU_ITS_OWN);
        uint64_t ns = vgpu_cost_ns(&costs, cost, &what, vgpu_at(0), &learned);
        least = i > 2000 && ns < least ? ns : least;
        most = i > 2000 && ns > most ? ns : most;
    }
    CHECK(least > 100000 && most < 160000); /* 128 us on average; 100 to 210 of 48 measurements */
}

TEST(what_has_been_running_for_very_long_costs_that_much_already)
{
    struct vgpu_geometry what = grid(3, 800);
    int learned;
    memset(&costs, 0, sizeof costs);
    struct vgpu_cost *cost = vgpu_cost_of(&costs, &what);
    vgpu_cost_learn(&costs, cost, &what, 10000, VGPU_ITS_OWN);
    cost->pending = 1;
    CHECK_EQ(vgpu_cost_ns(&costs, cost, &what, vgpu_at(9 * S), &learned), 10000); /* waiting in its stream costs nothing */
    cost->running = vgpu_at(1 * S);
    CHECK_EQ(vgpu_cost_ns(&costs, cost, &what, vgpu_at(3 * S), &learned), 2 * S);
}

/* Use half of the device for two seconds, reported late in samples of 100 ms. `before` was charged earlier. Return the debt. */
static int64_t debt_after_exact_samples(int64_t before)
{
    static struct vgpu_calibration calibration;
    struct vgpu_region_bucket b = {.calibrated_us = 100 * S / 1000};
    memset(&calibration, 0, sizeof calibration);
    vgpu_bucket_count(&b, before, before);
    for (uint64_t at = 100 * S; at < 102 * S; at += 10 * MS) {
        vgpu_calibrate_note(&calibration, &b, vgpu_at(at));
        vgpu_bucket_count(&b, 5 * MS, 5 * MS);
        if (at % (100 * MS) == 0 && at > 100 * S + 200 * MS) {
            uint64_t end = at - 200 * MS;
            struct vgpu_measurement seen = {.stamp_us = end / 1000, .end = vgpu_at(end), .percent = 50, .others_known = 1};
            vgpu_calibrate(&calibration, &b, vgpu_at(at), 50, vgpu_at(at), &seen);
        }
    }
    return (int64_t)b.debt_ns;
}

TEST(where_nvml_shows_what_was_charged_nothing_is_owed)
{
    int64_t debt = debt_after_exact_samples(0);
    CHECK(debt > -(int64_t)MS && debt < (int64_t)MS);
}

TEST(nor_is_it_when_the_totals_begin_below_nothing)
{
    int64_t debt = debt_after_exact_samples(-(int64_t)(700 * MS));
    CHECK(debt > -(int64_t)MS && debt < (int64_t)MS);
}

TEST(a_kernel_counts_where_it_ran_not_where_it_was_charged)
{
    static struct vgpu_calibration calibration;
    struct vgpu_region_bucket b = {.calibrated_us = 100 * S / 1000};
    memset(&calibration, 0, sizeof calibration);
    for (uint64_t at = 100 * S; at <= 102 * S; at += 10 * MS) {
        vgpu_calibrate_note(&calibration, &b, vgpu_at(at));
    }
    vgpu_bucket_count(&b, 1 * S, 1 * S);
    vgpu_calibrate_ran(&calibration, vgpu_at(100 * S), vgpu_at(101 * S), 1 * S, 1 * S);
    vgpu_calibrate_note(&calibration, &b, vgpu_at(102 * S + 10 * MS));
    for (uint64_t end = 100 * S + 100 * MS; end <= 101 * S; end += 100 * MS) {
        struct vgpu_measurement seen = {.stamp_us = end / 1000, .end = vgpu_at(end), .percent = 100, .others_known = 1};
        vgpu_calibrate(&calibration, &b, vgpu_at(102 * S), 50, vgpu_at(102 * S), &seen);
    }
    int64_t debt = (int64_t)b.debt_ns;
    CHECK(debt > -(int64_t)MS && debt < (int64_t)MS);
    CHECK_EQ(calibration.held_count, 0);
}

/* All of the device is used, and half of that is charged. NVML is read every 100 ms at first, then every 250 ms. */
TEST(of_samples_that_were_missed_the_newest_is_compared_all_the_same)
{
    static struct vgpu_calibration calibration;
    struct vgpu_region_bucket b = {.calibrated_us = 100 * S / 1000};
    memset(&calibration, 0, sizeof calibration);
    for (uint64_t at = 100 * S, last = at; at < 110 * S; at += 10 * MS) {
        vgpu_calibrate_note(&calibration, &b, vgpu_at(at));
        vgpu_bucket_count(&b, 5 * MS, 5 * MS);
        uint64_t since = at - last, end = at / (100 * MS) * 100 * MS;
        if (since >= (at < 102 * S ? 100 * MS : 250 * MS)) {
            struct vgpu_measurement seen = {.stamp_us = end / 1000, .end = vgpu_at(end), .percent = 100, .others_known = 1};
            last = at;
            vgpu_calibrate_read(&calibration, &b, since);
            vgpu_calibrate(&calibration, &b, vgpu_at(at), 50, vgpu_at(at), &seen);
            b.debt_ns = at < 102 * S ? 0 : b.debt_ns;
        }
    }
    int64_t debt = (int64_t)b.debt_ns;
    CHECK(debt > (int64_t)(1400 * MS) && debt < (int64_t)(1700 * MS)); /* 50 ms for each of 31 or 32 samples */
}

TEST(one_process_makes_all_comparisons_and_another_when_it_does_not)
{
    static struct vgpu_calibration one, other;
    struct vgpu_region_bucket b = {0};
    vgpu_duration since_ns;
    uint64_t at = 100 * S;
    memset(&one, 0, sizeof one);
    memset(&other, 0, sizeof other);
    CHECK(vgpu_calibrate_due(&one, &b, vgpu_at(at), &since_ns));
    for (int i = 0; i < 100; i++) {
        at += VGPU_TICK_NS;
        CHECK(!vgpu_calibrate_due(&other, &b, vgpu_at(at), &since_ns));
        CHECK(vgpu_calibrate_due(&one, &b, vgpu_at(at + 10 * MS), &since_ns) && since_ns == VGPU_TICK_NS + 10 * MS);
        at += 10 * MS;
    }
    at += VGPU_TICK_NS + VGPU_TICK_NS / 2;
    CHECK(vgpu_calibrate_due(&other, &b, vgpu_at(at), &since_ns));
    at += VGPU_TICK_NS;
    CHECK(!vgpu_calibrate_due(&one, &b, vgpu_at(at), &since_ns) && vgpu_calibrate_due(&other, &b, vgpu_at(at), &since_ns));
    vgpu_calibrate_pause(&other, &b, vgpu_at(at + S));
    CHECK(!vgpu_calibrate_due(&other, &b, vgpu_at(at + S - 1), &since_ns));
    CHECK(!vgpu_calibrate_due(&one, &b, vgpu_at(at + S), &since_ns) &&
          vgpu_calibrate_due(&other, &b, vgpu_at(at + S), &since_ns));
}

/* Launch at full speed for half of each second and not at all for the other half; everything runs half a second later. Return
 * how much the debt swings. */
static int64_t swing_of_what_is_owed_where_launches_wait(int is_known)
{
    static struct vgpu_calibration calibration;
    struct vgpu_region_bucket b = {.calibrated_us = 100 * S / 1000};
    int64_t most = INT64_MIN, least = INT64_MAX;
    memset(&calibration, 0, sizeof calibration);
    for (uint64_t at = 100 * S; at < 110 * S; at += 10 * MS) {
        if (is_known) {
            vgpu_bucket_learn_queued(&b, 500 * MS);
        }
        vgpu_calibrate_note(&calibration, &b, vgpu_at(at));
        vgpu_bucket_count(&b, at / (500 * MS) % 2 ? 0 : 10 * MS, at / (500 * MS) % 2 ? 0 : 10 * MS);
        if (at % (100 * MS) == 0 && at > 103 * S) {
            int ran = (at - 100 * MS) / (500 * MS) % 2;
            struct vgpu_measurement seen = {
                .stamp_us = at / 1000, .end = vgpu_at(at), .percent = ran ? 100 : 0, .neighbours = 1, .others_known = 1};
            vgpu_calibrate(&calibration, &b, vgpu_at(at), 50, vgpu_at(at), &seen);
        }
        int64_t debt = (int64_t)b.debt_ns;
        most = at > 106 * S && debt > most ? debt : most;
        least = at > 106 * S && debt < least ? debt : least;
    }
    return most - least;
}

TEST(a_sample_is_compared_with_launches_of_as_long_ago_as_they_wait_in_queues)
{
    CHECK(swing_of_what_is_owed_where_launches_wait(0) > (int64_t)(200 * MS));
    CHECK(swing_of_what_is_owed_where_launches_wait(1) < (int64_t)(30 * MS));
}

TEST(how_long_launches_wait_is_the_mean_of_many_and_two_seconds_at_most)
{
    struct vgpu_region_bucket b = {.queued = 100}; /* left there by an older library: a percentage */
    CHECK(vgpu_bucket_queued(&b) < 4 * MS && vgpu_bucket_is_crowded(&b, 1) == 1 && vgpu_bucket_is_crowded(&b, 0) == 0);
    for (int i = 0; i < 1000; i++) {
        vgpu_bucket_learn_queued(&b, i % 2 ? 100 * MS : 300 * MS);
    }
    CHECK(vgpu_bucket_queued(&b) > 190 * MS && vgpu_bucket_queued(&b) < 210 * MS);
    for (int i = 0; i < 1000; i++) {
        vgpu_bucket_learn_queued(&b, UINT64_MAX);
    }
    CHECK(vgpu_bucket_queued(&b) > 2 * S && vgpu_bucket_queued(&b) < 2200 * MS);
    for (int i = 0; i < 1000; i++) {
        vgpu_bucket_learn_queued(&b, 0);
    }
    CHECK(vgpu_bucket_queued(&b) < 3 * MS);
}

TEST(that_others_are_on_the_device_is_known_to_all_processes)
{
    struct vgpu_region_bucket b = {0};
    vgpu_bucket_set_crowded(&b, 1);
    CHECK_EQ(vgpu_bucket_is_crowded(&b, 0), 1);
    vgpu_bucket_set_crowded(&b, 0);
    CHECK_EQ(vgpu_bucket_is_crowded(&b, 1), 0);
}

/* A quarter of the device is used, and half of it is charged. */
TEST(no_more_is_given_back_than_a_burst_or_one_kernel)
{
    static struct vgpu_calibration calibration;
    for (uint64_t lump_ns = 0; lump_ns <= 200 * MS; lump_ns += 200 * MS) {
        struct vgpu_region_bucket b = {.calibrated_us = 100 * S / 1000};
        memset(&calibration, 0, sizeof calibration);
        for (uint64_t at = 100 * S; at < 110 * S; at += 10 * MS) {
            vgpu_calibrate_note(&calibration, &b, vgpu_at(at));
            vgpu_bucket_count(&b, 5 * MS, 5 * MS);
            vgpu_calibrate_lump(&calibration, lump_ns);
            if (at % (100 * MS) == 0) {
                struct vgpu_measurement seen = {.stamp_us = at / 1000, .end = vgpu_at(at), .percent = 25, .others_known = 1};
                vgpu_calibrate(&calibration, &b, vgpu_at(at), 50, vgpu_at(at), &seen);
            }
        }
        CHECK_EQ((int64_t)b.debt_ns, -(int64_t)(lump_ns ? lump_ns : VGPU_BURST_GPU_NS));
    }
}

TEST(what_is_not_to_be_compared_is_not)
{
    static struct vgpu_calibration calibration;
    struct vgpu_region_bucket b = {.calibrated_us = 100 * S / 1000};
    memset(&calibration, 0, sizeof calibration);
    for (uint64_t at = 100 * S + 100 * MS; at < 110 * S; at += 100 * MS) {
        struct vgpu_measurement seen = {.stamp_us = at / 1000, .end = vgpu_at(at), .percent = 50, .others_known = 1};
        vgpu_calibrate_note(&calibration, &b, vgpu_at(at));
        vgpu_bucket_count(&b, 100 * MS, 100 * MS);
        vgpu_calibrate_miss(&b);
        vgpu_calibrate_read(&calibration, &b, 200 * MS);
        vgpu_calibrate(&calibration, &b, vgpu_at(at), 50, vgpu_at(at), &seen);
    }
    CHECK_EQ(b.debt_ns, 0);
}

/* One kernel of 50 ms runs every half second, so only every fifth sample of 100 ms shows it. It is noticed late that it has run. */
TEST(samples_that_a_program_hides_between_its_kernels_are_not_taken_for_longer_ones)
{
    static struct vgpu_calibration calibration;
    struct vgpu_region_bucket b = {.calibrated_us = (99 * S + 600 * MS) / 1000};
    memset(&calibration, 0, sizeof calibration);
    for (uint64_t at = 100 * S; at < 110 * S; at += 10 * MS) {
        vgpu_calibrate_note(&calibration, &b, vgpu_at(at));
        if (at / MS % 500 == 110) {
            uint64_t end = at - 10 * MS;
            struct vgpu_measurement seen = {.stamp_us = end / 1000, .end = vgpu_at(end), .percent = 50, .others_known = 1};
            vgpu_bucket_count(&b, 50 * MS, 50 * MS);
            vgpu_calibrate_ran(&calibration, vgpu_at(at - 55 * MS), vgpu_at(at - 5 * MS), 50 * MS, 50 * MS);
            vgpu_calibrate_lump(&calibration, 50 * MS);
            vgpu_calibrate(&calibration, &b, vgpu_at(at), 10, vgpu_at(at), &seen);
        }
    }
    CHECK_EQ(b.debt_ns, 0);
    CHECK_EQ(vgpu_bucket_factor(&b), VGPU_FACTOR_ONE);
}

/* 5.7 % of the device are used; NVML shows 9 for two seconds and 6 from then on. */
TEST(where_whole_percents_leave_it_open_the_times_of_events_are_believed)
{
    static struct vgpu_calibration calibration;
    struct vgpu_region_bucket b = {.calibrated_us = 100 * S / 1000};
    memset(&calibration, 0, sizeof calibration);
    for (uint64_t at = 100 * S; at < 130 * S; at += 10 * MS) {
        vgpu_calibrate_note(&calibration, &b, vgpu_at(at));
        vgpu_bucket_count(&b, MS * 57 / 100, MS * 57 / 100);
        if (at % (100 * MS) == 0) {
            uint32_t percent = at < 102 * S ? 9 : 6;
            struct vgpu_measurement seen = {
                .stamp_us = at / 1000, .end = vgpu_at(at), .percent = percent, .neighbours = 1, .others_known = 1};
            vgpu_calibrate(&calibration, &b, vgpu_at(at), 6, vgpu_at(at), &seen);
        }
    }
    CHECK_EQ(vgpu_bucket_factor(&b), VGPU_FACTOR_ONE);
}

TEST(a_full_table_still_gives_an_answer)
{
    int learned, missing = 0;
    memset(&costs, 0, sizeof costs);
    for (uint64_t i = 1; i < 3 * VGPU_COSTS; i++) {
        struct vgpu_geometry what = grid(i, i);
        struct vgpu_cost *cost = vgpu_cost_of(&costs, &what);
        missing += !cost;
        CHECK(vgpu_cost_ns(&costs, cost, &what, vgpu_at(0), &learned) > 0);
    }
    CHECK(missing > 0);
}

int main(void)
{
    return t_run();
}
