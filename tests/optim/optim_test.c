/* Optimizers against a plain model in double precision, and what a step must not change. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "../one_env.h"
#include "core/alloc.h"
#include "core/half.h"
#include "core/status.h"
#include "one_param.h"

struct model {
    double w[N], s1[N], s2[N], s3[N], g[N];
};

static void start_model(struct model *m) {
    memset(m, 0, sizeof(*m));
    for (int i = 0; i < N; i++) m->w[i] = number(0, i);
}

static void sgd_model(struct model *m, const struct cairn_sgd_options *h, int t) {
    for (int i = 0; i < N; i++) {
        const double decay = h->weight_decay * m->w[i], sign = h->maximize == CAIRN_ON ? -1 : 1;
        const bool last = h->decay_after_momentum == CAIRN_ON;
        double g = sign * m->g[i] + (last ? 0 : decay);
        if (h->momentum != 0) {
            m->s1[i] = t == 1 ? g : h->momentum * m->s1[i] + (1 - h->dampening) * g;
            g = h->nesterov == CAIRN_ON ? g + h->momentum * m->s1[i] : m->s1[i];
        }
        m->w[i] -= h->lr * (g + (last ? decay : 0));
    }
}

static void adam_model(struct model *m, const struct cairn_adam_options *h, bool decoupled, int t) {
    for (int i = 0; i < N; i++) {
        double g = (h->maximize == CAIRN_ON ? -1 : 1) * m->g[i] + (decoupled ? 0 : h->weight_decay * m->w[i]);
        if (decoupled) m->w[i] *= 1 - h->lr * h->weight_decay;
        m->s1[i] = h->beta1 * m->s1[i] + (1 - h->beta1) * g;
        m->s2[i] = h->beta2 * m->s2[i] + (1 - h->beta2) * g * g;
        m->s3[i] = fmax(m->s3[i], m->s2[i]);
        const double second = h->amsgrad == CAIRN_ON ? m->s3[i] : m->s2[i];
        const bool corrects = h->bias_correction != CAIRN_OFF;
        const double c1 = corrects ? 1 - pow(h->beta1, t) : 1, c2 = corrects ? 1 - pow(h->beta2, t) : 1;
        m->w[i] -= h->lr * (m->s1[i] / c1) / (sqrt(second / c2) + h->eps);
    }
}

static const cairn_dtype weight_types[] = {CAIRN_F32, CAIRN_F16, CAIRN_BF16};

static cairn_dtype half_or_none(cairn_dtype dtype) {
    return dtype == CAIRN_F32 ? (cairn_dtype)0 : dtype;
}

static void run_sgd(cairn_env *env, struct cairn_sgd_options h, cairn_dtype dtype) {
    static struct model m;
    cairn_param_set *set = NULL;
    cairn_optimizer *o = NULL;
    struct cairn__param *p = make_param(env, half_or_none(dtype), &set);
    set->scale = &SCALE;
    start_model(&m);
    assert_int_equal(cairn_sgd_create(set, &h, &o), CAIRN_OK);
    for (int t = 1; t <= STEPS; t++) {
        cairn_zero_grad(o);
        write_gradient(p, t, m.g);
        assert_int_equal(cairn_step(o), CAIRN_OK);
        sgd_model(&m, &h, t);
    }
    assert_close(cairn_param_master(set, 0), m.w);
    if (p->master) assert_half_is_rounded_master(p);
    cairn_optimizer_destroy(&o);
    cairn_param_set_destroy(&set);
}

static void sgd_follows_its_double_model(void **state) {
    static const struct {
        double momentum, dampening, decay;
        cairn_switch nesterov, maximize, decay_last;
    } cases[] = {{0, 0, 0, CAIRN_OFF, CAIRN_OFF, CAIRN_OFF},     {0, 0, 0.01, CAIRN_OFF, CAIRN_OFF, CAIRN_OFF},
                 {0.9, 0, 0, CAIRN_OFF, CAIRN_OFF, CAIRN_OFF},   {0.9, 0.5, 0.01, CAIRN_OFF, CAIRN_OFF, CAIRN_OFF},
                 {0.9, 0, 0.01, CAIRN_ON, CAIRN_OFF, CAIRN_OFF}, {0.5, 1, 0, CAIRN_OFF, CAIRN_OFF, CAIRN_OFF},
                 {0.9, 0, 0.01, CAIRN_ON, CAIRN_ON, CAIRN_OFF},  {0.9, 0.5, 0.01, CAIRN_OFF, CAIRN_OFF, CAIRN_ON},
                 {0, 0, 0.01, CAIRN_OFF, CAIRN_ON, CAIRN_ON}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct cairn_sgd_options h = CAIRN_SGD_OPTIONS_INIT;
        h.lr = 0.01;
        h.momentum = cases[i].momentum;
        h.dampening = cases[i].dampening;
        h.weight_decay = cases[i].decay;
        h.nesterov = cases[i].nesterov;
        h.maximize = cases[i].maximize;
        h.decay_after_momentum = cases[i].decay_last;
        for (int d = 0; d < 3; d++) run_sgd(*state, h, weight_types[d]);
    }
}

static void run_adam_as(cairn_env *env, bool decoupled, struct cairn_adam_options h, cairn_dtype dtype) {
    static struct model m;
    cairn_param_set *set = NULL;
    cairn_optimizer *o = NULL;
    struct cairn__param *p = make_param(env, half_or_none(dtype), &set);
    set->scale = &SCALE;
    start_model(&m);
    assert_int_equal((decoupled ? cairn_adamw_create : cairn_adam_create)(set, &h, &o), CAIRN_OK);
    for (int t = 1; t <= STEPS; t++) {
        cairn_zero_grad(o);
        write_gradient(p, t, m.g);
        assert_int_equal(cairn_step(o), CAIRN_OK);
        adam_model(&m, &h, decoupled, t);
    }
    assert_close(cairn_param_master(set, 0), m.w);
    assert_within(o->arrays.moments[0].array[1], m.s2, 3e-6);
    if (h.amsgrad == CAIRN_ON) assert_within(o->arrays.moments[0].array[2], m.s3, 3e-6);
    if (p->master) assert_half_is_rounded_master(p);
    cairn_optimizer_destroy(&o);
    cairn_param_set_destroy(&set);
}

static void run_adam(cairn_env *env, bool decoupled, double decay, cairn_dtype dtype) {
    struct cairn_adam_options h = CAIRN_ADAM_OPTIONS_INIT;
    h.weight_decay = decay;
    run_adam_as(env, decoupled, h, dtype);
}

static void adam_follows_its_double_model(void **state) {
    for (int d = 0; d < 3; d++) {
        run_adam(*state, false, 0, weight_types[d]);
        run_adam(*state, false, 0.01, weight_types[d]);
    }
}

static void adamw_follows_its_double_model(void **state) {
    for (int d = 0; d < 3; d++) run_adam(*state, true, 0.01, weight_types[d]);
}

/* beta2 of 0.5, so that the greatest second moment is not the last. */
static void adams_variants_follow_their_double_model(void **state) {
    for (int variant = 1; variant < 8; variant++) {
        for (int d = 0; d < 3; d++) {
            struct cairn_adam_options h = CAIRN_ADAM_OPTIONS_INIT;
            h.beta2 = 0.5;
            h.weight_decay = 0.01;
            h.amsgrad = variant & 1 ? CAIRN_ON : CAIRN_OFF;
            h.maximize = variant & 2 ? CAIRN_ON : CAIRN_OFF;
            h.bias_correction = variant & 4 ? CAIRN_OFF : CAIRN_ON;
            run_adam_as(*state, false, h, weight_types[d]);
            run_adam_as(*state, true, h, weight_types[d]);
        }
    }
}

