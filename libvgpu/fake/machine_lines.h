/* machine_lines.h - the lines of a machine's file, shared by the files that parse them. */
#ifndef FAKE_MACHINE_LINES_H
#define FAKE_MACHINE_LINES_H

#include "machine.h"

#define MIB (UINT64_C(1) << 20)

struct line {
    char *words[16]; /* words[0] is the keyword; the others key=value or bare */
    int count;
};

/* Parse a whole number within bounds; 0, or -1. */
int machine_number(const char *text, long long low, long long high, long long *out);

/* Read a `card` or a `mig` line into the machine; 0, or -1 with `why` filled. */
int machine_parse_card(struct machine *m, struct line *line, char *why, size_t why_bytes);
int machine_parse_instance(struct machine *m, struct line *line, char *why, size_t why_bytes);

#endif
