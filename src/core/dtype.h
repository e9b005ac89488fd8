/* The table of element types. */
#ifndef CAIRN__CORE_DTYPE_H
#define CAIRN__CORE_DTYPE_H

#include <stdbool.h>

#include "cairn/core.h"

enum { CAIRN__DTYPE_END = CAIRN_U8 + 1 }; /* arrays indexed by dtype have this length; entry 0 is unused */

struct cairn__dtype {
    const char *name;
    size_t nbytes;
    bool is_float;
    double max;                     /* largest finite value; 0 for integers */
    double min_normal;              /* least positive normal value; 0 for integers */
    float (*to_f32)(const void *x); /* the scalar definition; NULL for integers and f64 */
    void (*from_f32)(void *x, float value);
};

/* The entry of dtype; NULL if dtype is not a type. */
const struct cairn__dtype *cairn__dtype(cairn_dtype dtype);

/* Whether tensors can have the type: every type but u8. */
static inline bool cairn__is_tensor_dtype(cairn_dtype dtype) {
    return dtype >= CAIRN_F32 && dtype <= CAIRN_BOOL;
}

/* f16 or bf16. */
static inline bool cairn__is_half(cairn_dtype dtype) {
    return dtype == CAIRN_F16 || dtype == CAIRN_BF16;
}

#endif
