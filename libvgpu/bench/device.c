#include "device.h"

#include <stdlib.h>
#include <string.h>

struct device device_nominal(void)
{
    return (struct device){.slice_ns = 2000000, .switch_ns = 1000};
}

static int is_named(const char *setting, const char *name)
{
    size_t length = strlen(name);
    return !strncmp(setting, name, length) && setting[length] == '=';
}

int device_set(struct device *device, const char *setting)
{
    const char *value = strchr(setting, '=');
    char *end;
    if (!value || !value[1]) {
        return 0;
    }
    long number = strtol(value + 1, &end, 10);
    if (*end || (number < 0 && !is_named(setting, "clock_ppm"))) {
        return 0;
    }
    if (is_named(setting, "slice_us") && number) {
        device->slice_ns = (uint64_t)number * 1000;
    } else if (is_named(setting, "switch_us")) {
        device->switch_ns = (uint64_t)number * 1000;
    } else if (is_named(setting, "noise_points")) {
        device->noise_points = (unsigned)number;
    } else if (is_named(setting, "looks")) {
        device->looks = (unsigned)number;
    } else if (is_named(setting, "unmatched")) {
        device->unmatched = number != 0;
    } else if (is_named(setting, "clock_ppm")) {
        device->clock_ppm = (int)number;
    } else if (is_named(setting, "shuffled")) {
        device->shuffled = number != 0;
    } else {
        return 0;
    }
    return 1;
}
