/* shadow.c - libcuda.so.1 of a container: nothing of its own, only an order.
 *
 * A library that is opened with RTLD_DEEPBIND, or by dlmopen into a namespace of its own, does not see what was
 * preloaded: it finds the driver by itself. What it finds is this file, mounted where the driver's was. It needs two
 * libraries, libvgpu.so before the driver, and holds no symbol: a search for one of the driver's functions in it
 * or through it finds the hooks first and to the driver for all the rest. In a namespace of its own that is another
 * libvgpu.so, with a slot of its own in the same ledger. (Rejected: interposing dlopen to take RTLD_DEEPBIND away,
 * which breaks programs that rely on it and does not help against dlmopen.)
 */
typedef int vgpu_shadow_is_empty;
