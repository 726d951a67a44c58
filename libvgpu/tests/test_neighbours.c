/* No NVML function that lists processes, their use or their memory reports anything about a neighbour.
 *
 * The neighbour is a process without the library, as a process of another container is to us. It first checks that the driver
 * shows both of us.
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "stage.h"
#include "t.h"
#include "work.h"

#define MIB (UINT64_C(1) << 20)
#define WHOLE (108 * 8)
#define LIMIT (1024 * MIB)
#define OURS (256 * MIB)
#define THEIRS (2048 * MIB)

CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t bytes);
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t, unsigned *, nvmlProcessInfo_t *);
nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses(nvmlDevice_t, unsigned *, nvmlProcessInfo_v1_t *);
nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v2(nvmlDevice_t, unsigned *, nvmlProcessInfo_t *);
nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t, unsigned *, nvmlProcessInfo_t *);
nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses(nvmlDevice_t, unsigned *, nvmlProcessInfo_v1_t *);
nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v2(nvmlDevice_t, unsigned *, nvmlProcessInfo_t *);
nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t, unsigned *, nvmlProcessInfo_t *);
nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t, nvmlProcessDetailList_t *);
nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t, nvmlProcessesUtilizationInfo_t *);
nvmlReturn_t nvmlDeviceGetAccountingPids(nvmlDevice_t, unsigned *, unsigned *);
nvmlReturn_t nvmlDeviceGetAccountingStats(nvmlDevice_t, unsigned, nvmlAccountingStats_t *);
nvmlReturn_t nvmlDeviceClearAccountingPids(nvmlDevice_t);
nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t, nvmlBAR1Memory_t *);
nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t, int, nvmlFieldValue_t *);

typedef nvmlReturn_t (*first_list)(nvmlDevice_t, unsigned *, nvmlProcessInfo_v1_t *);
typedef nvmlReturn_t (*later_list)(nvmlDevice_t, unsigned *, nvmlProcessInfo_t *);

static const first_list first_lists[] = {nvmlDeviceGetGraphicsRunningProcesses, nvmlDeviceGetMPSComputeRunningProcesses};
static const later_list later_lists[] = {nvmlDeviceGetComputeRunningProcesses_v3, nvmlDeviceGetGraphicsRunningProcesses_v2,
                                         nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlDeviceGetMPSComputeRunningProcesses_v2,
                                         nvmlDeviceGetMPSComputeRunningProcesses_v3};
enum { FIRST_LISTS = 2, LATER_LISTS = 5, MOST = 8 };

static nvmlDevice_t device;
static pid_t neighbour;

/* Return 1 if the memory that a caller passed contains this number anywhere. */
static int holds(const void *memory, size_t bytes, unsigned number)
{
    for (size_t i = 0; i + sizeof number <= bytes; i += sizeof number) {
        unsigned word;
        memcpy(&word, (const char *)memory + i, sizeof word);
        if (word == number) {
            return 1;
        }
    }
    return 0;
}

static unsigned running(void)
{
    nvmlProcessUtilizationSample_t samples[MOST];
    unsigned count = MOST;
    return nvmlDeviceGetProcessUtilization(device, samples, &count, 0) == NVML_SUCCESS ? count : 0;
}

/* Check, in the neighbour, that every list contains both of us. */
static int sees_both(unsigned other)
{
    nvmlProcessDetail_t details[MOST] = {0};
    nvmlProcessUtilizationInfo_t uses[MOST] = {0};
    unsigned pids[MOST] = {0}, count, both = 1, accounted = stage_pid_shown((pid_t)other, STATE_ACCOUNTING);
    for (int i = 0; i < FIRST_LISTS; i++) {
        nvmlProcessInfo_v1_t list[MOST] = {0};
        count = MOST;
        both = both && first_lists[i](device, &count, list) == NVML_SUCCESS && count == 2;
    }
    for (int i = 0; i < LATER_LISTS; i++) {
        nvmlProcessInfo_t list[MOST] = {0};
        count = MOST;
        both = both && later_lists[i](device, &count, list) == NVML_SUCCESS && count == 2 &&
               holds(list, sizeof list, stage_pid_shown((pid_t)other, STATE_LIST));
    }
    for (unsigned mode = NVML_PROCESS_MODE_COMPUTE; mode <= NVML_PROCESS_MODE_ALL; mode++) {
        nvmlProcessDetailList_t list = {NVML_PROCESS_DETAIL_LIST_V1, mode, MOST, details};
        both = both && nvmlDeviceGetRunningProcessDetailList(device, &list) == NVML_SUCCESS && list.numProcArrayEntries == 2;
    }
    nvmlProcessesUtilizationInfo_t list = {NVML_PROCESSES_UTILIZATION_V1, MOST, 0, uses};
    both = both && nvmlDeviceGetProcessesUtilizationInfo(device, &list) == NVML_SUCCESS && list.processSamplesCount == 2;
    count = MOST;
    both = both && nvmlDeviceGetAccountingPids(device, &count, pids) == NVML_SUCCESS && count == 2 &&
           holds(pids, sizeof pids, accounted);
    nvmlAccountingStats_t stats;
    nvmlBAR1Memory_t window;
    return both && nvmlDeviceGetAccountingStats(device, accounted, &stats) == NVML_SUCCESS &&
           nvmlDeviceGetBAR1MemoryInfo(device, &window) == NVML_SUCCESS && window.bar1Used == OURS + THEIRS;
}

