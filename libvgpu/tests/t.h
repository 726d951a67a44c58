/* t.h - a test is a function whose name is a sentence. CHECK ends it if its condition is false.
 *
 *     TEST(a_limit_is_kept) { CHECK(1 + 1 == 2); }
 *     int main(void) { return t_run(); }
 *
 * Tests register themselves and run in the order in which they are written. The program fails if one of them does.
 */
#ifndef VGPU_T_H
#define VGPU_T_H

#include <setjmp.h>
#include <stdio.h>

struct t_test {
    const char *name;
    void (*run)(void);
    struct t_test *next;
};

static struct t_test *t_first, **t_last = &t_first;
static jmp_buf t_out;
static int t_failed;

#define TEST(title)                                                   \
    static void title(void);                                          \
    static struct t_test t_##title = {#title, title, NULL};           \
    __attribute__((constructor)) static void t_register_##title(void) \
    {                                                                 \
        *t_last = &t_##title;                                         \
        t_last = &t_##title.next;                                     \
    }                                                                 \
    static void title(void)

#define CHECK(condition)                                                                \
    do {                                                                                \
        if (!(condition)) {                                                             \
            fprintf(stderr, "    %s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
            longjmp(t_out, 1);                                                          \
        }                                                                               \
    } while (0)

/* Check that two numbers are equal, and print them if not. */
#define CHECK_EQ(got, wanted)                                                                                   \
    do {                                                                                                        \
        unsigned long long t_got = (unsigned long long)(got), t_wanted = (unsigned long long)(wanted);          \
        if (t_got != t_wanted) {                                                                                \
            fprintf(stderr, "    %s:%d: %s is %llu, wanted %llu\n", __FILE__, __LINE__, #got, t_got, t_wanted); \
            longjmp(t_out, 1);                                                                                  \
        }                                                                                                       \
    } while (0)

/* Return 1 if the function ran to its end. */
static int t_passes(void (*run)(void))
{
    if (setjmp(t_out) != 0) {
        return 0;
    }
    run();
    return 1;
}

static int t_run(void)
{
    int count = 0;
    for (struct t_test *test = t_first; test; test = test->next, count++) {
        if (!t_passes(test->run)) {
            fprintf(stderr, "  FAILED %s\n", test->name);
            t_failed++;
        }
    }
    printf("  %d tests, %d failed\n", count, t_failed);
    return t_failed != 0;
}

#endif
