/* Backends that are opened on demand: a shared library with one entry point, so that programs that do not use it neither
 * load nor need what it is linked to.
 *
 * libcairn finds libcairn_<name>.so in the folder CAIRN_MODULE_PATH, and nowhere else where that is set; otherwise beside
 * itself, then where the build made it (for an installed libcairn too), then where it installs it. A module has no copy of
 * errors, log or memory of its own: it gets libcairn's as a table of functions. */
#ifndef CAIRN__DEVICE_MODULE_H
#define CAIRN__DEVICE_MODULE_H

#include "device/device.h"

#define CAIRN__TEXT_OF(x)      #x
#define CAIRN__DOTTED(a, b, c) CAIRN__TEXT_OF(a) "." CAIRN__TEXT_OF(b) "." CAIRN__TEXT_OF(c)
#define CAIRN__VERSION_TEXT    CAIRN__DOTTED(CAIRN_VERSION_MAJOR, CAIRN_VERSION_MINOR, CAIRN_VERSION_PATCH)

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
};

/* What the symbol below is: NULL, with the last error set through host->fail, where the two do not fit. */
typedef const struct cairn__device_ops *(*cairn__module_entry_fn)(const struct cairn__module_host *host);
#define CAIRN__MODULE_ENTRY "cairn__module_entry"

/* Finds and opens the module of a device; it stays open until the process ends, and a second call gives the same table.
 * Errors: CAIRN_ENOTBUILT there is none, and where was looked, or the meson option that was off; CAIRN_ESYSTEM it is there
 * and cannot be opened, and why; CAIRN_EINTERNAL it is of another build. */
cairn_status cairn__module_open(const char *name, const struct cairn__device_ops **out);

#endif