static void raised_flag_keeps_every_bit(void **state) {
    static double truth[N];
    static float before[N], momentum_before[N];
    cairn_param_set *set = NULL;
    cairn_optimizer *o = NULL;
    struct cairn_sgd_options h = CAIRN_SGD_OPTIONS_INIT;
    h.momentum = 0.9;
    struct cairn__param *p = make_param(*state, CAIRN_F16, &set);
    assert_int_equal(cairn_sgd_create(set, &h, &o), CAIRN_OK);
    cairn__set_step_guard(o, &(struct cairn__step_guard){.ctx = o, .before = look_and_skip});
    write_gradient(p, 1, truth);
    assert_int_equal(cairn_step(o), CAIRN_OK);
    memcpy(before, p->master, sizeof(before));

    cairn_zero_grad(o);
    write_gradient(p, 2, truth);
    ((uint16_t *)cairn__grad_memory(p->gradient))[N - 1] = 0x7c00;
    assert_int_equal(cairn_step(o), CAIRN_OK);
    assert_int_equal(cairn_optimizer_step_skipped(o), 1);
    assert_int_equal(cairn_optimizer_steps(o), 1);
    assert_int_equal(cairn_optimizer_skipped(o), 1);
    assert_memory_equal(before, p->master, sizeof(before));
    assert_half_is_rounded_master(p);

    /* momentum kept its bits too: the next step is what it would have been without the skipped one */
    cairn_zero_grad(o);
    write_gradient(p, 3, truth);
    assert_int_equal(cairn_step(o), CAIRN_OK);
    for (int i = 0; i < N; i++) {
        float g1 = cairn__f16_to_f32(cairn__f32_to_f16(number(1, i))), g3 = (float)truth[i];
        float b = 0.9f * g1 + g3;
        momentum_before[i] = before[i] - 1e-3f * b;
    }
    assert_memory_equal(momentum_before, p->master, sizeof(before));
    cairn__set_step_guard(o, NULL);
    cairn_optimizer_destroy(&o);
    cairn_param_set_destroy(&set);
}

