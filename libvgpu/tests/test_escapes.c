/* test_escapes.c - tries the ways around the preloaded library that docs/limits-evidence.md lists.
 *
 * As in a container, the driver's name leads to the shadow (src/shadow.c). Every way runs in a process of its own.
 */
#include <dlfcn.h>
#include <limits.h>
#include <string.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "stage.h"
#include "t.h"

#define MIB (UINT64_C(1) << 20)
#define LIMIT (64 * MIB)
enum { CONTEXT = 512, PIECE = 1 << 20, FIT = 64, MOST = 200, BOMB = 200 };

typedef int (*way)(size_t piece, int most);

/* Grant a limit and the known cost of contexts, since there is no NVML here to show that they cost nothing. */
static void grant(void)
{
    stage_grant(LIMIT + BOMB * CONTEXT);
    stage_page()->devices[0].context_bytes = CONTEXT;
}

static const char *guest_path(void)
{
    static char path[PATH_MAX];
    ssize_t got = readlink("/proc/self/exe", path, sizeof path - 32);
    path[got > 0 ? got : 0] = '\0';
    char *cut = strrchr(path, '/');
    if (cut) {
        strcpy(cut, "/libguest.so");
    }
    return path;
}

/* Run `work` in a child. Return the number of pieces that it got, or 255 if it did not work. */
static int in_child(int (*work)(void *), void *argument)
{
    int status = 0;
    pid_t child = fork();
    if (child == 0) {
        int got = work(argument);
        _exit(got < 0 || got > MOST ? 255 : got);
    }
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 255;
}

struct attempt {
    const char *name;
    int flags, new_namespace;
};

static int attempt(void *argument)
{
    const struct attempt *how = argument;
    void *guest = how->new_namespace ? dlmopen(LM_ID_NEWLM, guest_path(), how->flags) : dlopen(guest_path(), how->flags);
    way one = guest ? (way)dlsym(guest, how->name) : NULL;
    if (!one) {
        fprintf(stderr, "    %s\n", dlerror());
    }
    return one ? one(PIECE, MOST) : -1;
}

static void check_held(struct attempt how)
{
    grant();
    stage_card_reset_peak();
    CHECK_EQ(in_child(attempt, &how), FIT);
    CHECK_EQ(stage_card_peak(), LIMIT);
}

TEST(a_library_that_is_loaded_plainly_is_held)
{
    check_held((struct attempt){"guest_linked", RTLD_NOW, 0});
    check_held((struct attempt){"guest_looked_up", RTLD_NOW, 0});
    check_held((struct attempt){"guest_replays_cudart", RTLD_NOW, 0});
    check_held((struct attempt){"guest_asks_libc", RTLD_NOW, 0});
}

TEST(rtld_deepbind_does_not_get_past_the_limit)
{
    check_held((struct attempt){"guest_linked", RTLD_NOW | RTLD_DEEPBIND, 0});
    check_held((struct attempt){"guest_looked_up", RTLD_NOW | RTLD_DEEPBIND, 0});
    check_held((struct attempt){"guest_replays_cudart", RTLD_NOW | RTLD_DEEPBIND, 0});
    check_held((struct attempt){"guest_asks_libc", RTLD_NOW | RTLD_DEEPBIND, 0});
}

TEST(a_namespace_of_its_own_does_not_get_past_the_limit)
{
    check_held((struct attempt){"guest_linked", RTLD_NOW, 1});
    check_held((struct attempt){"guest_looked_up", RTLD_NOW, 1});
    check_held((struct attempt){"guest_replays_cudart", RTLD_NOW, 1});
    check_held((struct attempt){"guest_asks_libc", RTLD_NOW, 1});
}

/* Use both in one process: outside and inside a namespace they share one limit. */
static int both(void *argument)
{
    static struct attempt outside = {"guest_linked", RTLD_NOW, 0}, inside = {"guest_linked", RTLD_NOW, 1};
    void *guest = dlopen(guest_path(), RTLD_NOW);
    (void)argument;
    int first = guest ? ((way)dlsym(guest, outside.name))(PIECE, 40) : -1;
    return first == 40 ? first + attempt(&inside) : -1;
}

TEST(two_copies_of_the_library_in_a_process_share_one_limit)
{
    grant();
    stage_card_reset_peak();
    CHECK_EQ(in_child(both, NULL), FIT);
    CHECK_EQ(stage_card_peak(), LIMIT);
}

static int grab(void *argument)
{
    int ready = *(const int *)argument;
    char byte;
    void *guest = dlopen(guest_path(), RTLD_NOW);
    int got = read(ready, &byte, 1) >= 0 && guest ? ((way)dlsym(guest, "guest_linked"))(PIECE, MOST) : -1;
    return got < 0 ? 255 : got;
}

TEST(a_bomb_of_two_hundred_processes_gets_what_one_may_have)
{
    int gate[2], failed = 0;
    pid_t children[BOMB];
    grant();
    stage_card_reset_peak();
    CHECK(pipe(gate) == 0);
    for (int i = 0; i < BOMB; i++) {
        children[i] = fork();
        CHECK(children[i] >= 0);
        if (children[i] == 0) {
            close(gate[1]);
            _exit(grab(&gate[0]));
        }
    }
    close(gate[0]);
    close(gate[1]); /* all of them at once */
    for (int i = 0; i < BOMB; i++) {
        int status = 0;
        waitpid(children[i], &status, 0);
        failed += !WIFEXITED(status) || WEXITSTATUS(status) == 255;
    }
    CHECK_EQ(failed, 0);
    CHECK(stage_card_peak() <= LIMIT && stage_card_peak() > LIMIT / 2);
}

int main(int argc, char **argv)
{
    (void)argc;
    stage_libraries = "tests/box";
    stage_enter(argv, NULL);
    return t_run();
}
