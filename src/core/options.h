/* Options structs, and elements of arrays: how those of a caller that has another Cairn are read and written. */
#ifndef CAIRN__CORE_OPTIONS_H
#define CAIRN__CORE_OPTIONS_H

#include <stdbool.h>

#include "cairn/core.h"

/* What an argument called `on` means: CAIRN_OFF is not 0, and still no. */
static inline bool cairn__is_on(int on) {
    return on != 0 && on != CAIRN_OFF;
}

/* Copies *given over *own, which holds the defaults and is own_nbytes large; both begin with size_t struct_size. given
 * may be NULL: all defaults. Fields the caller's struct lacks keep their default.
 * Errors: CAIRN_EINVAL struct_size never set, or fields this Cairn does not know that are not 0; `name` is in it. */
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

/* Writes *own to element i of the caller's array: what it has room for, and 0 to fields that this Cairn does not
 * know. */
void cairn__element_write(void *array, size_t element_nbytes, size_t i, const void *own, size_t own_nbytes);

#endif
