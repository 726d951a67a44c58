/* test_usage.c - how NVML's answers are interpreted, with an NVML that answers as each test wants. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "devices.h"
#include "region.h"
#include "t.h"
#include "usage.h"

#define CARD "GPU-01234567-89ab-cdef-0123-456789abcdef"
#define MIB (UINT64_C(1) << 20)
#define TOTAL (1024 * MIB)
#define ON_HOST 645400u /* this process's PID there */

static struct vgpu_region region;
static struct vgpu_page page;
static struct vgpu_process process;

static nvmlProcessInfo_t listed[200];
static unsigned listed_count;
static nvmlProcessUtilizationSample_t samples[4];
static unsigned samples_count;
static nvmlReturn_t list_result, samples_result;

static nvmlReturn_t init(void)
{
    return NVML_SUCCESS;
}

static nvmlReturn_t by_uuid(const char *uuid, nvmlDevice_t *out)
{
    *out = (nvmlDevice_t)(void *)&region;
    return strcmp(uuid, CARD) ? NVML_ERROR_NOT_FOUND : NVML_SUCCESS;
}

static nvmlReturn_t list(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *out)
{
    unsigned room = *count;
    (void)device;
    *count = listed_count;
    if (list_result != NVML_SUCCESS) {
        return list_result;
    }
    memcpy(out, listed, (room < listed_count ? room : listed_count) * sizeof *out);
    return room < listed_count ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

static nvmlReturn_t use(nvmlDevice_t device, nvmlProcessUtilizationSample_t *out, unsigned *count, unsigned long long since)
{
    (void)device;
    (void)since;
    *count = samples_count;
    memcpy(out, samples, samples_count < 4 ? samples_count * sizeof *out : sizeof samples);
    return samples_result;
}

static nvmlReturn_t memory(nvmlDevice_t device, nvmlMemory_t *out)
{
    (void)device;
    *out = (nvmlMemory_t){.total = TOTAL, .used = 100 * MIB, .free = TOTAL - 100 * MIB};
    return NVML_SUCCESS;
}

static const struct vgpu_nvml nvml_table = {.nvmlInit_v2 = init,
                                            .nvmlDeviceGetHandleByUUID = by_uuid,
                                            .nvmlDeviceGetComputeRunningProcesses_v3 = list,
                                            .nvmlDeviceGetProcessUtilization = use,
                                            .nvmlDeviceGetMemoryInfo = memory};
static const struct vgpu_cuda cuda_table;

static const struct vgpu_nvml *nvml(void)
{
    return &nvml_table;
}

static const struct vgpu_cuda *cuda(void)
{
    return &cuda_table;
}

static struct vgpu_instant now(void)
{
    return vgpu_at(UINT64_C(1000000000000));
}

static int is_dead(uint64_t owner, const struct vgpu_identity *self)
{
    (void)self;
    return owner == 7; /* the third of them, where a test says so */
}

static void log_nothing(const char *text)
{
    (void)text;
}

static const struct vgpu_world world = {.cuda = cuda, .nvml = nvml, .now = now, .is_dead = is_dead, .log = log_nothing};
const struct vgpu_world *vgpu_world = &world;

struct vgpu_region_slot *vgpu_process_slot(struct vgpu_process *p)
{
    return atomic_load(&p->slot);
}

/* Set up two processes in a PID namespace: this one, and a sibling with our parent's PID, so that both exist. */
static struct vgpu_process *fresh(uint32_t host_pid, uint32_t siblings)
{
    memset(&region, 0, sizeof region);
    memset(&page, 0, sizeof page);
    memset(&process, 0, sizeof process);
    listed_count = samples_count = 0;
    list_result = samples_result = NVML_SUCCESS;
    CHECK(vgpu_region_prepare(&region) == 0);
    page.magic = VGPU_PAGE_MAGIC;
    page.abi_version = VGPU_ABI_VERSION;
    page.size = VGPU_PAGE_BYTES;
    page.state = VGPU_PAGE_GRANT;
    page.device_count = 1;
    page.seq = 2;
    strcpy(page.devices[0].uuid, CARD);
    region.slots[0] = (struct vgpu_region_slot){.owner = 5, .pid_namespace = 9, .pid = (uint32_t)getpid(), .host_pid = host_pid};
    region.slots[1] = (struct vgpu_region_slot){.owner = 6, .pid_namespace = 9, .pid = (uint32_t)getppid(), .host_pid = siblings};
    region.slot_high = 2;
    process.page = &page;
    process.region = &region;
    process.self = (struct vgpu_identity){.pid = (uint32_t)getpid(), .pid_namespace = 9};
    process.devices[0].known = 1;
    process.devices[0].column = 0;
    strcpy(process.devices[0].uuid, CARD);
    atomic_store(&process.slot, &region.slots[0]);
    return &process;
}

static void lists(unsigned pid, uint64_t bytes)
{
    listed[listed_count++] = (nvmlProcessInfo_t){.pid = pid, .usedGpuMemory = bytes};
}

static void shows(unsigned pid, unsigned percent)
{
    samples[samples_count++] = (nvmlProcessUtilizationSample_t){.pid = pid, .timeStamp = 10, .smUtil = percent};
}

static struct vgpu_measurement measured(struct vgpu_process *p, int known)
{
    struct vgpu_measurement seen;
    CHECK_EQ(vgpu_usage_measure(p, 0, 1, &seen), known);
    return seen;
}

#define NOT_KNOWN 123

static uint64_t memory_shown(struct vgpu_process *p)
{
    uint64_t bytes;
    return vgpu_usage_memory(p, &p->devices[0], &bytes) ? bytes : NOT_KNOWN;
}

TEST(a_process_finds_itself_under_either_pid)
{
    struct vgpu_process *p = fresh(ON_HOST, 0);
    lists(ON_HOST, 3 * MIB);
    lists(777777, 5 * MIB);
    CHECK_EQ(memory_shown(p), 3 * MIB);
    p = fresh(ON_HOST, 0);
    lists((unsigned)getpid(), 4 * MIB);
    CHECK_EQ(memory_shown(p), 4 * MIB);
    p = fresh(0, 0); /* also without the agent, if all listed processes are visible here */
    lists((unsigned)getpid(), 4 * MIB);
    lists((unsigned)getppid(), 7 * MIB);
    CHECK_EQ(memory_shown(p), 4 * MIB);
}

TEST(a_neighbour_whose_pid_on_the_host_is_ours_here_is_not_us)
{
    struct vgpu_process *p = fresh(ON_HOST, 0);
    lists((unsigned)getpid(), 9 * MIB);
    lists(ON_HOST, 3 * MIB);
    CHECK_EQ(memory_shown(p), 3 * MIB);
    p = fresh(0, 0); /* the agent has not looked yet, so our own entry cannot be told from others */
    lists((unsigned)getpid(), 9 * MIB);
    lists(ON_HOST, 3 * MIB);
    CHECK_EQ(memory_shown(p), NOT_KNOWN);
}

TEST(what_a_driver_cannot_tell_is_not_taken_for_nothing_or_for_everything)
{
    static const uint64_t lies[] = {0, UINT64_MAX, UINT64_MAX / 2, TOTAL + 1};
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        struct vgpu_process *p = fresh(ON_HOST, 0);
        lists(ON_HOST, lies[i]);
        CHECK_EQ(memory_shown(p), NOT_KNOWN);
        lists(ON_HOST, lies[i]); /* the sum of both entries overflows for some */
        CHECK_EQ(memory_shown(p), NOT_KNOWN);
    }
    struct vgpu_process *p = fresh(ON_HOST, 0);
    list_result = NVML_ERROR_UNKNOWN;
    CHECK_EQ(memory_shown(p), NOT_KNOWN);
}

