/* test_page.c - a complete and valid page grants exactly what it says. Any other page grants nothing. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "page.h"
#include "t.h"
#include "world.h"

#define CARD "GPU-01234567-89ab-cdef-0123-456789abcdef"

static _Atomic uint64_t clock_ns;

static struct vgpu_instant fake_now(void)
{
    return vgpu_at(clock_ns);
}

static void fake_sleep(uint64_t ns)
{
    clock_ns += ns;
    sched_yield();
}

static const struct vgpu_world still = {.now = fake_now, .sleep_for = fake_sleep};
const struct vgpu_world *vgpu_world = &still;

static struct vgpu_page *granting(uint64_t limit)
{
    static struct vgpu_page page;
    memset(&page, 0, sizeof page);
    page.magic = VGPU_PAGE_MAGIC;
    page.abi_version = VGPU_ABI_VERSION;
    page.size = VGPU_PAGE_BYTES;
    page.seq = 2;
    page.state = VGPU_PAGE_GRANT;
    page.device_count = 1;
    strcpy(page.devices[0].uuid, CARD);
    page.devices[0].memory_limit_bytes = limit;
    return &page;
}

TEST(a_granting_page_says_the_limit_of_its_device_only)
{
    struct vgpu_page *page = granting(4096);
    CHECK_EQ(vgpu_page_limit(page, CARD), 4096);
    CHECK_EQ(vgpu_page_limit(page, "GPU-01234567-89ab-cdef-0123-456789abcde0"), 0);
    CHECK_EQ(vgpu_page_limit(page, ""), 0);
}

TEST(prefix_and_case_of_a_uuid_do_not_matter)
{
    struct vgpu_page *page = granting(4096);
    CHECK_EQ(vgpu_page_limit(page, "MIG-01234567-89AB-CDEF-0123-456789ABCDEF"), 4096);
}

TEST(a_uuid_without_an_end_does_not_read_beyond_its_field)
{
    struct vgpu_page *page = granting(4096);
    memset(page->devices[0].uuid, 'x', VGPU_UUID_BYTES);
    CHECK_EQ(vgpu_page_limit(page, CARD), 0);
}

TEST(an_all_zero_page_denies)
{
    static const struct vgpu_page zero;
    CHECK_EQ(vgpu_page_limit(&zero, CARD), 0);
    CHECK(!vgpu_page_is_unlimited(&zero));
}

TEST(each_wrong_word_of_the_header_denies)
{
    struct vgpu_page *page = granting(4096);
    page->magic ^= 1;
    CHECK_EQ(vgpu_page_limit(page, CARD), 0);
    page = granting(4096);
    page->abi_version++;
    CHECK_EQ(vgpu_page_limit(page, CARD), 0);
    page = granting(4096);
    page->size--;
    CHECK_EQ(vgpu_page_limit(page, CARD), 0);
    page = granting(4096);
    page->device_count = VGPU_MAX_DEVICES + 1;
    CHECK_EQ(vgpu_page_limit(page, CARD), 0);
    for (uint32_t state = 0; state < 5; state++) {
        page = granting(4096);
        page->state = state;
        CHECK_EQ(vgpu_page_limit(page, CARD), state == VGPU_PAGE_GRANT ? 4096 : 0);
    }
}

TEST(a_page_whose_writer_never_ends_denies_after_a_short_wait)
{
    struct vgpu_page *page = granting(4096);
    page->seq = 3;
    uint64_t before = clock_ns;
    CHECK_EQ(vgpu_page_limit(page, CARD), 0);
    CHECK(clock_ns - before <= UINT64_C(50000000));
}

TEST(unlimited_needs_every_device_unlimited)
{
    struct vgpu_page *page = granting(VGPU_UNLIMITED);
    CHECK(vgpu_page_is_unlimited(page));
    page->device_count = 2;
    CHECK(!vgpu_page_is_unlimited(page));
}

TEST(garbage_never_grants)
{
    static union {
        struct vgpu_page page;
        unsigned char bytes[VGPU_PAGE_BYTES];
    } garbage;
    srand(7);
    for (int round = 0; round < 200; round++) {
        for (size_t i = 0; i < sizeof garbage.bytes; i++) {
            garbage.bytes[i] = (unsigned char)rand();
        }
        CHECK_EQ(vgpu_page_limit(&garbage.page, CARD), 0);
        garbage.page.magic = VGPU_PAGE_MAGIC; /* a valid header on a body of garbage that contains no device name */
        garbage.page.abi_version = VGPU_ABI_VERSION;
        garbage.page.size = VGPU_PAGE_BYTES;
        garbage.page.seq &= ~1u;
        garbage.page.state = VGPU_PAGE_GRANT;
        garbage.page.device_count %= 65;
        CHECK_EQ(vgpu_page_limit(&garbage.page, CARD), 0);
    }
}

