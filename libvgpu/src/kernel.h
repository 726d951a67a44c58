/* kernel.h - system calls without libc, because a library that the program preloads can replace libc's functions.
 *
 * A result from -4095 to -1 is a negated error number.
 */
#ifndef VGPU_KERNEL_H
#define VGPU_KERNEL_H

#include <stddef.h>
#include <sys/syscall.h>

static inline long vgpu_call6(long number, long a, long b, long c, long d, long e, long f)
{
#if defined(__x86_64__)
    long result;
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = f;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "0"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
#elif defined(__aarch64__)
    register long x8 __asm__("x8") = number;
    register long x0 __asm__("x0") = a;
    register long x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d;
    register long x4 __asm__("x4") = e;
    register long x5 __asm__("x5") = f;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory", "cc");
    return x0;
#else
#error "kernel.h is written for x86-64 and arm64; another architecture needs its own"
#endif
}

static inline long vgpu_call(long number, long a, long b, long c, long d)
{
    return vgpu_call6(number, a, b, c, d, 0, 0);
}

/* Read the start of a file. Return the number of bytes, or an error. */
long vgpu_kernel_read(const char *path, void *out, size_t bytes);

/* Map a file from its start, or memory without a file. Return NULL on failure. */
void *vgpu_kernel_map(size_t bytes, int protection, int flags, int fd);

/* Return an entry of the auxiliary vector, or 0 if it is missing. */
unsigned long vgpu_kernel_auxv(unsigned long type);

#endif
