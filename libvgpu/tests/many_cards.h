/* many_cards.h - a program on several devices in virtual time, with the library's own throttle and one engine for each
 * device.
 *
 * In each step the program runs kernels on every device separately, and then one kernel on all of them that ends on no device
 * before it has begun on all.
 */
#ifndef TESTS_MANY_CARDS_H
#define TESTS_MANY_CARDS_H

#include <stdint.h>

enum { MANY_CARDS = 4 };

struct many_cards {
    unsigned cards;
    unsigned percent[MANY_CARDS];
    uint64_t kernel_ns, together_ns; /* a step has kernels of the first length and one of the second on each device */
    unsigned kernels; /* number of kernels of the first length in a step */
    int threads; /* 1: a thread for each device */
    int processes; /* 1: a process for each device */
    uint64_t lag_ns;
    int blind; /* 1: NVML does not know the program */
};

void many_cards_begin(const struct many_cards *scene);
void many_cards_run(uint64_t until_ns);
void many_cards_end(void);

/* Return how many steps were made so far. */
uint64_t many_cards_steps(void);
uint64_t many_cards_busy_ns(unsigned card);

#endif
