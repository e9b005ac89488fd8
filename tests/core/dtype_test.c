/* The table of element types, and the promises about the half types. kcheck walks all their values. */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "core/convert.h"
#include "core/dtype.h"
#include "core/half.h"

static void every_type_has_its_name_and_width(void **state) {
    (void)state;
    static const struct {
        cairn_dtype dtype;
        const char *name;
        size_t nbytes;
        bool is_float, is_half;
    } want[] = {
        {CAIRN_F32, "f32", 4, true, false},    {CAIRN_F16, "f16", 2, true, true},   {CAIRN_BF16, "bf16", 2, true, true},
        {CAIRN_I32, "i32", 4, false, false},   {CAIRN_I64, "i64", 8, false, false}, {CAIRN_F64, "f64", 8, true, false},
        {CAIRN_BOOL, "bool", 1, false, false}, {CAIRN_U8, "u8", 1, false, false},
    };
    assert_int_equal(sizeof(want) / sizeof(want[0]), CAIRN__DTYPE_END - 1);
    for (size_t i = 0; i < sizeof(want) / sizeof(want[0]); i++) {
        const struct cairn__dtype *d = cairn__dtype(want[i].dtype);
        assert_non_null(d);
        assert_string_equal(cairn_dtype_name(want[i].dtype), want[i].name);
        assert_int_equal(cairn_dtype_nbytes(want[i].dtype), want[i].nbytes);
        assert_int_equal(d->is_float, want[i].is_float);
        assert_int_equal(cairn__is_half(want[i].dtype), want[i].is_half);
        assert_int_equal(cairn__is_tensor_dtype(want[i].dtype), want[i].dtype != CAIRN_U8);
        assert_int_equal(d->to_f32 != NULL, want[i].is_float && want[i].dtype != CAIRN_F64);
    }
}

static void unknown_type_has_a_name_that_says_so(void **state) {
    (void)state;
    static const int none[] = {0, -1, CAIRN__DTYPE_END, 1000};
    for (size_t i = 0; i < sizeof(none) / sizeof(none[0]); i++) {
        assert_null(cairn__dtype((cairn_dtype)none[i]));
        assert_false(cairn__is_tensor_dtype((cairn_dtype)none[i]));
        assert_string_equal(cairn_dtype_name((cairn_dtype)none[i]), "?");
        assert_int_equal(cairn_dtype_nbytes((cairn_dtype)none[i]), 0);
    }
}

static void greatest_and_least_normal_values_are_exact(void **state) {
    (void)state;
    for (cairn_dtype t = CAIRN_F32; t <= CAIRN_BF16; t++) {
        const struct cairn__dtype *d = cairn__dtype(t);
        unsigned char x[4];
        d->from_f32(x, (float)d->max);
        assert_true((double)d->to_f32(x) == d->max);
        d->from_f32(x, (float)d->min_normal);
        assert_true((double)d->to_f32(x) == d->min_normal);
        if (!cairn__is_half(t)) continue;
        d->from_f32(x, (float)d->max * 1.01f);
        assert_true(isinf(d->to_f32(x)));
    }
}

static void narrowing_keeps_subnormals(void **state) {
    (void)state;
    assert_int_equal(cairn__f32_to_f16(0x1p-24f), 0x0001);
    assert_int_equal(cairn__f32_to_f16(0x1p-25f), 0x0000); /* a tie goes to even */
    assert_int_equal(cairn__f32_to_f16(0x1.8p-25f), 0x0001);
    assert_int_equal(cairn__f32_to_bf16(cairn__f32_from_bits(0x00400000)), 0x0040);
    assert_int_equal(cairn__f32_to_bf16(cairn__f32_from_bits(0x80008001)), 0x8001);
}

