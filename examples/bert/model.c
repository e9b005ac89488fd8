/* The model's structure and initialization. Each part is a module that keeps handles of its children. If creating a
 * part fails, the part is destroyed and cairn_last_error() holds the cause. */
#include "model.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- parts ---- */

static cairn_module *create(cairn_env *env, const struct cairn_module_ops *ops, void *context) {
    if (context) return cairn_module_create(env, ops, context);
    (void)cairn_dataset_fail(CAIRN_ENOMEM, "there is no memory for a %s", ops->name);
    return NULL;
}

static cairn_module *child(cairn_module *m, const char *name, cairn_module *made) {
    return cairn_module_add_child(m, name, made);
}

/* N(0, std), and a bias of 0. */
static cairn_status init_linear(cairn_module *linear, double std) {
    const cairn_status st = cairn_init_normal(cairn_module_get(linear, "weight"), 0, std);
    return st == CAIRN_OK ? cairn_init_constant(cairn_module_get(linear, "bias"), 0) : st;
}

static cairn_module *new_linear(cairn_env *env, int64_t in, int64_t out, double std) {
    cairn_module *m = cairn_linear(env, in, out);
    if (m && init_linear(m, std) != CAIRN_OK) cairn_module_destroy(&m);
    return m;
}

/* cairn_embedding draws N(0, 1) and sets the padding row to 0; scaling keeps it 0. */
static cairn_module *new_embedding(cairn_env *env, int64_t rows, int64_t dim, int64_t padding, double std) {
    cairn_module *m = cairn_embedding(env, rows, dim, padding);
    if (!m) return NULL;
    cairn_no_grad_begin(env);
    const cairn_tensor *scaled = cairn_mul_scalar_(cairn_module_get(m, "weight"), std);
    if (cairn_no_grad_end(env) != CAIRN_OK || !scaled) cairn_module_destroy(&m);
    return m;
}

/* Returns m, or destroys it and returns NULL if a child is missing. */
static cairn_module *whole(cairn_module *m, int is_whole) {
    if (!is_whole) cairn_module_destroy(&m);
    return m;
}

/* ---- embeddings of words, positions and token types ---- */

struct embeddings {
    cairn_module *words, *norm, *dropout;
    cairn_tensor *position, *type; /* [positions, D], [types, D] */
};

static cairn_tensor *embed(cairn_module *module, void *context, cairn_tensor *const *inputs, int count) {
    const struct embeddings *e = context;
    cairn_tensor *ids = inputs[BERT_IDS], *types = count > BERT_TYPES ? inputs[BERT_TYPES] : NULL;
    const int64_t length = cairn_tensor_size(ids, 1);
    (void)module;
    cairn_tensor *type = types ? cairn_embedding_forward(types, e->type, -1) : cairn_slice(e->type, 0, 0, 1, 1);
    cairn_tensor *x = cairn_add(cairn_module_forward(e->words, ids), type);
    x = cairn_add(x, cairn_slice(e->position, 0, 0, length, 1));
    return cairn_module_forward(e->dropout, cairn_module_forward(e->norm, x));
}

static const struct cairn_module_ops embeddings_ops = {.struct_size = sizeof(embeddings_ops),
                                                       .name = "BertEmbeddings",
                                                       .forward = embed,
                                                       .destroy = free};

static cairn_module *new_embeddings(cairn_env *env, const struct bert_config *c) {
    const int64_t dim = c->hidden_size;
    const double std = c->initializer_range;
    struct embeddings *e = calloc(1, sizeof(*e));
    cairn_module *m = create(env, &embeddings_ops, e);
    if (!m) return NULL;
    e->words = child(m, "word_embeddings", new_embedding(env, c->vocab_size, dim, c->pad_token_id, std));
    cairn_module *position =
        child(m, "position_embeddings", new_embedding(env, c->max_position_embeddings, dim, -1, std));
    cairn_module *type = child(m, "token_type_embeddings", new_embedding(env, c->type_vocab_size, dim, -1, std));
    e->norm = child(m, "norm", cairn_layer_norm(env, CAIRN_SHAPE(dim), c->layer_norm_eps));
    e->dropout = child(m, "dropout", cairn_dropout(env, c->hidden_dropout_prob));
    if (position) e->position = cairn_module_get(position, "weight");
    if (type) e->type = cairn_module_get(type, "weight");
    return whole(m, e->words && position && type && e->norm && e->dropout);
}

/* ---- a layer: attention, and two products with an activation between, each added and normalised ---- */

struct layer {
    cairn_tensor *(*activation)(cairn_tensor *x);
    cairn_module *attention, *attention_norm, *intermediate, *output, *output_norm, *dropout;
};