static void parameter_without_gradient_keeps_weight_and_state(void **state) {
    cairn_param_set *set = NULL;
    cairn_optimizer *o = NULL;
    struct cairn__param *used = make_param(*state, (cairn_dtype)0, &set), *unused = NULL;
    static double truth[N];
    assert_int_equal(cairn__param_set_add(set, "unused", 1, (int64_t[]){4}, false, &unused), CAIRN_OK);
    for (int i = 0; i < 4; i++) ((float *)unused->data)[i] = 1.0f;
    struct cairn_adam_options h = CAIRN_ADAMW_OPTIONS_INIT;
    assert_int_equal(cairn_adamw_create(set, &h, &o), CAIRN_OK);
    for (int t = 1; t < 4; t++) {
        cairn_zero_grad(o);
        write_gradient(used, t, truth);
        assert_int_equal(cairn_step(o), CAIRN_OK);
    }
    for (int i = 0; i < 4; i++) assert_true(((float *)unused->data)[i] == 1.0f);

    /* its first update, in the fourth step, is corrected as a first one: for any gradient of 1 it is lr, and the
     * decay */
    float *slot = NULL;
    cairn_zero_grad(o);
    assert_int_equal(cairn__grad_begin_write(unused->gradient, (void **)&slot), CAIRN_OK);
    for (int i = 0; i < 4; i++) slot[i] = 1.0f;
    cairn__param_grad_ready(unused);
    assert_int_equal(cairn_step(o), CAIRN_OK);
    assert_true(fabs(((float *)unused->data)[0] - (1.0 - 1e-3 - 1e-5)) < 1e-7);
    cairn_optimizer_destroy(&o);
    cairn_param_set_destroy(&set);
}

static void learning_rate_can_change_between_steps(void **state) {
    float w = 1, g = 1;
    cairn_param param = {.name = "w", .data = &w, .grad = &g, .dtype = CAIRN_F32, .ndim = 0};
    cairn_param_set *set = NULL;
    cairn_optimizer *o = NULL;
    struct cairn_sgd_options h = CAIRN_SGD_OPTIONS_INIT;
    h.lr = 0.5;
    assert_int_equal(cairn_param_set_create(*state, &param, 1, &set), CAIRN_OK);
    assert_int_equal(cairn_sgd_create(set, &h, &o), CAIRN_OK);
    assert_int_equal(cairn_step(o), CAIRN_OK); /* no gradient was declared */
    assert_true(w == 1.0f);
    assert_int_equal(cairn_grads_ready(set, 0, 2), CAIRN_EINVAL);
    assert_int_equal(cairn_grads_ready(set, 0, 1), CAIRN_OK);
    assert_int_equal(cairn_step(o), CAIRN_OK);
    assert_true(w == 0.5f);
    assert_int_equal(cairn_optimizer_set_lr(o, 0.25), CAIRN_OK);
    assert_int_equal(cairn_step(o), CAIRN_OK); /* the gradient is used up */
    assert_true(w == 0.5f);
    assert_int_equal(cairn_grads_ready(set, 0, 1), CAIRN_OK);
    assert_int_equal(cairn_step(o), CAIRN_OK);
    assert_true(w == 0.25f);
    assert_int_equal(cairn_optimizer_set_lr(o, -1), CAIRN_EINVAL);
    assert_true(cairn_optimizer_lr(o) == 0.25);
    cairn_optimizer_destroy(&o);
    cairn_param_set_destroy(&set);
}

