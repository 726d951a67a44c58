/* mounts.h - detects files that were mounted over the agent's files. */
#ifndef VGPU_MOUNTS_H
#define VGPU_MOUNTS_H

/* Return 1 if nothing is mounted over this file, which `fd` has open, or over its folder. Also return 1 if the file is
 * not a mount, or if the kernel does not list mounts. */
int vgpu_mounts_are_single(const char *path, long fd);

#endif
