#include "loader.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>

#include "elf_tables.h"
#include "kernel.h"

/* ------------------------------------------------------------------ libc's dynamic linker functions
 *
 * We export dlsym and dlvsym, so looking them up by name finds ourselves. Therefore read libc's symbol table. Nothing here
 * may call a function that another library can interpose: sanitizers call dlsym before their own functions work, and a
 * program could answer in libc's place.
 */

/* The lists of loaded objects, one for each namespace; `next` is there from version 2 on. */
struct debug {
    struct r_debug namespace;
    const struct debug *next;
};

/* Return the list of objects in our namespace, as ld.so keeps it. */
static const struct link_map *our_objects(void)
{
    unsigned long linker = vgpu_kernel_auxv(AT_BASE);
    linker = linker ? linker : vgpu_kernel_auxv(AT_PHDR) - sizeof(ElfW(Ehdr)); /* ld.so was started as the program */
    const struct debug *all = vgpu_elf_find((const void *)linker, "_r_debug");
    for (const struct debug *list = all; list; list = list->namespace.r_version > 1 ? list->next : NULL) {
        for (const struct link_map *object = list->namespace.r_map; object; object = object->l_next) {
            if (object->l_ld == _DYNAMIC) { /* ld.so's symbol for our own dynamic section */
                return list->namespace.r_map;
            }
        }
    }
    return all ? all->namespace.r_map
               : NULL; /* before glibc 2.35 other namespaces are not listed; the functions of the first one serve all */
}

const char *vgpu_loader_own_path(void)
{
    const struct link_map *object = our_objects();
    while (object && object->l_ld != _DYNAMIC) {
        object = object->l_next;
    }
    return object ? object->l_name : "";
}

/* No other library can be loaded before libc under libc's soname. */
static void *in_libc(const char *name)
{
    void *found = NULL;
    for (const struct link_map *object = our_objects(); object && !found; object = object->l_next) {
        const char *soname = vgpu_elf_soname(object->l_addr, object->l_ld);
        if (vgpu_is_name(soname, "libc.so.6") || vgpu_is_name(soname, "libdl.so.2")) {
            found = vgpu_elf_symbol(object->l_addr, object->l_ld, name);
        }
    }
    return found;
}

vgpu_dlvsym vgpu_loader_dlvsym(void)
{
    static void *_Atomic found;
    void *at = atomic_load_explicit(&found, memory_order_relaxed);
    if (!at) {
        at = in_libc("dlvsym");
        atomic_store_explicit(&found, at, memory_order_relaxed);
    }
    return (vgpu_dlvsym)at;
}

vgpu_dlsym vgpu_loader_dlsym(void)
{
    static void *_Atomic found;
    static const char *const versions[] = {"GLIBC_2.34", "GLIBC_2.17", "GLIBC_2.2.5"};
    void *at = atomic_load_explicit(&found, memory_order_relaxed);
    if (!at) {
        /* Take the next dlsym behind ours, so that another library that interposes dlsym is called too. */
        vgpu_dlvsym versioned = vgpu_loader_dlvsym();
        for (size_t i = 0; versioned && !at && i < sizeof versions / sizeof versions[0]; i++) {
            at = versioned(RTLD_NEXT, "dlsym", versions[i]);
        }
        at = at ? at : in_libc("dlsym");
        atomic_store_explicit(&found, at, memory_order_relaxed);
    }
    return (vgpu_dlsym)at;
}

void *vgpu_loader_next(const char *name)
{
    vgpu_dlsym find = vgpu_loader_dlsym();
    return find ? find(RTLD_NEXT, name) : NULL;
}

static void *open_library(const char *name, int flags)
{
    static void *_Atomic found; /* looked up at run time: its symbol version is newer than the oldest glibc we support */
    void *at = atomic_load_explicit(&found, memory_order_relaxed);
    if (!at) {
        vgpu_dlsym find = vgpu_loader_dlsym();
        at = find ? find(RTLD_DEFAULT, "dlopen") : NULL;
        at = at ? at : in_libc("dlopen");
        atomic_store_explicit(&found, at, memory_order_relaxed);
    }
    return at ? ((void *(*)(const char *, int))at)(name, flags) : NULL;
}

/* ------------------------------------------------------------------ the caller's position relative to this library */

static int each_object(int (*callback)(struct dl_phdr_info *, size_t, void *), void *argument)
{
    static void *_Atomic found;
    void *at = atomic_load_explicit(&found, memory_order_relaxed);
    if (!at) {
        at = in_libc("dl_iterate_phdr");
        atomic_store_explicit(&found, at, memory_order_relaxed);
    }
    return at ? ((int (*)(int (*)(struct dl_phdr_info *, size_t, void *), void *))at)(callback, argument) : 0;
}

struct order {
    const void *caller;
    int at, caller_at, our_at;
};

static int covers(const struct dl_phdr_info *object, const void *address)
{
    for (int i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &object->dlpi_phdr[i];
        uintptr_t start = object->dlpi_addr + part->p_vaddr;
        if (part->p_type == PT_LOAD && (uintptr_t)address - start < part->p_memsz) {
            return 1;
        }
    }
    return 0;
}

