/* Programs that run in step on several devices. If one device is held back, the kernels on the others wait for it and spin. */
#include "many_cards.h"
#include "t.h"

#define US UINT64_C(1000)
#define MS UINT64_C(1000000)
#define S UINT64_C(1000000000)

/* Return the speed of the program in the long run, in percent of its speed without limits. */
static double speed(const struct many_cards *s)
{
    many_cards_begin(s);
    many_cards_run(2 * S);
    uint64_t before = many_cards_steps();
    many_cards_run(6 * S);
    many_cards_end();
    uint64_t alone_ns = s->kernel_ns * s->kernels + s->together_ns;
    return 100.0 * (double)((many_cards_steps() - before) * alone_ns) / (double)(4 * S);
}

static int at_least(double least, const struct many_cards *s)
{
    double got = speed(s);
    if (got < least) {
        fprintf(stderr, "    %.1f %%, wanted %.1f: %u cards, %s, %u kernels of %llu us, NVML %s\n", got, least, s->cards,
                s->processes ? "processes"
                : s->threads ? "threads"
                             : "one thread",
                s->kernels, (unsigned long long)(s->kernel_ns / US), s->blind ? "knows nothing" : "late");
    }
    return got >= least;
}

/* Return a program with one of several kinds of steps: short kernels that share a chunk, or long ones. */
static struct many_cards steps(unsigned kind, int owner, int blind)
{
    static const struct many_cards kinds[] = {{.kernels = 5, .kernel_ns = 200 * US, .together_ns = 100 * US},
                                              {.kernels = 2, .kernel_ns = 2 * MS, .together_ns = 500 * US},
                                              {.kernels = 1, .kernel_ns = 20 * MS, .together_ns = 2 * MS}};
    struct many_cards s = kinds[kind];
    s.threads = owner == 1;
    s.processes = owner == 2;
    s.blind = blind;
    s.lag_ns = 200 * MS;
    return s;
}

TEST(a_thread_that_alternates_between_devices_keeps_what_it_has_paid_for)
{
    for (int blind = 0; blind < 2; blind++) {
        struct many_cards s = {
            .cards = 2, .percent = {50, 50}, .kernels = 10, .kernel_ns = 20 * US, .lag_ns = 200 * MS, .blind = blind};
        CHECK(at_least(48, &s));
    }
}

TEST(devices_that_wait_for_each_other_keep_their_share_whichever_thread_launches)
{
    for (unsigned kind = 0; kind < 3; kind++) {
        for (int owner = 0; owner < 3; owner++) {
            for (int blind = 0; blind < 2; blind++) {
                struct many_cards s = steps(kind, owner, blind);
                s.cards = 2;
                s.percent[0] = s.percent[1] = 50;
                CHECK(at_least(47, &s));
                s.cards = 4;
                s.percent[0] = s.percent[1] = s.percent[2] = s.percent[3] = 25;
                CHECK(at_least(23.5, &s));
            }
        }
    }
}

TEST(of_different_shares_the_least_is_kept)
{
    for (unsigned kind = 0; kind < 3; kind++) {
        for (int owner = 0; owner < 3; owner++) {
            struct many_cards s = steps(kind, owner, 0);
            s.cards = 2;
            s.percent[0] = 60;
            s.percent[1] = 30;
            CHECK(at_least(28, &s));
            s.blind = 1;
            CHECK(at_least(21, &s));
        }
    }
}

TEST(devices_that_do_not_wait_for_each_other_have_each_its_own_share)
{
    struct many_cards s = {.cards = 2, .percent = {60, 30}, .kernels = 1, .kernel_ns = 2 * MS, .lag_ns = 200 * MS, .threads = 1};
    many_cards_begin(&s);
    many_cards_run(10 * S);
    for (unsigned i = 0; i < 2; i++) {
        double busy = 100.0 * (double)many_cards_busy_ns(i) / (double)(10 * S);
        CHECK(busy > s.percent[i] - 3 && busy < s.percent[i] + 3);
    }
    many_cards_end();
}

int main(void)
{
    return t_run();
}
