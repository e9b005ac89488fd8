/* The worker of `tools/cairn-bench ops`: runs operations of BERT-base, ResNet-18 and ResNet-50, forward and backward,
 * on one thread, and prints their processor time and checksums of their results, which the driver compares with
 * PyTorch's.
 *
 * Without arguments it answers commands on stdin:
 *     list                       a line per case: name | net | count in the net | inputs | PyTorch expression
 *     run NAME TYPE TIMES        "us N.N" for each run, then "sum X" for the result and each gradient, then "end"
 *     memory TYPE                "kib N", by which steps of the MLP under AdamW raise a fresh process's peak
 * Values of input k are value_of(k, i); the driver generates the same values. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cairn/nn.h"
#include "cairn/optim.h"
#include "device/env.h"
#include "nn/module.h"
#include "nn/tensor.h"
#include "param/param.h"

enum { MAX_INPUTS = 5 };

struct bench_case {
    const char *name, *net;
    int count; /* number of times that the net runs it per step */
    cairn_tensor *(*build)(cairn_tensor **in);
    const char
        *inputs; /* shapes and a letter: g requires a gradient, f does not, n f32 that does, s f32 state, i N classes */
    const char *torch;
};

/* ---- operations ---- */

#define BUILD(name, expression)                            \
    static cairn_tensor *build_##name(cairn_tensor **in) { \
        return expression;                                 \
    }

BUILD(embedding, cairn_embedding_forward(in[1], in[0], -1))
BUILD(add, cairn_add(in[0], in[1]))
BUILD(linear, cairn_linear_forward(in[0], in[1], in[2]))
BUILD(layer_norm, cairn_layer_norm_forward(in[0], in[1], in[2], 1, 1e-5))
BUILD(gelu, cairn_gelu(in[0]))
BUILD(relu, cairn_relu(in[0]))
BUILD(tanh, cairn_tanh(in[0]))
BUILD(softmax, cairn_softmax(in[0], -1))
BUILD(dropout, cairn_dropout_forward(in[0], 0.1, 1))
BUILD(scores, cairn_matmul(in[0], cairn_transpose(in[1], -2, -1)))
BUILD(matmul, cairn_matmul(in[0], in[1]))
BUILD(attention, cairn_scaled_dot_product_attention(in[0], in[1], in[2], NULL))
BUILD(heads, cairn_contiguous(cairn_transpose(cairn_reshape(in[0], CAIRN_SHAPE(8, 128, 12, 64)), 1, 2)))
BUILD(cross_entropy, cairn_cross_entropy(in[0], in[1], NULL))
BUILD(batch_norm, cairn_batch_norm_forward(in[0], in[3], in[4], in[1], in[2], 1, 0.1, 1e-5))
BUILD(max_pool, cairn_max_pool2d(in[0], 3, 3, cairn_pool_options(.stride = {2, 2}, .padding = {1, 1})))
BUILD(average_pool, cairn_adaptive_avg_pool2d(in[0], 1, 1))
BUILD(sum_rows, cairn_sum_dims(in[0], 1, (const int[]){-1}, 0))
BUILD(sum_columns, cairn_sum_dims(in[0], 1, (const int[]){0}, 0))
BUILD(amax_rows, cairn_amax(in[0], 1, (const int[]){-1}, 0))
BUILD(var_rows, cairn_var(in[0], 1, (const int[]){-1}, 1, 0))
BUILD(conv7s2, cairn_conv2d_forward(in[0], in[1], NULL, cairn_conv_options(.stride = {2, 2}, .padding = {3, 3})))
BUILD(conv3, cairn_conv2d_forward(in[0], in[1], NULL, cairn_conv_options(.padding = {1, 1})))
BUILD(conv3s2, cairn_conv2d_forward(in[0], in[1], NULL, cairn_conv_options(.stride = {2, 2}, .padding = {1, 1})))
BUILD(conv1, cairn_conv2d_forward(in[0], in[1], NULL, NULL))
BUILD(conv1s2, cairn_conv2d_forward(in[0], in[1], NULL, cairn_conv_options(.stride = {2, 2})))

