/* test_ledger.c - region and ledger in a world in which the test decides which processes are dead. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "ledger.h"
#include "region.h"
#include "t.h"

#define CARD_A "GPU-01234567-89ab-cdef-0123-456789abcdef"
#define CARD_B "GPU-fedcba98-89ab-cdef-0123-456789abcdef"

static uint64_t dead_owner;

static struct vgpu_instant fake_now(void)
{
    return vgpu_at(1);
}

static void fake_sleep(uint64_t ns)
{
    (void)ns;
}

static int fake_is_dead(uint64_t owner, const struct vgpu_identity *self)
{
    (void)self;
    return owner == dead_owner;
}

static _Thread_local char logged[256]; /* the last line */

static void fake_log(const char *text)
{
    snprintf(logged, sizeof logged, "%s", text);
}

static uint64_t layout_now; /* of every process that is queried */

static uint64_t fake_layout(uint32_t pid)
{
    (void)pid;
    return layout_now;
}

static const struct vgpu_world mortal = {
    .now = fake_now, .sleep_for = fake_sleep, .is_dead = fake_is_dead, .layout_of = fake_layout, .log = fake_log};
const struct vgpu_world *vgpu_world = &mortal;

static const struct vgpu_identity ann = {.pid = 11, .start_time = 100, .pid_namespace = 5, .image = 1, .layout = 70};
static const struct vgpu_identity bob = {.pid = 12, .start_time = 100, .pid_namespace = 5, .image = 2, .layout = 71};

static struct vgpu_region *fresh(void)
{
    static struct vgpu_region region;
    memset(&region, 0, sizeof region);
    dead_owner = layout_now = 0;
    logged[0] = 0;
    return vgpu_region_prepare(&region) == 0 ? &region : NULL;
}

TEST(a_zero_filled_file_becomes_a_region_and_stays_one)
{
    struct vgpu_region *region = fresh();
    CHECK(region != NULL);
    CHECK_EQ(region->magic, VGPU_REGION_MAGIC);
    CHECK_EQ(region->size, VGPU_REGION_BYTES);
    CHECK(vgpu_region_prepare(region) == 0);
}

TEST(a_header_left_half_written_by_a_dead_process_is_finished)
{
    struct vgpu_region *region = fresh();
    region->state = VGPU_REGION_EMPTY;
    region->slot_count = 0;
    CHECK(vgpu_region_prepare(region) == 0);
    CHECK_EQ(region->slot_count, VGPU_REGION_SLOTS);
}

TEST(something_else_is_not_taken_for_a_region)
{
    struct vgpu_region *region = fresh();
    region->magic ^= 1;
    CHECK(vgpu_region_prepare(region) != 0);
    region = fresh();
    region->slot_count++;
    CHECK(vgpu_region_prepare(region) != 0);
}

TEST(devices_have_columns_of_their_own)
{
    struct vgpu_region *region = fresh();
    CHECK_EQ(vgpu_region_column(region, CARD_A), 0);
    CHECK_EQ(vgpu_region_column(region, CARD_B), 1);
    CHECK_EQ(vgpu_region_column(region, "MIG-01234567-89AB-cdef-0123-456789abcdef"), 0);
    CHECK(!strcmp(region->columns[0].uuid, CARD_A));
    for (int i = 2; i < (int)VGPU_MAX_DEVICES; i++) {
        char name[32];
        snprintf(name, sizeof name, "GPU-%d", i);
        CHECK_EQ(vgpu_region_column(region, name), i);
    }
    CHECK(vgpu_region_column(region, "GPU-one-too-many") == -1);
}

TEST(what_a_program_held_before_its_exec_is_given_back_by_the_next_refusal)
{
    struct vgpu_region *region = fresh();
    struct vgpu_region_slot *a = vgpu_ledger_join(region, &ann), *b = vgpu_ledger_join(region, &bob);
    CHECK(vgpu_ledger_charge(region, a, &ann, 0, 600, 1000));
    CHECK(!vgpu_ledger_charge(region, b, &bob, 0, 600, 1000)); /* the layout cannot be seen */
    layout_now = ann.layout;
    CHECK(!vgpu_ledger_charge(region, b, &bob, 0, 600, 1000)); /* it is unchanged */
    layout_now = 99;
    CHECK(vgpu_ledger_charge(region, b, &bob, 0, 600, 1000));
    CHECK_EQ(vgpu_ledger_used(region, 0), 600);
    CHECK_EQ(a->owner, 0);
}

