/* mounts.h - whether a file is the one that was mounted for the container, and not one that was mounted over it since. */
#ifndef VGPU_MOUNTS_H
#define VGPU_MOUNTS_H

/* 1 if nothing is mounted over this file, which `fd` has open, or over its folder. A file that is not mounted is as it is, and where
 * the kernel does not list mounts it cannot be told. */
int vgpu_mounts_are_single(const char *path, long fd);

#endif