static void narrowing_overflows_from_the_midpoint(void **state) {
    (void)state;
    assert_int_equal(cairn__f32_to_f16(65504.0f), 0x7bff);
    assert_int_equal(cairn__f32_to_f16(65519.996f), 0x7bff);
    assert_int_equal(cairn__f32_to_f16(65520.0f), 0x7c00);
    assert_int_equal(cairn__f32_to_f16(-65520.0f), 0xfc00);
    assert_int_equal(cairn__f32_to_bf16(cairn__f32_from_bits(0x7f7f7fff)), 0x7f7f);
    assert_int_equal(cairn__f32_to_bf16(cairn__f32_from_bits(0x7f7f8000)), 0x7f80);
}

static void nan_stays_nan_and_is_quiet(void **state) {
    (void)state;
    assert_int_equal(cairn__f32_to_f16(cairn__f32_from_bits(0x7f800001)), 0x7e00);
    assert_int_equal(cairn__f32_to_bf16(cairn__f32_from_bits(0xff800001)), 0xffc0);
    assert_int_equal(cairn__f32_bits(cairn__f16_to_f32(0x7c01)), 0x7fc02000);
}

static void nonfinite_is_found_by_exponent_bits(void **state) {
    (void)state;
    assert_true(cairn__f32_nonfinite(INFINITY) && cairn__f32_nonfinite(-INFINITY) && cairn__f32_nonfinite(NAN));
    assert_true(cairn__f32_nonfinite(cairn__f32_from_bits(0x7f800001)));
    assert_false(cairn__f32_nonfinite(0) || cairn__f32_nonfinite(0x1.fffffep127f) || cairn__f32_nonfinite(0x1p-149f));
}

/* ---- conversions on the host ---- */

static void integers_are_cut_from_floats_and_clipped(void **state) {
    (void)state;
    const double x[] = {1.9, -1.9, 3e9, -3e9, 1e300, -1e300, NAN, INFINITY};
    const int32_t want32[] = {1, -1, INT32_MAX, INT32_MIN, INT32_MAX, INT32_MIN, 0, INT32_MAX};
    const int64_t want64[] = {1, -1, 3000000000, -3000000000, INT64_MAX, INT64_MIN, 0, INT64_MAX};
    const uint8_t want_bool[] = {1, 1, 1, 1, 1, 1, 1, 1};
    int32_t got32[8];
    int64_t got64[8];
    uint8_t got_bool[8];
    cairn__convert(got32, CAIRN_I32, x, CAIRN_F64, 8);
    cairn__convert(got64, CAIRN_I64, x, CAIRN_F64, 8);
    cairn__convert(got_bool, CAIRN_BOOL, x, CAIRN_F64, 8);
    assert_memory_equal(got32, want32, sizeof(want32));
    assert_memory_equal(got64, want64, sizeof(want64));
    assert_memory_equal(got_bool, want_bool, sizeof(want_bool));
}

static void integers_keep_their_digits_among_themselves(void **state) {
    (void)state;
    const int64_t x[] = {INT64_MAX, INT64_MIN, 7, 0};
    const int32_t want32[] = {INT32_MAX, INT32_MIN, 7, 0};
    const uint8_t want_bool[] = {1, 1, 1, 0};
    int64_t got64[4];
    int32_t got32[4];
    uint8_t got_bool[4];
    cairn__convert(got64, CAIRN_I64, x, CAIRN_I64, 4);
    cairn__convert(got32, CAIRN_I32, x, CAIRN_I64, 4);
    cairn__convert(got_bool, CAIRN_BOOL, x, CAIRN_I64, 4);
    assert_memory_equal(got64, x, sizeof(x));
    assert_memory_equal(got32, want32, sizeof(want32));
    assert_memory_equal(got_bool, want_bool, sizeof(want_bool));
}

/* 2^24 + 1 is no f32; 2^60 + 2^36 + 1 is just above the middle of two, and its f64 is that middle. */
static void floats_of_integers_are_rounded_once(void **state) {
    (void)state;
    const int64_t x[] = {16777217, (INT64_C(1) << 60) + (INT64_C(1) << 36) + 1};
    const float want[] = {0x1p24f, 0x1p60f + 0x1p37f};
    float got[2];
    cairn__convert(got, CAIRN_F32, x, CAIRN_I64, 2);
    assert_memory_equal(got, want, sizeof(want));
}

