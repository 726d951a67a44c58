#include "stage.h"

#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "machine.h"

const char *const stage_uuid[2] = {"GPU-00000000-0000-4000-8000-000000000001", "GPU-00000000-0000-4000-8000-000000000002"};

const char *stage_libraries = "fake", *stage_library = "libvgpu.so", *stage_first;
const char *stage_neighbour;

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

/* Start the program in its own PID namespace, but not as its first process, which signals do not end. */
static void enter_container(char *self, char **argv)
{
    char *words[32] = {"unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--user", "--map-root-user"};
    int count = geteuid() ? 7 : 5;
    words[count++] = "sh";
    words[count++] = "-c";
    words[count++] = "\"$0\" \"$@\"; exit $?";
    words[count++] = self;
    for (int i = 1; argv[i] && count < 31; i++) {
        words[count++] = argv[i];
    }
    execvp("unshare", words);
}

/* Start the neighbour, which waits for a byte. The test has the other end. */
static pid_t start_waiting(char *self)
{
    int gate[2];
    char word[16], byte;
    must(pipe(gate) == 0, "pipe");
    pid_t pid = fork();
    must(pid >= 0, "fork");
    if (pid == 0) {
        close(gate[1]);
        if (read(gate[0], &byte, 1) == 1) {
            execl(self, self, stage_neighbour, (char *)NULL);
        }
        _exit(3);
    }
    close(gate[0]);
    snprintf(word, sizeof word, "%d", gate[1]);
    setenv("STAGE_GATE", word, 1);
    return pid;
}

void stage_start_neighbour(void)
{
    must(write(atoi(getenv("STAGE_GATE")), "", 1) == 1, "neighbour");
}

void stage_enter(char **argv, const char *machine)
{
    char folder[] = "/tmp/vgpu-stage-XXXXXX", path[PATH_MAX + 16], build[PATH_MAX], self[PATH_MAX];
    char *world = getenv("STAGE_WORLD");
    if (getenv("VGPU_STAGE")) {
        return;
    }
    for (char *at = world; at && *at; at++) {
        *at = *at == ' ' ? '\n' : *at;
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
    fprintf(file, "card uuid=%s memory_mib=16384\ncard uuid=%s memory_mib=16384\n%s\n%s\n", stage_uuid[0], stage_uuid[1],
            machine ? machine : "", world ? world : "");
    fclose(file);
    setenv("VGPU_STAGE", folder, 1);
    setenv("VGPU_FAKE_MACHINE", path, 1);
    file_of(folder, "page", VGPU_PAGE_BYTES, path);
    setenv("VGPU_LIMIT_PAGE", path, 1);
    file_of(folder, "region", VGPU_REGION_BYTES, path);
    setenv("VGPU_USAGE_REGION", path, 1);
    snprintf(path, sizeof path, "%s/%s", build, stage_libraries);
    setenv("LD_LIBRARY_PATH", path, 1);

    must(state_open(machine_current()) != NULL, "state"); /* this is the host */
    pid_t neighbour = stage_neighbour ? start_waiting(self) : 0, child = fork();
    must(child >= 0, "fork");
    if (child == 0) {
        /* Only here, because the parent only cleans up. */
        char first[PATH_MAX + 16] = "", preload[2 * (PATH_MAX + 16)];
        if (stage_first) {
            snprintf(first, sizeof first, "%s/%s:", build, stage_first);
        }
        snprintf(preload, sizeof preload, "%s%s/%s", first, build, stage_library);
        setenv("LD_PRELOAD", preload, 1);
        if (world) {
            enter_container(self, argv);
        } else {
            execv(self, argv);
        }
        _exit(3);
    }
    int status = 0;
    waitpid(child, &status, 0);
    if (neighbour) {
        kill(neighbour, SIGKILL);
        waitpid(neighbour, NULL, 0);
    }
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

static const struct state_process *process_of(const struct vgpu_region_slot *slot)
{
    const struct state *s = state_open(machine_current());
    for (uint32_t i = 0; i < s->process_high; i++) {
        const struct state_process *p = &s->processes[i];
        if ((uint32_t)p->pid == slot->pid && p->space == (uint32_t)slot->pid_namespace) {
            return p;
        }
    }
    return NULL;
}

void stage_name_processes(void)
{
    struct vgpu_region *region = stage_region();
    for (uint32_t i = 0; i < region->slot_high; i++) {
        struct vgpu_region_slot *slot = &region->slots[i];
        const struct state_process *p = process_of(slot);
        uint32_t host_pid = p ? state_host_pid(machine_current(), p) : getenv("STAGE_WORLD") ? 0 : slot->pid;
        __atomic_store_n(&slot->host_pid, slot->owner ? host_pid : 0, __ATOMIC_SEQ_CST);
    }
}

void stage_see_memory(void)
{
    struct vgpu_region *region = stage_region();
    for (uint32_t i = 0; i < region->slot_high; i++) {
        struct vgpu_region_slot *slot = &region->slots[i];
        const struct state_process *p = slot->owner ? process_of(slot) : NULL;
        uint64_t memory = slot->used[0] - slot->overhead[0], held = p ? p->used[0] : 0;
        __atomic_store_n(&slot->seen[0], held > memory ? (uint32_t)((held - memory) / VGPU_MANAGED_UNIT) : 0, __ATOMIC_SEQ_CST);
    }
}

unsigned stage_pid_shown(pid_t pid, enum state_call call)
{
    const struct machine *m = machine_current();
    const struct state *s = state_open(m);
    struct stat space;
    for (uint32_t i = 0; i < s->process_high && !stat("/proc/self/ns/pid", &space); i++) {
        const struct state_process *p = &s->processes[i];
        if (p->pid == pid && p->space == (uint32_t)space.st_ino) {
            return state_pid_shown(m, p, call);
        }
    }
    return 0;
}
