/* Exponent counts: of memory, tensors and samples; what each format would lose; as histograms; and comparisons with an
 * f32 twin. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "../one_env.h"
#include "core/half.h"

static struct cairn_exponents fresh(void) {
    return (struct cairn_exponents)CAIRN_EXPONENTS_INIT;
}

static uint64_t in_binade(const struct cairn_exponents *e, int b) {
    return e->binades[b - CAIRN_LEAST_BINADE];
}

static void each_class_of_an_f32_is_counted(void **state) {
    const float x[] = {0, -0.0f, 1, -1.5f, 2, 0x1p-149f, 0x1.8p-148f, 0x1p-126f, INFINITY, -INFINITY, NAN, 3e38f};
    struct cairn_exponents e = fresh();
    int binade = 0;
    OK(cairn_exponents_count(*state, x, 12, CAIRN_F32, NULL, &e));
    assert_true(e.zeros == 2 && e.infs == 2 && e.nans == 1 && e.below == 0 && e.above == 0);
    assert_true(in_binade(&e, 0) == 2 && in_binade(&e, 1) == 1 && in_binade(&e, 127) == 1);
    assert_true(in_binade(&e, -149) == 1 && in_binade(&e, -148) == 1 && in_binade(&e, -126) == 1);
    assert_int_equal(cairn_exponents_total(&e), 12);
    assert_int_equal(cairn_exponents_greatest(&e, &binade), 1);
    assert_int_equal(binade, 127);
    OK(cairn_exponents_count(*state, x, 1, CAIRN_F32, NULL, &e)); /* is added */
    assert_int_equal(e.zeros, 3);
}

static void every_half_is_counted_as_frexp_has_it(void **state) {
    static uint16_t x[0x10000];
    for (uint32_t i = 0; i < 0x10000; i++) x[i] = (uint16_t)i;
    for (cairn_dtype t = CAIRN_F16; t <= CAIRN_BF16; t++) {
        struct cairn_exponents e = fresh(), want = fresh();
        for (uint32_t i = 0; i < 0x10000; i++) {
            const double v = (double)(t == CAIRN_F16 ? cairn__f16_to_f32(x[i]) : cairn__bf16_to_f32(x[i]));
            int above;
            (void)frexp(v, &above);
            if (isnan(v)) want.nans++;
            else if (isinf(v)) want.infs++;
            else if (v == 0) want.zeros++;
            else want.binades[above - 1 - CAIRN_LEAST_BINADE]++;
        }
        OK(cairn_exponents_count(*state, x, 0x10000, t, NULL, &e));
        assert_memory_equal(&e, &want, sizeof(e));
    }
}

static void f64_goes_below_and_above(void **state) {
    const double x[] = {0x1p-150, 0x1p-149, 0x1p127, 0x1p128, -0x1p1023};
    struct cairn_exponents e = fresh();
    OK(cairn_exponents_count(*state, x, 5, CAIRN_F64, NULL, &e));
    assert_true(e.below == 1 && e.above == 2 && in_binade(&e, -149) == 1 && in_binade(&e, 127) == 1);
}

static void nothing_has_no_exponents(void **state) {
    struct cairn_exponents e = fresh();
    struct cairn_exponents_loss loss;
    OK(cairn_exponents_count(*state, NULL, 0, CAIRN_F16, NULL, &e));
    assert_int_equal(cairn_exponents_total(&e), 0);
    assert_int_equal(cairn_exponents_greatest(&e, NULL), 0);
    OK(cairn_exponents_lose(&e, 1, CAIRN_RANGE_F16, &loss));
    assert_true(loss.to_zero == 0 && loss.to_inf_at_most == 0);
    assert_int_equal(cairn_exponents_total(NULL), 0);
    assert_int_equal(cairn_exponents_greatest(NULL, NULL), 0);
}

