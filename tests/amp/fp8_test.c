/* Encoding and decoding arrays as fp8: the formats by their definition, saturation, stochastic rounding, arguments.
 * fp8_ml_dtypes.py compares every f16, every bf16 and 10^7 f32 with ml_dtypes; kcheck compares every kernel row with
 * its reference. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "cairn/cairn.h"
#include "../check.h"

enum { N = 1 << 18, E4M3 = CAIRN_FP8_E4M3, E5M2 = CAIRN_FP8_E5M2 };

static uint8_t code_of(int format, cairn_switch saturate, float x) {
    uint8_t code = 0xaa;
    OK(cairn_fp8_encode(&code, &x, CAIRN_F32, 1,
                        cairn_fp8_options(.format = (cairn_fp8_format)format, .saturate = saturate)));
    return code;
}

static float value_of(int format, int code) {
    const uint8_t one = (uint8_t)code;
    float x = -1;
    OK(cairn_fp8_decode(&x, CAIRN_F32, &one, 1, cairn_fp8_options(.format = (cairn_fp8_format)format)));
    return x;
}

/* ---- the formats ---- */

/* Tables 1 and 2 of the specification. */
static void codes_mean_what_the_specification_says(void **state) {
    (void)state;
    static const struct {
        int format, code;
        float value;
    } table[] = {
        {E4M3, 0x00, 0},          {E4M3, 0x80, -0.0f},     {E4M3, 0x01, 0x1p-9f}, {E4M3, 0x07, 0x1.cp-7f},
        {E4M3, 0x08, 0x1p-6f},    {E4M3, 0x38, 1},         {E4M3, 0x7e, 448},     {E4M3, 0xfe, -448},
        {E4M3, 0x78, 256},        {E5M2, 0x00, 0},         {E5M2, 0x80, -0.0f},   {E5M2, 0x01, 0x1p-16f},
        {E5M2, 0x03, 0x1.8p-15f}, {E5M2, 0x04, 0x1p-14f},  {E5M2, 0x3c, 1},       {E5M2, 0x7b, 57344},
        {E5M2, 0x7c, INFINITY},   {E5M2, 0xfc, -INFINITY},
    };
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        const float x = value_of(table[i].format, table[i].code);
        assert_memory_equal(&x, &table[i].value, sizeof(x));
        assert_int_equal(code_of(table[i].format, CAIRN_OFF, table[i].value), table[i].code);
    }
    for (int code = 0x7d; code <= 0x7f; code++) assert_true(isnan(value_of(E5M2, code)));
    assert_true(isnan(value_of(E4M3, 0x7f)) && isnan(value_of(E4M3, 0xff)));
    assert_int_equal(cairn_fp8_max(CAIRN_FP8_E4M3), 448);
    assert_int_equal(cairn_fp8_max(CAIRN_FP8_E5M2), 57344);
    assert_true(isnan(cairn_fp8_max((cairn_fp8_format)3)));
}

static void values_come_back_as_they_were(void **state) {
    (void)state;
    for (int format = E4M3; format <= E5M2; format++) {
        for (int code = 0; code < 256; code++) {
            const float x = value_of(format, code);
            const int back = code_of(format, CAIRN_OFF, x);
            if (isnan(x)) assert_int_equal(back, (code & 0x80) | 0x7f);
            else assert_int_equal(back, code);
        }
    }
}

/* ---- beyond the greatest ---- */

static void what_is_too_great_is_limited_or_lost(void **state) {
    (void)state;
    static const struct {
        int format;
        float x;
        int saturated, lost;
    } table[] = {
        {E4M3, 464, 0x7e, 0x7e},      {E4M3, 0x1.d00002p8f, 0x7e, 0x7f},
        {E4M3, 480, 0x7e, 0x7f},      {E4M3, 1e30f, 0x7e, 0x7f},
        {E4M3, INFINITY, 0x7e, 0x7f}, {E4M3, -INFINITY, 0xfe, 0xff},
        {E4M3, -500, 0xfe, 0xff},     {E5M2, 0x1.dffffep15f, 0x7b, 0x7b},
        {E5M2, 61440, 0x7b, 0x7c},    {E5M2, 65536, 0x7b, 0x7c},
        {E5M2, INFINITY, 0x7b, 0x7c}, {E5M2, -INFINITY, 0xfb, 0xfc},
        {E4M3, NAN, 0x7f, 0x7f},      {E5M2, NAN, 0x7f, 0x7f},
    };
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        assert_int_equal(code_of(table[i].format, CAIRN_ON, table[i].x), table[i].saturated);
        assert_int_equal(code_of(table[i].format, CAIRN_DEFAULT, table[i].x), table[i].saturated);
        assert_int_equal(code_of(table[i].format, CAIRN_OFF, table[i].x), table[i].lost);
    }
}

