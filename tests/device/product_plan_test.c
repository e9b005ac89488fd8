/* The arguments for cuBLASLt: plain column-major loops compute with them on small integers, and the result is compared
 * with the row-major definition in device.h; and the index of products. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "device/cuda/math_table.h"
#include "device/cuda/product_plan.h"

enum { ROOM = 600 };

static float a[ROOM], b[ROOM], c[ROOM], want[ROOM], want_sums[ROOM];
static _Alignas(CAIRN__PRODUCT_EXTRA_ALIGN) float bias[ROOM], sums[ROOM];

static void fill(float *x, unsigned seed) {
    for (size_t i = 0; i < ROOM; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (float)((int)(seed >> 16) % 9 - 4);
    }
}

/* ---- the definition ---- */

static float left(const struct cairn__matmul *p, int64_t i, int64_t l) {
    return a[p->trans_a ? l * p->m + i : i * p->k + l];
}

static float right(const struct cairn__matmul *p, int64_t l, int64_t j) {
    return b[p->trans_b ? j * p->k + l : l * p->n + j];
}

static void define(const struct cairn__matmul *p) {
    for (int64_t i = 0; i < p->m; i++) {
        want_sums[i] = 0;
        for (int64_t l = 0; l < p->k; l++) want_sums[i] += left(p, i, l);
        for (int64_t j = 0; j < p->n; j++) {
            float sum = p->bias ? bias[j] : 0;
            for (int64_t l = 0; l < p->k; l++) sum += left(p, i, l) * right(p, l, j);
            want[i * p->n + j] = p->relu && sum < 0 ? 0 : sum;
        }
    }
}

/* ---- cuBLASLt's side ---- */

static float at(const void *matrix, int64_t ld, bool trans, uint64_t row, uint64_t col) {
    const float *x = matrix;
    return trans ? x[col + row * (uint64_t)ld] : x[row + col * (uint64_t)ld];
}

static void finish(const struct cairn__product_plan *plan, uint64_t row, float *value) {
    const enum cairn__epilogue e = (enum cairn__epilogue)plan->key.epilogue;
    if (e == CAIRN__EPILOGUE_BIAS || e == CAIRN__EPILOGUE_BIAS_RELU) *value += ((const float *)plan->extra)[row];
    if ((e == CAIRN__EPILOGUE_RELU || e == CAIRN__EPILOGUE_BIAS_RELU) && *value < 0) *value = 0;
}

static void simulate(const struct cairn__product_plan *plan) {
    const struct cairn__product_key *k = &plan->key;
    float *out = plan->out;
    assert_int_equal(k->batch, 1);
    assert_true(plan->alpha == 1);
    for (uint64_t col = 0; col < k->cols; col++) {
        float second_sum = 0;
        for (uint64_t i = 0; i < k->inner; i++) {
            second_sum += at(plan->second, k->ld_second, k->trans_second, i, col);
        }
        if (k->epilogue == CAIRN__EPILOGUE_ROW_SUMS) ((float *)plan->extra)[col] = second_sum;
        for (uint64_t row = 0; row < k->rows; row++) {
            float sum = 0;
            for (uint64_t i = 0; i < k->inner; i++) {
                sum += at(plan->first, k->ld_first, k->trans_first, row, i) *
                       at(plan->second, k->ld_second, k->trans_second, i, col);
            }
            finish(plan, row, &sum);
            out[row + col * (uint64_t)k->ld_out] = sum;
        }
    }
}

static void check(struct cairn__matmul p, unsigned flags) {
    struct cairn__product_plan plan;
    p.trans_a = flags & 1;
    p.trans_b = flags & 2;
    p.relu = flags & 4;
    p.bias = flags & 8 ? bias : NULL;
    p.row_sums = flags & 16 ? sums : NULL;
    p.in_type = p.out_type = CAIRN_F32;
    p.a = a, p.b = b, p.c = c;
    fill(c, 4), fill(sums, 5);
    define(&p);
    cairn__product_plan(&p, false, &plan);
    simulate(&plan);
    assert_memory_equal(c, want, (size_t)(p.m * p.n) * sizeof(float));
    assert_int_equal(plan.row_sums, p.row_sums && (p.bias || p.relu));
    if (p.row_sums && !plan.row_sums) assert_memory_equal(sums, want_sums, (size_t)p.m * sizeof(float));
}

