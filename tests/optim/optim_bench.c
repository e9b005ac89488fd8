/* The worker of `tools/cairn-bench optim`: takes steps of an optimizer over parameters of one type, and times loops
 * that read and write the same arrays and compute nothing. It answers lines on stdin; each reply ends with "end":
 *
 *     list                                  a line an optimizer: name | its twin in PyTorch
 *     start NAME TYPE N TENSORS STEPS       TYPE: of weights and gradients; halves have f32 masters. "bytes N" that an
 *                                           update of a parameter reads and writes; the hash of all weights after STEPS
 *                                           steps; "w X" for each of some f32 weights, evenly spaced
 *     step                                  "us N", processor time
 *     pass                                  "us N" for each loop
 *
 * Weights and gradients are value(k, i); the driver gives PyTorch the same values. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../bench.h"
#include "../kernels/kcheck.h"
#include "cairn/cairn.h"
#include "core/hash.h"
#include "optim/optim.h"
#include "param/param.h"

enum { MOST_TENSORS = 1000, SHOWN = 1000, STREAMS = 3 + CAIRN__MAX_STATES };

struct entry;

/* Without a model. */
static struct training {
    cairn_env *env;
    cairn_param_set *set;
    cairn_optimizer *optimizer;
    const struct entry *of;
    struct cairn__param *params[MOST_TENSORS];
    int tensors;
    size_t n; /* of all tensors together */
} training;

/* ---- what a step reads and writes ---- */

/* A pass's, of one parameter. */
struct streams {
    int count;
    struct limit_stream of[STREAMS];
};

static void add(struct streams *s, enum role role, size_t width, const void *x) {
    if (x) s->of[s->count++] = (struct limit_stream){role, width, (unsigned char *)(uintptr_t)x};
}

static void add_gradient(struct streams *s, int t) {
    const struct cairn__param *p = training.params[t];
    add(s, READ, cairn_dtype_nbytes(p->dtype), cairn__grad_memory(p->gradient));
}

static void add_weights(struct streams *s, int t) {
    const struct cairn__optim_item *item = &training.optimizer->arrays.items[t];
    add(s, UPDATED, sizeof(float), item->weights);
    add(s, WRITTEN, cairn_dtype_nbytes(training.params[t]->dtype), item->half);
}

static void of_one_pass(int t, int pass, struct streams *s) {
    const struct cairn__optim_item *item = &training.optimizer->arrays.items[t];
    if (pass > 0) return;
    add_gradient(s, t);
    add_weights(s, t);
    for (int i = 0; i < CAIRN__MAX_STATES; i++) add(s, UPDATED, sizeof(float), item->state[i]);
}

/* Moments and the direction, whose norm the update goes by; then the update. */
static void of_lamb(int t, int pass, struct streams *s) {
    const struct cairn__optim_item *item = &training.optimizer->arrays.items[t];
    if (pass == 0) {
        add_gradient(s, t);
        add(s, READ, sizeof(float), item->weights);
        for (int i = 0; i < 2; i++) add(s, UPDATED, sizeof(float), item->state[i]);
        add(s, WRITTEN, sizeof(float), item->state[2]);
    } else if (pass == 1) {
        add(s, READ, sizeof(float), item->state[2]);
        add_weights(s, t);
    }
}

/* The norm of gradients; then the update, whose other state is one number. */
static void of_novograd(int t, int pass, struct streams *s) {
    if (pass > 1) return;
    add_gradient(s, t);
    if (pass == 0) return;
    add_weights(s, t);
    add(s, UPDATED, sizeof(float), training.optimizer->arrays.items[t].state[0]);
}

/* Norms of gradients and weights; then the update. */
static void of_larc(int t, int pass, struct streams *s) {
    if (pass > 0) {
        of_one_pass(t, pass - 1, s);
        return;
    }
    add_gradient(s, t);
    add(s, READ, sizeof(float), training.optimizer->arrays.items[t].weights);
}

/* ---- optimizers ---- */

static cairn_status create_sgd(cairn_param_set *set, cairn_optimizer **out) {
    return cairn_sgd_create(set, NULL, out);
}

