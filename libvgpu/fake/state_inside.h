/* state_inside.h - the shared state, as the files that keep it share it. All but `state_enter` wants the lock held. */
#ifndef FAKE_STATE_INSIDE_H
#define FAKE_STATE_INSIDE_H

#include "state.h"

/* Take the lock of the state, shared by all threads and processes; NULL if its file cannot be used. */
struct state *state_enter(const struct machine *m);
void state_leave(void);

/* The open file, which other locks use, too. */
int state_descriptor(void);

/* The record of this process, made where it has none; NULL when there is no room. A record of the same process from
 * before an exec is emptied. */
struct state_process *state_mine(struct state *s);

/* Low bits of the inode of the caller's PID namespace: in another namespace its PIDs have no meaning. */
uint32_t state_own_space(void);

/* Return 1 while the process of a record runs. */
int state_is_alive(const struct state *s, const struct state_process *p);

/* In a forked child: the cached record is the parent's. */
void state_forget_mine(void);

/* Empty the records of processes that no longer exist, and drop what only they had open. */
void state_clear(struct state *s);

/* Bytes of a card that the cgroup limits of the calling process leave it; UINT64_MAX if it has none. */
uint64_t state_limit_left(struct state *s, int card);

/* A share disappears when no living process has it open. */
void state_drop_unused(struct state *s, int number);

#endif