/* inputs: [B, T, D], and optionally a bool mask [B, 1, 1, T]. */
static cairn_tensor *run_layer(cairn_module *module, void *context, cairn_tensor *const *inputs, int count) {
    const struct layer *l = context;
    cairn_tensor *x = inputs[0], *mask = count > 1 ? inputs[1] : NULL;
    (void)module;
    cairn_tensor *y = cairn_module_forward_n(l->attention, (cairn_tensor *[]){x, x, x, mask}, 4);
    x = cairn_module_forward(l->attention_norm, cairn_add(cairn_module_forward(l->dropout, y), x));
    y = cairn_module_forward(l->output, l->activation(cairn_module_forward(l->intermediate, x)));
    return cairn_module_forward(l->output_norm, cairn_add(cairn_module_forward(l->dropout, y), x));
}

static const struct cairn_module_ops layer_ops = {.struct_size = sizeof(layer_ops),
                                                  .name = "BertLayer",
                                                  .forward = run_layer,
                                                  .destroy = free};

/* Query, key and value projections share one weight tensor. */
static cairn_module *new_attention(cairn_env *env, const struct bert_config *c) {
    cairn_module *m =
        cairn_multihead_attention(env, c->hidden_size, c->num_attention_heads, c->attention_probs_dropout_prob);
    if (!m) return NULL;
    const double std = c->initializer_range;
    return whole(m, cairn_init_normal(cairn_module_get(m, "in_proj_weight"), 0, std) == CAIRN_OK &&
                        cairn_init_normal(cairn_module_get(m, "out_proj.weight"), 0, std) == CAIRN_OK);
}

static cairn_module *new_layer(cairn_env *env, const struct bert_config *c) {
    const int64_t dim = c->hidden_size, wide = c->intermediate_size;
    const double std = c->initializer_range, eps = c->layer_norm_eps;
    struct layer *l = calloc(1, sizeof(*l));
    cairn_module *m = create(env, &layer_ops, l);
    if (!m) return NULL;
    l->activation = c->activation;
    l->attention = child(m, "attention", new_attention(env, c));
    l->attention_norm = child(m, "attention_norm", cairn_layer_norm(env, CAIRN_SHAPE(dim), eps));
    l->intermediate = child(m, "intermediate", new_linear(env, dim, wide, std));
    l->output = child(m, "output", new_linear(env, wide, dim, std));
    l->output_norm = child(m, "output_norm", cairn_layer_norm(env, CAIRN_SHAPE(dim), eps));
    l->dropout = child(m, "dropout", cairn_dropout(env, c->hidden_dropout_prob));
    return whole(m, l->attention && l->attention_norm && l->intermediate && l->output && l->output_norm && l->dropout);
}

/* ---- the encoder ---- */

struct encoder {
    int64_t count;
    int checkpoints; /* recompute a layer's activations in backward */
    cairn_module *layers[];
};

static cairn_tensor *layer_again(void *ctx, cairn_tensor *const *inputs, int count) {
    return cairn_module_forward_n(ctx, inputs, count);
}

static cairn_tensor *encode(cairn_module *module, void *context, cairn_tensor *const *inputs, int count) {
    const struct encoder *e = context;
    const int checkpoints = e->checkpoints && cairn_module_is_training(module);
    cairn_tensor *x = inputs[0];
    for (int64_t i = 0; i < e->count; i++) {
        cairn_tensor *both[] = {x, count > 1 ? inputs[1] : NULL};
        x = checkpoints ? cairn_checkpoint(layer_again, e->layers[i], both, count)
                        : cairn_module_forward_n(e->layers[i], both, count);
    }
    return x;
}

static const struct cairn_module_ops encoder_ops = {.struct_size = sizeof(encoder_ops),
                                                    .name = "BertEncoder",
                                                    .forward = encode,
                                                    .destroy = free};

static cairn_module *new_encoder(cairn_env *env, const struct bert_config *c, int checkpoints) {
    struct encoder *e = calloc(1, sizeof(*e) + (size_t)c->num_hidden_layers * sizeof(e->layers[0]));
    cairn_module *m = create(env, &encoder_ops, e);
    if (!m) return NULL;
    e->checkpoints = checkpoints;
    while (e->count < c->num_hidden_layers) {
        e->layers[e->count] = new_layer(env, c);
        if (!e->layers[e->count++]) break;
    }
    cairn_module *layers = cairn_sequential(env, (int)e->count, e->layers);
    return whole(m, child(m, "layer", layers) != NULL);
}

/* ---- BertModel: tokens to the last layer's output; the pooler is a child, for callers that need it ---- */

struct bert {
    cairn_module *embeddings, *encoder;
};

/* [B, 1, 1, T], bool: the same for every head and every query position. */
static cairn_tensor *attention_mask(cairn_tensor *mask) {
    const int64_t batch = cairn_tensor_size(mask, 0), length = cairn_tensor_size(mask, 1);
    if (cairn_tensor_dtype(mask) != CAIRN_BOOL) mask = cairn_cast(mask, CAIRN_BOOL);
    return cairn_reshape(mask, CAIRN_SHAPE(batch, 1, 1, length));
}

