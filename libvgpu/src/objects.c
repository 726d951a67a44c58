#include "objects.h"

#include <stdlib.h>
#include <string.h>

/* Return the family: kinds that share handles. */
static enum vgpu_kind family_of(uint32_t kind)
{
    return kind == VGPU_KIND_POOLED || kind == VGPU_KIND_MANAGED ? VGPU_KIND_MEMORY : (enum vgpu_kind)kind;
}

static uint64_t hash_of(enum vgpu_kind kind, uint64_t handle)
{
    uint64_t h = handle ^ (uint64_t)family_of(kind) << 56;
    h ^= h >> 33;
    h *= UINT64_C(0xff51afd7ed558ccd);
    h ^= h >> 33;
    h *= UINT64_C(0xc4ceb9fe1a85ec53);
    return h ^ h >> 33;
}

static struct vgpu_stripe *stripe_of(struct vgpu_objects *objects, uint64_t hash)
{
    return &objects->stripes[hash % VGPU_STRIPES];
}

/* Return the first place to look at; the low bits have already chosen the stripe. */
static size_t home_of(const struct vgpu_stripe *stripe, uint64_t hash)
{
    return (size_t)(hash >> 6) & (stripe->room - 1);
}

static struct vgpu_object *place_of(struct vgpu_stripe *stripe, enum vgpu_kind kind, uint64_t handle, uint64_t hash)
{
    if (!stripe->room) {
        return NULL;
    }
    for (size_t i = home_of(stripe, hash);; i = (i + 1) & (stripe->room - 1)) {
        struct vgpu_object *place = &stripe->places[i];
        if (!place->kind || (place->handle == handle && family_of(place->kind) == family_of(kind))) {
            return place;
        }
    }
}

static int grow(struct vgpu_stripe *stripe)
{
    struct vgpu_stripe bigger = {.room = stripe->room ? stripe->room * 2 : 16};
    bigger.places = calloc(bigger.room, sizeof *bigger.places);
    if (!bigger.places) {
        return -1;
    }
    for (size_t i = 0; i < stripe->room; i++) {
        const struct vgpu_object *o = &stripe->places[i];
        if (o->kind) {
            *place_of(&bigger, o->kind, o->handle, hash_of(o->kind, o->handle)) = *o;
        }
    }
    free(stripe->places);
    stripe->places = bigger.places;
    stripe->room = bigger.room;
    return 0;
}

int vgpu_objects_replace(struct vgpu_objects *objects, struct vgpu_object object, struct vgpu_object *old)
{
    uint64_t hash = hash_of(object.kind, object.handle);
    struct vgpu_stripe *stripe = stripe_of(objects, hash);
    vgpu_lock_take(&stripe->lock);
    if ((stripe->count + 1) * 10 > stripe->room * 7 && grow(stripe)) {
        vgpu_lock_drop(&stripe->lock);
        return -1;
    }
    struct vgpu_object *place = place_of(stripe, object.kind, object.handle, hash);
    int known = place->kind != 0;
    *old = *place;
    stripe->count += !known;
    object.serial = atomic_fetch_add(&objects->births, 1) + 1;
    *place = object;
    vgpu_lock_drop(&stripe->lock);
    return known;
}

int vgpu_objects_add(struct vgpu_objects *objects, struct vgpu_object object)
{
    struct vgpu_object old;
    return vgpu_objects_replace(objects, object, &old) < 0 ? -1 : 0;
}

/* Close the gap at `hole`: later members of the run move up if their home allows it. */
static void erase(struct vgpu_stripe *stripe, size_t hole)
{
    size_t mask = stripe->room - 1;
    for (size_t i = (hole + 1) & mask; stripe->places[i].kind; i = (i + 1) & mask) {
        size_t home = home_of(stripe, hash_of(stripe->places[i].kind, stripe->places[i].handle));
        if (((i - home) & mask) >= ((i - hole) & mask)) {
            stripe->places[hole] = stripe->places[i];
            hole = i;
        }
    }
    memset(&stripe->places[hole], 0, sizeof stripe->places[hole]);
    stripe->count--;
}

static int look_up(struct vgpu_objects *objects, enum vgpu_kind kind, uint64_t handle, struct vgpu_object *out, int forget)
{
    uint64_t hash = hash_of(kind, handle);
    struct vgpu_stripe *stripe = stripe_of(objects, hash);
    vgpu_lock_take(&stripe->lock);
    struct vgpu_object *place = place_of(stripe, kind, handle, hash);
    int known = place && place->kind == (uint32_t)kind;
    if (known) {
        *out = *place;
        if (forget) {
            erase(stripe, (size_t)(place - stripe->places));
        }
    }
    vgpu_lock_drop(&stripe->lock);
    return known;
}

int vgpu_objects_take(struct vgpu_objects *objects, enum vgpu_kind kind, uint64_t handle, struct vgpu_object *out)
{
    return look_up(objects, kind, handle, out, 1);
}

int vgpu_objects_find(struct vgpu_objects *objects, enum vgpu_kind kind, uint64_t handle, struct vgpu_object *out)
{
    return look_up(objects, kind, handle, out, 0);
}

uint64_t vgpu_objects_now(struct vgpu_objects *objects)
{
    return atomic_load(&objects->births);
}

/* Forget the objects for which `belongs` is true. */
static void drop(struct vgpu_objects *objects, int (*belongs)(const void *what, const struct vgpu_object *), const void *what,
                 void (*released)(void *argument, const struct vgpu_object *), void *argument)
{
    for (int s = 0; s < VGPU_STRIPES; s++) {
        struct vgpu_stripe *stripe = &objects->stripes[s];
        vgpu_lock_take(&stripe->lock);
        for (size_t i = 0; i < stripe->room;) {
            struct vgpu_object o = stripe->places[i];
            if (o.kind && belongs(what, &o)) {
                released(argument, &o);
                erase(stripe, i); /* may move another entry into this place: check it again */
            } else {
                i++;
            }
        }
        vgpu_lock_drop(&stripe->lock);
    }
}

struct past {
    const void *context;
    uint64_t until;
};

static int is_of_context(const void *what, const struct vgpu_object *o)
{
    const struct past *past = what;
    int goes = o->kind == VGPU_KIND_MEMORY || o->kind == VGPU_KIND_ARRAY || o->kind == VGPU_KIND_MIPMAP ||
               o->kind == VGPU_KIND_HOST || o->kind == VGPU_KIND_MANAGED || o->kind == VGPU_KIND_EXPORT ||
               o->kind == VGPU_KIND_IMPORT;
    return goes && o->context == past->context && o->serial <= past->until;
}

void vgpu_objects_drop_context(struct vgpu_objects *objects, const void *context, uint64_t until,
                               void (*released)(void *argument, const struct vgpu_object *), void *argument)
{
    struct past past = {.context = context, .until = until};
    drop(objects, is_of_context, &past, released, argument);
}

struct range {
    enum vgpu_kind kind;
    uint64_t from, bytes;
};

static int is_within(const void *what, const struct vgpu_object *o)
{
    const struct range *range = what;
    return o->kind == (uint32_t)range->kind && o->handle - range->from < range->bytes;
}

void vgpu_objects_drop_range(struct vgpu_objects *objects, enum vgpu_kind kind, uint64_t from, uint64_t bytes,
                             void (*released)(void *argument, const struct vgpu_object *), void *argument)
{
    struct range range = {.kind = kind, .from = from, .bytes = bytes};
    drop(objects, is_within, &range, released, argument);
}
