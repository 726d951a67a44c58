/* missing.h - notes of what a program asked for, in files that the environment names. */
#ifndef FAKE_MISSING_H
#define FAKE_MISSING_H

/* Append a line with a function's name that is not simulated to the file that VGPU_FAKE_MISSING names; without it, nothing. */
void missing(const char *function);

/* Append "name version flags" of a call of cuGetProcAddress to the file that VGPU_FAKE_LOOKUPS names. */
void looked_up(const char *name, int version, unsigned long long flags);

#endif
