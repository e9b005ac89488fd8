/* Limits of scaled losses: very many optimizers and losses, and every wrong argument. */
#include "probe.h"
#include "logged_env.h"

enum { OPTIMIZERS = 70 };

/* ---- 70 optimizers, each of one parameter ---- */

struct crowd {
    cairn_module *models[OPTIMIZERS / 2];
    cairn_optimizer *sgd[OPTIMIZERS];
    cairn_tensor *x, *c;
    amp_context *amp;
    struct plant plants[OPTIMIZERS / 2];
};

static void begin_crowd(struct crowd *t, cairn_env *env) {
    for (int m = 0; m < OPTIMIZERS / 2; m++) {
        t->models[m] = exact_model(env, m % MODELS);
        for (size_t k = 0; k < 2; k++)
            OK(cairn_sgd_create_over(cairn_module_params(t->models[m]), &k, 1, NULL, &t->sgd[2 * m + (int)k]));
    }
    t->x = cairn_zeros(env, CAIRN_F32, CAIRN_SHAPE(BATCH, IN));
    t->c = cairn_zeros(env, CAIRN_F32, CAIRN_SHAPE(OUT));
    exact_write_input(t->x, 0, 0, 0);
    exact_write_outputs(t->c, 0);
    OK(amp_initialize_all(env, OPTIMIZERS / 2, t->models, OPTIMIZERS, t->sgd,
                          amp_options(.opt_level = AMP_O2, .loss_scale = 64, .verbosity = -1), &t->amp));
    for (int m = 0; m < OPTIMIZERS / 2; m++) plant_install(&t->plants[m], cairn_module_params(t->models[m]));
}

static void end_crowd(struct crowd *t) {
    amp_destroy(&t->amp);
    for (int o = 0; o < OPTIMIZERS; o++) cairn_optimizer_destroy(&t->sgd[o]);
    for (int m = 0; m < OPTIMIZERS / 2; m++) {
        plant_remove(&t->plants[m]);
        cairn_module_destroy(&t->models[m]);
    }
    cairn_tensor_destroy(&t->x), cairn_tensor_destroy(&t->c);
}

/* Of a loss over the first models, with their optimizers given, or none, which means all. */
static void assert_skips(struct crowd *t, int models, int told, int bad) {
    cairn_tensor *loss = NULL;
    for (int o = 0; o < OPTIMIZERS; o++) cairn_optimizer_clear_grads(t->sgd[o]);
    cairn_zero_grad(t->sgd[0]);
    for (int m = 0; m < models; m++) {
        cairn_tensor *term = exact_loss(t->models[m], t->x, t->c);
        loss = loss ? cairn_add(loss, term) : term;
        t->plants[m].target = bad / 2 == m ? bad % 2 : -1;
        t->plants[m].value = INFINITY;
    }
    OK(amp_backward_with(t->amp, loss, amp_loss_options(.num_optimizers = told, .optimizers = told ? t->sgd : NULL)));
    for (int o = 0; o < OPTIMIZERS; o++) {
        OK(cairn_step(t->sgd[o]));
        assert_int_equal(cairn_optimizer_step_skipped(t->sgd[o]), o < (told ? told : OPTIMIZERS));
    }
}

static void seventy_optimizers_share_a_loss(void **state) {
    struct crowd t;
    begin_crowd(&t, *state);
    for (int bad = 0; bad < OPTIMIZERS; bad += 23) assert_skips(&t, OPTIMIZERS / 2, OPTIMIZERS, bad);
    assert_skips(&t, OPTIMIZERS / 2, 0, 33);
    for (int told = 2; told <= OPTIMIZERS; told += 2) assert_skips(&t, told / 2, told, told - 1);
    end_crowd(&t);
}

static void sixty_four_losses_have_a_scaler_each(void **state) {
    static const float gradient[PROBE] = {1, 1, 1, 1, 1, 1};
    struct probe p;
    probe_begin(&p, *state, &exact_levels[3],
                amp_options(.loss_scale = AMP_DYNAMIC, .num_losses = AMP_MAX_LOSSES,
                            .scaler = amp_scaler_options(.init_scale = 64)));
    for (int id = 0; id < AMP_MAX_LOSSES; id++)
        (id == AMP_MAX_LOSSES - 1 ? probe_overflow : probe_backward)(&p, gradient, amp_loss_options(.loss_id = id));
    log_text[0] = '\0';
    OK(cairn_step(p.sgd));
    assert_non_null(strstr(log_text, "loss scaler 63 reducing loss scale to 32"));
    assert_non_null(strstr(log_text, "first in micro-batch 64"));
    for (int id = 0; id < AMP_MAX_LOSSES; id++) {
        assert_true(probe_scale(&p, id) == (id == AMP_MAX_LOSSES - 1 ? 32 : 64));
        assert_int_equal(probe_scaler(&p, id).updates, 1);
    }
    probe_end(&p);
}

/* ---- wrong options ---- */

