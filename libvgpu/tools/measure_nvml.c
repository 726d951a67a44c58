/* measure_nvml.c - what NVML reports about processes, and the cost of its calls. */
#include "measure.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ROOM = 256, LISTS = 5, MOST_SEEN = 20000 };

struct entry {
    unsigned pid;
    unsigned long long bytes;
};

struct list {
    const char *name;
    nvmlReturn_t result;
    unsigned count;
    struct entry entries[ROOM];
};

static int find_device(int device, nvmlDevice_t *out)
{
    char uuid[DRIVER_UUID_BYTES];
    if (driver_load() || driver_load_nvml()) {
        return 1;
    }
    nvmlReturn_t found = driver_nvml_device(device, uuid, out);
    return found == NVML_SUCCESS ? 0 : driver_failed("NVML does not know the device", found);
}

static void take(struct list *out, nvmlReturn_t result, const nvmlProcessInfo_t *found, unsigned count)
{
    out->result = result;
    out->count = result == NVML_SUCCESS ? count : 0;
    for (unsigned i = 0; i < out->count; i++) {
        out->entries[i] = (struct entry){found[i].pid, found[i].usedGpuMemory};
    }
}

static void take_v1(nvmlDevice_t device, struct list *out)
{
    nvmlProcessInfo_v1_t found[ROOM];
    unsigned count = ROOM;
    out->result = nvml.compute_v1(device, &count, found);
    out->count = out->result == NVML_SUCCESS ? count : 0;
    for (unsigned i = 0; i < out->count; i++) {
        out->entries[i] = (struct entry){found[i].pid, found[i].usedGpuMemory};
    }
}

static void take_details(nvmlDevice_t device, struct list *out)
{
    nvmlProcessDetail_t found[ROOM];
    nvmlProcessDetailList_t list = {.version = NVML_PROCESS_DETAIL_LIST_V1,
                                    .mode = NVML_PROCESS_MODE_COMPUTE,
                                    .numProcArrayEntries = ROOM,
                                    .procArray = found};
    out->result = nvml.details(device, &list);
    out->count = out->result == NVML_SUCCESS ? list.numProcArrayEntries : 0;
    for (unsigned i = 0; i < out->count; i++) {
        out->entries[i] = (struct entry){found[i].pid, found[i].usedGpuMemory};
    }
}

/* Read every list of processes; drivers have one to three forms of the first one. */
static void take_lists(nvmlDevice_t device, struct list out[LISTS])
{
    static const char *const names[LISTS] = {"compute", "graphics", "mps", "compute_v1", "details"};
    nvmlProcessInfo_t found[ROOM];
    unsigned count = ROOM;
    nvmlReturn_t result = nvml.compute_v3(device, &count, found);
    if (result == NVML_ERROR_FUNCTION_NOT_FOUND) {
        count = ROOM;
        result = nvml.compute_v2(device, &count, found);
    }
    for (int i = 0; i < LISTS; i++) {
        out[i].name = names[i];
    }
    take(&out[0], result, found, count);
    count = ROOM;
    result = nvml.graphics_v3(device, &count, found);
    take(&out[1], result, found, count);
    count = ROOM;
    result = nvml.mps_v3(device, &count, found);
    take(&out[2], result, found, count);
    take_v1(device, &out[3]);
    take_details(device, &out[4]);
}

static void print_lists(const char *name, const struct list lists[LISTS])
{
    printf("\"%s\": {", name);
    for (int i = 0; i < LISTS; i++) {
        printf("%s\"%s\": {\"result\": %d, \"entries\": [", i ? ", " : "", lists[i].name, lists[i].result);
        for (unsigned n = 0; n < lists[i].count; n++) {
            printf("%s[%u, %llu]", n ? ", " : "", lists[i].entries[n].pid, lists[i].entries[n].bytes);
        }
        printf("]}");
    }
    printf("}");
}

static unsigned long long used(nvmlDevice_t device)
{
    nvmlMemory_t memory = {0};
    return nvml.memory(device, &memory) == NVML_SUCCESS ? memory.used : 0;
}

/* Print the PIDs of this process, beginning with the outermost namespace that its /proc shows. */
static void print_pids(void)
{
    char line[256], space[64] = "";
    FILE *status = fopen("/proc/self/status", "r");
    ssize_t length = readlink("/proc/self/ns/pid", space, sizeof space - 1);
    space[length > 0 ? length : 0] = '\0';
    printf("\"pid\": %d, \"space\": \"%s\", \"nspid\": [", (int)getpid(), space);
    while (status && fgets(line, sizeof line, status)) {
        if (!strncmp(line, "NSpid:", 6)) {
            const char *separator = "";
            for (char *rest = NULL, *word = strtok_r(line + 6, " \t\n", &rest); word; word = strtok_r(NULL, " \t\n", &rest)) {
                printf("%s%s", separator, word);
                separator = ", ";
            }
        }
    }
    if (status) {
        fclose(status);
    }
    printf("]");
}

