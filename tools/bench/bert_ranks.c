/* BERT for tools/cairn-bench bert. steps.h describes the training; bert_torch.py is PyTorch's side.
 *
 * The model is BERT-base's: embeddings of words, positions and token types, encoder layers, pooler and a classifier of
 * 3 classes. Source: Devlin et al., "BERT", 2019; the sizes of bert-base-cased. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "steps.h"
#include "training.h"

enum { BATCH = 8, T = 128, ROWS = BATCH * T, WIDTH = 768, HEADS = 12, HEAD = WIDTH / HEADS, INNER = 3072 };
enum { WORDS = 28996, POSITIONS = 512, KINDS = 2, CLASSES = 3, MOST_LAYERS = 24 };

struct layer {
    cairn_module *attention, *dense1, *dense2, *norm1, *norm2, *dropout;
};

struct bert {
    int layers;
    cairn_module *words, *positions, *kinds, *norm, *dropout, *layer[MOST_LAYERS], *pooler, *classifier;
};

/* ---- the model ---- */

static cairn_tensor *encode(cairn_module *module, void *context, cairn_tensor *const *inputs, int count) {
    const struct layer *l = context;
    (void)module, (void)count;
    cairn_tensor *x = cairn_module_forward(l->dropout, cairn_module_forward(l->attention, inputs[0]));
    x = cairn_module_forward(l->norm1, cairn_add(inputs[0], x));
    cairn_tensor *h = cairn_module_forward(l->dense2, cairn_gelu(cairn_module_forward(l->dense1, x)));
    return cairn_module_forward(l->norm2, cairn_add(x, cairn_module_forward(l->dropout, h)));
}

static const struct cairn_module_ops layer_ops = {.struct_size = sizeof(layer_ops),
                                                  .name = "Layer",
                                                  .forward = encode,
                                                  .destroy = free};

static cairn_module *make_layer(cairn_env *env, double dropout) {
    struct layer *l = calloc(1, sizeof(*l));
    cairn_module *m = l ? cairn_module_create(env, &layer_ops, l) : NULL;
    if (!m) return NULL;
    l->attention = cairn_module_add_child(m, "attention", cairn_multihead_attention(env, WIDTH, HEADS, dropout));
    l->dense1 = cairn_module_add_child(m, "dense1", cairn_linear(env, WIDTH, INNER));
    l->dense2 = cairn_module_add_child(m, "dense2", cairn_linear(env, INNER, WIDTH));
    l->norm1 = cairn_module_add_child(m, "norm1", cairn_layer_norm(env, CAIRN_SHAPE(WIDTH), 1e-12));
    l->norm2 = cairn_module_add_child(m, "norm2", cairn_layer_norm(env, CAIRN_SHAPE(WIDTH), 1e-12));
    l->dropout = cairn_module_add_child(m, "dropout", cairn_dropout(env, dropout));
    if (!l->attention || !l->dense1 || !l->dense2 || !l->norm1 || !l->norm2 || !l->dropout) cairn_module_destroy(&m);
    return m;
}

enum { IDS, TYPES, PLACES }; /* inputs: [BATCH, T], [BATCH, T], [T] */

static cairn_tensor *forward(cairn_module *module, void *context, cairn_tensor *const *inputs, int count) {
    const struct bert *b = context;
    (void)module, (void)count;
    cairn_tensor *words = cairn_module_forward(b->words, inputs[IDS]);
    cairn_tensor *x = cairn_add(words, cairn_module_forward(b->kinds, inputs[TYPES]));
    x = cairn_add(x, cairn_module_forward(b->positions, inputs[PLACES]));
    x = cairn_module_forward(b->dropout, cairn_module_forward(b->norm, x));
    for (int i = 0; i < b->layers; i++) x = cairn_module_forward(b->layer[i], x);
    cairn_tensor *first = cairn_tanh(cairn_module_forward(b->pooler, cairn_select(x, 1, 0)));
    return cairn_module_forward(b->classifier, cairn_module_forward(b->dropout, first));
}

static const struct cairn_module_ops bert_ops = {.struct_size = sizeof(bert_ops),
                                                 .name = "Bert",
                                                 .forward = forward,
                                                 .destroy = free};

static int clamp(int layers) {
    return layers < 1 ? 1 : layers > MOST_LAYERS ? MOST_LAYERS : layers;
}

