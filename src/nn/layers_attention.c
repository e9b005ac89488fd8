/* torch.nn.MultiheadAttention with batch_first. If an input attends to itself, one product computes q, k and v, and
 * attention reads the heads in place, side by side. */
#include <inttypes.h>
#include <stdio.h>

#include "core/status.h"
#include "nn/module.h"
#include "nn/ops.h"
#include "nn/tensor.h"

struct attention {
    int64_t dim, heads;
    double dropout;
    cairn_tensor *in_weight, *in_bias; /* [3 D, D], [3 D]: of q, of k, of v */
    cairn_module *out;
};

enum { Q, K, V, MASK };

static cairn_status check_inputs(const struct attention *a, cairn_tensor *const *inputs, int count) {
    char text[CAIRN__SHAPE_TEXT];
    REQUIRE(count == 1 || count == 3 || count == 4, CAIRN_EINVAL,
            "multihead_attention: %d inputs; it takes q, or q, k, v, or q, k, v and a mask", count);
    for (int i = 0; i < (count == 1 ? 1 : 3); i++) {
        REQUIRE(inputs[i], CAIRN_EINVAL, "multihead_attention: input %d is NULL", i);
        REQUIRE(inputs[i]->ndim == 3 && inputs[i]->shape[2] == a->dim, CAIRN_EINVAL,
                "multihead_attention: input %d is %s; expected [batch, length, %" PRId64 "]", i,
                cairn__shape_text(inputs[i], text), a->dim);
    }
    return CAIRN_OK;
}

static cairn_tensor *attend_to_others(const struct attention *a, cairn_tensor *const *inputs,
                                      const struct cairn_attention_options *options) {
    cairn_tensor *heads[3];
    for (int i = 0; i < 3; i++) {
        cairn_tensor *weight = cairn_slice(a->in_weight, 0, i * a->dim, (i + 1) * a->dim, 1);
        cairn_tensor *bias = cairn_slice(a->in_bias, 0, i * a->dim, (i + 1) * a->dim, 1);
        cairn_tensor *x = cairn_linear_forward(inputs[i], weight, bias);
        if (!x) return NULL;
        /* [B, T, D] as [B, heads, T, D / heads]. */
        x = cairn_reshape(x, CAIRN_SHAPE(x->shape[0], x->shape[1], a->heads, a->dim / a->heads));
        heads[i] = cairn_transpose(x, 1, 2);
    }
    cairn_tensor *y = cairn_scaled_dot_product_attention(heads[Q], heads[K], heads[V], options);
    if (!y) return NULL;
    return cairn_reshape(cairn_transpose(y, 1, 2), CAIRN_SHAPE(y->shape[0], y->shape[2], a->dim));
}

static cairn_tensor *attend(cairn_module *module, void *context, cairn_tensor *const *inputs, int count) {
    const struct attention *a = context;
    if (check_inputs(a, inputs, count) != CAIRN_OK) return NULL;
    const struct cairn_attention_options *options =
        cairn_attention_options(.mask = count > MASK ? inputs[MASK] : NULL,
                                .dropout = module->training ? a->dropout : 0);
    const bool to_itself = count == 1 || (inputs[K] == inputs[Q] && inputs[V] == inputs[Q]);
    cairn_tensor *y = NULL;
    if (to_itself) { /* q, k and v of one input are one product */
        cairn_tensor *all = cairn_linear_forward(inputs[Q], a->in_weight, a->in_bias);
        y = all ? cairn__attention_of_heads(all, a->heads, options) : NULL;
    } else {
        y = attend_to_others(a, inputs, options);
    }
    return y ? cairn_module_forward(a->out, y) : NULL;
}

static const struct cairn__module_kind kind = {.name = "MultiheadAttention", .forward = attend, .max_inputs = 4};

static cairn_status create(cairn_env *env, int64_t dim, int64_t heads, double dropout, cairn_module **out) {
    REQUIRE(dim > 0 && dim <= INT32_MAX && heads > 0 && dim % heads == 0, CAIRN_EINVAL,
            "multihead_attention: %" PRId64 " heads do not divide %" PRId64, heads, dim);
    REQUIRE(dropout >= 0 && dropout < 1, CAIRN_EINVAL, "multihead_attention: dropout %g; it must be from 0 to 1",
            dropout);
    cairn_status st = CAIRN_OK;
    cairn_module *m = NULL;
    TRY(cairn__module_create(env, &kind, sizeof(struct attention), &m));
    struct attention *a = m->context;
    *a = (struct attention){.dim = dim, .heads = heads, .dropout = dropout};
    TRY(cairn__module_add_param(m, "in_proj_weight", CAIRN_SHAPE(3 * dim, dim), false, &a->in_weight));
    TRY(cairn__module_add_param(m, "in_proj_bias", CAIRN_SHAPE(3 * dim), false, &a->in_bias));
    TRY(cairn__module_add_child(m, "out_proj", cairn_linear(env, dim, dim), &a->out));
    TRY(cairn_init_xavier_uniform(a->in_weight, 1));
    TRY(cairn_init_constant(a->in_bias, 0));
    TRY(cairn_init_constant(cairn_module_get(a->out, "bias"), 0));
    *out = m;
    return CAIRN_OK;
out:
    cairn_module_destroy(&m);
    return st;
}

cairn_module *cairn_multihead_attention(cairn_env *env, int64_t dim, int64_t heads, double dropout) {
    cairn_module *m = NULL;
    return create(env, dim, heads, dropout, &m) == CAIRN_OK ? m : NULL;
}
