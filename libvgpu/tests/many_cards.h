/* many_devices.h - a program on several devices, in virtual time, with the library's own pacing of launches and an engine a device.
 *
 * On each device kernels of its own, then one together with the others, which on no device ends before it has begun on all.
 */
#ifndef TESTS_MANY_CARDS_H
#define TESTS_MANY_CARDS_H

#include <stdint.h>

enum { MANY_CARDS = 4 };

struct many_cards {
    unsigned cards;
    unsigned percent[MANY_CARDS];
    uint64_t kernel_ns, together_ns; /* one of each and device is a step ... */
    unsigned kernels; /* ... or so many of the first */
    int threads; /* 1: a thread for each device */
    int processes; /* 1: a process for each device */
    uint64_t lag_ns;
    int blind; /* 1: NVML does not know the program */
};

void many_cards_begin(const struct many_cards *scene);
void many_cards_run(uint64_t until_ns);
void many_cards_end(void);

/* So far. */
uint64_t many_cards_steps(void);
uint64_t many_cards_busy_ns(unsigned card);

#endif
