/* missing.h - logs of the functions that a program requested, in files that the environment names. */
#ifndef FAKE_MISSING_H
#define FAKE_MISSING_H

/* Append the name of a function that is not simulated to the file that VGPU_FAKE_MISSING names, if it is set. */
void missing(const char *function);

/* Append "name version flags" of a cuGetProcAddress call to the file that VGPU_FAKE_LOOKUPS names, if it is set. */
void looked_up(const char *name, int version, unsigned long long flags);

#endif