struct heard {
    cairn_optimizer *optimizer;
    int steps, skips;
    uint32_t culprit;
};

static cairn_status look_for_heard(void *ctx, struct cairn__step_end *end, bool *may) {
    return look_and_skip(((struct heard *)ctx)->optimizer, end, may);
}

static cairn_status hear(void *ctx, const struct cairn__step_report *r, const struct cairn__overflow *overflows) {
    struct heard *heard = ctx;
    *(r->stepped ? &heard->steps : &heard->skips) += 1;
    if (!r->stepped) heard->culprit += overflows[1].infs;
    assert_int_equal(r->number, heard->steps + heard->skips);
    assert_int_equal(r->steps, heard->steps);
    return r->stepped ? CAIRN_OK : cairn__fail(CAIRN_ENUMERIC, "told");
}

static void every_step_is_reported_once_in_order_and_a_status_comes_back(void **state) {
    cairn_param_set *set = NULL;
    cairn_optimizer *o = NULL;
    struct cairn__param *quiet = NULL, *p = make_param(*state, (cairn_dtype)0, &set);
    struct heard heard = {0};
    static double truth[N];
    assert_int_equal(cairn__param_set_add(set, "culprit", 1, (int64_t[]){1}, false, &quiet), CAIRN_OK);
    ((float *)quiet->data)[0] = 0;
    assert_int_equal(cairn_sgd_create(set, NULL, &o), CAIRN_OK);
    heard.optimizer = o;
    cairn__set_step_guard(o, &(struct cairn__step_guard){.ctx = &heard, .before = look_for_heard, .after = hear});
    for (int t = 1; t <= 3 * CAIRN__REPORTS; t++) {
        const bool overflows = t % 5 == 0;
        float *slot = NULL;
        cairn_zero_grad(o);
        write_gradient(p, t, truth);
        assert_int_equal(cairn__grad_begin_write(quiet->gradient, (void **)&slot), CAIRN_OK);
        slot[0] = overflows ? INFINITY : 0;
        cairn__param_grad_ready(quiet);
        assert_int_equal(cairn_step(o), overflows ? CAIRN_ENUMERIC : CAIRN_OK);
    }
    assert_int_equal(heard.steps + heard.skips, 3 * CAIRN__REPORTS);
    assert_int_equal(heard.skips, 3 * CAIRN__REPORTS / 5);
    assert_int_equal(heard.culprit, heard.skips);
    assert_int_equal(cairn_optimizer_skipped(o), heard.skips);
    cairn__set_step_guard(o, NULL);
    cairn_optimizer_destroy(&o);
    cairn_param_set_destroy(&set);
}

static cairn_status hear_number(void *ctx, const struct cairn__step_report *r,
                                const struct cairn__overflow *overflows) {
    uint64_t *heard = ctx;
    assert_int_equal(r->steps, r->number);
    assert_int_equal(overflows[0].infs, r->number);
    heard[0]++;
    assert_true(r->number > heard[1]);
    heard[1] = r->number;
    return CAIRN_OK;
}

/* A device that is 40 steps ahead, with names of one parameter and of the losses: the report that it may be writing
 * over is not looked at, those behind it are lost. */
