/* loader.h - finds the real dlsym and dlvsym behind ours, and the real driver behind our hooks. */
#ifndef VGPU_LOADER_H
#define VGPU_LOADER_H

#include "drivers.h"

/* Return libc's own functions, without looking up the names that we export. NULL until libc's symbols are loaded. */
typedef void *(*vgpu_dlsym)(void *handle, const char *name);
typedef void *(*vgpu_dlvsym)(void *handle, const char *name, const char *version);
vgpu_dlsym vgpu_loader_dlsym(void);
vgpu_dlvsym vgpu_loader_dlvsym(void);

/* Return the definition of this name that comes after us in the loader's search order, or NULL. */
void *vgpu_loader_next(const char *name);

/* Return the path from which this library was loaded, or an empty string if it is not known. */
const char *vgpu_loader_own_path(void);

/* Return the driver's functions, loading the driver if necessary. NULL if there is none. */
const struct vgpu_cuda *vgpu_loader_cuda(void);
const struct vgpu_nvml *vgpu_loader_nvml(void);

/* Do the same, but return NULL if the program has not loaded the driver itself. */
const struct vgpu_cuda *vgpu_loader_cuda_if_loaded(void);
const struct vgpu_nvml *vgpu_loader_nvml_if_loaded(void);

/* Return 1 if RTLD_NEXT from this return address searches only behind our library and would miss our hooks. */
int vgpu_loader_is_behind_us(const void *caller);

/* Return 1 if both addresses are in the same loaded object. */
int vgpu_loader_is_one_object(const void *one, const void *other);

#endif