TEST(each_answer_is_judged_anew_as_after_an_upgrade_of_the_driver)
{
    struct vgpu_process *p = fresh(ON_HOST, 0);
    lists(ON_HOST, 3 * MIB);
    CHECK_EQ(memory_shown(p), 3 * MIB);
    listed[0].pid = (unsigned)getpid();
    CHECK_EQ(memory_shown(p), 3 * MIB);
    listed[0].pid = 777777;
    CHECK_EQ(memory_shown(p), NOT_KNOWN);
    listed[0].pid = ON_HOST;
    CHECK_EQ(memory_shown(p), 3 * MIB);
}

TEST(a_container_of_more_processes_than_a_list_is_expected_to_have_finds_itself)
{
    struct vgpu_process *p = fresh(ON_HOST, 0);
    for (unsigned i = 0; i < 150; i++) {
        lists(700000 + i, MIB);
    }
    lists(ON_HOST, 3 * MIB);
    CHECK_EQ(memory_shown(p), 3 * MIB);
}

TEST(samples_may_name_us_by_other_pids_than_the_list)
{
    struct vgpu_process *p = fresh(ON_HOST, ON_HOST + 1);
    lists((unsigned)getpid(), 0);
    shows(ON_HOST, 30);
    shows(ON_HOST + 1, 20);
    struct vgpu_measurement seen = measured(p, 1);
    CHECK_EQ(seen.percent, 50);
    CHECK_EQ(seen.others, 0);
    shows(777777, 10); /* of another container */
    seen = measured(p, 1);
    CHECK_EQ(seen.percent, 50);
    CHECK_EQ(seen.others, 1);
    CHECK_EQ(seen.neighbours, 1);
}

