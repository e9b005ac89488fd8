/* Explicit scaling: scale, backward, unscale, step, update, with a scaler without context and with a context's
 * scaler. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "cairn/cairn.h"
#include "core/alloc.h"
#include "logged_env.h"
#include "../mlp.h"
#include "../on_gpu.h"
#include "../plant.h"
#include "../ranks.h"

/* A model, its optimizer, and the scaler of its loss: of a context, or by itself. */
struct training {
    cairn_env *env;
    cairn_tensor *x, *y;
    cairn_module *model;
    cairn_optimizer *sgd;
    amp_context *amp;
    amp_scaler *scaler;
    struct plant plant;
    bool clips, unscales, casts;
    int micro_batches;
};

static void make_model(struct training *t, cairn_env *env) {
    *t = (struct training){.env = env, .micro_batches = 1};
    struct cairn_sgd_options hyper = CAIRN_SGD_OPTIONS_INIT;
    hyper.lr = 0.1;
    hyper.momentum = 0.9;
    cairn_manual_seed(env, 3);
    t->x = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(8, 12));
    t->y = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(8, 4));
    t->model = make_mlp(env, 12, 10, 4);
    assert_non_null(t->model);
    OK(cairn_sgd_create(cairn_module_params(t->model), &hyper, &t->sgd));
    log_text[0] = '\0';
}

/* level NULL: f32, and a scaler by itself. */
static void begin(struct training *t, cairn_env *env, const struct amp_options *level,
                  const struct amp_scaler_options *options) {
    make_model(t, env);
    if (level) {
        struct amp_options o = *level;
        o.scaler = options;
        o.verbosity = -1;
        OK(amp_initialize(env, t->model, t->sgd, &o, &t->amp));
        t->scaler = amp_scaler_of(t->amp, 0);
    } else {
        OK(amp_scaler_create(env, options, &t->scaler));
    }
    plant_install(&t->plant, cairn_module_params(t->model));
}

static void end(struct training *t) {
    plant_remove(&t->plant);
    amp_scaler_destroy(&t->scaler);
    amp_destroy(&t->amp);
    cairn_optimizer_destroy(&t->sgd);
    cairn_module_destroy(&t->model);
    cairn_tensor_destroy(&t->x);
    cairn_tensor_destroy(&t->y);
    assert_null(t->sgd);
    assert_null(t->model);
}

static cairn_tensor *loss_of(const struct training *t) {
    if (t->casts) OK(amp_autocast_begin(t->env, NULL, NULL));
    cairn_tensor *loss = cairn_mse_loss(cairn_module_forward(t->model, t->x), t->y);
    if (t->casts) OK(amp_autocast_end(t->env, 0));
    return t->micro_batches > 1 ? cairn_mul_scalar(loss, 1.0f / (float)t->micro_batches) : loss;
}

static void backward(struct training *t) {
    OK(cairn_backward(amp_scaler_scale(t->scaler, loss_of(t))));
}

static void explicit_step(struct training *t) {
    cairn_zero_grad(t->sgd);
    for (int i = 0; i < t->micro_batches; i++) backward(t);
    if (t->unscales) OK(amp_scaler_unscale(t->scaler, t->sgd));
    if (t->clips) OK(cairn_clip_grad_norm(t->sgd, 0.25, NULL));
    OK(amp_scaler_step(t->scaler, t->sgd, NULL));
    OK(amp_scaler_update(t->scaler));
}

static void implicit_step(struct training *t) {
    cairn_zero_grad(t->sgd);
    for (int i = 0; i < t->micro_batches; i++) OK(amp_backward(t->amp, loss_of(t), t->sgd));
    if (t->clips) OK(cairn_clip_grad_norm(t->sgd, 0.25, NULL));
    OK(cairn_step(t->sgd));
}

/* Weights and masters. */
struct bits {
    unsigned char weights[4][512], masters[4][512];
};

static void take_bits(struct bits *bits, const struct training *t) {
    struct cairn_param_set *set = cairn_module_params(t->model);
    memset(bits, 0, sizeof(*bits));
    for (size_t i = 0; i < set->count; i++) {
        const struct cairn__param *p = set->params[i];
        memcpy(bits->weights[i], p->data, p->n * cairn_dtype_nbytes(p->dtype));
        if (p->master) memcpy(bits->masters[i], p->master, p->n * sizeof(float));
    }
}

enum { STEPS = 9 };

/* What a training came to, and how its scaler went there. */
struct outcome {
    struct bits bits;
    struct amp_scaler_update_record trace[STEPS];
    int64_t steps, skipped;
};

/* Steps 2 and 5 overflow. */
static void train(struct training *t, void (*step)(struct training *t), struct outcome *out) {
    memset(out, 0, sizeof(*out));
    OK(amp_scaler_record(t->scaler, out->trace, STEPS));
    for (int i = 0; i < STEPS; i++) {
        t->plant.target = i == 2 ? 0 : i == 5 ? 3 : -1;
        t->plant.value = i == 2 ? INFINITY : NAN;
        step(t);
        assert_int_equal(cairn_optimizer_step_skipped(t->sgd), i == 2 || i == 5);
    }
    assert_int_equal(amp_scaler_recorded(t->scaler), STEPS);
    OK(amp_scaler_record(t->scaler, NULL, 0));
    take_bits(&out->bits, t);
    out->steps = cairn_optimizer_steps(t->sgd);
    out->skipped = cairn_optimizer_skipped(t->sgd);
}

