/* bench_limiter.c - measures how well shares are kept, over the whole matrix of workloads.h. Prints one JSON object.
 *
 *     bench_limiter [-v]... [-f FAMILY]... [-d SETTING]... [SEED [FIRST [COUNT]]]
 *
 *     -v  print a line for each scene on stderr; twice: also for each tenant; three times: also its use in each fifth of a window
 *     -f  run only the scenes of this family
 *     -d  change the device: device.h
 *
 * What a tenant is due is its share, or, if that is less, what its program can use when only its neighbours are limited. The
 * gaps that neighbours leave vary: in a run of three windows such a program gets up to a fifth more or less than in another,
 * whether it is limited or not. So a scene with such a program runs eight times as long (docs/design/compute-limiter.md). All
 * figures compare use with what is due, in points of the device:
 *   mean_error_points    error in the worst window of max(5 s, 30 longest kernels / share), including the start
 *   ripple_points        standard deviation of the use in consecutive fifths of such a window
 *   throughput_of_share  use in the whole run, as a part of what was due
 *   jain                 Jain's index of equal tenants
 *   graph_error_points   mean_error_points of the scenes of graphs
 *   beside_long_points   mean_error_points beside kernels of 10 s, which nothing can stop; no other figure includes them
 *   missed               scenes with an error above 5 points, and with a throughput below 95 % of what was due
 *   resize_response_ms   time from a new share in the page until the use is within 5 points of it for 200 ms
 */
#include <limits.h>
#include <malloc.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "simulate.h"

#define MS UINT64_C(1000000)
#define S UINT64_C(1000000000)

struct figure {
    const char *name;
    int low_is_bad;
    double worst, sum;
    unsigned count;
};

enum { MEAN_ERROR, RIPPLE, THROUGHPUT, JAIN, GRAPH_ERROR, BESIDE_LONG, RESIZE, FIGURES };
static struct figure figures[FIGURES] = {{"mean_error_points", 0, 0, 0, 0},   {"ripple_points", 0, 0, 0, 0},
                                         {"throughput_of_share", 1, 0, 0, 0}, {"jain", 1, 0, 0, 0},
                                         {"graph_error_points", 0, 0, 0, 0},  {"beside_long_points", 0, 0, 0, 0},
                                         {"resize_response_ms", 0, 0, 0, 0}};
static unsigned far_off, too_little; /* scenes */
static uint64_t (*used)[MAX_CONTAINERS];
static struct device device;

static void add(int which, double value)
{
    struct figure *f = &figures[which];
    if (!f->count || (f->low_is_bad ? value < f->worst : value > f->worst)) {
        f->worst = value;
    }
    f->sum += value;
    f->count++;
}

static double use(const struct simulation *s, unsigned tenant, unsigned from, unsigned to)
{
    return 100.0 * (double)(s->used[to][tenant] - s->used[from][tenant]) / (double)((to - from) * s->step_ns);
}

static uint64_t window_of(const struct tenant *t)
{
    uint64_t long_one = 30 * workload_longest_ns(t->workload) * 100 / t->cores;
    return long_one > 5 * S ? long_one : 5 * S;
}

static struct simulation run(const struct scene *scene, uint64_t length_ns, uint64_t step_ns, int unlimited)
{
    struct simulation s = {.scene = *scene, .device = device, .length_ns = length_ns, .unlimited = unlimited, .used = used};
    s.step_ns = step_ns;
    simulate(&s);
    return s;
}

enum { WINDOWS = 3, LONG = 8 };

static int always_busy(const struct workload *w)
{
    return w->pattern == PATTERN_STREAM || w->pattern == PATTERN_GRAPH;
}

/* Return what a tenant uses without a limit, in percent. */
static double could_use(const struct scene *scene, uint64_t length_ns, uint64_t step_ns, unsigned tenant)
{
    struct simulation s = run(scene, length_ns, step_ns, (int)tenant);
    return use(&s, tenant, 0, s.steps - 1);
}