/* Blocks 0, 3, 6 of ten and a short one; each block's elements are in a binade of its own. */
static void a_sample_is_every_third_block(void **state) {
    enum { BLOCK = CAIRN_EXPONENTS_BLOCK, N = 9 * BLOCK + 17 };
    static float x[N];
    struct cairn_exponents e = fresh(), short_one = fresh();
    for (int i = 0; i < N; i++) x[i] = ldexpf(1, i / BLOCK);
    OK(cairn_exponents_count(*state, x, N, CAIRN_F32, cairn_exponents_options(.every = 3), &e));
    assert_int_equal(cairn_exponents_total(&e), 3 * BLOCK + 17);
    for (int b = 0; b < 10; b++) assert_int_equal(in_binade(&e, b), b % 3 ? 0 : b == 9 ? 17 : BLOCK);
    OK(cairn_exponents_count(*state, x, N, CAIRN_F32, cairn_exponents_options(.every = SIZE_MAX), &short_one));
    assert_int_equal(cairn_exponents_total(&short_one), BLOCK);
}

/* More blocks than are listed at once. */
static void a_sample_of_many_blocks_has_them_all(void **state) {
    enum { BLOCK = CAIRN_EXPONENTS_BLOCK, N = 300 * BLOCK };
    uint16_t *x = calloc(N, sizeof(*x));
    struct cairn_exponents e = fresh();
    assert_non_null(x);
    OK(cairn_exponents_count(*state, x, N, CAIRN_BF16, cairn_exponents_options(.every = 2), &e));
    free(x);
    assert_int_equal(e.zeros, 150 * BLOCK);
}

static void a_strided_view_counts_only_its_own_elements(void **state) {
    float values[12];
    struct cairn_exponents whole = fresh(), half = fresh();
    for (int i = 0; i < 12; i++) values[i] = ldexpf(1, i);
    cairn_tensor *t = cairn_tensor_from(*state, CAIRN_F32, CAIRN_SHAPE(3, 4), values);
    OK(cairn_exponents_count_tensor(t, NULL, &whole));
    OK(cairn_exponents_count_tensor(cairn_slice(t, 1, 1, 3, 1), NULL, &half));
    for (int b = 0; b < 12; b++) {
        assert_int_equal(in_binade(&whole, b), 1);
        assert_int_equal(in_binade(&half, b), b % 4 == 1 || b % 4 == 2);
    }
    assert_int_equal(cairn_exponents_total(&half), 6);
    cairn_tensor_destroy(&t);
}

static void counts_are_added_and_older_structs_keep_their_size(void **state) {
    (void)state;
    struct cairn_exponents a = fresh(), b = fresh();
    a.zeros = 1, b.zeros = 2, b.infs = 3, b.nans = 4, b.below = 5, b.above = 6, b.binades[276] = 7;
    OK(cairn_exponents_add(&a, &b));
    assert_true(a.zeros == 3 && a.infs == 3 && a.nans == 4 && a.below == 5 && a.above == 6 && a.binades[276] == 7);
    b.struct_size = offsetof(struct cairn_exponents, infs);
    OK(cairn_exponents_add(&b, &a));
    assert_true(b.zeros == 5 && b.infs == 3); /* behind its end */
}