static void column_major_products_match_ours_in_every_orientation(void **state) {
    (void)state;
    static const int64_t shapes[][3] = {{3, 4, 5}, {5, 4, 3}, {1, 1, 1}, {1, 7, 2}, {7, 1, 2}, {2, 3, 1}, {16, 8, 32}};
    fill(a, 1), fill(b, 2), fill(bias, 3);
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        for (unsigned flags = 0; flags < 32; flags++) {
            check((struct cairn__matmul){.m = shapes[i][0], .n = shapes[i][1], .k = shapes[i][2]}, flags);
        }
    }
}

static struct cairn__product_plan plan_of(const struct cairn__matmul *p, bool tf32) {
    struct cairn__product_plan plan;
    cairn__product_plan(p, tf32, &plan);
    return plan;
}

static struct cairn__matmul some_product(void) {
    return (struct cairn__matmul){.m = 2, .n = 3, .k = 4, .in_type = CAIRN_F16, .out_type = CAIRN_F32};
}

static void bias_and_relu_share_the_epilogue_and_sums_take_a_free_one(void **state) {
    (void)state;
    static const struct {
        bool bias, relu, row_sums;
        enum cairn__epilogue epilogue;
        bool sums_left;
    } cases[] = {
        {false, false, false, CAIRN__EPILOGUE_NONE, false},    {true, false, false, CAIRN__EPILOGUE_BIAS, false},
        {false, true, false, CAIRN__EPILOGUE_RELU, false},     {true, true, false, CAIRN__EPILOGUE_BIAS_RELU, false},
        {false, false, true, CAIRN__EPILOGUE_ROW_SUMS, false}, {true, true, true, CAIRN__EPILOGUE_BIAS_RELU, true},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct cairn__matmul p = some_product();
        p.bias = cases[i].bias ? bias : NULL;
        p.relu = cases[i].relu;
        p.row_sums = cases[i].row_sums ? sums : NULL;
        const struct cairn__product_plan plan = plan_of(&p, false);
        assert_int_equal(plan.key.epilogue, cases[i].epilogue);
        assert_ptr_equal(plan.extra, cases[i].bias ? bias : cases[i].row_sums ? sums : NULL);
        assert_int_equal(plan.row_sums, cases[i].sums_left);
    }
}

/* Views into larger tensors may begin anywhere. */
static void epilogue_takes_what_is_aligned_to_16_bytes(void **state) {
    (void)state;
    for (size_t offset = 0; offset <= 8; offset++) {
        const bool aligned = offset % 4 == 0;
        for (int relu = 0; relu <= 1; relu++) {
            struct cairn__matmul p = some_product();
            p.relu = relu;
            p.bias = bias + offset;
            const struct cairn__product_plan plan = plan_of(&p, false);
            assert_int_equal(plan.key.epilogue, !aligned ? CAIRN__EPILOGUE_NONE
                                                : relu   ? CAIRN__EPILOGUE_BIAS_RELU
                                                         : CAIRN__EPILOGUE_BIAS);
            assert_ptr_equal(plan.extra, aligned ? bias + offset : NULL);
            assert_int_equal(plan.bias, !aligned);
        }
        struct cairn__matmul p = some_product();
        p.row_sums = sums + offset;
        const struct cairn__product_plan plan = plan_of(&p, false);
        assert_int_equal(plan.key.epilogue, aligned ? CAIRN__EPILOGUE_ROW_SUMS : CAIRN__EPILOGUE_NONE);
        assert_ptr_equal(plan.extra, aligned ? sums + offset : NULL);
        assert_int_equal(plan.row_sums, !aligned);
    }
}

