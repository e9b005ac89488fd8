/* Options structs: how a caller compiled against an older or newer Cairn is read. */
#ifndef CAIRN__CORE_OPTIONS_H
#define CAIRN__CORE_OPTIONS_H

#include "cairn/core.h"

/* Copies *given over *own, which holds the defaults and is own_nbytes large; both begin with size_t struct_size. given
 * may be NULL: all defaults. Fields the caller's struct lacks keep their default.
 * Errors: CAIRN_EINVAL struct_size never set, or fields this Cairn does not know that are not 0; `name` is in it. */
cairn_status cairn__options_read(void *own, size_t own_nbytes, const void *given, const char *name);

#endif
