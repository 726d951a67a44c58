/* engine.h - the compute engine of one simulated card: what runs when.
 *
 * Pure: a plain struct without pointers, to which time is passed. The simulated driver keeps it in a file that all
 * processes share and passes it the time of day; the limiter's bench keeps it on its heap and passes it any time.
 *
 * What it models of a real card:
 *   contexts     one a process; without MPS two never run at the same moment. They run in timeslices of `slice_ns`, and a
 *                kernel longer than that is preempted. Changing over costs `switch_ns`, in which nothing runs.
 *   queues       a context's streams share a few hardware queues, each first in, first out. Queue 0 is the legacy stream:
 *                it waits for what blocking streams were given before, and they wait for it.
 *   kernels      a time alone on the card and the part of its multiprocessors they fill. Kernels of one context run
 *                side by side while they fit, those of higher priority first.
 *   events       get their time when they reach the head of their queue and their context runs: between two of them
 *                others' timeslices count, as on real cards.
 *   utilisation  time in which a context had something running, noted every `sample_ns`: what NVML will report. With
 *                `look_ns`, the moments at which it ran among those drawn, one in each `look_ns`.
 */
#ifndef FAKE_ENGINE_H
#define FAKE_ENGINE_H

#include <stdint.h>

enum {
    ENGINE_CONTEXTS = 64,
    ENGINE_QUEUES = 9, /* 0 legacy, then blocking ones, then non-blocking ones */
    ENGINE_FIRST_FREE = 6,
    ENGINE_DEPTH = 512, /* of a queue; a full one takes no more, which is where a real launch blocks */
    ENGINE_EVENTS = 4096,
    ENGINE_MARKS = 64,
};

#define ENGINE_WHOLE 1000000u /* all multiprocessors, in parts of a million */

enum engine_kind { ENGINE_KERNEL, ENGINE_RECORD, ENGINE_AWAIT };

struct engine_op {
    uint64_t seq;      /* order within the context */
    uint64_t left_ns;  /* kernels: what is still to run */
    uint32_t fraction; /* kernels: of ENGINE_WHOLE */
    uint32_t event;    /* records and waits */
    uint32_t recording; /* waits: which recording of the event */
    int16_t priority;  /* lower runs first */
    uint8_t kind;
    uint8_t notify; /* records: engine_advance returns here */
};

struct engine_queue {
    uint32_t head, tail; /* ever; entry n lies at n % ENGINE_DEPTH */
    struct engine_op ops[ENGINE_DEPTH];
};

struct engine_event {
    uint64_t at_ns;
    uint32_t submitted, done; /* recordings submitted and finished */
};

struct engine_context {
    int32_t owner; /* 0: free. Any number that means something to the caller */
    uint32_t pending;
    uint64_t next_seq;
    uint64_t busy_ns;             /* ever */
    uint64_t seen_ns;             /* of it what NVML noticed: all, unless it only looks now and then */
    uint64_t marks[ENGINE_MARKS]; /* seen_ns at the last sample boundaries */
    struct engine_queue queues[ENGINE_QUEUES];
    struct engine_event events[ENGINE_EVENTS];
};

struct engine {
    uint64_t now_ns;
    uint64_t slice_ns, switch_ns, sample_ns;
    uint64_t look_ns; /* 0: NVML counts all time; else it looks about this often which context runs */
    uint64_t ready_ns; /* end of the change-over to `current` */
    uint64_t slice_end_ns;
    uint64_t busy_ns, seen_ns;
    uint64_t marks[ENGINE_MARKS];
    int32_t current;     /* context that runs; -1 none */
    uint32_t notified;   /* records with `notify`, ever */
    uint32_t high;       /* contexts at or above were never used */
    struct engine_context contexts[ENGINE_CONTEXTS];
};

/* Initialise an engine at rest. All of it must be zero before. */
void engine_start(struct engine *e, uint64_t now_ns, uint64_t slice_ns, uint64_t switch_ns, uint64_t sample_ns);

/* Create a context for `owner`; -1 if all are taken. Leaving drops all of its pending work. */
int engine_join(struct engine *e, int32_t owner);
void engine_leave(struct engine *e, int context);

/* Run until `until_ns`, or until a record with `notify` is done. Returns the time reached. */
uint64_t engine_advance(struct engine *e, uint64_t until_ns);

/* Append to a queue at the engine's present; 0 if it is full. A record or wait names an event of the context. */
int engine_submit(struct engine *e, int context, int queue, struct engine_op op);

/* Is a queue, or (queue -1) the whole context, out of work? */
int engine_is_idle(const struct engine *e, int context, int queue);

/* When the engine would next change if nothing were submitted: never later than the end of what a
 * context has pending now. A waiter may sleep until then and ask again. */
uint64_t engine_rest_ns(const struct engine *e, int context);

/* Utilisation as NVML shows it at the engine's present with a lag: percent of the last whole sample before
 * now - lag, of a context or (-1) of the card. `end_ns`: when that sample ended; 0 when there is none yet. */
unsigned engine_utilisation(const struct engine *e, int context, uint64_t lag_ns, uint64_t *end_ns);

/* How long a grid runs alone on a card and how much of it is filled: blocks in waves over the multiprocessors, each
 * wave as long as one block. */
void engine_shape(unsigned sms, uint64_t blocks, unsigned threads, uint64_t block_ns, uint64_t *ns, uint32_t *fraction);

#endif