static int place(struct dl_phdr_info *object, size_t size, void *argument)
{
    struct order *order = argument;
    (void)size;
    if (covers(object, order->caller)) {
        order->caller_at = order->at;
    }
    if (covers(object, (const void *)place)) {
        order->our_at = order->at;
    }
    order->at++;
    return 0;
}

int vgpu_loader_is_behind_us(const void *caller)
{
    struct order order = {.caller = caller, .caller_at = -1, .our_at = -1};
    each_object(place, &order);
    return order.caller_at > order.our_at;
}

struct pair {
    const void *one, *other;
};

static int holds_both(struct dl_phdr_info *object, size_t size, void *argument)
{
    const struct pair *pair = argument;
    (void)size;
    return covers(object, pair->one) && covers(object, pair->other);
}

int vgpu_loader_is_one_object(const void *one, const void *other)
{
    struct pair pair = {.one = one, .other = other};
    return each_object(holds_both, &pair);
}

/* ------------------------------------------------------------------ the driver */

struct entry {
    const char *name;
    size_t offset;
};

static const struct entry cuda_entries[] = {
#define VGPU_ENTRY_cuda(symbol) {#symbol, offsetof(struct vgpu_cuda, symbol)},
#define VGPU_ENTRY_nvml(symbol)
#define VGPU_HOOK(class, library, symbol, base, since, per_thread, ret, parameters) VGPU_ENTRY_##library(symbol)
#define VGPU_GATE(class, library, symbol, base, since, per_thread) VGPU_ENTRY_##library(symbol)
#define VGPU_USED(library, symbol, ret, parameters) VGPU_ENTRY_##library(symbol)
#include "symbols.def"
#undef VGPU_ENTRY_cuda
#undef VGPU_ENTRY_nvml
};

static const struct entry nvml_entries[] = {
#define VGPU_ENTRY_cuda(symbol)
#define VGPU_ENTRY_nvml(symbol) {#symbol, offsetof(struct vgpu_nvml, symbol)},
#define VGPU_HOOK(class, library, symbol, base, since, per_thread, ret, parameters) VGPU_ENTRY_##library(symbol)
#define VGPU_USED(library, symbol, ret, parameters) VGPU_ENTRY_##library(symbol)
#include "symbols.def"
#undef VGPU_ENTRY_cuda
#undef VGPU_ENTRY_nvml
};

struct library {
    const char *behind_shadow; /* the name by which shadow.c calls the driver; NULL if it has no shadow */
    const char *soname;
    const struct entry *entries;
    size_t count, bytes;
    void *_Atomic table;
};

static struct library cuda_library = {.behind_shadow = "libcuda-driver.so.1",
                                      .soname = "libcuda.so.1",
                                      .entries = cuda_entries,
                                      .count = sizeof cuda_entries / sizeof cuda_entries[0],
                                      .bytes = sizeof(struct vgpu_cuda)};
static struct library nvml_library = {.soname = "libnvidia-ml.so.1",
                                      .entries = nvml_entries,
                                      .count = sizeof nvml_entries / sizeof nvml_entries[0],
                                      .bytes = sizeof(struct vgpu_nvml)};

/* With a shadow in place, the driver's name leads to the shadow, and from there back to us. */
static void *open_driver(const struct library *library, int may_load)
{
    void *handle = open_library(library->soname, RTLD_LAZY | RTLD_NOLOAD);
    if (!handle && may_load) {
        handle = open_library(library->soname, RTLD_LAZY);
    }
    void *behind = handle && library->behind_shadow ? open_library(library->behind_shadow, RTLD_LAZY | RTLD_NOLOAD) : NULL;
    return behind ? behind : handle;
}

/* Fill a private table and publish it as a whole, so that no lock is needed that a fork could leave held. The library
 * is never closed, because hooks keep pointers into it. */
static const void *table_of(struct library *library, int may_load)
{
    void *table = atomic_load_explicit(&library->table, memory_order_acquire), *seen = NULL;
    if (table) {
        return table;
    }
    vgpu_dlsym find = vgpu_loader_dlsym();
    void *handle = open_driver(library, may_load);
    table = handle && find ? calloc(1, library->bytes) : NULL;
    if (!table) {
        return NULL;
    }
    for (size_t i = 0; i < library->count; i++) {
        void *address = find(handle, library->entries[i].name);
        memcpy((char *)table + library->entries[i].offset, &address, sizeof address);
    }
    if (!atomic_compare_exchange_strong(&library->table, &seen, table)) {
        free(table);
        return seen;
    }
    return table;
}

const struct vgpu_cuda *vgpu_loader_cuda(void)
{
    return table_of(&cuda_library, 1);
}

const struct vgpu_nvml *vgpu_loader_nvml(void)
{
    return table_of(&nvml_library, 1);
}

const struct vgpu_cuda *vgpu_loader_cuda_if_loaded(void)
{
    return table_of(&cuda_library, 0);
}

const struct vgpu_nvml *vgpu_loader_nvml_if_loaded(void)
{
    return table_of(&nvml_library, 0);
}