static void misuse_is_refused_with_what_to_do(void **state) {
    struct cairn_exponents e = fresh(), unset = {0};
    struct cairn_exponents_loss loss;
    struct cairn_exponents_buckets buckets;
    struct cairn_histogram h = *cairn_histogram();
    float x[2] = {0};
    REFUSED(cairn_exponents_count(*state, x, 2, CAIRN_I32, NULL, &e), CAIRN_EINVAL, "it must be f32, f16, bf16 or f64");
    REFUSED(cairn_exponents_count(*state, NULL, 2, CAIRN_F32, NULL, &e), CAIRN_EINVAL, "x is NULL, but there are 2");
    REFUSED(cairn_exponents_count(*state, (char *)x + 1, 1, CAIRN_F32, NULL, &e), CAIRN_EINVAL, "not aligned for f32");
    REFUSED(cairn_exponents_count(NULL, x, 2, CAIRN_F32, NULL, &e), CAIRN_EINVAL, "env is NULL");
    REFUSED(cairn_exponents_count(*state, x, 2, CAIRN_F32, NULL, NULL), CAIRN_EINVAL, "counts must be set");
    REFUSED(cairn_exponents_count(*state, x, 2, CAIRN_F32, NULL, &unset), CAIRN_EINVAL, "struct_size");
    REFUSED(cairn_exponents_count_tensor(NULL, NULL, &e), CAIRN_EINVAL, "the tensor is NULL");
    cairn_tensor *t = cairn_zeros(*state, CAIRN_I64, CAIRN_SHAPE(2));
    REFUSED(cairn_exponents_count_tensor(t, NULL, &e), CAIRN_EINVAL, "i64, which has no exponents");
    cairn_tensor_destroy(&t);
    REFUSED(cairn_exponents_lose(&e, 0, CAIRN_RANGE_F16, &loss), CAIRN_EINVAL, "above 0 and finite");
    REFUSED(cairn_exponents_lose(&e, (double)NAN, CAIRN_RANGE_F16, &loss), CAIRN_EINVAL, "above 0 and finite");
    REFUSED(cairn_exponents_lose(&e, 1, NULL, &loss), CAIRN_EINVAL, "range and out");
    REFUSED(cairn_exponents_histogram(&e, -1, &buckets, &h), CAIRN_EINVAL, "above 0 and finite");
    REFUSED(cairn_exponents_histogram(&e, 1, NULL, &h), CAIRN_EINVAL, "buckets and out");
    assert_int_equal(cairn_exponents_total(&e), 0);
}

/* ---- what formats lose ---- */

/* Each binade once, of which the shares are multiples of 1/277. */
static double lost(double scale, const struct cairn_number_range *range, bool inf, bool at_most) {
    struct cairn_exponents e = fresh();
    struct cairn_exponents_loss loss;
    e.zeros = 1000; /* not among what can be lost */
    for (int b = 0; b < CAIRN_NUM_BINADES; b++) e.binades[b] = 1;
    OK(cairn_exponents_lose(&e, scale, range, &loss));
    const double share = inf       ? at_most ? loss.to_inf_at_most : loss.to_inf
                         : at_most ? loss.to_zero_at_most
                                   : loss.to_zero;
    return round(share * CAIRN_NUM_BINADES * 1e6) / 1e6;
}

/* f16's least is 2^-24: below 2^-25 all is lost, and 2^-25 itself, which is in the next binade. From 65520 on all is
 * infinite, which is in the binade of 32768. */
static void binades_that_a_format_loses_are_those_beyond_its_bounds(void **state) {
    (void)state;
    static const struct {
        double scale;
        double zero, inf;
    } of_f16[] = {{1, 149 - 25, 128 - 16}, {1024, 149 - 35, 128 - 6}, {0.5, 149 - 24, 128 - 17}};
    for (size_t i = 0; i < sizeof(of_f16) / sizeof(of_f16[0]); i++) {
        const double s = of_f16[i].scale;
        assert_true(lost(s, CAIRN_RANGE_F16, false, false) == of_f16[i].zero);
        assert_true(lost(s, CAIRN_RANGE_F16, false, true) == of_f16[i].zero + 1);
        assert_true(lost(s, CAIRN_RANGE_F16, true, false) == of_f16[i].inf);
        assert_true(lost(s, CAIRN_RANGE_F16, true, true) == of_f16[i].inf + 1);
    }
    assert_true(lost(1, CAIRN_RANGE_BF16, false, false) == 149 - 134);
    assert_true(lost(1, CAIRN_RANGE_BF16, true, false) == 0 && lost(1, CAIRN_RANGE_BF16, true, true) == 1);
    assert_true(lost(1, CAIRN_RANGE_E5M2, false, false) == 149 - 17 && lost(1, CAIRN_RANGE_E5M2, true, false) == 112);
    assert_true(lost(1, CAIRN_RANGE_E4M3, false, false) == 149 - 10 && lost(1, CAIRN_RANGE_E4M3, true, false) == 119);
}

