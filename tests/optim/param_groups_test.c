/* Parameter groups by rule: which group takes which parameter, with which hyperparameters, and every wrong argument. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "../failing_alloc.h"
#include "../one_env.h"
#include "cairn/cairn.h"
#include "core/alloc.h"

/* ---- a set with some of everything ---- */

enum { N = 6 };
enum { EMBEDDING, WEIGHT, BIAS, NORM, NORM_MATRIX, HEAD, PARAMS };

struct model {
    float w[PARAMS][N], grad[PARAMS][N];
    cairn_param_set *set;
};

static void make_model(struct model *m, cairn_env *env) {
    static const struct {
        const char *name;
        int ndim;
        cairn_switch is_norm;
    } like[PARAMS] = {{"embeddings.word", 2, CAIRN_OFF}, {"h.0.fc.weight", 2, CAIRN_OFF},
                      {"h.0.fc.bias", 1, CAIRN_OFF},     {"h.0.ln.weight", 1, CAIRN_ON},
                      {"h.1.norm.weight", 2, CAIRN_ON},  {"head.weight", 3, CAIRN_OFF}};
    cairn_param params[PARAMS];
    for (int p = 0; p < PARAMS; p++) {
        for (int i = 0; i < N; i++) m->w[p][i] = 1, m->grad[p][i] = 0;
        params[p] = (cairn_param){.name = like[p].name,
                                  .data = m->w[p],
                                  .grad = m->grad[p],
                                  .dtype = CAIRN_F32,
                                  .ndim = like[p].ndim,
                                  .shape = {1, 1, 1},
                                  .is_norm = like[p].is_norm};
        params[p].shape[like[p].ndim - 1] = N;
    }
    OK(cairn_param_set_create(env, params, PARAMS, &m->set));
}

static void assert_groups(const struct model *m, cairn_optimizer *o, const int *want) {
    for (size_t p = 0; p < PARAMS; p++) {
        const int got = cairn_optimizer_group_of(o, m->set, p);
        if (got != want[p]) fail_msg("parameter %zu is in group %d, want %d", p, got, want[p]);
    }
}

/* Weights of 1 without gradient move only by decay: lr 0.5, decay 0.5. */
static void matrices_decay_and_biases_and_norms_do_not(void **state) {
    struct model m;
    cairn_optimizer *o = NULL;
    struct cairn_adam_options decays = CAIRN_ADAMW_OPTIONS_INIT, plain = decays;
    decays.lr = plain.lr = decays.weight_decay = 0.5;
    plain.weight_decay = 0;
    const cairn_group_rule rules[] = {{.are = CAIRN_PARAMS_MATRICES, .adam = &decays}, {.adam = &plain}};
    make_model(&m, *state);
    OK(cairn_adamw_create_grouped(m.set, rules, 2, &o));
    assert_int_equal(cairn_optimizer_num_groups(o), 2);
    assert_int_equal(cairn_optimizer_num_params(o), PARAMS);
    assert_groups(&m, o, (const int[]){0, 0, 1, 1, 1, 0});
    OK(cairn_grads_ready(m.set, 0, PARAMS));
    OK(cairn_step(o));
    for (int p = 0; p < PARAMS; p++)
        assert_true(m.w[p][0] == (cairn_optimizer_group_of(o, m.set, (size_t)p) == 0 ? 0.75f : 1.0f));
    cairn_optimizer_destroy(&o);
    cairn_param_set_destroy(&m.set);
}

static int has_n_elements(void *user, const cairn_param *p) {
    return p->shape[p->ndim - 1] == *(const int64_t *)user && strstr(p->name, "head") != NULL;
}

