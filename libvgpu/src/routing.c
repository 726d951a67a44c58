#include "routing.h"

#include <dlfcn.h>
#include <string.h>

#include "authority.h"
#include "elf_tables.h"
#include "loader.h"
#include "process.h"

const struct vgpu_symbol vgpu_symbols[] = {
#define VGPU_ROW(class, library, symbol, base, since, per_thread) \
    {#symbol,                                                     \
     #base,                                                       \
     since,                                                       \
     per_thread,                                                  \
     VGPU_CLASS_##class,                                          \
     VGPU_LIBRARY_##library,                                      \
     (vgpu_function)symbol,                                       \
     offsetof(struct vgpu_##library, symbol)},
#define VGPU_HOOK(class, library, symbol, base, since, per_thread, ret, parameters) \
    VGPU_ROW(class, library, symbol, base, since, per_thread)
#define VGPU_GATE(class, library, symbol, base, since, per_thread) VGPU_ROW(class, library, symbol, base, since, per_thread)
#include "symbols.def"
};

const unsigned vgpu_symbol_count = sizeof vgpu_symbols / sizeof vgpu_symbols[0];

static const size_t gates[] = {
#define VGPU_GATE(class, library, symbol, base, since, per_thread) offsetof(struct vgpu_##library, symbol),
#include "symbols.def"
};

static void *function_at(const void *table, size_t offset)
{
    void *address = NULL;
    if (table) {
        memcpy(&address, (const char *)table + offset, sizeof address);
    }
    return address;
}

/* Return the driver's own function, or NULL unless the program has loaded that driver. */
static void *original(const struct vgpu_symbol *symbol)
{
    const void *table = symbol->library == VGPU_LIBRARY_cuda ? (const void *)vgpu_loader_cuda_if_loaded()
                                                             : (const void *)vgpu_loader_nvml_if_loaded();
    return function_at(table, symbol->offset);
}

const struct vgpu_symbol *vgpu_symbol_named(const char *name)
{
    if (!(name[0] == 'c' && name[1] == 'u') && !(name[0] == 'n' && name[1] == 'v')) {
        return NULL; /* most look-ups of a program end here */
    }
    for (unsigned i = 0; i < vgpu_symbol_count; i++) {
        if (vgpu_is_name(vgpu_symbols[i].name, name)) {
            return &vgpu_symbols[i];
        }
    }
    return NULL;
}

void *vgpu_route_pointer(const struct vgpu_cuda *cuda, const char *base, void *address, int version, int per_thread)
{
    const struct vgpu_symbol *best = NULL, *named = NULL;
    for (unsigned i = 0; i < vgpu_symbol_count; i++) {
        const struct vgpu_symbol *s = &vgpu_symbols[i];
        if (s->library != VGPU_LIBRARY_cuda || function_at(cuda, s->offset) != address) {
            continue;
        }
        best = best ? best : s;
        /* If several versions share a name, choose the newest one that the caller may ask for. */
        if (vgpu_is_name(s->base, base) && (!named || (s->since <= version && s->since > named->since))) {
            named = s;
        }
    }
    if (named || best) {
        return (void *)(named ? named : best)->hook; /* or one function under two names */
    }
    for (unsigned i = 0; i < vgpu_symbol_count; i++) {
        const struct vgpu_symbol *s = &vgpu_symbols[i];
        if (s->library == VGPU_LIBRARY_cuda && vgpu_is_name(s->base, base) && s->since <= version &&
            s->per_thread <= per_thread &&
            (!best || s->per_thread > best->per_thread || (s->per_thread == best->per_thread && s->since > best->since))) {
            best = s;
        }
    }
    if (best) {
        vgpu_world->log("vgpu: the driver gave an address it does not export; routed by name\n");
    }
    return best ? (void *)best->hook : address;
}

static void *own_dlsym(void)
{
    return (void *)dlsym;
}

static void *own_dlvsym(void)
{
    return (void *)dlvsym;
}

/* The rule for dlsym and dlvsym. `natural` is the answer that libc gives us. It is not used for RTLD_NEXT, whose answer
 * depends on the caller. */
static struct vgpu_route decide(const struct vgpu_symbol *symbol, void *handle, void *natural, const void *caller)
{
    const struct vgpu_route not_ours = {0};
    void *real = original(symbol);
    if (handle == RTLD_NEXT) {
        /* For a caller ahead of this library, the search finds it anyway. For one behind it, the search would miss it. */
        return real && vgpu_loader_is_behind_us(caller) ? (struct vgpu_route){.answer = (void *)symbol->hook, .decided = 1}
                                                        : not_ours;
    }
    if (natural && natural == real) {
        return (struct vgpu_route){.answer = (void *)symbol->hook, .decided = 1};
    }
    if (natural == (void *)symbol->hook && !real) {
        /* A program that checks for CUDA must not find our hook instead: search only behind this library. */
        return (struct vgpu_route){.answer = vgpu_loader_dlsym()(RTLD_NEXT, symbol->name), .decided = 1};
    }
    return not_ours;
}

/* Route a look-up function that is itself looked up by name, as in dlsym(dlopen("libc.so.6"), "dlsym"): libc's own function
 * would bypass us. A library behind us that interposes it as we do gets libc's function: ours would call that library's, and
 * its own would lead back to it. `natural` is libc's answer to us, where libc may be asked. */
static struct vgpu_route route_finder(void *handle, const char *name, const void *natural, const void *caller)
{
    static const struct {
        const char *name;
        void *(*ours)(void);
    } finders[] = {{"dlsym", own_dlsym}, {"dlvsym", own_dlvsym}, {"__libc_dlsym", own_dlsym}};
    for (size_t i = 0; i < sizeof finders / sizeof finders[0]; i++) {
        if (vgpu_is_name(name, finders[i].name) && (handle == RTLD_NEXT ? vgpu_loader_is_behind_us(caller) : natural != NULL) &&
            !vgpu_loader_is_one_object(caller, (const void *)vgpu_loader_dlsym())) {
            return (struct vgpu_route){.answer = finders[i].ours(), .decided = 1};
        }
    }
    return (struct vgpu_route){0};
}

static int may_be_finder(const char *name)
{
    return (name[0] == 'd' && name[1] == 'l') || (name[0] == '_' && name[1] == '_');
}

struct vgpu_route vgpu_route_dlsym(void *handle, const char *name, const void *caller)
{
    const struct vgpu_symbol *symbol = name ? vgpu_symbol_named(name) : NULL;
    vgpu_dlsym find = symbol || (name && may_be_finder(name)) ? vgpu_loader_dlsym() : NULL;
    if (!find) {
        return (struct vgpu_route){0};
    }
    if (!symbol) {
        return route_finder(handle, name, handle == RTLD_NEXT ? NULL : find(handle, name), caller);
    }
    return decide(symbol, handle, handle == RTLD_NEXT ? NULL : find(handle, name), caller);
}

struct vgpu_route vgpu_route_dlvsym(void *handle, const char *name, const char *version, const void *caller)
{
    const struct vgpu_symbol *symbol = name && version ? vgpu_symbol_named(name) : NULL;
    vgpu_dlvsym find = symbol || (name && version && may_be_finder(name)) ? vgpu_loader_dlvsym() : NULL;
    if (!find) {
        return (struct vgpu_route){0};
    }
    if (!symbol) {
        return route_finder(handle, name, handle == RTLD_NEXT ? NULL : find(handle, name, version), caller);
    }
    return decide(symbol, handle, handle == RTLD_NEXT ? NULL : find(handle, name, version), caller);
}

void *vgpu_route_gate(unsigned index)
{
    const struct vgpu_process *p = vgpu_process();
    if (p && !vgpu_limits_nothing(p)) {
        return NULL;
    }
    return function_at(vgpu_world->cuda(), gates[index]);
}
