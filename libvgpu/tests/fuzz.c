/* fuzz.c - reads pages, regions and settings with arbitrary contents. Reading must end, must touch nothing outside the files,
 * and must never grant more than some device of the page was given.
 *
 *     fuzz SECONDS [SEED]
 *
 * Built with the address and undefined-behaviour sanitizers. If it fails, it prints the seed with which to repeat the run.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "authority.h"
#include "identity.h"
#include "ledger.h"
#include "page.h"
#include "region.h"

#define UUID "GPU-6f3c1c2e-0000-4000-8000-000000000000"

static uint64_t state, clock_ns;
static char setting[64];
static struct vgpu_page page;
static struct vgpu_region *region;

static uint64_t next(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
}

static uint64_t below(uint64_t end)
{
    return next() % end;
}

/* Time advances only when it is read and during sleeps, so a reader can run out of patience without a real wait. */
static struct vgpu_instant fuzz_now(void)
{
    return vgpu_at(clock_ns += 1000);
}

static void sleep_ns(uint64_t ns)
{
    clock_ns += ns;
}

static int is_dead(uint64_t owner, const struct vgpu_identity *self)
{
    (void)self;
    return owner % 3 != 0;
}

static const char *env(const char *name)
{
    return !strncmp(name, "CUDA_DEVICE_MEMORY_LIMIT", 24) && name[24] != '_' ? setting : NULL;
}

static int exists(const char *path)
{
    (void)path;
    return 0;
}

static void *map_private(size_t bytes)
{
    (void)bytes;
    return region;
}

static void log_line(const char *text)
{
    (void)text;
}

static const struct vgpu_world fuzz_world = {.now = fuzz_now,
                                             .sleep_for = sleep_ns,
                                             .is_dead = is_dead,
                                             .env = env,
                                             .exists = exists,
                                             .map_private = map_private,
                                             .log = log_line};
const struct vgpu_world *vgpu_world = &fuzz_world;

static void need(int ok, const char *what, uint64_t seed)
{
    if (!ok) {
        fprintf(stderr, "fuzz: %s, seed %llu\n", what, (unsigned long long)seed);
        abort();
    }
}

/* Return a value; values at the edges of a range are more likely. */
static uint64_t any_value(void)
{
    static const uint64_t edges[] = {0,
                                     1,
                                     2,
                                     64,
                                     65,
                                     1024,
                                     1025,
                                     0x7fffffff,
                                     0xffffffff,
                                     VGPU_PAGE_BYTES,
                                     VGPU_REGION_BYTES,
                                     VGPU_PAGE_MAGIC,
                                     VGPU_REGION_MAGIC,
                                     UINT64_MAX / 2,
                                     UINT64_MAX - 1,
                                     UINT64_MAX};
    return below(3) ? edges[below(sizeof edges / sizeof edges[0])] : next();
}

static void damage(void *what, size_t bytes, size_t likely)
{
    for (uint64_t n = below(12); n > 0; n--) {
        uint64_t value = any_value();
        size_t width = (size_t)1 << below(4);
        size_t at = (size_t)below(below(2) ? likely : bytes) / width * width;
        memcpy((char *)what + at, &value, width);
    }
}

static void one_page(uint64_t seed)
{
    uint64_t most = 0;
    memset(&page, below(16) ? 0 : 0xff, sizeof page);
    if (below(8)) {
        page = (struct vgpu_page){.magic = VGPU_PAGE_MAGIC,
                                  .abi_version = VGPU_ABI_VERSION,
                                  .size = VGPU_PAGE_BYTES,
                                  .seq = 2,
                                  .state = VGPU_PAGE_GRANT,
                                  .device_count = (uint32_t)below(VGPU_MAX_DEVICES + 1)};
        for (unsigned i = 0; i < VGPU_MAX_DEVICES; i++) {
            memcpy(page.devices[i].uuid, UUID, sizeof UUID);
            page.devices[i].memory_limit_bytes = any_value();
        }
    }
    damage(&page, sizeof page, 512);
    for (unsigned i = 0; i < VGPU_MAX_DEVICES; i++) {
        most = page.devices[i].memory_limit_bytes > most ? page.devices[i].memory_limit_bytes : most;
    }
    uint64_t started = clock_ns, limit = vgpu_page_limit(&page, UUID);
    int unlimited = vgpu_page_is_unlimited(&page);
    int whole = page.magic == VGPU_PAGE_MAGIC && page.abi_version == VGPU_ABI_VERSION && page.size == VGPU_PAGE_BYTES &&
                page.seq % 2 == 0 && page.state == VGPU_PAGE_GRANT && page.device_count <= VGPU_MAX_DEVICES;
    struct vgpu_limits limits = vgpu_page_limits(&page, UUID);
    need(whole || (!limits.limit && !limits.physical && !limits.context && !vgpu_page_host_limit(&page)),
         "a page that is none said something", seed);
    need(limit <= most, "a page granted more than it says", seed);
    need(whole || (!limit && !unlimited), "a page that is none granted something", seed);
    need(!unlimited || most == VGPU_UNLIMITED, "a page without an unlimited card is unlimited", seed);
    need(clock_ns - started < UINT64_C(1000000000), "a reader waited for a second", seed);
}

