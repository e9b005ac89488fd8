#include "models.h"

#include <stdio.h>
#include <stdlib.h>

#include "core/alloc.h"
#include "waves.h"

enum { LAYERS = 2, WIDTH = 64, TOKENS = LAB_SIDE, EMBEDDED = 32, HEADS = 4 };

struct net {
    struct lab_watch *watch;
    cairn_module *in, *hidden[LAYERS], *out; /* MLP, convolutions */
    cairn_tensor *position;                  /* encoder */
    struct layer {
        cairn_module *norm1, *qkv, *attended, *norm2, *up, *down;
    } layers[LAYERS];
    cairn_module *norm;
};

const char *lab_model_name(enum lab_model model) {
    static const char *const names[] = {
        [LAB_MLP] = "mlp", [LAB_CONV] = "conv", [LAB_ENCODER] = "encoder", [LAB_RESNET] = "resnet"};
    return names[model];
}

static cairn_tensor *apply(const struct net *net, const char *name, cairn_module *module, cairn_tensor *x) {
    x = lab_watched(net->watch, name, x);
    return x ? cairn_module_forward(module, x) : NULL;
}

static cairn_tensor *activate(const struct net *net, const char *name, cairn_tensor *x) {
    return cairn_gelu_tanh(lab_watched(net->watch, name, x));
}

/* ---- perceptron ---- */

static cairn_tensor *forward_mlp(cairn_module *module, void *context, cairn_tensor *const *inputs, int count) {
    static const char *const linear[LAYERS] = {"linear 1", "linear 2"}, *const gelu[LAYERS] = {"gelu 1", "gelu 2"};
    const struct net *net = context;
    (void)module, (void)count;
    cairn_tensor *x = activate(net, "gelu 0", apply(net, "linear 0", net->in, inputs[0]));
    for (int i = 0; i < LAYERS; i++) x = activate(net, gelu[i], apply(net, linear[i], net->hidden[i], x));
    return lab_watched(net->watch, "scores", apply(net, "linear 3", net->out, x));
}

static void add_mlp(cairn_env *env, cairn_module *m, struct net *net) {
    static const char *const names[LAYERS] = {"linear1", "linear2"};
    net->in = cairn_module_add_child(m, "linear0", cairn_linear(env, LAB_PIXELS, WIDTH));
    for (int i = 0; i < LAYERS; i++)
        net->hidden[i] = cairn_module_add_child(m, names[i], cairn_linear(env, WIDTH, WIDTH));
    net->out = cairn_module_add_child(m, "linear3", cairn_linear(env, WIDTH, LAB_CLASSES));
}

/* ---- convolutions ---- */

static cairn_tensor *forward_conv(cairn_module *module, void *context, cairn_tensor *const *inputs, int count) {
    const struct net *net = context;
    (void)module, (void)count;
    cairn_tensor *x = cairn_reshape(inputs[0], CAIRN_SHAPE(-1, 1, LAB_SIDE, LAB_SIDE));
    x = activate(net, "gelu 0", apply(net, "conv 0", net->in, x));
    x = cairn_avg_pool2d(lab_watched(net->watch, "pool", x), 2, 2, NULL);
    x = activate(net, "gelu 1", apply(net, "conv 1", net->hidden[0], x));
    x = cairn_flatten(x, 1, -1);
    return lab_watched(net->watch, "scores", apply(net, "linear", net->out, x));
}

static void add_conv(cairn_env *env, cairn_module *m, struct net *net) {
    const struct cairn_conv_options around = {.struct_size = sizeof(around), .padding = {1, 1}};
    net->in = cairn_module_add_child(m, "conv0", cairn_conv2d(env, 1, 8, 3, &around));
    net->hidden[0] = cairn_module_add_child(m, "conv1", cairn_conv2d(env, 8, 16, 3, &around));
    net->out = cairn_module_add_child(m, "linear", cairn_linear(env, (int64_t)LAB_PIXELS / 4 * 16, LAB_CLASSES));
}

/* ---- encoder ---- */

/* Selects q, k or v: [B, TOKENS, 3 EMBEDDED] to [B, HEADS, TOKENS, EMBEDDED / HEADS]. */
static cairn_tensor *heads_of(const struct net *net, const char *name, cairn_tensor *qkv, int64_t which) {
    cairn_tensor *x = cairn_slice(qkv, 2, which * EMBEDDED, (which + 1) * EMBEDDED, 1);
    x = cairn_transpose(cairn_reshape(x, CAIRN_SHAPE(-1, TOKENS, HEADS, EMBEDDED / HEADS)), 1, 2);
    return lab_watched(net->watch, name, x);
}