TEST(our_own_samples_under_our_own_pids_are_not_others)
{
    struct vgpu_process *p = fresh(0, 0);
    lists((unsigned)getpid(), 0);
    shows((unsigned)getpid(), 30);
    shows((unsigned)getppid(), 20);
    struct vgpu_measurement seen = measured(p, 1);
    CHECK_EQ(seen.percent, 50);
    CHECK_EQ(seen.others, 0);
    CHECK_EQ(seen.neighbours, 0);
}

TEST(a_list_that_hides_others_does_not_prove_that_there_are_none)
{
    struct vgpu_process *p = fresh(ON_HOST, ON_HOST + 1);
    lists((unsigned)getpid(), 0);
    region.columns[0].bucket.others_ns = now().ns - 1000000000; /* their last sample */
    CHECK_EQ(measured(p, 0).neighbours, 1);
    region.columns[0].bucket.others_ns = 0;
    CHECK_EQ(measured(p, 0).neighbours, 0);
    listed[0].pid = ON_HOST; /* this driver omits no process */
    CHECK_EQ(measured(p, 0).neighbours, 0);
    lists(777777, MIB);
    CHECK_EQ(measured(p, 0).neighbours, 1);
}

TEST(samples_that_name_nobody_we_know_are_of_others_unless_the_agent_says_that_there_are_none)
{
    struct vgpu_process *p = fresh(0, 0);
    shows(777777, 30);
    CHECK_EQ(measured(p, 0).others, 1);
    page.devices[0].alone_until_ns = now().ns + 1;
    CHECK_EQ(measured(p, 0).others, 0);
    CHECK_EQ(measured(p, 0).neighbours, 0);
    page.devices[0].alone_until_ns = now().ns; /* an agent that has stopped */
    CHECK_EQ(measured(p, 0).others, 1);
    samples_result = NVML_ERROR_NOT_SUPPORTED;
    CHECK_EQ(measured(p, 0).others, 1);
}

TEST(a_process_without_a_name_is_waited_for_while_it_lives)
{
    struct vgpu_process *p = fresh(ON_HOST, 0);
    shows(ON_HOST, 30);
    CHECK_EQ(measured(p, 0).others, 1); /* the sibling's samples would be attributed to other containers */
    region.slots[1].owner = 7;
    CHECK_EQ(measured(p, 1).percent, 30);
}

TEST(impossible_samples_count_for_nothing)
{
    struct vgpu_process *p = fresh(ON_HOST, ON_HOST + 1);
    lists(ON_HOST, MIB);
    shows(ON_HOST, UINT32_MAX);
    shows(ON_HOST + 1, 90);
    CHECK_EQ(measured(p, 1).percent, 90);
    shows(ON_HOST, 90);
    CHECK_EQ(measured(p, 1).percent, 100);
    for (unsigned i = 0; i < samples_count; i++) {
        samples[i].timeStamp = 1; /* outdated: as old as the last one that was compared */
    }
    measured(p, 0);
    samples_count = UINT32_MAX;
    measured(p, 0);
}

int main(void)
{
    return t_run();
}
