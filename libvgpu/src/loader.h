/* loader.h - the real dlsym and dlvsym behind ours, and the real driver behind our names. */
#ifndef VGPU_LOADER_H
#define VGPU_LOADER_H

#include "drivers.h"

/* libc's own functions, found without looking up the names that we export. NULL until libc's symbols are loaded. */
typedef void *(*vgpu_dlsym)(void *handle, const char *name);
typedef void *(*vgpu_dlvsym)(void *handle, const char *name, const char *version);
vgpu_dlsym vgpu_loader_dlsym(void);
vgpu_dlvsym vgpu_loader_dlvsym(void);

/* Find the definition behind us of this name, in the loader's search order; NULL if there is none. */
void *vgpu_loader_next(const char *name);

/* The path by which this library was loaded; empty if it is not known. */
const char *vgpu_loader_own_path(void);

/* The driver's functions; the driver is loaded if necessary. NULL if there is none. */
const struct vgpu_cuda *vgpu_loader_cuda(void);
const struct vgpu_nvml *vgpu_loader_nvml(void);

/* The same, but NULL if the program has not loaded the driver itself. */
const struct vgpu_cuda *vgpu_loader_cuda_if_loaded(void);
const struct vgpu_nvml *vgpu_loader_nvml_if_loaded(void);

/* Return 1 if RTLD_NEXT from this return address would search behind our library and miss our hooks. */
int vgpu_loader_is_behind_us(const void *caller);

/* Return 1 if both addresses are in the same loaded object. */
int vgpu_loader_is_one_object(const void *one, const void *other);

#endif
