/* Parameter sets: errors, accumulation of gradients, and parameter names in messages. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "../one_env.h"
#include "cairn/cairn.h"
#include "core/half.h"
#include "param/param.h"

static void set_refuses_nonsense_entries_by_name(void **state) {
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
                 {"parameter 'b' has size -1 in dimension 0; sizes must be from 0 to what memory can hold", 5}};
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

/* ---- slices of one array ---- */

static void assert_slice(cairn_param_set *set, size_t i, const char *name, const float *data, const float *grad) {
    cairn_param got;
    assert_int_equal(cairn_param_set_get(set, i, &got), CAIRN_OK);
    assert_string_equal(got.name, name);
    assert_ptr_equal(got.data, data);
    if (grad) assert_ptr_equal(got.grad, grad);
}

static void slices_of_an_array_are_parameters_of_their_own(void **state) {
    float w[64], g[64];
    cairn_param_set *set = NULL;
    cairn_param got;
    assert_int_equal(cairn_param_set_create(*state, NULL, 0, &set), CAIRN_OK);
    assert_int_equal(cairn_param_set_add(set, &(cairn_param){"wte", w, g, CAIRN_F32, 2, {2, 3}, CAIRN_OFF}, 1, 0),
                     CAIRN_OK);
    assert_int_equal(cairn_param_set_add(set, &(cairn_param){"h.%d.ln", w + 6, g + 6, CAIRN_F32, 1, {4}, CAIRN_ON}, 2,
                                         0),
                     CAIRN_OK);
    assert_int_equal(cairn_param_set_add(set, &(cairn_param){"fc", w + 14, NULL, CAIRN_F32, 1, {2}, CAIRN_OFF}, 2, 8),
                     CAIRN_OK);
    assert_int_equal(cairn_param_set_add(set, &(cairn_param){NULL, w + 40, g + 40, CAIRN_F32, 1, {3}, CAIRN_OFF}, 2, 0),
                     CAIRN_OK);
    assert_int_equal(cairn_param_set_count(set), 7);
    assert_slice(set, 0, "wte", w, g);
    assert_slice(set, 1, "h.0.ln", w + 6, g + 6);
    assert_slice(set, 2, "h.1.ln", w + 10, g + 10);
    assert_slice(set, 3, "fc.0", w + 14, NULL);
    assert_slice(set, 4, "fc.1", w + 22, NULL);
    assert_slice(set, 5, "param5", w + 40, g + 40);
    assert_slice(set, 6, "param6", w + 43, g + 43);
    assert_int_equal(cairn_param_set_get(set, 2, &got), CAIRN_OK);
    assert_true(got.is_norm == CAIRN_ON && got.ndim == 1 && got.shape[0] == 4);
    cairn_param_set_destroy(&set);
}

static void assert_add_refused(cairn_param_set *set, cairn_param first, size_t count, size_t stride,
                               cairn_status status, const char *sentence) {
    const size_t before = cairn_param_set_count(set);
    assert_int_equal(cairn_param_set_add(set, &first, count, stride), status);
    assert_string_equal(cairn_last_error(), sentence);
    assert_int_equal(cairn_param_set_count(set), before);
}

