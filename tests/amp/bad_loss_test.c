/* A loss that is itself infinite or NaN skips the step even if its gradients are finite; and what follows the skipped
 * step. */
#include <math.h>

#include "logged_env.h"
#include "probe.h"

static const float ones[PROBE] = {1, 1, 1, 1, 1, 1};

/* The gradient of the loss is the scale, which is to be an f16 value. */
static const struct amp_scaler_options from_64 = {.struct_size = sizeof(struct amp_scaler_options), .init_scale = 64};
#define DYNAMIC .loss_scale = AMP_DYNAMIC, .scaler = &from_64

static cairn_tensor *with(struct probe *p, cairn_env *env, float added) {
    return cairn_add(probe_loss(p, ones), cairn_full(env, CAIRN_F32, 0, NULL, added));
}

static const struct exact_level *level_of(amp_opt_level level, cairn_dtype half) {
    for (int i = 0; i < EXACT_LEVELS; i++) {
        if (exact_levels[i].level == level && exact_levels[i].half == half) return &exact_levels[i];
    }
    return NULL;
}

/* ---- one loss ---- */

static void infinite_loss_with_finite_gradients_skips_at_every_level(void **state) {
    static const float badness[] = {INFINITY, -INFINITY, NAN};
    for (int i = 0; i < 3 * EXACT_LEVELS; i++) {
        struct probe p;
        struct amp_overflow found;
        size_t count = 0;
        probe_begin(&p, *state, &exact_levels[i / 3], amp_options(DYNAMIC));
        cairn_zero_grad(p.sgd);
        OK(amp_backward(p.amp, with(&p, *state, badness[i % 3]), p.sgd));
        OK(cairn_step(p.sgd));
        assert_int_equal(cairn_optimizer_step_skipped(p.sgd), 1);
        assert_true(amp_scaler_get_scale(amp_scaler_of(p.amp, 0)) == 32);
        assert_probe_is(&p, (float[PROBE]){1, 1, 1, 1, 1, 1});
        OK(amp_last_overflow(p.amp, NULL, &found, 1, &count));
        assert_int_equal(count, 1);
        assert_string_equal(found.name, "(loss)");
        assert_int_equal(found.micro_batch, 1);
        cairn_zero_grad(p.sgd);
        OK(amp_backward(p.amp, with(&p, *state, 1), p.sgd));
        OK(cairn_step(p.sgd));
        assert_int_equal(cairn_optimizer_step_skipped(p.sgd), 0);
        assert_probe_stepped_by(&p, ones);
        probe_end(&p);
    }
}

static void static_scale_skips_and_stays(void **state) {
    struct probe p;
    probe_begin(&p, *state, level_of(AMP_O2, CAIRN_BF16), amp_options(.loss_scale = 1));
    log_text[0] = '\0';
    for (int step = 0; step < 3; step++) {
        cairn_zero_grad(p.sgd);
        OK(amp_backward(p.amp, with(&p, *state, NAN), p.sgd));
        OK(cairn_step(p.sgd));
    }
    assert_int_equal(cairn_optimizer_skipped(p.sgd), 3);
    assert_non_null(
        strstr(log_text, "Gradient overflow.  Skipping step, loss scale stays 1: the loss is inf or nan\n"));
    probe_end(&p);
}

static void repeated_bad_losses_end_in_an_error_at_the_floor(void **state) {
    struct probe p;
    cairn_status st = CAIRN_OK;
    int skipped = 0;
    probe_begin(&p, *state, level_of(AMP_O2, CAIRN_F16), amp_options(DYNAMIC));
    for (; st == CAIRN_OK && skipped < 100; skipped++) {
        cairn_zero_grad(p.sgd);
        OK(amp_backward(p.amp, with(&p, *state, INFINITY), p.sgd));
        st = cairn_step(p.sgd);
    }
    assert_int_equal(st, CAIRN_ENUMERIC);
    assert_int_equal(skipped, 6 + 1); /* from 64 to 1, and once more */
    assert_non_null(strstr(cairn_last_error(), "the loss is inf or nan"));
    probe_end(&p);
}

