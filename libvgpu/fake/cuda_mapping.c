/* cuda_mapping.c - physical memory without an address, and addresses at which to map it.
 *
 * The memory is an unnamed file, so a handle that is mapped twice shows the same bytes at both addresses. It is charged to
 * its card until its last handle is released and its last mapping is gone.
 */
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cuda_memory.h"

#define GRAIN (UINT64_C(2) << 20)

struct physical {
    int card, fd; /* card -1: host memory */
    int share; /* the machine's share, if others may have it open; -1: only our own */
    unsigned handles, mappings;
    size_t bytes;
};

struct mapping {
    struct physical *physical;
    uintptr_t start;
    size_t bytes;
    struct mapping *next;
};

static struct mapping *mappings;
static pthread_mutex_t mapping_lock = PTHREAD_MUTEX_INITIALIZER;

/* Free the memory if nothing refers to it. The caller holds the lock. */
static void free_if_unused(struct physical *p)
{
    if (!p->handles && !p->mappings) {
        if (p->card < 0) {
            state_unlock_host(cuda_session()->machine, p->bytes);
        } else if (p->share < 0) {
            state_give(cuda_session()->machine, p->card, p->bytes, 0);
        } else {
            state_share_close(cuda_session()->machine, p->share);
        }
        close(p->fd);
        free(p);
    }
}

static void *nowhere(uintptr_t at, size_t bytes)
{
    return mmap((void *)at, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | (at ? MAP_FIXED : 0), -1, 0);
}

