/* The compute limit of a process on two devices in virtual time, from the hooks to the simulated devices. */
#include <limits.h>
#include <stdlib.h>

#include "compute.h"
#include "stage.h"
#include "t.h"
#include "virtual_time.h"
#include "work.h"

#define S UINT64_C(1000000000)

enum { WHOLE = 108 * 8, CARDS = 2 };

static CUcontext contexts[CARDS];
static CUfunction kernels[CARDS];

static void grant(unsigned first, unsigned second)
{
    struct vgpu_page *page = stage_page();
    __atomic_store_n(&page->seq, page->seq | 1, __ATOMIC_SEQ_CST);
    page->device_count = CARDS;
    page->devices[1] = page->devices[0];
    for (unsigned i = 0; i < CARDS; i++) {
        snprintf(page->devices[i].uuid, sizeof page->devices[i].uuid, "%s", stage_uuid[i]);
        page->devices[i].cores_percent = i ? second : first;
        page->devices[i].core_policy = VGPU_CORES_FORCE;
    }
    page->epoch++;
    __atomic_store_n(&page->seq, page->seq + 1, __ATOMIC_SEQ_CST);
}

static void begin(const char *kernel)
{
    CUmodule module;
    CHECK_EQ(cuInit(0), CUDA_SUCCESS);
    for (int i = 0; i < CARDS; i++) {
        CHECK_EQ(cuDevicePrimaryCtxRetain(&contexts[i], i), CUDA_SUCCESS);
        CHECK_EQ(cuCtxSetCurrent(contexts[i]), CUDA_SUCCESS);
        CHECK_EQ(cuModuleLoadData(&module, "image"), CUDA_SUCCESS);
        CHECK_EQ(cuModuleGetFunction(&kernels[i], module, kernel), CUDA_SUCCESS);
    }
}

static uint64_t busy_ns(int card)
{
    int mine;
    struct engine *e = compute_enter(machine_current(), card, 0, &mine);
    uint64_t busy = e ? e->busy_ns : 0;
    if (e) {
        compute_leave(card);
    }
    return busy;
}

/* Launch on each device in turn for this long; return the percentage that each was busy. */
static void in_turn(uint64_t ns, double share[CARDS])
{
    uint64_t start = work_now_ns(), before[CARDS];
    for (int i = 0; i < CARDS; i++) {
        before[i] = busy_ns(i);
    }
    while (work_now_ns() - start < ns) {
        for (int i = 0; i < CARDS; i++) {
            CHECK_EQ(cuCtxSetCurrent(contexts[i]), CUDA_SUCCESS);
            CHECK_EQ(work_launch(kernels[i], WHOLE, NULL), CUDA_SUCCESS);
        }
        stage_name_processes();
    }
    for (int i = 0; i < CARDS; i++) {
        share[i] = 100.0 * (double)(busy_ns(i) - before[i]) / (double)(work_now_ns() - start);
    }
}

TEST(a_thread_that_alternates_between_devices_gets_its_share_of_each)
{
    double share[CARDS];
    begin("busy_20us");
    grant(30, 30);
    in_turn(S, share);
    in_turn(5 * S, share);
    for (int i = 0; i < CARDS; i++) {
        if (share[i] < 27 || share[i] > 33) {
            fprintf(stderr, "    %.1f %% of card %d\n", share[i], i);
        }
        CHECK(share[i] > 27 && share[i] < 33);
    }
}

int main(int argc, char **argv)
{
    char path[PATH_MAX];
    (void)argc;
    stage_library = STAGE_VIRTUAL;
    stage_enter(argv, NULL);
    snprintf(path, sizeof path, "%s/time", getenv("VGPU_STAGE"));
    virtual_share(path);
    virtual_join(virtual_reserve());
    stage_grant(VGPU_UNLIMITED);
    return t_run();
}
