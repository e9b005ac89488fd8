/* The table of element types. */
#include "core/dtype.h"

#include "core/half.h"

static float f32_to_f32(const void *x) {
    return *(const float *)x;
}
static void f32_from_f32(void *x, float value) {
    *(float *)x = value;
}
static float f16_to_f32(const void *x) {
    return cairn__f16_to_f32(*(const uint16_t *)x);
}
static void f16_from_f32(void *x, float value) {
    *(uint16_t *)x = cairn__f32_to_f16(value);
}
static float bf16_to_f32(const void *x) {
    return cairn__bf16_to_f32(*(const uint16_t *)x);
}
static void bf16_from_f32(void *x, float value) {
    *(uint16_t *)x = cairn__f32_to_bf16(value);
}

/* clang-format off */
static const struct cairn__dtype dtypes[CAIRN__DTYPE_END] = {
    /*              name    bytes float  max                min normal  to f32       from f32 */
    [CAIRN_F32]  = {"f32",  4,    true,  0x1.fffffep127,    0x1p-126,   f32_to_f32,  f32_from_f32},
    [CAIRN_F16]  = {"f16",  2,    true,  65504.0,           0x1p-14,    f16_to_f32,  f16_from_f32},
    [CAIRN_BF16] = {"bf16", 2,    true,  0x1.fep127,        0x1p-126,   bf16_to_f32, bf16_from_f32},
    [CAIRN_I32]  = {"i32",  4,    false, 0,                 0,          NULL,        NULL},
    [CAIRN_I64]  = {"i64",  8,    false, 0,                 0,          NULL,        NULL},
    [CAIRN_F64]  = {"f64",  8,    true,  0x1.fffffffffffffp1023, 0x1p-1022, NULL,    NULL},
    [CAIRN_BOOL] = {"bool", 1,    false, 0,                 0,          NULL,        NULL},
    [CAIRN_U8]   = {"u8",   1,    false, 0,                 0,          NULL,        NULL},
};
/* clang-format on */

const struct cairn__dtype *cairn__dtype(cairn_dtype dtype) {
    if ((unsigned)dtype >= CAIRN__DTYPE_END || !dtypes[dtype].name) return NULL;
    return &dtypes[dtype];
}

const char *cairn_dtype_name(cairn_dtype dtype) {
    const struct cairn__dtype *d = cairn__dtype(dtype);
    return d ? d->name : "?";
}

size_t cairn_dtype_nbytes(cairn_dtype dtype) {
    const struct cairn__dtype *d = cairn__dtype(dtype);
    return d ? d->nbytes : 0;
}