static void assert_same_outcome(const struct outcome *a, const struct outcome *b) {
    assert_memory_equal(&a->bits, &b->bits, sizeof(a->bits));
    for (int i = 0; i < STEPS; i++) {
        assert_int_equal(a->trace[i].step, b->trace[i].step);
        assert_true(a->trace[i].scale == b->trace[i].scale);
        assert_int_equal(a->trace[i].growth_tracker, b->trace[i].growth_tracker);
        assert_int_equal(a->trace[i].found, b->trace[i].found);
    }
    assert_int_equal(a->steps, b->steps);
    assert_int_equal(a->skipped, b->skipped);
}

static const struct amp_options every_level[] = {
    {.struct_size = sizeof(struct amp_options), .opt_level = AMP_O0, .loss_scale = AMP_DYNAMIC},
    {.struct_size = sizeof(struct amp_options), .opt_level = AMP_O1},
    {.struct_size = sizeof(struct amp_options), .opt_level = AMP_O1, .half_type = CAIRN_BF16, .loss_scale = HUGE_VAL},
    {.struct_size = sizeof(struct amp_options), .opt_level = AMP_O2},
    {.struct_size = sizeof(struct amp_options), .opt_level = AMP_O2, .half_type = CAIRN_BF16, .loss_scale = HUGE_VAL},
    {.struct_size = sizeof(struct amp_options), .opt_level = AMP_O3, .loss_scale = HUGE_VAL},
    {.struct_size = sizeof(struct amp_options), .opt_level = AMP_O3, .half_type = CAIRN_BF16, .loss_scale = HUGE_VAL},
};
enum { NUM_LEVELS = sizeof(every_level) / sizeof(every_level[0]) };

/* Grows every second step. */
#define TORCH amp_scaler_options(.kind = AMP_SCALER_TORCH, .init_scale = 1024, .growth_interval = 2)

static void explicit_training_equals_scale_loss_training_at_every_level(void **state) {
    static struct outcome want, got;
    for (int l = 0; l < NUM_LEVELS; l++) {
        for (int way = 0; way < 8; way++) {
            struct training t;
            const bool clips = way & 1, unscales = way & 2;
            const int micro_batches = way & 4 ? 4 : 1;
            begin(&t, *state, &every_level[l], TORCH);
            t.clips = clips, t.micro_batches = micro_batches;
            train(&t, implicit_step, &want);
            end(&t);
            begin(&t, *state, &every_level[l], TORCH);
            t.clips = clips, t.unscales = unscales, t.micro_batches = micro_batches;
            train(&t, explicit_step, &got);
            end(&t);
            assert_same_outcome(&want, &got);
        }
    }
}

/* A scaler by itself: what O0 is without autocast, and O1 with it. */
static void scaler_without_a_context_trains_as_o0_and_o1(void **state) {
    static struct outcome want, got;
    for (int casts = 0; casts < 2; casts++) {
        for (int unscales = 0; unscales < 2; unscales++) {
            struct training t;
            begin(&t, *state, &every_level[casts], TORCH);
            train(&t, implicit_step, &want);
            end(&t);
            begin(&t, *state, NULL, TORCH);
            t.casts = casts, t.unscales = unscales;
            train(&t, explicit_step, &got);
            end(&t);
            assert_same_outcome(&want, &got);
        }
    }
}

/* torch, GradScaler(init_scale=1024, growth_interval=2), clean but for the third and sixth update. */
static void scales_follow_torchs_trace(void **state) {
    static const double scales[STEPS] = {1024, 2048, 1024, 1024, 2048, 1024, 1024, 2048, 2048};
    static const int trackers[STEPS] = {1, 0, 0, 1, 0, 0, 1, 0, 1};
    static struct outcome got;
    struct training t;
    begin(&t, *state, NULL, TORCH);
    train(&t, explicit_step, &got);
    for (int i = 0; i < STEPS; i++) {
        assert_int_equal(got.trace[i].step, i + 1);
        assert_true(got.trace[i].scale == scales[i]);
        assert_int_equal(got.trace[i].growth_tracker, trackers[i]);
        assert_int_equal(got.trace[i].found, i == 2 || i == 5);
    }
    end(&t);
}

/* ---- whom an overflow concerns ---- */

/* Two models under one scaler; the overflow is in one. */
struct pair {
    struct training a, b;
};

static void begin_pair(struct pair *p, cairn_env *env) {
    begin(&p->a, env, NULL, TORCH);
    begin(&p->b, env, NULL, TORCH);
    amp_scaler_destroy(&p->b.scaler);
    p->b.scaler = p->a.scaler;
}

static void end_pair(struct pair *p) {
    p->b.scaler = NULL;
    end(&p->b);
    end(&p->a);
}

static void backward_both(struct pair *p) {
    cairn_zero_grad(p->a.sgd);
    cairn_optimizer_clear_grads(p->b.sgd);
    OK(cairn_backward(amp_scaler_scale(p->a.scaler, cairn_add(loss_of(&p->a), loss_of(&p->b)))));
}

