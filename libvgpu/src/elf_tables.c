#include "elf_tables.h"

/* glibc relocates these addresses in place; one below the load address is not relocated. */
static const void *address_of(ElfW(Addr) base, const ElfW(Dyn) * dynamic, ElfW(Sxword) tag)
{
    for (; dynamic->d_tag != DT_NULL; dynamic++) {
        if (dynamic->d_tag == tag) {
            return (const void *)(dynamic->d_un.d_ptr < base ? base + dynamic->d_un.d_ptr : dynamic->d_un.d_ptr);
        }
    }
    return NULL;
}

static uint32_t gnu_hash(const char *name)
{
    uint32_t h = 5381;
    for (; *name; name++) {
        h = h * 33 + (unsigned char)*name;
    }
    return h;
}

static const ElfW(Sym) * by_gnu_hash(const uint32_t *table, const ElfW(Sym) * symbols, const char *strings, const char *name)
{
    uint32_t hash = gnu_hash(name), first = table[1];
    const uint32_t *buckets = table + 4 + table[2] * (sizeof(ElfW(Addr)) / sizeof(uint32_t));
    const uint32_t *chain = buckets + table[0];
    uint32_t i = table[0] ? buckets[hash % table[0]] : 0;
    if (i < first) {
        return NULL;
    }
    for (;; i++) {
        uint32_t h = chain[i - first];
        if ((h | 1) == (hash | 1) && vgpu_is_name(strings + symbols[i].st_name, name)) {
            return &symbols[i];
        }
        if (h & 1) {
            return NULL;
        }
    }
}

/* The older table, of which the second word counts the symbols. The vDSO of some kernels has only this one. */
static const ElfW(Sym) * one_by_one(const uint32_t *table, const ElfW(Sym) * symbols, const char *strings, const char *name)
{
    for (uint32_t i = 0; i < table[1]; i++) {
        if (vgpu_is_name(strings + symbols[i].st_name, name)) {
            return &symbols[i];
        }
    }
    return NULL;
}

void *vgpu_elf_symbol(ElfW(Addr) base, const ElfW(Dyn) * dynamic, const char *name)
{
    const ElfW(Sym) *symbols = address_of(base, dynamic, DT_SYMTAB), *found = NULL;
    const char *strings = address_of(base, dynamic, DT_STRTAB);
    const uint32_t *gnu = address_of(base, dynamic, DT_GNU_HASH), *old = address_of(base, dynamic, DT_HASH);
    if (symbols && strings && (gnu || old)) {
        found = gnu ? by_gnu_hash(gnu, symbols, strings, name) : one_by_one(old, symbols, strings, name);
    }
    return found && found->st_shndx != SHN_UNDEF ? (void *)(base + found->st_value) : NULL;
}

const char *vgpu_elf_soname(ElfW(Addr) base, const ElfW(Dyn) * dynamic)
{
    const char *strings = address_of(base, dynamic, DT_STRTAB);
    for (; strings && dynamic->d_tag != DT_NULL; dynamic++) {
        if (dynamic->d_tag == DT_SONAME) {
            return strings + dynamic->d_un.d_val;
        }
    }
    return "";
}

void *vgpu_elf_find(const void *header, const char *name)
{
    const ElfW(Ehdr) *elf = header;
    const ElfW(Phdr) *parts = (const ElfW(Phdr) *)((uintptr_t)header + elf->e_phoff);
    for (int i = 0; i < elf->e_phnum; i++) {
        if (parts[i].p_type == PT_DYNAMIC) {
            return vgpu_elf_symbol((ElfW(Addr))header, (const ElfW(Dyn) *)((uintptr_t)header + parts[i].p_vaddr), name);
        }
    }
    return NULL;
}
