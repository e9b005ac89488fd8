/* An MLP of equally wide layers for trainings and benchmarks: x = relu(x W_i^T + b_i), the last layer without relu. */
#ifndef TESTS_DEEP_MLP_H
#define TESTS_DEEP_MLP_H

#include <math.h>
#include <stdio.h>

#include "nn/module.h"

enum { DEEP_MLP_MOST = 16 };

struct deep_mlp {
    int layers;
    cairn_tensor *weight[DEEP_MLP_MOST], *bias[DEEP_MLP_MOST];
};

static inline cairn_tensor *deep_mlp_forward(cairn_module *module, void *context, cairn_tensor *const *inputs,
                                             int count) {
    (void)module, (void)count;
    const struct deep_mlp *m = context;
    cairn_tensor *x = inputs[0];
    for (int i = 0; i < m->layers; i++) {
        x = cairn_linear_forward(x, m->weight[i], m->bias[i]);
        if (i + 1 < m->layers) x = cairn_relu(x);
    }
    return x;
}

static const struct cairn__module_kind deep_mlp_kind = {.name = "DeepMLP", .forward = deep_mlp_forward};

static inline cairn_status deep_mlp_add_layer(cairn_module *module, struct deep_mlp *m, int64_t width) {
    char name[32];
    const int64_t shape[] = {width, width};
    snprintf(name, sizeof(name), "%d.weight", m->layers);
    cairn_status st = cairn__module_add_param(module, name, 2, shape, false, &m->weight[m->layers]);
    if (st != CAIRN_OK) return st;
    snprintf(name, sizeof(name), "%d.bias", m->layers);
    return cairn__module_add_param(module, name, 1, &width, false, &m->bias[m->layers++]);
}

/* Weights are uniform in +-1/sqrt(width), as in cairn_linear; at most DEEP_MLP_MOST layers. Returns NULL on error. */
static inline cairn_module *make_deep_mlp(cairn_env *env, int layers, int64_t width) {
    cairn_module *module = NULL;
    if (cairn__module_create(env, &deep_mlp_kind, sizeof(struct deep_mlp), &module) != CAIRN_OK) return NULL;
    struct deep_mlp *m = cairn__module_context(module);
    while (m->layers < layers) {
        if (deep_mlp_add_layer(module, m, width) == CAIRN_OK) continue;
        cairn_module_destroy(&module);
        return NULL;
    }
    struct cairn_param_set *set = cairn_module_params(module);
    for (size_t i = 0; i < set->count; i++) cairn__param_init_uniform(set->params[i], 1 / sqrtf((float)width));
    return module;
}

#endif