static cairn_status create_momentum(cairn_param_set *set, cairn_optimizer **out) {
    struct cairn_sgd_options h = CAIRN_SGD_OPTIONS_INIT;
    h.momentum = 0.9;
    return cairn_sgd_create(set, &h, out);
}

static cairn_status create_adam(cairn_param_set *set, cairn_optimizer **out) {
    return cairn_adam_create(set, NULL, out);
}

static cairn_status create_adamw(cairn_param_set *set, cairn_optimizer **out) {
    return cairn_adamw_create(set, NULL, out);
}

static cairn_status create_amsgrad(cairn_param_set *set, cairn_optimizer **out) {
    struct cairn_adam_options h = CAIRN_ADAMW_OPTIONS_INIT;
    h.amsgrad = CAIRN_ON;
    return cairn_adamw_create(set, &h, out);
}

static cairn_status create_lion(cairn_param_set *set, cairn_optimizer **out) {
    return cairn_lion_create(set, NULL, out);
}

static cairn_status create_adagrad(cairn_param_set *set, cairn_optimizer **out) {
    return cairn_adagrad_create(set, NULL, out);
}

/* AdamW's bits, by a loop that the compiler vectorises. */
static void update_own(void *ctx, const struct cairn_custom_update *u) {
    const double lr = u->scalars->lr, beta1 = u->scalars->momentum, beta2 = 0.999;
    const double c1 = 1.0 - cairn__power(beta1, u->scalars->update), c2 = 1.0 - cairn__power(beta2, u->scalars->update);
    const float step = (float)(lr / c1), root = (float)(1.0 / sqrt(c2)), decay = (float)(lr * 1e-2);
    const float keep1 = (float)beta1, add1 = (float)(1.0 - beta1), keep2 = (float)beta2, add2 = (float)(1.0 - beta2);
    float *restrict w = u->weights, *restrict m = u->states[0], *restrict v = u->states[1];
    const float *restrict grad = u->grad;
    (void)ctx;
    for (size_t i = 0; i < u->n; i++) {
        m[i] = keep1 * m[i] + add1 * grad[i];
        v[i] = keep2 * v[i] + add2 * (grad[i] * grad[i]);
        w[i] = w[i] - (step * (m[i] / (sqrtf(v[i]) * root + 1e-8f)) + decay * w[i]);
    }
}

static cairn_status create_own(cairn_param_set *set, cairn_optimizer **out) {
    static const struct cairn_custom_optimizer kind = {
        .struct_size = sizeof(kind), .name = "own", .update = update_own, .states = {"m", "v"}, .momentum = "beta1"};
    struct cairn_custom_options h = CAIRN_CUSTOM_OPTIONS_INIT;
    h.momentum = 0.9;
    return cairn_custom_optimizer_create(set, &kind, &h, out);
}

/* Its two passes alone, without the read of the gradients that clips them. */
static cairn_status create_lamb(cairn_param_set *set, cairn_optimizer **out) {
    struct cairn_lamb_options h = CAIRN_LAMB_OPTIONS_INIT;
    h.max_grad_norm = 0;
    return cairn_lamb_create(set, &h, out);
}

static cairn_status create_novograd(cairn_param_set *set, cairn_optimizer **out) {
    return cairn_novograd_create(set, NULL, out);
}

static cairn_status create_larc(cairn_param_set *set, cairn_optimizer **out) {
    const struct cairn_larc_options h = CAIRN_LARC_OPTIONS_INIT;
    const cairn_status st = create_momentum(set, out);
    return st == CAIRN_OK ? cairn_optimizer_set_larc(*out, &h) : st;
}

