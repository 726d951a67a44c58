/* behind.c - a library that the loader places behind libvgpu, and that looks up symbols from there. */
#include <dlfcn.h>

__attribute__((visibility("default"))) void *behind_next(const char *name);
__attribute__((visibility("default"))) int t_in_both(void);

void *behind_next(const char *name)
{
    void *volatile found = dlsym(RTLD_NEXT, name); /* a tail call would be made in our caller's name */
    return found;
}

int t_in_both(void)
{
    return 2;
}
