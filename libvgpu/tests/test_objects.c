/* test_objects.c - the tables of the objects that a process holds. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "objects.h"
#include "t.h"

static struct vgpu_objects *fresh(void)
{
    return calloc(1, sizeof(struct vgpu_objects));
}

static void discard(struct vgpu_objects *objects)
{
    for (int i = 0; i < VGPU_STRIPES; i++) {
        free(objects->stripes[i].places);
    }
    free(objects);
}

static struct vgpu_object memory(uint64_t handle, const void *context)
{
    return (struct vgpu_object){.handle = handle, .bytes = handle * 2, .context = context, .kind = VGPU_KIND_MEMORY};
}

TEST(an_object_is_found_until_it_is_taken)
{
    struct vgpu_objects *objects = fresh();
    struct vgpu_object out;
    CHECK(!vgpu_objects_find(objects, VGPU_KIND_MEMORY, 4096, &out));
    CHECK(vgpu_objects_add(objects, memory(4096, NULL)) == 0);
    CHECK(vgpu_objects_find(objects, VGPU_KIND_MEMORY, 4096, &out));
    CHECK_EQ(out.bytes, 8192);
    CHECK(!vgpu_objects_find(objects, VGPU_KIND_POOL, 4096, &out));
    CHECK(vgpu_objects_take(objects, VGPU_KIND_MEMORY, 4096, &out));
    CHECK(!vgpu_objects_take(objects, VGPU_KIND_MEMORY, 4096, &out));
    discard(objects);
}

TEST(what_an_entry_replaces_is_told)
{
    struct vgpu_objects *objects = fresh();
    struct vgpu_object second = memory(4096, NULL), old;
    second.bytes = 7;
    CHECK_EQ(vgpu_objects_replace(objects, memory(4096, NULL), &old), 0);
    CHECK_EQ(vgpu_objects_replace(objects, second, &old), 1);
    CHECK_EQ(old.bytes, 8192);
    CHECK(vgpu_objects_take(objects, VGPU_KIND_MEMORY, 4096, &old));
    CHECK_EQ(old.bytes, 7);
    CHECK(!vgpu_objects_take(objects, VGPU_KIND_MEMORY, 4096, &old));
    discard(objects);
}

TEST(an_address_has_one_allocation_whatever_kind_it_is)
{
    static const enum vgpu_kind kinds[] = {VGPU_KIND_MEMORY, VGPU_KIND_POOLED, VGPU_KIND_MANAGED};
    for (int i = 0; i < 9; i++) {
        struct vgpu_objects *objects = fresh();
        enum vgpu_kind before = kinds[i / 3], after = kinds[i % 3];
        struct vgpu_object first = {.handle = 4096, .bytes = 1, .kind = before}, out;
        struct vgpu_object second = {.handle = 4096, .bytes = 2, .kind = after};
        CHECK_EQ(vgpu_objects_replace(objects, first, &out), 0);
        CHECK_EQ(vgpu_objects_replace(objects, second, &out), 1);
        CHECK(out.kind == before && out.bytes == 1);
        CHECK(before == after || !vgpu_objects_take(objects, before, 4096, &out));
        CHECK(vgpu_objects_take(objects, after, 4096, &out) && out.bytes == 2);
        discard(objects);
    }
}

TEST(an_export_lies_beside_the_memory_that_it_is_of)
{
    struct vgpu_objects *objects = fresh();
    struct vgpu_object of = {.handle = 4096, .kind = VGPU_KIND_EXPORT}, out;
    CHECK_EQ(vgpu_objects_replace(objects, memory(4096, NULL), &out), 0);
    CHECK_EQ(vgpu_objects_replace(objects, of, &out), 0);
    CHECK(vgpu_objects_take(objects, VGPU_KIND_MEMORY, 4096, &out) && vgpu_objects_take(objects, VGPU_KIND_EXPORT, 4096, &out));
    discard(objects);
}

static void count_handles(void *argument, const struct vgpu_object *object)
{
    *(uint64_t *)argument += object->handle;
}

TEST(a_range_drops_what_of_its_kind_begins_in_it)
{
    struct vgpu_objects *objects = fresh();
    struct vgpu_object out, other = {.handle = 150, .kind = VGPU_KIND_POOL};
    uint64_t dropped = 0;
    CHECK(vgpu_objects_add(objects, other) == 0);
    for (uint64_t at = 100; at < 400; at += 50) {
        CHECK(vgpu_objects_add(objects, memory(at, NULL)) == 0);
    }
    vgpu_objects_drop_range(objects, VGPU_KIND_MEMORY, 150, 150, count_handles, &dropped);
    CHECK_EQ(dropped, 150 + 200 + 250);
    CHECK(vgpu_objects_find(objects, VGPU_KIND_MEMORY, 100, &out) && vgpu_objects_find(objects, VGPU_KIND_MEMORY, 300, &out));
    CHECK(vgpu_objects_find(objects, VGPU_KIND_POOL, 150, &out));
    discard(objects);
}

TEST(random_adds_and_takes_agree_with_a_plain_array)
{
    enum { HANDLES = 4000, STEPS = 200000 };
    static char held[HANDLES];
    struct vgpu_objects *objects = fresh();
    struct vgpu_object out;
    memset(held, 0, sizeof held);
    srand(1);
    for (int i = 0; i < STEPS; i++) {
        unsigned n = (unsigned)rand() % HANDLES;
        uint64_t handle = UINT64_C(0x7f0000000000) + n * UINT64_C(512);
        if (rand() % 2) {
            CHECK(vgpu_objects_add(objects, memory(handle, NULL)) == 0);
            held[n] = 1;
        } else {
            CHECK(vgpu_objects_take(objects, VGPU_KIND_MEMORY, handle, &out) == held[n]);
            held[n] = 0;
        }
    }
    for (unsigned n = 0; n < HANDLES; n++) {
        CHECK(vgpu_objects_find(objects, VGPU_KIND_MEMORY, UINT64_C(0x7f0000000000) + n * UINT64_C(512), &out) == held[n]);
    }
    discard(objects);
}

static void count_released(void *argument, const struct vgpu_object *object)
{
    *(uint64_t *)argument += object->bytes;
}

TEST(a_context_drops_its_own_old_memory_and_nothing_else)
{
    struct vgpu_objects *objects = fresh();
    struct vgpu_object out;
    int mine, other;
    uint64_t released = 0, expected = 0;
    for (uint64_t i = 1; i <= 1000; i++) {
        CHECK(vgpu_objects_add(objects, memory(i, i % 2 ? &mine : &other)) == 0);
        expected += i % 2 ? i * 2 : 0;
    }
    uint64_t until = vgpu_objects_now(objects);
    CHECK(vgpu_objects_add(objects, memory(5001, &mine)) == 0);
    vgpu_objects_drop_context(objects, &mine, until, count_released, &released);
    CHECK_EQ(released, expected);
    CHECK(vgpu_objects_find(objects, VGPU_KIND_MEMORY, 5001, &out));
    for (uint64_t i = 1; i <= 1000; i++) {
        CHECK(vgpu_objects_find(objects, VGPU_KIND_MEMORY, i, &out) == (i % 2 == 0));
    }
    discard(objects);
}

static void *churn(void *argument)
{
    struct vgpu_objects *objects = argument;
    struct vgpu_object out;
    uint64_t own = (uint64_t)(uintptr_t)&out; /* differs between threads: every stack is its own */
    for (uint64_t i = 0; i < 20000; i++) {
        uint64_t handle = own + i % 50;
        if (vgpu_objects_add(objects, memory(handle, NULL)) != 0 || !vgpu_objects_take(objects, VGPU_KIND_MEMORY, handle, &out) ||
            out.handle != handle) {
            return objects;
        }
    }
    return NULL;
}

TEST(threads_do_not_lose_each_others_objects)
{
    struct vgpu_objects *objects = fresh();
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) {
        CHECK(pthread_create(&threads[i], NULL, churn, objects) == 0);
    }
    for (int i = 0; i < 4; i++) {
        void *failed;
        pthread_join(threads[i], &failed);
        CHECK(failed == NULL);
    }
    for (int i = 0; i < VGPU_STRIPES; i++) {
        CHECK_EQ(objects->stripes[i].count, 0);
    }
    discard(objects);
}

int main(void)
{
    return t_run();
}
