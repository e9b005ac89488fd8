/* Behaviour common to all optimizers, and Lion and Adagrad against models of their formulas in double precision. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "../one_env.h"
#include "../state_in_memory.h"
#include "one_param.h"

/* ---- models ---- */

struct model {
    double w[N], s[N], g[N];
    bool tied[N];     /* Lion: the sign depended on roundings */
    double in_f32[N]; /* Lion: weights that are rounded to f32 after each step, and nothing else is */
};

static void lion_model(struct model *m, const struct cairn_lion_options *h) {
    for (int i = 0; i < N; i++) {
        const double g = h->maximize == CAIRN_ON ? -m->g[i] : m->g[i];
        const double c = h->beta1 * m->s[i] + (1 - h->beta1) * g;
        m->tied[i] |= fabs(c) < 1e-7;
        m->w[i] -= h->lr * ((c > 0) - (c < 0) + h->weight_decay * m->w[i]);
        m->in_f32[i] = (float)(m->in_f32[i] - h->lr * ((c > 0) - (c < 0) + h->weight_decay * m->in_f32[i]));
        m->s[i] = h->beta2 * m->s[i] + (1 - h->beta2) * g;
    }
}

static void adagrad_model(struct model *m, const struct cairn_adagrad_options *h, int t) {
    const double lr = h->lr / (1 + (t - 1) * h->lr_decay);
    for (int i = 0; i < N; i++) {
        const double decay = h->weight_decay * m->w[i];
        const bool decoupled = h->decoupled == CAIRN_ON;
        const double g = (h->maximize == CAIRN_ON ? -m->g[i] : m->g[i]) + (decoupled ? 0 : decay);
        m->s[i] = (t == 1 ? h->initial_accumulator : m->s[i]) + g * g;
        m->w[i] -= lr * (g / (sqrt(m->s[i]) + h->eps) + (decoupled ? decay : 0));
    }
}

static const cairn_dtype halves[] = {(cairn_dtype)0, CAIRN_F16, CAIRN_BF16};

struct run {
    struct model m;
    cairn_param_set *set;
    cairn_optimizer *o;
    struct cairn__param *p;
};

static struct run *begin(cairn_env *env, cairn_dtype half) {
    static struct run r;
    memset(&r, 0, sizeof(r));
    r.p = make_param(env, half, &r.set);
    r.set->scale = &SCALE;
    for (int i = 0; i < N; i++) r.m.w[i] = r.m.in_f32[i] = number(0, i);
    return &r;
}

static void step(struct run *r, int t) {
    cairn_zero_grad(r->o);
    write_gradient(r->p, t, r->m.g);
    OK(cairn_step(r->o));
}

static void end(struct run *r) {
    cairn_optimizer_destroy(&r->o);
    cairn_param_set_destroy(&r->set);
}

/* A tie leaves a weight a whole step off, so elements that had one are taken from the model. Steps of one size are
 * rounded alike while a weight stays in its binade: its errors may all go one way, each 2^-25 of the greatest. That is
 * what keeping weights in f32 costs, whoever computes the steps: from exact ones, so kept, Cairn's are three ulp away
 * at most. */
static void lion_follows_its_double_model(void **state) {
    for (int variant = 0; variant < 3; variant++) {
        for (int d = 0; d < 3; d++) {
            struct cairn_lion_options h = CAIRN_LION_OPTIONS_INIT;
            struct run *r = begin(*state, halves[d]);
            int ties = 0;
            h.weight_decay = variant ? 0.1 : 0;
            h.maximize = variant == 2 ? CAIRN_ON : CAIRN_OFF;
            OK(cairn_lion_create(r->set, &h, &r->o));
            for (int t = 1; t <= STEPS; t++) {
                step(r, t);
                lion_model(&r->m, &h);
            }
            for (int i = 0; i < N; i++) {
                if (r->m.tied[i]) r->m.w[i] = r->m.in_f32[i] = cairn_param_master(r->set, 0)[i], ties++;
            }
            assert_true(ties < N / 100);
            assert_within(cairn_param_master(r->set, 0), r->m.in_f32, 3 * 0x1p-24);
            assert_near(cairn_param_master(r->set, 0), r->m.w, 1e-6, STEPS * 0x1p-25);
            assert_within(r->o->arrays.moments[0].array[0], r->m.s, 3e-6);
            if (r->p->master) assert_half_is_rounded_master(r->p);
            end(r);
        }
    }
}