static void loss_is_checked_before_it_is_scaled(void **state) {
    struct probe p;
    probe_begin(&p, *state, level_of(AMP_O1, CAIRN_F16), amp_options(DYNAMIC));
    cairn_zero_grad(p.sgd);
    OK(amp_backward(p.amp, with(&p, *state, 3e38f), p.sgd)); /* times 64 it is infinite */
    OK(cairn_step(p.sgd));
    assert_int_equal(cairn_optimizer_step_skipped(p.sgd), 0);
    assert_probe_stepped_by(&p, ones);
    probe_end(&p);
}

static void context_that_does_not_skip_takes_the_step(void **state) {
    struct probe p;
    probe_begin(&p, *state, level_of(AMP_O2, CAIRN_F16), amp_options(.loss_scale = 8, .skip_nonfinite = CAIRN_OFF));
    cairn_zero_grad(p.sgd);
    OK(amp_backward(p.amp, with(&p, *state, NAN), p.sgd));
    OK(cairn_step(p.sgd));
    assert_int_equal(cairn_optimizer_step_skipped(p.sgd), 0);
    assert_probe_stepped_by(&p, ones);
    probe_end(&p);
}

static void losses_of_other_types_are_checked(void **state) {
    static const cairn_dtype types[] = {CAIRN_F16, CAIRN_BF16, CAIRN_F64};
    for (int i = 0; i < 2 * 3; i++) {
        struct probe p;
        probe_begin(&p, *state, level_of(AMP_O1, CAIRN_F16),
                    i % 2 ? amp_options(.loss_scale = 1) : amp_options(DYNAMIC));
        cairn_zero_grad(p.sgd);
        OK(amp_backward(p.amp, cairn_cast(with(&p, *state, INFINITY), types[i / 2]), p.sgd));
        OK(cairn_step(p.sgd));
        assert_int_equal(cairn_optimizer_step_skipped(p.sgd), 1);
        probe_end(&p);
    }
}

/* ---- micro-batches ---- */

static void bad_micro_batch_skips_the_step_and_is_named(void **state) {
    for (int bad = 0; bad < 3; bad++) {
        struct probe p;
        struct amp_overflow found = {.name = ""};
        size_t count = 0;
        probe_begin(&p, *state, level_of(AMP_O2, CAIRN_F16), amp_options(DYNAMIC));
        cairn_zero_grad(p.sgd);
        for (int m = 0; m < 3; m++) OK(amp_backward(p.amp, with(&p, *state, m == bad ? NAN : 1), p.sgd));
        OK(cairn_step(p.sgd));
        assert_int_equal(cairn_optimizer_step_skipped(p.sgd), 1);
        assert_true(amp_scaler_get_scale(amp_scaler_of(p.amp, 0)) == 32); /* lowered once */
        OK(amp_last_overflow(p.amp, NULL, &found, 1, &count));
        assert_string_equal(found.name, "(loss)");
        assert_int_equal(found.micro_batch, bad + 1);
        probe_end(&p);
    }
}

static void delayed_check_forgets_no_bad_loss(void **state) {
    struct probe p;
    probe_begin(&p, *state, level_of(AMP_O2, CAIRN_F16), amp_options(DYNAMIC));
    cairn_zero_grad(p.sgd);
    OK(amp_backward_with(p.amp, with(&p, *state, NAN), amp_loss_options(.delay_unscale = CAIRN_ON)));
    OK(amp_backward(p.amp, with(&p, *state, 1), p.sgd));
    OK(cairn_step(p.sgd));
    assert_int_equal(cairn_optimizer_step_skipped(p.sgd), 1);
    probe_end(&p);
}

