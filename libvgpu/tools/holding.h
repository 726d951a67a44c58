/* holding.h - device memory that a program has taken, by whichever call, until it gives it all back. */
#ifndef TOOLS_HOLDING_H
#define TOOLS_HOLDING_H

#include <stdint.h>

#include "driver.h"

enum { HOLDING_GRAIN = 512 };

enum holding_kind {
    HOLDING_LINEAR,
    HOLDING_MANAGED,
    HOLDING_ASYNC,
    HOLDING_PITCH,
    HOLDING_POOL,     /* stream-ordered, in a pool of the program's own */
    HOLDING_PHYSICAL, /* cuMemCreate, mapped nowhere */
    HOLDING_ARRAY,
};

/* The kind that a word of the command line asks for; 0 when it is another word. */
int holding_kind_named(const char *word, enum holding_kind *out);

/* Of the current context, which is the device's. At least `bytes`: arrays and physical memory have coarse grains. */
CUresult holding_take(enum holding_kind kind, int device, uint64_t bytes);

size_t holding_count(void);

/* Success, or the last failure. Nothing is held any more. */
CUresult holding_release_all(void);

#endif
