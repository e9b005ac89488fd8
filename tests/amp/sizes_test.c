/* Programs compiled against older or newer headers, whose structs are smaller or larger than the library's: arrays of
 * structs, passed in and filled in. The structs below stand for those headers: without fields that came later, or with
 * future ones. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "../one_env.h"
#include "cairn/cairn.h"
#include "core/options.h"
#include "param/param.h"

enum { N = 2 };

struct smaller_param {
    const char *name;
    void *data, *grad;
    cairn_dtype dtype;
    int ndim;
    int64_t shape[CAIRN_MAX_DIMS];
};
struct larger_param {
    cairn_param known;
    double lr;
    int64_t group;
};
struct smaller_overflow {
    const char *name;
    uint64_t infs;
};
struct overflow_0_8 { /* has grown since */
    const char *name;
    uint64_t infs, nans;
    int micro_batch, rank;
};
struct larger_overflow {
    struct amp_overflow known;
    int64_t step;
};
struct smaller_report {
    const char *name;
    cairn_dtype dtype;
    uint64_t n;
};
struct larger_report {
    struct amp_gradient_report known;
    double norm;
};
struct smaller_record {
    int64_t step;
    double scale;
};
struct larger_record {
    struct amp_scaler_update_record known;
    double norm;
};
struct smaller_array {
    void *data;
    cairn_dtype dtype;
    int ndim;
};
struct larger_array {
    struct cairn_custom_array known;
    const int64_t *stride;
};

/* Two half parameters in the user's memory. */
struct trainer {
    uint16_t weights[N][4], grads[N][4];
    cairn_env *env;
    cairn_param_set *set;
    cairn_optimizer *sgd;
    amp_context *amp;
};

static cairn_param describe(struct trainer *t, int i) {
    return (cairn_param){.name = i == 0 ? "a" : "b",
                         .data = t->weights[i],
                         .grad = t->grads[i],
                         .dtype = CAIRN_F16,
                         .ndim = 1,
                         .shape = {4}};
}

static void begin(struct trainer *t, cairn_env *env) {
    *t = (struct trainer){.env = env};
    const cairn_param params[N] = {describe(t, 0), describe(t, 1)};
    OK(cairn_param_set_create(env, params, N, &t->set));
    OK(cairn_sgd_create(t->set, NULL, &t->sgd));
    OK(amp_initialize_params(env, t->set, t->sgd, amp_options(.opt_level = AMP_O2, .verbosity = -1), &t->amp));
}

static void end(struct trainer *t) {
    amp_destroy(&t->amp);
    cairn_optimizer_destroy(&t->sgd);
    cairn_param_set_destroy(&t->set);
}

/* Gradients of 1, and a bad element of each where asked for. */
static void declare(struct trainer *t, uint16_t bad) {
    (void)amp_next_scale(t->amp);
    for (int i = 0; i < N; i++) {
        for (int k = 0; k < 4; k++) t->grads[i][k] = 0x3c00;
        if (bad) t->grads[i][1] = bad;
    }
    OK(cairn_grads_ready(t->set, 0, N));
}

/* All bytes of the array behind those that the call was to write are still what fill made them. */
enum { FILL = 0x5a };

static void fill(void *array, size_t nbytes) {
    memset(array, FILL, nbytes);
}

static void assert_filled(const void *array, size_t from, size_t nbytes) {
    for (size_t i = from; i < nbytes; i++) assert_int_equal(((const unsigned char *)array)[i], FILL);
}

/* ---- parameters ---- */

static void a_set_is_made_of_smaller_parameters(void **state) {
    struct trainer t = {.env = *state};
    struct smaller_param params[N];
    for (int i = 0; i < N; i++) {
        const cairn_param whole = describe(&t, i);
        memcpy(&params[i], &whole, sizeof(params[i]));
    }
    OK(cairn_param_set_create_sized(sizeof(params[0]), t.env, (const cairn_param *)(const void *)params, N, &t.set));
    OK(cairn_param_set_add_sized(
        sizeof(params[0]), t.set,
        &(const cairn_param){.name = "c", .data = t.weights, .dtype = CAIRN_F16, .ndim = 0, .is_norm = CAIRN_ON}, 1,
        0));
    assert_int_equal(cairn_param_set_count(t.set), N + 1);
    for (int i = 0; i < N + 1; i++) {
        cairn_param got;
        OK(cairn_param_set_get(t.set, (size_t)i, &got));
        assert_string_equal(got.name, ((const char *[]){"a", "b", "c"})[i]);
        assert_ptr_equal(got.data, t.weights[i % N]);
        assert_int_equal(got.is_norm, CAIRN_OFF); /* what a program did not have is not read */
    }
    end(&t);
}