CUDA_API CUresult cuMemGetAllocationGranularity(size_t *out, const CUmemAllocationProp *prop, int option)
{
    (void)option;
    if (!out || !prop) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *out = GRAIN;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuMemCreate(CUmemGenericAllocationHandle *out, size_t bytes, const CUmemAllocationProp *prop,
                              unsigned long long flags)
{
    if (!out || !prop || flags || !bytes || bytes % GRAIN) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    int of_host = prop->location_type == CU_MEM_LOCATION_TYPE_HOST || prop->location_type == CU_MEM_LOCATION_TYPE_HOST_NUMA;
    if (!of_host && prop->location_type != CU_MEM_LOCATION_TYPE_DEVICE) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult result = cuda_check_device(of_host ? 0 : prop->location_id);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    const struct cuda_session *s = cuda_session();
    int card = of_host ? -1 : s->visible[prop->location_id];
    result = cuda_result(of_host ? state_lock_host(s->machine, bytes) : state_take(s->machine, card, bytes, 0));
    if (result != CUDA_SUCCESS) {
        return result;
    }
    struct physical *p = calloc(1, sizeof *p);
    int fd = p ? memfd_create("simulated device memory", MFD_CLOEXEC) : -1;
    if (fd < 0 || ftruncate(fd, (off_t)bytes)) {
        if (of_host) {
            state_unlock_host(s->machine, bytes);
        } else {
            state_give(s->machine, card, bytes, 0);
        }
        free(p);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *p = (struct physical){.card = card, .fd = fd, .share = -1, .handles = 1, .bytes = bytes};
    *out = (uintptr_t)p;
    return CUDA_SUCCESS;
}

enum { POSIX_FILE_DESCRIPTOR = 1 };

CUDA_API CUresult cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle handle, int type, unsigned long long flags)
{
    struct physical *p = (struct physical *)(uintptr_t)handle;
    struct stat is;
    if (!out || !p || p->card < 0 || type != POSIX_FILE_DESCRIPTOR || flags) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    pthread_mutex_lock(&mapping_lock);
    if (p->share < 0 && fstat(p->fd, &is) == 0) {
        p->share = state_share_make(cuda_session()->machine, p->card, p->bytes, is.st_ino);
    }
    *(int *)out = p->share < 0 ? -1 : dup(p->fd);
    pthread_mutex_unlock(&mapping_lock);
    return *(int *)out < 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

/* Unlike real memory, this is freed once only its file remains. */
CUDA_API CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *out, void *what, int type)
{
    const struct cuda_session *s = cuda_session();
    int fd = (int)(intptr_t)what, copy;
    struct stat is;
    if (!s || !out || type != POSIX_FILE_DESCRIPTOR || fstat(fd, &is)) {
        return s ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_NOT_INITIALIZED;
    }
    int share = state_share_open(s->machine, is.st_ino, 0, 0);
    struct physical *p = share >= 0 ? calloc(1, sizeof *p) : NULL;
    if (!p || (copy = dup(fd)) < 0) {
        free(p);
        return share < 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_OUT_OF_MEMORY;
    }
    *p = (struct physical){.card = state_open(s->machine)->shares[share].card,
                           .fd = copy,
                           .share = share,
                           .handles = 1,
                           .bytes = (size_t)is.st_size};
    *out = (uintptr_t)p;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    struct physical *p = (struct physical *)(uintptr_t)handle;
    if (!p || !p->handles) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    pthread_mutex_lock(&mapping_lock);
    p->handles--;
    free_if_unused(p);
    pthread_mutex_unlock(&mapping_lock);
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuMemAddressReserve(CUdeviceptr *out, size_t bytes, size_t alignment, CUdeviceptr preferred,
                                      unsigned long long flags)
{
    (void)alignment, (void)preferred;
    if (!out || !bytes || bytes % GRAIN || flags) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    void *at = nowhere(0, bytes + GRAIN); /* more than requested, so that it starts on a grain; the rest stays reserved */
    if (at == MAP_FAILED) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *out = ((uintptr_t)at + GRAIN - 1) / GRAIN * GRAIN;
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes)
{
    return munmap((void *)(uintptr_t)address, bytes) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUDA_API CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                           unsigned long long flags)
{
    struct physical *p = (struct physical *)(uintptr_t)handle;
    if (!p || !address || address % GRAIN || !bytes || bytes % GRAIN || flags || offset > p->bytes || bytes > p->bytes - offset) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct mapping *m = calloc(1, sizeof *m);
    if (!m || mmap((void *)(uintptr_t)address, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, p->fd, (off_t)offset) == MAP_FAILED ||
        cuda_memory_show((uintptr_t)address, bytes)) {
        free(m);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    pthread_mutex_lock(&mapping_lock);
    *m = (struct mapping){.physical = p, .start = (uintptr_t)address, .bytes = bytes, .next = mappings};
    mappings = m;
    p->mappings++;
    pthread_mutex_unlock(&mapping_lock);
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const void *access, size_t count)
{
    if (!access || !count || mprotect((void *)(uintptr_t)address, bytes, PROT_READ | PROT_WRITE)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

/* Only whole mappings, and nothing but mappings, may be unmapped. */
CUDA_API CUresult cuMemUnmap(CUdeviceptr address, size_t bytes)
{
    uintptr_t start = (uintptr_t)address, end = start + bytes;
    size_t covered = 0;
    pthread_mutex_lock(&mapping_lock);
    for (const struct mapping *m = mappings; m; m = m->next) {
        covered += m->start >= start && m->start + m->bytes <= end ? m->bytes : 0;
    }
    if (!bytes || covered != bytes) {
        pthread_mutex_unlock(&mapping_lock);
        return CUDA_ERROR_INVALID_VALUE;
    }
    for (struct mapping **at = &mappings; *at;) {
        struct mapping *m = *at;
        if (m->start < start || m->start >= end) {
            at = &m->next;
            continue;
        }
        *at = m->next;
        cuda_memory_hide(m->start);
        nowhere(m->start, m->bytes);
        m->physical->mappings--;
        free_if_unused(m->physical);
        free(m);
    }
    pthread_mutex_unlock(&mapping_lock);
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *out, void *address)
{
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&mapping_lock);
    for (const struct mapping *m = mappings; out && m; m = m->next) {
        if ((uintptr_t)address - m->start < m->bytes) {
            m->physical->handles++;
            *out = (uintptr_t)m->physical;
            result = CUDA_SUCCESS;
        }
    }
    pthread_mutex_unlock(&mapping_lock);
    return result;
}

/* Every multicast object keeps what is bound to it. */
static CUresult bind(struct physical *p, size_t bytes)
{
    if (!p || !bytes) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    pthread_mutex_lock(&mapping_lock);
    p->mappings++;
    pthread_mutex_unlock(&mapping_lock);
    return CUDA_SUCCESS;
}

CUDA_API CUresult cuMulticastBindMem(CUmemGenericAllocationHandle multicast, size_t at, CUmemGenericAllocationHandle handle,
                                     size_t offset, size_t bytes, unsigned long long flags)
{
    (void)multicast, (void)at, (void)offset, (void)flags;
    return bind((struct physical *)(uintptr_t)handle, bytes);
}

CUDA_API CUresult cuMulticastBindMem_v2(CUmemGenericAllocationHandle multicast, CUdevice device, size_t at,
                                        CUmemGenericAllocationHandle handle, size_t offset, size_t bytes,
                                        unsigned long long flags)
{
    (void)device;
    return cuMulticastBindMem(multicast, at, handle, offset, bytes, flags);
}

CUDA_API CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle multicast, size_t at, CUdeviceptr address, size_t bytes,
                                      unsigned long long flags)
{
    CUmemGenericAllocationHandle handle = 0;
    CUresult result = cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)address);
    if (result == CUDA_SUCCESS) {
        result = cuMulticastBindMem(multicast, at, handle, 0, bytes, flags);
        cuMemRelease(handle);
    }
    return result;
}

CUDA_API CUresult cuMulticastBindAddr_v2(CUmemGenericAllocationHandle multicast, CUdevice device, size_t at, CUdeviceptr address,
                                         size_t bytes, unsigned long long flags)
{
    (void)device;
    return cuMulticastBindAddr(multicast, at, address, bytes, flags);
}
