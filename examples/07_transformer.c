/* A two-layer transformer encoder that classifies handwritten digits: each of a picture's eight rows is a token.
 * digits.h shows how to run it.
 *
 * Source: Vaswani et al., "Attention Is All You Need", 2017; learned positions as in BERT. */
#include "digits.h"

enum { TOKENS = 8, WIDTH = 48, HEADS = 4, LAYERS = 2 };

struct encoder {
    cairn_tensor *position; /* [TOKENS, WIDTH], added to every picture's tokens */
    cairn_module *embed, *layers[LAYERS], *head;
};

static cairn_tensor *forward(cairn_module *module, void *context, cairn_tensor *const *inputs, int count) {
    const struct encoder *e = context;
    (void)module, (void)count;
    cairn_tensor *rows = cairn_reshape(inputs[0], CAIRN_SHAPE(-1, TOKENS, 8));
    cairn_tensor *x = cairn_add(cairn_module_forward(e->embed, rows), e->position);
    for (int i = 0; i < LAYERS; i++) x = cairn_module_forward(e->layers[i], x);
    return cairn_module_forward(e->head, cairn_mean_dims(x, CAIRN_DIMS(1), 0));
}

static const struct cairn_module_ops encoder_ops = {.struct_size = sizeof(encoder_ops),
                                                    .name = "Encoder",
                                                    .forward = forward,
                                                    .destroy = free};

static cairn_module *build(cairn_env *env) {
    struct encoder *e = calloc(1, sizeof(*e));
    cairn_module *m = cairn_module_create(env, &encoder_ops, e);
    if (!m) return NULL;
    int complete = 1;
    e->position = cairn_module_add_param(m, "position", CAIRN_SHAPE(TOKENS, WIDTH), 0);
    e->embed = cairn_module_add_child(m, "embed", cairn_linear(env, 8, WIDTH));
    for (int i = 0; i < LAYERS; i++) {
        const char *name = i == 0 ? "layer0" : "layer1";
        cairn_module *layer =
            cairn_transformer_encoder_layer(env, WIDTH, HEADS, 2 * WIDTH,
                                            cairn_encoder_layer_options(.dropout = 0.1, .activation = cairn_gelu,
                                                                        .norm_first = CAIRN_ON));
        e->layers[i] = cairn_module_add_child(m, name, layer);
        complete &= e->layers[i] != NULL;
    }
    e->head = cairn_module_add_child(m, "head",
                                     cairn_sequential(env, CAIRN_MODULES(cairn_layer_norm(env, CAIRN_SHAPE(WIDTH), 0),
                                                                         cairn_linear(env, WIDTH, CLASSES))));
    if (complete && e->position && e->embed && e->head &&
        cairn_init_trunc_normal(e->position, 0, 0.02, -2, 2) == CAIRN_OK)
        return m;
    cairn_module_destroy(&m);
    return NULL;
}

int main(int argc, char **argv) {
    const struct training how = {.build = build, .epochs = 35, .lr = 3e-3, .weight_decay = 1e-1};
    return digits_main(argc, argv, how);
}
