/* stage.h - a simulated machine, a limit page and a usage region in a folder of their own, and this program on it.
 *
 * stage_enter() starts the program again with LD_PRELOAD, LD_LIBRARY_PATH and the variables that name those files;
 * in that second life it returns, and the folder is gone when it ends. With STAGE_WORLD, which is more text for the machine file
 * (blanks separate its lines), that life is in a PID namespace of its own, as in a container.
 */
#ifndef VGPU_STAGE_H
#define VGPU_STAGE_H

#include "state.h"
#include "vgpu_abi.h"

#define STAGE_CARD_BYTES (UINT64_C(16384) << 20)

extern const char *const stage_uuid[2]; /* of the machine's two devices */

/* Folder of the build where the second life finds the driver; "fake" unless set before. */
extern const char *stage_libraries;

/* What it preloads, in the folder of the build: the library, or the one that lives in virtual time; and another library before
 * it, if set. */
extern const char *stage_library, *stage_first;
#define STAGE_VIRTUAL "tests/virtual/libvgpu.so"

/* Where set before, a second process runs this program on the host, outside of every namespace and without the library, with this
 * word as its argument. It starts when stage_start_neighbour is called, and ends with the test. */
extern const char *stage_neighbour;
void stage_start_neighbour(void);

/* Returns only in the second life. `machine` is more text for the machine file; NULL for none. */
void stage_enter(char **argv, const char *machine);

/* The page and region files, mapped. */
struct vgpu_page *stage_page(void);
struct vgpu_region *stage_region(void);

/* Grant exactly this for the first device (and nothing else), as the agent would. */
void stage_grant(uint64_t limit_bytes);
void stage_state(enum vgpu_page_state state);

/* Hand the container's processes their PIDs on the host, or what they hold of the first device beside the ledger, as the agent
 * does. */
void stage_name_processes(void);
void stage_see_memory(void);

/* The PID by which NVML's calls of this kind name a process of our namespace to us. */
unsigned stage_pid_shown(pid_t pid, enum state_call call);

/* The amount that all processes hold of the first device, according to the usage region. */
uint64_t stage_ledger_sum(void);

/* The oracle: the figures of the simulated device. */
uint64_t stage_card_used(void);
uint64_t stage_card_peak(void);
void stage_card_reset_peak(void);

#endif