static void only_the_optimizer_that_overflowed_skips(void **state) {
    for (int which = 0; which < 2; which++) {
        struct pair p;
        struct bits before_a, before_b, after_a, after_b;
        struct amp_scaler_state s = AMP_SCALER_STATE_INIT;
        int a = -1, b = -1;
        begin_pair(&p, *state);
        take_bits(&before_a, &p.a), take_bits(&before_b, &p.b);
        (which ? &p.b : &p.a)->plant.target = 2;
        (which ? &p.b : &p.a)->plant.value = INFINITY;
        backward_both(&p);
        OK(amp_scaler_step(p.a.scaler, p.a.sgd, &a));
        OK(amp_scaler_step(p.a.scaler, p.b.sgd, &b));
        assert_true(amp_scaler_get_scale(p.a.scaler) == 1024);
        OK(amp_scaler_update(p.a.scaler));
        take_bits(&after_a, &p.a), take_bits(&after_b, &p.b);
        assert_int_equal(a, which == 1);
        assert_int_equal(b, which == 0);
        assert_int_equal(memcmp(&before_a, &after_a, sizeof(after_a)) == 0, which == 0);
        assert_int_equal(memcmp(&before_b, &after_b, sizeof(after_b)) == 0, which == 1);
        OK(amp_scaler_get_state(p.a.scaler, &s));
        assert_true(s.scale == 512 && s.updates == 1);
        end_pair(&p);
    }
}

/* Alone, with the scales that the scaler of both went through, without its own skipped step. */
static void train_alone(cairn_env *env, const struct amp_options *level, const double *scales, int leave_out,
                        struct bits *out) {
    struct training t;
    begin(&t, env, level, TORCH);
    for (int i = 0; i < STEPS; i++) {
        if (i == leave_out) continue;
        OK(amp_scaler_set_scale(t.scaler, scales[i]));
        explicit_step(&t);
    }
    assert_int_equal(cairn_optimizer_steps(t.sgd), STEPS - 1);
    take_bits(out, &t);
    end(&t);
}

static void each_optimizer_skips_its_own_overflow_at_every_level(void **state) {
    for (int l = 0; l < NUM_LEVELS; l++) {
        struct pair p;
        static struct bits a_bits, b_bits, alone;
        double scales[STEPS];
        struct amp_options o = every_level[l];
        o.scaler = TORCH;
        o.verbosity = -1;
        make_model(&p.a, *state), make_model(&p.b, *state);
        OK(amp_initialize_all(*state, CAIRN_MODULES(p.a.model, p.b.model), CAIRN_OPTIMIZERS(p.a.sgd, p.b.sgd), &o,
                              &p.a.amp));
        p.a.scaler = amp_scaler_of(p.a.amp, 0);
        plant_install(&p.a.plant, cairn_module_params(p.a.model));
        plant_install(&p.b.plant, cairn_module_params(p.b.model));
        for (int i = 0; i < STEPS; i++) {
            p.a.plant.target = i == 2 ? 1 : -1, p.a.plant.value = INFINITY;
            p.b.plant.target = i == 4 ? 3 : -1, p.b.plant.value = NAN;
            scales[i] = amp_scaler_get_scale(p.a.scaler);
            backward_both(&p);
            int a = -1, b = -1;
            OK(amp_scaler_step(p.a.scaler, p.a.sgd, &a));
            OK(amp_scaler_step(p.a.scaler, p.b.sgd, &b));
            OK(amp_scaler_update(p.a.scaler));
            assert_int_equal(a, i != 2);
            assert_int_equal(b, i != 4);
            assert_true((amp_scaler_get_scale(p.a.scaler) < scales[i]) == (i == 2 || i == 4));
        }
        take_bits(&a_bits, &p.a), take_bits(&b_bits, &p.b);
        p.a.scaler = NULL;
        amp_destroy(&p.a.amp); /* of both */
        end_pair(&p);
        train_alone(*state, &every_level[l], scales, 2, &alone);
        assert_memory_equal(&alone, &a_bits, sizeof(alone));
        train_alone(*state, &every_level[l], scales, 4, &alone);
        assert_memory_equal(&alone, &b_bits, sizeof(alone));
    }
}

/* A group that comes when the scaler has the optimizer already. */
static void parameters_may_come_later(void **state) {
    struct training t;
    begin(&t, *state, NULL, NULL);
    explicit_step(&t);
    cairn_module *more = make_mlp(*state, 12, 40, 4);
    OK(cairn_sgd_add_group(t.sgd, cairn_module_params(more), NULL, 0, NULL));
    struct plant plant;
    plant_install(&plant, cairn_module_params(more));
    plant.target = 3, plant.value = NAN;
    log_text[0] = '\0';
    cairn_zero_grad(t.sgd);
    cairn_tensor *loss = cairn_mse_loss(cairn_module_forward(more, t.x), t.y);
    OK(cairn_backward(amp_scaler_scale(t.scaler, cairn_add(loss, loss_of(&t)))));
    OK(amp_scaler_step(t.scaler, t.sgd, NULL));
    OK(amp_scaler_update(t.scaler));
    assert_string_equal(log_text, "Gradient overflow.  Skipping step: non-finite gradient in 2.bias (1 nan of 4)\n"
                                  "Gradient overflow.  Loss scaler 0 reducing loss scale to 32768\n");
    plant_remove(&plant);
    end(&t);
    cairn_module_destroy(&more);
    assert_null(more);
}