static void adagrad_follows_its_double_model(void **state) {
    for (int variant = 0; variant < 4; variant++) {
        for (int d = 0; d < 3; d++) {
            struct cairn_adagrad_options h = CAIRN_ADAGRAD_OPTIONS_INIT;
            struct run *r = begin(*state, halves[d]);
            h.weight_decay = variant ? 0.01 : 0;
            h.decoupled = variant == 2 ? CAIRN_ON : CAIRN_OFF;
            if (variant == 3) h.lr_decay = 0.1, h.initial_accumulator = 0.25, h.maximize = CAIRN_ON;
            OK(cairn_adagrad_create(r->set, &h, &r->o));
            for (int t = 1; t <= STEPS; t++) {
                step(r, t);
                adagrad_model(&r->m, &h, t);
            }
            assert_close(cairn_param_master(r->set, 0), r->m.w);
            assert_within(r->o->arrays.moments[0].array[0], r->m.s, 3e-6);
            if (r->p->master) assert_half_is_rounded_master(r->p);
            end(r);
        }
    }
}

/* ---- all kinds ---- */

enum kind { SGD, SGD_OF_APEX, ADAM, AMSGRAD, ADAMW, LION, ADAGRAD, LAMB, NVLAMB, NOVOGRAD, SGD_BY_LARC, KINDS };

static cairn_status create(enum kind kind, cairn_param_set *set, cairn_switch maximize, cairn_optimizer **out) {
    struct cairn_sgd_options sgd = CAIRN_SGD_OPTIONS_INIT;
    struct cairn_adam_options adam = CAIRN_ADAM_OPTIONS_INIT;
    struct cairn_lion_options lion = CAIRN_LION_OPTIONS_INIT;
    struct cairn_adagrad_options adagrad = CAIRN_ADAGRAD_OPTIONS_INIT;
    struct cairn_lamb_options lamb = CAIRN_LAMB_OPTIONS_INIT;
    struct cairn_novograd_options novograd = CAIRN_NOVOGRAD_OPTIONS_INIT;
    sgd.momentum = 0.9;
    sgd.weight_decay = adam.weight_decay = lion.weight_decay = adagrad.weight_decay = novograd.weight_decay = 0.125;
    sgd.maximize = adam.maximize = lion.maximize = adagrad.maximize = lamb.maximize = novograd.maximize = maximize;
    lamb.weight_decay = kind == NVLAMB ? 0 : 0.125;
    lamb.nvlamb = kind == NVLAMB ? CAIRN_ON : CAIRN_OFF;
    sgd.decay_after_momentum = kind == SGD_OF_APEX ? CAIRN_ON : CAIRN_OFF;
    adam.amsgrad = kind == AMSGRAD ? CAIRN_ON : CAIRN_OFF;
    switch (kind) {
    case SGD:
    case SGD_OF_APEX:
        return cairn_sgd_create(set, &sgd, out);
    case SGD_BY_LARC: {
        const cairn_status st = cairn_sgd_create(set, &sgd, out);
        return st == CAIRN_OK ? cairn_optimizer_set_larc(*out, &(struct cairn_larc_options)CAIRN_LARC_OPTIONS_INIT)
                              : st;
    }
    case ADAM:
    case AMSGRAD:
        return cairn_adam_create(set, &adam, out);
    case LION:
        return cairn_lion_create(set, &lion, out);
    case ADAGRAD:
        return cairn_adagrad_create(set, &adagrad, out);
    case LAMB:
    case NVLAMB:
        return cairn_lamb_create(set, &lamb, out);
    case NOVOGRAD:
        return cairn_novograd_create(set, &novograd, out);
    default:
        return cairn_adamw_create(set, &adam, out);
    }
}

