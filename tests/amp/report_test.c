/* amp's log messages about overflow and underflow. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "../on_gpu.h"
#include "cairn/cairn.h"
#include "core/half.h"
#include "param/param.h"
#include "training.h"

static void backward(struct training *t) {
    cairn_tensor *loss = cairn_mse_loss(cairn_module_forward(t->model, t->x), t->y);
    assert_int_equal(amp_backward(t->amp, loss, t->sgd), CAIRN_OK);
}

static void overflow_is_listed_with_its_counts_and_its_first_micro_batch(void **state) {
    struct training t;
    struct amp_overflow found[4];
    size_t count = 9;
    begin(&t, *state, amp_options(.opt_level = AMP_O2, .verbosity = -1));
    assert_int_equal(amp_last_overflow(t.amp, t.sgd, found, 4, &count), CAIRN_OK);
    assert_int_equal(count, 0);
    cairn_zero_grad(t.sgd);
    for (int m = 1; m <= 3; m++) {
        t.plant.target = m == 2 ? 0 : m == 3 ? 1 : -1;
        t.plant.all = m == 2;
        t.plant.value = m == 2 ? NAN : -INFINITY;
        backward(&t);
    }
    assert_int_equal(cairn_step(t.sgd), CAIRN_OK);
    assert_int_equal(amp_last_overflow(t.amp, NULL, found, 1, &count), CAIRN_OK); /* room for one of two */
    assert_int_equal(count, 2);
    assert_int_equal(amp_last_overflow(t.amp, t.sgd, found, 4, &count), CAIRN_OK);
    assert_int_equal(count, 2);
    assert_string_equal(found[0].name, "0.weight");
    assert_int_equal(found[0].nans, 120);
    assert_int_equal(found[0].infs, 0);
    assert_int_equal(found[0].micro_batch, 2);
    assert_string_equal(found[1].name, "0.bias");
    assert_int_equal(found[1].infs, 1);
    assert_int_equal(found[1].micro_batch, 3);
    assert_int_equal(found[1].rank, 0);
    assert_string_equal(log_text,
                        "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 32768: non-finite "
                        "gradient in 0.weight (120 nan of 120), 0.bias (1 inf of 10), first in micro-batch 2\n");
    end(&t);
}

/* Half gradients in the user's memory: two zeros, a subnormal, a normal, an infinity, a NaN. */
static void gradient_report_counts_what_a_half_type_makes_of_a_gradient(void **state) {
    NOT_ON_A_GPU("these buffers are the host's");
    static const struct {
        cairn_dtype dtype;
        uint16_t grad[6];
        int least;
    } cases[] = {
        {CAIRN_F16, {0x0000, 0x8000, 0x0200, 0x4500, 0x7c00, 0x7e01}, -15},
        {CAIRN_BF16, {0x0000, 0x8000, 0x0020, 0x40a0, 0xff80, 0x7fc1}, -128},
    };
    for (int c = 0; c < 2; c++) {
        uint16_t w[6] = {0}, grad[6];
        memcpy(grad, cases[c].grad, sizeof(grad));
        cairn_param param = {.name = "w", .data = w, .grad = grad, .dtype = cases[c].dtype, .ndim = 1, .shape = {6}};
        cairn_param_set *set = NULL;
        cairn_optimizer *sgd = NULL;
        amp_context *amp = NULL;
        struct amp_gradient_report r;
        assert_int_equal(cairn_param_set_create(*state, &param, 1, &set), CAIRN_OK);
        assert_int_equal(cairn_sgd_create(set, NULL, &sgd), CAIRN_OK);
        assert_int_equal(amp_initialize_params(*state, set, sgd,
                                               amp_options(.opt_level = AMP_O2, .half_type = cases[c].dtype), &amp),
                         CAIRN_OK);
        assert_int_equal(amp_gradient_reports(amp, sgd, &r, 1), CAIRN_OK);
        assert_int_equal(r.n, 0); /* there is none yet */
        assert_int_equal(cairn_grads_ready(set, 0, 1), CAIRN_OK);
        assert_int_equal(amp_gradient_reports(amp, sgd, &r, 1), CAIRN_OK);
        assert_string_equal(r.name, "w");
        assert_int_equal(r.dtype, cases[c].dtype);
        assert_int_equal(r.n, 6);
        assert_int_equal(r.zeros, 2);
        assert_int_equal(r.subnormals, 1);
        assert_int_equal(r.infs, 1);
        assert_int_equal(r.nans, 1);
        assert_int_equal(r.max_exponent, 2); /* of 5 */
        assert_int_equal(r.min_exponent, cases[c].least);
        amp_destroy(&amp);
        cairn_optimizer_destroy(&sgd);
        cairn_param_set_destroy(&set);
    }
}

static void gradient_report_has_the_scale_of_the_stored_gradient(void **state) {
    struct training t;
    struct amp_gradient_report r[4];
    begin(&t, *state, amp_options(.opt_level = AMP_O2, .loss_scale = 1024));
    cairn_zero_grad(t.sgd);
    backward(&t);
    assert_int_equal(amp_gradient_reports(t.amp, t.sgd, r, 3), CAIRN_EINVAL);
    assert_int_equal(amp_gradient_reports(t.amp, t.sgd, r, 4), CAIRN_OK);
    for (int i = 0; i < 4; i++) {
        assert_true(r[i].scale == 1024);
        assert_int_equal(r[i].dtype, CAIRN_F16);
    }
    backward(&t); /* the next one unscales the first into an accumulator of f32 */
    assert_int_equal(cairn_step(t.sgd), CAIRN_OK);
    assert_int_equal(amp_gradient_reports(t.amp, t.sgd, r, 4), CAIRN_OK);
    assert_true(r[0].scale == 1);
    assert_int_equal(r[0].dtype, CAIRN_F32);
    end(&t);
}