static void a_set_is_made_of_larger_parameters_without_unknown_fields(void **state) {
    struct trainer t = {.env = *state};
    struct larger_param params[N] = {{.known = describe(&t, 0)}, {.known = describe(&t, 1)}};
    const cairn_param *const given = (const cairn_param *)(const void *)params;
    OK(cairn_param_set_create_sized(sizeof(params[0]), t.env, given, N, &t.set));
    cairn_param got;
    OK(cairn_param_set_get(t.set, 1, &got));
    assert_string_equal(got.name, "b");
    cairn_param_set_destroy(&t.set);
    params[1].group = 3;
    assert_int_equal(cairn_param_set_create_sized(sizeof(params[0]), t.env, given, N, &t.set), CAIRN_EINVAL);
    assert_string_equal(cairn_last_error(),
                        "cairn_param has a field that this version of Cairn does not know, at byte 112 of 120");
    assert_null(t.set);
    OK(cairn_param_set_create(t.env, NULL, 0, &t.set));
    OK(cairn_param_set_add_sized(sizeof(params[0]), t.set, given, 1, 0));
    assert_int_equal(cairn_param_set_add_sized(sizeof(params[0]), t.set, (const void *)&params[1], 1, 0), CAIRN_EINVAL);
    assert_int_equal(cairn_param_set_count(t.set), 1);
    cairn_param_set_destroy(&t.set);
}

static void element_sizes_of_no_version_are_refused(void **state) {
    struct trainer t = {.env = *state};
    const cairn_param param = describe(&t, 0);
    static const size_t wrong[] = {0, 4, 103, 1 << 20};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        assert_int_equal(cairn_param_set_create_sized(wrong[i], t.env, &param, 1, &t.set), CAIRN_EINVAL);
    assert_string_equal(cairn_last_error(),
                        "cairn_param: 1048576 is not a size of that struct; call the macro, which passes it");
}

static void a_parameter_is_shown_to_smaller_and_larger_structs(void **state) {
    struct trainer t;
    begin(&t, *state);
    struct smaller_param small[2];
    struct larger_param large[2];
    fill(small, sizeof(small));
    fill(large, sizeof(large));
    OK(cairn_param_set_get_sized(sizeof(small[0]), t.set, 1, (cairn_param *)(void *)small));
    OK(cairn_param_set_get_sized(sizeof(large[0]), t.set, 1, (cairn_param *)(void *)large));
    assert_string_equal(small[0].name, "b");
    assert_int_equal(small[0].shape[0], 4);
    assert_filled(small, sizeof(small[0]), sizeof(small));
    assert_string_equal(large[0].known.name, "b");
    assert_int_equal(large[0].known.is_norm, CAIRN_OFF);
    assert_true(large[0].lr == 0 && large[0].group == 0);
    assert_filled(large, sizeof(large[0]), sizeof(large));
    end(&t);
}

static void masters_are_shown_to_smaller_and_larger_structs(void **state) {
    struct trainer t;
    begin(&t, *state);
    declare(&t, 0);
    for (int by_amp = 0; by_amp < 2; by_amp++) {
        struct smaller_param small[N + 1];
        struct larger_param large[N + 1];
        fill(small, sizeof(small));
        fill(large, sizeof(large));
        cairn_param *const to_small = (cairn_param *)(void *)small, *const to_large = (cairn_param *)(void *)large;
        OK(by_amp ? amp_master_params_sized(sizeof(small[0]), t.amp, NULL, to_small, N)
                  : cairn_optimizer_masters_sized(sizeof(small[0]), t.sgd, to_small, N));
        OK(by_amp ? amp_master_params_sized(sizeof(large[0]), t.amp, NULL, to_large, N)
                  : cairn_optimizer_masters_sized(sizeof(large[0]), t.sgd, to_large, N));
        for (int i = 0; i < N; i++) {
            assert_ptr_equal(small[i].data, cairn_param_master(t.set, (size_t)i));
            assert_int_equal(small[i].dtype, CAIRN_F32);
            assert_memory_equal(&small[i], &large[i], sizeof(small[i]));
            assert_true(large[i].lr == 0 && large[i].group == 0);
        }
        assert_filled(small, sizeof(small[0]) * N, sizeof(small));
        assert_filled(large, sizeof(large[0]) * N, sizeof(large));
    }
    end(&t);
}