static void fill_gradient(struct cairn__param *p, int t, float times) {
    float *slot = NULL;
    OK(cairn__grad_begin_write(p->gradient, (void **)&slot));
    for (int i = 0; i < N; i++) slot[i] = times * number(t, i);
    cairn__param_grad_ready(p);
}

static void maximizing_is_minimizing_with_opposite_gradients(void **state) {
    static float up[N];
    for (int kind = 0; kind < KINDS; kind++) {
        for (int turn = 0; turn < 2; turn++) {
            cairn_param_set *set = NULL;
            cairn_optimizer *o = NULL;
            struct cairn__param *p = make_param(*state, (cairn_dtype)0, &set);
            OK(create((enum kind)kind, set, turn ? CAIRN_OFF : CAIRN_ON, &o));
            for (int t = 1; t <= 10; t++) {
                cairn_zero_grad(o);
                fill_gradient(p, t, turn ? -1 : 1);
                OK(cairn_step(o));
            }
            if (turn) assert_memory_equal(up, p->data, sizeof(up));
            memcpy(up, p->data, sizeof(up));
            cairn_optimizer_destroy(&o);
            cairn_param_set_destroy(&set);
        }
    }
}

static void overflow_keeps_every_bit_of_weights_and_states(void **state) {
    static const uint16_t found[] = {0x7c00, 0xfc00, 0x7e00}; /* inf, -inf, NaN */
    static float weights[N], states[CAIRN__MAX_STATES][N];
    for (int kind = 0; kind < KINDS; kind++) {
        struct run *r = begin(*state, CAIRN_F16);
        OK(create((enum kind)kind, r->set, CAIRN_OFF, &r->o));
        cairn__set_step_guard(r->o, &(struct cairn__step_guard){.ctx = r->o, .before = look_and_skip});
        step(r, 1);
        float *const *const arrays = r->o->arrays.moments[0].array;
        memcpy(weights, r->p->master, sizeof(weights));
        const int num_states = cairn__rule_states(&r->o->groups[0].rule);
        size_t nbytes[CAIRN__MAX_STATES];
        for (int s = 0; s < num_states; s++) {
            nbytes[s] = cairn__rule_elements(&r->o->groups[0].rule, s, N) * sizeof(float);
            memcpy(states[s], arrays[s], nbytes[s]);
        }
        for (int i = 0; i < 3; i++) {
            cairn_zero_grad(r->o);
            write_gradient(r->p, 2 + i, r->m.g);
            ((uint16_t *)cairn__grad_memory(r->p->gradient))[N - 1 - 16 * i] = found[i];
            OK(cairn_step(r->o));
            assert_int_equal(cairn_optimizer_step_skipped(r->o), 1);
        }
        assert_memory_equal(weights, r->p->master, sizeof(weights));
        for (int s = 0; s < num_states; s++) assert_memory_equal(states[s], arrays[s], nbytes[s]);
        assert_half_is_rounded_master(r->p);
        cairn__set_step_guard(r->o, NULL);
        end(r);
    }
}

static void training_goes_on_to_the_bit_from_a_saved_state(void **state) {
    for (int kind = 0; kind < KINDS; kind++) {
        struct kept_state kept = {.count = 0}, whole = {.count = 0}, resumed = {.count = 0};
        struct run *r = begin(*state, CAIRN_BF16);
        OK(create((enum kind)kind, r->set, CAIRN_ON, &r->o));
        cairn_stateful of[] = {cairn_param_set_stateful(r->set), cairn_optimizer_stateful(r->o)};
        for (int t = 1; t <= 5; t++) step(r, t);
        CALM(keep_state(&kept, of, 2));
        for (int t = 6; t <= 10; t++) step(r, t);
        CALM(keep_state(&whole, of, 2));
        end(r);
        r = begin(*state, CAIRN_BF16);
        OK(create((enum kind)kind, r->set, CAIRN_OFF, &r->o)); /* what is saved takes its place */
        of[0] = cairn_param_set_stateful(r->set), of[1] = cairn_optimizer_stateful(r->o);
        CALM(bring_back(&kept, of, 2));
        for (int t = 6; t <= 10; t++) step(r, t);
        CALM(keep_state(&resumed, of, 2));
        CALM(same_states(&whole, &resumed));
        drop_state(&kept);
        drop_state(&whole);
        drop_state(&resumed);
        end(r);
    }
}