static void skipped_step_and_lowered_scale_are_logged_once(void **state) {
    struct training t;
    begin(&t, *state, NULL, NULL);
    t.unscales = t.clips = true; /* three reads of one infinity */
    t.plant.target = 2, t.plant.value = INFINITY;
    explicit_step(&t);
    assert_string_equal(log_text, "Gradient overflow.  Skipping step: non-finite gradient in 2.weight (1 inf of 40)\n"
                                  "Gradient overflow.  Loss scaler 0 reducing loss scale to 32768\n");
    log_text[0] = '\0';
    t.plant.target = -1;
    explicit_step(&t);
    assert_string_equal(log_text, "");
    end(&t);
    begin(&t, *state, &every_level[3], NULL);
    t.unscales = t.clips = true;
    t.plant.target = 2, t.plant.value = INFINITY;
    explicit_step(&t);
    assert_string_equal(log_text, "Gradient overflow.  Skipping step: non-finite gradient in 2.weight (1 inf of 40)\n"
                                  "Gradient overflow.  Loss scaler 0 reducing loss scale to 32768\n");
    end(&t);
}

static void overflow_at_the_floor_is_an_error_of_update(void **state) {
    struct training t;
    begin(&t, *state, NULL, amp_scaler_options(.kind = AMP_SCALER_TORCH, .init_scale = 4, .min_scale = 2));
    t.plant.target = 0, t.plant.value = NAN;
    explicit_step(&t);
    assert_non_null(strstr(log_text, "to its floor of 2"));
    cairn_zero_grad(t.sgd);
    backward(&t);
    OK(amp_scaler_step(t.scaler, t.sgd, NULL));
    REFUSED(amp_scaler_update(t.scaler), CAIRN_ENUMERIC, "at its floor of 2");
    t.plant.target = -1;
    explicit_step(&t); /* it goes on */
    assert_int_equal(cairn_optimizer_step_skipped(t.sgd), 0);
    end(&t);
}

static void static_scale_skips_and_stays(void **state) {
    const double scales[] = {1, 128};
    for (int i = 0; i < 2; i++) {
        struct training t;
        int stepped = -1;
        begin(&t, *state, NULL, amp_scaler_options(.kind = AMP_SCALER_STATIC, .init_scale = scales[i]));
        t.plant.target = 0, t.plant.value = INFINITY;
        backward(&t);
        OK(amp_scaler_step(t.scaler, t.sgd, &stepped));
        OK(amp_scaler_update(t.scaler));
        assert_int_equal(stepped, 0);
        assert_true(amp_scaler_get_scale(t.scaler) == scales[i]);
        end(&t);
    }
}

/* ---- unscaled gradients ---- */

static void unscale_gives_unscaled_gradients(void **state) {
    float want[4][120];
    for (int l = -1; l < NUM_LEVELS; l++) {
        for (int scaled = 0; scaled < 2; scaled++) {
            struct training t;
            cairn_param masters[4];
            begin(&t, *state, l < 0 ? NULL : &every_level[l], TORCH);
            cairn_tensor *loss = loss_of(&t);
            OK(cairn_backward(scaled ? amp_scaler_scale(t.scaler, loss) : loss));
            if (scaled) OK(amp_scaler_unscale(t.scaler, t.sgd));
            OK(cairn_optimizer_masters(t.sgd, masters, 4));
            for (int i = 0; i < 4; i++) {
                const struct cairn__param *p = cairn_module_params(t.model)->params[i];
                if (!scaled) memcpy(want[i], masters[i].grad, p->n * sizeof(float));
                for (size_t e = 0; scaled && e < p->n; e++) {
                    const float got = ((const float *)masters[i].grad)[e];
                    assert_true(fabsf(got - want[i][e]) <= 0x1p-7f * fabsf(want[i][e]) + 0x1p-16f);
                    if (p->dtype == CAIRN_F32) assert_true(((const float *)cairn__grad_memory(p->gradient))[e] == got);
                }
            }
            end(&t);
        }
    }
}

/* An unscale that no step follows: the next step is not left out for what it found. */
static void unscale_without_a_step_leaves_nothing_behind(void **state) {
    for (int way = 0; way < 4; way++) {
        struct training t;
        const bool zeroed = way & 1;
        begin(&t, *state, way & 2 ? &every_level[3] : NULL, TORCH);
        t.plant.target = 0, t.plant.value = INFINITY;
        backward(&t);
        OK(amp_scaler_unscale(t.scaler, t.sgd));
        OK(amp_scaler_update(t.scaler));
        assert_true(amp_scaler_get_scale(t.scaler) == 512);
        t.plant.target = -1;
        if (zeroed) cairn_zero_grad(t.sgd);
        backward(&t);
        OK(amp_scaler_step(t.scaler, t.sgd, NULL));
        assert_int_equal(cairn_optimizer_step_skipped(t.sgd), !zeroed); /* the infinity is still in the sum */
        OK(amp_scaler_update(t.scaler));
        assert_true(amp_scaler_get_scale(t.scaler) == (zeroed ? 512 : 256));
        end(&t);
    }
}

