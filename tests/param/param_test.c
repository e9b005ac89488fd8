/* Parameter sets: what they refuse, how gradients accumulate, who is named. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "cairn/cairn.h"
#include "core/half.h"
#include "param/param.h"

static int make_env(void **state) {
    cairn_env *env = NULL;
    assert_int_equal(cairn_env_create(NULL, NULL, NULL, &env), CAIRN_OK);
    *state = env;
    return 0;
}

static int end_env(void **state) {
    cairn_env *env = *state;
    cairn_env_destroy(&env);
    return 0;
}

static void set_refuses_what_makes_no_sense_and_names_the_entry(void **state) {
    float data[4] = {0};
    cairn_param good = {.name = "w", .data = data, .dtype = CAIRN_F32, .ndim = 1, .shape = {4}};
    static const struct {
        const char *expected;
        int field;
    } cases[] = {{"parameter 1 has no name", 0},
                 {"two parameters are called 'w'", 1},
                 {"parameter 'b' has no data", 2},
                 {"parameter 'b' has dtype 4 (i32); f32, f16 and bf16 are allowed", 3},
                 {"parameter 'b' has 9 dimensions; 0 to 8 are allowed", 4},
                 {"parameter 'b' has size -1 in dimension 0", 5}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        cairn_param bad = good;
        bad.name = "b";
        switch (cases[i].field) {
        case 0:
            bad.name = "";
            break;
        case 1:
            bad.name = "w";
            break;
        case 2:
            bad.data = NULL;
            break;
        case 3:
            bad.dtype = CAIRN_I32;
            break;
        case 4:
            bad.ndim = 9;
            break;
        default:
            bad.shape[0] = -1;
            break;
        }
        cairn_param_set *set = NULL;
        assert_int_equal(cairn_param_set_create(*state, (cairn_param[]){good, bad}, 2, &set), CAIRN_EINVAL);
        assert_string_equal(cairn_last_error(), cases[i].expected);
        assert_null(set);
    }
}

/* Two half gradients written at different scales add up to their true sum. */
static void backwards_at_different_scales_add_up_in_f32(void **state) {
    cairn_env *env = *state;
    cairn_param_set *set = NULL;
    struct cairn__param *p = NULL;
    assert_int_equal(cairn__param_set_new(env, &set), CAIRN_OK);
    assert_int_equal(cairn__param_set_add(set, "w", 1, (int64_t[]){3}, false, &p), CAIRN_OK);
    memset(p->data, 0, 3 * sizeof(float));
    assert_int_equal(cairn__param_set_to_half(p->set, CAIRN_F16, true, false), CAIRN_OK);

    static const float scales[] = {1024, 512, 2048}, factors[] = {0x1p-10f, 0x1p-9f, 0x1p-11f};
    for (int backward = 0; backward < 3; backward++) {
        uint16_t *slot = NULL;
        set->factor = &factors[backward];
        assert_int_equal(cairn__param_grad_slot(p, (void **)&slot), CAIRN_OK);
        for (int i = 0; i < 3; i++) slot[i] = cairn__f32_to_f16((float)(i + 1) * scales[backward]);
        cairn__param_grad_ready(p);
    }
    const void *grad = NULL;
    cairn_dtype dtype;
    const float *factor;
    assert_int_equal(cairn__param_grad_final(p, &grad, &dtype, &factor), CAIRN_OK);
    assert_int_equal(dtype, CAIRN_F32);
    for (int i = 0; i < 3; i++) assert_true(!factor && ((const float *)grad)[i] == 3.0f * (float)(i + 1));
    cairn_param_set_destroy(&set);
}

/* 512 gradients of 1 in bf16 are 512, where a bf16 sum would stop at 256. */
static void bf16_accumulation_does_not_stall(void **state) {
    cairn_param_set *set = NULL;
    struct cairn__param *p = NULL;
    assert_int_equal(cairn__param_set_new(*state, &set), CAIRN_OK);
    assert_int_equal(cairn__param_set_add(set, "w", 1, (int64_t[]){1}, false, &p), CAIRN_OK);
    *(float *)p->data = 0;
    assert_int_equal(cairn__param_set_to_half(p->set, CAIRN_BF16, true, false), CAIRN_OK);
    for (int i = 0; i < 512; i++) {
        uint16_t *slot = NULL;
        assert_int_equal(cairn__param_grad_slot(p, (void **)&slot), CAIRN_OK);
        *slot = cairn__f32_to_bf16(1.0f);
        cairn__param_grad_ready(p);
    }
    const void *grad = NULL;
    cairn_dtype dtype;
    const float *factor;
    assert_int_equal(cairn__param_grad_final(p, &grad, &dtype, &factor), CAIRN_OK);
    assert_true(*(const float *)grad == 512.0f);
    cairn_param_set_destroy(&set);
}

static void add_params(cairn_env *env, size_t count, cairn_param_set **set) {
    assert_int_equal(cairn__param_set_new(env, set), CAIRN_OK);
    for (size_t i = 0; i < count; i++) {
        char name[64];
        snprintf(name, sizeof(name), "layer%zu.weight", i);
        struct cairn__param *p = NULL;
        float *slot = NULL;
        assert_int_equal(cairn__param_set_add(*set, name, 1, (int64_t[]){5}, false, &p), CAIRN_OK);
        memset(p->data, 0, 5 * sizeof(float));
        assert_int_equal(cairn__param_grad_slot(p, (void **)&slot), CAIRN_OK);
        for (int j = 0; j < 5; j++) slot[j] = 1.0f;
        cairn__param_grad_ready(p);
    }
}

