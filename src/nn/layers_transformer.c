/* torch.nn.TransformerEncoderLayer with batch_first. Source: Vaswani et al., "Attention Is All You Need", 2017, section
 * 3.1; pre-norm: Xiong et al., "On Layer Normalization in the Transformer Architecture", 2020. */
#include "core/options.h"
#include "core/status.h"
#include "nn/module.h"

struct encoder_layer {
    struct cairn_encoder_layer_options options;
    cairn_module *self_attn, *linear1, *dropout, *linear2, *norm1, *norm2, *dropout1, *dropout2;
};

static cairn_tensor *attention_block(const struct encoder_layer *l, cairn_tensor *x, cairn_tensor *mask) {
    cairn_tensor *y = cairn_module_forward_n(l->self_attn, (cairn_tensor *[]){x, x, x, mask}, 4);
    return cairn_module_forward(l->dropout1, y);
}

static cairn_tensor *feedforward_block(const struct encoder_layer *l, cairn_tensor *x) {
    cairn_tensor *h = l->options.activation(cairn_module_forward(l->linear1, x));
    h = cairn_module_forward(l->linear2, cairn_module_forward(l->dropout, h));
    return cairn_module_forward(l->dropout2, h);
}

static cairn_tensor *encode(cairn_module *module, void *context, cairn_tensor *const *inputs, int count) {
    (void)module;
    const struct encoder_layer *l = context;
    cairn_tensor *x = inputs[0], *mask = count > 1 ? inputs[1] : NULL;
    if (l->options.norm_first == CAIRN_ON) {
        x = cairn_add(x, attention_block(l, cairn_module_forward(l->norm1, x), mask));
        return cairn_add(x, feedforward_block(l, cairn_module_forward(l->norm2, x)));
    }
    x = cairn_module_forward(l->norm1, cairn_add(x, attention_block(l, x, mask)));
    return cairn_module_forward(l->norm2, cairn_add(x, feedforward_block(l, x)));
}

static const struct cairn__module_kind kind = {.name = "TransformerEncoderLayer", .forward = encode, .max_inputs = 2};

static cairn_status create(cairn_env *env, int64_t dim, int64_t heads, int64_t feedforward,
                           const struct cairn_encoder_layer_options *given, cairn_module **out) {
    cairn_status st = CAIRN_OK;
    cairn_module *m = NULL;
    struct cairn_encoder_layer_options o = {.struct_size = sizeof(o)};
    TRY(cairn__options_read(&o, sizeof(o), given, "cairn_encoder_layer_options"));
    if (!o.activation) o.activation = cairn_relu;
    TRY(cairn__module_create(env, &kind, sizeof(struct encoder_layer), &m));
    struct encoder_layer *l = m->context;
    const double p = o.dropout, eps = o.layer_norm_eps;
    l->options = o;
    /* In torch's order, which is that of its state_dict. */
    TRY(cairn__module_add_child(m, "self_attn", cairn_multihead_attention(env, dim, heads, p), &l->self_attn));
    TRY(cairn__module_add_child(m, "linear1", cairn_linear(env, dim, feedforward), &l->linear1));
    TRY(cairn__module_add_child(m, "dropout", cairn_dropout(env, p), &l->dropout));
    TRY(cairn__module_add_child(m, "linear2", cairn_linear(env, feedforward, dim), &l->linear2));
    TRY(cairn__module_add_child(m, "norm1", cairn_layer_norm(env, CAIRN_SHAPE(dim), eps), &l->norm1));
    TRY(cairn__module_add_child(m, "norm2", cairn_layer_norm(env, CAIRN_SHAPE(dim), eps), &l->norm2));
    TRY(cairn__module_add_child(m, "dropout1", cairn_dropout(env, p), &l->dropout1));
    TRY(cairn__module_add_child(m, "dropout2", cairn_dropout(env, p), &l->dropout2));
    *out = m;
    return CAIRN_OK;
out:
    cairn_module_destroy(&m);
    return st;
}

cairn_module *cairn_transformer_encoder_layer(cairn_env *env, int64_t dim, int64_t heads, int64_t feedforward,
                                              const struct cairn_encoder_layer_options *options) {
    cairn_module *m = NULL;
    return create(env, dim, heads, feedforward, options, &m) == CAIRN_OK ? m : NULL;
}
