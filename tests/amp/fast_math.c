/* A user's program compiled with -Ofast: its start-up code sets flush-to-zero, and its isinf is always false.
 * fast_math.py compares its output with that of the same program built without -Ofast. Infinities are made, and bits
 * printed, as integers. Exits with 1 if an overflow was missed or a clean step was skipped. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../check.h"
#include <cairn/cairn.h>

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

enum { ROWS = 16, INPUTS = 24, HIDDEN = 600, OUTPUTS = 4, STEPS = 10, INF = 0x7f800000, A_NAN = 0x7fc00001 };

static void give_up(const char *what, const char *why) {
    fprintf(stderr, "%s: %s\n", what, why);
    exit(1);
}

static uint32_t bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

static float float_of(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

static int warnings; /* of flushed subnormals */

static void quiet(void *cookie, cairn_log_level level, const char *message) {
    (void)cookie;
    warnings += level == CAIRN_LOG_WARNING && strstr(message, "-ffast-math") != NULL;
}

struct level {
    const char *name;
    amp_opt_level level;
    cairn_dtype half;
};
static const struct level levels[] = {{"O0", AMP_O0, CAIRN_F16},       {"O1 f16", AMP_O1, CAIRN_F16},
                                      {"O1 bf16", AMP_O1, CAIRN_BF16}, {"O2 f16", AMP_O2, CAIRN_F16},
                                      {"O2 bf16", AMP_O2, CAIRN_BF16}, {"O3 f16", AMP_O3, CAIRN_F16},
                                      {"O3 bf16", AMP_O3, CAIRN_BF16}};

/* ---- models of Cairn's ---- */

struct trainer {
    cairn_env *env;
    cairn_module *model;
    cairn_optimizer *sgd;
    amp_context *amp;
    cairn_tensor *x, *y;
    uint32_t batch[ROWS * INPUTS]; /* the bits of x */
};

static void begin(struct trainer *t, const struct level *level) {
    struct cairn_sgd_options hyper = CAIRN_SGD_OPTIONS_INIT;
    hyper.lr = 0.0625;
    hyper.momentum = 0.5;
    MUST_OK(cairn_env_create(NULL, NULL, cairn_env_options(.seed = 7), &t->env));
    t->x = cairn_randn(t->env, CAIRN_F32, CAIRN_SHAPE(ROWS, INPUTS));
    t->y = cairn_randn(t->env, CAIRN_F32, CAIRN_SHAPE(ROWS, OUTPUTS));
    MUST_OK(cairn_tensor_read_as(t->x, CAIRN_F32, t->batch, ROWS * INPUTS));
    t->model = cairn_sequential(t->env, CAIRN_MODULES(cairn_linear(t->env, INPUTS, HIDDEN),
                                                      cairn_activation(t->env, cairn_relu),
                                                      cairn_linear(t->env, HIDDEN, OUTPUTS)));
    MUST_OK(cairn_sgd_create(cairn_module_params(t->model), &hyper, &t->sgd));
    MUST_OK(amp_initialize(t->env, t->model, t->sgd,
                           amp_options(.opt_level = level->level, .half_type = level->half, .verbosity = -1,
                                       .loss_scale = AMP_DYNAMIC, .scaler = amp_scaler_options(.init_scale = 128)),
                           &t->amp));
}

static void end(struct trainer *t) {
    amp_destroy(&t->amp);
    cairn_optimizer_destroy(&t->sgd);
    cairn_module_destroy(&t->model);
    cairn_tensor_destroy(&t->x);
    cairn_tensor_destroy(&t->y);
    cairn_env_destroy(&t->env);
}

/* What comes with the batch: nothing, or one bad number. */
static uint32_t bad_number_of(int step) {
    return step == 2 ? INF : step == 5 ? A_NAN : step == 8 ? INF | 1u << 31 : 0;
}

static void train(struct trainer *t, int step) {
    const uint32_t bad = bad_number_of(step), was = t->batch[31 * (size_t)step];
    if (bad) t->batch[31 * (size_t)step] = bad;
    MUST_OK(cairn_tensor_write(t->x, t->batch, ROWS * INPUTS));
    t->batch[31 * (size_t)step] = was;
    cairn_zero_grad(t->sgd);
    cairn_tensor *loss = cairn_mse_loss(cairn_module_forward(t->model, t->x), t->y);
    MUST_OK(amp_backward(t->amp, loss, t->sgd));
    if (step % 2) MUST_OK(cairn_clip_grad_norm(t->sgd, 0.25, NULL));
    MUST_OK(cairn_step(t->sgd));
    if (cairn_optimizer_step_skipped(t->sgd) != (bad != 0))
        give_up("step", bad ? "overflow was not found" : "was left out");
    if (!bad) printf(" %08x", (unsigned)bits_of(cairn_tensor_item(loss)));
}

/* FNV-1a */
static uint64_t hash(uint64_t h, const void *data, size_t nbytes) {
    for (size_t i = 0; i < nbytes; i++) h = (h ^ ((const unsigned char *)data)[i]) * UINT64_C(0x100000001b3);
    return h;
}

static void print_weights(struct trainer *t) {
    cairn_param_set *set = cairn_module_params(t->model);
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < cairn_param_set_count(set); i++) {
        cairn_param p;
        size_t n = 1;
        MUST_OK(cairn_param_set_get(set, i, &p));
        for (int d = 0; d < p.ndim; d++) n *= (size_t)p.shape[d];
        h = hash(h, p.data, n * (p.dtype == CAIRN_F32 ? 4 : 2));
        if (cairn_param_master(set, i)) h = hash(h, cairn_param_master(set, i), n * sizeof(float));
    }
    printf(" weights %016llx scale %.0f\n", (unsigned long long)h, amp_next_scale(t->amp));
}