TEST(a_slot_whose_layout_is_another_process_s_is_left_alone)
{
    struct vgpu_region *region = fresh();
    struct vgpu_region_slot *a = vgpu_ledger_join(region, &ann), *b = vgpu_ledger_join(region, &bob);
    CHECK(vgpu_ledger_charge(region, a, &ann, 0, 600, 1000));
    a->layout_owner = 1; /* like a slot that has just been claimed */
    layout_now = 99;
    CHECK(!vgpu_ledger_charge(region, b, &bob, 0, 600, 1000));
    CHECK_EQ(vgpu_ledger_used(region, 0), 600);
}

TEST(exported_bytes_are_written_rounded_up_to_thirty_two_tebibytes)
{
    static const uint64_t bytes[] = {0,
                                     1,
                                     UINT64_C(100) << 22,
                                     (UINT64_C(100) << 22) + 1,
                                     UINT64_C(127) << 30,
                                     UINT64_C(300) << 30,
                                     (UINT64_C(300) << 30) + 1,
                                     UINT64_C(31) << 40};
    struct vgpu_region *region = fresh();
    struct vgpu_region_slot *a = vgpu_ledger_join(region, &ann);
    for (size_t i = 0; i < sizeof bytes / sizeof bytes[0]; i++) {
        vgpu_ledger_exported(a, 2, bytes[i]);
        uint64_t unit = bytes[i] < UINT64_C(128) << 30 ? VGPU_EXPORTED_UNIT : VGPU_EXPORTED_LARGE_UNIT;
        CHECK(vgpu_ledger_exported_bytes(a, 2) >= bytes[i] && vgpu_ledger_exported_bytes(a, 2) < bytes[i] + unit);
    }
    vgpu_ledger_exported(a, 2, UINT64_MAX);
    CHECK(vgpu_ledger_exported_bytes(a, 2) >= UINT64_C(31) << 40);
}

TEST(the_limit_itself_fits_and_one_byte_more_does_not)
{
    struct vgpu_region *region = fresh();
    struct vgpu_region_slot *a = vgpu_ledger_join(region, &ann), *b = vgpu_ledger_join(region, &bob);
    CHECK(a && b && a != b);
    CHECK(vgpu_ledger_charge(region, a, &ann, 3, 600, 1000));
    CHECK(!vgpu_ledger_charge(region, b, &bob, 3, 401, 1000));
    CHECK(vgpu_ledger_charge(region, b, &bob, 3, 400, 1000));
    CHECK(!vgpu_ledger_charge(region, a, &ann, 3, 1, 1000));
    CHECK_EQ(vgpu_ledger_used(region, 3), 1000);
    CHECK_EQ(region->columns[3].denied_count, 2);
    CHECK_EQ(region->columns[3].peak_bytes, 1000);
    vgpu_ledger_release(a, 3, 600);
    CHECK_EQ(vgpu_ledger_used(region, 3), 400);
    CHECK_EQ(a->peak[3], 600);
}

TEST(a_refusal_is_logged_with_the_device_whose_limit_it_is)
{
    struct vgpu_region *region = fresh();
    struct vgpu_region_slot *a = vgpu_ledger_join(region, &ann);
    CHECK(vgpu_ledger_charge(region, a, &ann, 3, 1000, 1000));
    CHECK_EQ(logged[0], 0);
    CHECK(!vgpu_ledger_charge(region, a, &ann, 3, 1, 1000));
    CHECK(strcmp(logged, "vgpu: out of memory: the request would exceed this container's limit of device 3\n") == 0);
    CHECK(!vgpu_ledger_charge(region, a, &ann, VGPU_HOST, 4096, 0));
    CHECK(strstr(logged, "limit of page-locked host memory\n"));
}

TEST(absurd_sizes_are_refused_and_leave_nothing)
{
    struct vgpu_region *region = fresh();
    struct vgpu_region_slot *a = vgpu_ledger_join(region, &ann);
    CHECK(!vgpu_ledger_charge(region, a, &ann, 0, UINT64_MAX, 1000));
    CHECK(!vgpu_ledger_charge(region, a, &ann, 0, UINT64_MAX, VGPU_UNLIMITED));
    CHECK(!vgpu_ledger_charge(region, a, &ann, 0, 1, 0));
    CHECK_EQ(vgpu_ledger_used(region, 0), 0);
}

TEST(forged_words_saturate_instead_of_wrapping)
{
    struct vgpu_region *region = fresh();
    struct vgpu_region_slot *a = vgpu_ledger_join(region, &ann), *b = vgpu_ledger_join(region, &bob);
    b->used[0] = UINT64_MAX;
    CHECK(!vgpu_ledger_charge(region, a, &ann, 0, 512, 1000));
    CHECK_EQ(a->used[0], 0);
    region->slot_high = UINT32_MAX;
    CHECK_EQ(vgpu_ledger_used(region, 0), UINT64_MAX);
}