static void refused_slices_leave_the_set_as_it_was(void **state) {
    float w[64];
    const cairn_param good = {"b.1", w, w, CAIRN_F32, 1, {4}, CAIRN_OFF};
    cairn_param slices = {"b", w, w, CAIRN_F32, 1, {4}, CAIRN_OFF};
    cairn_param_set *set = NULL;
    cairn_optimizer *sgd = NULL;
    cairn_module *model = cairn_linear(*state, 2, 2);
    assert_int_equal(cairn_param_set_create(*state, &good, 1, &set), CAIRN_OK);
    assert_add_refused(set, slices, 3, 0, CAIRN_EINVAL, "two parameters are called 'b.1'");
    assert_add_refused(set, slices, 2, 3, CAIRN_EINVAL,
                       "cairn_param_set_add 'b': slices of 4 elements overlap at a stride of 3");
    assert_add_refused(set, slices, SIZE_MAX, 0, CAIRN_EINVAL,
                       "cairn_param_set_add 'b': 18446744073709551615 slices of 4 elements are more than memory can "
                       "hold");
    assert_add_refused(cairn_module_params(model), slices, 1, 0, CAIRN_EINVAL,
                       "cairn_param_set_add 'b': the set is a module's; use cairn_module_add_param");
    assert_int_equal(cairn_param_set_add(NULL, &slices, 1, 0), CAIRN_EINVAL);
    assert_string_equal(cairn_last_error(), "cairn_param_set_add: set and first must be set");
    slices.data = NULL;
    assert_add_refused(set, slices, 1, 0, CAIRN_EINVAL, "parameter 'b' has no data");
    slices.name = "";
    assert_add_refused(set, slices, 1, 0, CAIRN_EINVAL, "parameter 1 has no name");
    assert_add_refused(set, slices, 2, 0, CAIRN_EINVAL, "parameter 1 has no name");
    slices = good;
    slices.name = "b";
    assert_int_equal(cairn_param_set_add(set, &slices, 1, 0), CAIRN_OK); /* "b.0" is gone again */
    slices.name = "b.0";
    assert_int_equal(cairn_param_set_add(set, &slices, 1, 0), CAIRN_OK);
    assert_int_equal(cairn_sgd_create(set, NULL, &sgd), CAIRN_OK);
    assert_add_refused(
        set, slices, 1, 0, CAIRN_ESTATE,
        "cairn_param_set_add 'b.0': an optimizer, averages, amp or ddp use the set, or it has gradients; add all "
        "parameters first");
    cairn_optimizer_destroy(&sgd);
    assert_int_equal(cairn_grads_ready(set, 0, 1), CAIRN_OK);
    assert_int_equal(cairn_param_set_add(set, &slices, 1, 0), CAIRN_ESTATE);
    cairn_param_set_destroy(&set);
    cairn_module_destroy(&model);
}

static cairn_tensor *pass_on(cairn_module *module, void *context, cairn_tensor *const *inputs, int count) {
    (void)module, (void)context, (void)count;
    return inputs[0];
}

static size_t comparisons;
int __real_strcmp(const char *a, const char *b);
int __wrap_strcmp(const char *a, const char *b);

int __wrap_strcmp(const char *a, const char *b) {
    comparisons++;
    return __real_strcmp(a, b);
}

/* One by one: in the user's memory, in a module, and as children of one. */
static void names_of_thousands_of_parameters_are_compared_with_few(void **state) {
    enum { COUNT = 8000, CHILDREN = 500 };
    static const struct cairn_module_ops ops = {.struct_size = sizeof(ops), .name = "Many", .forward = pass_on};
    static float w[2];
    const cairn_param any = {NULL, w, w, CAIRN_F32, 1, {2}, CAIRN_OFF};
    cairn_param_set *set = NULL;
    cairn_module *module = cairn_module_create(*state, &ops, NULL);
    assert_int_equal(cairn_param_set_create(*state, NULL, 0, &set), CAIRN_OK);
    comparisons = 0;
    for (size_t i = 0; i < COUNT; i++) {
        char name[32];
        snprintf(name, sizeof(name), "weight%zu", i);
        assert_int_equal(cairn_param_set_add(set, &any, 1, 0), CAIRN_OK);
        assert_non_null(cairn_module_add_param(module, name, CAIRN_SHAPE(2), 0));
    }
    assert_in_range(comparisons, 1, 4 * COUNT);
    comparisons = 0;
    for (size_t i = 0; i < CHILDREN; i++) {
        char name[32];
        snprintf(name, sizeof(name), "layer%zu", i);
        assert_non_null(cairn_module_add_child(module, name, cairn_linear(*state, 1, 1)));
    }
    assert_in_range(comparisons, 1, CHILDREN * CHILDREN); /* names of children are few, and compared with all */
    cairn_param_set_destroy(&set);
    cairn_module_destroy(&module);
}

/* ---- gradients ---- */