static cairn_tensor *build_mlp(cairn_tensor **in) {
    cairn_tensor *x = in[0];
    for (int i = 0; i < 6; i++) {
        x = cairn_linear_forward(x, in[1 + 2 * i], in[2 + 2 * i]);
        if (i < 5) x = cairn_relu(x);
    }
    return x;
}

/* The PyTorch expression; T is the type under test. */
#define CONV(stride, padding) "F.conv2d(a, b, None, " #stride ", " #padding ")"
#define NORM                  "F.batch_norm(a, d, e, b, c, True, 0.1, 1e-5)"

/* clang-format off */
static const struct bench_case cases[] = {
    {"embedding 30522x768, 1024 rows", "bert", 1, build_embedding, "30522 768 g; 8 128 i 30522", "F.embedding(b, a)"},
    {"layer_norm 1024x768", "bert", 25, build_layer_norm, "8 128 768 g; 768 n; 768 n", "F.layer_norm(a, (768,), b, c)"},
    {"linear 768 to 768", "bert", 48, build_linear, "8 128 768 g; 768 768 g; 768 g", "F.linear(a, b, c)"},
    {"linear 768 to 3072", "bert", 12, build_linear, "8 128 768 g; 3072 768 g; 3072 g", "F.linear(a, b, c)"},
    {"linear 3072 to 768", "bert", 12, build_linear, "8 128 3072 g; 768 3072 g; 768 g", "F.linear(a, b, c)"},
    {"heads to front", "bert", 36, build_heads, "8 128 768 g", "a.view(8, 128, 12, 64).transpose(1, 2).contiguous()"},
    {"matmul q k^T", "bert", 12, build_scores, "8 12 128 64 g; 8 12 128 64 g", "torch.matmul(a, b.transpose(-2, -1))"},
    {"matmul p v", "bert", 12, build_matmul, "8 12 128 128 g; 8 12 128 64 g", "torch.matmul(a, b)"},
    {"softmax 12288x128", "bert", 12, build_softmax, "8 12 128 128 g", "F.softmax(a, -1)"},
    {"attention 8x12x128x64", "bert", 12, build_attention, "8 12 128 64 g; 8 12 128 64 g; 8 12 128 64 g",
     "attention(a, b, c)"},
    {"dropout 1024x768", "bert", 25, build_dropout, "8 128 768 g", "F.dropout(a, 0.1, True)"},
    {"add 1024x768", "bert", 26, build_add, "8 128 768 g; 8 128 768 g", "torch.add(a, b)"},
    {"gelu 1024x3072", "bert", 12, build_gelu, "8 128 3072 g", "F.gelu(a)"},
    {"tanh 8x768", "bert", 1, build_tanh, "8 768 g", "torch.tanh(a)"},
    {"linear 768 to 30522, 152 rows", "bert", 1, build_linear, "152 768 g; 30522 768 g; 30522 g", "F.linear(a, b, c)"},
    {"cross_entropy 152x30522", "bert", 1, build_cross_entropy, "152 30522 g; 152 i 30522", "F.cross_entropy(a, b)"},

    {"conv 7x7/2 3 to 64, 64x64", "resnet", 1, build_conv7s2, "8 3 64 64 f; 64 3 7 7 g", CONV(2, 3)},
    {"batch_norm 64, 32x32", "resnet", 1, build_batch_norm, "8 64 32 32 g; 64 n; 64 n; 64 s; 64 s", NORM},
    {"relu 64, 32x32", "resnet", 1, build_relu, "8 64 32 32 g", "torch.relu(a)"},
    {"max_pool 3x3/2 64, 32x32", "resnet", 1, build_max_pool, "8 64 32 32 g", "F.max_pool2d(a, 3, 2, 1)"},
    {"conv 3x3 64, 16x16", "resnet", 4, build_conv3, "8 64 16 16 g; 64 64 3 3 g", CONV(1, 1)},
    {"batch_norm 64, 16x16", "resnet", 4, build_batch_norm, "8 64 16 16 g; 64 n; 64 n; 64 s; 64 s", NORM},
    {"relu 64, 16x16", "resnet", 4, build_relu, "8 64 16 16 g", "torch.relu(a)"},
    {"add 64, 16x16", "resnet", 2, build_add, "8 64 16 16 g; 8 64 16 16 g", "torch.add(a, b)"},
    {"conv 3x3/2 64 to 128, 16x16", "resnet", 1, build_conv3s2, "8 64 16 16 g; 128 64 3 3 g", CONV(2, 1)},
    {"conv 1x1/2 64 to 128, 16x16", "resnet", 1, build_conv1s2, "8 64 16 16 g; 128 64 1 1 g", CONV(2, 0)},
    {"conv 3x3 128, 8x8", "resnet", 3, build_conv3, "8 128 8 8 g; 128 128 3 3 g", CONV(1, 1)},
    {"batch_norm 128, 8x8", "resnet", 5, build_batch_norm, "8 128 8 8 g; 128 n; 128 n; 128 s; 128 s", NORM},
    {"relu 128, 8x8", "resnet", 4, build_relu, "8 128 8 8 g", "torch.relu(a)"},
    {"add 128, 8x8", "resnet", 2, build_add, "8 128 8 8 g; 8 128 8 8 g", "torch.add(a, b)"},
    {"conv 3x3/2 128 to 256, 8x8", "resnet", 1, build_conv3s2, "8 128 8 8 g; 256 128 3 3 g", CONV(2, 1)},
    {"conv 3x3 256, 4x4", "resnet", 3, build_conv3, "8 256 4 4 g; 256 256 3 3 g", CONV(1, 1)},
    {"batch_norm 256, 4x4", "resnet", 5, build_batch_norm, "8 256 4 4 g; 256 n; 256 n; 256 s; 256 s", NORM},
    {"conv 3x3/2 256 to 512, 4x4", "resnet", 1, build_conv3s2, "8 256 4 4 g; 512 256 3 3 g", CONV(2, 1)},
    {"conv 3x3 512, 2x2", "resnet", 3, build_conv3, "8 512 2 2 g; 512 512 3 3 g", CONV(1, 1)},
    {"batch_norm 512, 2x2", "resnet", 5, build_batch_norm, "8 512 2 2 g; 512 n; 512 n; 512 s; 512 s", NORM},
    {"average_pool 512, 2x2", "resnet", 1, build_average_pool, "8 512 2 2 g", "F.adaptive_avg_pool2d(a, 1)"},
    {"linear 512 to 1000", "resnet", 1, build_linear, "8 512 g; 1000 512 g; 1000 g", "F.linear(a, b, c)"},
    {"cross_entropy 8x1000", "resnet", 1, build_cross_entropy, "8 1000 g; 8 i 1000", "F.cross_entropy(a, b)"},

    {"conv 7x7/2 3 to 64, 224x224", "resnet50", 1, build_conv7s2, "8 3 224 224 f; 64 3 7 7 g", CONV(2, 3)},
    {"conv 1x1 256 to 64, 56x56", "resnet50", 2, build_conv1, "8 256 56 56 g; 64 256 1 1 g", CONV(1, 0)},
    {"conv 3x3 64, 56x56", "resnet50", 3, build_conv3, "8 64 56 56 g; 64 64 3 3 g", CONV(1, 1)},
    {"conv 1x1 64 to 256, 56x56", "resnet50", 4, build_conv1, "8 64 56 56 g; 256 64 1 1 g", CONV(1, 0)},
    {"batch_norm 256, 56x56", "resnet50", 4, build_batch_norm, "8 256 56 56 g; 256 n; 256 n; 256 s; 256 s", NORM},
    {"relu 256, 56x56", "resnet50", 3, build_relu, "8 256 56 56 g", "torch.relu(a)"},
    {"conv 3x3/2 128, 56x56", "resnet50", 1, build_conv3s2, "8 128 56 56 g; 128 128 3 3 g", CONV(2, 1)},
    {"conv 3x3 128, 28x28", "resnet50", 3, build_conv3, "8 128 28 28 g; 128 128 3 3 g", CONV(1, 1)},
    {"conv 1x1 128 to 512, 28x28", "resnet50", 4, build_conv1, "8 128 28 28 g; 512 128 1 1 g", CONV(1, 0)},
    {"conv 3x3 256, 14x14", "resnet50", 5, build_conv3, "8 256 14 14 g; 256 256 3 3 g", CONV(1, 1)},
    {"conv 1x1 1024 to 256, 14x14", "resnet50", 5, build_conv1, "8 1024 14 14 g; 256 1024 1 1 g", CONV(1, 0)},
    {"conv 3x3 512, 7x7", "resnet50", 2, build_conv3, "8 512 7 7 g; 512 512 3 3 g", CONV(1, 1)},

    {"sum of rows 1024x3072", "fold", 1, build_sum_rows, "1024 3072 g", "torch.sum(a, -1)"},
    {"sum of columns 1024x3072", "fold", 1, build_sum_columns, "1024 3072 g", "torch.sum(a, 0)"},
    {"sum of rows 100000x3", "fold", 1, build_sum_rows, "100000 3 g", "torch.sum(a, -1)"},
    {"amax of rows 1024x3072", "fold", 1, build_amax_rows, "1024 3072 g", "torch.amax(a, -1)"},
    {"var of rows 1024x3072", "fold", 1, build_var_rows, "1024 3072 g", "torch.var(a, -1)"},

    {"mlp 6x1024, batch 128", "mlp", 1, build_mlp, "128 1024 f; 1024 1024 g; 1024 g; 1024 1024 g; 1024 g; 1024 1024 g; "
     "1024 g; 1024 1024 g; 1024 g; 1024 1024 g; 1024 g; 1024 1024 g; 1024 g", "mlp(*args)"},
};
/* clang-format on */
enum { NUM_CASES = sizeof(cases) / sizeof(cases[0]), MAX_TENSORS = 16, MAX_ELEMENTS = 1 << 25 };