static void first_rule_that_takes_a_parameter_has_it(void **state) {
    struct model m;
    cairn_optimizer *o = NULL;
    int64_t n = N;
    struct cairn_sgd_options slow = CAIRN_SGD_OPTIONS_INIT;
    slow.lr = 0.125;
    const cairn_group_rule rules[] = {
        {.names = "embeddings.*", .sgd = &slow},
        {.names = "h.[0-9].*.weight", .are = CAIRN_PARAMS_NORMS, .schedule = cairn_exponential_schedule(.gamma = 0.5)},
        {.names = "nothing.*"},
        {.takes = has_n_elements, .user = &n},
        {.are = CAIRN_PARAMS_BIASES_AND_NORMS},
        {.names = "h.?.*"},
    };
    make_model(&m, *state);
    OK(cairn_sgd_create_grouped(m.set, rules, 6, &o));
    assert_groups(&m, o, (const int[]){0, 5, 4, 1, 1, 3});
    assert_true(cairn_optimizer_group_lr(o, 0) == 0.125 && cairn_optimizer_group_lr(o, 2) == 1e-3);
    OK(cairn_grads_ready(m.set, 0, PARAMS));
    OK(cairn_step(o));
    OK(cairn_step(o));
    assert_true(cairn_optimizer_step_lr(o, 1) == 0.5e-3 && cairn_optimizer_step_lr(o, 5) == 1e-3);
    assert_int_equal(cairn_optimizer_group_of(o, m.set, PARAMS), -1);
    assert_int_equal(cairn_optimizer_group_of(NULL, m.set, 0), -1);
    cairn_optimizer_destroy(&o);
    cairn_param_set_destroy(&m.set);
}

/* One group a parameter, and one for all: an optimizer's bits do not depend on it. */
static void groups_do_not_change_what_a_step_computes(void **state) {
    struct model alone, grouped;
    cairn_optimizer *a = NULL, *b = NULL;
    const cairn_group_rule rules[] = {{.names = "h*"}, {.names = "*"}};
    make_model(&alone, *state), make_model(&grouped, *state);
    OK(cairn_adam_create(alone.set, NULL, &a));
    OK(cairn_adam_create_grouped(grouped.set, rules, 2, &b));
    for (int t = 0; t < 5; t++) {
        for (int p = 0; p < PARAMS; p++)
            for (int i = 0; i < N; i++) alone.grad[p][i] = grouped.grad[p][i] = (float)((3 * t + p + i) % 7 - 3);
        OK(cairn_grads_ready(alone.set, 0, PARAMS));
        OK(cairn_grads_ready(grouped.set, 0, PARAMS));
        OK(cairn_step(a));
        OK(cairn_step(b));
    }
    assert_memory_equal(alone.w, grouped.w, sizeof(alone.w));
    cairn_optimizer_destroy(&a), cairn_optimizer_destroy(&b);
    cairn_param_set_destroy(&alone.set), cairn_param_set_destroy(&grouped.set);
}

static void wrong_rules_are_refused_and_nothing_is_made(void **state) {
    struct model m;
    cairn_optimizer *o = NULL;
    const struct cairn_sgd_options sgd = CAIRN_SGD_OPTIONS_INIT;
    struct cairn_adam_options bad = CAIRN_ADAM_OPTIONS_INIT;
    const cairn_group_rule matrices = {.are = CAIRN_PARAMS_MATRICES}, of_sgd = {.sgd = &sgd}, of_adam = {.adam = &bad},
                           none = {.are = (cairn_params_are)4}, all = {.names = NULL},
                           cycles = {.schedule = cairn_one_cycle_schedule(.total_steps = 9)};
    bad.beta1 = 1;
    make_model(&m, *state);
    REFUSED(cairn_adamw_create_grouped(m.set, &matrices, 1, &o), CAIRN_EINVAL,
            "none of the 1 rules takes parameter 'h.0.fc.bias'");
    REFUSED(cairn_adam_create_grouped(m.set, &of_sgd, 1, &o), CAIRN_EINVAL, "rule 0 has options of SGD");
    REFUSED(cairn_sgd_create_grouped(m.set, &of_adam, 1, &o), CAIRN_EINVAL, "rule 0 has options of Adam");
    REFUSED(cairn_adam_create_grouped(m.set, &of_adam, 1, &o), CAIRN_EINVAL, "rule 0: Adam: beta1 is 1");
    REFUSED(cairn_adam_create_grouped(m.set, &none, 1, &o), CAIRN_EINVAL, "rule 0: are is 4");
    REFUSED(cairn_sgd_create_grouped(m.set, &cycles, 1, &o), CAIRN_EINVAL, "no momentum to cycle");
    REFUSED(cairn_adam_create_grouped(m.set, NULL, 1, &o), CAIRN_EINVAL, "at least one rule must be given");
    REFUSED(cairn_adam_create_grouped(m.set, &all, 0, &o), CAIRN_EINVAL, "at least one rule must be given");
    REFUSED(cairn_adam_create_grouped(NULL, &all, 1, &o), CAIRN_EINVAL, "parameter set is NULL");
    REFUSED(cairn_adam_create_grouped_sized(4, m.set, &all, 1, &o), CAIRN_EINVAL, "cairn_group_rule: 4 is not a size");
    assert_null(o);
    OK(cairn_adam_create_grouped(m.set, &all, 1, &o)); /* they are free */
    REFUSED(cairn_adam_create_grouped(m.set, &all, 1, &o), CAIRN_EINVAL, "belongs to an optimizer already");
    cairn_optimizer_destroy(&o);
    cairn_param_set_destroy(&m.set);
}

