/* torch.nn.Linear. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "core/status.h"
#include "nn/module.h"
#include "nn/tensor.h"

struct linear {
    cairn_tensor *weight, *bias; /* bias NULL = none */
};

static cairn_tensor *linear(cairn_module *module, void *context, cairn_tensor *const *inputs, int count) {
    (void)module, (void)count;
    const struct linear *l = context;
    return cairn_linear_forward(inputs[0], l->weight, l->bias);
}

static void describe_linear(const void *context, char *text, size_t nbytes) {
    const struct linear *l = context;
    snprintf(text, nbytes, "in_features=%" PRId64 ", out_features=%" PRId64 ", bias=%s", l->weight->shape[1],
             l->weight->shape[0], l->bias ? "True" : "False");
}

static const struct cairn__module_kind linear_kind = {.name = "Linear", .forward = linear, .describe = describe_linear};

static cairn_status create_linear(cairn_env *env, int64_t in, int64_t out_features, bool bias, cairn_module **out) {
    REQUIRE(in > 0 && out_features > 0, CAIRN_EINVAL,
            "linear: %" PRId64 " inputs and %" PRId64 " outputs; both must be "
            "positive",
            in, out_features);
    cairn_status st = CAIRN_OK;
    cairn_module *m = NULL;
    TRY(cairn__module_create(env, &linear_kind, sizeof(struct linear), &m));
    struct linear *l = m->context;
    const float bound = (float)(1.0 / sqrt((double)in));
    TRY(cairn__module_add_param(m, "weight", CAIRN_SHAPE(out_features, in), false, &l->weight));
    if (bias) TRY(cairn__module_add_param(m, "bias", CAIRN_SHAPE(out_features), false, &l->bias));
    cairn__param_init_uniform(l->weight->param, bound);
    if (bias) cairn__param_init_uniform(l->bias->param, bound);
    *out = m;
    return CAIRN_OK;
out:
    cairn_module_destroy(&m);
    return st;
}

cairn_module *cairn_linear(cairn_env *env, int64_t in, int64_t out) {
    cairn_module *m = NULL;
    return create_linear(env, in, out, true, &m) == CAIRN_OK ? m : NULL;
}

cairn_module *cairn_linear_without_bias(cairn_env *env, int64_t in, int64_t out) {
    cairn_module *m = NULL;
    return create_linear(env, in, out, false, &m) == CAIRN_OK ? m : NULL;
}