static int be_the_neighbour(unsigned other)
{
    CUdeviceptr memory;
    work_begin();
    if (nvmlInit_v2() || nvmlDeviceGetHandleByIndex_v2(0, &device) || cuMemAlloc_v2(&memory, THEIRS)) {
        return 2;
    }
    for (;;) {
        work_launch(work_kernel("busy_5ms"), WHOLE, NULL);
        cuCtxSynchronize();
        if (sees_both(other)) {
            raise(SIGSTOP); /* both were seen; continue after SIGCONT */
        }
    }
}

static void start_neighbour(void)
{
    char word[16];
    int status;
    snprintf(word, sizeof word, "%d", (int)getpid());
    unsetenv("LD_PRELOAD");
    neighbour = work_start_worker(word);
    while (waitpid(neighbour, &status, WUNTRACED | WNOHANG) == 0) {
        work_launch(work_kernel("busy_5ms"), WHOLE, NULL);
        cuCtxSynchronize();
    }
    kill(neighbour, SIGCONT);
    if (!WIFSTOPPED(status)) {
        fprintf(stderr, "the neighbour ended: %d\n", status);
        exit(3);
    }
}

TEST(lists_of_processes_have_our_own_alone)
{
    for (int i = 0; i < FIRST_LISTS; i++) {
        nvmlProcessInfo_v1_t list[MOST] = {0};
        unsigned count = MOST;
        CHECK_EQ(first_lists[i](device, &count, list), NVML_SUCCESS);
        CHECK_EQ(count, 1);
        CHECK_EQ(list[0].pid, getpid());
        CHECK(!holds(list, sizeof list, (unsigned)neighbour));
    }
    for (int i = 0; i < LATER_LISTS; i++) {
        nvmlProcessInfo_t list[MOST] = {0};
        unsigned count = 0;
        CHECK_EQ(later_lists[i](device, &count, NULL), NVML_ERROR_INSUFFICIENT_SIZE);
        CHECK_EQ(count, 1); /* not even how many others there are */
        count = MOST;
        CHECK_EQ(later_lists[i](device, &count, list), NVML_SUCCESS);
        CHECK_EQ(count, 1);
        CHECK_EQ(list[0].pid, getpid());
        CHECK_EQ(list[0].usedGpuMemory, OURS);
        CHECK(!holds(list, sizeof list, (unsigned)neighbour));
    }
}

TEST(details_of_processes_are_our_own_in_every_mode)
{
    for (unsigned mode = NVML_PROCESS_MODE_COMPUTE; mode <= NVML_PROCESS_MODE_ALL; mode++) {
        nvmlProcessDetail_t details[MOST] = {0};
        nvmlProcessDetailList_t list = {NVML_PROCESS_DETAIL_LIST_V1, mode, 0, NULL};
        CHECK_EQ(nvmlDeviceGetRunningProcessDetailList(device, &list), NVML_ERROR_INSUFFICIENT_SIZE);
        CHECK_EQ(list.numProcArrayEntries, 1);
        list = (nvmlProcessDetailList_t){NVML_PROCESS_DETAIL_LIST_V1, mode, MOST, details};
        CHECK_EQ(nvmlDeviceGetRunningProcessDetailList(device, &list), NVML_SUCCESS);
        CHECK_EQ(list.numProcArrayEntries, 1);
        CHECK_EQ(details[0].pid, getpid());
        CHECK_EQ(details[0].usedGpuMemory, OURS);
        CHECK(!holds(details, sizeof details, (unsigned)neighbour));
    }
    nvmlProcessDetailList_t wrong = {.version = 7, .mode = NVML_PROCESS_MODE_ALL};
    CHECK_EQ(nvmlDeviceGetRunningProcessDetailList(device, &wrong), NVML_ERROR_INVALID_ARGUMENT);
}

