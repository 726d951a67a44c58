/* shadow.c - stands in for libcuda.so.1 in a container: it has no code, only an order of libraries.
 *
 * A library that is opened with RTLD_DEEPBIND, or by dlmopen into a namespace of its own, does not see preloaded
 * libraries and looks for the driver itself. It finds this file, which is mounted in the driver's place. This file
 * needs two libraries, libvgpu.so before the driver, and has no symbols. So a search for a driver function in it or
 * through it finds the hooks first, and everything else in the driver. In a namespace of its own that is a second
 * libvgpu.so, with its own slot in the same ledger. (Rejected: interposing dlopen to remove RTLD_DEEPBIND, which
 * breaks programs that rely on it and does not help against dlmopen.)
 */
typedef int vgpu_shadow_is_empty;