/* Rounded for real, by the casts of the library, the share lies between the bounds; and is to_zero where no element is
 * on the edge. */
static void what_is_lost_is_what_casts_lose(void **state) {
    enum { N = 1 << 16 };
    static float x[N];
    struct cairn_exponents e = fresh();
    struct cairn_exponents_loss loss;
    uint64_t seed = 3, zeros = 0, infs = 0;
    for (int i = 0; i < N; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        x[i] = ldexpf(1 + (float)(2 + (seed >> 41)) * 0x1p-24f, (int)(seed >> 20 & 63) - 40);
        const uint16_t half = cairn__f32_to_f16(x[i] * 16);
        zeros += half == 0, infs += half == 0x7c00;
    }
    OK(cairn_exponents_count(*state, x, N, CAIRN_F32, NULL, &e));
    OK(cairn_exponents_lose(&e, 16, CAIRN_RANGE_F16, &loss));
    assert_true(zeros > 0 && infs > 0);
    assert_true(fabs(loss.to_zero * N - (double)zeros) < 1e-6);
    assert_true(loss.to_inf * N <= (double)infs && loss.to_inf_at_most * N >= (double)infs);
}

/* ---- as a histogram ---- */

static void a_histogram_has_limits_that_grow_and_what_no_bucket_has(void **state) {
    const float x[] = {0, 0, 0.75f, 1, 1.5f, 5, INFINITY, NAN};
    struct cairn_exponents e = fresh();
    struct cairn_exponents_buckets buckets;
    struct cairn_histogram h = *cairn_histogram();
    OK(cairn_exponents_count(*state, x, 8, CAIRN_F32, NULL, &e));
    OK(cairn_exponents_histogram(&e, 1024, &buckets, &h));
    const double limits[] = {0, 1, 2, 4, 8}, counts[] = {2, 1, 2, 0, 1};
    assert_int_equal(h.num_buckets, 5);
    assert_memory_equal(h.limits, limits, sizeof(limits));
    assert_memory_equal(h.counts, counts, sizeof(counts));
    assert_true(h.count == 6 && h.num_zeros == 2 && h.num_infs == 1 && h.num_nans == 1 && h.scale == 1024);
    assert_true(h.min == 0 && h.max == 8 && h.sum == 0.75 + 3 + 6 && h.exponents == &e);
    OK(cairn_histogram_record("x", 1, &h)); /* without a writer */
}

static void a_histogram_of_nothing_has_one_bucket(void **state) {
    (void)state;
    struct cairn_exponents e = fresh();
    struct cairn_exponents_buckets buckets;
    struct cairn_histogram h = *cairn_histogram();
    OK(cairn_exponents_histogram(&e, 1, &buckets, &h));
    assert_true(h.count == 0 && h.num_buckets == 1 && h.limits[0] == 0 && h.max == 0);
}

/* ---- twins ---- */

static void comparing_with_a_twin_counts_what_became_zero_or_infinite(void **state) {
    const float twin[] = {1, 0x1p-30f, 1e6f, 0, INFINITY, NAN, 0x1p-140f, 2};
    const uint16_t half[] = {0x3c00, 0, 0x7c00, 0x3c00, 0x7c00, 0x7e00, 0x8000, 0x7e00};
    struct cairn_twin_loss loss = {.nonzero = 10};
    OK(cairn_exponents_compare(*state, half, CAIRN_F16, twin, 8, &loss));
    assert_true(loss.nonzero == 15 && loss.to_zero == 2 && loss.to_inf == 1 && loss.to_nan == 1);
    REFUSED(cairn_exponents_compare(*state, half, CAIRN_I64, twin, 8, &loss), CAIRN_EINVAL, "f16, bf16 or f32");
    REFUSED(cairn_exponents_compare(*state, NULL, CAIRN_F16, twin, 8, &loss), CAIRN_EINVAL, "half is NULL");
    REFUSED(cairn_exponents_compare(*state, half, CAIRN_F16, NULL, 8, &loss), CAIRN_EINVAL, "twin is NULL");
}