/* Two half gradients written at different scales add up to their true sum. */
static void backwards_at_different_scales_add_up_in_f32(void **state) {
    cairn_env *env = *state;
    cairn_param_set *set = NULL;
    struct cairn__param *p = NULL;
    assert_int_equal(cairn__param_set_new(env, &set), CAIRN_OK);
    assert_int_equal(cairn__param_set_add(set, "w", 1, (int64_t[]){3}, false, &p), CAIRN_OK);
    memset(p->data, 0, 3 * sizeof(float));
    assert_int_equal(cairn__param_set_to_half(p->set, CAIRN_F16, true, false), CAIRN_OK);

    static const struct cairn__loss_scale scales[] = {{1024, 0x1p-10f}, {512, 0x1p-9f}, {2048, 0x1p-11f}};
    for (int backward = 0; backward < 3; backward++) {
        uint16_t *slot = NULL;
        set->scale = &scales[backward];
        assert_int_equal(cairn__grad_begin_write(p->gradient, (void **)&slot), CAIRN_OK);
        for (int i = 0; i < 3; i++) slot[i] = cairn__f32_to_f16((float)(i + 1) * scales[backward].scale);
        cairn__param_grad_ready(p);
    }
    struct cairn__grad_view grad;
    assert_int_equal(cairn__grad_prepare_read(p->gradient, &grad), CAIRN_OK);
    assert_int_equal(grad.dtype, CAIRN_F32);
    for (int i = 0; i < 3; i++) assert_true(!grad.factor && ((const float *)grad.x)[i] == 3.0f * (float)(i + 1));
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
        assert_int_equal(cairn__grad_begin_write(p->gradient, (void **)&slot), CAIRN_OK);
        *slot = cairn__f32_to_bf16(1.0f);
        cairn__param_grad_ready(p);
    }
    struct cairn__grad_view grad;
    assert_int_equal(cairn__grad_prepare_read(p->gradient, &grad), CAIRN_OK);
    assert_true(*(const float *)grad.x == 512.0f);
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
        assert_int_equal(cairn__grad_begin_write(p->gradient, (void **)&slot), CAIRN_OK);
        for (int j = 0; j < 5; j++) slot[j] = 1.0f;
        cairn__param_grad_ready(p);
    }
}

static void check_raises_the_flag_of_the_one_of_200_that_overflowed(void **state) {
    for (size_t culprit = 0; culprit < 200; culprit += 33) {
        cairn_param_set *set = NULL;
        add_params(*state, 200, &set);
        ((float *)cairn__grad_memory(set->params[culprit]->gradient))[culprit % 5] = culprit % 2 ? INFINITY : NAN;
        assert_int_equal(cairn__param_set_check(set), CAIRN_OK);
        for (size_t i = 0; i < 200; i++) assert_int_equal(set->flags[i], i == culprit);
        cairn_param_set_destroy(&set);
    }
}

static void checked_gradients_are_not_read_again(void **state) {
    cairn_param_set *set = NULL;
    add_params(*state, 2, &set);
    assert_int_equal(cairn__param_set_check(set), CAIRN_OK);
    ((float *)cairn__grad_memory(set->params[0]->gradient))[0] = INFINITY; /* without a flag */
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
    ((float *)cairn__grad_memory(set->params[1]->gradient))[0] = INFINITY;
    assert_int_equal(cairn__param_set_check(set), CAIRN_OK);
    assert_int_equal(set->flags[1], 1);
    cairn_param_set_zero_grad(set);
    struct cairn__grad_view grad;
    for (size_t i = 0; i < 2; i++) assert_int_equal(set->flags[i], 0);
    assert_int_equal(cairn__grad_prepare_read(set->params[1]->gradient, &grad), CAIRN_OK);
    assert_null(grad.x);
    cairn_param_set_destroy(&set);
}

