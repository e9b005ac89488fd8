/* A model whose gradients equal its inputs: loss = sum(x[0..3] * weight) + sum(x[4..5] * norm), so that d loss / d
 * weight is x[0..3] and d loss / d norm, which belongs to a normalisation layer, is x[4..5]; exactly, at every
 * level. */
#ifndef TESTS_PROBE_H
#define TESTS_PROBE_H

#include "exact.h"
#include "nn/module.h"

enum { PROBE_WEIGHT = 4, PROBE_NORM = 2, PROBE = PROBE_WEIGHT + PROBE_NORM };

struct probe_context {
    cairn_tensor *weight, *norm;
};

static inline cairn_tensor *probe_forward(cairn_module *module, void *context, cairn_tensor *const *inputs, int count) {
    (void)module, (void)count;
    const struct probe_context *p = context;
    return cairn_add(cairn_sum(cairn_mul(cairn_slice(inputs[0], 0, 0, PROBE_WEIGHT, 1), p->weight)),
                     cairn_sum(cairn_mul(cairn_slice(inputs[0], 0, PROBE_WEIGHT, PROBE, 1), p->norm)));
}

static const struct cairn__module_kind probe_kind = {.name = "Probe", .forward = probe_forward};

/* Every weight is 1. */
static inline cairn_module *make_probe(cairn_env *env) {
    cairn_module *module = NULL;
    OK(cairn__module_create(env, &probe_kind, sizeof(struct probe_context), &module));
    struct probe_context *p = cairn__module_context(module);
    OK(cairn__module_add_param(module, "weight", 1, (int64_t[]){PROBE_WEIGHT}, false, &p->weight));
    OK(cairn__module_add_param(module, "norm", 1, (int64_t[]){PROBE_NORM}, true, &p->norm));
    for (size_t k = 0; k < 2; k++) {
        const struct cairn__param *param = cairn_module_params(module)->params[k];
        for (size_t i = 0; i < param->n; i++) ((float *)param->data)[i] = 1;
        OK(cairn_param_changed(cairn_module_params(module), k, 0));
    }
    return module;
}

struct probe {
    const struct exact_level *level;
    cairn_module *model;
    cairn_optimizer *sgd;
    amp_context *amp;
    cairn_tensor *x;
    struct plant plant;
};

static inline void probe_begin_sgd(struct probe *p, cairn_env *env, const struct exact_level *level,
                                   struct cairn_sgd_options hyper, const struct amp_options *options) {
    struct amp_options o = *options;
    o.opt_level = level->level;
    o.half_type = level->half;
    o.verbosity = -1;
    *p = (struct probe){.level = level, .model = make_probe(env)};
    p->x = cairn_zeros(env, CAIRN_F32, CAIRN_SHAPE(PROBE));
    OK(cairn_sgd_create(cairn_module_params(p->model), &hyper, &p->sgd));
    OK(amp_initialize(env, p->model, p->sgd, &o, &p->amp));
    plant_install(&p->plant, cairn_module_params(p->model));
}

/* lr 2^-4 */
static inline void probe_begin(struct probe *p, cairn_env *env, const struct exact_level *level,
                               const struct amp_options *options) {
    struct cairn_sgd_options hyper = CAIRN_SGD_OPTIONS_INIT;
    hyper.lr = 0x1p-4;
    probe_begin_sgd(p, env, level, hyper, options);
}

static inline void probe_end(struct probe *p) {
    plant_remove(&p->plant);
    amp_destroy(&p->amp);
    cairn_optimizer_destroy(&p->sgd);
    cairn_module_destroy(&p->model);
    cairn_tensor_destroy(&p->x);
}

static inline cairn_tensor *probe_loss(struct probe *p, const float *gradient) {
    OK(cairn_tensor_write(p->x, gradient, PROBE));
    return cairn_module_forward(p->model, p->x);
}

static inline void probe_backward(struct probe *p, const float *gradient, const struct amp_loss_options *options) {
    OK(amp_backward_with(p->amp, probe_loss(p, gradient), options));
}

/* Makes element 0 of the weight's gradient infinite. */
static inline void probe_overflow(struct probe *p, const float *gradient, const struct amp_loss_options *options) {
    p->plant.target = 0;
    p->plant.value = INFINITY;
    probe_backward(p, gradient, options);
    p->plant.target = -1;
}

/* The result of plain SGD on w, rounded as the level stores it. */
static inline float probe_stepped(const struct probe *p, float w, float gradient) {
    return exact_round(p->level->weights, w - 0x1p-4f * gradient);
}

static inline void assert_probe_is(const struct probe *p, const float *want) {
    assert_exact_part(p->level->name, cairn_module_params(p->model), 0, want);
    assert_exact_part(p->level->name, cairn_module_params(p->model), 1, want + PROBE_WEIGHT);
}

/* The weights after one step of plain SGD from ones. */
static inline void assert_probe_stepped_by(const struct probe *p, const float *gradient) {
    float want[PROBE];
    for (int i = 0; i < PROBE; i++) want[i] = probe_stepped(p, 1, gradient[i]);
    assert_probe_is(p, want);
}

static inline void assert_probe_gradients_are(struct probe *p, const float *want) {
    cairn_param got[2];
    OK(amp_master_params(p->amp, p->sgd, got, 2));
    for (int i = 0; i < PROBE; i++) {
        const float *grad = i < PROBE_WEIGHT ? got[0].grad : got[1].grad;
        assert_non_null(grad);
        const float value = grad[i < PROBE_WEIGHT ? i : i - PROBE_WEIGHT];
        if (memcmp(&value, &want[i], sizeof(value)) != 0)
            fail_msg("%s: gradient %d is %.9g, not %.9g", p->level->name, i, (double)value, (double)want[i]);
    }
}

static inline double probe_scale(const struct probe *p, int loss_id) {
    return amp_scaler_get_scale(amp_scaler_of(p->amp, loss_id));
}

static inline struct amp_scaler_state probe_scaler(const struct probe *p, int loss_id) {
    struct amp_scaler_state state = AMP_SCALER_STATE_INIT;
    OK(amp_scaler_get_state(amp_scaler_of(p->amp, loss_id), &state));
    return state;
}

#endif