static void check_raises_the_flag_of_the_one_of_200_that_overflowed(void **state) {
    for (size_t culprit = 0; culprit < 200; culprit += 33) {
        cairn_param_set *set = NULL;
        add_params(*state, 200, &set);
        ((float *)set->params[culprit]->grad)[culprit % 5] = culprit % 2 ? INFINITY : NAN;
        assert_int_equal(cairn__param_set_check(set), CAIRN_OK);
        for (size_t i = 0; i < 200; i++) assert_int_equal(set->flags[i], i == culprit);
        cairn_param_set_destroy(&set);
    }
}

static void what_has_been_looked_at_is_not_read_again(void **state) {
    cairn_param_set *set = NULL;
    add_params(*state, 2, &set);
    assert_int_equal(cairn__param_set_check(set), CAIRN_OK);
    ((float *)set->params[0]->grad)[0] = INFINITY; /* nobody said so */
    assert_int_equal(cairn__param_set_check(set), CAIRN_OK);
    assert_int_equal(set->flags[0], 0);
    cairn__param_grad_ready(set->params[0]);
    assert_int_equal(cairn__param_set_check(set), CAIRN_OK);
    assert_int_equal(set->flags[0], 1);
    cairn_param_set_destroy(&set);
}

static void zero_grad_forgets_flags_and_gradients(void **state) {
    cairn_param_set *set = NULL;
    add_params(*state, 2, &set);
    ((float *)set->params[1]->grad)[0] = INFINITY;
    assert_int_equal(cairn__param_set_check(set), CAIRN_OK);
    assert_int_equal(set->flags[1], 1);
    cairn_param_set_zero_grad(set);
    const void *grad = set;
    cairn_dtype dtype;
    const float *factor;
    for (size_t i = 0; i < 2; i++) assert_int_equal(set->flags[i], 0);
    assert_int_equal(cairn__param_grad_final(set->params[1], &grad, &dtype, &factor), CAIRN_OK);
    assert_null(grad);
    cairn_param_set_destroy(&set);
}

/* An optimizer's parameters, of two sets in turns, as many as one of the sets has. */
static void forgetting_some_of_two_sets_lowers_their_flags_and_no_other(void **state) {
    cairn_param_set *a = NULL, *b = NULL;
    add_params(*state, 3, &a);
    add_params(*state, 1, &b);
    struct cairn__param *const some[] = {a->params[0], b->params[0], a->params[1]};
    ((float *)a->params[2]->grad)[0] = ((float *)b->params[0]->grad)[0] = INFINITY;
    assert_int_equal(cairn__param_set_check(a), CAIRN_OK);
    assert_int_equal(cairn__param_set_check(b), CAIRN_OK);
    cairn__params_forget(some, 3);
    assert_int_equal(a->flags[2], 1);
    assert_int_equal(b->flags[0], 0);
    cairn_param_set_destroy(&a);
    cairn_param_set_destroy(&b);
}

/* The place of an old scale is about to be used again while a gradient still waits at it. */
static void gradient_at_a_scale_that_ends_is_folded_first(void **state) {
    cairn_param_set *set = NULL;
    float factor = 0.5f;
    add_params(*state, 2, &set); /* gradients of 1, without a scale */
    set->params[1]->factor = &factor;
    assert_int_equal(cairn__params_fold_at(*state, &factor), CAIRN_OK);
    assert_true(set->params[0]->written && !set->params[0]->has_acc);
    assert_true(!set->params[1]->written && set->params[1]->has_acc && set->params[1]->acc[0] == 0.5f);
    cairn_param_set_destroy(&set);
}

static void changed_takes_the_side_that_was_written(void **state) {
    cairn_param_set *set = NULL;
    struct cairn__param *p = NULL;
    assert_int_equal(cairn__param_set_new(*state, &set), CAIRN_OK);
    assert_int_equal(cairn__param_set_add(set, "w", 1, (int64_t[]){1}, false, &p), CAIRN_OK);
    *(float *)p->data = 1.0f;
    assert_int_equal(cairn__param_set_to_half(p->set, CAIRN_F16, true, false), CAIRN_OK);
    uint64_t version = p->version;

    *cairn_param_master(set, 0) = 3.0f + 0x1p-20f;
    assert_int_equal(cairn_param_changed(set, 0, 1), CAIRN_OK);
    assert_int_equal(*(uint16_t *)p->data, cairn__f32_to_f16(3.0f));
    *(uint16_t *)p->data = cairn__f32_to_f16(5.0f);
    assert_int_equal(cairn_param_changed(set, 0, 0), CAIRN_OK);
    assert_true(*cairn_param_master(set, 0) == 5.0f);
    assert_true(p->version > version);
    cairn_param_set_destroy(&set);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(set_refuses_what_makes_no_sense_and_names_the_entry),
        cmocka_unit_test(backwards_at_different_scales_add_up_in_f32),
        cmocka_unit_test(bf16_accumulation_does_not_stall),
        cmocka_unit_test(check_raises_the_flag_of_the_one_of_200_that_overflowed),
        cmocka_unit_test(what_has_been_looked_at_is_not_read_again),
        cmocka_unit_test(zero_grad_forgets_flags_and_gradients),
        cmocka_unit_test(forgetting_some_of_two_sets_lowers_their_flags_and_no_other),
        cmocka_unit_test(gradient_at_a_scale_that_ends_is_folded_first),
        cmocka_unit_test(changed_takes_the_side_that_was_written),
    };
    return cmocka_run_group_tests(tests, make_env, end_env);
}
