/* torch.nn.Linear. */
#include <math.h>

#include "core/status.h"
#include "nn/module.h"
#include "nn/tensor.h"

struct linear {
    cairn_tensor *weight, *bias;
};

static cairn_tensor *forward(cairn_module *module, cairn_tensor *x) {
    const struct linear *l = cairn__module_context(module);
    return cairn_linear_forward(x, l->weight, l->bias);
}

static const struct cairn__module_ops ops = {.name = "linear", .forward = forward};

static cairn_status create(cairn_env *env, int64_t in, int64_t out_features, cairn_module **out) {
    REQUIRE(in > 0 && out_features > 0, CAIRN_EINVAL, "linear: %lld inputs and %lld outputs; both must be positive",
            (long long)in, (long long)out_features);
    cairn_status st = CAIRN_OK;
    cairn_module *m = NULL;
    TRY(cairn__module_create(env, &ops, sizeof(struct linear), &m));
    struct linear *l = cairn__module_context(m);
    TRY(cairn__module_add_param(m, "weight", CAIRN_SHAPE(out_features, in), false, &l->weight));
    TRY(cairn__module_add_param(m, "bias", CAIRN_SHAPE(out_features), false, &l->bias));
    const float bound = (float)(1.0 / sqrt((double)in));
    cairn__param_init_uniform(l->weight->param, bound);
    cairn__param_init_uniform(l->bias->param, bound);
    *out = m;
    return CAIRN_OK;
out:
    cairn_module_destroy(&m);
    return st;
}

cairn_module *cairn_linear(cairn_env *env, int64_t in, int64_t out) {
    cairn_module *m = NULL;
    return create(env, in, out, &m) == CAIRN_OK ? m : NULL;
}
