/* buffer.h - device memory that a program allocates by any of several calls and frees all at once. */
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

/* Store the kind that a command-line argument names. Return 0 for any other argument. */
int buffer_kind_named(const char *word, enum buffer_kind *out);

/* Allocate at least `bytes` in the current context, which is the device's. Arrays and physical memory are rounded up. */
CUresult buffer_take(enum buffer_kind kind, int device, uint64_t bytes);

size_t buffer_count(void);

/* Free everything. Return success or the last failure. */
CUresult buffer_release_all(void);

#endif