static void running_out_of_memory_leaves_the_set_free(void **state) {
    struct model m;
    cairn_optimizer *o = NULL;
    const cairn_group_rule rules[] = {{.are = CAIRN_PARAMS_MATRICES,
                                       .schedule = cairn_one_cycle_schedule(.total_steps = 9)},
                                      {.names = "*"}};
    make_model(&m, *state);
    OK(cairn_adam_create_grouped(m.set, rules, 2, &o)); /* the set's own flags stay, once made */
    cairn_optimizer_destroy(&o);
    const uint64_t alive = cairn__alloc_counters().alive;
    int failures = 0;
    for (;; failures++) {
        fail_in = failures + 1;
        const cairn_status st = cairn_adam_create_grouped(m.set, rules, 2, &o);
        fail_in = 0;
        if (st == CAIRN_OK) break;
        assert_int_equal(st, CAIRN_ENOMEM);
        assert_null(o);
        assert_int_equal(cairn__alloc_counters().alive, alive);
    }
    assert_in_range(failures, 20, 200);
    assert_groups(&m, o, (const int[]){0, 0, 1, 1, 1, 0});
    cairn_optimizer_destroy(&o);
    cairn_param_set_destroy(&m.set);
}

/* Under amp at O2, where groups have half parameters with masters. */
static void amp_takes_an_optimizer_with_groups_and_schedules(void **state) {
    cairn_optimizer *o = NULL;
    amp_context *amp = NULL;
    struct cairn_adam_options plain = CAIRN_ADAMW_OPTIONS_INIT;
    plain.weight_decay = 0;
    cairn_module *layers[] = {cairn_linear(*state, 4, 8), cairn_layer_norm(*state, 1, (int64_t[]){8}, 1e-5),
                              cairn_linear(*state, 8, 1)};
    cairn_module *model = cairn_sequential(*state, 3, layers);
    const struct cairn_schedule_options *schedule = cairn_linear_schedule(.warmup_steps = 3, .total_steps = 12);
    const cairn_group_rule rules[] = {{.are = CAIRN_PARAMS_MATRICES, .schedule = schedule},
                                      {.adam = &plain, .schedule = schedule}};
    assert_non_null(model);
    OK(cairn_adamw_create_grouped(cairn_module_params(model), rules, 2, &o));
    OK(amp_initialize(*state, model, o, amp_options(.opt_level = AMP_O2, .verbosity = -1), &amp));
    cairn_tensor *x = cairn_randn(*state, CAIRN_F32, 2, (int64_t[]){5, 4}),
                 *y = cairn_randn(*state, CAIRN_F32, 2, (int64_t[]){5, 1});
    int taken = 0;
    for (int t = 0; t < 12; t++) {
        double lr;
        cairn_zero_grad(o);
        cairn_tensor *loss = cairn_mse_loss(cairn_module_forward(model, x), y);
        if (t == 4 || t == 5) loss = cairn_mul_scalar(loss, 1e30f); /* overflows */
        OK(amp_backward(amp, loss, o));
        OK(cairn_step(o));
        OK(cairn_schedule_at(schedule, 1e-3, taken, &lr, NULL));
        assert_true(cairn_optimizer_step_lr(o, 0) == lr && cairn_optimizer_step_lr(o, 1) == lr);
        taken += !cairn_optimizer_step_skipped(o);
    }
    assert_in_range(taken, 8, 10);
    amp_destroy(&amp);
    cairn_optimizer_destroy(&o);
    cairn_module_destroy(&model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matrices_decay_and_biases_and_norms_do_not),
        cmocka_unit_test(first_rule_that_takes_a_parameter_has_it),
        cmocka_unit_test(groups_do_not_change_what_a_step_computes),
        cmocka_unit_test(wrong_rules_are_refused_and_nothing_is_made),
        cmocka_unit_test(running_out_of_memory_leaves_the_set_free),
        cmocka_unit_test(amp_takes_an_optimizer_with_groups_and_schedules),
    };
    return cmocka_run_group_tests(tests, make_env, end_env);
}