static const char *const place_names[LAYERS][13] = {{"sum 0a", "norm 0a", "qkv 0", "attention 0", "q 0", "k 0", "v 0",
                                                     "out 0", "sum 0b", "norm 0b", "up 0", "gelu 0", "down 0"},
                                                    {"sum 1a", "norm 1a", "qkv 1", "attention 1", "q 1", "k 1", "v 1",
                                                     "out 1", "sum 1b", "norm 1b", "up 1", "gelu 1", "down 1"}};

static cairn_tensor *forward_layer(const struct net *net, int i, cairn_tensor *x) {
    const struct layer *l = &net->layers[i];
    const char *const *name = place_names[i];
    x = lab_watched(net->watch, name[0], x);
    cairn_tensor *qkv = apply(net, name[2], l->qkv, apply(net, name[1], l->norm1, x));
    qkv = lab_watched(net->watch, name[3], qkv);
    cairn_tensor *y = cairn_scaled_dot_product_attention(heads_of(net, name[4], qkv, 0), heads_of(net, name[5], qkv, 1),
                                                         heads_of(net, name[6], qkv, 2), NULL);
    y = cairn_reshape(cairn_transpose(y, 1, 2), CAIRN_SHAPE(-1, TOKENS, EMBEDDED));
    x = cairn_add(x, apply(net, name[7], l->attended, y));
    x = lab_watched(net->watch, name[8], x);
    y = apply(net, name[10], l->up, apply(net, name[9], l->norm2, x));
    return cairn_add(x, apply(net, name[12], l->down, activate(net, name[11], y)));
}

static cairn_tensor *forward_encoder(cairn_module *module, void *context, cairn_tensor *const *inputs, int count) {
    const struct net *net = context;
    (void)module, (void)count;
    cairn_tensor *rows = cairn_reshape(inputs[0], CAIRN_SHAPE(-1, TOKENS, LAB_SIDE));
    cairn_tensor *x = cairn_add(lab_watched(net->watch, "embedded", apply(net, "rows", net->in, rows)),
                                lab_watched(net->watch, "position", net->position));
    for (int i = 0; i < LAYERS; i++) x = forward_layer(net, i, x);
    x = cairn_mean_dims(lab_watched(net->watch, "mean", x), CAIRN_DIMS(1), 0);
    return lab_watched(net->watch, "scores", apply(net, "linear", net->out, apply(net, "norm", net->norm, x)));
}

static cairn_module *add_named(cairn_module *m, const char *what, int i, cairn_module *child) {
    char name[32];
    snprintf(name, sizeof(name), "%s%d", what, i);
    return cairn_module_add_child(m, name, child);
}

static void add_encoder(cairn_env *env, cairn_module *m, struct net *net) {
    net->position = cairn_module_add_param(m, "position", CAIRN_SHAPE(TOKENS, EMBEDDED), 0);
    if (net->position && cairn_init_normal(net->position, 0, 0.02) != CAIRN_OK) net->position = NULL;
    net->in = cairn_module_add_child(m, "embed", cairn_linear(env, LAB_SIDE, EMBEDDED));
    for (int i = 0; i < LAYERS; i++) {
        struct layer *l = &net->layers[i];
        l->norm1 = add_named(m, "norm_a", i, cairn_layer_norm(env, CAIRN_SHAPE(EMBEDDED), 0));
        l->qkv = add_named(m, "qkv", i, cairn_linear(env, EMBEDDED, 3 * EMBEDDED));
        l->attended = add_named(m, "attended", i, cairn_linear(env, EMBEDDED, EMBEDDED));
        l->norm2 = add_named(m, "norm_b", i, cairn_layer_norm(env, CAIRN_SHAPE(EMBEDDED), 0));
        l->up = add_named(m, "up", i, cairn_linear(env, EMBEDDED, 2 * EMBEDDED));
        l->down = add_named(m, "down", i, cairn_linear(env, 2 * EMBEDDED, EMBEDDED));
    }
    net->norm = cairn_module_add_child(m, "norm", cairn_layer_norm(env, CAIRN_SHAPE(EMBEDDED), 0));
    net->out = cairn_module_add_child(m, "linear", cairn_linear(env, EMBEDDED, LAB_CLASSES));
}

/* ---- ResNet ---- */