static void clipping_after_a_bad_loss_still_skips_the_step(void **state) {
    struct probe p;
    double norm = 0;
    probe_begin(&p, *state, level_of(AMP_O2, CAIRN_F16), amp_options(DYNAMIC));
    cairn_zero_grad(p.sgd);
    OK(amp_backward(p.amp, with(&p, *state, INFINITY), p.sgd));
    OK(cairn_clip_grad_norm(p.sgd, 1, &norm));
    assert_true(fabs(norm - sqrt(6)) < 1e-6);
    OK(cairn_step(p.sgd));
    assert_int_equal(cairn_optimizer_step_skipped(p.sgd), 1);
    probe_end(&p);
}

/* ---- forgotten ---- */

static void loss_whose_gradients_are_zeroed_skips_nothing(void **state) {
    struct probe p;
    probe_begin(&p, *state, level_of(AMP_O2, CAIRN_F16), amp_options(DYNAMIC));
    cairn_zero_grad(p.sgd);
    OK(amp_backward(p.amp, with(&p, *state, NAN), p.sgd));
    cairn_zero_grad(p.sgd);
    OK(amp_backward(p.amp, with(&p, *state, 1), p.sgd));
    OK(cairn_step(p.sgd));
    assert_int_equal(cairn_optimizer_step_skipped(p.sgd), 0);
    probe_end(&p);
}

static void gradients_cleared_before_backward_do_not_clear_the_bad_loss(void **state) {
    struct probe p;
    cairn_tensor *scaled = NULL;
    probe_begin(&p, *state, level_of(AMP_O2, CAIRN_F16), amp_options(DYNAMIC));
    cairn_zero_grad(p.sgd);
    OK(amp_scale_loss(p.amp, with(&p, *state, INFINITY), p.sgd, &scaled));
    cairn_optimizer_clear_grads(p.sgd);
    OK(cairn_backward(scaled));
    OK(amp_scale_loss_end(p.amp));
    OK(cairn_step(p.sgd));
    assert_int_equal(cairn_optimizer_step_skipped(p.sgd), 1);
    probe_end(&p);
}

static void backward_that_fails_leaves_nothing_behind(void **state) {
    struct probe p;
    probe_begin(&p, *state, level_of(AMP_O2, CAIRN_F16), amp_options(DYNAMIC));
    cairn_zero_grad(p.sgd);
    cairn_tensor *nothing = cairn_full(*state, CAIRN_F32, 0, NULL, INFINITY); /* it wants no gradient */
    assert_int_equal(amp_backward(p.amp, nothing, p.sgd), CAIRN_EINVAL);
    cairn_zero_grad(p.sgd);
    OK(amp_backward(p.amp, with(&p, *state, 1), p.sgd));
    OK(cairn_step(p.sgd));
    assert_int_equal(cairn_optimizer_step_skipped(p.sgd), 0);
    cairn_tensor_destroy(&nothing);
    probe_end(&p);
}

/* ---- several optimizers ---- */

static void only_optimizers_that_were_given_to_the_loss_skip(void **state) {
    cairn_env *env = *state;
    cairn_module *models[] = {make_probe(env), make_probe(env)};
    cairn_optimizer *optimizers[2] = {NULL};
    amp_context *amp = NULL;
    cairn_tensor *x = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(PROBE), ones);
    for (int i = 0; i < 2; i++) OK(cairn_sgd_create(cairn_module_params(models[i]), NULL, &optimizers[i]));
    OK(amp_initialize_all(env, 2, models, 2, optimizers,
                          amp_options(.opt_level = AMP_O2, .half_type = CAIRN_F16, .num_losses = 2, DYNAMIC,
                                      .verbosity = -1),
                          &amp));
    for (int bad = 0; bad < 2; bad++) {
        for (int i = 0; i < 2; i++) cairn_zero_grad(optimizers[i]);
        for (int i = 0; i < 2; i++) {
            cairn_tensor *added = cairn_full(env, CAIRN_F32, 0, NULL, i == bad ? NAN : 1);
            cairn_tensor *loss = cairn_add(cairn_module_forward(models[i], x), added);
            OK(amp_backward_with(amp, loss,
                                 amp_loss_options(.loss_id = i, .num_optimizers = 1, .optimizers = &optimizers[i])));
            cairn_tensor_destroy(&added);
        }
        for (int i = 0; i < 2; i++) OK(cairn_step(optimizers[i]));
        for (int i = 0; i < 2; i++) assert_int_equal(cairn_optimizer_step_skipped(optimizers[i]), i == bad);
    }
    for (int i = 0; i < 2; i++) assert_true(amp_scaler_get_scale(amp_scaler_of(amp, i)) == 32);
    amp_destroy(&amp);
    for (int i = 0; i < 2; i++) cairn_optimizer_destroy(&optimizers[i]), cairn_module_destroy(&models[i]);
    cairn_tensor_destroy(&x);
}