/* A gradient of 2^16 that f16 cannot hold: the sentence says which backward made it, and training goes on. */
static void explained_overflow_names_the_operation_that_made_it(void **state) {
    struct training t;
    begin(&t, *state,
          amp_options(.opt_level = AMP_O2, .loss_scale = 0x1p40, .explain_overflow = CAIRN_ON, .verbosity = -1));
    for (int i = 0; i < 2; i++) {
        log_text[0] = '\0';
        cairn_zero_grad(t.sgd);
        backward(&t);
        assert_int_equal(cairn_step(t.sgd), CAIRN_OK);
        assert_int_equal(cairn_optimizer_step_skipped(t.sgd), 1);
        assert_non_null(strstr(log_text, "it began where backward of "));
        assert_non_null(strstr(log_text, "note that the loss is scaled"));
    }
    end(&t);
    begin(&t, *state, amp_options(.opt_level = AMP_O2, .loss_scale = 0x1p40, .verbosity = -1));
    cairn_zero_grad(t.sgd);
    backward(&t);
    assert_int_equal(cairn_step(t.sgd), CAIRN_OK);
    assert_null(strstr(log_text, "it began where"));
    end(&t);
}

static void assert_explained(struct training *t) {
    log_text[0] = '\0';
    cairn_zero_grad(t->sgd);
    backward(t);
    assert_int_equal(cairn_step(t->sgd), CAIRN_OK);
    assert_non_null(strstr(log_text, "it began where backward of "));
}

static void contexts_of_one_environment_each_explain_their_overflow(void **state) {
    const struct amp_options *options =
        amp_options(.opt_level = AMP_O2, .loss_scale = 0x1p40, .explain_overflow = CAIRN_ON, .verbosity = -1);
    struct training first, second;
    begin(&first, *state, options);
    begin(&second, *state, options);
    assert_explained(&second);
    end(&first);
    assert_explained(&second);
    end(&second);
    assert_string_equal(cairn__noted_anomaly(*state), "");
}

static void quarter(void *ctx, struct amp_scaler_state *state, int found) {
    (void)ctx;
    if (found) state->scale /= 4;
}

static void overflow_is_named_where_the_users_rule_is_at_its_floor(void **state) {
    struct training t;
    const struct amp_scaler_options scaler = {.struct_size = sizeof(scaler),
                                              .kind = AMP_SCALER_USER,
                                              .update = quarter,
                                              .init_scale = 1};
    begin(&t, *state, amp_options(.opt_level = AMP_O2, .scaler = &scaler, .verbosity = -1));
    cairn_zero_grad(t.sgd);
    t.plant.target = 1;
    t.plant.value = INFINITY;
    backward(&t);
    assert_int_equal(cairn_step(t.sgd), CAIRN_ENUMERIC);
    assert_non_null(strstr(cairn_last_error(), "cannot lower the scale to 0.25"));
    assert_non_null(strstr(log_text, "Skipping step, loss scale stays 1: non-finite gradient in "));
    end(&t);
}

static cairn_status poison(void *ctx, struct cairn_custom_array *y, const struct cairn_custom_array *x, int count) {
    (void)ctx, (void)x, (void)count;
    for (size_t i = 0; i < y->n; i++) ((float *)y->data)[i] = NAN;
    return CAIRN_OK;
}

static void a_custom_operation_is_explained_by_its_name(void **state) {
    NOT_ON_A_GPU("the operation is for the CPU");
    static const struct cairn_custom_op op = {.struct_size = sizeof(op), .name = "twirl", .forward = poison};
    cairn_tensor *x = cairn_full(*state, CAIRN_F32, CAIRN_SHAPE(2), 1);
    cairn_detect_anomaly(*state, 1);
    assert_null(cairn_custom(&op, NULL, CAIRN_F32, CAIRN_SHAPE(2), &x, 1));
    cairn_detect_anomaly(*state, 0);
    assert_non_null(strstr(cairn_last_error(), "the result of twirl([2]) has 0 inf and 2 NaN"));
    cairn_tensor_destroy(&x);
}

static void reports_without_an_enabled_context_are_refused(void **state) {
    struct training t;
    struct amp_overflow found;
    struct amp_gradient_report r[4];
    size_t count;
    assert_int_equal(amp_last_overflow(NULL, NULL, &found, 1, &count), CAIRN_EINVAL);
    assert_int_equal(amp_gradient_reports(NULL, NULL, r, 4), CAIRN_EINVAL);
    begin(&t, *state, amp_options(.enabled = CAIRN_OFF));
    assert_int_equal(amp_last_overflow(t.amp, t.sgd, &found, 1, &count), CAIRN_ESTATE);
    assert_int_equal(amp_gradient_reports(t.amp, t.sgd, r, 4), CAIRN_ESTATE);
    end(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(overflow_is_listed_with_its_counts_and_its_first_micro_batch),
        cmocka_unit_test(gradient_report_counts_what_a_half_type_makes_of_a_gradient),
        cmocka_unit_test(gradient_report_has_the_scale_of_the_stored_gradient),
        cmocka_unit_test(explained_overflow_names_the_operation_that_made_it),
        cmocka_unit_test(contexts_of_one_environment_each_explain_their_overflow),
        cmocka_unit_test(overflow_is_named_where_the_users_rule_is_at_its_floor),
        cmocka_unit_test(a_custom_operation_is_explained_by_its_name),
        cmocka_unit_test(reports_without_an_enabled_context_are_refused),
    };
    return cmocka_run_group_tests(tests, make_env, end_env);
}