/* ---- what amp writes ---- */

static void overflows_are_written_to_smaller_and_larger_structs(void **state) {
    struct trainer t;
    begin(&t, *state);
    declare(&t, 0x7c00);
    OK(cairn_step(t.sgd));
    struct smaller_overflow small[N + 1];
    struct larger_overflow large[N + 1];
    size_t found = 0;
    fill(small, sizeof(small));
    fill(large, sizeof(large));
    OK(amp_last_overflow_sized(sizeof(small[0]), t.amp, NULL, (struct amp_overflow *)(void *)small, N + 1, &found));
    assert_int_equal(found, N);
    OK(amp_last_overflow_sized(sizeof(large[0]), t.amp, NULL, (struct amp_overflow *)(void *)large, N + 1, &found));
    for (int i = 0; i < N; i++) {
        assert_string_equal(small[i].name, i == 0 ? "a" : "b");
        assert_int_equal(small[i].infs, 1);
        assert_memory_equal(&small[i], &large[i], sizeof(small[i]));
        assert_true(large[i].known.micro_batch == 1 && large[i].known.rank == 0 && large[i].known.stage == -1 &&
                    large[i].step == 0);
    }
    assert_filled(small, sizeof(small[0]) * N, sizeof(small));
    assert_filled(large, sizeof(large[0]) * N, sizeof(large));
    end(&t);
}

static void reports_are_written_to_smaller_and_larger_structs(void **state) {
    struct trainer t;
    begin(&t, *state);
    declare(&t, 0);
    struct smaller_report small[N + 1];
    struct larger_report large[N + 1];
    fill(small, sizeof(small));
    fill(large, sizeof(large));
    OK(amp_gradient_reports_sized(sizeof(small[0]), t.amp, NULL, (struct amp_gradient_report *)(void *)small, N));
    OK(amp_gradient_reports_sized(sizeof(large[0]), t.amp, NULL, (struct amp_gradient_report *)(void *)large, N));
    for (int i = 0; i < N; i++) {
        assert_string_equal(small[i].name, i == 0 ? "a" : "b");
        assert_true(small[i].dtype == CAIRN_F16 && small[i].n == 4);
        assert_true(large[i].known.n == 4 && large[i].known.scale == 65536 && large[i].norm == 0);
    }
    assert_filled(small, sizeof(small[0]) * N, sizeof(small));
    assert_filled(large, sizeof(large[0]) * N, sizeof(large));
    end(&t);
}

static void updates_are_recorded_into_smaller_and_larger_structs(void **state) {
    struct trainer t;
    begin(&t, *state);
    amp_scaler *const scaler = amp_scaler_of(t.amp, 0);
    struct smaller_record small[N + 1];
    struct larger_record large[N + 1];
    fill(small, sizeof(small));
    fill(large, sizeof(large));
    OK(amp_scaler_record_sized(sizeof(small[0]), scaler, (struct amp_scaler_update_record *)(void *)small, N));
    for (int i = 0; i < 2 * N; i++) {
        if (i == N)
            OK(amp_scaler_record_sized(sizeof(large[0]), scaler, (struct amp_scaler_update_record *)(void *)large, N));
        declare(&t, i % 2 ? 0x7c00 : 0);
        OK(cairn_step(t.sgd));
    }
    OK(amp_scaler_record(scaler, NULL, 0));
    for (int i = 0; i < N; i++) {
        assert_true(small[i].step == i + 1 && small[i].scale == (i == 0 ? 65536 : 32768));
        assert_true(large[i].known.step == N + i + 1 && large[i].known.scale == (i == 0 ? 32768 : 16384));
        assert_true(large[i].known.found == i && large[i].norm == 0);
    }
    assert_filled(small, sizeof(small[0]) * N, sizeof(small));
    assert_filled(large, sizeof(large[0]) * N, sizeof(large));
    end(&t);
}

