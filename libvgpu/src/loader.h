/* loader.h - the real dlsym and dlvsym behind ours, and the real driver behind our names. */
#ifndef VGPU_LOADER_H
#define VGPU_LOADER_H

#include "drivers.h"

/* libc's own, found without asking the names we export. NULL until libc's are loaded. */
typedef void *(*vgpu_dlsym)(void *handle, const char *name);
typedef void *(*vgpu_dlvsym)(void *handle, const char *name, const char *version);
vgpu_dlsym vgpu_loader_dlsym(void);
vgpu_dlvsym vgpu_loader_dlvsym(void);

/* What stands behind us under this name, as the loader searches; NULL if nothing does. */
void *vgpu_loader_next(const char *name);

/* The driver's functions, loading the driver if it is not loaded yet; NULL when there is none. */
const struct vgpu_cuda *vgpu_loader_cuda(void);
const struct vgpu_nvml *vgpu_loader_nvml(void);

/* The same, but NULL when the program has not loaded it itself. */
const struct vgpu_cuda *vgpu_loader_cuda_if_loaded(void);
const struct vgpu_nvml *vgpu_loader_nvml_if_loaded(void);

/* 1 when RTLD_NEXT from this return address would look behind our library and miss our hooks. */
int vgpu_loader_is_behind_us(const void *caller);

/* 1 when both addresses lie in one loaded object. */
int vgpu_loader_is_one_object(const void *one, const void *other);

#endif