static void what_is_too_small_becomes_a_zero_with_its_sign(void **state) {
    (void)state;
    assert_int_equal(code_of(E4M3, CAIRN_ON, 0x1p-10f), 0x00); /* half of the least: a tie, to even */
    assert_int_equal(code_of(E4M3, CAIRN_ON, 0x1.000002p-10f), 0x01);
    assert_int_equal(code_of(E4M3, CAIRN_ON, -0x1p-10f), 0x80);
    assert_int_equal(code_of(E4M3, CAIRN_ON, 0x1.8p-9f), 0x02); /* one and a half of it */
    assert_int_equal(code_of(E5M2, CAIRN_ON, 0x1p-17f), 0x00);
    assert_int_equal(code_of(E5M2, CAIRN_ON, -0x1p-149f), 0x80);
}

/* ---- scales, halves, in place ---- */

static void a_scale_is_taken_out_again(void **state) {
    (void)state;
    const float x[] = {1000, -1.5f, 0x1p-12f};
    float y[3];
    const float by = 1 / 0.3f;
    OK(cairn_fp8_round(y, x, CAIRN_F32, 3, cairn_fp8_options(.scale = 0x1p-2f)));
    assert_true(y[0] == 1024 && y[1] == -1.5f && y[2] == 0); /* 250 -> 256; kept; 2^-14 is below half the least */
    OK(cairn_fp8_round(y, x, CAIRN_F32, 1, cairn_fp8_options(.scale = 0.3f)));
    assert_true(y[0] == 288 * by); /* 300 is nearer to 288 than to 320 */
}

static void halves_round_as_f32_does_and_in_place(void **state) {
    (void)state;
    static uint16_t halves[0x10000], rounded[0x10000];
    static uint8_t codes[0x10000];
    for (int type = CAIRN_F16; type <= CAIRN_BF16; type++) {
        for (size_t i = 0; i < 0x10000; i++) halves[i] = (uint16_t)i;
        OK(cairn_fp8_encode(codes, halves, (cairn_dtype)type, 0x10000, cairn_fp8_options(.format = CAIRN_FP8_E5M2)));
        OK(cairn_fp8_decode(rounded, (cairn_dtype)type, codes, 0x10000, cairn_fp8_options(.format = CAIRN_FP8_E5M2)));
        OK(cairn_fp8_round(halves, halves, (cairn_dtype)type, 0x10000, cairn_fp8_options(.format = CAIRN_FP8_E5M2)));
        assert_memory_equal(halves, rounded, sizeof(halves)); /* NaN too: all have one code */
    }
}

static void nothing_is_written_of_nothing(void **state) {
    (void)state;
    float amax = -1;
    OK(cairn_fp8_encode(NULL, NULL, CAIRN_F32, 0, NULL));
    OK(cairn_fp8_decode(NULL, CAIRN_F16, NULL, 0, NULL));
    OK(cairn_fp8_round(NULL, NULL, CAIRN_BF16, 0, NULL));
    OK(cairn_fp8_amax(NULL, CAIRN_F32, 0, &amax));
    assert_true(amax == 0 && !signbit(amax));
}

/* ---- at random ---- */

static float x_of[N], y_of[N];

static void values_of_the_format_never_change(void **state) {
    (void)state;
    for (int format = E4M3; format <= E5M2; format++) {
        for (uint64_t stream = 0; stream < 20; stream++) {
            float values[256], rounded[256];
            for (int code = 0; code < 256; code++) values[code] = value_of(format, code);
            OK(cairn_fp8_round(rounded, values, CAIRN_F32, 256,
                               cairn_fp8_options(.format = (cairn_fp8_format)format, .saturate = CAIRN_OFF,
                                                 .stochastic_rounding = CAIRN_ON, .seed = 1, .stream = stream)));
            for (int code = 0; code < 256; code++) {
                if (isnan(values[code])) assert_true(isnan(rounded[code]));
                else assert_memory_equal(&values[code], &rounded[code], sizeof(float));
            }
        }
    }
}