/* A gradient and momentum of 0 move nothing, and a NaN does not pass as 0. 20 elements: a whole vector and a part. */
static void lion_keeps_weights_of_zero_gradients_and_propagates_nan(void **state) {
    struct cairn_lion_options h = CAIRN_LION_OPTIONS_INIT;
    float w[20], g[20] = {0};
    cairn_param param = {.name = "w", .data = w, .grad = g, .dtype = CAIRN_F32, .ndim = 1, .shape = {20}};
    cairn_param_set *set = NULL;
    cairn_optimizer *o = NULL;
    for (int i = 0; i < 20; i++) w[i] = 1;
    h.lr = 0.25;
    g[1] = 1e-30f, g[2] = -1e30f, g[3] = NAN, g[17] = -1e-30f, g[18] = INFINITY, g[19] = NAN;
    OK(cairn_param_set_create(*state, &param, 1, &set));
    OK(cairn_lion_create(set, &h, &o));
    OK(cairn_grads_ready(set, 0, 1));
    OK(cairn_step(o));
    for (int i = 0; i < 20; i++) {
        if (i == 3 || i == 19) assert_true(isnan(w[i]));
        else assert_true(w[i] == (i == 1 || i == 18 ? 0.75f : i == 2 || i == 17 ? 1.25f : 1.0f));
    }
    cairn_optimizer_destroy(&o);
    cairn_param_set_destroy(&set);
}

static void late_groups_have_hyperparameters_and_counts_of_their_own(void **state) {
    static double truth[N];
    cairn_param_set *set = NULL, *late = NULL;
    cairn_optimizer *o = NULL;
    struct cairn__param *p = make_param(*state, (cairn_dtype)0, &set), *q = make_param(*state, (cairn_dtype)0, &late);
    struct cairn_adagrad_options h = CAIRN_ADAGRAD_OPTIONS_INIT;
    h.lr_decay = 1;
    OK(cairn_adagrad_create(set, &h, &o));
    write_gradient(p, 1, truth);
    OK(cairn_step(o));
    h.initial_accumulator = 0.25;
    OK(cairn_adagrad_add_group(o, late, NULL, 0, &h));
    cairn_zero_grad(o);
    write_gradient(q, 1, truth);
    OK(cairn_step(o));
    for (int i = 0; i < N; i++) {
        const float g = number(1, i), want = number(0, i) - 1e-2f * (g / (sqrtf(0.25f + g * g) + 1e-10f));
        assert_true(((float *)q->data)[i] == want); /* its first update: the whole rate */
    }
    REFUSED(cairn_lion_add_group(o, late, NULL, 0, NULL), CAIRN_EINVAL, "a group of Lion cannot be added");
    cairn_optimizer_destroy(&o);
    cairn_param_set_destroy(&set);
    cairn_param_set_destroy(&late);
}

static void groups_by_rule_take_only_options_of_their_kind(void **state) {
    cairn_param_set *set = NULL;
    cairn_optimizer *o = NULL;
    struct cairn_lion_options lion = CAIRN_LION_OPTIONS_INIT;
    struct cairn_adagrad_options adagrad = CAIRN_ADAGRAD_OPTIONS_INIT;
    cairn_group_rule rule = {.lion = &lion};
    make_param(*state, (cairn_dtype)0, &set);
    lion.lr = 0.5, adagrad.lr = 0.25;
    OK(cairn_lion_create_grouped(set, &rule, 1, &o));
    assert_true(cairn_optimizer_lr(o) == 0.5);
    cairn_optimizer_destroy(&o);
    REFUSED(cairn_adagrad_create_grouped(set, &rule, 1, &o), CAIRN_EINVAL, "rule 0 has options of Lion");
    rule = (cairn_group_rule){.adagrad = &adagrad};
    OK(cairn_adagrad_create_grouped(set, &rule, 1, &o));
    assert_true(cairn_optimizer_lr(o) == 0.25);
    cairn_optimizer_destroy(&o);
    REFUSED(cairn_sgd_create_grouped(set, &rule, 1, &o), CAIRN_EINVAL, "rule 0 has options of Adagrad");
    cairn_param_set_destroy(&set);
}

