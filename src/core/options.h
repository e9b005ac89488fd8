/* Reads options structs, and reads and writes elements of arrays, of callers that were compiled with another version of
 * Cairn. */
#ifndef CAIRN__CORE_OPTIONS_H
#define CAIRN__CORE_OPTIONS_H

#include <stdbool.h>

#include "cairn/core.h"

/* The meaning of an argument called `on`: CAIRN_OFF, though not 0, is off. */
static inline bool cairn__is_on(int on) {
    return on != 0 && on != CAIRN_OFF;
}

/* Copies *given over *own, which holds the defaults and is own_nbytes large; both begin with size_t struct_size. given
 * NULL keeps all defaults. Fields that the caller's struct lacks keep their defaults.
 * Errors, which include `name`: CAIRN_EINVAL struct_size is not set, or a field that this Cairn does not know is not
 * 0. */
cairn_status cairn__options_read(void *own, size_t own_nbytes, const void *given, const char *name);

/* ---- elements: structs without struct_size, whose size is an argument of the call ---- */

/* sizeof(type) as it was when `last` was its last field: the size that functions without a size argument use. */
#define CAIRN__SIZE_THROUGH(type, last) \
    ((offsetof(type, last) + sizeof(((type *)0)->last) + _Alignof(type) - 1) / _Alignof(type) * _Alignof(type))

/* Checks a size argument. Errors: CAIRN_EINVAL no version of the struct `name` has that size. */
cairn_status cairn__element_check(size_t element_nbytes, const char *name);

/* Copies element i of the caller's array over *own, which holds the defaults. Errors: CAIRN_EINVAL a field that this
 * Cairn does not know is not 0. */
cairn_status cairn__element_read(void *own, size_t own_nbytes, const void *array, size_t element_nbytes, size_t i,
                                 const char *name);

/* Writes *own to element i of the caller's array: the fields that the element has; fields that this Cairn does not know
 * become 0. */
void cairn__element_write(void *array, size_t element_nbytes, size_t i, const void *own, size_t own_nbytes);

#endif