/* ---- order ---- */

static void calls_out_of_order_are_refused_in_torchs_words(void **state) {
    struct training t;
    begin(&t, *state, NULL, NULL);
    REFUSED(amp_scaler_update(t.scaler), CAIRN_ESTATE, "no inf checks were recorded prior to update");
    OK(cairn_backward(loss_of(&t)));
    REFUSED(amp_scaler_step(t.scaler, t.sgd, NULL), CAIRN_ESTATE, "this scaler has scaled no loss yet");
    cairn_zero_grad(t.sgd);
    assert_non_null(amp_scaler_scale(t.scaler, loss_of(&t))); /* and no backward */
    REFUSED(amp_scaler_step(t.scaler, t.sgd, NULL), CAIRN_ESTATE, "no inf checks were recorded for this optimizer");
    REFUSED(amp_scaler_update(t.scaler), CAIRN_ESTATE, "no inf checks were recorded prior to update");
    backward(&t);
    OK(amp_scaler_unscale(t.scaler, t.sgd));
    REFUSED(amp_scaler_unscale(t.scaler, t.sgd), CAIRN_ESTATE,
            "unscale has already been called on this optimizer since the last update");
    OK(amp_scaler_step(t.scaler, t.sgd, NULL));
    REFUSED(amp_scaler_unscale(t.scaler, t.sgd), CAIRN_ESTATE, "unscale is being called after step");
    REFUSED(amp_scaler_step(t.scaler, t.sgd, NULL), CAIRN_ESTATE, "step has already been called since the last update");
    OK(amp_scaler_update(t.scaler));
    REFUSED(amp_scaler_update(t.scaler), CAIRN_ESTATE, "no inf checks were recorded prior to update");
    explicit_step(&t);
    assert_int_equal(cairn_optimizer_steps(t.sgd), 2);
    end(&t);
}

static void nonsense_arguments_are_refused(void **state) {
    struct training t, other;
    amp_scaler *scaler = NULL;
    cairn_env *env = NULL;
    int stepped = 7;
    begin(&t, *state, NULL, NULL);
    OK(cairn_env_create(NULL, NULL, NULL, &env));
    begin(&other, env, NULL, NULL);
    assert_null(amp_scaler_scale(NULL, loss_of(&t)));
    REFUSED(cairn_backward(NULL), CAIRN_EINVAL, "scaler is NULL");
    assert_null(amp_scaler_scale(t.scaler, cairn_relu(NULL)));
    REFUSED(amp_scaler_unscale(NULL, t.sgd), CAIRN_EINVAL, "must be set");
    REFUSED(amp_scaler_unscale(t.scaler, NULL), CAIRN_EINVAL, "must be set");
    REFUSED(amp_scaler_step(NULL, NULL, &stepped), CAIRN_EINVAL, "must be set");
    REFUSED(amp_scaler_step(t.scaler, other.sgd, &stepped), CAIRN_EINVAL, "another environment");
    REFUSED(amp_scaler_update(NULL), CAIRN_EINVAL, "scaler is NULL");
    REFUSED(amp_scaler_set_scale(NULL, 1), CAIRN_EINVAL, "scaler is NULL");
    REFUSED(amp_scaler_set_scale(t.scaler, NAN), CAIRN_EINVAL, "outside the scaler's range");
    REFUSED(amp_scaler_set_scale(t.scaler, 0.5), CAIRN_EINVAL, "floor of 1");
    REFUSED(amp_scaler_set_scale(t.scaler, INFINITY), CAIRN_EINVAL, "ceiling");
    REFUSED(amp_scaler_create(NULL, NULL, &scaler), CAIRN_EINVAL, "env is NULL");
    REFUSED(amp_scaler_create(*state, NULL, NULL), CAIRN_EINVAL, "out is NULL");
    assert_int_equal(stepped, 7);
    amp_scaler_destroy(NULL);
    amp_scaler_destroy(&scaler);
    end(&other);
    cairn_env_destroy(&env);
    end(&t);
}

static void failed_backward_is_neither_unscaled_nor_stepped(void **state) {
    struct training t;
    begin(&t, *state, NULL, NULL);
    explicit_step(&t);
    backward(&t);
    cairn__param_set_make_incomplete(cairn_module_params(t.model));
    REFUSED(amp_scaler_unscale(t.scaler, t.sgd), CAIRN_ESTATE, "incomplete");
    REFUSED(amp_scaler_step(t.scaler, t.sgd, NULL), CAIRN_ESTATE, "incomplete");
    explicit_step(&t); /* zeroes */
    end(&t);
}

