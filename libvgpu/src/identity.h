/* identity.h - identifies this process, and tells from /proc whether another one still lives. */
#ifndef VGPU_IDENTITY_H
#define VGPU_IDENTITY_H

#include <stdint.h>

/* The identity of this process, as its slot of the region records it. */
struct vgpu_identity {
    uint32_t pid;
    uint64_t start_time;    /* clock ticks; 0: /proc does not have it */
    uint64_t pid_namespace; /* inode; 0: /proc does not have it */
    uint64_t image;         /* changes with exec */
    uint64_t layout;        /* so does this, and other processes can see it; 0: /proc does not have it */
};

/* The owner word of a process. */
uint64_t vgpu_owner_word(const struct vgpu_identity *who);

struct vgpu_identity vgpu_identity_self(void);
int vgpu_identity_is_dead(uint64_t owner, const struct vgpu_identity *self);

/* A hash of where the kernel put the program of this process: an exec changes it, and pid and start time stay. 0: /proc does
 * not have it. */
uint64_t vgpu_identity_layout(uint32_t pid);

#endif