/* What a half type's code is worth; the code of infinity stands for the next power of two, from whose middle on numbers
 * overflow. */
static long double worth(cairn_dtype type, uint16_t code) {
    const bool is_f16 = type == CAIRN_F16;
    if (code == (is_f16 ? 0x7c00 : 0x7f80)) return is_f16 ? 0x1p16L : 0x1p128L;
    return (long double)(is_f16 ? cairn__f16_to_f32(code) : cairn__bf16_to_f32(code));
}

/* The nearest of all codes, and of two the even one: the definition, without arithmetic that rounds. */
static uint16_t nearest(cairn_dtype type, long double x) {
    const long double magnitude = x < 0 ? -x : x;
    const uint16_t sign = signbit(x) ? 0x8000 : 0, infinity = type == CAIRN_F16 ? 0x7c00 : 0x7f80;
    uint16_t low = 0, high = infinity;
    if (magnitude >= worth(type, infinity)) return sign | infinity;
    while (high - low > 1) {
        const uint16_t middle = (uint16_t)((low + high) / 2);
        *(worth(type, middle) <= magnitude ? &low : &high) = middle;
    }
    const long double middle = (worth(type, low) + worth(type, high)) / 2;
    const bool goes_up = magnitude > middle || (magnitude == middle && low % 2);
    return sign | (goes_up ? high : low);
}

static void expect_nearest(cairn_dtype type, const double *x, size_t n) {
    uint16_t got[16];
    cairn__convert(got, type, x, CAIRN_F64, n);
    for (size_t i = 0; i < n; i++) {
        const uint16_t want = nearest(type, x[i]);
        if (got[i] != want) fail_msg("%a is %04x in %s, and not %04x", x[i], got[i], cairn_dtype_name(type), want);
    }
}

static const cairn_dtype halves[] = {CAIRN_F16, CAIRN_BF16};

/* 1 + 2^-11 + 2^-40, by way of f32, would become the middle between two halves, and then the lower one. */
static void halves_of_f64_are_rounded_once_around_every_middle(void **state) {
    (void)state;
    const double x = 1 + 0x1p-11 + 0x1p-40;
    uint16_t got;
    cairn__convert(&got, CAIRN_F16, &x, CAIRN_F64, 1);
    assert_int_equal(got, 0x3c01);
    for (int t = 0; t < 2; t++) {
        for (uint16_t code = 0; code < (t == 0 ? 0x7c00 : 0x7f80); code++) {
            const double at = (double)worth(halves[t], code), next = (double)worth(halves[t], code + 1);
            const double middle = (at + next) / 2;
            const double around[] = {at,
                                     -middle,
                                     middle,
                                     nextafter(middle, 0),
                                     nextafter(middle, INFINITY),
                                     middle * (1 + 0x1p-26),
                                     -middle * (1 - 0x1p-26),
                                     -middle * (1 + 0x1p-40)};
            expect_nearest(halves[t], around, sizeof(around) / sizeof(around[0]));
        }
    }
}

static void halves_of_any_f64_are_rounded_once(void **state) {
    (void)state;
    uint64_t random = 1;
    const double ends[] = {0.0, -0.0, 0x1p-1074, -0x1p-1022, 0x1p-150, 0x1.8p-150, DBL_MAX, -DBL_MAX, INFINITY};
    uint16_t nan;
    for (int t = 0; t < 2; t++) expect_nearest(halves[t], ends, sizeof(ends) / sizeof(ends[0]));
    for (int i = 0; i < 200000; i++) {
        random = random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        const int exponent = (int)(random % 300) - 160;
        const double x = ldexp((double)(int64_t)random, exponent - 63);
        for (int t = 0; t < 2; t++) expect_nearest(halves[t], &x, 1);
    }
    const double no_number = -(double)NAN;
    cairn__convert(&nan, CAIRN_BF16, &no_number, CAIRN_F64, 1);
    assert_true((nan & 0x7f80) == 0x7f80 && (nan & 0x7f) != 0);
}

