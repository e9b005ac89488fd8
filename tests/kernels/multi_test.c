/* Lists of tensors against one call a tensor, with empty tensors first, last and in between. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/cpu.h"
#include "core/half.h"
#include "kernels/kernels.h"

enum { COUNT = 7, ROOM = 64 };
static const size_t sizes[COUNT] = {0, 17, 0, 1, 33, 0, 0};

/* Tensors of one type in separate memory, as a list and as arrays. Empty ones are NULL. */
struct list {
    float memory[COUNT][ROOM];
    void *x[COUNT];
};

static void make_list(struct list *l, cairn_dtype type, float first) {
    const struct cairn__dtype *d = cairn__dtype(type);
    memset(l->memory, 0, sizeof(l->memory));
    for (int t = 0; t < COUNT; t++) {
        l->x[t] = sizes[t] ? l->memory[t] : NULL;
        for (size_t i = 0; i < sizes[t]; i++) {
            d->from_f32((char *)l->x[t] + i * d->nbytes, first + 0.25f * (float)i - (float)t);
        }
    }
}

static const struct cairn__kernels *kernels(void) {
    return cairn__kernels_cpu(cairn__cpu_features());
}

static void casting_a_list_casts_each(void **state) {
    (void)state;
    struct list src, got, want;
    make_list(&src, CAIRN_F32, 1.1f);
    make_list(&got, CAIRN_F16, 0);
    make_list(&want, CAIRN_F16, 0);
    cairn__multi_cast(kernels(), COUNT, got.x, CAIRN_F16, (const void *const *)src.x, CAIRN_F32, sizes);
    for (int t = 0; t < COUNT; t++) kernels()->cast[CAIRN_F32][CAIRN_F16](want.x[t], src.x[t], sizes[t]);
    assert_memory_equal(got.memory, want.memory, sizeof(got.memory));
}

static void scaling_a_list_scales_each_and_finds_in_any(void **state) {
    (void)state;
    struct list src, got, want;
    uint32_t found = 0, want_found = 0;
    make_list(&src, CAIRN_F16, 2);
    make_list(&got, CAIRN_F32, 0);
    make_list(&want, CAIRN_F32, 0);
    cairn__multi_scale(kernels(), COUNT, got.x, CAIRN_F32, (const void *const *)src.x, CAIRN_F16, sizes, 0.125f,
                       &found);
    for (int t = 0; t < COUNT; t++) {
        kernels()->scale[CAIRN_F16][CAIRN_F32](want.x[t], src.x[t], sizes[t], 0.125f, &want_found);
    }
    assert_memory_equal(got.memory, want.memory, sizeof(got.memory));
    assert_int_equal(found, 0);

    ((uint16_t *)src.x[4])[sizes[4] - 1] = 0x7c00; /* the last of the last that is not empty */
    cairn__multi_scale(kernels(), COUNT, got.x, CAIRN_F32, (const void *const *)src.x, CAIRN_F16, sizes, 0.125f,
                       &found);
    assert_int_equal(found, 1);
}

static void axpby_on_a_list_does_each(void **state) {
    (void)state;
    struct list x, y, got, want;
    uint32_t found = 0, want_found = 0;
    make_list(&x, CAIRN_BF16, 1);
    make_list(&y, CAIRN_F32, -3);
    make_list(&got, CAIRN_F32, 0);
    make_list(&want, CAIRN_F32, 0);
    cairn__multi_axpby(kernels(), COUNT, got.x, CAIRN_F32, (const void *const *)x.x, CAIRN_BF16,
                       (const float *const *)(void *)y.x, sizes, 0.5f, 2.0f, &found);
    for (int t = 0; t < COUNT; t++) {
        kernels()->axpby[CAIRN_BF16][CAIRN_F32](want.x[t], x.x[t], y.x[t], sizes[t], 0.5f, 2.0f, &want_found);
    }
    assert_memory_equal(got.memory, want.memory, sizeof(got.memory));
    assert_int_equal(found, want_found);
}