TEST(what_a_dead_process_held_is_there_for_the_next_who_needs_it)
{
    struct vgpu_region *region = fresh();
    struct vgpu_region_slot *a = vgpu_ledger_join(region, &ann), *b = vgpu_ledger_join(region, &bob);
    CHECK(vgpu_ledger_charge(region, a, &ann, 0, 1000, 1000));
    CHECK(!vgpu_ledger_charge(region, b, &bob, 0, 1000, 1000));
    dead_owner = vgpu_owner_word(&ann);
    CHECK(vgpu_ledger_charge(region, b, &bob, 0, 1000, 1000));
    CHECK_EQ(a->owner, 0);
    CHECK_EQ(a->used[0], 0);
}

TEST(a_reaper_that_died_half_way_is_finished_by_the_next)
{
    struct vgpu_region *region = fresh();
    struct vgpu_region_slot *a = vgpu_ledger_join(region, &ann), *b = vgpu_ledger_join(region, &bob);
    CHECK(vgpu_ledger_charge(region, a, &ann, 0, 900, 1000));
    struct vgpu_identity reaper = {.pid = 99, .start_time = 1, .pid_namespace = 5};
    a->owner = vgpu_owner_word(&reaper) | VGPU_OWNER_REAPING;
    CHECK(!vgpu_ledger_charge(region, b, &bob, 0, 200, 1000));
    dead_owner = vgpu_owner_word(&reaper);
    CHECK(vgpu_ledger_charge(region, b, &bob, 0, 200, 1000));
    CHECK_EQ(a->owner, 0);
}

TEST(a_program_that_execs_leaves_nothing_behind)
{
    struct vgpu_region *region = fresh();
    struct vgpu_region_slot *a = vgpu_ledger_join(region, &ann);
    CHECK(vgpu_ledger_charge(region, a, &ann, 0, 900, 1000));
    struct vgpu_identity after = ann;
    after.image = 77;
    struct vgpu_region_slot *b = vgpu_ledger_join(region, &after);
    CHECK(b != NULL);
    CHECK_EQ(vgpu_ledger_used(region, 0), 0);
}

TEST(a_full_region_refuses_newcomers_until_a_process_dies)
{
    struct vgpu_region *region = fresh();
    for (uint32_t i = 0; i < VGPU_REGION_SLOTS; i++) {
        struct vgpu_identity someone = {.pid = i + 1000, .start_time = 1, .pid_namespace = 5, .image = i + 1};
        CHECK(vgpu_ledger_join(region, &someone) != NULL);
    }
    CHECK(vgpu_ledger_join(region, &ann) == NULL);
    struct vgpu_identity victim = {.pid = 1500, .start_time = 1, .pid_namespace = 5};
    dead_owner = vgpu_owner_word(&victim);
    CHECK(vgpu_ledger_join(region, &ann) != NULL);
}

struct party {
    struct vgpu_region *region;
    struct vgpu_identity who;
    _Atomic int64_t *admitted, *worst;
};

static void *spend(void *argument)
{
    struct party *party = argument;
    struct vgpu_region_slot *slot = vgpu_ledger_join(party->region, &party->who);
    unsigned seed = party->who.pid;
    for (int i = 0; slot && i < 20000; i++) {
        int64_t bytes = 1 + rand_r(&seed) % 400;
        if (vgpu_ledger_charge(party->region, slot, &party->who, 0, (uint64_t)bytes, 1000)) {
            int64_t now = *party->admitted += bytes, seen = *party->worst;
            while (now > seen &&
                   !__atomic_compare_exchange_n((int64_t *)party->worst, &seen, now, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
            }
            *party->admitted -= bytes;
            vgpu_ledger_release(slot, 0, (uint64_t)bytes);
        }
    }
    return NULL;
}

TEST(admitted_charges_never_exceed_the_limit_however_they_interleave)
{
    static _Atomic int64_t admitted, worst;
    struct vgpu_region *region = fresh();
    struct party parties[6];
    pthread_t threads[6];
    for (uint32_t i = 0; i < 6; i++) {
        parties[i] = (struct party){.region = region,
                                    .who = {.pid = 20 + i, .start_time = 1, .pid_namespace = 5, .image = i},
                                    .admitted = &admitted,
                                    .worst = &worst};
        CHECK(pthread_create(&threads[i], NULL, spend, &parties[i]) == 0);
    }
    for (int i = 0; i < 6; i++) {
        pthread_join(threads[i], NULL);
    }
    CHECK(worst > 0 && worst <= 1000);
    CHECK_EQ(vgpu_ledger_used(region, 0), 0);
}

int main(void)
{
    return t_run();
}