static void tf32_is_for_f32_operands(void **state) {
    (void)state;
    struct cairn__matmul p = some_product();
    assert_int_equal(plan_of(&p, true).key.tf32, 0);
    p.in_type = CAIRN_F32;
    assert_int_equal(plan_of(&p, true).key.tf32, 1);
    assert_int_equal(plan_of(&p, false).key.tf32, 0);
}

static void alignments_are_those_of_the_addresses(void **state) {
    (void)state;
    struct cairn__matmul p = some_product();
    p.a = (const void *)(uintptr_t)0x1002;
    p.b = (const void *)(uintptr_t)0x1010;
    p.c = (void *)(uintptr_t)0x100000;
    p.bias = (const void *)(uintptr_t)0x10a0;
    const struct cairn__product_plan plan = plan_of(&p, false);
    assert_int_equal(plan.key.align_first, 16);
    assert_int_equal(plan.key.align_second, 2);
    assert_int_equal(plan.key.align_out, 256);
    assert_int_equal(plan.key.align_extra, 32);
}

static void key_has_everything_that_an_algorithm_depends_on(void **state) {
    (void)state;
    enum { NUM = 11 };
    struct cairn__matmul p[NUM];
    struct cairn__product_key keys[NUM];
    for (int i = 0; i < NUM; i++) p[i] = some_product();
    p[1].m = 5;
    p[2].n = 5;
    p[3].k = 5;
    p[4].trans_a = true;
    p[5].trans_b = true;
    p[6].relu = true;
    p[7].in_type = CAIRN_BF16;
    p[8].out_type = CAIRN_F16;
    p[9].bias = bias;
    p[10].c = (void *)(uintptr_t)2;
    for (int i = 0; i < NUM; i++) {
        keys[i] = plan_of(&p[i], false).key;
        for (int j = 0; j < i; j++) assert_memory_not_equal(&keys[i], &keys[j], sizeof(keys[i]));
    }
}

/* ---- batches ---- */

static struct cairn__batch some_batch(void) {
    return (struct cairn__batch){.batch = 3,
                                 .m = 2,
                                 .n = 3,
                                 .k = 4,
                                 .in_type = CAIRN_F16,
                                 .out_type = CAIRN_F32,
                                 .a = (const void *)(uintptr_t)0x1000,
                                 .b = (const void *)(uintptr_t)0x2000,
                                 .c = (void *)(uintptr_t)0x3000,
                                 .lda = 5,
                                 .ldb = 6,
                                 .ldc = 7,
                                 .step_a = 64,
                                 .step_b = 0,
                                 .step_c = 12,
                                 .alpha = 0.5};
}

static struct cairn__product_plan batch_plan_of(const struct cairn__batch *batch, bool tf32) {
    struct cairn__product_plan plan;
    cairn__product_plan_batch(batch, tf32, &plan);
    return plan;
}

static void batches_swap_operands_as_single_products_do(void **state) {
    (void)state;
    struct cairn__batch batch = some_batch();
    batch.trans_b = true;
    const struct cairn__product_plan plan = batch_plan_of(&batch, false);
    assert_ptr_equal(plan.first, batch.b);
    assert_ptr_equal(plan.second, batch.a);
    assert_int_equal(plan.key.rows, 3);
    assert_int_equal(plan.key.cols, 2);
    assert_int_equal(plan.key.ld_first, 6);
    assert_int_equal(plan.key.ld_second, 5);
    assert_int_equal(plan.key.ld_out, 7);
    assert_int_equal(plan.key.step_first, 0);
    assert_int_equal(plan.key.step_second, 64);
    assert_int_equal(plan.key.step_out, 12);
    assert_true(plan.key.trans_first && !plan.key.trans_second);
    assert_true(plan.alpha == 0.5);
}

