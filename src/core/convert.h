/* Conversions between all types, on the host: for data that users read and write; a step uses the kernels' casts. */
#ifndef CAIRN__CORE_CONVERT_H
#define CAIRN__CORE_CONVERT_H

#include "cairn/core.h"

/* dst = x, n elements of the types that tensors have. A float of any type is rounded to nearest even, once; to an
 * integer it is cut towards 0, what its type cannot hold becomes its nearest value, and NaN 0. To bool: whether it is
 * not 0. Equal types keep their bits. u8 is no tensor's type and has no conversion but to itself. */
void cairn__convert(void *dst, cairn_dtype to, const void *x, cairn_dtype from, size_t n);

#endif
