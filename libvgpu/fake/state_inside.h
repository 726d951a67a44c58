/* state_inside.h - declarations for the files that implement the shared state. Except for `state_enter`, the lock must be held. */
#ifndef FAKE_STATE_INSIDE_H
#define FAKE_STATE_INSIDE_H

#include "state.h"

/* Take the lock of the state, which all threads and processes share. Return NULL if its file cannot be used. */
struct state *state_enter(const struct machine *m);
void state_leave(void);

/* Return the open file, which is also used for other locks. */
int state_descriptor(void);

/* Return the record of this process, creating it if necessary, or NULL if there is no room. A record that the same process
 * left before an exec is cleared. */
struct state_process *state_mine(struct state *s);

/* Return the low bits of the inode of the caller's PID namespace. A PID has no meaning in another namespace. */
uint32_t state_own_space(void);

/* Return 1 if the process of a record is still running. */
int state_is_alive(const struct state *s, const struct state_process *p);

/* Forget the cached record in a forked child, because it is the parent's. */
void state_forget_mine(void);

/* Clear the records of processes that no longer exist, and remove what only they had open. */
void state_clear(struct state *s);

/* Return how many bytes of a card the cgroup limits leave the calling process, or UINT64_MAX if it has none. */
uint64_t state_limit_left(struct state *s, int card);

/* Remove a share that no live process has open. */
void state_drop_unused(struct state *s, int number);

#endif
