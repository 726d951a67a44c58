/* Runs a whole program in the virtual time of the file that VGPU_VIRTUAL_TIME names. */
#include <stdlib.h>

#include "virtual_time.h"

static int place;

static void end(void)
{
    virtual_leave(place);
}

static __attribute__((constructor)) void begin(void)
{
    const char *path = getenv("VGPU_VIRTUAL_TIME");
    if (path) {
        virtual_share(path);
        place = virtual_reserve();
        virtual_join(place);
        atexit(end);
    }
}