static const struct entry {
    const char *name;
    cairn_status (*create)(cairn_param_set *set, cairn_optimizer **out);
    /* Of pass 0 and on of parameter t; none behind the last. */
    void (*streams)(int t, int pass, struct streams *out);
    const char *torch; /* over the tensors p; "-": it has none */
} entries[] = {
    {"SGD", create_sgd, of_one_pass, "torch.optim.SGD(p, lr=1e-3, fused=True)"},
    {"SGD with momentum", create_momentum, of_one_pass, "torch.optim.SGD(p, lr=1e-3, momentum=0.9, fused=True)"},
    {"Adam", create_adam, of_one_pass, "torch.optim.Adam(p, fused=True)"},
    {"AdamW", create_adamw, of_one_pass, "torch.optim.AdamW(p, fused=True)"},
    {"AdamW with amsgrad", create_amsgrad, of_one_pass, "torch.optim.AdamW(p, amsgrad=True, fused=True)"},
    {"Lion", create_lion, of_one_pass, "-"},
    {"Adagrad", create_adagrad, of_one_pass, "torch.optim.Adagrad(p, fused=True)"},
    {"LAMB", create_lamb, of_lamb, "-"},
    {"NovoGrad", create_novograd, of_novograd, "-"},
    {"LARC on momentum", create_larc, of_larc, "-"},
    {"own AdamW", create_own, of_one_pass, "torch.optim.AdamW(p, fused=True)"},
};
enum { ENTRIES = sizeof(entries) / sizeof(entries[0]) };

/* ---- weights and gradients ---- */

/* In [-0.5, 0.5). */
static float value(uint32_t k, size_t i) {
    const uint32_t bits = ((uint32_t)i + 1) * 2654435761u + k * 40503u * 65537u;
    return (float)(bits >> 8) * 0x1p-24f - 0.5f;
}

static void write_gradient(struct cairn__param *p, size_t begin) {
    void *slot = NULL;
    const struct cairn__dtype *type = cairn__dtype(p->dtype);
    done(cairn__grad_begin_write(p->gradient, &slot));
    for (size_t i = 0; i < p->n; i++) type->from_f32((char *)slot + i * type->nbytes, value(1, begin + i));
    cairn__param_grad_ready(p);
}

/* The gradients of the last step are still there. */
static void write_gradients_again(void) {
    void *slot = NULL;
    cairn_zero_grad(training.optimizer);
    for (int t = 0; t < training.tensors; t++) {
        done(cairn__grad_begin_write(training.params[t]->gradient, &slot));
        cairn__param_grad_ready(training.params[t]);
    }
}

static void make_params(cairn_dtype type) {
    const size_t each = training.n / (size_t)training.tensors;
    char name[24];
    done(cairn__param_set_new(training.env, &training.set));
    for (int t = 0; t < training.tensors; t++) {
        snprintf(name, sizeof(name), "tensor%d", t);
        done(cairn__param_set_add(training.set, name, 1, (int64_t[]){(int64_t)each}, false, &training.params[t]));
        float *w = training.params[t]->data;
        for (size_t i = 0; i < each; i++) w[i] = value(0, (size_t)t * each + i);
    }
    if (type != CAIRN_F32) done(cairn__param_set_to_half(training.set, type, true, false));
    for (int t = 0; t < training.tensors; t++) write_gradient(training.params[t], (size_t)t * each);
}

static void tear_down(void) {
    cairn_optimizer_destroy(&training.optimizer);
    cairn_param_set_destroy(&training.set);
}

/* ---- what came of it ---- */

static uint64_t hash(uint64_t h, const void *x, size_t nbytes) {
    for (size_t i = 0; i + 8 <= nbytes; i += 8) {
        uint64_t word;
        memcpy(&word, (const char *)x + i, sizeof(word));
        h = cairn__hash_word(h, word);
        h ^= h >> 29; /* high bits, of which products alone make no low ones */
    }
    return h;
}

static const float *f32_of(const struct cairn__param *p) {
    return p->master ? p->master : p->data;
}

static void print_weights(void) {
    uint64_t h = CAIRN__HASH_START;
    for (int t = 0; t < training.tensors; t++) {
        const struct cairn__param *p = training.params[t];
        h = hash(h, f32_of(p), p->n * sizeof(float));
        if (p->master) h = hash(h, p->data, p->n * cairn_dtype_nbytes(p->dtype));
    }
    printf("hash %016" PRIx64 "\n", h);
    const size_t each = training.n / (size_t)training.tensors;
    for (size_t k = 0; k < SHOWN; k++) {
        const size_t i = k * training.n / SHOWN;
        printf("w %.9g\n", (double)f32_of(training.params[i / each])[i % each]);
    }
}

