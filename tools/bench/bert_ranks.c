/* A rank that trains BERT under tools/cairn-bench bert:
 *
 *   bench-bert SOCKET SIDE FILE     meets the others in FILE, where there are several, and averages gradients with them
 *
 * It connects to the socket and sleeps in read() while others have their turn. Lines:
 *   rank   hello <side> <rank> <what it is>
 *   bench  start <layers> <f32|bf16|f16> <O0..O3> <dropout> <steps> <folder>
 *                                  a fresh model, and so many steps without dropout. Rank 0 puts into the folder what
 *                                  PyTorch compares with (bench_save); "-": nothing. Later steps have dropout
 *   rank   ok <loss of the first step>; of PyTorch also two relative differences, of gradients and of how far weights
 *          have moved
 *   bench  steps <n>               one step that brings the ranks together, then n that are timed
 *   rank   ok <us of a step> <us of processor time> <last loss> <hash of the weights>, or: failed <why>, and it ends
 *   bench  products <n>            the products of a step alone, n times
 *   rank   ok <us> <us of processor time>
 *   bench  peak
 *   rank   ok <KiB>                the most memory that the process has held, VmHWM
 *   bench  end
 * Model, weights and data are what bert_torch.py makes, so that losses can be compared.
 *
 * The model is BERT-base's: embeddings of words, positions and token types, encoder layers, pooler and a classifier of
 * 3 classes. Source: Devlin et al., "BERT", 2019; the sizes of bert-base-cased. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#include "cairn/cairn.h"
#include "device/env.h"
#include "training.h"
#include "worker.h"

enum { BATCH = 8, T = 128, ROWS = BATCH * T, WIDTH = 768, HEADS = 12, HEAD = WIDTH / HEADS, INNER = 3072 };
enum { WORDS = 28996, POSITIONS = 512, KINDS = 2, CLASSES = 3, MOST_LAYERS = 24 };

struct layer {
    cairn_module *attention, *dense1, *dense2, *norm1, *norm2, *dropout;
};

struct bert {
    int layers;
    cairn_module *words, *positions, *kinds, *norm, *dropout, *layer[MOST_LAYERS], *pooler, *classifier;
};

struct training {
    cairn_env *env;
    const char *side;
    int rank, layers;
    cairn_dtype type; /* of products */
    cairn_module *model;
    cairn_optimizer *optimizer;
    amp_context *amp;
    ddp_context *ddp;
    cairn_tensor *inputs[3], *labels;
    void *operands; /* of the products alone */
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