/* ---- inputs ---- */

static void die(const char *what) {
    fprintf(stderr, "bench_ops: %s: %s\n", what, cairn_last_error());
    exit(1);
}

static void need(cairn_status st, const char *what) {
    if (st != CAIRN_OK) die(what);
}

/* Between -1/2 and 1/2. */
static float value_of(uint32_t input, size_t i) {
    const uint32_t bits = ((uint32_t)i + 1) * 2654435761u + input * 40503u * 65537u;
    return (float)(bits >> 8) * 0x1p-24f - 0.5f;
}

struct input {
    char kind; /* as in bench_case */
    int ndim;
    int64_t shape[CAIRN_MAX_DIMS];
    int64_t classes;
    cairn_tensor *tensor;
    struct cairn__param *param; /* if it requires a gradient */
};

struct run {
    cairn_env *env;
    const struct bench_case *c;
    struct cairn_param_set *set, *wide; /* parameters of the type under test; of f32 */
    int count;
    struct input in[MAX_TENSORS];
    cairn_tensor *dy;
};

static size_t numel(const struct input *in) {
    size_t n = 1;
    for (int d = 0; d < in->ndim; d++) n *= (size_t)in->shape[d];
    return n;
}

static const char *parse(const char *text, struct input *in) {
    char *end = NULL;
    *in = (struct input){.kind = 0};
    while (*text == ' ' || *text == ';') text++;
    for (;; text = end) {
        while (*text == ' ') text++;
        const int64_t size = strtoll(text, &end, 10);
        if (end == text) break;
        in->shape[in->ndim++] = size;
    }
    in->kind = *text++;
    if (in->kind != 'i') return text;
    in->classes = strtoll(text, &end, 10);
    return end;
}

