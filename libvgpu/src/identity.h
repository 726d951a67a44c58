/* identity.h - who this process is, and whether another still lives, from /proc. */
#ifndef VGPU_IDENTITY_H
#define VGPU_IDENTITY_H

#include "world.h"

struct vgpu_identity vgpu_identity_self(void);
int vgpu_identity_is_dead(uint64_t owner, const struct vgpu_identity *self);

/* A hash of where the kernel put the program of this process: an exec changes it, and pid and start time stay. 0: /proc does
 * not have it. */
uint64_t vgpu_identity_layout(uint32_t pid);

#endif