/* ---- the loops ---- */

static bool find_streams(int t, int pass, struct streams *out) {
    out->count = 0;
    training.of->streams(t, pass, out);
    return out->count > 0;
}

static size_t bytes_a_parameter(void) {
    struct streams streams;
    size_t nbytes = 0;
    for (int pass = 0; find_streams(0, pass, &streams); pass++) {
        for (int i = 0; i < streams.count; i++) nbytes += streams.of[i].width * (streams.of[i].role == UPDATED ? 2 : 1);
    }
    return nbytes;
}

static limit_fn best_limit(void) {
#if defined(__x86_64__)
    if (cairn__cpu_detect() & CAIRN__CPU_AVX512) return limit_avx512;
    if (cairn__cpu_detect() & CAIRN__CPU_AVX2) return limit_avx2;
#endif
    return limit_generic;
}

static void pass_over_all(int nontemporal, size_t elements) {
    struct streams s;
    for (int pass = 0; find_streams(0, pass, &s); pass++) {
        for (int t = 0; t < training.tensors && find_streams(t, pass, &s); t++)
            best_limit()(s.of, s.count, training.params[t]->n, nontemporal, elements);
    }
}

/* ---- lines ---- */

static double cpu_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static double time_step(void) {
    write_gradients_again();
    const double begin = cpu_us();
    done(cairn_step(training.optimizer));
    return cpu_us() - begin;
}

static void print_passes(void) {
    for (int nontemporal = 0; nontemporal < 3; nontemporal++) {
        for (size_t elements = 64; elements <= 512; elements *= 8) {
            const double begin = cpu_us();
            pass_over_all(nontemporal, elements);
            printf("us %.2f\n", cpu_us() - begin);
        }
    }
}

static cairn_dtype type_of(const char *name) {
    return strcmp(name, "bf16") == 0 ? CAIRN_BF16 : strcmp(name, "f16") == 0 ? CAIRN_F16 : CAIRN_F32;
}

static void start(char *options) {
    char name[32], type[8];
    int steps = 0;
    const struct entry *e = entries;
    tear_down();
    require(sscanf(options, "%31[^\t] %7s %zu %d %d", name, type, &training.n, &training.tensors, &steps) == 5 &&
                training.tensors > 0 && training.tensors <= MOST_TENSORS &&
                training.n % (size_t)training.tensors == 0 && training.n >= SHOWN,
            "start takes NAME TYPE N TENSORS STEPS, N a multiple of TENSORS");
    while (e < entries + ENTRIES && strcmp(e->name, name) != 0) e++;
    require(e < entries + ENTRIES, "there is no such optimizer");
    make_params(type_of(type));
    training.of = e;
    done(e->create(training.set, &training.optimizer));
    for (int s = 0; s < steps; s++) (void)time_step();
    printf("bytes %zu\n", bytes_a_parameter());
    print_weights();
}

static void answer(char *line) {
    char *what = strtok(line, "\t\n"), *rest = strtok(NULL, "\n");
    if (what && strcmp(what, "list") == 0) {
        for (int i = 0; i < ENTRIES; i++) printf("%s | %s\n", entries[i].name, entries[i].torch);
    }
    if (what && strcmp(what, "start") == 0) start(rest ? rest : "");
    if (what && strcmp(what, "step") == 0) printf("us %.2f\n", time_step());
    if (what && strcmp(what, "pass") == 0) print_passes();
    printf("end\n");
    fflush(stdout);
}

int main(int argc, char **argv) {
    char line[256];
    done(cairn_env_create(&argc, &argv, NULL, &training.env));
    while (fgets(line, sizeof(line), stdin)) answer(line);
    tear_down();
    cairn_env_destroy(&training.env);
    return 0;
}
