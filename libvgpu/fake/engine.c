#include "engine.h"

#include <string.h>

void engine_start(struct engine *e, uint64_t now_ns, uint64_t slice_ns, uint64_t switch_ns, uint64_t sample_ns)
{
    e->now_ns = now_ns;
    e->slice_ns = slice_ns;
    e->switch_ns = switch_ns;
    e->sample_ns = sample_ns;
    e->current = -1;
}

int engine_join(struct engine *e, int32_t owner)
{
    for (int i = 0; i < ENGINE_CONTEXTS; i++) {
        struct engine_context *c = &e->contexts[i];
        if (!c->owner) {
            memset(c, 0, sizeof *c);
            c->owner = owner;
            e->high = (uint32_t)i >= e->high ? (uint32_t)i + 1 : e->high;
            return i;
        }
    }
    return -1;
}

void engine_leave(struct engine *e, int context)
{
    e->contexts[context].owner = 0;
    e->contexts[context].pending = 0;
    if (e->current == context) {
        e->current = -1;
    }
}

static struct engine_op *head_of(struct engine_queue *q)
{
    return q->head == q->tail ? NULL : &q->ops[q->head % ENGINE_DEPTH];
}

/* Return the first operation of a queue if everything it must wait for is done, else NULL. */
static struct engine_op *ready_in(struct engine_context *c, int queue)
{
    struct engine_op *op = head_of(&c->queues[queue]);
    if (!op) {
        return NULL;
    }
    if (queue == 0) {
        for (int i = 1; i < ENGINE_FIRST_FREE; i++) {
            const struct engine_op *other = head_of(&c->queues[i]);
            if (other && other->seq < op->seq) {
                return NULL;
            }
        }
    } else if (queue < ENGINE_FIRST_FREE) {
        const struct engine_op *legacy = head_of(&c->queues[0]);
        if (legacy && legacy->seq < op->seq) {
            return NULL;
        }
    }
    if (op->kind == ENGINE_AWAIT && (int32_t)(c->events[op->event].done - op->recording) < 0) {
        return NULL;
    }
    return op;
}

static int is_runnable(struct engine_context *c)
{
    for (int i = 0; c->owner && c->pending && i < ENGINE_QUEUES; i++) {
        if (ready_in(c, i)) {
            return 1;
        }
    }
    return 0;
}

static void finish(struct engine_context *c, int queue)
{
    c->queues[queue].head++;
    c->pending--;
}

/* Records and waits at the head of a queue take no time. Return 1 if the caller must be notified of one of them. */
static int finish_events(struct engine *e, struct engine_context *c)
{
    int notify = 0, more = 1;
    while (more) {
        more = 0;
        for (int i = 0; i < ENGINE_QUEUES; i++) {
            struct engine_op *op = ready_in(c, i);
            if (!op || op->kind == ENGINE_KERNEL) {
                continue;
            }
            if (op->kind == ENGINE_RECORD) {
                c->events[op->event].at_ns = e->now_ns;
                c->events[op->event].done++;
                notify |= op->notify;
                e->notified += op->notify;
            }
            finish(c, i);
            more = 1;
        }
    }
    return notify;
}

/* Find the kernels that run concurrently now, by queue; return how many. */
static int running(struct engine_context *c, int queues[ENGINE_QUEUES])
{
    struct engine_op *ready[ENGINE_QUEUES];
    int count = 0, at[ENGINE_QUEUES], n = 0;
    for (int i = 0; i < ENGINE_QUEUES; i++) {
        struct engine_op *op = ready_in(c, i);
        if (!op) {
            continue;
        }
        int j = n++;
        for (; j > 0 && ready[j - 1]->priority > op->priority; j--) {
            ready[j] = ready[j - 1];
            at[j] = at[j - 1];
        }
        ready[j] = op;
        at[j] = i;
    }
    uint32_t room = ENGINE_WHOLE;
    for (int i = 0; i < n; i++) {
        if (ready[i]->fraction <= room) {
            room -= ready[i]->fraction;
            queues[count++] = at[i];
        }
    }
    return count;
}

static uint64_t boundary_after(const struct engine *e)
{
    return (e->now_ns / e->sample_ns + 1) * e->sample_ns;
}

/* Return how much of a time in which a context runs NVML notices. */
static uint64_t noticed(const struct engine *e, uint64_t to)
{
    uint64_t looks = 0;
    if (!e->look_ns) {
        return to - e->now_ns;
    }
    for (uint64_t n = e->now_ns / e->look_ns; n <= to / e->look_ns; n++) {
        uint64_t drawn = (n + 1) * UINT64_C(0x9e3779b97f4a7c15), at = n * e->look_ns + (drawn ^ drawn >> 29) % e->look_ns;
        looks += at > e->now_ns && at <= to;
    }
    return looks * e->look_ns;
}

/* Let time pass; `c` (if not NULL) is busy during that time. A busy time must not cross more than one sample boundary. */
static void pass(struct engine *e, struct engine_context *c, uint64_t to)
{
    if (c) {
        uint64_t seen_ns = noticed(e, to);
        c->busy_ns += to - e->now_ns;
        e->busy_ns += to - e->now_ns;
        c->seen_ns += seen_ns;
        e->seen_ns += seen_ns;
    }
    uint64_t first = e->now_ns / e->sample_ns + 1, last = to / e->sample_ns;
    if (last - first >= ENGINE_MARKS && last >= first) {
        first = last - ENGINE_MARKS + 1; /* idle for long */
    }
    for (uint64_t n = first; n <= last; n++) {
        e->marks[n % ENGINE_MARKS] = e->seen_ns;
        for (uint32_t i = 0; i < e->high; i++) {
            e->contexts[i].marks[n % ENGINE_MARKS] = e->contexts[i].seen_ns;
        }
    }
    e->now_ns = to;
}

