/* Conversions are done in blocks: through int64_t between integers and bool, through double if a float is involved. An
 * i64 becomes an f32 directly, so that it is rounded once. Half types are rounded from an f32 that was rounded to odd,
 * which gives the same as rounding the value itself, since an f32 has at least two bits more than a half. bool and f32
 * convert directly: in maps and folds of masks most of the time would go into blocks. */
#include "core/convert.h"

#include <stdbool.h>
#include <string.h>

#include "core/dtype.h"
#include "core/half.h"

enum { BLOCK = 256 };

/* 2^63 and 2^31 are exact in double, and the first values that do not fit. */
static int64_t to_i64(double x) {
    if (x != x) return 0;
    return x >= 0x1p63 ? INT64_MAX : x < -0x1p63 ? INT64_MIN : (int64_t)x;
}

static int32_t to_i32(double x) {
    if (x != x) return 0;
    return x >= 0x1p31 ? INT32_MAX : x <= -0x1p31 ? INT32_MIN : (int32_t)x;
}

static int32_t narrowed(int64_t x) {
    return x > INT32_MAX ? INT32_MAX : x < INT32_MIN ? INT32_MIN : (int32_t)x;
}

/* Rounds x to odd: truncates it to an f32 and sets the last bit if bits were lost. Uses integers, so that flush-to-zero
 * modes do not matter. Source: Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", IEEE TC 57(4),
 * 2008. */
static float odd_f32(double x) {
    uint64_t u;
    memcpy(&u, &x, sizeof(u));
    const uint32_t sign = (uint32_t)(u >> 32) & 0x80000000u;
    const uint64_t magnitude = u & INT64_MAX;
    const int64_t exponent = (int64_t)(magnitude >> 52) - 1023 + 127; /* as an f32 has it */
    if (magnitude >= UINT64_C(0x7ff) << 52) return (float)x;          /* infinity or NaN */
    if (exponent >= 255) return cairn__f32_from_bits(sign | 0x7f7fffffu);
    const int64_t lost = exponent > 0 ? 29 : 30 - exponent; /* bits that fall away */
    const uint64_t significand = (magnitude & (UINT64_MAX >> 12)) | UINT64_C(1) << 52;
    if (lost > 53) return cairn__f32_from_bits(sign | (magnitude != 0));
    const uint64_t kept =
        exponent > 0 ? (uint64_t)exponent << 23 | (significand >> 29 & 0x7fffff) : significand >> lost;
    const bool is_inexact = (significand & ((UINT64_C(1) << lost) - 1)) != 0;
    return cairn__f32_from_bits(sign | (uint32_t)kept | is_inexact);
}

/* Rounds x to odd. A double has 53 bits: lower bits of a large integer are merged into the last one. */
static float odd_f32_of_integer(int64_t x) {
    const uint64_t magnitude = x < 0 ? -(uint64_t)x : (uint64_t)x, low = magnitude & 0x7ff;
    const bool is_large = magnitude >> 53 != 0;
    const double exact = (double)(is_large ? (magnitude - low) | (uint64_t)(low != 0) << 11 : magnitude);
    return odd_f32(x < 0 ? -exact : exact);
}

#define EACH(NAME, TO, FROM, VALUE)                          \
    static void NAME(void *dst, const void *src, size_t n) { \
        const FROM *x = src;                                 \
        TO *y = dst;                                         \
        for (size_t i = 0; i < n; i++) y[i] = (VALUE);       \
    }

EACH(load_f32, double, float, (double)x[i])
EACH(load_f16, double, uint16_t, (double)cairn__f16_to_f32(x[i]))
EACH(load_bf16, double, uint16_t, (double)cairn__bf16_to_f32(x[i]))
EACH(load_f64, double, double, x[i])
EACH(load_i32, int64_t, int32_t, x[i])
EACH(load_i64, int64_t, int64_t, x[i])
EACH(load_bool, int64_t, uint8_t, x[i] != 0)

EACH(reals_to_f32, float, double, (float)x[i])
EACH(reals_to_f16, uint16_t, double, cairn__f32_to_f16(odd_f32(x[i])))
EACH(reals_to_bf16, uint16_t, double, cairn__f32_to_bf16(odd_f32(x[i])))
EACH(reals_to_f64, double, double, x[i])
EACH(reals_to_i32, int32_t, double, to_i32(x[i]))
EACH(reals_to_i64, int64_t, double, to_i64(x[i]))
EACH(reals_to_bool, uint8_t, double, x[i] != 0)

EACH(integers_to_f32, float, int64_t, (float)x[i])
EACH(integers_to_f16, uint16_t, int64_t, cairn__f32_to_f16(odd_f32_of_integer(x[i])))
EACH(integers_to_bf16, uint16_t, int64_t, cairn__f32_to_bf16(odd_f32_of_integer(x[i])))
EACH(integers_to_f64, double, int64_t, (double)x[i])
EACH(integers_to_i32, int32_t, int64_t, narrowed(x[i]))
EACH(integers_to_i64, int64_t, int64_t, x[i])
EACH(integers_to_bool, uint8_t, int64_t, x[i] != 0)

static const struct {
    void (*load)(void *block, const void *x, size_t n);
    void (*from_reals)(void *dst, const void *block, size_t n);
    void (*from_integers)(void *dst, const void *block, size_t n);
} rows[CAIRN__DTYPE_END] = {
    [CAIRN_F32] = {load_f32, reals_to_f32, integers_to_f32},
    [CAIRN_F16] = {load_f16, reals_to_f16, integers_to_f16},
    [CAIRN_BF16] = {load_bf16, reals_to_bf16, integers_to_bf16},
    [CAIRN_F64] = {load_f64, reals_to_f64, integers_to_f64},
    [CAIRN_I32] = {load_i32, reals_to_i32, integers_to_i32},
    [CAIRN_I64] = {load_i64, reals_to_i64, integers_to_i64},
    [CAIRN_BOOL] = {load_bool, reals_to_bool, integers_to_bool},
};

typedef void (*convert_fn)(void *dst, const void *x, size_t n);

EACH(bool_to_f32, float, uint8_t, x[i] != 0)
EACH(f32_to_bool, uint8_t, float, x[i] != 0)

static const convert_fn direct[CAIRN__DTYPE_END][CAIRN__DTYPE_END] = {
    [CAIRN_BOOL][CAIRN_F32] = bool_to_f32,
    [CAIRN_F32][CAIRN_BOOL] = f32_to_bool,
};

void cairn__convert(void *dst, cairn_dtype to, const void *x, cairn_dtype from, size_t n) {
    const size_t to_nbytes = cairn_dtype_nbytes(to), from_nbytes = cairn_dtype_nbytes(from);
    const bool is_real = cairn__dtype(from)->is_float;
    _Alignas(8) unsigned char block[BLOCK * 8];
    if (to == from) {
        if (n > 0) memcpy(dst, x, n * to_nbytes);
        return;
    }
    if (direct[from][to]) {
        direct[from][to](dst, x, n);
        return;
    }
    for (size_t i = 0; i < n; i += BLOCK) {
        const size_t m = n - i < BLOCK ? n - i : BLOCK;
        rows[from].load(block, (const char *)x + i * from_nbytes, m);
        (is_real ? rows[to].from_reals : rows[to].from_integers)((char *)dst + i * to_nbytes, block, m);
    }
}
