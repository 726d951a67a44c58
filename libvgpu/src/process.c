#include "process.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "kernel.h"
#include "ledger.h"
#include "region.h"
#include "source.h"

#define CHECK_EVERY_NS UINT64_C(20000)

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif

static struct vgpu_process *_Atomic arena;
static _Atomic int kernel_wipes;

static pid_t own_pid(void)
{
    return (pid_t)vgpu_call(SYS_getpid, 0, 0, 0, 0);
}

static struct vgpu_process *make_arena(void)
{
    size_t bytes = (sizeof(struct vgpu_process) + 65535) & ~(size_t)65535;
    void *fresh = vgpu_kernel_map(bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    struct vgpu_process *seen = NULL;
    if (!fresh) {
        return NULL;
    }
    atomic_store(&kernel_wipes, vgpu_call(SYS_madvise, (long)fresh, (long)bytes, MADV_WIPEONFORK, 0) == 0);
    if (!atomic_compare_exchange_strong(&arena, &seen, (struct vgpu_process *)fresh)) {
        vgpu_call(SYS_munmap, (long)fresh, (long)bytes, 0, 0);
        return seen;
    }
    return fresh;
}

static void set_up(struct vgpu_process *p)
{
    struct vgpu_source source;
    p->pid = own_pid();
    p->cookie = (vgpu_world->now().ns ^ (uint64_t)p->pid << 40) | 1;
    vgpu_source_open(&source);
    p->authority = source.authority;
    p->page = source.page;
    p->region = source.region;
    p->standalone = source.standalone;
    if (p->authority != VGPU_NOTHING) {
        p->self = vgpu_world->self();
    }
    if (p->region && vgpu_region_prepare(p->region)) {
        p->region = NULL;
        vgpu_world->log("vgpu: the usage region is not a region of this version: denying\n");
    }
}

struct vgpu_process *vgpu_process(void)
{
    struct vgpu_process *p = atomic_load_explicit(&arena, memory_order_acquire);
    if (!p) {
        p = make_arena();
        if (!p) {
            return NULL;
        }
    }
    if (!atomic_load_explicit(&kernel_wipes, memory_order_relaxed) && p->pid && p->pid != own_pid()) {
        memset((void *)p, 0, sizeof *p); /* kernels before 4.14: detect the fork ourselves */
    }
    if (!atomic_load_explicit(&p->ready, memory_order_acquire)) {
        vgpu_calm_take(&p->lock);
        if (!atomic_load_explicit(&p->ready, memory_order_relaxed)) {
            set_up(p);
            atomic_store_explicit(&p->ready, 1, memory_order_release);
        }
        vgpu_calm_drop(&p->lock);
    }
    return p->authority == VGPU_NOTHING ? NULL : p;
}

/* Let the kernel read the end of the region: it answers EFAULT where an access of ours would be a SIGBUS. The call does nothing
 * else, because there is no such way to change a signal mask. */
static int is_whole(const struct vgpu_region *region)
{
    uintptr_t last = (uintptr_t)region + VGPU_REGION_BYTES - sizeof(uint64_t);
    return vgpu_call(SYS_rt_sigprocmask, -1, (long)last, 0, sizeof(uint64_t)) != -EFAULT;
}

void vgpu_process_check(struct vgpu_process *p, struct vgpu_instant now)
{
    if (!p->region || vgpu_between(atomic_load_explicit(&p->checked, memory_order_relaxed), now) < CHECK_EVERY_NS) {
        return;
    }
    atomic_store_explicit(&p->checked, now, memory_order_relaxed);
    if (!is_whole(p->region)) {
        /* In its place, because other threads hold pointers into it. */
        vgpu_call6(SYS_mmap, (long)p->region, VGPU_REGION_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
                   -1, 0);
        atomic_store(&p->cut, 1);
        vgpu_world->log("vgpu: the usage region was made shorter: denying\n");
    }
}

struct vgpu_process *vgpu_process_checked(void)
{
    struct vgpu_process *p = vgpu_process();
    if (p) {
        vgpu_process_check(p, vgpu_world->now());
    }
    return p;
}

struct vgpu_region_slot *vgpu_process_slot(struct vgpu_process *p)
{
    vgpu_process_check(p, vgpu_world->about_now());
    struct vgpu_region_slot *slot = atomic_load_explicit(&p->slot, memory_order_acquire);
    if (slot || !p->region) {
        return slot;
    }
    vgpu_calm_take(&p->lock);
    slot = atomic_load_explicit(&p->slot, memory_order_relaxed);
    if (!slot) {
        slot = vgpu_ledger_join(p->region, &p->self);
        atomic_store_explicit(&p->slot, slot, memory_order_release);
    }
    vgpu_calm_drop(&p->lock);
    return slot;
}