static void hyperparameters_out_of_range_are_refused_by_name(void **state) {
    cairn_param_set *set = NULL;
    cairn_optimizer *o = NULL;
    struct cairn_lion_options lion = CAIRN_LION_OPTIONS_INIT;
    struct cairn_adagrad_options adagrad = CAIRN_ADAGRAD_OPTIONS_INIT;
    make_param(*state, (cairn_dtype)0, &set);
    lion.beta2 = 1;
    REFUSED(cairn_lion_create(set, &lion, &o), CAIRN_EINVAL, "Lion: beta2 is 1; it must be in [0, 1)");
    lion.beta2 = NAN;
    REFUSED(cairn_lion_create(set, &lion, &o), CAIRN_EINVAL, "Lion: beta2 is nan");
    REFUSED(cairn_lion_create(NULL, NULL, &o), CAIRN_EINVAL, "Lion: the parameter set is NULL");
    REFUSED(cairn_lion_create_over(set, NULL, 1, NULL, &o), CAIRN_EINVAL, "Lion: indices is NULL");
    adagrad.lr_decay = -1;
    REFUSED(cairn_adagrad_create(set, &adagrad, &o), CAIRN_EINVAL, "Adagrad: lr_decay is -1");
    adagrad.lr_decay = adagrad.eps = 0;
    REFUSED(cairn_adagrad_create(set, &adagrad, &o), CAIRN_EINVAL, "eps and initial_accumulator are both 0");
    assert_null(o);
    cairn_param_set_destroy(&set);
}

/* As a program of 0.8.0 has it: the struct ends in padding, which holds anything. */
static void padding_of_older_options_is_no_switch(void **state) {
    struct cairn_sgd_options h = CAIRN_SGD_OPTIONS_INIT;
    float w = 1, g = 1;
    cairn_param param = {.name = "w", .data = &w, .grad = &g, .dtype = CAIRN_F32, .ndim = 0};
    cairn_param_set *set = NULL;
    cairn_optimizer *o = NULL;
    h.struct_size = offsetof(struct cairn_sgd_options, maximize);
    h.lr = 0.5;
    h.unused = CAIRN_ON;
    h.maximize = CAIRN_ON;
    OK(cairn_param_set_create(*state, &param, 1, &set));
    OK(cairn_sgd_create(set, &h, &o));
    OK(cairn_grads_ready(set, 0, 1));
    OK(cairn_step(o));
    assert_true(w == 0.5f);
    cairn_optimizer_destroy(&o);
    cairn_param_set_destroy(&set);
}

/* ---- apex's ---- */

/* A weight of 2 after two steps at a rate of 0.01 with gradients of 0.5 and -0.25 and a decay of 0.1, by the formulas
 * of apex/optimizers/fused_{adam,sgd,adagrad}.py at cb65b8ed^, computed apart from Cairn. */