/* An optimizer's parameters, of two sets in turns, as many as one of the sets has. */
static void forgetting_some_of_two_sets_lowers_their_flags_and_no_other(void **state) {
    cairn_param_set *a = NULL, *b = NULL;
    add_params(*state, 3, &a);
    add_params(*state, 1, &b);
    struct cairn__param *const some[] = {a->params[0], b->params[0], a->params[1]};
    ((float *)cairn__grad_memory(a->params[2]->gradient))[0] =
        ((float *)cairn__grad_memory(b->params[0]->gradient))[0] = INFINITY;
    assert_int_equal(cairn__param_set_check(a), CAIRN_OK);
    assert_int_equal(cairn__param_set_check(b), CAIRN_OK);
    cairn__params_forget(some, 3);
    assert_int_equal(a->flags[2], 1);
    assert_int_equal(b->flags[0], 0);
    cairn_param_set_destroy(&a);
    cairn_param_set_destroy(&b);
}

/* The place of an old scale is about to be used again while a gradient still waits at it. */
static void gradient_at_a_scale_that_ends_is_accumulated_first(void **state) {
    cairn_param_set *set = NULL;
    static const struct cairn__loss_scale ends = {2, 0.5f};
    add_params(*state, 2, &set); /* gradients of 1, without a scale */
    set->scale = &ends;
    cairn__param_grad_ready(set->params[1]);
    assert_int_equal(cairn__params_accumulate_at(*state, &ends), CAIRN_OK);
    assert_true(cairn__grad_is_written(set->params[0]->gradient) &&
                !cairn__grad_is_accumulated(set->params[0]->gradient));
    assert_true(!cairn__grad_is_written(set->params[1]->gradient) &&
                cairn__grad_is_accumulated(set->params[1]->gradient) &&
                cairn__grad_unscaled_memory(set->params[1]->gradient)[0] == 0.5f);
    cairn_param_set_destroy(&set);
}

/* 8 clipped to 4, and 2. */
static void clipped_sum_stays_clipped_when_more_is_declared(void **state) {
    float weight = 0, grad = 8;
    const cairn_param w = {.name = "w", .data = &weight, .grad = &grad, .dtype = CAIRN_F32, .ndim = 1, .shape = {1}};
    struct cairn_sgd_options options = CAIRN_SGD_OPTIONS_INIT;
    cairn_param_set *set = NULL;
    cairn_optimizer *sgd = NULL;
    options.lr = 1;
    assert_int_equal(cairn_param_set_create(*state, &w, 1, &set), CAIRN_OK);
    assert_int_equal(cairn_sgd_create(set, &options, &sgd), CAIRN_OK);
    assert_int_equal(cairn_grads_ready(set, 0, 1), CAIRN_OK);
    assert_int_equal(cairn_grads_taken(set, 0, 1), CAIRN_OK);
    assert_int_equal(cairn_clip_grad_norm(sgd, 4, NULL), CAIRN_OK);
    grad = 2;
    assert_int_equal(cairn_grads_ready(set, 0, 1), CAIRN_OK);
    assert_int_equal(cairn_step(sgd), CAIRN_OK);
    assert_float_equal(weight, -6, 1e-5);
    cairn_optimizer_destroy(&sgd);
    cairn_param_set_destroy(&set);
}

static void changed_copies_the_written_one_of_half_and_master_to_the_other(void **state) {
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
        cmocka_unit_test(set_refuses_nonsense_entries_by_name),
        cmocka_unit_test(slices_of_an_array_are_parameters_of_their_own),
        cmocka_unit_test(refused_slices_leave_the_set_as_it_was),
        cmocka_unit_test(names_of_thousands_of_parameters_are_compared_with_few),
        cmocka_unit_test(backwards_at_different_scales_add_up_in_f32),
        cmocka_unit_test(bf16_accumulation_does_not_stall),
        cmocka_unit_test(check_raises_the_flag_of_the_one_of_200_that_overflowed),
        cmocka_unit_test(checked_gradients_are_not_read_again),
        cmocka_unit_test(zero_grad_forgets_flags_and_gradients),
        cmocka_unit_test(forgetting_some_of_two_sets_lowers_their_flags_and_no_other),
        cmocka_unit_test(gradient_at_a_scale_that_ends_is_accumulated_first),
        cmocka_unit_test(clipped_sum_stays_clipped_when_more_is_declared),
        cmocka_unit_test(changed_copies_the_written_one_of_half_and_master_to_the_other),
    };
    return cmocka_run_group_tests(tests, make_env, end_env);
}