static void host_that_lags_reads_the_last_reports_whole(void **state) {
    cairn_param_set *set = NULL;
    cairn_optimizer *o = NULL;
    uint64_t heard[2] = {0};
    make_param(*state, (cairn_dtype)0, &set);
    assert_int_equal(cairn_sgd_create(set, NULL, &o), CAIRN_OK);
    cairn__set_step_guard(o, &(struct cairn__step_guard){.ctx = heard, .after = hear_number});
    for (uint64_t number = 1; number <= 40; number++) {
        o->reports[number % CAIRN__REPORTS] =
            (struct cairn__step_report){.number = number, .steps = (int64_t)number, .stepped = 1};
        o->arrays.report_overflows[number % CAIRN__REPORTS * (1 + 1)].infs = (uint32_t)number;
    }
    assert_int_equal(cairn_optimizer_steps(o), 40);
    assert_int_equal(o->reader.read(&o->reader), CAIRN_OK);
    assert_int_equal(heard[0], CAIRN__REPORTS - 1);
    assert_int_equal(heard[1], 40);
    assert_int_equal(o->reader.read(&o->reader), CAIRN_OK);
    assert_int_equal(heard[0], CAIRN__REPORTS - 1);
    cairn__set_step_guard(o, NULL);
    cairn_optimizer_destroy(&o);
    cairn_param_set_destroy(&set);
}

static void steady_step_allocates_nothing(void **state) {
    static double truth[N];
    cairn_param_set *set = NULL;
    cairn_optimizer *o = NULL;
    struct cairn__param *p = make_param(*state, CAIRN_BF16, &set);
    assert_int_equal(cairn_adamw_create(set, NULL, &o), CAIRN_OK);
    write_gradient(p, 1, truth);
    assert_int_equal(cairn_step(o), CAIRN_OK);
    uint64_t before = cairn__alloc_counters().allocations;
    for (int t = 2; t < 10; t++) {
        cairn_zero_grad(o);
        write_gradient(p, t, truth);
        assert_int_equal(cairn_step(o), CAIRN_OK);
    }
    assert_int_equal(cairn__alloc_counters().allocations, before);
    cairn_optimizer_destroy(&o);
    cairn_param_set_destroy(&set);
}

static void assert_sgd_refused(cairn_param_set *set, struct cairn_sgd_options h, const char *sentence) {
    cairn_optimizer *o = NULL;
    assert_int_equal(cairn_sgd_create(set, &h, &o), CAIRN_EINVAL);
    assert_string_equal(cairn_last_error(), sentence);
    assert_null(o);
}

static void hyperparameters_out_of_range_are_refused_by_name(void **state) {
    cairn_param_set *set = NULL;
    make_param(*state, (cairn_dtype)0, &set);
    const struct cairn_sgd_options good = CAIRN_SGD_OPTIONS_INIT;
    struct cairn_sgd_options h = good;
    h.lr = -1;
    assert_sgd_refused(set, h, "SGD: lr is -1; it must be a number >= 0");
    h = good;
    h.momentum = NAN;
    assert_sgd_refused(set, h, "SGD: momentum is nan; it must be a number >= 0");
    h = good;
    h.nesterov = CAIRN_ON;
    assert_sgd_refused(set, h,
                       "SGD: nesterov needs a momentum above 0 and no dampening, got momentum 0 and dampening 0");
    h = good;
    h.struct_size = 0;
    assert_sgd_refused(set, h,
                       "cairn_sgd_options.struct_size is 0; set it to sizeof(struct cairn_sgd_options), as the macro "
                       "of that struct does where "
                       "there is one");

    cairn_optimizer *o = NULL;
    struct cairn_adam_options a = CAIRN_ADAM_OPTIONS_INIT;
    a.beta2 = 1;
    assert_int_equal(cairn_adam_create(set, &a, &o), CAIRN_EINVAL);
    assert_string_equal(cairn_last_error(), "Adam: beta2 is 1; it must be in [0, 1)");
    cairn_param_set_destroy(&set);
}

/* What a program fills by hand that does not know of the INIT macros. */
static void zeroed_adam_that_would_divide_by_zero_is_refused(void **state) {
    cairn_param_set *set = NULL;
    cairn_optimizer *o = NULL;
    struct cairn_adam_options h = {.struct_size = sizeof(h), .lr = 1e-3};
    make_param(*state, (cairn_dtype)0, &set);
    assert_int_equal(cairn_adam_create(set, &h, &o), CAIRN_EINVAL);
    assert_string_equal(cairn_last_error(), "Adam: eps and beta2 are both 0, so a gradient of 0 would give NaN; start "
                                            "from CAIRN_ADAM_OPTIONS_INIT and change single fields");
    assert_int_equal(cairn_adamw_create(set, &h, &o), CAIRN_EINVAL);
    assert_string_equal(cairn_last_error(), "AdamW: eps and beta2 are both 0, so a gradient of 0 would give NaN; start "
                                            "from CAIRN_ADAMW_OPTIONS_INIT and change single fields");
    h.eps = 1e-8;
    assert_int_equal(cairn_adam_create(set, &h, &o), CAIRN_OK);
    h.eps = 0;
    assert_int_equal(cairn_adam_add_group(o, set, NULL, 0, &h), CAIRN_EINVAL);
    cairn_optimizer_destroy(&o);
    h.beta2 = 0.9;
    assert_int_equal(cairn_adam_create(set, &h, &o), CAIRN_OK);
    cairn_optimizer_destroy(&o);
    cairn_param_set_destroy(&set);
}

