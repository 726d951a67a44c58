/* identity.h - who this process is, and whether another still lives, from /proc. */
#ifndef VGPU_IDENTITY_H
#define VGPU_IDENTITY_H

#include "world.h"

struct vgpu_identity vgpu_identity_self(void);
int vgpu_identity_is_dead(uint64_t owner, const struct vgpu_identity *self);

#endif
