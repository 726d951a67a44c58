/* vgpu_nvml.h - the part of NVML that this project uses; our own minimal declarations of its ABI. */
#ifndef VGPU_NVML_H
#define VGPU_NVML_H

#include <stdint.h>

typedef int nvmlReturn_t;
enum {
    NVML_SUCCESS = 0,
    NVML_ERROR_UNINITIALIZED = 1,
    NVML_ERROR_INVALID_ARGUMENT = 2,
    NVML_ERROR_NOT_SUPPORTED = 3,
    NVML_ERROR_NO_PERMISSION = 4,
    NVML_ERROR_NOT_FOUND = 6,
    NVML_ERROR_INSUFFICIENT_SIZE = 7,
    NVML_ERROR_DRIVER_NOT_LOADED = 9,
    NVML_ERROR_TIMEOUT = 10,
    NVML_ERROR_LIBRARY_NOT_FOUND = 12,
    NVML_ERROR_FUNCTION_NOT_FOUND = 13,
    NVML_ERROR_GPU_IS_LOST = 15,
    NVML_ERROR_IN_USE = 19,
    NVML_ERROR_MEMORY = 20,
    NVML_ERROR_INSUFFICIENT_RESOURCES = 23,
    NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25,
    NVML_ERROR_UNKNOWN = 999,
};

enum { NVML_AFFINITY_SCOPE_NODE = 0, NVML_AFFINITY_SCOPE_SOCKET = 1 };

typedef struct nvmlDevice_st *nvmlDevice_t;
typedef struct nvmlEventSet_st *nvmlEventSet_t;

typedef struct {
    unsigned long long total, free, used; /* bytes */
} nvmlMemory_t;

typedef struct {
    unsigned int version; /* NVML_MEMORY_V2 */
    unsigned long long total, reserved, free, used;
} nvmlMemory_v2_t;
#define NVML_MEMORY_V2 (sizeof(nvmlMemory_v2_t) | (2u << 24))

typedef struct {
    char busIdLegacy[16]; /* domain:bus:device.function with a domain of 4 digits */
    unsigned int domain, bus, device;
    unsigned int pciDeviceId, pciSubSystemId;
    char busId[32]; /* with a domain of 8 digits */
} nvmlPciInfo_t;

typedef struct {
    unsigned int gpu, memory; /* percent */
} nvmlUtilization_t;

typedef struct {
    unsigned int pid;
    unsigned long long usedGpuMemory; /* bytes */
    unsigned int gpuInstanceId, computeInstanceId;
} nvmlProcessInfo_t;

typedef struct {
    unsigned int pid;
    unsigned long long timeStamp;                 /* microseconds: when the sample was taken */
    unsigned int smUtil, memUtil, encUtil, decUtil; /* percent */
} nvmlProcessUtilizationSample_t;

/* An entry of the first version of the process lists. */
typedef struct {
    unsigned int pid;
    unsigned long long usedGpuMemory;
} nvmlProcessInfo_v1_t;

/* The same as a versioned list. */
typedef struct {
    unsigned long long timeStamp; /* microseconds */
    unsigned int pid, smUtil, memUtil, encUtil, decUtil, jpgUtil, ofaUtil;
} nvmlProcessUtilizationInfo_t;

typedef struct {
    unsigned int version; /* NVML_PROCESSES_UTILIZATION_V1 */
    unsigned int processSamplesCount;
    unsigned long long lastSeenTimeStamp;
    nvmlProcessUtilizationInfo_t *procUtilArray;
} nvmlProcessesUtilizationInfo_t;
#define NVML_PROCESSES_UTILIZATION_V1 (sizeof(nvmlProcessesUtilizationInfo_t) | (1u << 24))

typedef struct {
    unsigned int pid;
    unsigned long long usedGpuMemory;
    unsigned int gpuInstanceId, computeInstanceId;
    unsigned long long usedGpuCcProtectedMemory;
} nvmlProcessDetail_t;

enum { NVML_PROCESS_MODE_COMPUTE, NVML_PROCESS_MODE_GRAPHICS, NVML_PROCESS_MODE_MPS, NVML_PROCESS_MODE_ALL };

typedef struct {
    unsigned int version; /* NVML_PROCESS_DETAIL_LIST_V1 */
    unsigned int mode;    /* NVML_PROCESS_MODE_* */
    unsigned int numProcArrayEntries;
    nvmlProcessDetail_t *procArray;
} nvmlProcessDetailList_t;
#define NVML_PROCESS_DETAIL_LIST_V1 (sizeof(nvmlProcessDetailList_t) | (1u << 24))

/* Accounting data of a process, alive or dead. */
typedef struct {
    unsigned int gpuUtilization, memoryUtilization; /* percent of its life */
    unsigned long long maxMemoryUsage;              /* bytes */
    unsigned long long time;                        /* milliseconds; only for processes that have ended */
    unsigned long long startTime;                   /* microseconds */
    unsigned int isRunning, reserved[5];
} nvmlAccountingStats_t;

typedef struct {
    unsigned int version;
    unsigned int pid; /* input: the process */
    unsigned int isRunning, gpuUtilization, memoryUtilization;
    unsigned long long maxMemoryUsage;
    unsigned int sampleCount;
    unsigned long long sumGpuUtil, sumFbUtil, time, startTime;
} nvmlAccountingStats_v2_t;

typedef struct {
    unsigned long long bar1Total, bar1Free, bar1Used; /* bytes */
} nvmlBAR1Memory_t;