static void halves_of_integers_are_rounded_once(void **state) {
    (void)state;
    for (int t = 0; t < 2; t++) {
        for (uint16_t code = nearest(halves[t], 1); code < nearest(halves[t], t ? 0x1p63L : 0x1p16L); code++) {
            const int64_t middle = (int64_t)((worth(halves[t], code) + worth(halves[t], code + 1)) / 2);
            for (int64_t x = middle - 1; x <= middle + 1; x++) {
                uint16_t got[2];
                const int64_t both[] = {x, -x};
                cairn__convert(got, halves[t], both, CAIRN_I64, 2);
                assert_int_equal(got[0], nearest(halves[t], x));
                if (x) assert_int_equal(got[1], nearest(halves[t], -(long double)x));
            }
        }
    }
}

/* More than a block of elements, there and back. */
static void every_type_holds_small_integers(void **state) {
    (void)state;
    enum { N = 600 };
    double x[N], back[N];
    int64_t there[N];
    for (int i = 0; i < N; i++) x[i] = i % 2;
    for (cairn_dtype t = CAIRN_F32; cairn__is_tensor_dtype(t); t++) {
        cairn__convert(there, t, x, CAIRN_F64, N);
        cairn__convert(back, CAIRN_F64, there, t, N);
        assert_memory_equal(back, x, sizeof(x));
    }
}

/* Of every length of a vector's rest. */
static void masks_of_f32_are_those_of_f64(void **state) {
    (void)state;
    enum { N = 300 };
    const float each[10] = {0, -0.0f, 0x1p-149f, -0x1p-149f, 1, -1, INFINITY, -INFINITY, NAN, FLT_MAX};
    const uint8_t bytes[5] = {0, 1, 2, 128, 255};
    float x[N], got_f32[N], want_f32[N];
    uint8_t mask[N], got_mask[N], want_mask[N];
    double wide[N];
    for (size_t i = 0; i < N; i++) {
        x[i] = each[i * 7 % 10];
        mask[i] = bytes[i * 3 % 5];
    }
    for (size_t n = 0; n <= N; n++) {
        memset(got_mask, 0x55, sizeof(got_mask)), memset(want_mask, 0x55, sizeof(want_mask));
        cairn__convert(wide, CAIRN_F64, x, CAIRN_F32, n);
        cairn__convert(want_mask, CAIRN_BOOL, wide, CAIRN_F64, n);
        cairn__convert(got_mask, CAIRN_BOOL, x, CAIRN_F32, n);
        assert_memory_equal(got_mask, want_mask, sizeof(want_mask));
        memset(got_f32, 0x55, sizeof(got_f32)), memset(want_f32, 0x55, sizeof(want_f32));
        cairn__convert(wide, CAIRN_F64, mask, CAIRN_BOOL, n);
        cairn__convert(want_f32, CAIRN_F32, wide, CAIRN_F64, n);
        cairn__convert(got_f32, CAIRN_F32, mask, CAIRN_BOOL, n);
        assert_memory_equal(got_f32, want_f32, sizeof(want_f32));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type_has_its_name_and_width),
        cmocka_unit_test(unknown_type_has_a_name_that_says_so),
        cmocka_unit_test(greatest_and_least_normal_values_are_exact),
        cmocka_unit_test(narrowing_keeps_subnormals),
        cmocka_unit_test(narrowing_overflows_from_the_midpoint),
        cmocka_unit_test(nan_stays_nan_and_is_quiet),
        cmocka_unit_test(nonfinite_is_found_by_exponent_bits),
        cmocka_unit_test(integers_are_cut_from_floats_and_clipped),
        cmocka_unit_test(integers_keep_their_digits_among_themselves),
        cmocka_unit_test(floats_of_integers_are_rounded_once),
        cmocka_unit_test(halves_of_f64_are_rounded_once_around_every_middle),
        cmocka_unit_test(halves_of_any_f64_are_rounded_once),
        cmocka_unit_test(halves_of_integers_are_rounded_once),
        cmocka_unit_test(every_type_holds_small_integers),
        cmocka_unit_test(masks_of_f32_are_those_of_f64),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
