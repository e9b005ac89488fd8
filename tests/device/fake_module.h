/* The second table of the fake modules, besides the device's: a small engine table that shows what libcairn passes to a
 * module. */
#ifndef FAKE_MODULE_H
#define FAKE_MODULE_H

#include "device/module.h"

struct fake_engine {
    size_t size;
    cairn_status (*complain)(const char *what); /* "the fake says what" */
    void (*say)(const char *what);              /* the same as a warning */
    cairn_status (*alloc)(size_t nbytes, void **out);
    cairn_status (*grow)(void **array, size_t *capacity, size_t want, size_t nbytes);
    void (*free)(void *p);
};

#endif