static void judge(const struct scene *scene, int verbose, unsigned index)
{
    double due[MAX_CONTAINERS], worst_error = 0, worst_ripple = 0, least = 10, sum = 0, squares = 0;
    uint64_t window = 0, shortest = UINT64_MAX, length, step;
    for (unsigned t = 0; t < scene->count; t++) {
        uint64_t w = window_of(&scene->tenants[t]);
        window = w > window ? w : window;
        shortest = w < shortest ? w : shortest;
    }
    length = WINDOWS * window;
    /* Fine enough for the tenant with the shortest windows, and coarse enough for the longest run. */
    uint64_t coarse = LONG * length / (SIMULATION_STEPS - 1) + 1;
    step = shortest / 200 > coarse ? shortest / 200 : coarse;
    for (unsigned t = 0; t < scene->count; t++) {
        due[t] = scene->tenants[t].cores;
        double could = always_busy(scene->tenants[t].workload) ? due[t] : could_use(scene, WINDOWS * window, step, t);
        if (could < due[t]) {
            length = LONG * WINDOWS * window;
            could = could_use(scene, length, step, t);
            due[t] = could < due[t] ? could : due[t];
        }
    }
    struct simulation s = run(scene, length, step, -1);
    for (unsigned t = 0; t < scene->count; t++) {
        unsigned span = (unsigned)(window_of(&scene->tenants[t]) / s.step_ns), fifth = span / 5, n = 0;
        double error = 0, mean = use(&s, t, 0, s.steps - 1), variance = 0;
        for (unsigned from = 0; from + span < s.steps; from += fifth / 2 ? fifth / 2 : 1) {
            double off = fabs(use(&s, t, from, from + span) - due[t]);
            error = off > error ? off : error;
        }
        for (unsigned from = 0; from + fifth < s.steps; from += fifth, n++) {
            double off = use(&s, t, from, from + fifth) - mean;
            variance += off * off;
        }
        double ripple = sqrt(variance / n);
        for (unsigned from = 0; verbose > 2 && from + fifth < s.steps; from += fifth) {
            fprintf(stderr, "    %.1f%s", use(&s, t, from, from + fifth), from + 2 * fifth < s.steps ? "" : "\n");
        }
        if (verbose > 1) {
            fprintf(stderr, "    %-12s share %2u due %5.1f got %5.1f error %4.1f ripple %4.1f\n",
                    scene->tenants[t].workload->name, scene->tenants[t].cores, due[t], mean, error, ripple);
        }
        worst_error = error > worst_error ? error : worst_error;
        worst_ripple = ripple > worst_ripple ? ripple : worst_ripple;
        least = mean / due[t] < least ? mean / due[t] : least;
        sum += mean;
        squares += mean * mean;
    }
    if (!strcmp(scene->family, "beside_long")) {
        add(BESIDE_LONG, worst_error);
    } else {
        add(MEAN_ERROR, worst_error);
        far_off += worst_error > 5;
        too_little += least < 0.95;
        add(RIPPLE, worst_ripple);
        add(THROUGHPUT, least > 1 ? 1 : least);
    }
    if (!strcmp(scene->family, "graph")) {
        add(GRAPH_ERROR, worst_error);
    }
    if (!strcmp(scene->family, "equal")) {
        add(JAIN, sum * sum / (scene->count * squares));
    }
    if (verbose) {
        fprintf(stderr, "%3u %-6s %-12s @%2u n=%2u sms=%3u lag=%4u  error %5.2f ripple %5.2f throughput %.3f launches %llu\n",
                index, scene->family, scene->tenants[0].workload->name, scene->tenants[0].cores, scene->count, scene->sms,
                (unsigned)(scene->lag_ns / MS), worst_error, worst_ripple, least, (unsigned long long)s.launches);
    }
}