static void add_param(struct run *r, struct cairn_param_set *set, int k) {
    struct input *in = &r->in[k];
    char name[16];
    snprintf(name, sizeof(name), "in%d", k);
    need(cairn__param_set_add(set, name, in->ndim, in->shape, false, &in->param), "parameter");
    float *x = in->param->data;
    const float scale = in->ndim == 1 ? 1.0f : 2.0f / sqrtf((float)in->shape[in->ndim - 1]);
    const bool is_weight = k > 0 && in->kind == 'g';
    for (size_t i = 0; i < in->param->n; i++)
        x[i] =
            in->kind == 'n' ? 1.0f + value_of((uint32_t)k, i) : value_of((uint32_t)k, i) * (is_weight ? scale : 2.0f);
}

static cairn_tensor *leaf(cairn_env *env, const struct input *in, uint32_t k, cairn_dtype dtype) {
    const size_t n = numel(in);
    float *x = malloc((n + 1) * sizeof(float));
    if (!x) die("memory");
    for (size_t i = 0; i < n; i++) x[i] = in->kind == 's' ? 1.0f : value_of(k, i) * 2.0f;
    cairn_tensor *wide = cairn_tensor_from(env, CAIRN_F32, in->ndim, in->shape, x);
    cairn_tensor *t = dtype == CAIRN_F32 ? wide : cairn_tensor_keep(cairn_cast(wide, dtype));
    free(x);
    if (!t) die("leaf");
    return t;
}

