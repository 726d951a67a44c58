/* elf_tables.h - functions of loaded objects by their own symbol tables, which no other object can answer for. */
#ifndef VGPU_ELF_TABLES_H
#define VGPU_ELF_TABLES_H

#include <elf.h>
#include <link.h>
#include <stddef.h>

/* strcmp, of which a sanitizer has its own, that does not work yet when dlsym is called first. */
static inline int vgpu_is_name(const char *a, const char *b)
{
    while (*a && *a == *b) {
        a++, b++;
    }
    return *a == *b;
}

/* A symbol of the object at this load address with this dynamic section; NULL if it defines none of this name. */
void *vgpu_elf_symbol(ElfW(Addr) base, const ElfW(Dyn) * dynamic, const char *name);

/* The same of an object whose ELF header lies at its load address, such as ld.so and the vDSO. */
void *vgpu_elf_find(const void *header, const char *name);

/* The name that an object has for others; empty if it has none. */
const char *vgpu_elf_soname(ElfW(Addr) base, const ElfW(Dyn) * dynamic);

#endif
