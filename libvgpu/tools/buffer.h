/* buffer.h - device memory that a program has allocated, by whichever call, until it frees all of it. */
#ifndef TOOLS_BUFFER_H
#define TOOLS_BUFFER_H

#include <stdint.h>

#include "driver.h"

enum { BUFFER_GRAIN = 512 };

enum buffer_kind {
    BUFFER_LINEAR,
    BUFFER_MANAGED,
    BUFFER_ASYNC,
    BUFFER_PITCH,
    BUFFER_POOL,     /* stream-ordered, in a pool of the program's own */
    BUFFER_PHYSICAL, /* cuMemCreate, mapped nowhere */
    BUFFER_ARRAY,
};

/* The kind that a word of the command line requests; 0 for any other word. */
int buffer_kind_named(const char *word, enum buffer_kind *out);

/* Of the current context, which is the device's. At least `bytes`: arrays and physical memory have coarse grains. */
CUresult buffer_take(enum buffer_kind kind, int device, uint64_t bytes);

size_t buffer_count(void);

/* Return success or the last failure. Nothing is held afterwards. */
CUresult buffer_release_all(void);

#endif