static int next_runnable(struct engine *e)
{
    for (int i = 1; i <= (int)e->high; i++) {
        int at = (e->current + i) % (int)e->high;
        if (is_runnable(&e->contexts[at])) {
            return at;
        }
    }
    return -1;
}

/* Return the context that runs next, from `ready_ns` on; -1 if none has work. */
static int next_context(struct engine *e)
{
    int keep = e->current >= 0 && is_runnable(&e->contexts[e->current]);
    if (keep && e->now_ns < e->slice_end_ns) {
        return e->current;
    }
    int next = next_runnable(e);
    if (next < 0) {
        return -1;
    }
    e->ready_ns = e->now_ns + (next != e->current ? e->switch_ns : 0);
    e->slice_end_ns = e->ready_ns + e->slice_ns;
    e->current = next;
    return next;
}

uint64_t engine_advance(struct engine *e, uint64_t until_ns)
{
    while (e->now_ns < until_ns) {
        int next = next_context(e);
        if (next < 0) {
            pass(e, NULL, until_ns);
            break;
        }
        if (e->now_ns < e->ready_ns) {
            /* The rest of a change-over is kept for the next call: a process that polls advances by microseconds. */
            pass(e, NULL, e->ready_ns < until_ns ? e->ready_ns : until_ns);
            continue;
        }
        struct engine_context *c = &e->contexts[next];
        if (finish_events(e, c)) {
            break;
        }
        int queues[ENGINE_QUEUES], count = running(c, queues);
        if (!count) {
            continue;
        }
        uint64_t to = until_ns, edge = boundary_after(e);
        to = edge < to ? edge : to;
        if (e->slice_end_ns > e->now_ns && e->slice_end_ns < to) {
            to = e->slice_end_ns;
        }
        for (int i = 0; i < count; i++) {
            uint64_t end = e->now_ns + head_of(&c->queues[queues[i]])->left_ns;
            to = end < to ? end : to;
        }
        uint64_t ran = to - e->now_ns;
        pass(e, c, to);
        for (int i = 0; i < count; i++) {
            struct engine_op *op = head_of(&c->queues[queues[i]]);
            op->left_ns -= ran;
            if (!op->left_ns) {
                finish(c, queues[i]);
            }
        }
        /* The kernel that just ended may be the last one that a record waited for; the record gets the current time. */
        if (finish_events(e, c)) {
            break;
        }
    }
    return e->now_ns;
}

int engine_submit(struct engine *e, int context, int queue, struct engine_op op)
{
    struct engine_context *c = &e->contexts[context];
    struct engine_queue *q = &c->queues[queue];
    if (q->tail - q->head >= ENGINE_DEPTH) {
        return 0;
    }
    op.seq = ++c->next_seq;
    if (op.kind == ENGINE_RECORD) {
        op.recording = ++c->events[op.event].submitted;
    }
    if (op.kind == ENGINE_KERNEL && !op.left_ns) {
        op.left_ns = 1;
    }
    q->ops[q->tail++ % ENGINE_DEPTH] = op;
    c->pending++;
    return 1;
}

int engine_is_idle(const struct engine *e, int context, int queue)
{
    const struct engine_context *c = &e->contexts[context];
    return queue < 0 ? !c->pending : c->queues[queue].head == c->queues[queue].tail;
}

uint64_t engine_rest_ns(const struct engine *e, int context)
{
    const struct engine_context *c = &e->contexts[context];
    uint64_t longest = 0;
    for (int i = 0; i < ENGINE_QUEUES; i++) {
        const struct engine_queue *q = &c->queues[i];
        uint64_t sum = 0;
        for (uint32_t n = q->head; n != q->tail; n++) {
            sum += q->ops[n % ENGINE_DEPTH].kind == ENGINE_KERNEL ? q->ops[n % ENGINE_DEPTH].left_ns : 0;
        }
        longest = sum > longest ? sum : longest;
    }
    return longest;
}

unsigned engine_utilisation(const struct engine *e, int context, uint64_t lag_ns, uint64_t *end_ns)
{
    uint64_t seen = e->now_ns > lag_ns ? (e->now_ns - lag_ns) / e->sample_ns : 0;
    uint64_t newest = e->now_ns / e->sample_ns;
    if (seen < 2 || newest - seen >= ENGINE_MARKS - 1) {
        *end_ns = 0;
        return 0;
    }
    const uint64_t *marks = context < 0 ? e->marks : e->contexts[context].marks;
    uint64_t before = marks[(seen - 1) % ENGINE_MARKS], after = marks[seen % ENGINE_MARKS];
    *end_ns = seen * e->sample_ns;
    return after > before ? (unsigned)(((after - before) * 100 + e->sample_ns / 2) / e->sample_ns) : 0;
}

void engine_shape(unsigned sms, uint64_t blocks, unsigned threads, uint64_t block_ns, uint64_t *ns, uint32_t *fraction)
{
    uint64_t side_by_side = threads >= 2048 ? 1 : 2048 / (threads ? threads : 1);
    side_by_side = side_by_side > 32 ? 32 : side_by_side;
    uint64_t wave = side_by_side * (sms ? sms : 1);
    uint64_t used = (blocks + side_by_side - 1) / side_by_side; /* multiprocessors that have work */
    *ns = (blocks + wave - 1) / wave * block_ns;
    *fraction = used >= sms ? ENGINE_WHOLE : (uint32_t)(used * ENGINE_WHOLE / sms);
    *fraction = *fraction ? *fraction : 1;
}
