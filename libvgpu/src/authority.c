#include "authority.h"

#include "page.h"

static int has_ledger(const struct vgpu_process *p)
{
    return p->region && !atomic_load_explicit(&p->cut, memory_order_relaxed);
}

static struct vgpu_limits limits_of(struct vgpu_process *p, const char *uuid, int ordinal)
{
    if (ordinal >= 0 && ordinal < (int)VGPU_MAX_DEVICES && uuid == p->devices[ordinal].uuid) {
        return vgpu_page_limits_kept(p->page, uuid, &p->limits[ordinal]);
    }
    return vgpu_page_limits(p->page, uuid);
}

uint64_t vgpu_limit(struct vgpu_process *p, const char *uuid, int ordinal)
{
    if (!has_ledger(p)) {
        return 0;
    }
    if (p->authority == VGPU_PAGE) {
        return p->page ? limits_of(p, uuid, ordinal).limit : 0;
    }
    return ordinal >= 0 && ordinal < (int)VGPU_MAX_DEVICES ? p->standalone.limit[ordinal] : VGPU_UNLIMITED;
}

struct vgpu_budget vgpu_budget(struct vgpu_process *p, const char *uuid, int ordinal)
{
    if (p->authority == VGPU_PAGE && has_ledger(p) && p->page) {
        struct vgpu_limits limits = limits_of(p, uuid, ordinal);
        if (limits.physical && limits.physical < limits.limit) {
            return (struct vgpu_budget){.device = limits.physical, .total = limits.limit};
        }
        return (struct vgpu_budget){.device = limits.limit, .total = VGPU_UNLIMITED};
    }
    return (struct vgpu_budget){.device = vgpu_limit(p, uuid, ordinal), .total = VGPU_UNLIMITED};
}

uint64_t vgpu_context_price(struct vgpu_process *p, const char *uuid, int ordinal)
{
    return p->authority == VGPU_PAGE && p->page ? limits_of(p, uuid, ordinal).context : 0;
}

uint64_t vgpu_host_limit(const struct vgpu_process *p)
{
    if (!has_ledger(p)) {
        return 0;
    }
    if (p->authority == VGPU_PAGE) {
        return p->page ? vgpu_page_host_limit(p->page) : 0;
    }
    return p->standalone.host_limit;
}

int vgpu_limits_of_compute(struct vgpu_process *p, const char *uuid, int ordinal, struct vgpu_limits *out)
{
    if (p->authority == VGPU_PAGE) {
        *out = p->page ? limits_of(p, uuid, ordinal) : (struct vgpu_limits){0};
        return out->limit != 0;
    }
    *out = (struct vgpu_limits){.limit = VGPU_UNLIMITED,
                                .cores = ordinal >= 0 && ordinal < (int)VGPU_MAX_DEVICES ? p->standalone.cores[ordinal] : 0,
                                .policy = p->standalone.policy};
    return 1;
}

int vgpu_limits_nothing(const struct vgpu_process *p)
{
    if (!has_ledger(p)) {
        return 0;
    }
    if (p->authority == VGPU_PAGE) {
        return p->page && vgpu_page_is_unlimited(p->page);
    }
    for (unsigned i = 0; i < VGPU_MAX_DEVICES; i++) {
        if (p->standalone.limit[i] != VGPU_UNLIMITED) {
            return 0;
        }
    }
    return 1;
}