static void field_of_a_newer_struct_is_refused_unless_zero(void **state) {
    struct {
        struct cairn_sgd_options known;
        double unknown;
    } newer = {.known = CAIRN_SGD_OPTIONS_INIT, .unknown = 0};
    cairn_param_set *set = NULL;
    cairn_optimizer *o = NULL;
    make_param(*state, (cairn_dtype)0, &set);
    newer.known.struct_size = sizeof(newer);
    assert_int_equal(cairn_sgd_create(set, &newer.known, &o), CAIRN_OK);
    cairn_optimizer_destroy(&o);
    newer.unknown = 1;
    assert_int_equal(cairn_sgd_create(set, &newer.known, &o), CAIRN_EINVAL);
    cairn_param_set_destroy(&set);
}

/* Clipping is a coefficient that the optimizer keeps until the step: it is applied when the optimizer goes before. */
static void gradients_stay_clipped_when_their_optimizer_ends(void **state) {
    float w = 0, g = 8;
    const cairn_param like = {.name = "w", .data = &w, .grad = &g, .dtype = CAIRN_F32, .ndim = 1, .shape = {1}};
    struct cairn_sgd_options h = CAIRN_SGD_OPTIONS_INIT;
    h.lr = 1;
    for (int taken = 0; taken < 2; taken++) {
        cairn_param_set *set = NULL;
        cairn_optimizer *o = NULL;
        w = 0, g = 8;
        assert_int_equal(cairn_param_set_create(*state, &like, 1, &set), CAIRN_OK);
        assert_int_equal(cairn_sgd_create(set, &h, &o), CAIRN_OK);
        assert_int_equal(cairn_grads_ready(set, 0, 1), CAIRN_OK);
        if (taken) assert_int_equal(cairn_grads_taken(set, 0, 1), CAIRN_OK);
        assert_int_equal(cairn_clip_grad_norm(o, 4, NULL), CAIRN_OK);
        cairn_optimizer_destroy(&o);
        assert_int_equal(cairn_sgd_create(set, &h, &o), CAIRN_OK);
        if (taken) {
            g = 2;
            assert_int_equal(cairn_grads_ready(set, 0, 1), CAIRN_OK); /* reads nothing of the old optimizer */
        }
        assert_int_equal(cairn_step(o), CAIRN_OK);
        assert_float_equal(w, taken ? -6 : -4, 1e-5); /* clipping divides by the norm plus 1e-6 */
        cairn_optimizer_destroy(&o);
        cairn_param_set_destroy(&set);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sgd_follows_its_double_model),
        cmocka_unit_test(adam_follows_its_double_model),
        cmocka_unit_test(adamw_follows_its_double_model),
        cmocka_unit_test(adams_variants_follow_their_double_model),
        cmocka_unit_test(raised_flag_keeps_every_bit),
        cmocka_unit_test(parameter_without_gradient_keeps_weight_and_state),
        cmocka_unit_test(learning_rate_can_change_between_steps),
        cmocka_unit_test(every_step_is_reported_once_in_order_and_a_status_comes_back),
        cmocka_unit_test(host_that_lags_reads_the_last_reports_whole),
        cmocka_unit_test(steady_step_allocates_nothing),
        cmocka_unit_test(hyperparameters_out_of_range_are_refused_by_name),
        cmocka_unit_test(zeroed_adam_that_would_divide_by_zero_is_refused),
        cmocka_unit_test(field_of_a_newer_struct_is_refused_unless_zero),
        cmocka_unit_test(gradients_stay_clipped_when_their_optimizer_ends),
    };
    return cmocka_run_group_tests(tests, make_env, end_env);
}