static cairn_tensor *forward_block(cairn_module *module, void *context, cairn_tensor *const *inputs, int count) {
    const struct net *net = context;
    (void)module, (void)count;
    cairn_tensor *past = net->out ? cairn_module_forward(net->out, inputs[0]) : inputs[0];
    return cairn_relu(cairn_add(cairn_module_forward(net->in, inputs[0]), past));
}

static cairn_module *conv3(cairn_env *env, int64_t in, int64_t out, int64_t stride) {
    return cairn_conv2d(env, in, out, 3, cairn_conv_options(.stride = {stride}, .padding = {1, 1}, .bias = CAIRN_OFF));
}

static const struct cairn_module_ops block_ops = {.struct_size = sizeof(block_ops),
                                                  .name = "ResidualBlock",
                                                  .forward = forward_block,
                                                  .destroy = cairn__free};

/* If a child cannot be created, cairn_module_add_child returns NULL, and the block is destroyed. */
static cairn_module *make_block(cairn_env *env, int64_t in, int64_t out, int64_t stride) {
    struct net *net = NULL;
    if (cairn__calloc(1, sizeof(*net), (void **)&net) != CAIRN_OK) return NULL;
    cairn_module *m = cairn_module_create(env, &block_ops, net);
    if (!m) return NULL;
    net->in = cairn_module_add_child(
        m, "body",
        cairn_sequential(env, CAIRN_MODULES(conv3(env, in, out, stride), cairn_batch_norm(env, out, 0, 0),
                                            cairn_activation(env, cairn_relu), conv3(env, out, out, 1),
                                            cairn_batch_norm(env, out, 0, 0))));
    if (in != out)
        net->out = cairn_module_add_child(m, "past",
                                          cairn_conv2d(env, in, out, 1,
                                                       cairn_conv_options(.stride = {stride}, .bias = CAIRN_OFF)));
    if (!net->in || (in != out && !net->out)) cairn_module_destroy(&m);
    return m;
}

static cairn_tensor *forward_resnet(cairn_module *module, void *context, cairn_tensor *const *inputs, int count) {
    const struct net *net = context;
    (void)module, (void)count;
    return cairn_module_forward(net->in, cairn_reshape(inputs[0], CAIRN_SHAPE(-1, 1, LAB_SIDE, LAB_SIDE)));
}

static void add_resnet(cairn_env *env, cairn_module *m, struct net *net) {
    net->in = cairn_module_add_child(
        m, "layers",
        cairn_sequential(env, CAIRN_MODULES(conv3(env, 1, 8, 1), cairn_batch_norm(env, 8, 0, 0),
                                            cairn_activation(env, cairn_relu), make_block(env, 8, 8, 1),
                                            make_block(env, 8, 16, 2), cairn_adaptive_avg_pool(env, 1, 1),
                                            cairn_flatten_from(env, 1), cairn_linear(env, 16, LAB_CLASSES))));
}

/* ---- all ---- */

static const struct row {
    cairn_tensor *(*forward)(cairn_module *module, void *context, cairn_tensor *const *inputs, int count);
    void (*add)(cairn_env *env, cairn_module *m, struct net *net);
} rows[] = {[LAB_MLP] = {forward_mlp, add_mlp},
            [LAB_CONV] = {forward_conv, add_conv},
            [LAB_ENCODER] = {forward_encoder, add_encoder},
            [LAB_RESNET] = {forward_resnet, add_resnet}};

static bool is_complete(enum lab_model model, const struct net *net) {
    bool complete = net->in && (model == LAB_RESNET || net->out);
    for (int i = 0; model == LAB_MLP && i < LAYERS; i++) complete = complete && net->hidden[i];
    if (model == LAB_CONV) complete = complete && net->hidden[0];
    if (model != LAB_ENCODER) return complete;
    for (int i = 0; i < LAYERS; i++) {
        const struct layer *l = &net->layers[i];
        complete = complete && l->norm1 && l->qkv && l->attended && l->norm2 && l->up && l->down;
    }
    return complete && net->position && net->norm;
}

cairn_module *lab_model_create(cairn_env *env, enum lab_model model, struct lab_watch *watch) {
    const struct cairn_module_ops ops = {.struct_size = sizeof(ops),
                                         .name = lab_model_name(model),
                                         .forward = rows[model].forward,
                                         .destroy = cairn__free};
    struct net *net = NULL;
    if (cairn__calloc(1, sizeof(*net), (void **)&net) != CAIRN_OK) return NULL;
    net->watch = watch;
    cairn_module *m = cairn_module_create(env, &ops, net);
    if (!m) return NULL;
    rows[model].add(env, m, net);
    if (!is_complete(model, net)) cairn_module_destroy(&m);
    return m;
}