TEST(use_by_process_is_our_own)
{
    nvmlProcessUtilizationInfo_t uses[MOST] = {0};
    nvmlProcessUtilizationSample_t samples[MOST] = {0};
    nvmlProcessesUtilizationInfo_t list = {NVML_PROCESSES_UTILIZATION_V1, 0, 0, NULL};
    while (!running()) {
        work_launch(work_kernel("busy_5ms"), WHOLE, NULL);
        cuCtxSynchronize();
    }
    CHECK_EQ(nvmlDeviceGetProcessesUtilizationInfo(device, &list), NVML_ERROR_INSUFFICIENT_SIZE);
    CHECK_EQ(list.processSamplesCount, 1);
    list.processSamplesCount = MOST;
    list.procUtilArray = uses;
    CHECK_EQ(nvmlDeviceGetProcessesUtilizationInfo(device, &list), NVML_SUCCESS);
    CHECK_EQ(list.processSamplesCount, 1);
    CHECK_EQ(uses[0].pid, getpid());
    CHECK(uses[0].smUtil > 0 && !holds(uses, sizeof uses, (unsigned)neighbour));
    list.version = 7;
    CHECK_EQ(nvmlDeviceGetProcessesUtilizationInfo(device, &list), NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    unsigned count = MOST;
    CHECK_EQ(nvmlDeviceGetProcessUtilization(device, samples, &count, 0), NVML_SUCCESS);
    CHECK_EQ(count, 1);
    CHECK(!holds(samples, sizeof samples, (unsigned)neighbour));
}

TEST(accounting_lists_no_other_process_and_cannot_be_cleared)
{
    unsigned pids[MOST] = {0}, count = 0;
    nvmlAccountingStats_t stats;
    CHECK_EQ(nvmlDeviceGetAccountingPids(device, &count, NULL), NVML_ERROR_INSUFFICIENT_SIZE);
    CHECK_EQ(count, 1);
    count = MOST;
    CHECK_EQ(nvmlDeviceGetAccountingPids(device, &count, pids), NVML_SUCCESS);
    CHECK_EQ(count, 1);
    CHECK_EQ(pids[0], getpid());
    CHECK_EQ(nvmlDeviceGetAccountingStats(device, (unsigned)getpid(), &stats), NVML_SUCCESS);
    CHECK_EQ(stats.maxMemoryUsage, OURS);
    CHECK_EQ(nvmlDeviceGetAccountingStats(device, (unsigned)neighbour, &stats), NVML_ERROR_NOT_FOUND);
    CHECK_EQ(nvmlDeviceClearAccountingPids(device), NVML_ERROR_NO_PERMISSION);
}

TEST(the_window_and_counters_of_the_device_tell_nothing_of_others)
{
    enum { MEMORY_TEMP = 82, POWER = 186 };
    nvmlBAR1Memory_t window;
    nvmlFieldValue_t values[] = {{.fieldId = MEMORY_TEMP}, {.fieldId = NVML_FI_PCIE_BYTES_FIRST}, {.fieldId = POWER}};
    CHECK_EQ(nvmlDeviceGetBAR1MemoryInfo(device, &window), NVML_SUCCESS);
    CHECK_EQ(window.bar1Used, OURS);
    CHECK_EQ(window.bar1Free, window.bar1Total - OURS);
    CHECK_EQ(nvmlDeviceGetFieldValues(device, 3, values), NVML_SUCCESS);
    CHECK_EQ(values[0].nvmlReturn, NVML_SUCCESS);
    CHECK_EQ(values[1].nvmlReturn, NVML_ERROR_NOT_SUPPORTED);
    CHECK_EQ(values[1].value.ullVal, 0);
    CHECK_EQ(values[2].nvmlReturn, NVML_SUCCESS);
}

int main(int argc, char **argv)
{
    CUdeviceptr memory;
    stage_enter(argv, "mps=1\ndraws=1");
    if (argc > 1) {
        return be_the_neighbour((unsigned)atoi(argv[1]));
    }
    stage_grant(LIMIT);
    work_begin();
    if (nvmlInit_v2() || nvmlDeviceGetHandleByIndex_v2(0, &device) || cuMemAlloc_v2(&memory, OURS)) {
        return 3;
    }
    stage_name_processes();
    start_neighbour();
    int failed = t_run();
    kill(neighbour, SIGKILL);
    return failed;
}