static void print_samples(nvmlDevice_t device)
{
    nvmlProcessUtilizationSample_t samples[ROOM];
    unsigned count = ROOM;
    nvmlReturn_t result = nvml.by_process(device, samples, &count, 0);
    printf("\"samples\": {\"result\": %d, \"entries\": [", result);
    for (unsigned i = 0; result == NVML_SUCCESS && i < count; i++) {
        printf("%s[%u, %u, %llu]", i ? ", " : "", samples[i].pid, samples[i].smUtil, samples[i].timeStamp);
    }
    nvmlProcessUtilizationInfo_t found[ROOM];
    nvmlProcessesUtilizationInfo_t list = {
        .version = NVML_PROCESSES_UTILIZATION_V1, .processSamplesCount = ROOM, .procUtilArray = found};
    result = nvml.by_process_info(device, &list);
    printf("]}, \"samples_info\": {\"result\": %d, \"entries\": [", result);
    for (unsigned i = 0; result == NVML_SUCCESS && i < list.processSamplesCount; i++) {
        printf("%s[%u, %u, %llu]", i ? ", " : "", found[i].pid, found[i].smUtil, found[i].timeStamp);
    }
    unsigned pids[ROOM];
    count = ROOM;
    result = nvml.accounting_pids(device, &count, pids);
    printf("]}, \"accounting\": {\"result\": %d, \"entries\": [", result);
    for (unsigned i = 0; result == NVML_SUCCESS && i < count; i++) {
        printf("%s[%u]", i ? ", " : "", pids[i]);
    }
    printf("]}");
}

/* Print the figures that a process without a context sees, like the agent on the host. */
int measure_lists(struct measurement *m)
{
    static struct list lists[LISTS];
    nvmlDevice_t device;
    if (find_device(m->work.device, &device)) {
        return 1;
    }
    take_lists(device, lists);
    printf("{");
    print_lists("after", lists);
    printf(", ");
    print_samples(device);
    printf("}\n");
    return 0;
}

int measure_who(struct measurement *m)
{
    static struct list before[LISTS], after[LISTS];
    nvmlDevice_t device;
    char version[96] = "", name[128] = "", uuid[DRIVER_UUID_BYTES];
    unsigned current = 0, pending = 0;
    int cuda = 0, sms = 0, major = 0, minor = 0;
    if (find_device(m->work.device, &device)) {
        return 1;
    }
    driver_nvml_device(m->work.device, uuid, &device);
    nvml.driver_version(version, sizeof version);
    nvmlReturn_t mig = nvml.mig_mode(device, &current, &pending);
    cu.cuDeviceGetName(name, sizeof name, m->work.device);
    cu.cuDriverGetVersion(&cuda);
    cu.cuDeviceGetAttribute(&sms, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, m->work.device);
    cu.cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, m->work.device);
    cu.cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, m->work.device);
    unsigned long long used_before = used(device);
    take_lists(device, before);
    if (work_prepare(&m->work)) {
        return 1;
    }
    if (m->gate) {
        work_wait_for_the_others();
    }
    uint64_t began = work_clock_ns(CLOCK_MONOTONIC);
    while (work_clock_ns(CLOCK_MONOTONIC) - began < (uint64_t)(m->number * 1e9)) {
        TRY(work_launch(&m->work, m->work.stream));
        TRY(cu.cuCtxSynchronize());
    }
    unsigned long long used_after = used(device);
    take_lists(device, after);
    printf("{\"driver\": \"%s\", \"cuda\": %d, \"name\": \"%s\", \"uuid\": \"%s\", \"mig\": %s, ", version, cuda, name, uuid,
           mig != NVML_SUCCESS ? "null"
           : current           ? "true"
                               : "false");
    printf("\"multiprocessors\": %d, \"compute_capability\": \"%d.%d\", ", sms, major, minor);
    printf("\"used_before\": %llu, \"used_after\": %llu, ", used_before, used_after);
    print_pids();
    printf(", ");
    print_lists("before", before);
    printf(", ");
    print_lists("after", after);
    printf(", ");
    print_samples(device);
    printf("}\n");
    return 0;
}

