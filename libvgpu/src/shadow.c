/* shadow.c - takes the place of libcuda.so.1 in a container. It has no code and only fixes the order of two libraries.
 *
 * A library that is opened with RTLD_DEEPBIND, or by dlmopen into a namespace of its own, does not see preloaded
 * libraries and looks for the driver by name. It finds this file, which is mounted in the driver's place. This file
 * depends on two libraries, first libvgpu.so and then the driver, and has no symbols itself. A search for a driver
 * function in it therefore finds the hooks first, and everything else in the driver. In a namespace of its own, this
 * loads a second libvgpu.so with its own slot in the same ledger. (Rejected: interposing dlopen to remove
 * RTLD_DEEPBIND. That breaks programs that rely on it, and does not help against dlmopen.)
 */
typedef int vgpu_shadow_is_empty;
