/* elf_tables.h - looks up functions in the symbol table of a loaded object, so that no other object can answer instead. */
#ifndef VGPU_ELF_TABLES_H
#define VGPU_ELF_TABLES_H

#include <elf.h>
#include <link.h>
#include <stddef.h>

/* Compare like strcmp. Sanitizers replace strcmp by a version that does not work yet when dlsym is first called. */
static inline int vgpu_is_name(const char *a, const char *b)
{
    while (*a && *a == *b) {
        a++, b++;
    }
    return *a == *b;
}

/* Return a symbol of the object with this load address and dynamic section, or NULL if it does not define the name. */
void *vgpu_elf_symbol(ElfW(Addr) base, const ElfW(Dyn) * dynamic, const char *name);

/* Do the same for an object whose ELF header is at its load address, such as ld.so or the vDSO. */
void *vgpu_elf_find(const void *header, const char *name);

/* Return the soname of an object, or an empty string. */
const char *vgpu_elf_soname(ElfW(Addr) base, const ElfW(Dyn) * dynamic);

#endif
