/* Conversions between all types, on the host: for data that users read and write; a step uses the kernels' casts. */
#ifndef CAIRN__CORE_CONVERT_H
#define CAIRN__CORE_CONVERT_H

#include "cairn/core.h"

/* dst = x, n elements of the types that tensors have. Floats are rounded to nearest even, f64 to a half type by way of
 * f32; to an integer they are cut towards 0, what its type cannot hold becomes its nearest value, and NaN 0. To bool:
 * whether it is not 0. Equal types keep their bits. */
void cairn__convert(void *dst, cairn_dtype to, const void *x, cairn_dtype from, size_t n);

#endif
