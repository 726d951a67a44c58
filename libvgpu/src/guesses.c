#include "guesses.h"

#include "bucket.h"

#define COLLECT_EVERY_NS UINT64_C(50000000)
#define MOST_NS UINT64_C(5000000000) /* charged for one process */

/* Other threads and processes read entries while their owner writes them. */
typedef _Atomic uint64_t word;
typedef _Atomic uint32_t halfword;
typedef _Atomic uint16_t quarterword;

void vgpu_guess_write(struct vgpu_process *p, int column, uint32_t percent, struct vgpu_instant since, uint64_t charged_ns)
{
    uint64_t me = vgpu_owner_word(&p->self), busy = me | VGPU_OWNER_REAPING;
    struct vgpu_region_guess *mine = atomic_load(&p->guess);
    if (!mine && !percent) {
        return;
    }
    for (unsigned i = 0; !mine && i < VGPU_REGION_GUESSES; i++) {
        uint64_t unowned = 0;
        if (atomic_compare_exchange_strong((word *)&p->region->guesses[i].owner, &unowned, busy)) {
            mine = &p->region->guesses[i];
        }
    }
    if (!mine) {
        return; /* full: other processes of the container use all of them */
    }
    atomic_store((word *)&mine->owner, busy); /* until the caller says which entry is ours */
    atomic_store(&p->guess, percent ? mine : NULL);
    if (!percent) {
        atomic_store((word *)&mine->owner, 0);
        return;
    }
    atomic_store((word *)&mine->layout, p->self.layout);
    atomic_store((word *)&mine->since_ns, since.ns);
    atomic_store((halfword *)&mine->charged_us, charged_ns / 1000 > UINT32_MAX ? UINT32_MAX : (uint32_t)(charged_ns / 1000));
    atomic_store((quarterword *)&mine->column, (uint16_t)column);
    atomic_store((quarterword *)&mine->percent, (uint16_t)percent);
    atomic_store((word *)&mine->owner, me);
}

static struct vgpu_region_guess copy_of(const struct vgpu_region_guess *guess)
{
    return (struct vgpu_region_guess){.layout = atomic_load((const word *)&guess->layout),
                                      .since_ns = atomic_load((const word *)&guess->since_ns),
                                      .charged_us = atomic_load((const halfword *)&guess->charged_us),
                                      .column = atomic_load((const quarterword *)&guess->column),
                                      .percent = atomic_load((const quarterword *)&guess->percent)};
}

/* Return 1 if the process that wrote this has ended or runs another program. A process in another PID namespace cannot be
 * observed, so it is given the most time that can be charged. */
static int is_left(struct vgpu_process *p, const struct vgpu_region_guess *left, uint64_t owner, struct vgpu_instant now)
{
    uint64_t me = vgpu_owner_word(&p->self), namespace_bits = ((UINT64_C(1) << VGPU_OWNER_NS_BITS) - 1) << VGPU_OWNER_PID_BITS;
    if ((owner ^ me) & namespace_bits) {
        return vgpu_between(vgpu_at(left->since_ns), now) >= MOST_NS;
    }
    uint32_t pid = (uint32_t)(owner & ((UINT64_C(1) << VGPU_OWNER_PID_BITS) - 1));
    uint64_t layout = owner == me ? p->self.layout : left->layout && vgpu_world->layout_of ? vgpu_world->layout_of(pid) : 0;
    return (layout && layout != left->layout) || (owner != me && vgpu_world->is_dead(owner, &p->self));
}

static void charge(struct vgpu_process *p, const struct vgpu_region_guess *left, struct vgpu_instant now)
{
    vgpu_duration ran = vgpu_between(vgpu_at(left->since_ns), now);
    uint64_t charged = UINT64_C(1000) * left->charged_us;
    ran = ran > MOST_NS ? MOST_NS : ran;
    if (ran > charged && left->column < VGPU_MAX_DEVICES && left->percent) {
        vgpu_bucket_correct(&p->region->columns[left->column].bucket, now, left->percent, (int64_t)(ran - charged));
    }
}

void vgpu_guesses_collect(struct vgpu_process *p, struct vgpu_instant now)
{
    struct vgpu_instant last = atomic_load_explicit(&p->collected, memory_order_relaxed);
    if (!p->region || (last.ns && vgpu_between(last, now) < COLLECT_EVERY_NS) ||
        !atomic_compare_exchange_strong(&p->collected, &last, now)) {
        return;
    }
    for (unsigned i = 0; i < VGPU_REGION_GUESSES; i++) {
        struct vgpu_region_guess *guess = &p->region->guesses[i];
        uint64_t owner = atomic_load((word *)&guess->owner), who = owner & ~VGPU_OWNER_REAPING;
        if (!owner || owner == (vgpu_owner_word(&p->self) | VGPU_OWNER_REAPING)) {
            continue;
        }
        struct vgpu_region_guess left = copy_of(guess);
        if (is_left(p, &left, who, now) && atomic_compare_exchange_strong((word *)&guess->owner, &owner, 0) && owner == who) {
            charge(p, &left, now);
        }
    }
}