static void scale_can_be_set(void **state) {
    struct training t;
    struct amp_scaler_state s = AMP_SCALER_STATE_INIT;
    begin(&t, *state, NULL, TORCH);
    explicit_step(&t);
    backward(&t);
    OK(amp_scaler_unscale(t.scaler, t.sgd));
    OK(amp_scaler_set_scale(t.scaler, 3 + 0x1p-30)); /* instead of update, as torch's update(new_scale) */
    OK(amp_scaler_get_state(t.scaler, &s));
    assert_true(s.scale == 3 && amp_scaler_get_scale(t.scaler) == 3); /* an f32 */
    assert_int_equal(s.growth_tracker, 1);
    assert_int_equal(s.updates, 1);
    cairn_tensor *loss = loss_of(&t), *scaled = amp_scaler_scale(t.scaler, loss);
    assert_true(cairn_tensor_item(scaled) == 3 * cairn_tensor_item(loss));
    OK(cairn_backward(scaled));
    OK(amp_scaler_unscale(t.scaler, t.sgd));
    OK(amp_scaler_step(t.scaler, t.sgd, NULL));
    OK(amp_scaler_update(t.scaler));
    assert_true(amp_scaler_get_scale(t.scaler) == 6);
    end(&t);
}

/* ---- two ways mixed ---- */

static void loss_of_the_context_may_be_stepped_the_explicit_way(void **state) {
    for (int overflows = 0; overflows < 2; overflows++) {
        struct training t;
        struct amp_scaler_state s = AMP_SCALER_STATE_INIT;
        int stepped = -1;
        begin(&t, *state, &every_level[3], TORCH);
        t.plant.target = overflows ? 1 : -1, t.plant.value = INFINITY;
        OK(amp_backward(t.amp, loss_of(&t), t.sgd));
        OK(amp_scaler_step(t.scaler, t.sgd, &stepped));
        OK(amp_scaler_update(t.scaler));
        assert_int_equal(stepped, !overflows);
        OK(amp_scaler_get_state(t.scaler, &s));
        assert_int_equal(s.updates, 1);
        assert_true(s.scale == (overflows ? 512 : 1024));
        t.plant.target = -1;
        implicit_step(&t); /* and back */
        OK(amp_scaler_get_state(t.scaler, &s));
        assert_int_equal(s.updates, 2);
        end(&t);
    }
}

static void plain_step_after_an_explicit_scale_is_refused(void **state) {
    struct training t;
    begin(&t, *state, &every_level[3], TORCH);
    backward(&t);
    REFUSED(cairn_step(t.sgd), CAIRN_ESTATE, "loss scaler 0 was used with amp_scaler_scale");
    OK(amp_scaler_step(t.scaler, t.sgd, NULL));
    OK(amp_scaler_update(t.scaler));
    implicit_step(&t);
    OK(amp_backward(t.amp, loss_of(&t), t.sgd));
    OK(amp_scaler_unscale(t.scaler, t.sgd));
    OK(amp_scaler_step(t.scaler, t.sgd, NULL)); /* and no update */
    cairn_zero_grad(t.sgd);
    OK(amp_backward(t.amp, loss_of(&t), t.sgd));
    REFUSED(cairn_step(t.sgd), CAIRN_ESTATE, "amp_scaler_update after all optimizers");
    OK(amp_scaler_update(t.scaler));
    implicit_step(&t);
    end(&t);
}

static void optimizer_has_one_scaler(void **state) {
    struct training own, context;
    amp_scaler *other = NULL;
    amp_context *amp = NULL;
    cairn_param_set *none = NULL;
    begin(&own, *state, NULL, NULL);
    begin(&context, *state, &every_level[3], TORCH);
    OK(amp_scaler_create(*state, NULL, &other));
    explicit_step(&own);
    cairn_tensor *scaled = amp_scaler_scale(other, loss_of(&own));
    OK(cairn_backward(scaled));
    REFUSED(amp_scaler_step(other, own.sgd, NULL), CAIRN_ESTATE, "belongs to another amp_scaler");
    REFUSED(amp_scaler_unscale(other, context.sgd), CAIRN_ESTATE, "belongs to an amp context");
    REFUSED(amp_scaler_step(context.scaler, own.sgd, NULL), CAIRN_ESTATE, "belongs to another amp_scaler");
    REFUSED(amp_initialize(*state, own.model, own.sgd, NULL, &amp), CAIRN_ESTATE, "amp_scaler");
    amp_scaler_destroy(&own.scaler);
    own.scaler = other;
    explicit_step(&own); /* now it is free */
    amp_scaler_destroy(&own.scaler);
    cairn_zero_grad(own.sgd);
    OK(cairn_backward(amp_scaler_scale(context.scaler, loss_of(&own))));
    REFUSED(amp_scaler_step(context.scaler, own.sgd, NULL), CAIRN_EINVAL, "was not given to its amp_initialize");
    assert_null(none);
    end(&context);
    end(&own);
}