static cairn_tensor *classes(cairn_env *env, const struct input *in) {
    const size_t n = numel(in);
    int64_t *x = malloc((n + 1) * sizeof(int64_t));
    if (!x) die("memory");
    for (size_t i = 0; i < n; i++) x[i] = (int64_t)((uint64_t)i * 7919u % (uint64_t)in->classes);
    cairn_tensor *t = cairn_tensor_from(env, CAIRN_I64, in->ndim, in->shape, x);
    free(x);
    if (!t) die("classes");
    return t;
}

static void set_up(struct run *r, cairn_dtype dtype) {
    need(cairn__param_set_new(r->env, &r->set), "set");
    need(cairn__param_set_new(r->env, &r->wide), "set");
    for (const char *text = r->c->inputs; *text && r->count < MAX_TENSORS;) text = parse(text, &r->in[r->count++]);
    for (int k = 0; k < r->count; k++) {
        struct input *in = &r->in[k];
        if (in->kind == 'g') add_param(r, r->set, k);
        if (in->kind == 'n') add_param(r, r->wide, k);
        if (in->kind == 'f' || in->kind == 's')
            in->tensor = leaf(r->env, in, (uint32_t)k, in->kind == 's' ? CAIRN_F32 : dtype);
        if (in->kind == 'i') in->tensor = classes(r->env, in);
    }
    if (dtype != CAIRN_F32) need(cairn__param_set_to_half(r->set, dtype, false, false), "half");
    for (int k = 0; k < r->count; k++) {
        if (r->in[k].param) need(cairn__tensor_of_param(r->in[k].param, &r->in[k].tensor), "handle");
    }
}

static void tear_down(struct run *r) {
    for (int k = 0; k < r->count; k++) {
        if (r->in[k].param) cairn__tensor_of_param_destroy(&r->in[k].tensor);
        else cairn_tensor_destroy(&r->in[k].tensor);
    }
    cairn_tensor_destroy(&r->dy);
    cairn_param_set_destroy(&r->set);
    cairn_param_set_destroy(&r->wide);
}

/* ---- running ---- */

static cairn_tensor *build(struct run *r) {
    cairn_tensor *in[MAX_TENSORS];
    for (int k = 0; k < r->count; k++) in[k] = r->in[k].tensor;
    cairn__param_set_zero_grad(r->set);
    cairn__param_set_zero_grad(r->wide);
    cairn_tensor *y = r->c->build(in);
    if (!y) die(r->c->name);
    return y;
}

static void backward(struct run *r, cairn_tensor *y) {
    if (r->dy) need(cairn_backward_with(y, cairn_backward_options(.grad = r->dy)), r->c->name);
    else need(cairn_backward(y), r->c->name);
}

/* Sum of absolute values, since signed terms could cancel and hide a wrong element. */
static double sum_of(const float *x, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += fabs((double)x[i]);
    return sum;
}

static void print_sums(struct run *r, cairn_tensor *y) {
    static float values[MAX_ELEMENTS];
    const size_t n = cairn_tensor_numel(y);
    need(n <= MAX_ELEMENTS ? cairn_tensor_read(y, values, n) : CAIRN_ENOMEM, "result");
    printf("sum %.9g\n", sum_of(values, n));
    for (int k = 0; k < r->count; k++) {
        const struct cairn__param *p = r->in[k].param;
        if (!p) continue;
        need(p->n <= MAX_ELEMENTS && cairn__grad_memory(p->gradient) ? CAIRN_OK : CAIRN_ENOMEM, "gradient");
        cairn__pass_cast(r->env->device->passes, r->env->device, values, CAIRN_F32, cairn__grad_memory(p->gradient),
                         p->dtype, p->n);
        printf("sum %.9g\n", sum_of(values, p->n));
    }
}