typedef struct {
    unsigned int fieldId, scopeId;
    long long timestamp, latencyUsec;
    int valueType;
    nvmlReturn_t nvmlReturn;
    union {
        double dVal;
        unsigned int uiVal;
        unsigned long long ullVal;
    } value;
} nvmlFieldValue_t;

enum { NVML_FI_DEV_GET_GPU_RECOVERY_ACTION = 230 };
enum { NVML_VALUE_TYPE_UNSIGNED_INT = 1, NVML_VALUE_TYPE_UNSIGNED_LONG_LONG = 3 };

/* Field numbers of counters for the traffic of the whole device. */
enum {
    NVML_FI_NVLINK_BANDWIDTH_FIRST = 60,
    NVML_FI_NVLINK_BANDWIDTH_LAST = 73,
    NVML_FI_NVLINK_BANDWIDTH_MORE_FIRST = 120,
    NVML_FI_NVLINK_BANDWIDTH_MORE_LAST = 131,
    NVML_FI_NVLINK_THROUGHPUT_FIRST = 138,
    NVML_FI_NVLINK_THROUGHPUT_LAST = 141,
    NVML_FI_PCIE_BYTES_FIRST = 197,
    NVML_FI_PCIE_BYTES_LAST = 198,
    NVML_FI_NVLINK_COUNT_FIRST = 201,
    NVML_FI_NVLINK_COUNT_LAST = 204,
    NVML_FI_MMA_STALL_PERCENT = 297,
};

typedef struct {
    const char *nameSpace; /* file of a cgroup */
    unsigned long long softLimit, hardLimit, currentUsed; /* bytes */
} nvmlGetMemoryLimits_v1_t;

typedef struct {
    const char *nameSpace;
    unsigned long long softLimit, hardLimit; /* bytes; 0 and UINT64_MAX: remove the limit */
} nvmlSetMemoryLimits_v1_t;

typedef struct {
    nvmlDevice_t device;
    unsigned long long eventType;
    unsigned long long eventData; /* the XID */
    unsigned int gpuInstanceId, computeInstanceId;
} nvmlEventData_t;

enum { NVML_EVENT_XID_CRITICAL_ERROR = 8 };

enum {
    NVML_TOPOLOGY_INTERNAL = 0,
    NVML_TOPOLOGY_SINGLE = 10,
    NVML_TOPOLOGY_MULTIPLE = 20,
    NVML_TOPOLOGY_HOSTBRIDGE = 30,
    NVML_TOPOLOGY_NODE = 40,
    NVML_TOPOLOGY_SYSTEM = 50,
};

#define NVML_NVLINK_MAX_LINKS 18u

/* Multi-instance GPUs. Profiles are requested by kind, and identified by id from then on. */
typedef struct nvmlGpuInstance_st *nvmlGpuInstance_t;
typedef struct nvmlComputeInstance_st *nvmlComputeInstance_t;

#define NVML_GPU_INSTANCE_PROFILE_COUNT 18u
#define NVML_COMPUTE_INSTANCE_PROFILE_COUNT 9u

typedef struct {
    unsigned int start, size; /* in slices */
} nvmlGpuInstancePlacement_t;
typedef nvmlGpuInstancePlacement_t nvmlComputeInstancePlacement_t;

typedef struct {
    unsigned int id, isP2pSupported, sliceCount, instanceCount, multiprocessorCount;
    unsigned int copyEngineCount, decoderCount, encoderCount, jpegCount, ofaCount;
    unsigned long long memorySizeMB;
} nvmlGpuInstanceProfileInfo_t;

typedef struct {
    unsigned int version; /* NVML_GPU_INSTANCE_PROFILE_INFO_V2 */
    unsigned int id, isP2pSupported, sliceCount, instanceCount, multiprocessorCount;
    unsigned int copyEngineCount, decoderCount, encoderCount, jpegCount, ofaCount;
    unsigned long long memorySizeMB;
    char name[96];
} nvmlGpuInstanceProfileInfo_v2_t;
#define NVML_GPU_INSTANCE_PROFILE_INFO_V2 (sizeof(nvmlGpuInstanceProfileInfo_v2_t) | (2u << 24))

typedef struct {
    nvmlDevice_t device;
    unsigned int id, profileId;
    nvmlGpuInstancePlacement_t placement;
} nvmlGpuInstanceInfo_t;

typedef struct {
    unsigned int id, sliceCount, instanceCount, multiprocessorCount;
    unsigned int sharedCopyEngineCount, sharedDecoderCount, sharedEncoderCount, sharedJpegCount, sharedOfaCount;
} nvmlComputeInstanceProfileInfo_t;

typedef struct {
    unsigned int version; /* NVML_COMPUTE_INSTANCE_PROFILE_INFO_V2 */
    unsigned int id, sliceCount, instanceCount, multiprocessorCount;
    unsigned int sharedCopyEngineCount, sharedDecoderCount, sharedEncoderCount, sharedJpegCount, sharedOfaCount;
    char name[96];
} nvmlComputeInstanceProfileInfo_v2_t;
#define NVML_COMPUTE_INSTANCE_PROFILE_INFO_V2 (sizeof(nvmlComputeInstanceProfileInfo_v2_t) | (2u << 24))

typedef struct {
    nvmlDevice_t device;
    nvmlGpuInstance_t gpuInstance;
    unsigned int id, profileId;
    nvmlComputeInstancePlacement_t placement;
} nvmlComputeInstanceInfo_t;

#endif
