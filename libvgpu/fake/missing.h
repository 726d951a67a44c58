/* missing.h - a note of what a program asked for that is not simulated. */
#ifndef FAKE_MISSING_H
#define FAKE_MISSING_H

/* Append a line with the function's name to the file that VGPU_FAKE_MISSING names; without it, nothing. */
void missing(const char *function);

#endif
