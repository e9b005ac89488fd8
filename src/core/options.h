/* Options structs, and elements of arrays, of callers that were compiled with another version of Cairn. */
#ifndef CAIRN__CORE_OPTIONS_H
#define CAIRN__CORE_OPTIONS_H

#include <stdbool.h>

#include "cairn/core.h"

/* The meaning of an argument called `on`: CAIRN_OFF, though not 0, is off. */
static inline bool cairn__is_on(int on) {
    return on != 0 && on != CAIRN_OFF;
}

/* Copies *given over *own, which holds the defaults and is own_nbytes large; both begin with size_t struct_size. given
 * may be NULL: all defaults. Fields the caller's struct lacks keep their default.
 * Errors: CAIRN_EINVAL struct_size not set, or a field that this Cairn does not know and that is not 0; with `name`. */
cairn_status cairn__options_read(void *own, size_t own_nbytes, const void *given, const char *name);

/* ---- elements: structs without struct_size, whose size comes with the call ---- */

/* sizeof(type) as it was when `last` was its last field: what the functions without a size take. */
#define CAIRN__SIZE_THROUGH(type, last) \
    ((offsetof(type, last) + sizeof(((type *)0)->last) + _Alignof(type) - 1) / _Alignof(type) * _Alignof(type))

/* Errors: CAIRN_EINVAL a size that no caller's struct `name` can have. */
cairn_status cairn__element_check(size_t element_nbytes, const char *name);

/* Copies element i of the caller's array over *own, which holds the defaults. Errors: CAIRN_EINVAL a field that this
 * Cairn does not know and that is not 0. */
cairn_status cairn__element_read(void *own, size_t own_nbytes, const void *array, size_t element_nbytes, size_t i,
                                 const char *name);

/* Writes *own to element i of the caller's array: the fields that it has, and 0 to those that this Cairn does not
 * know. */
void cairn__element_write(void *array, size_t element_nbytes, size_t i, const void *own, size_t own_nbytes);

#endif