/* Gradients of the user's own, declared: checks, skips and messages are the same. */
static void own_buffers_may_be_stepped_the_explicit_way(void **state) {
    NOT_ON_A_GPU("these buffers are the host's");
    float weights[2][4];
    for (int way = 0; way < 2; way++) {
        float *w = weights[way], g[4];
        const cairn_param param = {.name = "w", .data = w, .grad = g, .dtype = CAIRN_F32, .ndim = 1, .shape = {4}};
        struct training t = {.env = *state};
        cairn_param_set *set = NULL;
        struct amp_options o = every_level[3];
        o.scaler = TORCH;
        o.verbosity = -1;
        for (int i = 0; i < 4; i++) w[i] = (float)i;
        OK(cairn_param_set_create(*state, &param, 1, &set));
        OK(cairn_sgd_create(set, NULL, &t.sgd));
        OK(amp_initialize_params(*state, set, t.sgd, &o, &t.amp));
        amp_scaler *scaler = amp_scaler_of(t.amp, 0);
        for (int i = 0; i < 4; i++) {
            int stepped = -1;
            const double scale = amp_next_scale(t.amp);
            assert_true(scale == (i == 2 ? 2048 : 1024));
            for (int k = 0; k < 4; k++) g[k] = i == 2 && k == 1 ? INFINITY : (float)scale / 8 * (float)k;
            OK(cairn_grads_ready(set, 0, 1));
            OK(way ? amp_scaler_step(scaler, t.sgd, &stepped) : cairn_step(t.sgd));
            if (way) OK(amp_scaler_update(scaler));
            if (way) assert_int_equal(stepped, i != 2);
            cairn_zero_grad(t.sgd);
        }
        assert_int_equal(cairn_optimizer_skipped(t.sgd), 1);
        amp_destroy(&t.amp);
        cairn_optimizer_destroy(&t.sgd);
        cairn_param_set_destroy(&set);
    }
    assert_memory_equal(weights[0], weights[1], sizeof(weights[0]));
}

static void disabled_context_passes_the_explicit_way_through(void **state) {
    struct training t;
    int stepped = 0;
    begin(&t, *state, &(struct amp_options){.struct_size = sizeof(struct amp_options), .enabled = CAIRN_OFF}, NULL);
    cairn_tensor *loss = loss_of(&t);
    assert_ptr_equal(amp_scaler_scale(t.scaler, loss), loss);
    OK(cairn_backward(loss));
    OK(amp_scaler_unscale(t.scaler, t.sgd));
    OK(amp_scaler_step(t.scaler, t.sgd, &stepped));
    OK(amp_scaler_update(t.scaler));
    assert_int_equal(stepped, 1);
    end(&t);
}

/* ---- lifetimes ---- */

static void scaler_and_optimizers_end_in_any_order(void **state) {
    for (int order = 0; order < 2; order++) {
        struct pair p;
        begin_pair(&p, *state);
        backward_both(&p);
        OK(amp_scaler_step(p.a.scaler, p.a.sgd, NULL));
        OK(amp_scaler_unscale(p.a.scaler, p.b.sgd));
        if (order == 0) {
            cairn_optimizer_destroy(&p.a.sgd); /* its look still counts */
            assert_null(p.a.sgd);
            OK(amp_scaler_update(p.a.scaler));
            OK(amp_scaler_step(p.a.scaler, p.b.sgd, NULL));
        }
        p.b.scaler = NULL;
        amp_scaler_destroy(&p.a.scaler);
        OK(cairn_step(p.b.sgd));
        assert_string_equal(log_text, "");
        end_pair(&p);
    }
}

static void environment_waits_for_its_scalers(void **state) {
    cairn_env *env = NULL;
    amp_scaler *scaler = NULL;
    (void)state;
    OK(cairn_env_create(NULL, NULL, NULL, &env));
    OK(amp_scaler_create(env, NULL, &scaler));
    log_text[0] = '\0';
    cairn_env_destroy(&env);
    assert_non_null(env);
    assert_non_null(strstr(log_text, "1 scalers"));
    amp_scaler_destroy(&scaler);
    cairn_env_destroy(&env);
    assert_null(env);
}

static void steady_state_allocates_nothing(void **state) {
    for (int l = -1; l < NUM_LEVELS; l++) {
        struct training t;
        begin(&t, *state, l < 0 ? NULL : &every_level[l], NULL);
        t.unscales = t.clips = true;
        for (int i = 0; i < 5; i++) explicit_step(&t);
        const uint64_t before = cairn__alloc_counters().allocations;
        for (int i = 0; i < 10; i++) explicit_step(&t);
        assert_int_equal(cairn__alloc_counters().allocations, before);
        end(&t);
    }
}

/* ---- ranks ---- */

enum { RANKS = 2 };

struct on_ranks {
    const struct amp_options *level; /* NULL: a scaler by itself */
    struct bits bits[RANKS];
};

static char *train_on_ranks(cairn_env *env, struct on_ranks *o, struct training *t, ddp_context *net) {
    for (int i = 0; i < STEPS; i++) {
        int stepped = -1;
        t->plant.target = cairn_env_rank(env) == 1 && (i == 2 || i == 5) ? i / 2 : -1;
        t->plant.value = INFINITY;
        cairn_zero_grad(t->sgd);
        cairn_tensor *loss = cairn_mse_loss(ddp_forward(net, t->x), t->y);
        EXPECT_OK(cairn_backward(amp_scaler_scale(t->scaler, loss)));
        if (i % 2) EXPECT_OK(amp_scaler_unscale(t->scaler, t->sgd));
        EXPECT_OK(amp_scaler_step(t->scaler, t->sgd, &stepped));
        EXPECT_OK(amp_scaler_update(t->scaler));
        EXPECT(stepped == (i != 2 && i != 5));
    }
    EXPECT(amp_scaler_get_scale(t->scaler) == 2048);
    take_bits(&o->bits[cairn_env_rank(env)], t);
    return NULL;
}