/* x between two values: each of N goes to one of them, and the mean is within 4 sigma of x. */
static void expect_mean(int format, float x, float below, float above, uint64_t seed) {
    const double distance = (double)above - (double)below, p = ((double)x - (double)below) / distance;
    double sum = 0;
    for (size_t i = 0; i < N; i++) x_of[i] = x;
    OK(cairn_fp8_round(y_of, x_of, CAIRN_F32, N,
                       cairn_fp8_options(.format = (cairn_fp8_format)format, .stochastic_rounding = CAIRN_ON,
                                         .seed = seed, .stream = 5)));
    for (size_t i = 0; i < N; i++) {
        assert_true(y_of[i] == below || y_of[i] == above);
        sum += ((double)y_of[i] - (double)below) / distance;
    }
    const double sigma = sqrt(p * (1 - p) / N);
    if (fabs(sum / N - p) > 4 * sigma) fail_msg("%g goes up in %g of all cases, want %g", (double)x, sum / N, p);
}

static void the_mean_of_random_rounding_is_the_value(void **state) {
    (void)state;
    expect_mean(E4M3, 1.03f, 1, 1.125f, 1);
    expect_mean(E4M3, 300.1f, 288, 320, 2);
    expect_mean(E4M3, 0x1.1p-6f, 0x1p-6f, 0x1.2p-6f, 3); /* the least normal ones */
    expect_mean(E4M3, 0x1.3p-8f, 0x1p-8f, 0x1.8p-8f, 4); /* subnormal ones */
    expect_mean(E4M3, 0x1.4p-13f, 0, 0x1p-9f, 5);        /* below all values */
    expect_mean(E5M2, 50000.5f, 49152, 57344, 6);
    expect_mean(E5M2, 0x1.99999ap-20f, 0, 0x1p-16f, 7);
    expect_mean(E5M2, -3.1f, -3.5f, -3, 8);
}

static void random_rounding_is_that_of_the_stream(void **state) {
    (void)state;
    static float again[N];
    for (size_t i = 0; i < N; i++) x_of[i] = 1.03f + (float)(i % 7);
    const struct cairn_fp8_options *o = cairn_fp8_options(.stochastic_rounding = CAIRN_ON, .seed = 3, .stream = 1);
    const struct cairn_fp8_options *other = cairn_fp8_options(.stochastic_rounding = CAIRN_ON, .seed = 3, .stream = 2);
    OK(cairn_fp8_round(y_of, x_of, CAIRN_F32, N, o));
    OK(cairn_fp8_round(again, x_of, CAIRN_F32, N, o));
    assert_memory_equal(y_of, again, sizeof(again));
    OK(cairn_fp8_round(again, x_of, CAIRN_F32, N, other));
    assert_memory_not_equal(y_of, again, sizeof(again));
}

static void random_rounding_at_the_end_saturates_or_is_lost(void **state) {
    (void)state;
    int lost = 0;
    for (size_t i = 0; i < N; i++) x_of[i] = 456; /* a quarter of the way from 448 to 480 */
    const struct cairn_fp8_options *o = cairn_fp8_options(.stochastic_rounding = CAIRN_ON, .saturate = CAIRN_OFF);
    OK(cairn_fp8_round(y_of, x_of, CAIRN_F32, N, cairn_fp8_options(.stochastic_rounding = CAIRN_ON)));
    for (size_t i = 0; i < N; i++) assert_true(y_of[i] == 448);
    OK(cairn_fp8_round(y_of, x_of, CAIRN_F32, N, o));
    for (size_t i = 0; i < N; i++) {
        assert_true(y_of[i] == 448 || isnan(y_of[i]));
        lost += isnan(y_of[i]) != 0;
    }
    assert_true(fabs(lost / (double)N - 0.25) <= 4 * sqrt(0.25 * 0.75 / N));
}

/* Pieces of an array are the same for any number of threads, and so are the random numbers of their elements. */
static void threads_change_no_bit(void **state) {
    (void)state;
    static float alone[N];
    static uint16_t halves[N], some[N];
    float amax[2];
    const struct cairn_fp8_options *o = cairn_fp8_options(.stochastic_rounding = CAIRN_ON, .seed = 4, .stream = 2);
    for (size_t i = 0; i < N; i++) x_of[i] = (float)((i * 7919) % 10007) / 300, halves[i] = (uint16_t)(i % 0x7c00);
    x_of[N - 3] = 1e9f;
    OK(cairn_fp8_round(alone, x_of, CAIRN_F32, N, o));
    OK(cairn_fp8_round(some, halves, CAIRN_F16, N, o));
    OK(cairn_fp8_amax(x_of, CAIRN_F32, N, &amax[0]));
    OK(cairn_set_num_threads(3));
    OK(cairn_fp8_round(y_of, x_of, CAIRN_F32, N, o));
    OK(cairn_fp8_round(halves, halves, CAIRN_F16, N, o));
    OK(cairn_fp8_amax(x_of, CAIRN_F32, N, &amax[1]));
    OK(cairn_set_num_threads(1));
    assert_memory_equal(alone, y_of, sizeof(alone));
    assert_memory_equal(some, halves, sizeof(some));
    assert_true(amax[0] == 1e9f && amax[1] == 1e9f);
}

