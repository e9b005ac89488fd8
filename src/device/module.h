/* Modules: backends that are opened on demand, such as a device or an engine of process groups. A module is a shared
 * library with one entry point, so that programs that do not use it neither load nor need the libraries it is linked
 * to.
 *
 * libcairn looks for libcairn_<name>.so in the folder CAIRN_MODULE_PATH only, if that is set. Otherwise it looks beside
 * itself, then in the build's folder (an installed libcairn too), then in the installation folder. A program with more
 * rights than its user (core/trust.h) opens modules from the installation folder only, and only files that nobody but
 * root or the program's owner can write.
 *
 * A module has no errors, log or allocator of its own: it gets libcairn's as a table of functions, and compiles
 * module_side.c, which gives them their usual names. */
#ifndef CAIRN__DEVICE_MODULE_H
#define CAIRN__DEVICE_MODULE_H

#include <stddef.h>

#include "cairn/core.h"
#include "core/version.h"

#ifdef __cplusplus
extern "C" {
#endif

struct cairn__module_use;

struct cairn__module_host {
    size_t size;         /* sizeof(struct cairn__module_host) as built */
    const char *version; /* CAIRN__VERSION_TEXT: module and library are of one build */
    cairn_status (*fail)(cairn_status status, const char *text); /* writes the thread's last error, returns status */
    void (*log)(int level, const char *text);
    /* core/alloc.h */
    cairn_status (*alloc)(size_t nbytes, void **out);
    cairn_status (*calloc)(size_t count, size_t nbytes, void **out);
    cairn_status (*grow)(void **array, size_t *capacity, size_t want, size_t nbytes);
    void (*free)(void *p);
    const char *(*last_error)(void);      /* the thread's */
    const char *(*var)(const char *name); /* core/vars.h */
    cairn_status (*open)(const struct cairn__module_use *use, const char *name,
                         const void **table); /* another module */
};

/* The type of the symbol below. Returns the module's table of that kind. If the module has none or is of another build,
 * sets the last error through host->fail and returns NULL. */
typedef const void *(*cairn__module_entry_fn)(const struct cairn__module_host *host, const char *kind);
#define CAIRN__MODULE_ENTRY "cairn__module_entry"

/* What a module is opened for. */
struct cairn__module_use {
    const char *kind;    /* of table: "device", "group backend"; errors begin with it */
    const char *instead; /* the advice where there is no such module: "\"cpu\"" */
    size_t nbytes;       /* of the table, which begins with its size as a size_t */
};

/* Finds and opens the module called name. It stays open until the process ends; a second call returns the same table.
 * Errors: CAIRN_ENOTBUILT there is none (names the folders searched, or the meson option that was off); CAIRN_ESYSTEM
 * it cannot be opened or trusted, and why; CAIRN_EINTERNAL it is of another build, or has no such table. */
cairn_status cairn__module_open(const struct cairn__module_use *use, const char *name, const void **table);

/* ---- the module's side ---- */

/* Each module defines one; module_side.c, compiled into it, has the entry that hands out its tables. */
struct cairn__module_tables {
    const char *name; /* "cuda" */
    struct {
        const char *kind;
        const void *table;
    } all[4]; /* the rest NULL */
};
extern const struct cairn__module_tables cairn__module_tables;

#ifdef __cplusplus
}
#endif

#endif