static const struct apex_case {
    enum kind kind;
    bool adam_w_mode, leaves_bias, nesterov, decays_last; /* adam_w_mode: Adagrad's adagrad_w_mode, too */
    double weights[2];
} of_apex[] = {
    {.kind = ADAM, .weights = {1.99000000014, 1.98385814153}},
    {.kind = ADAM, .leaves_bias = true, .weights = {1.96837723768, 1.94238027793}},
    {.kind = ADAM, .adam_w_mode = true, .weights = {1.9880000002, 1.98334862987}},
    {.kind = ADAM, .adam_w_mode = true, .leaves_bias = true, .weights = {1.9663772434, 1.95309263586}},
    {.kind = SGD, .weights = {1.993, 1.987207}},
    {.kind = SGD, .nesterov = true, .weights = {1.9867, 1.98200527}},
    {.kind = SGD, .decays_last = true, .weights = {1.993, 1.989007}},
    {.kind = SGD, .nesterov = true, .decays_last = true, .weights = {1.9885, 1.9872115}},
    {.kind = ADAGRAD, .weights = {1.99, 1.99072664541}},
    {.kind = ADAGRAD, .adam_w_mode = true, .weights = {1.988, 1.99048413596}},
};

static cairn_switch on_if(bool on) {
    return on ? CAIRN_ON : CAIRN_OFF;
}

static cairn_status create_as_apex(const struct apex_case *c, cairn_param_set *set, cairn_optimizer **out) {
    struct cairn_sgd_options sgd = CAIRN_SGD_OPTIONS_INIT;
    struct cairn_adam_options adam = CAIRN_ADAM_OPTIONS_INIT;
    struct cairn_adagrad_options adagrad = CAIRN_ADAGRAD_OPTIONS_INIT;
    sgd.lr = adam.lr = adagrad.lr = 0.01;
    sgd.weight_decay = adam.weight_decay = adagrad.weight_decay = 0.1;
    sgd.momentum = 0.9;
    sgd.nesterov = on_if(c->nesterov);
    sgd.decay_after_momentum = on_if(c->decays_last);
    adam.bias_correction = on_if(!c->leaves_bias);
    adagrad.decoupled = on_if(c->adam_w_mode);
    if (c->kind == SGD) return cairn_sgd_create(set, &sgd, out);
    if (c->kind == ADAGRAD) return cairn_adagrad_create(set, &adagrad, out);
    return (c->adam_w_mode ? cairn_adamw_create : cairn_adam_create)(set, &adam, out);
}

static void two_steps_are_those_of_apex(void **state) {
    static const float gradients[] = {0.5f, -0.25f};
    for (size_t i = 0; i < sizeof(of_apex) / sizeof(of_apex[0]); i++) {
        float w = 2, g = 0;
        cairn_param param = {.name = "w", .data = &w, .grad = &g, .dtype = CAIRN_F32, .ndim = 0};
        cairn_param_set *set = NULL;
        cairn_optimizer *o = NULL;
        OK(cairn_param_set_create(*state, &param, 1, &set));
        OK(create_as_apex(&of_apex[i], set, &o));
        for (int t = 0; t < 2; t++) {
            cairn_zero_grad(o);
            g = gradients[t];
            OK(cairn_grads_ready(set, 0, 1));
            OK(cairn_step(o));
            if (fabs((double)w - of_apex[i].weights[t]) > 0x1p-22)
                fail_msg("case %zu, step %d: %.9g", i, t + 1, (double)w);
        }
        cairn_optimizer_destroy(&o);
        cairn_param_set_destroy(&set);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lion_follows_its_double_model),
        cmocka_unit_test(adagrad_follows_its_double_model),
        cmocka_unit_test(maximizing_is_minimizing_with_opposite_gradients),
        cmocka_unit_test(overflow_keeps_every_bit_of_weights_and_states),
        cmocka_unit_test(training_goes_on_to_the_bit_from_a_saved_state),
        cmocka_unit_test(lion_keeps_weights_of_zero_gradients_and_propagates_nan),
        cmocka_unit_test(late_groups_have_hyperparameters_and_counts_of_their_own),
        cmocka_unit_test(groups_by_rule_take_only_options_of_their_kind),
        cmocka_unit_test(hyperparameters_out_of_range_are_refused_by_name),
        cmocka_unit_test(padding_of_older_options_is_no_switch),
        cmocka_unit_test(two_steps_are_those_of_apex),
    };
    return cmocka_run_group_tests(tests, make_env, end_env);
}