/* Change the share of a running program. */
static void resize(unsigned workload, unsigned from, unsigned to, uint64_t lag_ns, uint64_t seed)
{
    struct simulation s = {.scene = {.family = "resize",
                                     .seed = seed,
                                     .sms = 108,
                                     .lag_ns = lag_ns,
                                     .count = 1,
                                     .tenants = {{&workloads[workload], from}}},
                           .device = device,
                           .length_ns = 12 * S,
                           .unlimited = -1,
                           .resize_at_ns = 6 * S,
                           .resize_to = to,
                           .step_ns = 20 * MS,
                           .used = used};
    simulate(&s);
    unsigned change = (unsigned)(s.resize_at_ns / s.step_ns), span = 10;
    for (unsigned at = change; at + span < s.steps; at++) {
        if (fabs(use(&s, 0, at, at + span) - to) <= 5) {
            add(RESIZE, (double)((at - change) * s.step_ns) / 1e6);
            return;
        }
    }
    add(RESIZE, 6000);
}

/* The settings from the command line. */
struct options {
    int verbose;
    const char *families[8];
    unsigned family_count;
};

static int is_wanted(const struct options *o, const struct scene *scene)
{
    for (unsigned i = 0; i < o->family_count; i++) {
        if (!strcmp(o->families[i], scene->family)) {
            return 1;
        }
    }
    return !o->family_count;
}

/* Return 0 for an unknown option. */
static int parse(struct options *o, int argc, char **argv)
{
    int option;
    while ((option = getopt(argc, argv, "vf:d:")) != -1) {
        if (option == 'v') {
            o->verbose++;
        } else if (option == 'f' && o->family_count < sizeof o->families / sizeof o->families[0]) {
            o->families[o->family_count++] = optarg;
        } else if (option != 'd' || !device_set(&device, optarg)) {
            return 0;
        }
    }
    return 1;
}

int main(int argc, char **argv)
{
    struct options options = {0};
    device = device_nominal();
    if (!parse(&options, argc, argv)) {
        fprintf(stderr, "%s: bad option or setting, see bench_limiter.c and device.h\n", argv[0]);
        return 2;
    }
    argc -= optind, argv += optind;
    uint64_t seed = argc > 0 ? strtoull(argv[0], NULL, 10) : 1;
    unsigned first = argc > 1 ? (unsigned)atoi(argv[1]) : 0, count = argc > 2 ? (unsigned)atoi(argv[2]) : UINT32_MAX;
    struct scene scene;
    /* The processes of a scene take some megabytes each. Returning that memory to the kernel each time would cost half of a
     * run. */
    mallopt(M_TRIM_THRESHOLD, INT_MAX);
    mallopt(M_TOP_PAD, 256 << 20);
    used = calloc(SIMULATION_STEPS, sizeof *used);
    for (unsigned i = first; used && i - first < count && scene_at(i, seed, &scene); i++) {
        if (is_wanted(&options, &scene)) {
            judge(&scene, options.verbose, i);
        }
    }
    if (count == UINT32_MAX && !options.family_count) {
        static const unsigned kinds[] = {0, 1, 2, 3, 12};
        for (unsigned i = 0; i < 5; i++) {
            resize(kinds[i], 25, 75, 100 * MS << i % 3, seed + i);
            resize(kinds[i], 75, 25, 100 * MS << i % 3, seed + i);
        }
    }
    printf("{\"limiter\": {\"seed\": %llu, \"scenes\": %u", (unsigned long long)seed, figures[MEAN_ERROR].count);
    for (unsigned i = 0; i < FIGURES; i++) {
        double mean = figures[i].count ? figures[i].sum / figures[i].count : 0;
        printf(", \"%s\": {\"worst\": %.3f, \"mean\": %.3f}", figures[i].name, figures[i].worst, mean);
    }
    printf(", \"missed\": {\"error\": %u, \"throughput\": %u}}}\n", far_off, too_little);
    free(used);
    return 0;
}
