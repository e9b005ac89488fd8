/* Conversions between all types on the host, for data that users read and write. Steps use the kernels' casts. */
#ifndef CAIRN__CORE_CONVERT_H
#define CAIRN__CORE_CONVERT_H

#include "cairn/core.h"

/* dst = x, n elements, for all types that tensors have.
 *   - To a float: rounded once, to nearest even.
 *   - A float to an integer: truncated towards 0; a value out of range becomes the nearest one in range, NaN becomes 0.
 *   - To bool: whether the value is not 0.
 *   - Equal types keep their bits. u8, which no tensor has, converts only to itself. */
void cairn__convert(void *dst, cairn_dtype to, const void *x, cairn_dtype from, size_t n);

#endif