static cairn_module *make_bert(cairn_env *env, int layers, double dropout) {
    struct bert *b = calloc(1, sizeof(*b));
    cairn_module *m = b ? cairn_module_create(env, &bert_ops, b) : NULL;
    if (!m) return NULL;
    b->layers = clamp(layers);
    b->words = cairn_module_add_child(m, "words", cairn_embedding(env, WORDS, WIDTH, -1));
    b->positions = cairn_module_add_child(m, "positions", cairn_embedding(env, POSITIONS, WIDTH, -1));
    b->kinds = cairn_module_add_child(m, "kinds", cairn_embedding(env, KINDS, WIDTH, -1));
    b->norm = cairn_module_add_child(m, "norm", cairn_layer_norm(env, CAIRN_SHAPE(WIDTH), 1e-12));
    b->dropout = cairn_module_add_child(m, "dropout", cairn_dropout(env, dropout));
    bool complete = b->words && b->positions && b->kinds && b->norm && b->dropout;
    for (int i = 0; i < b->layers; i++) {
        char name[16];
        snprintf(name, sizeof(name), "layer%d", i);
        b->layer[i] = cairn_module_add_child(m, name, make_layer(env, dropout));
        complete = complete && b->layer[i];
    }
    b->pooler = cairn_module_add_child(m, "pooler", cairn_linear(env, WIDTH, WIDTH));
    b->classifier = cairn_module_add_child(m, "classifier", cairn_linear(env, WIDTH, CLASSES));
    if (!complete || !b->pooler || !b->classifier) cairn_module_destroy(&m);
    return m;
}

/* ---- weights and data ---- */

/* Matrices have BERT's deviation of 0.02, norms are near 1, biases small. */
static cairn_status fill_weights(cairn_param_set *set) {
    for (size_t i = 0; i < cairn_param_set_count(set); i++) {
        cairn_param p;
        cairn_status st = cairn_param_set_get(set, i, &p);
        if (st != CAIRN_OK) return st;
        const bool is_norm = strstr(p.name, "norm") && strstr(p.name, "weight");
        const float scale = p.ndim == 2 ? 0.07f : 0.1f, centre = is_norm ? 1.0f : 0.0f;
        for (size_t k = 0; k < bench_numel(&p); k++)
            ((float *)p.data)[k] = centre + bench_value((uint32_t)i, k) * scale;
    }
    return CAIRN_OK;
}

static bool make_batch(struct bench_training *t) {
    int64_t ids[ROWS], types[ROWS], places[T], labels[BATCH];
    for (size_t i = 0; i < ROWS; i++) {
        ids[i] = (int64_t)((bench_value(200 + (uint32_t)t->rank, i) + 0.5f) * WORDS);
        types[i] = i % T >= T / 2;
    }
    for (int i = 0; i < T; i++) places[i] = i;
    for (int i = 0; i < BATCH; i++) labels[i] = (i + t->rank) % CLASSES;
    t->inputs[IDS] = cairn_tensor_from(t->env, CAIRN_I64, CAIRN_SHAPE(BATCH, T), ids);
    t->inputs[TYPES] = cairn_tensor_from(t->env, CAIRN_I64, CAIRN_SHAPE(BATCH, T), types);
    t->inputs[PLACES] = cairn_tensor_from(t->env, CAIRN_I64, CAIRN_SHAPE(T), places);
    t->labels = cairn_tensor_from(t->env, CAIRN_I64, CAIRN_SHAPE(BATCH), labels);
    return t->inputs[IDS] && t->inputs[TYPES] && t->inputs[PLACES] && t->labels;
}

static cairn_status create_adamw(cairn_param_set *params, cairn_optimizer **out) {
    struct cairn_adam_options adamw = CAIRN_ADAMW_OPTIONS_INIT;
    adamw.lr = 5e-5;
    return cairn_adamw_create(params, &adamw, out);
}

/* ---- only the products of a step ---- */

/* Large enough for any operand in f32. */
enum { MOST_OPERAND = ROWS * INNER > WIDTH *INNER ? ROWS *INNER : WIDTH *INNER };

static void *operand(const struct bench_training *t, int i) {
    return (float *)t->operands + (size_t)i * MOST_OPERAND;
}

