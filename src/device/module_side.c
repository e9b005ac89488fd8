/* A module's entry point, and the functions of core that it uses. They call libcairn's through the table that the
 * module was opened with; a copy of core would have errors, a log and counters of its own. Every module compiles this
 * file. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/log.h"
#include "core/status.h"
#include "core/vars.h"
#include "device/module.h"

/* Set by the entry point, before anything else here runs. */
static const struct cairn__module_host *_Atomic host;

enum { MESSAGE = 1024 };

cairn_status cairn__fail(cairn_status status, const char *format, ...) {
    char text[MESSAGE];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    return host->fail(status, text);
}

void cairn__log(cairn_log_level level, const char *format, ...) {
    char text[MESSAGE];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    host->log((int)level, text);
}

cairn_status cairn__alloc(size_t nbytes, void **out) {
    return host->alloc(nbytes, out);
}

cairn_status cairn__calloc(size_t count, size_t nbytes, void **out) {
    return host->calloc(count, nbytes, out);
}

cairn_status cairn__grow(void **array, size_t *capacity, size_t want, size_t nbytes) {
    return host->grow(array, capacity, want, nbytes);
}

void cairn__free(void *p) {
    host->free(p);
}

const char *cairn_last_error(void) {
    return host->last_error();
}

const char *cairn__var(const char *name) {
    return host->var(name);
}

cairn_status cairn__module_open(const struct cairn__module_use *use, const char *name, const void **table) {
    return host->open(use, name, table);
}

CAIRN_API const void *cairn__module_entry(const struct cairn__module_host *given, const char *kind);

const void *cairn__module_entry(const struct cairn__module_host *given, const char *kind) {
    const struct cairn__module_tables *t = &cairn__module_tables;
    if (given->size != sizeof(*given) || strcmp(given->version, CAIRN__VERSION_TEXT) != 0) {
        char text[MESSAGE];
        snprintf(text, sizeof(text), "libcairn_%s.so is of Cairn %s and libcairn of %s, or of another build", t->name,
                 CAIRN__VERSION_TEXT, given->version);
        given->fail(CAIRN_EINTERNAL, text);
        return NULL;
    }
    host = given;
    for (size_t i = 0; i < sizeof(t->all) / sizeof(t->all[0]) && t->all[i].kind; i++) {
        if (strcmp(t->all[i].kind, kind) == 0) return t->all[i].table;
    }
    (void)cairn__fail(CAIRN_EINTERNAL, "libcairn_%s.so has no %s", t->name, kind);
    return NULL;
}
