/* The table of element types, and what is promised of the half types. kcheck goes through all their values. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

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
        {CAIRN_F32, "f32", 4, true, false},  {CAIRN_F16, "f16", 2, true, true},   {CAIRN_BF16, "bf16", 2, true, true},
        {CAIRN_I32, "i32", 4, false, false}, {CAIRN_I64, "i64", 8, false, false},
    };
    assert_int_equal(sizeof(want) / sizeof(want[0]), CAIRN__DTYPE_END - 1);
    for (size_t i = 0; i < sizeof(want) / sizeof(want[0]); i++) {
        const struct cairn__dtype *d = cairn__dtype(want[i].dtype);
        assert_non_null(d);
        assert_string_equal(cairn_dtype_name(want[i].dtype), want[i].name);
        assert_int_equal(cairn_dtype_nbytes(want[i].dtype), want[i].nbytes);
        assert_int_equal(d->is_float, want[i].is_float);
        assert_int_equal(cairn__is_half(want[i].dtype), want[i].is_half);
        assert_int_equal(d->to_f32 != NULL, want[i].is_float);
    }
}

static void what_is_no_type_is_told_so(void **state) {
    (void)state;
    static const int none[] = {0, -1, CAIRN__DTYPE_END, 1000};
    for (size_t i = 0; i < sizeof(none) / sizeof(none[0]); i++) {
        assert_null(cairn__dtype((cairn_dtype)none[i]));
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

static void nonfinite_is_told_by_exponent_bits(void **state) {
    (void)state;
    assert_true(cairn__f32_nonfinite(INFINITY) && cairn__f32_nonfinite(-INFINITY) && cairn__f32_nonfinite(NAN));
    assert_true(cairn__f32_nonfinite(cairn__f32_from_bits(0x7f800001)));
    assert_false(cairn__f32_nonfinite(0) || cairn__f32_nonfinite(0x1.fffffep127f) || cairn__f32_nonfinite(0x1p-149f));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type_has_its_name_and_width),          cmocka_unit_test(what_is_no_type_is_told_so),
        cmocka_unit_test(greatest_and_least_normal_values_are_exact), cmocka_unit_test(narrowing_keeps_subnormals),
        cmocka_unit_test(narrowing_overflows_from_the_midpoint),      cmocka_unit_test(nan_stays_nan_and_is_quiet),
        cmocka_unit_test(nonfinite_is_told_by_exponent_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
