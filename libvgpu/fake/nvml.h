/* nvml.h - declarations that the files of the simulated libnvidia-ml share. */
#ifndef FAKE_NVML_H
#define FAKE_NVML_H

#include "machine.h"
#include "state.h"
#include "vgpu_nvml.h"

#define NVML_API __attribute__((visibility("default")))

/* The state between nvmlInit and nvmlShutdown: the machine, and the cards that this process sees. */
struct nvml_session {
    const struct machine *machine;
    struct state *state;
    int visible[MACHINE_MAX_CARDS]; /* NVML index -> card */
    int count;
    char named[MACHINE_MAX_CARDS]; /* instances that the environment names */
    char is_narrow[MACHINE_MAX_CARDS]; /* cards of which only such instances are visible */
};

/* Return the session, or NULL before nvmlInit and after the last nvmlShutdown. */
const struct nvml_session *nvml_session(void);

/* Return the NVML index of a card; -1 if it is not visible. */
int nvml_index_of(const struct nvml_session *s, int card);

/* Return 1 if the card or instance is visible to this process. */
int nvml_is_visible(const struct nvml_session *s, int card);

nvmlDevice_t nvml_handle(int card);

/* Check a handle: sets `*card` and returns NVML_SUCCESS, or the error that a call of `function` on it must return. */
nvmlReturn_t nvml_card_for(const char *function, nvmlDevice_t device, int *card);
#define nvml_card(device, card) nvml_card_for(__func__, device, card)

/* Return the error that a function must return for a card (vgpu-fake-ctl error), or NVML_SUCCESS. */
nvmlReturn_t nvml_fault(const struct nvml_session *s, const char *function, int card);

/* Start a query: check the handle and the output pointers, and define `c` (the description) and `now` (the state). */
#define QUERY(device, out_ok)                                \
    int card = -1;                                           \
    nvmlReturn_t handle_result = nvml_card(device, &card);   \
    if (handle_result != NVML_SUCCESS) {                     \
        return handle_result;                                \
    }                                                        \
    if (!(out_ok)) {                                         \
        return NVML_ERROR_INVALID_ARGUMENT;                  \
    }                                                        \
    const struct nvml_session *s = nvml_session();           \
    const struct machine_card *c = &s->machine->cards[card]; \
    const struct state_card *now = &s->state->cards[card];   \
    (void)c;                                                 \
    (void)now

#endif
