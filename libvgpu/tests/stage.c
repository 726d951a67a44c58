#include "stage.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "machine.h"
#include "state.h"

const char *const stage_uuid[2] = {"GPU-00000000-0000-4000-8000-000000000001", "GPU-00000000-0000-4000-8000-000000000002"};

const char *stage_libraries = "fake", *stage_library = "libvgpu.so", *stage_first;

static void must(int ok, const char *what)
{
    if (!ok) {
        perror(what);
        exit(3);
    }
}

static void file_of(const char *folder, const char *name, size_t bytes, char path[PATH_MAX + 16])
{
    snprintf(path, PATH_MAX + 16, "%s/%s", folder, name);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    must(fd >= 0 && ftruncate(fd, (off_t)bytes) == 0, path);
    close(fd);
}

void stage_enter(char **argv, const char *machine)
{
    char folder[] = "/tmp/vgpu-stage-XXXXXX", path[PATH_MAX + 16], build[PATH_MAX], self[PATH_MAX];
    if (getenv("VGPU_STAGE")) {
        return;
    }
    must(mkdtemp(folder) != NULL, "mkdtemp");
    ssize_t got = readlink("/proc/self/exe", self, sizeof self - 1);
    must(got > 0, "readlink");
    self[got] = '\0';
    char *cut = strstr(self, "/tests/"); /* build/tests/x -> build */
    must(cut != NULL, self);
    snprintf(build, sizeof build, "%.*s", (int)(cut - self), self);

    snprintf(path, sizeof path, "%s/machine", folder);
    FILE *file = fopen(path, "w");
    must(file != NULL, path);
    fprintf(file, "card uuid=%s memory_mib=16384\ncard uuid=%s memory_mib=16384\n%s\n", stage_uuid[0], stage_uuid[1],
            machine ? machine : "");
    fclose(file);
    setenv("VGPU_STAGE", folder, 1);
    setenv("VGPU_FAKE_MACHINE", path, 1);
    file_of(folder, "page", VGPU_PAGE_BYTES, path);
    setenv("VGPU_LIMIT_PAGE", path, 1);
    file_of(folder, "region", VGPU_REGION_BYTES, path);
    setenv("VGPU_USAGE_REGION", path, 1);
    snprintf(path, sizeof path, "%s/%s", build, stage_libraries);
    setenv("LD_LIBRARY_PATH", path, 1);

    pid_t child = fork();
    must(child >= 0, "fork");
    if (child == 0) {
        /* Only here: the parent, which cleans up, is not our subject. */
        char first[PATH_MAX + 16] = "", preload[2 * (PATH_MAX + 16)];
        if (stage_first) {
            snprintf(first, sizeof first, "%s/%s:", build, stage_first);
        }
        snprintf(preload, sizeof preload, "%s%s/%s", first, build, stage_library);
        setenv("LD_PRELOAD", preload, 1);
        execv(self, argv);
        _exit(3);
    }
    int status = 0;
    waitpid(child, &status, 0);
    static const char *const names[] = {"machine", "machine.state", "machine.engine", "page", "region", "time"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        unlink(path);
    }
    rmdir(folder);
    exit(WIFEXITED(status) ? WEXITSTATUS(status) : 4);
}

static void *mapped(const char *variable, size_t bytes)
{
    int fd = open(getenv(variable), O_RDWR | O_CLOEXEC);
    must(fd >= 0, variable);
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    must(at != MAP_FAILED, variable);
    close(fd);
    return at;
}

struct vgpu_page *stage_page(void)
{
    static struct vgpu_page *page;
    return page ? page : (page = mapped("VGPU_LIMIT_PAGE", VGPU_PAGE_BYTES));
}

struct vgpu_region *stage_region(void)
{
    static struct vgpu_region *region;
    return region ? region : (region = mapped("VGPU_USAGE_REGION", VGPU_REGION_BYTES));
}

static void open_page(struct vgpu_page *page)
{
    __atomic_store_n(&page->seq, (page->seq | 1) + (page->seq & 1 ? 2 : 0), __ATOMIC_SEQ_CST);
}

static void close_page(struct vgpu_page *page)
{
    page->epoch++;
    __atomic_store_n(&page->seq, page->seq + 1, __ATOMIC_SEQ_CST);
}

void stage_grant(uint64_t limit_bytes)
{
    struct vgpu_page *page = stage_page();
    open_page(page);
    page->magic = VGPU_PAGE_MAGIC;
    page->abi_version = VGPU_ABI_VERSION;
    page->size = VGPU_PAGE_BYTES;
    page->state = VGPU_PAGE_GRANT;
    page->device_count = 1;
    memset(&page->devices[0], 0, sizeof page->devices[0]);
    snprintf(page->devices[0].uuid, VGPU_UUID_BYTES, "%s", stage_uuid[0]);
    page->devices[0].memory_limit_bytes = limit_bytes;
    close_page(page);
}

void stage_state(enum vgpu_page_state state)
{
    struct vgpu_page *page = stage_page();
    open_page(page);
    page->state = state;
    close_page(page);
}

uint64_t stage_ledger_sum(void)
{
    const struct vgpu_region *region = stage_region();
    uint64_t sum = 0;
    for (uint32_t i = 0; i < region->slot_high; i++) {
        sum += region->slots[i].used[0];
    }
    return sum;
}

uint64_t stage_card_used(void)
{
    return state_used(machine_current(), 0);
}

uint64_t stage_card_peak(void)
{
    return state_open(machine_current())->cards[0].peak_bytes;
}

static void forget_peak(struct state *s, void *argument)
{
    (void)argument;
    s->cards[0].peak_bytes = 0;
}

void stage_card_reset_peak(void)
{
    state_change(machine_current(), forget_peak, NULL);
}
