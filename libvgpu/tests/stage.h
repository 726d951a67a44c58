/* stage.h - runs a test program on a simulated machine of its own, with a limit page and a usage region in a temporary
 * folder.
 *
 * stage_enter() starts the program again with LD_PRELOAD, LD_LIBRARY_PATH and the variables that name those files. Only the
 * restarted program returns from it. The folder is removed when the program ends. STAGE_WORLD is additional text for the
 * machine file, in which blanks separate lines; with it, the restarted program runs in a PID namespace of its own, as in a
 * container.
 */
#ifndef VGPU_STAGE_H
#define VGPU_STAGE_H

#include "state.h"
#include "vgpu_abi.h"

#define STAGE_CARD_BYTES (UINT64_C(16384) << 20)

extern const char *const stage_uuid[2]; /* UUIDs of the machine's two devices */

/* The folder of the build in which the restarted program finds the driver; "fake" unless set before. */
extern const char *stage_libraries;

/* The library that it preloads, from the build folder: the real one or the one for virtual time. `stage_first`, if set, is
 * preloaded before it. */
extern const char *stage_library, *stage_first;
#define STAGE_VIRTUAL "tests/virtual/libvgpu.so"

/* If this is set, a second process runs this program with this word as its argument. It runs on the host, outside of every
 * namespace and without the library, starts when stage_start_neighbour is called, and ends with the test. */
extern const char *stage_neighbour;
void stage_start_neighbour(void);

/* Restart the program on the stage; return only in the restarted one. `machine` is additional text for the machine file, or NULL. */
void stage_enter(char **argv, const char *machine);

/* Return the page and the region, mapped. */
struct vgpu_page *stage_page(void);
struct vgpu_region *stage_region(void);

/* Grant exactly this much of the first device, and nothing else, as the agent would. */
void stage_grant(uint64_t limit_bytes);
void stage_state(enum vgpu_page_state state);

/* Write the host PIDs of the container's processes into the region, or what they hold of the first device beside the ledger,
 * as the agent does. */
void stage_name_processes(void);
void stage_see_memory(void);

/* Return the PID that NVML's calls of this kind show for a process of the caller's namespace. */
unsigned stage_pid_shown(pid_t pid, enum state_call call);

/* Return how much memory of the first device all processes hold together, according to the usage region. */
uint64_t stage_ledger_sum(void);

/* Return figures of the simulated device, which are the oracle. */
uint64_t stage_card_used(void);
uint64_t stage_card_peak(void);
void stage_card_reset_peak(void);

#endif