/* Processor time, which does not include other programs. */
static double cpu_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static void run_case(cairn_env *env, const struct bench_case *c, cairn_dtype dtype, int times) {
    struct run r = {.env = env, .c = c};
    set_up(&r, dtype);
    cairn_tensor *y = build(&r);
    if (cairn_tensor_numel(y) > 1) {
        struct input like = {.kind = 'f', .ndim = cairn_tensor_ndim(y)};
        for (int d = 0; d < like.ndim; d++) like.shape[d] = cairn_tensor_size(y, d);
        r.dy = leaf(env, &like, 99, cairn_tensor_dtype(y));
    }
    for (int i = 0; i < times + 2; i++) {
        const double begin = cpu_us();
        y = build(&r);
        backward(&r, y);
        if (i >= 2) printf("us %.2f\n", cpu_us() - begin);
    }
    print_sums(&r, y);
    tear_down(&r);
}

static const struct bench_case *find(const char *name) {
    for (int i = 0; i < NUM_CASES; i++) {
        if (strcmp(cases[i].name, name) == 0) return &cases[i];
    }
    return NULL;
}

static void list(void) {
    for (int i = 0; i < NUM_CASES; i++) {
        const struct bench_case *c = &cases[i];
        printf("%s | %s | %d | %s | %s\n", c->name, c->net, c->count, c->inputs, c->torch);
    }
}

/* Reads a line of /proc/self/status, in KiB. */
static long status_kib(const char *name) {
    FILE *f = fopen("/proc/self/status", "r");
    char line[128];
    long kib = -1;
    while (f && fgets(line, sizeof(line), f)) {
        if (strncmp(line, name, strlen(name)) == 0) kib = strtol(line + strlen(name), NULL, 10);
    }
    if (f) fclose(f);
    return kib;
}

/* Resets the peak to the current memory use. */
static void forget_peak(void) {
    FILE *f = fopen("/proc/self/clear_refs", "w");
    if (!f || fputs("5", f) == EOF) die("clear_refs");
    fclose(f);
}

/* Prints by how much training steps raise the peak of a process that holds weights and inputs. */
static void print_memory(cairn_env *env, cairn_dtype dtype) {
    enum { STEPS = 3 };
    struct run r = {.env = env, .c = find("mlp 6x1024, batch 128")};
    cairn_optimizer *adamw = NULL;
    set_up(&r, dtype);
    const long before = status_kib("VmRSS:");
    forget_peak();
    need(cairn_adamw_create(r.set, NULL, &adamw), "AdamW"); /* measured: PyTorch creates state in its first step */
    for (int i = 0; i < STEPS; i++) {
        need(cairn_backward(cairn_mean(build(&r))), "backward");
        need(cairn_step(adamw), "step");
    }
    printf("kib %ld\n", status_kib("VmHWM:") - before);
    cairn_optimizer_destroy(&adamw);
    tear_down(&r);
}

static cairn_dtype type_of(const char *name) {
    return strcmp(name, "bf16") == 0 ? CAIRN_BF16 : strcmp(name, "f16") == 0 ? CAIRN_F16 : CAIRN_F32;
}

static void answer(cairn_env *env, char *line) {
    char *name = strtok(line, "\t\n"), *what = NULL;
    if (!name) return;
    if (strcmp(name, "list") == 0) list();
    if (strcmp(name, "memory") == 0) {
        what = strtok(NULL, "\t\n");
        print_memory(env, type_of(what ? what : ""));
    }
    if (strcmp(name, "run") == 0) {
        name = strtok(NULL, "\t\n");
        what = strtok(NULL, "\t\n");
        const char *times = strtok(NULL, "\t\n");
        const struct bench_case *c = name ? find(name) : NULL;
        if (!c || !what || !times) die("a line that is none");
        run_case(env, c, type_of(what), atoi(times));
    }
    printf("end\n");
    fflush(stdout);
}

int main(int argc, char **argv) {
    cairn_env *env = NULL;
    char line[256];
    need(cairn_env_create(&argc, &argv, NULL, &env), "environment");
    while (fgets(line, sizeof(line), stdin)) answer(env, line);
    cairn_env_destroy(&env);
    return 0;
}