static struct vgpu_page *live;
static _Atomic int writing;

static void *rewrite(void *argument)
{
    for (uint64_t n = 0; atomic_load(&writing); n++) {
        __atomic_store_n(&live->seq, live->seq + 1, __ATOMIC_SEQ_CST);
        __atomic_store_n(&live->devices[0].memory_limit_bytes, 1 + n % 99, __ATOMIC_SEQ_CST);
        __atomic_store_n(&live->device_count, 1 + n % 2, __ATOMIC_SEQ_CST);
        __atomic_store_n(&live->devices[0].memory_limit_bytes, n % 2 ? 1000 : 2000, __ATOMIC_SEQ_CST);
        __atomic_store_n(&live->seq, live->seq + 1, __ATOMIC_SEQ_CST);
        sched_yield();
    }
    return argument;
}

TEST(a_reader_never_sees_half_a_change)
{
    pthread_t writer;
    int seen_a = 0, seen_b = 0;
    live = granting(1000);
    atomic_store(&writing, 1);
    CHECK(pthread_create(&writer, NULL, rewrite, NULL) == 0);
    for (int i = 0; i < 20000; i++) {
        clock_ns = 0;
        uint64_t limit = vgpu_page_limit(live, CARD);
        seen_a += limit == 1000;
        seen_b += limit == 2000;
        if (limit != 1000 && limit != 2000 && limit != 0) {
            atomic_store(&writing, 0);
        }
    }
    int broken = !atomic_load(&writing);
    atomic_store(&writing, 0);
    pthread_join(writer, NULL);
    CHECK(!broken);
    CHECK(seen_a + seen_b > 0);
}

TEST(kept_terms_are_those_of_the_page_from_the_first_call_after_a_change_on)
{
    struct vgpu_kept_limits kept = {0};
    struct vgpu_page *page = granting(1000);
    page->devices[0].cores_percent = 30;
    for (int i = 0; i < 3; i++) {
        CHECK_EQ(vgpu_page_limits_kept(page, CARD, &kept).limit, 1000);
        CHECK_EQ(vgpu_page_limits_kept(page, CARD, &kept).cores, 30);
    }
    page->devices[0].memory_limit_bytes = 2000; /* no agent writes like this: the sequence says that nothing changed */
    CHECK_EQ(vgpu_page_limits_kept(page, CARD, &kept).limit, 1000);
    page->seq += 2;
    CHECK_EQ(vgpu_page_limits_kept(page, CARD, &kept).limit, 2000);
    page->state = VGPU_PAGE_CLOSED;
    page->seq += 2;
    CHECK_EQ(vgpu_page_limits_kept(page, CARD, &kept).limit, 0);
    page->state = VGPU_PAGE_GRANT;
    page->seq += 1; /* its writer died half-way: access is denied, and nothing is cached */
    clock_ns = 0;
    CHECK_EQ(vgpu_page_limits_kept(page, CARD, &kept).limit, 0);
    page->seq += 1;
    CHECK_EQ(vgpu_page_limits_kept(page, CARD, &kept).limit, 2000);
}

static struct vgpu_kept_limits shared;
static _Atomic int mixed_up;

static void *read_kept(void *argument)
{
    for (int i = 0; i < 20000 && !mixed_up; i++) {
        struct vgpu_limits limits = vgpu_page_limits_kept(live, CARD, &shared);
        mixed_up = limits.limit && limits.limit != 1000 && limits.limit != 2000;
    }
    return argument;
}

TEST(threads_that_keep_the_same_terms_never_see_half_of_them)
{
    pthread_t writer, readers[4];
    live = granting(1000);
    atomic_store(&writing, 1);
    CHECK(pthread_create(&writer, NULL, rewrite, NULL) == 0);
    for (int i = 0; i < 4; i++) {
        CHECK(pthread_create(&readers[i], NULL, read_kept, NULL) == 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(readers[i], NULL);
    }
    atomic_store(&writing, 0);
    pthread_join(writer, NULL);
    CHECK(!mixed_up);
}

int main(void)
{
    return t_run();
}