static cairn_tensor *run_bert(cairn_module *module, void *context, cairn_tensor *const *inputs, int count) {
    const struct bert *b = context;
    (void)module;
    cairn_tensor *both[] = {cairn_module_forward_n(b->embeddings, inputs, count), NULL};
    const int has_mask = count > BERT_MASK && inputs[BERT_MASK];
    if (!both[0]) return NULL;
    if (has_mask && !(both[1] = attention_mask(inputs[BERT_MASK]))) return NULL;
    return cairn_module_forward_n(b->encoder, both, has_mask ? 2 : 1);
}

static const struct cairn_module_ops bert_ops = {.struct_size = sizeof(bert_ops),
                                                 .name = "BertModel",
                                                 .forward = run_bert,
                                                 .destroy = free};

static cairn_module *new_bert(cairn_env *env, const struct bert_config *c, int checkpoints, cairn_module **pooler) {
    struct bert *b = calloc(1, sizeof(*b));
    cairn_module *m = create(env, &bert_ops, b);
    if (!m) return NULL;
    b->embeddings = child(m, "embeddings", new_embeddings(env, c));
    b->encoder = child(m, "encoder", new_encoder(env, c, checkpoints));
    *pooler = child(m, "pooler", new_linear(env, c->hidden_size, c->hidden_size, c->initializer_range));
    return whole(m, b->embeddings && b->encoder && *pooler);
}

/* ---- the classifier ---- */

struct classifier {
    int64_t positions;
    cairn_module *bert, *pooler, *dropout, *classifier;
};

/* Whether an input has the shape of ids. */
static int has_shape(const cairn_tensor *t, const cairn_tensor *ids) {
    return cairn_tensor_ndim(t) == 2 && cairn_tensor_size(t, 0) == cairn_tensor_size(ids, 0) &&
           cairn_tensor_size(t, 1) == cairn_tensor_size(ids, 1);
}

static cairn_status check_inputs(const struct classifier *c, cairn_tensor *const *inputs, int count) {
    static const char *const names[BERT_INPUTS] = {"the tokens", "the mask", "the token types"};
    const cairn_tensor *ids = inputs[BERT_IDS];
    if (count > BERT_INPUTS)
        return cairn_dataset_fail(CAIRN_EINVAL, "bert: %d inputs; it takes tokens, a mask and token types", count);
    if (cairn_tensor_ndim(ids) != 2)
        return cairn_dataset_fail(CAIRN_EINVAL, "bert: the tokens have %d dimensions; they must be [batch, length]",
                                  cairn_tensor_ndim(ids));
    if (cairn_tensor_size(ids, 1) < 1 || cairn_tensor_size(ids, 1) > c->positions)
        return cairn_dataset_fail(CAIRN_EINVAL,
                                  "bert: the tokens are %" PRId64 " long; this model has positions for 1 to %" PRId64
                                  ", so cut them to max_position_embeddings",
                                  cairn_tensor_size(ids, 1), c->positions);
    for (int i = BERT_MASK; i < count; i++) {
        if (inputs[i] && !has_shape(inputs[i], ids))
            return cairn_dataset_fail(CAIRN_EINVAL, "bert: %s must be [%" PRId64 ", %" PRId64 "] as the tokens are",
                                      names[i], cairn_tensor_size(ids, 0), cairn_tensor_size(ids, 1));
    }
    return CAIRN_OK;
}

/* The first token, [CLS], represents the sequence. */
static cairn_tensor *classify(cairn_module *module, void *context, cairn_tensor *const *inputs, int count) {
    const struct classifier *c = context;
    (void)module;
    if (check_inputs(c, inputs, count) != CAIRN_OK) return NULL;
    cairn_tensor *x = cairn_module_forward_n(c->bert, inputs, count);
    x = cairn_tanh(cairn_module_forward(c->pooler, cairn_select(x, 1, 0)));
    return cairn_module_forward(c->classifier, cairn_module_forward(c->dropout, x));
}

static const struct cairn_module_ops classifier_ops = {.struct_size = sizeof(classifier_ops),
                                                       .name = "BertForSequenceClassification",
                                                       .forward = classify,
                                                       .destroy = free};

cairn_module *bert_create(cairn_env *env, const struct bert_config *config, const struct bert_options *options) {
    struct classifier *c = calloc(1, sizeof(*c));
    cairn_module *m = create(env, &classifier_ops, c);
    if (!m) return NULL;
    const double p = config->classifier_dropout < 0 ? config->hidden_dropout_prob : config->classifier_dropout;
    const int checkpoints = options && options->gradient_checkpointing == CAIRN_ON;
    c->positions = config->max_position_embeddings;
    c->bert = child(m, "bert", new_bert(env, config, checkpoints, &c->pooler));
    c->dropout = child(m, "dropout", cairn_dropout(env, p));
    c->classifier =
        child(m, "classifier", new_linear(env, config->hidden_size, config->num_labels, config->initializer_range));
    return whole(m, c->bert && c->dropout && c->classifier);
}