static void the_norm_of_a_list_is_that_of_all_its_elements(void **state) {
    (void)state;
    struct list x;
    uint32_t found = 0;
    double each[COUNT], sum = 0;
    make_list(&x, CAIRN_F16, 3);
    double norm = cairn__multi_l2norm(kernels(), COUNT, (const void *const *)x.x, CAIRN_F16, sizes, 0.5f, each, &found);
    for (int t = 0; t < COUNT; t++) {
        double own = 0;
        for (size_t i = 0; i < sizes[t]; i++) {
            double scaled = (double)cairn__f16_to_f32(((uint16_t *)x.x[t])[i]) * 0.5;
            own += scaled * scaled;
        }
        assert_true(fabs(each[t] - sqrt(own)) <= 1e-12 * sqrt(own));
        sum += own;
    }
    assert_true(fabs(norm - sqrt(sum)) <= 1e-12 * norm);
    assert_int_equal(found, 0);
    assert_true(cairn__multi_l2norm(kernels(), COUNT, (const void *const *)x.x, CAIRN_F16, sizes, 0.5f, NULL, &found) ==
                norm);

    ((uint16_t *)x.x[1])[0] = 0x7e00;
    norm = cairn__multi_l2norm(kernels(), COUNT, (const void *const *)x.x, CAIRN_F16, sizes, 0.5f, NULL, &found);
    assert_int_equal(found, 1);
    assert_true(isnan(norm));
}

static void an_empty_list_is_a_list(void **state) {
    (void)state;
    uint32_t found = 0;
    cairn__multi_cast(kernels(), 0, NULL, CAIRN_F16, NULL, CAIRN_F32, NULL);
    cairn__multi_scale(kernels(), 0, NULL, CAIRN_F16, NULL, CAIRN_F32, NULL, 1, &found);
    assert_true(cairn__multi_l2norm(kernels(), 0, NULL, CAIRN_F32, NULL, 1, NULL, &found) == 0);
    assert_int_equal(found, 0);
}

/* The table itself: complete for every set of features, chosen by pick, and capped by what it is given. */
static void every_slot_that_rooms_use_is_filled(void **state) {
    (void)state;
    for (unsigned features = 0; features < 8; features++) {
        const struct cairn__kernels *k = cairn__kernels_cpu(features);
        assert_ptr_equal(k, cairn__kernels_cpu(features));
        for (int a = CAIRN_F32; a <= CAIRN_BF16; a++) {
            for (int b = CAIRN_F32; b <= CAIRN_BF16; b++)
                assert_true(k->cast[a][b] && k->scale[a][b] && k->axpby[a][b]);
            for (int mode = 0; mode < CAIRN__NUM_WEIGHT_MODES; mode++) assert_true(k->sgd[a][mode] && k->adam[a][mode]);
            assert_true(k->check[a] && k->sumsq[a] && k->fill[a] && k->reduce[a]);
        }
        assert_true(k->cast[CAIRN_I32][CAIRN_I32] && k->cast[CAIRN_I64][CAIRN_I64]);
        assert_true(k->reduce[CAIRN_I32] && k->reduce[CAIRN_I64] && k->round[CAIRN_F16] && k->round[CAIRN_BF16]);
        assert_true(k->add && k->mul_scalar && k->relu && k->relu_backward && k->sum && k->mse_sum && k->mse_backward &&
                    k->bias_add && k->col_sum);
    }
}

static void the_table_takes_what_pick_names_and_nothing_inexact(void **state) {
    (void)state;
    for (unsigned features = 0; features < 8; features++) {
        const struct cairn__kernel_row *row = cairn__kernel_pick(CAIRN__K_CAST, CAIRN_F32, CAIRN_BF16, features);
        assert_non_null(row);
        assert_int_equal(row->needs & ~features, 0);
        assert_int_equal(row->promise, CAIRN__BITEXACT);
        assert_true((cairn__cast_fn)row->fn == cairn__kernels_cpu(features)->cast[CAIRN_F32][CAIRN_BF16]);
    }
    assert_null(cairn__kernel_pick(CAIRN__K_CAST, CAIRN_I32, CAIRN_F32, 0));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(casting_a_list_casts_each),
        cmocka_unit_test(scaling_a_list_scales_each_and_finds_in_any),
        cmocka_unit_test(axpby_on_a_list_does_each),
        cmocka_unit_test(the_norm_of_a_list_is_that_of_all_its_elements),
        cmocka_unit_test(an_empty_list_is_a_list),
        cmocka_unit_test(every_slot_that_rooms_use_is_filled),
        cmocka_unit_test(the_table_takes_what_pick_names_and_nothing_inexact),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