static void models_of_cairn(void) {
    for (size_t l = 0; l < sizeof(levels) / sizeof(levels[0]); l++) {
        struct trainer t;
        begin(&t, &levels[l]);
        printf("%s", levels[l].name);
        for (int step = 0; step < STEPS; step++) train(&t, step);
        print_weights(&t);
        end(&t);
    }
}

/* ---- subnormal numbers ---- */

enum { MANY = 1 << 18, SIDE = 256 };

static void print_bits(const char *what, cairn_tensor *t) {
    static uint32_t bits[MANY];
    const size_t n = (size_t)cairn_tensor_numel(t);
    MUST_OK(cairn_tensor_read_as(t, CAIRN_F32, bits, n));
    printf("%s %016llx\n", what, (unsigned long long)hash(UINT64_C(0xcbf29ce484222325), bits, n * sizeof(bits[0])));
}

/* Large enough for several threads, and for oneDNN's own. */
static void subnormals(void) {
    static uint16_t halves[MANY];
    static uint32_t floats[MANY];
    cairn_env *env = NULL;
    MUST_OK(cairn_env_create(NULL, NULL, NULL, &env));
    for (int i = 0; i < MANY; i++) halves[i] = (uint16_t)(i % 0x400), floats[i] = (uint32_t)i * 31;
    cairn_tensor *f16 = cairn_tensor_from(env, CAIRN_F16, CAIRN_SHAPE(MANY), halves);
    cairn_tensor *bf16 = cairn_tensor_from(env, CAIRN_BF16, CAIRN_SHAPE(MANY), halves);
    cairn_tensor *f32 = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(MANY), floats);
    print_bits("f16 to f32", cairn_cast(f16, CAIRN_F32));
    print_bits("bf16 to f32", cairn_cast(bf16, CAIRN_F32));
    print_bits("f32 to bf16", cairn_cast(f32, CAIRN_BF16));
    print_bits("f16 summed", cairn_sum(f16));
    print_bits("bf16 summed", cairn_sum(cairn_cast(bf16, CAIRN_F32)));
    print_bits("f32 summed", cairn_sum(f32));
    print_bits("f32 divided", cairn_mul_scalar(f32, 0.125));
    cairn_tensor *square = cairn_reshape(cairn_slice(f32, 0, 0, SIDE * SIDE, 1), CAIRN_SHAPE(SIDE, SIDE));
    cairn_tensor *ones = cairn_full(env, CAIRN_F32, CAIRN_SHAPE(SIDE, SIDE), 1);
    print_bits("f32 multiplied", cairn_matmul(square, ones));
    cairn_env_destroy(&env);
}

/* ---- buffers of the user's own ---- */

enum { N = 5000 };

/* One bad number among small ones, at every 97th place: an infinity, a NaN, and what is infinite in f16 alone. */
static void own_buffers(const struct level *level) {
    static float w[N], grad[N];
    cairn_param param = {.name = "w", .data = w, .grad = grad, .dtype = CAIRN_F32, .ndim = 1, .shape = {N}};
    const float bad[] = {float_of(INF), float_of(A_NAN), 70000};
    cairn_env *env = NULL;
    cairn_param_set *set = NULL;
    cairn_optimizer *sgd = NULL;
    amp_context *amp = NULL;
    int skipped = 0;
    for (int i = 0; i < N; i++) w[i] = (float)(i % 13);
    MUST_OK(cairn_env_create(NULL, NULL, NULL, &env));
    MUST_OK(cairn_param_set_create(env, &param, 1, &set));
    MUST_OK(cairn_sgd_create(set, NULL, &sgd));
    MUST_OK(amp_initialize_params(env, set, sgd,
                                  amp_options(.opt_level = level->level, .half_type = level->half, .loss_scale = 64,
                                              .verbosity = -1),
                                  &amp));
    for (int at = 0; at < N; at += 97) {
        const int kind = at / 97 % 3;
        const int must = kind < 2 || (level->half == CAIRN_F16 && level->level >= AMP_O2);
        for (int i = 0; i < N; i++) grad[i] = (float)(i % 7 - 3);
        grad[at] = bad[kind];
        cairn_zero_grad(sgd);
        MUST_OK(cairn_grads_ready(set, 0, 1));
        MUST_OK(cairn_step(sgd));
        if (cairn_optimizer_step_skipped(sgd) != must) give_up(level->name, "an own buffer's overflow was not found");
        skipped += must;
    }
    printf("own buffers %s skipped %d weights %016llx\n", level->name, skipped,
           (unsigned long long)hash(UINT64_C(0xcbf29ce484222325), w, sizeof(w)));
    amp_destroy(&amp);
    cairn_optimizer_destroy(&sgd);
    cairn_param_set_destroy(&set);
    cairn_env_destroy(&env);
}

int main(void) {
    volatile float infinity = float_of(INF);
#if defined(__SSE2__)
    fprintf(stderr, "flushes %d\n", (_mm_getcsr() & 0x8040) == 0x8040);
#endif
    fprintf(stderr, "isinf %d\n", isinf(infinity) != 0);
    cairn_set_log(quiet, NULL);
    for (int threads = 1; threads <= 3; threads += 2) {
        MUST_OK(cairn_set_num_threads(threads));
        subnormals();
        models_of_cairn();
        for (size_t l = 0; l < sizeof(levels) / sizeof(levels[0]); l++) own_buffers(&levels[l]);
    }
    fprintf(stderr, "warnings %d\n", warnings);
    return 0;
}
