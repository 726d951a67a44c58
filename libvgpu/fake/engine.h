/* engine.h - the compute engine of one simulated card: decides what runs when.
 *
 * It is a plain struct without pointers, and the caller passes the time. The simulated driver keeps it in a file that all
 * processes share and passes the system's time; the limiter's bench keeps it on its heap and passes any time.
 *
 * It models these parts of a real card:
 *   contexts     One for each process; without MPS only one runs at a time. They run in timeslices of `slice_ns`, and a kernel
 *                that takes longer is preempted. A change-over costs `switch_ns`, in which nothing runs.
 *   queues       A context's streams share a few hardware queues, each first in, first out. Queue 0 is the legacy stream:
 *                it waits for what was submitted to blocking streams before, and they wait for it.
 *   kernels      A kernel has a time alone on the card and a part of the multiprocessors that it fills. Kernels of one
 *                context run at the same time while they fit, those of higher priority first.
 *   events       An event gets its time when it reaches the head of its queue and its context runs. The time between two
 *                events includes others' timeslices, as on real cards.
 *   utilisation  The time in which a context had something running, noted every `sample_ns`, which is what NVML reports. With
 *                `look_ns`, one time is drawn in each `look_ns`, and those at which the context ran are counted.
 */
#ifndef FAKE_ENGINE_H
#define FAKE_ENGINE_H

#include <stdint.h>

enum {
    ENGINE_CONTEXTS = 64,
    ENGINE_QUEUES = 9, /* 0 legacy, then blocking ones, then non-blocking ones */
    ENGINE_FIRST_FREE = 6,
    ENGINE_DEPTH = 512, /* of a queue; a full one accepts no more, and a real launch would block */
    ENGINE_EVENTS = 4096,
    ENGINE_MARKS = 64,
};

#define ENGINE_WHOLE 1000000u /* all multiprocessors, in parts of a million */

enum engine_kind { ENGINE_KERNEL, ENGINE_RECORD, ENGINE_AWAIT };

struct engine_op {
    uint64_t seq;      /* order within the context */
    uint64_t left_ns;  /* kernels: the time still to run */
    uint32_t fraction; /* kernels: of ENGINE_WHOLE */
    uint32_t event;    /* records and waits */
    uint32_t recording; /* waits: which recording of the event to wait for */
    int16_t priority;  /* lower runs first */
    uint8_t kind;
    uint8_t notify; /* records: engine_advance returns here */
};

struct engine_queue {
    uint32_t head, tail; /* since the start; entry n is at n % ENGINE_DEPTH */
    struct engine_op ops[ENGINE_DEPTH];
};

struct engine_event {
    uint64_t at_ns;
    uint32_t submitted, done; /* recordings submitted and finished */
};

struct engine_context {
    int32_t owner; /* 0: free; otherwise any number that the caller chooses */
    uint32_t pending;
    uint64_t next_seq;
    uint64_t busy_ns;             /* since the start */
    uint64_t seen_ns;             /* the part that NVML noticed: all of it, unless it only looks from time to time */
    uint64_t marks[ENGINE_MARKS]; /* seen_ns at the last sample boundaries */
    struct engine_queue queues[ENGINE_QUEUES];
    struct engine_event events[ENGINE_EVENTS];
};

struct engine {
    uint64_t now_ns;
    uint64_t slice_ns, switch_ns, sample_ns;
    uint64_t look_ns; /* 0: NVML counts all time; otherwise it checks about this often which context runs */
    uint64_t ready_ns; /* end of the change-over to `current` */
    uint64_t slice_end_ns;
    uint64_t busy_ns, seen_ns;
    uint64_t marks[ENGINE_MARKS];
    int32_t current;     /* context that runs; -1 none */
    uint32_t notified;   /* records with `notify` since the start */
    uint32_t high;       /* contexts from here on were never used */
    struct engine_context contexts[ENGINE_CONTEXTS];
};

/* Initialise an idle engine. The caller has zeroed it. */
void engine_start(struct engine *e, uint64_t now_ns, uint64_t slice_ns, uint64_t switch_ns, uint64_t sample_ns);

/* Create a context for `owner`; return -1 if all are taken. Leaving drops all its pending work. */
int engine_join(struct engine *e, int32_t owner);
void engine_leave(struct engine *e, int context);

/* Run until `until_ns`, or until a record with `notify` is done. Return the time reached. */
uint64_t engine_advance(struct engine *e, uint64_t until_ns);

/* Append to a queue at the engine's current time. Return 0 if the queue is full. A record or wait names an event of the context. */
int engine_submit(struct engine *e, int context, int queue, struct engine_op op);

/* Return 1 if a queue has no work, or, with queue -1, if the whole context has none. */
int engine_is_idle(const struct engine *e, int context, int queue);

/* Return after how long the engine can next change if nothing is submitted. This is never later than the end of a context's
 * pending work. A waiter may sleep for that long and ask again. */
uint64_t engine_rest_ns(const struct engine *e, int context);

/* Return the utilisation that NVML shows now, in percent, of a context or (-1) of the card: that of the last whole sample
 * before now - lag. `end_ns` becomes the end of that sample, or 0 if there is none yet. */
unsigned engine_utilisation(const struct engine *e, int context, uint64_t lag_ns, uint64_t *end_ns);

/* Compute how long a grid runs alone on a card, and how much of the card it fills. Blocks run in waves over the
 * multiprocessors, and each wave takes as long as one block. */
void engine_shape(unsigned sms, uint64_t blocks, unsigned threads, uint64_t block_ns, uint64_t *ns, uint32_t *fraction);

#endif