/* ---- how it was found ---- */

/* A linear layer overflows f16, the difference of its infinities is NaN, and a relu follows. */
static void nan_behind_a_relu_takes_no_step(void **state) {
    cairn_env *env = *state;
    for (int level = AMP_O1; level <= AMP_O2; level++) {
        cairn_module *model = cairn_linear(env, 64, 8);
        cairn_optimizer *sgd = NULL;
        amp_context *amp = NULL;
        cairn_tensor *x = cairn_full(env, CAIRN_F32, CAIRN_SHAPE(4, 64), 6e4f),
                     *y = cairn_zeros(env, CAIRN_F32, CAIRN_SHAPE(4, 8));
        for (int i = 0; i < 64 * 8; i++) ((float *)cairn_module_params(model)->params[0]->data)[i] = 1;
        OK(cairn_param_changed(cairn_module_params(model), 0, 0));
        OK(cairn_sgd_create(cairn_module_params(model), NULL, &sgd));
        OK(amp_initialize(env, model, sgd,
                          amp_options(.opt_level = (amp_opt_level)level, .half_type = CAIRN_F16, .verbosity = -1),
                          &amp));
        cairn_zero_grad(sgd);
        cairn_tensor *h = cairn_module_forward(model, x);
        cairn_tensor *loss = cairn_mse_loss(cairn_relu(cairn_sub(h, cairn_detach(h))), y);
        OK(amp_backward(amp, loss, sgd));
        OK(cairn_step(sgd));
        assert_true(isnan(cairn_tensor_item(loss)));
        assert_int_equal(cairn_optimizer_step_skipped(sgd), 1);
        amp_destroy(&amp);
        cairn_optimizer_destroy(&sgd);
        cairn_module_destroy(&model);
        cairn_tensor_destroy(&x);
        cairn_tensor_destroy(&y);
    }
}

#define ENV_TEST(test) cmocka_unit_test_setup_teardown(test, make_env, end_env)

int main(void) {
    const struct CMUnitTest tests[] = {
        ENV_TEST(infinite_loss_with_finite_gradients_skips_at_every_level),
        ENV_TEST(static_scale_skips_and_stays),
        ENV_TEST(repeated_bad_losses_end_in_an_error_at_the_floor),
        ENV_TEST(loss_is_checked_before_it_is_scaled),
        ENV_TEST(context_that_does_not_skip_takes_the_step),
        ENV_TEST(losses_of_other_types_are_checked),
        ENV_TEST(bad_micro_batch_skips_the_step_and_is_named),
        ENV_TEST(delayed_check_forgets_no_bad_loss),
        ENV_TEST(clipping_after_a_bad_loss_still_skips_the_step),
        ENV_TEST(loss_whose_gradients_are_zeroed_skips_nothing),
        ENV_TEST(gradients_cleared_before_backward_do_not_clear_the_bad_loss),
        ENV_TEST(backward_that_fails_leaves_nothing_behind),
        ENV_TEST(only_optimizers_that_were_given_to_the_loss_skip),
        ENV_TEST(nan_behind_a_relu_takes_no_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