static cairn_module *make_bert(cairn_env *env, int layers, double dropout) {
    struct bert *b = calloc(1, sizeof(*b));
    cairn_module *m = b ? cairn_module_create(env, &bert_ops, b) : NULL;
    if (!m) return NULL;
    b->layers = layers;
    b->words = cairn_module_add_child(m, "words", cairn_embedding(env, WORDS, WIDTH, -1));
    b->positions = cairn_module_add_child(m, "positions", cairn_embedding(env, POSITIONS, WIDTH, -1));
    b->kinds = cairn_module_add_child(m, "kinds", cairn_embedding(env, KINDS, WIDTH, -1));
    b->norm = cairn_module_add_child(m, "norm", cairn_layer_norm(env, CAIRN_SHAPE(WIDTH), 1e-12));
    b->dropout = cairn_module_add_child(m, "dropout", cairn_dropout(env, dropout));
    bool complete = b->words && b->positions && b->kinds && b->norm && b->dropout;
    for (int i = 0; i < layers; i++) {
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

static bool make_batch(struct training *t) {
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

/* ---- one training ---- */

static void tear_down(struct training *t) {
    ddp_destroy(&t->ddp);
    amp_destroy(&t->amp);
    cairn_optimizer_destroy(&t->optimizer);
    cairn_module_destroy(&t->model);
    for (int i = 0; i < 3; i++) cairn_tensor_destroy(&t->inputs[i]);
    cairn_tensor_destroy(&t->labels);
    free(t->operands);
    t->operands = NULL;
}

static cairn_status set_up(struct training *t, const char *type, const char *level, double dropout) {
    struct amp_options amp = *amp_options(.verbosity = -1);
    struct cairn_adam_options adamw = CAIRN_ADAMW_OPTIONS_INIT;
    adamw.lr = 5e-5;
    tear_down(t);
    t->type = strcmp(type, "f16") == 0 ? CAIRN_F16 : strcmp(type, "bf16") == 0 ? CAIRN_BF16 : CAIRN_F32;
    if (t->type != CAIRN_F32) amp.half_type = t->type;
    cairn_status st = amp_opt_level_parse(level, &amp.opt_level);
    if (st == CAIRN_OK && !(t->model = make_bert(t->env, t->layers, dropout))) st = CAIRN_ENOMEM;
    if (st == CAIRN_OK && !make_batch(t)) st = CAIRN_ENOMEM;
    if (st == CAIRN_OK) st = fill_weights(cairn_module_params(t->model));
    if (st == CAIRN_OK) st = cairn_adamw_create(cairn_module_params(t->model), &adamw, &t->optimizer);
    if (st == CAIRN_OK) st = amp_initialize(t->env, t->model, t->optimizer, &amp, &t->amp);
    if (st == CAIRN_OK && cairn_env_size(t->env) > 1) st = ddp_create(t->model, cairn_env_group(t->env), NULL, &t->ddp);
    return st;
}

static cairn_status backward(struct training *t, cairn_tensor **loss) {
    cairn_zero_grad(t->optimizer);
    cairn_tensor *scores =
        t->ddp ? ddp_forward_n(t->ddp, t->inputs, 3) : cairn_module_forward_n(t->model, t->inputs, 3);
    *loss = cairn_cross_entropy(scores, t->labels, NULL);
    return amp_backward(t->amp, *loss, t->optimizer);
}

static cairn_status update(struct training *t) {
    cairn_status st = cairn_clip_grad_norm(t->optimizer, 1.0, NULL);
    return st == CAIRN_OK ? cairn_step(t->optimizer) : st;
}

static cairn_status step(struct training *t, cairn_tensor **loss) {
    cairn_status st = backward(t, loss);
    return st == CAIRN_OK ? update(t) : st;
}

static bool save(const struct training *t, const char *folder, const char *what) {
    return t->rank != 0 || strcmp(folder, "-") == 0 || bench_save(t->model, folder, what);
}

static cairn_status start(struct training *t, const char *type, const char *level, double dropout, long steps,
                          const char *folder, FILE *bench) {
    cairn_tensor *loss = NULL;
    cairn_status st = set_up(t, type, level, dropout);
    if (st != CAIRN_OK) return st;
    cairn_module_train(t->model, 0);
    st = backward(t, &loss);
    if (st != CAIRN_OK) return st;
    const double first = (double)cairn_tensor_item(loss);
    if (!save(t, folder, "gradients")) return CAIRN_ESYSTEM;
    st = update(t);
    for (long i = 1; st == CAIRN_OK && i < steps; i++) st = step(t, &loss);
    if (st == CAIRN_OK && !save(t, folder, "weights")) return CAIRN_ESYSTEM;
    cairn_module_train(t->model, 1);
    if (st == CAIRN_OK) fprintf(bench, "ok %.9g\n", first);
    return st;
}

static cairn_status time_steps(struct training *t, long n, FILE *bench) {
    cairn_tensor *loss = NULL;
    uint64_t hash = 0;
    cairn_status st = step(t, &loss);
    const double begin = bench_now_us(), begin_cpu = bench_cpu_us();
    for (long i = 0; st == CAIRN_OK && i < n; i++) st = step(t, &loss);
    const double us = (bench_now_us() - begin) / (double)n, cpu = (bench_cpu_us() - begin_cpu) / (double)n;
    if (st == CAIRN_OK) st = bench_hash_weights(t->model, &hash);
    if (st == CAIRN_OK)
        fprintf(bench, "ok %.3f %.3f %.9g %016llx\n", us, cpu, (double)cairn_tensor_item(loss),
                (unsigned long long)hash);
    return st;
}

/* ---- the products of a step alone ---- */

/* Large enough for any of them, of f32. */
enum { MOST_OPERAND = ROWS * INNER > WIDTH *INNER ? ROWS *INNER : WIDTH *INNER };

static void *operand(const struct training *t, int i) {
    return (float *)t->operands + (size_t)i * MOST_OPERAND;
}

static cairn_status multiply(struct training *t, int64_t m, int64_t n, int64_t k, bool trans_a, bool trans_b) {
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
static cairn_status linear_products(struct training *t, int64_t rows, int64_t in, int64_t out) {
    cairn_status st = multiply(t, rows, out, in, false, true);
    if (st == CAIRN_OK) st = multiply(t, out, in, rows, true, false);
    if (st == CAIRN_OK) st = multiply(t, rows, in, out, false, false);
    return st;
}

/* [m, k] [k, n] of every head, each of them dense or the transpose of what is. */
static void head_product(struct training *t, int64_t m, int64_t n, int64_t k, bool trans_a, bool trans_b) {
    const int64_t heads = BATCH * HEADS;
    const struct cairn__view c = cairn__view_dense(operand(t, 2), t->type, 3, (const int64_t[]){heads, m, n});
    struct cairn__view a = cairn__view_dense(operand(t, 0), t->type, 3, (const int64_t[]){heads, m, k});
    struct cairn__view b = cairn__view_dense(operand(t, 1), t->type, 3, (const int64_t[]){heads, k, n});
    if (trans_a) a.stride[1] = 1, a.stride[2] = m;
    if (trans_b) b.stride[1] = 1, b.stride[2] = k;
    t->env->device->math->product(t->env->device, &c, &a, &b);
}

/* q k^T, p v; p^T dy, dy v^T, ds k, ds^T q. What backward computes anew is no product of the step. */
static void attention_products(struct training *t) {
    head_product(t, T, T, HEAD, false, true);
    head_product(t, T, HEAD, T, false, false);
    head_product(t, T, HEAD, T, true, false);
    head_product(t, T, T, HEAD, false, true);
    head_product(t, T, HEAD, T, false, false);
    head_product(t, T, HEAD, T, true, false);
}

static cairn_status all_products(struct training *t) {
    cairn_status st = linear_products(t, BATCH, WIDTH, WIDTH);
    for (int i = 0; st == CAIRN_OK && i < t->layers; i++) {
        st = linear_products(t, ROWS, WIDTH, 3 * WIDTH);
        if (st == CAIRN_OK) st = linear_products(t, ROWS, WIDTH, WIDTH);
        if (st == CAIRN_OK) st = linear_products(t, ROWS, WIDTH, INNER);
        if (st == CAIRN_OK) st = linear_products(t, ROWS, INNER, WIDTH);
        if (st == CAIRN_OK) attention_products(t);
    }
    return st;
}

/* Values of all sizes a weight has: zeros would be multiplied faster where the processor knows them. */
static cairn_status make_operands(struct training *t) {
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

static cairn_status time_products(struct training *t, long n, FILE *bench) {
    cairn_status st = t->operands ? CAIRN_OK : make_operands(t);
    if (st == CAIRN_OK) st = all_products(t);
    const double begin = bench_now_us(), begin_cpu = bench_cpu_us();
    for (long i = 0; st == CAIRN_OK && i < n; i++) st = all_products(t);
    if (st == CAIRN_OK)
        fprintf(bench, "ok %.3f %.3f\n", (bench_now_us() - begin) / (double)n,
                (bench_cpu_us() - begin_cpu) / (double)n);
    return st;
}

/* ---- the socket ---- */

static cairn_status tell_peak(FILE *bench) {
    FILE *status = fopen("/proc/self/status", "r");
    char line[128];
    long kib = -1;
    while (status && fgets(line, sizeof(line), status)) {
        if (strncmp(line, "VmHWM:", 6) == 0) kib = strtol(line + 6, NULL, 10);
    }
    if (status) fclose(status);
    fprintf(bench, "ok %ld\n", kib);
    return CAIRN_OK;
}

/* Whether to go on. */
static bool answer(struct training *t, const char *line, FILE *bench) {
    char type[8], level[8], folder[3072];
    long n = 0;
    double dropout = 0;
    int layers = 0;
    cairn_status st = CAIRN_EINVAL;
    if (sscanf(line, "start %d %7s %7s %lf %ld %3071[^\n]", &layers, type, level, &dropout, &n, folder) == 6) {
        t->layers = layers < 1 ? 1 : layers > MOST_LAYERS ? MOST_LAYERS : layers;
        st = start(t, type, level, dropout, n, folder, bench);
    } else if (sscanf(line, "steps %ld", &n) == 1 && n > 0 && t->model) {
        st = time_steps(t, n, bench);
    } else if (sscanf(line, "products %ld", &n) == 1 && n > 0 && t->model) {
        st = time_products(t, n, bench);
    } else if (strncmp(line, "peak", 4) == 0) {
        st = tell_peak(bench);
    }
    if (st != CAIRN_OK) fprintf(bench, "failed %s\n", cairn_last_error());
    fflush(bench);
    return st == CAIRN_OK;
}

static int serve(struct training *t, const char *socket_path) {
    char line[4096];
    bool going_on = true;
    FILE *bench = bench_dial(socket_path);
    if (!bench) {
        fprintf(stderr, "bench-bert: nothing listens at %s; tools/cairn-bench starts this program\n", socket_path);
        return 1;
    }
    fprintf(bench, "hello %s %d %s of Cairn %d.%d.%d\n", t->side, t->rank,
            cairn_env_size(t->env) > 1 ? cairn_group_backend(cairn_env_group(t->env)) : "one rank", CAIRN_VERSION_MAJOR,
            CAIRN_VERSION_MINOR, CAIRN_VERSION_PATCH);
    fflush(bench);
    while (going_on && fgets(line, sizeof(line), bench) && strcmp(line, "end\n") != 0)
        going_on = answer(t, line, bench);
    fclose(bench);
    return going_on ? 0 : 1;
}

int main(int argc, char **argv) {
    if (argc != 4) {
        fprintf(stderr, "usage: tools/cairn-bench bert, which starts this program; see --help\n");
        return 2;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    struct training t = {.side = argv[2]};
    const char *size = getenv("WORLD_SIZE");
    char url[512];
    snprintf(url, sizeof(url), "file://%s", argv[3]);
    const bool alone = !size || strcmp(size, "1") == 0;
    if (cairn_env_create(NULL, NULL, cairn_env_options(.init_method = alone ? NULL : url), &t.env) != CAIRN_OK) {
        fprintf(stderr, "bench-bert: %s\n", cairn_last_error());
        return 1;
    }
    t.rank = cairn_env_rank(t.env);
    int code = serve(&t, argv[1]);
    tear_down(&t);
    cairn_env_destroy(&t.env);
    return code;
}