static nvmlReturn_t ask(int which, int device_index, nvmlDevice_t device)
{
    nvmlProcessInfo_t list[ROOM];
    nvmlProcessUtilizationSample_t samples[ROOM];
    nvmlMemory_t memory;
    nvmlUtilization_t rates;
    nvmlDevice_t found;
    char uuid[DRIVER_UUID_BYTES];
    unsigned count = ROOM;
    switch (which) {
    case 0:
        nvml.shutdown();
        return nvml.init();
    case 1:
        return driver_nvml_device(device_index, uuid, &found);
    case 2:
        return nvml.compute_v3(device, &count, list);
    case 3:
        return nvml.by_process(device, samples, &count, 0);
    case 4:
        return nvml.memory(device, &memory);
    default:
        return nvml.utilisation(device, &rates);
    }
}

/* Measure NVML's calls in microseconds. The first call of each kind is reported separately, because many processes make only one. */
int measure_nvml(struct measurement *m)
{
    static const char *const names[] = {"init", "by_uuid", "list", "samples", "memory", "rates"};
    enum { KINDS = sizeof names / sizeof names[0], RARELY = 10, MOST = 2000 };
    static double series[MOST];
    nvmlDevice_t device;
    if (find_device(m->work.device, &device)) {
        return 1;
    }
    printf("{");
    for (int which = 0; which < KINDS; which++) {
        unsigned count = (unsigned)(which ? m->number : m->number / RARELY + 1);
        count = count < MOST ? count : MOST;
        for (unsigned i = 0; i < count; i++) {
            uint64_t began = work_clock_ns(CLOCK_MONOTONIC);
            ask(which, m->work.device, device);
            series[i] = (double)(work_clock_ns(CLOCK_MONOTONIC) - began) / 1e3;
        }
        if (!which && find_device(m->work.device, &device)) {
            return 1;
        }
        printf("%s", which ? ", " : "");
        work_print_series(names[which], series, count, 2);
    }
    printf("}\n");
    return 0;
}

struct seen {
    double at_us, wall_us, stamp_us;
    unsigned pid, percent;
};

/* Print every sample once, with the time at which it was first seen, by both clocks, and NVML's figure for the whole device. */
int measure_samples(struct measurement *m)
{
    static struct seen seen[MOST_SEEN];
    static double rates[MOST_SEEN];
    unsigned count = 0, rate_count = 0, looks = 0;
    unsigned long long newest = 0;
    nvmlDevice_t device;
    if (find_device(m->work.device, &device)) {
        return 1;
    }
    if (m->gate) {
        work_wait_for_the_others();
    }
    uint64_t began = work_clock_ns(CLOCK_MONOTONIC), now = began, until = (uint64_t)(m->number * 1e9);
    for (; now - began < until; now = work_clock_ns(CLOCK_MONOTONIC), looks++) {
        nvmlProcessUtilizationSample_t found[ROOM];
        nvmlUtilization_t rate = {0};
        unsigned room = ROOM;
        unsigned long long latest = newest;
        nvmlReturn_t result = nvml.by_process(device, found, &room, newest);
        for (unsigned i = 0; result == NVML_SUCCESS && i < room && count < MOST_SEEN; i++) {
            if (found[i].timeStamp <= newest) {
                continue;
            }
            latest = found[i].timeStamp > latest ? found[i].timeStamp : latest;
            seen[count++] = (struct seen){.at_us = (double)now / 1e3,
                                          .wall_us = (double)work_clock_ns(CLOCK_REALTIME) / 1e3,
                                          .stamp_us = (double)found[i].timeStamp,
                                          .pid = found[i].pid,
                                          .percent = found[i].smUtil};
        }
        newest = latest;
        if (looks % 10 == 0 && rate_count < MOST_SEEN && nvml.utilisation(device, &rate) == NVML_SUCCESS) {
            rates[rate_count++] = rate.gpu;
        }
        work_sleep_ns((uint64_t)(m->every_us * 1e3));
    }
    printf("{\"began_us\": %.0f, \"ended_us\": %.0f, \"looks\": %u, \"samples\": [", (double)began / 1e3, (double)now / 1e3,
           looks);
    for (unsigned i = 0; i < count; i++) {
        printf("%s[%.0f, %.0f, %.0f, %u, %u]", i ? ", " : "", seen[i].at_us, seen[i].wall_us, seen[i].stamp_us, seen[i].pid,
               seen[i].percent);
    }
    printf("], ");
    work_print_series("rates", rates, rate_count, 0);
    printf("}\n");
    return 0;
}

int measure_hold(struct measurement *m)
{
    if (work_prepare(&m->work)) {
        return 1;
    }
    work_wait_for_the_others();
    printf("{\"library\": %s}\n", work_has_library() ? "true" : "false");
    return 0;
}