/* ---- operations of the user's own: y = a * b ---- */

static cairn_status multiply(void *ctx, float *y, const float *a, const float *b) {
    *(int *)ctx += 1;
    for (int i = 0; i < 4; i++) y[i] = a[i] * b[i];
    return CAIRN_OK;
}

#define TIMES(kind)                                                                                                    \
    static cairn_status forward_##kind(void *ctx, struct cairn_custom_array *y, const struct cairn_custom_array *x,    \
                                       int count) {                                                                    \
        const struct kind##_array *to = (void *)y, *from = (const void *)x;                                            \
        assert_int_equal(count, 2);                                                                                    \
        return multiply(ctx, DATA_##kind(to[0]), DATA_##kind(from[0]), DATA_##kind(from[1]));                          \
    }                                                                                                                  \
    static cairn_status backward_##kind(void *ctx, struct cairn_custom_array *dx, const struct cairn_custom_array *dy, \
                                        const struct cairn_custom_array *y, const struct cairn_custom_array *x,        \
                                        int count) {                                                                   \
        const struct kind##_array *to = (void *)dx, *of = (const void *)dy, *from = (const void *)x,                   \
                                  *was = (const void *)y;                                                              \
        assert_int_equal(count, 2);                                                                                    \
        assert_true(DATA_##kind(was[0])[1] == 2 * 3);                                                                  \
        for (int i = 0; i < 2; i++)                                                                                    \
            (void)multiply(ctx, DATA_##kind(to[i]), DATA_##kind(of[0]), DATA_##kind(from[1 - i]));                     \
        return CAIRN_OK;                                                                                               \
    }
#define DATA_smaller(array) ((float *)(array).data)
#define DATA_larger(array)  ((float *)(array).known.data)
TIMES(smaller)
TIMES(larger)

static void an_operation_gets_arrays_of_the_size_that_it_was_compiled_with(void **state) {
    static const struct cairn_custom_op ops[] = {
        {.struct_size = sizeof(ops[0]), .name = "small", .forward = forward_smaller, .backward = backward_smaller},
        {.struct_size = sizeof(ops[0]), .name = "large", .forward = forward_larger, .backward = backward_larger}};
    static const size_t nbytes[] = {sizeof(struct smaller_array), sizeof(struct larger_array)};
    for (int i = 0; i < 2; i++) {
        int calls = 0;
        cairn_tensor *x[2] = {cairn_full(*state, CAIRN_F32, CAIRN_SHAPE(4), 2),
                              cairn_full(*state, CAIRN_F32, CAIRN_SHAPE(4), 3)};
        OK(cairn_tensor_require_grad(x[0]));
        OK(cairn_tensor_require_grad(x[1]));
        cairn_tensor *y = cairn_custom_sized(nbytes[i], &ops[i], &calls, CAIRN_F32, CAIRN_SHAPE(4), x, 2);
        OK(cairn_backward(cairn_sum(y)));
        assert_int_equal(calls, 3);
        for (int k = 0; k < 4; k++) assert_true(cairn_tensor_grad(x[0])[k] == 3 && cairn_tensor_grad(x[1])[k] == 2);
        cairn_tensor_destroy(&x[0]);
        cairn_tensor_destroy(&x[1]);
    }
    assert_null(cairn_custom_sized(3, ops, NULL, CAIRN_F32, CAIRN_SHAPE(4), NULL, 0));
}

/* ---- programs of 0.8.0 and before ---- */

/* Fails where a struct has lost its size of 0.8.0: the functions without one, which programs of then call, need it. */
static void functions_without_a_size_take_structs_as_they_were(void **state) {
    struct trainer t;
    struct overflow_0_8 overflows[N + 1];
    struct amp_gradient_report reports[N];
    struct amp_scaler_update_record records[N];
    cairn_param params[N + 1];
    size_t found = 0;
    assert_int_equal(CAIRN__PARAM_0_8, 104);
    assert_int_equal(CAIRN__SIZE_THROUGH(struct amp_overflow, rank), sizeof(overflows[0]));
    assert_int_equal(sizeof(overflows[0]), 32);
    assert_int_equal(CAIRN__SIZE_THROUGH(struct amp_gradient_report, scale), 72);
    assert_int_equal(CAIRN__SIZE_THROUGH(struct amp_scaler_update_record, found), 32);
    assert_int_equal(CAIRN__SIZE_THROUGH(struct cairn_custom_array, n), 32);
    begin(&t, *state);
    cairn_param_set *other = NULL;
    for (int i = 0; i < N; i++) OK((cairn_param_set_get)(t.set, (size_t)i, &params[i]));
    OK((cairn_param_set_create)(t.env, params, N, &other));
    params[0].name = "c";
    OK((cairn_param_set_add)(other, params, 1, 0));
    assert_int_equal(cairn_param_set_count(other), N + 1);
    cairn_param_set_destroy(&other);
    OK((amp_scaler_record)(amp_scaler_of(t.amp, 0), records, N));
    declare(&t, 0);
    OK((amp_gradient_reports)(t.amp, NULL, reports, N));
    assert_string_equal(reports[1].name, "b");
    OK((cairn_optimizer_masters)(t.sgd, params, N));
    assert_ptr_equal(params[1].data, cairn_param_master(t.set, 1));
    OK((amp_master_params)(t.amp, NULL, params, N));
    assert_ptr_equal(params[1].data, cairn_param_master(t.set, 1));
    OK(cairn_step(t.sgd));
    declare(&t, 0x7c00);
    OK(cairn_step(t.sgd));
    fill(overflows, sizeof(overflows));
    OK((amp_last_overflow)(t.amp, NULL, (struct amp_overflow *)(void *)overflows, N, &found));
    assert_true(found == N && overflows[1].infs == 1);
    assert_string_equal(overflows[1].name, "b");
    assert_filled(overflows, sizeof(overflows[0]) * N, sizeof(overflows));
    assert_true(records[1].step == 2 && records[1].found == 1);
    end(&t);
}

/* Names that have new ones. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
static void old_names_do_what_the_new_ones_do(void **state) {
    struct trainer t;
    begin(&t, *state);
    OK(amp_scaler_set_scale(amp_scaler_of(t.amp, 0), 1024));
    assert_ptr_equal(amp_loss_scaler(t.amp, 0), amp_scaler_of(t.amp, 0));
    assert_null(amp_loss_scaler(t.amp, 1));
    assert_true(amp_loss_scale(t.amp) == 1024 && amp_next_scale(t.amp) == 1024);
    assert_true(amp_loss_scale_of(t.amp, 0) == 1024 && isnan(amp_loss_scale_of(t.amp, 1)));
    assert_true(amp_scaler_scale_now(amp_scaler_of(t.amp, 0)) == 1024);
    OK(amp_set_op_cast(t.env, "gelu", AMP_CAST_F32));
    assert_int_equal(amp_op_cast(t.env, "gelu", NULL), AMP_CAST_F32);
    OK(amp_set_op_cast(t.env, "gelu", (amp_cast)0));
    cairn_clear_grads(t.sgd);
    assert_int_equal(cairn_step_skipped(t.sgd), cairn_optimizer_step_skipped(t.sgd));
    end(&t);
}
#pragma GCC diagnostic pop

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_set_is_made_of_smaller_parameters),
        cmocka_unit_test(a_set_is_made_of_larger_parameters_without_unknown_fields),
        cmocka_unit_test(element_sizes_of_no_version_are_refused),
        cmocka_unit_test(a_parameter_is_shown_to_smaller_and_larger_structs),
        cmocka_unit_test(masters_are_shown_to_smaller_and_larger_structs),
        cmocka_unit_test(overflows_are_written_to_smaller_and_larger_structs),
        cmocka_unit_test(reports_are_written_to_smaller_and_larger_structs),
        cmocka_unit_test(updates_are_recorded_into_smaller_and_larger_structs),
        cmocka_unit_test(an_operation_gets_arrays_of_the_size_that_it_was_compiled_with),
        cmocka_unit_test(functions_without_a_size_take_structs_as_they_were),
        cmocka_unit_test(old_names_do_what_the_new_ones_do),
    };
    return cmocka_run_group_tests(tests, make_env, end_env);
}