static void assert_loss_refused(struct probe *p, const struct amp_loss_options *options, const char *sentence) {
    static const float gradient[PROBE] = {1, 1, 1, 1, 1, 1};
    assert_int_equal(amp_backward_with(p->amp, probe_loss(p, gradient), options), CAIRN_EINVAL);
    if (!strstr(cairn_last_error(), sentence)) fail_msg("'%s' is not in: %s", sentence, cairn_last_error());
    probe_backward(p, gradient, NULL); /* nothing is left open */
}

static void wrong_loss_options_are_refused_with_a_message(void **state) {
    struct probe p;
    struct crowd others;
    begin_crowd(&others, *state);
    probe_begin(&p, *state, &exact_levels[3], amp_options(.loss_scale = 64, .num_losses = 2));
    assert_loss_refused(&p, amp_loss_options(.loss_id = 2), "loss_id is 2; it must be from 0 to 1");
    assert_loss_refused(&p, amp_loss_options(.loss_id = -1), "loss_id is -1; it must be from 0 to 1");
    assert_loss_refused(&p, amp_loss_options(.num_optimizers = -1), "num_optimizers is -1");
    assert_loss_refused(&p, amp_loss_options(.num_optimizers = 1), "is 1, but optimizers is NULL");
    assert_loss_refused(&p, amp_loss_options(.optimizers = &p.sgd), "is 0, but optimizers is set");
    assert_loss_refused(&p, amp_loss_options(.num_optimizers = 1, .optimizers = (cairn_optimizer *[]){NULL}),
                        "was not given to amp_initialize");
    assert_loss_refused(&p, amp_loss_options(.num_optimizers = 2, .optimizers = others.sgd),
                        "was not given to amp_initialize");
    assert_loss_refused(&p, amp_loss_options(.delay_unscale = (cairn_switch)7), "delay_unscale is 7");
    assert_loss_refused(&p, amp_loss_options(.delay_overflow_check = (cairn_switch)7), "delay_overflow_check is 7");
    assert_loss_refused(&p, &(struct amp_loss_options){.loss_id = 0}, "amp_loss_options.struct_size is 0");
    probe_end(&p);
    end_crowd(&others);
}

static void wrong_calls_around_a_step_are_refused_with_a_message(void **state) {
    struct probe p;
    struct crowd others;
    cairn_param got[2];
    double norm = 3;
    begin_crowd(&others, *state);
    probe_begin(&p, *state, &exact_levels[3], amp_options(.loss_scale = 64));
    assert_int_equal(amp_backward(NULL, NULL, NULL), CAIRN_EINVAL);
    assert_int_equal(amp_scale_loss(p.amp, NULL, NULL, NULL), CAIRN_EINVAL);
    assert_int_equal(amp_scale_loss_end(NULL), CAIRN_EINVAL);
    assert_int_equal(amp_scale_loss_end(p.amp), CAIRN_ESTATE);
    assert_int_equal(amp_master_params(NULL, p.sgd, got, 2), CAIRN_EINVAL);
    assert_int_equal(amp_master_params(p.amp, others.sgd[0], got, 1), CAIRN_EINVAL);
    assert_non_null(strstr(cairn_last_error(), "was not given to amp_initialize"));
    assert_int_equal(amp_master_params(others.amp, NULL, got, 1), CAIRN_EINVAL);
    assert_non_null(strstr(cairn_last_error(), "the context has 70 optimizers; pass the one that is meant"));
    assert_int_equal(cairn_clip_grad_norm(NULL, 1, &norm), CAIRN_EINVAL);
    assert_int_equal(cairn_clip_grad_norm(p.sgd, 0, &norm), CAIRN_EINVAL);
    assert_int_equal(cairn_clip_grad_norm(p.sgd, (double)NAN, &norm), CAIRN_EINVAL);
    assert_true(norm == 3);
    assert_int_equal(cairn_clip_grad_value(NULL, 1), CAIRN_EINVAL);
    assert_int_equal(cairn_clip_grad_value(p.sgd, (double)NAN), CAIRN_EINVAL);
    OK(cairn_clip_grad_norm(p.sgd, 1, &norm)); /* of no gradients */
    assert_true(norm == 0);
    cairn_module_zero_grad(NULL);
    cairn_param_set_zero_grad(NULL);
    cairn_optimizer_clear_grads(NULL);
    probe_end(&p);
    end_crowd(&others);
}

static void gradients_of_a_child_are_forgotten_with_its_root(void **state) {
    cairn_module *child = cairn_linear(*state, IN, OUT), *root = cairn_sequential(*state, CAIRN_MODULES(child));
    log_text[0] = '\0';
    cairn_module_zero_grad(child);
    assert_non_null(strstr(log_text, "cairn_module_zero_grad: the Linear is child '0' of another module"));
    cairn_module_zero_grad(root);
    cairn_module_destroy(&root);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(seventy_optimizers_share_a_loss),
        cmocka_unit_test(sixty_four_losses_have_a_scaler_each),
        cmocka_unit_test(wrong_loss_options_are_refused_with_a_message),
        cmocka_unit_test(wrong_calls_around_a_step_are_refused_with_a_message),
        cmocka_unit_test(gradients_of_a_child_are_forgotten_with_its_root),
    };
    return cmocka_run_group_tests(tests, make_env, end_env);
}