static void alignment_of_a_batch_is_that_of_all_its_matrices(void **state) {
    (void)state;
    struct cairn__batch batch = some_batch();
    struct cairn__product_key key = batch_plan_of(&batch, false).key;
    assert_int_equal(key.align_first, 256);  /* one matrix */
    assert_int_equal(key.align_second, 128); /* 64 halves */
    assert_int_equal(key.align_out, 16);     /* 12 floats */
    batch.batch = 1;
    key = batch_plan_of(&batch, false).key;
    assert_int_equal(key.align_second, 256);
    assert_int_equal(key.align_out, 256);
    assert_int_equal(key.step_second, 0);
}

static void key_of_a_batch_has_all_of_it(void **state) {
    (void)state;
    enum { NUM = 11 };
    struct cairn__batch all[NUM];
    struct cairn__product_key keys[NUM];
    for (int i = 0; i < NUM; i++) all[i] = some_batch();
    all[1].batch = 4;
    all[2].lda = 8;
    all[3].ldb = 8;
    all[4].ldc = 8;
    all[5].step_a = 128;
    all[6].step_b = 4096;
    all[7].step_c = 20;
    all[8].accumulate = true;
    all[9].in_type = CAIRN_F32;
    all[10].in_type = all[10].out_type = CAIRN_F64;
    for (int i = 0; i < NUM; i++) {
        keys[i] = batch_plan_of(&all[i], true).key;
        assert_int_equal(keys[i].tf32, i == 9);
        for (int j = 0; j < i; j++) assert_memory_not_equal(&keys[i], &keys[j], sizeof(keys[i]));
    }
}

/* ---- the index ---- */

static struct cairn__product_index index_of_products;

static int clear_index(void **state) {
    (void)state;
    memset(&index_of_products, 0, sizeof(index_of_products));
    return 0;
}

static size_t find(uint64_t rows, bool *found) {
    const struct cairn__product_key key = {.rows = rows, .cols = 2, .inner = 3};
    return cairn__product_find(&index_of_products, &key, found);
}

static void product_planned_once_keeps_its_entry(void **state) {
    (void)state;
    bool found = true;
    const size_t place = find(1, &found);
    assert_false(found);
    assert_in_range(place, 0, CAIRN__PRODUCTS - 1);
    assert_int_equal(find(1, &found), place);
    assert_true(found);
    assert_int_not_equal(find(2, &found), place);
    assert_false(found);
}

/* More products than a training step has. */
static void shapes_of_a_training_all_fit(void **state) {
    (void)state;
    bool found = false;
    int missed = 0;
    for (int round = 0; round < 3; round++) {
        for (uint64_t i = 0; i < 100; i++) {
            find(64 * i, &found);
            if (round > 0) missed += !found;
        }
    }
    assert_int_equal(missed, 0);
}

static void least_recently_used_product_gives_way(void **state) {
    (void)state;
    bool found = false;
    find(0, &found);
    for (uint64_t i = 1; i < 100000; i++) {
        find(i, &found);
        assert_false(found);
        find(0, &found); /* used in between, it stays */
        assert_true(found);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(column_major_products_match_ours_in_every_orientation),
        cmocka_unit_test(bias_and_relu_share_the_epilogue_and_sums_take_a_free_one),
        cmocka_unit_test(epilogue_takes_what_is_aligned_to_16_bytes),
        cmocka_unit_test(tf32_is_for_f32_operands),
        cmocka_unit_test(alignments_are_those_of_the_addresses),
        cmocka_unit_test(key_has_everything_that_an_algorithm_depends_on),
        cmocka_unit_test(batches_swap_operands_as_single_products_do),
        cmocka_unit_test(alignment_of_a_batch_is_that_of_all_its_matrices),
        cmocka_unit_test(key_of_a_batch_has_all_of_it),
        cmocka_unit_test_setup(product_planned_once_keeps_its_entry, clear_index),
        cmocka_unit_test_setup(shapes_of_a_training_all_fit, clear_index),
        cmocka_unit_test_setup(least_recently_used_product_gives_way, clear_index),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