static char *run_on_ranks(cairn_env *env, void *ctx) {
    struct on_ranks *o = ctx;
    struct training t = {.env = env};
    ddp_context *net = NULL;
    t.x = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(8, 12));
    t.y = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(8, 4));
    t.model = make_mlp(env, 12, 10, 4);
    EXPECT_OK(cairn_sgd_create(cairn_module_params(t.model), NULL, &t.sgd));
    if (o->level) {
        struct amp_options options = *o->level;
        options.scaler = TORCH;
        options.verbosity = -1;
        EXPECT_OK(amp_initialize(env, t.model, t.sgd, &options, &t.amp));
        t.scaler = amp_scaler_of(t.amp, 0);
    } else {
        EXPECT_OK(amp_scaler_create(env, TORCH, &t.scaler));
    }
    EXPECT_OK(ddp_create(t.model, cairn_env_group(env), NULL, &net));
    plant_install(&t.plant, cairn_module_params(t.model));
    char *failure = train_on_ranks(env, o, &t, net);
    plant_remove(&t.plant);
    amp_scaler_destroy(&t.scaler);
    ddp_destroy(&net);
    amp_destroy(&t.amp);
    cairn_optimizer_destroy(&t.sgd);
    cairn_module_destroy(&t.model);
    cairn_tensor_destroy(&t.x), cairn_tensor_destroy(&t.y);
    return failure;
}

static void all_ranks_skip_the_same_steps(void **state) {
    static struct on_ranks o;
    (void)state;
    for (int l = -1; l < NUM_LEVELS; l++) {
        o = (struct on_ranks){.level = l < 0 ? NULL : &every_level[l]};
        run_ranks(RANKS, run_on_ranks, &o);
        assert_memory_equal(&o.bits[0], &o.bits[1], sizeof(o.bits[0]));
    }
}

/* ---- graphs ---- */

static cairn_status record_step(void *user) {
    struct training *t = user;
    cairn_status st = CAIRN_OK;
    cairn_zero_grad(t->sgd);
    if (st == CAIRN_OK) st = cairn_backward(amp_scaler_scale(t->scaler, loss_of(t)));
    if (st == CAIRN_OK) st = amp_scaler_unscale(t->scaler, t->sgd);
    if (st == CAIRN_OK) st = amp_scaler_step(t->scaler, t->sgd, NULL);
    return st == CAIRN_OK ? amp_scaler_update(t->scaler) : st;
}

static void explicit_step_can_be_a_graph(void **state) {
    static struct outcome want, got;
    struct training t;
    cairn_graph *graph = NULL;
    begin(&t, *state, NULL, TORCH);
    for (int i = 0; i < 8; i++) OK(record_step(&t));
    take_bits(&want.bits, &t);
    const double scale = amp_scaler_get_scale(t.scaler);
    end(&t);
    begin(&t, *state, NULL, TORCH);
    OK(cairn_graph_capture(*state, record_step, &t, &graph));
    for (int i = 0; i < 8; i++) OK(cairn_graph_replay(graph));
    OK(cairn_env_synchronize(*state));
    take_bits(&got.bits, &t);
    assert_memory_equal(&want.bits, &got.bits, sizeof(got.bits));
    assert_true(amp_scaler_get_scale(t.scaler) == scale);
    cairn_graph_destroy(&graph);
    end(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(explicit_training_equals_scale_loss_training_at_every_level),
        cmocka_unit_test(scaler_without_a_context_trains_as_o0_and_o1),
        cmocka_unit_test(scales_follow_torchs_trace),
        cmocka_unit_test(only_the_optimizer_that_overflowed_skips),
        cmocka_unit_test(each_optimizer_skips_its_own_overflow_at_every_level),
        cmocka_unit_test(parameters_may_come_later),
        cmocka_unit_test(skipped_step_and_lowered_scale_are_logged_once),
        cmocka_unit_test(overflow_at_the_floor_is_an_error_of_update),
        cmocka_unit_test(static_scale_skips_and_stays),
        cmocka_unit_test(unscale_gives_unscaled_gradients),
        cmocka_unit_test(unscale_without_a_step_leaves_nothing_behind),
        cmocka_unit_test(calls_out_of_order_are_refused_in_torchs_words),
        cmocka_unit_test(nonsense_arguments_are_refused),
        cmocka_unit_test(failed_backward_is_neither_unscaled_nor_stepped),
        cmocka_unit_test(scale_can_be_set),
        cmocka_unit_test(loss_of_the_context_may_be_stepped_the_explicit_way),
        cmocka_unit_test(plain_step_after_an_explicit_scale_is_refused),
        cmocka_unit_test(optimizer_has_one_scaler),
        cmocka_unit_test(own_buffers_may_be_stepped_the_explicit_way),
        cmocka_unit_test(disabled_context_passes_the_explicit_way_through),
        cmocka_unit_test(scaler_and_optimizers_end_in_any_order),
        cmocka_unit_test(environment_waits_for_its_scalers),
        cmocka_unit_test(steady_state_allocates_nothing),
        cmocka_unit_test(all_ranks_skip_the_same_steps),
        cmocka_unit_test(explicit_step_can_be_a_graph),
    };
    return cmocka_run_group_tests(tests, make_env, end_env);
}