static cairn_status multiply(struct bench_training *t, int64_t m, int64_t n, int64_t k, bool trans_a, bool trans_b) {
    const struct cairn__matmul p = {.m = m,
                                    .n = n,
                                    .k = k,
                                    .trans_a = trans_a,
                                    .trans_b = trans_b,
                                    .in_type = t->type,
                                    .out_type = t->type,
                                    .a = operand(t, 0),
                                    .b = operand(t, 1),
                                    .c = operand(t, 2)};
    return cairn__device_matmul(t->env->device, &p);
}

/* y = x W^T, dW = dy^T x and dx = dy W. */
static cairn_status linear_products(struct bench_training *t, int64_t rows, int64_t in, int64_t out) {
    cairn_status st = multiply(t, rows, out, in, false, true);
    if (st == CAIRN_OK) st = multiply(t, out, in, rows, true, false);
    if (st == CAIRN_OK) st = multiply(t, rows, in, out, false, false);
    return st;
}

/* [m, k] [k, n] of every head, each of them dense or the transpose of what is. */
static void head_product(struct bench_training *t, int64_t m, int64_t n, int64_t k, bool trans_a, bool trans_b) {
    const int64_t heads = BATCH * HEADS;
    const struct cairn__view c = cairn__view_dense(operand(t, 2), t->type, 3, (const int64_t[]){heads, m, n});
    struct cairn__view a = cairn__view_dense(operand(t, 0), t->type, 3, (const int64_t[]){heads, m, k});
    struct cairn__view b = cairn__view_dense(operand(t, 1), t->type, 3, (const int64_t[]){heads, k, n});
    if (trans_a) a.stride[1] = 1, a.stride[2] = m;
    if (trans_b) b.stride[1] = 1, b.stride[2] = k;
    t->env->device->math->product(t->env->device, &c, &a, &b);
}

/* q k^T, p v; p^T dy, dy v^T, ds k, ds^T q. Products that backward recomputes are not counted. */
static void attention_products(struct bench_training *t) {
    head_product(t, T, T, HEAD, false, true);
    head_product(t, T, HEAD, T, false, false);
    head_product(t, T, HEAD, T, true, false);
    head_product(t, T, T, HEAD, false, true);
    head_product(t, T, HEAD, T, false, false);
    head_product(t, T, HEAD, T, true, false);
}

/* Values of a weight's typical sizes: some processors multiply zeros faster. */
static cairn_status make_operands(struct bench_training *t) {
    const size_t n = 3 * (size_t)MOST_OPERAND, halves = sizeof(float) / sizeof(uint16_t);
    t->operands = malloc(n * sizeof(float));
    if (!t->operands) return CAIRN_ENOMEM;
    for (size_t i = 0; i < n; i++) {
        const float x = bench_value(0, i);
        uint32_t bits;
        memcpy(&bits, &x, sizeof(bits));
        if (t->type == CAIRN_F32) ((float *)t->operands)[i] = x;
        else if (i < n * halves) ((uint16_t *)t->operands)[i] = (uint16_t)(t->type == CAIRN_BF16 ? bits >> 16 : 0x3000);
    }
    return CAIRN_OK;
}

static cairn_status all_products(struct bench_training *t) {
    cairn_status st = t->operands ? CAIRN_OK : make_operands(t);
    if (st == CAIRN_OK) st = linear_products(t, BATCH, WIDTH, WIDTH);
    for (int i = 0; st == CAIRN_OK && i < clamp(t->size); i++) {
        st = linear_products(t, ROWS, WIDTH, 3 * WIDTH);
        if (st == CAIRN_OK) st = linear_products(t, ROWS, WIDTH, WIDTH);
        if (st == CAIRN_OK) st = linear_products(t, ROWS, WIDTH, INNER);
        if (st == CAIRN_OK) st = linear_products(t, ROWS, INNER, WIDTH);
        if (st == CAIRN_OK) attention_products(t);
    }
    return st;
}

int main(int argc, char **argv) {
    static const struct bench_model bert = {.program = "bench-bert",
                                            .num_inputs = 3,
                                            .drops = true,
                                            .create = make_bert,
                                            .fill_weights = fill_weights,
                                            .make_batch = make_batch,
                                            .create_optimizer = create_adamw,
                                            .max_norm = 1,
                                            .products = all_products};
    return bench_train(&bert, argc, argv);
}
