/* A two-layer MLP for tests: y = relu(x W1^T + b1) W2^T + b2. */
#ifndef TESTS_MLP_H
#define TESTS_MLP_H

#include "nn/module.h"

struct mlp {
    cairn_tensor *w1, *b1, *w2, *b2;
};

static inline cairn_tensor *mlp_forward(cairn_module *module, void *context, cairn_tensor *const *inputs, int count) {
    (void)module, (void)count;
    const struct mlp *m = context;
    return cairn_linear_forward(cairn_relu(cairn_linear_forward(inputs[0], m->w1, m->b1)), m->w2, m->b2);
}

static const struct cairn__module_kind mlp_kind = {.name = "MLP", .forward = mlp_forward};

/* All parameters are uniform in [-1/2, 1/2). Returns NULL on error. */
static inline cairn_module *make_mlp(cairn_env *env, int64_t in, int64_t hidden, int64_t out) {
    cairn_module *module = NULL;
    if (cairn__module_create(env, &mlp_kind, sizeof(struct mlp), &module) != CAIRN_OK) return NULL;
    struct mlp *m = cairn__module_context(module);
    const int64_t w1[] = {hidden, in}, w2[] = {out, hidden};
    if (cairn__module_add_param(module, "0.weight", 2, w1, false, &m->w1) != CAIRN_OK ||
        cairn__module_add_param(module, "0.bias", 1, &hidden, false, &m->b1) != CAIRN_OK ||
        cairn__module_add_param(module, "2.weight", 2, w2, false, &m->w2) != CAIRN_OK ||
        cairn__module_add_param(module, "2.bias", 1, &out, false, &m->b2) != CAIRN_OK) {
        cairn_module_destroy(&module);
        return NULL;
    }
    struct cairn_param_set *set = cairn_module_params(module);
    for (size_t i = 0; i < set->count; i++) cairn__param_init_uniform(set->params[i], 0.5f);
    return module;
}

#endif