static void hear(void *ctx, const struct cairn_event *e) {
    if (e->kind == CAIRN_EVENT_SCALAR && strcmp(e->name, "lost_to_zero/w") == 0 && e->index == 7)
        *(double *)ctx = e->value;
}

static void twins_of_a_set_are_compared_by_name(void **state) {
    cairn_env *env = *state;
    float w[4] = {0}, twin_grad[4] = {1, 0x1p-30f, 0x1p-31f, 4};
    uint16_t half_w[4] = {0}, half_grad[4] = {0x3c00, 0, 0, 0x4400};
    const cairn_param of_half = {"w", half_w, half_grad, CAIRN_F16, 1, {4}, CAIRN_OFF};
    const cairn_param of_twin = {"w", w, twin_grad, CAIRN_F32, 1, {4}, CAIRN_OFF};
    const cairn_param other = {"v", w, twin_grad, CAIRN_F32, 1, {4}, CAIRN_OFF};
    cairn_param_set *half = NULL, *twin = NULL, *stranger = NULL;
    cairn_writer *writer = NULL;
    struct cairn_twin_loss total;
    double share = -1;
    OK(cairn_param_set_create(env, &of_half, 1, &half));
    OK(cairn_param_set_create(env, &of_twin, 1, &twin));
    OK(cairn_param_set_create(env, &other, 1, &stranger));
    OK(cairn_exponents_compare_params(half, twin, 7, &total));
    assert_int_equal(total.nonzero, 0); /* no gradient is there */
    OK(cairn_grads_ready(half, 0, 1));
    OK(cairn_grads_ready(twin, 0, 1));
    OK(cairn_writer_create(hear, &share, &writer));
    OK(cairn_exponents_compare_params(half, twin, 7, &total));
    cairn_writer_destroy(&writer);
    assert_true(total.nonzero == 4 && total.to_zero == 2 && total.to_inf == 0 && share == 0.5);
    REFUSED(cairn_exponents_compare_params(half, stranger, 7, &total), CAIRN_EINVAL, "'w' with 4 elements");
    REFUSED(cairn_exponents_compare_params(twin, half, 7, &total), CAIRN_EINVAL, "must be f32");
    REFUSED(cairn_exponents_compare_params(NULL, twin, 7, &total), CAIRN_EINVAL, "both sets");
    cairn_param_set_destroy(&half);
    cairn_param_set_destroy(&twin);
    cairn_param_set_destroy(&stranger);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_class_of_an_f32_is_counted),
        cmocka_unit_test(every_half_is_counted_as_frexp_has_it),
        cmocka_unit_test(f64_goes_below_and_above),
        cmocka_unit_test(nothing_has_no_exponents),
        cmocka_unit_test(a_sample_is_every_third_block),
        cmocka_unit_test(a_sample_of_many_blocks_has_them_all),
        cmocka_unit_test(a_strided_view_counts_only_its_own_elements),
        cmocka_unit_test(counts_are_added_and_older_structs_keep_their_size),
        cmocka_unit_test(misuse_is_refused_with_what_to_do),
        cmocka_unit_test(binades_that_a_format_loses_are_those_beyond_its_bounds),
        cmocka_unit_test(what_is_lost_is_what_casts_lose),
        cmocka_unit_test(a_histogram_has_limits_that_grow_and_what_no_bucket_has),
        cmocka_unit_test(a_histogram_of_nothing_has_one_bucket),
        cmocka_unit_test(comparing_with_a_twin_counts_what_became_zero_or_infinite),
        cmocka_unit_test(twins_of_a_set_are_compared_by_name),
    };
    return cmocka_run_group_tests(tests, make_env, end_env);
}
