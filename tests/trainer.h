/* A model in training and everything that a step needs, with or without ddp. */
#ifndef TESTS_TRAINER_H
#define TESTS_TRAINER_H

#include <cairn/cairn.h>

#include "core/status.h"
#include "deep_mlp.h"

enum { QUICK_START_BATCH = 64, QUICK_START_IN = 1024, QUICK_START_OUT = 16 };

struct trainer {
    cairn_env *env; /* NULL = the environment belongs to the rank's caller */
    cairn_module *model;
    cairn_optimizer *optimizer;
    amp_context *amp; /* NULL = no amp */
    ddp_context *net; /* NULL = no ddp */
    cairn_tensor *x, *y, *loss;
};

static inline void trainer_destroy(struct trainer *t) {
    ddp_destroy(&t->net);
    amp_destroy(&t->amp);
    cairn_optimizer_destroy(&t->optimizer);
    cairn_module_destroy(&t->model);
    cairn_tensor_destroy(&t->x);
    cairn_tensor_destroy(&t->y);
    cairn_env_destroy(&t->env);
}

/* The quick start: a linear layer with SGD. The random numbers of seed 0 are the same on every device. */
static inline cairn_status trainer_create_quick_start(struct trainer *t, const char *device,
                                                      const struct amp_options *amp) {
    struct cairn_sgd_options hyper = CAIRN_SGD_OPTIONS_INIT;
    cairn_status st = cairn_env_create(NULL, NULL, cairn_env_options(.device = device), &t->env);
    if (st != CAIRN_OK) return st;
    t->x = cairn_randn(t->env, CAIRN_F32, CAIRN_SHAPE(QUICK_START_BATCH, QUICK_START_IN));
    t->y = cairn_randn(t->env, CAIRN_F32, CAIRN_SHAPE(QUICK_START_BATCH, QUICK_START_OUT));
    t->model = cairn_linear(t->env, QUICK_START_IN, QUICK_START_OUT);
    st = cairn_sgd_create(cairn_module_params(t->model), &hyper, &t->optimizer);
    return st != CAIRN_OK ? st : amp_initialize(t->env, t->model, t->optimizer, amp, &t->amp);
}

/* An MLP of equal layers with AdamW. Uses t->env if it is set, and then ignores device. */
static inline cairn_status trainer_create_mlp(struct trainer *t, const char *device, int layers, int64_t width,
                                              int64_t batch, const struct amp_options *amp) {
    cairn_status st = CAIRN_OK;
    if (!t->env) st = cairn_env_create(NULL, NULL, cairn_env_options(.device = device), &t->env);
    if (st != CAIRN_OK) return st;
    t->x = cairn_randn(t->env, CAIRN_F32, CAIRN_SHAPE(batch, width));
    t->y = cairn_randn(t->env, CAIRN_F32, CAIRN_SHAPE(batch, width));
    t->model = make_deep_mlp(t->env, layers, width);
    if (!t->model) return cairn__last_status();
    st = cairn_adamw_create(cairn_module_params(t->model), NULL, &t->optimizer);
    return st != CAIRN_OK ? st : amp_initialize(t->env, t->model, t->optimizer, amp, &t->amp);
}

/* BERT's encoder with AdamW: layers of attention and feed-forward with gelu. The input is already embedded: x is
 * [batch, tokens, width]. Source: Devlin et al., "BERT", 2019. */
static inline cairn_status trainer_create_encoder(struct trainer *t, const char *device, int layers, int64_t width,
                                                  int64_t heads, int64_t batch, int64_t tokens, double dropout,
                                                  const struct amp_options *amp) {
    enum { MAX_LAYERS = 24 };
    cairn_module *layer[MAX_LAYERS] = {NULL};
    cairn_status st = cairn_env_create(NULL, NULL, cairn_env_options(.device = device), &t->env);
    if (st != CAIRN_OK) return st;
    t->x = cairn_randn(t->env, CAIRN_F32, CAIRN_SHAPE(batch, tokens, width));
    t->y = cairn_randn(t->env, CAIRN_F32, CAIRN_SHAPE(batch, tokens, width));
    for (int i = 0; i < layers && i < MAX_LAYERS; i++) {
        layer[i] =
            cairn_transformer_encoder_layer(t->env, width, heads, 4 * width,
                                            cairn_encoder_layer_options(.dropout = dropout, .activation = cairn_gelu));
        if (!layer[i]) return cairn__last_status();
    }
    t->model = cairn_sequential(t->env, layers, layer);
    if (!t->model) return cairn__last_status();
    st = cairn_adamw_create(cairn_module_params(t->model), NULL, &t->optimizer);
    return st != CAIRN_OK ? st : amp_initialize(t->env, t->model, t->optimizer, amp, &t->amp);
}

/* A step, callable by cairn_graph_capture. An integer y holds class indices. */
static inline cairn_status trainer_step(void *user) {
    struct trainer *t = user;
    cairn_zero_grad(t->optimizer);
    cairn_tensor *out = t->net ? ddp_forward(t->net, t->x) : cairn_module_forward(t->model, t->x);
    t->loss = cairn_tensor_dtype(t->y) == CAIRN_I64 ? cairn_cross_entropy(out, t->y, NULL) : cairn_mse_loss(out, t->y);
    const cairn_status st = t->amp ? amp_backward(t->amp, t->loss, t->optimizer) : cairn_backward(t->loss);
    return st != CAIRN_OK ? st : cairn_step(t->optimizer);
}

#endif