static uint64_t true_sum(unsigned column)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < region->slot_high && i < VGPU_REGION_SLOTS; i++) {
        uint64_t used = region->slots[i].used[column];
        sum = sum > UINT64_MAX - used ? UINT64_MAX : sum + used;
    }
    return sum;
}

static void one_region(uint64_t seed)
{
    struct vgpu_identity self = {
        .pid = 1 + (uint32_t)below(1 << 22), .start_time = next(), .pid_namespace = next(), .image = next()};
    memset(region, 0, sizeof region->columns + offsetof(struct vgpu_region, columns));
    memset(region->slots, 0, sizeof region->slots[0] * 16);
    region->slot_high = (uint32_t)below(16);
    damage(region, sizeof *region, offsetof(struct vgpu_region, slots) + 8 * sizeof region->slots[0]);
    if (vgpu_region_prepare(region)) {
        return;
    }
    int column = vgpu_region_column(region, UUID);
    need(column >= -1 && column < (int)VGPU_MAX_DEVICES, "a column that is none", seed);
    struct vgpu_region_slot *mine = vgpu_ledger_join(region, &self);
    if (!mine || column < 0) {
        return;
    }
    need(mine >= region->slots && mine < region->slots + VGPU_REGION_SLOTS, "a slot that is none", seed);
    for (int i = 0; i < 4; i++) {
        uint64_t bytes = any_value(), limit = any_value();
        struct vgpu_budget budget = {.device = any_value(), .total = any_value()};
        if (vgpu_ledger_reserve(region, mine, &self, (unsigned)column, bytes, budget)) {
            uint64_t sum = true_sum((unsigned)column), beside = vgpu_ledger_managed(region, (unsigned)column);
            need(sum <= budget.device, "a reservation went over the card's share", seed);
            need(budget.total == VGPU_UNLIMITED || (sum <= budget.total && beside <= budget.total - sum),
                 "a reservation went over the limit", seed);
            vgpu_ledger_release(mine, (unsigned)column, bytes);
        }
        bytes = any_value();
        if (vgpu_ledger_reserve_managed(region, mine, &self, (unsigned)column, bytes, limit)) {
            uint64_t beside = vgpu_ledger_managed(region, (unsigned)column);
            need(limit == VGPU_UNLIMITED || beside <= limit, "managed memory went over the limit", seed);
            vgpu_ledger_release_managed(mine, (unsigned)column, bytes);
        }
        if (vgpu_ledger_charge(region, mine, &self, VGPU_HOST, bytes, limit)) {
            need(vgpu_ledger_used(region, VGPU_HOST) <= limit, "host memory went over its limit", seed);
            vgpu_ledger_release(mine, VGPU_HOST, bytes);
        }
        vgpu_ledger_exported(mine, (unsigned)column, any_value());
        vgpu_ledger_import(mine, 1);
        vgpu_ledger_exported(mine, (unsigned)column, any_value());
        vgpu_ledger_import(mine, -1);
        if (vgpu_ledger_charge(region, mine, &self, (unsigned)column, bytes, limit)) {
            need(true_sum((unsigned)column) <= limit, "a charge went over the limit", seed);
            vgpu_ledger_release(mine, (unsigned)column, bytes);
        }
        damage(region, sizeof *region, offsetof(struct vgpu_region, slots) + 8 * sizeof region->slots[0]);
    }
    vgpu_ledger_reap(region, &self);
    vgpu_ledger_used(region, (unsigned)column);
}

static void one_setting(uint64_t seed)
{
    static const char letters[] = "0123456789kKmMgG -+x.eE\t9999";
    struct vgpu_source source;
    size_t length = (size_t)below(sizeof setting - 1);
    for (size_t i = 0; i < length; i++) {
        setting[i] = below(16) ? letters[below(sizeof letters - 1)] : (char)below(256);
    }
    setting[length] = '\0';
    vgpu_source_open(&source);
    struct vgpu_process p = {.authority = source.authority, .region = source.region, .standalone = source.standalone};
    vgpu_limit(&p, UUID, (int)any_value());
    size_t digits = strspn(setting, "0123456789"), suffix = digits ? strspn(setting + digits, "kKmMgG") : 0;
    int is_sense = digits && suffix <= 1 && digits + suffix == strlen(setting);
    need(is_sense || vgpu_limit(&p, UUID, 0) == 0, "nonsense is a limit of something", seed);
}

int main(int argc, char **argv)
{
    struct timespec start, now;
    double seconds = argc > 1 ? atof(argv[1]) : 10;
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : (uint64_t)time(NULL) * 2654435761u, rounds = 0;
    region = mmap(NULL, sizeof *region, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (region == MAP_FAILED) {
        return 1;
    }
    printf("  seed %llu\n", (unsigned long long)seed);
    clock_gettime(CLOCK_MONOTONIC, &start);
    do {
        state = (seed + rounds) * UINT64_C(0x9e3779b97f4a7c15) | 1;
        one_page(seed + rounds);
        one_setting(seed + rounds);
        if (rounds % 8 == 0) {
            one_region(seed + rounds);
        }
        rounds++;
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while ((double)(now.tv_sec - start.tv_sec) + (double)(now.tv_nsec - start.tv_nsec) / 1e9 < seconds);
    printf("  %llu rounds, nothing found\n", (unsigned long long)rounds);
    return 0;
}