/* ---- the greatest magnitude ---- */

static void amax_counts_infinities_and_no_nan(void **state) {
    (void)state;
    const float x[] = {1, -3, NAN, 2};
    const float far[] = {1, -INFINITY, NAN};
    const float wrong[] = {NAN, -NAN, 0};
    const uint16_t halves[] = {0x3c00, 0xc400, 0x7e00}; /* 1, -4, NaN */
    float amax;
    OK(cairn_fp8_amax(x, CAIRN_F32, 4, &amax));
    assert_true(amax == 3);
    OK(cairn_fp8_amax(far, CAIRN_F32, 3, &amax));
    assert_true(amax == INFINITY);
    OK(cairn_fp8_amax(wrong, CAIRN_F32, 3, &amax));
    assert_true(amax == 0);
    OK(cairn_fp8_amax(halves, CAIRN_F16, 3, &amax));
    assert_true(amax == 4);
}

static void nonsense_is_refused(void **state) {
    (void)state;
    float x[2] = {1, 2}, amax;
    uint8_t codes[2] = {7, 7};
    REFUSED(cairn_fp8_encode(NULL, x, CAIRN_F32, 2, NULL), CAIRN_EINVAL, "cairn_fp8_encode: an array is NULL");
    REFUSED(cairn_fp8_encode(codes, x, CAIRN_F64, 2, NULL), CAIRN_EINVAL, "dtype is f64");
    REFUSED(cairn_fp8_encode(codes, x, CAIRN_F32, 2, cairn_fp8_options(.format = (cairn_fp8_format)3)), CAIRN_EINVAL,
            "format is 3");
    REFUSED(cairn_fp8_round(x, x, CAIRN_F32, 2, cairn_fp8_options(.scale = -1)), CAIRN_EINVAL, "scale is -1");
    REFUSED(cairn_fp8_round(x, x, CAIRN_F32, 2, cairn_fp8_options(.scale = NAN)), CAIRN_EINVAL, "above 0");
    REFUSED(cairn_fp8_round(x, x, CAIRN_F32, 2, cairn_fp8_options(.scale = INFINITY)), CAIRN_EINVAL, "finite");
    REFUSED(cairn_fp8_round(x, x, CAIRN_F32, 2, cairn_fp8_options(.scale = 1e-45f)), CAIRN_EINVAL, "1 / scale");
    REFUSED(cairn_fp8_round(x, x, CAIRN_F32, 2, cairn_fp8_options(.saturate = (cairn_switch)9)), CAIRN_EINVAL,
            "saturate is 9");
    REFUSED(cairn_fp8_decode(x, CAIRN_I32, codes, 2, NULL), CAIRN_EINVAL, "dtype is i32");
    REFUSED(cairn_fp8_amax(x, CAIRN_F32, 2, NULL), CAIRN_EINVAL, "amax is NULL");
    REFUSED(cairn_fp8_amax(NULL, CAIRN_F32, 2, &amax), CAIRN_EINVAL, "an array is NULL");
    assert_true(x[0] == 1 && x[1] == 2 && codes[0] == 7 && codes[1] == 7);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(codes_mean_what_the_specification_says),
        cmocka_unit_test(values_come_back_as_they_were),
        cmocka_unit_test(what_is_too_great_is_limited_or_lost),
        cmocka_unit_test(what_is_too_small_becomes_a_zero_with_its_sign),
        cmocka_unit_test(a_scale_is_taken_out_again),
        cmocka_unit_test(halves_round_as_f32_does_and_in_place),
        cmocka_unit_test(nothing_is_written_of_nothing),
        cmocka_unit_test(values_of_the_format_never_change),
        cmocka_unit_test(the_mean_of_random_rounding_is_the_value),
        cmocka_unit_test(random_rounding_is_that_of_the_stream),
        cmocka_unit_test(random_rounding_at_the_end_saturates_or_is_lost),
        cmocka_unit_test(threads_change_no_bit),
        cmocka_unit_test(amax_counts_infinities_and_no_nan),
        cmocka_unit_test(nonsense_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
