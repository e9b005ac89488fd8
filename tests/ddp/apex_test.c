/* apex's own tests of data-parallel training: gradients that are read before they are complete, or overwritten before
 * they are sent, and masters that diverge from their weights.
 *
 * Source: apex at 25.04, tests/distributed/DDP/ddp_race_condition_test.py and tests/distributed/amp_master_params, with
 * the same models and structure, for any number of ranks, but exact instead of within a tolerance. */
#include "../mlp.h"
#include "../on_gpu.h"
#include "../ranks.h"
#include "comm/group.h"
#include "core/convert.h"

/* ---- the race ----
 *
 * loss = sum(x * a * b) over two large parameters, x = i + rank everywhere in iteration i: the gradient of a is
 * b * (i + (p - 1) / 2) averaged over p ranks, that of b is a times that. Small integers and halves, so every element
 * is known exactly; and another in each iteration, so that one of an earlier iteration, or of one rank, is noticed. */

enum { N = 20000, ITERATIONS = 5 };

static const float A = 1, B = 2;

static float averaged(int i, int p) {
    return (float)i + (float)(p - 1) / 2;
}

static char *expect_gradient(const struct cairn_param_set *set, size_t which, float want) {
    cairn_param p;
    EXPECT_OK(cairn_param_set_get(set, which, &p));
    const float *g = p.grad;
    for (size_t i = 0; i < N; i++) EXPECT(g[i] == want);
    return NULL;
}

static char *expect_gradients(cairn_env *env, const struct cairn_param_set *set, int i) {
    const float want = averaged(i, cairn_env_size(env));
    PASS(expect_gradient(set, 0, want * B));
    return expect_gradient(set, 1, want * A);
}

struct factors {
    cairn_tensor *a, *b;
};

static cairn_tensor *multiply(cairn_module *module, void *context, cairn_tensor *const *inputs, int count) {
    (void)module, (void)count;
    const struct factors *f = context;
    return cairn_mul(cairn_mul(inputs[0], f->a), f->b);
}

static const struct cairn__module_kind factors_kind = {.name = "Factors", .forward = multiply};

static char *make_factors(cairn_env *env, cairn_module **model) {
    EXPECT_OK(cairn__module_create(env, &factors_kind, sizeof(struct factors), model));
    struct factors *f = cairn__module_context(*model);
    const int64_t n = N;
    EXPECT_OK(cairn__module_add_param(*model, "a", 1, &n, false, &f->a));
    EXPECT_OK(cairn__module_add_param(*model, "b", 1, &n, false, &f->b));
    EXPECT_OK(cairn_init_constant(f->a, A));
    EXPECT_OK(cairn_init_constant(f->b, B));
    return NULL;
}

static char *race_of_a_module(cairn_env *env, void *ctx) {
    cairn_module *model = NULL;
    ddp_context *net = NULL;
    cairn_tensor *x = cairn_zeros(env, CAIRN_F32, CAIRN_SHAPE(N));
    PASS(make_factors(env, &model));
    EXPECT_OK(ddp_create(model, cairn_env_group(env), ctx, &net));
    for (int i = 0; i < ITERATIONS; i++) {
        EXPECT_OK(cairn_init_constant(x, i + cairn_env_rank(env)));
        cairn__param_set_zero_grad(cairn_module_params(model));
        EXPECT_OK(cairn_backward(cairn_sum(ddp_forward(net, x))));
        PASS(expect_gradients(env, cairn_module_params(model), i));
    }
    ddp_destroy(&net);
    cairn_tensor_destroy(&x);
    cairn_module_destroy(&model);
    return NULL;
}

/* Each declared as soon as it is written, in turns which first. */
static char *race_of_buffers(cairn_env *env, void *ctx) {
    float *const w = calloc(2 * N, sizeof(float)), *const g = calloc(2 * N, sizeof(float));
    const cairn_param params[] = {{"a", w, g, CAIRN_F32, 1, {N}, CAIRN_OFF},
                                  {"b", w + N, g + N, CAIRN_F32, 1, {N}, CAIRN_OFF}};
    cairn_param_set *set = NULL;
    ddp_context *net = NULL;
    EXPECT_OK(cairn_param_set_create(env, params, 2, &set));
    EXPECT_OK(ddp_create_params(set, cairn_env_group(env), ctx, &net));
    for (int i = 0; i < ITERATIONS; i++) {
        for (int turn = 0; turn < 2; turn++) {
            const int which = (i + turn) % 2;
            for (size_t k = 0; k < N; k++) g[which * N + k] = (float)(i + cairn_env_rank(env)) * (which ? A : B);
            EXPECT_OK(ddp_grads_ready(net, (size_t)which, 1));
        }
        EXPECT_OK(ddp_wait(net));
        PASS(expect_gradients(env, set, i));
    }
    ddp_destroy(&net);
    cairn_param_set_destroy(&set);
    free(w);
    free(g);
    return NULL;
}

/* In place and copied with a bucket a parameter; on some numbers of ranks also cut in pieces, which may travel as bf16,
 * where sums of halves are exact up to 128. */
static void gradients_have_their_closed_form_in_every_iteration_on_2_to_8_ranks(void **state) {
    static const struct ddp_options every[] = {
        {.struct_size = sizeof(struct ddp_options), .message_size = 1},
        {.struct_size = sizeof(struct ddp_options), .message_size = 1, .gradient_as_bucket_view = CAIRN_OFF},
        {.struct_size = sizeof(struct ddp_options), .bucket_nbytes = 65536},
        {.struct_size = sizeof(struct ddp_options), .bucket_nbytes = 65536, .wire = CAIRN_BF16},
    };
    (void)state;
    for (int p = 2; p <= 8; p++) {
        for (size_t o = 0; o < (p % 3 == 2 ? 4 : 2); o++) {
            run_ranks(p, race_of_a_module, (void *)(uintptr_t)&every[o]);
            if (every[o].gradient_as_bucket_view == CAIRN_DEFAULT && !is_on_gpu()) /* buffers of the host */
                run_ranks(p, race_of_buffers, (void *)(uintptr_t)&every[o]);
        }
    }
}

/* ---- masters and weights ---- */

enum { ROWS = 16, IN = 128, OUT = 16, STEPS = 40 };

/* All ranks hold the same bits, and half weights are their masters rounded once. */
static char *expect_masters(cairn_env *env, const cairn_param_set *set, cairn_dtype half) {
    static _Thread_local int32_t all[2 * IN * OUT];
    for (size_t i = 0; i < cairn_param_set_count(set); i++) {
        cairn_param p;
        EXPECT_OK(cairn_param_set_get(set, i, &p));
        const float *const master = cairn_param_master(set, i);
        const size_t n = (size_t)(p.ndim == 2 ? p.shape[0] * p.shape[1] : p.shape[0]);
        EXPECT(master && master != p.data);
        EXPECT_OK(cairn__group_exchange(cairn_env_group(env), all, master, n * sizeof(all[0])));
        EXPECT(memcmp(all, master, n * 4) == 0 && memcmp(all + n, master, n * 4) == 0);
        for (size_t k = 0; k < n; k++) {
            uint16_t want;
            float as_f32;
            cairn__convert(&want, half, &master[k], CAIRN_F32, 1);
            cairn__convert(&as_f32, CAIRN_F32, &want, half, 1);
            const void *const is = (char *)p.data + k * cairn_dtype_nbytes(p.dtype);
            EXPECT(memcmp(is, p.dtype == CAIRN_F32 ? (void *)&as_f32 : (void *)&want, cairn_dtype_nbytes(p.dtype)) ==
                   0);
        }
    }
    return NULL;
}

/* Every rank begins with weights of its own and has data of its own. */
static char *train_a_module(cairn_env *env, void *ctx) {
    const cairn_dtype half = *(cairn_dtype *)ctx;
    cairn_optimizer *sgd = NULL;
    amp_context *amp = NULL;
    ddp_context *net = NULL;
    cairn_manual_seed(env, 11 + (uint64_t)cairn_env_rank(env));
    cairn_tensor *x = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(ROWS, IN));
    cairn_tensor *y = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(ROWS, OUT));
    cairn_module *model = cairn_linear(env, IN, OUT);
    EXPECT_OK(cairn_sgd_create(cairn_module_params(model), NULL, &sgd));
    EXPECT_OK(
        amp_initialize(env, model, sgd, amp_options(.opt_level = AMP_O2, .half_type = half, .verbosity = -1), &amp));
    EXPECT_OK(ddp_create(model, cairn_env_group(env), NULL, &net));
    for (int s = 0; s < STEPS; s++) {
        cairn_zero_grad(sgd);
        EXPECT_OK(amp_backward(amp, cairn_mse_loss(ddp_forward(net, x), y), sgd));
        EXPECT_OK(cairn_step(sgd));
        PASS(expect_masters(env, cairn_module_params(model), half));
    }
    EXPECT(cairn_optimizer_steps(sgd) > STEPS / 2);
    ddp_destroy(&net);
    amp_destroy(&amp);
    cairn_optimizer_destroy(&sgd);
    cairn_module_destroy(&model);
    cairn_tensor_destroy(&x);
    cairn_tensor_destroy(&y);
    return NULL;
}

static void masters_and_half_weights_agree_bit_by_bit_over_ranks_and_with_each_other(void **state) {
    static cairn_dtype halves[] = {CAIRN_F16, CAIRN_BF16};
    (void)state;
    for (int h = 0; h < 2; h++) run_ranks(2, train_a_module, &halves[h]);
}

/* The same with the user's arrays: y = x w^T, one row of data a step. */
struct buffers {
    float w[OUT * IN], g[OUT * IN], x[IN], y[OUT];
};

static void backward_by_hand(struct buffers *b, float scale) {
    for (int o = 0; o < OUT; o++) {
        float dy = -b->y[o];
        for (int i = 0; i < IN; i++) dy += b->w[o * IN + i] * b->x[i];
        for (int i = 0; i < IN; i++) b->g[o * IN + i] = dy * b->x[i] * scale / OUT;
    }
}

static char *train_buffers(cairn_env *env, void *ctx) {
    const cairn_dtype half = *(cairn_dtype *)ctx;
    static _Thread_local struct buffers b;
    const cairn_param param = {"w", b.w, b.g, CAIRN_F32, 2, {OUT, IN}, CAIRN_OFF};
    struct cairn_sgd_options hyper = CAIRN_SGD_OPTIONS_INIT;
    cairn_param_set *set = NULL;
    cairn_optimizer *sgd = NULL;
    amp_context *amp = NULL;
    ddp_context *net = NULL;
    unsigned random = 17 + (unsigned)cairn_env_rank(env);
#define DRAW() ((float)((random = random * 1664525u + 1013904223u) >> 8) / (1 << 23) - 1)
    for (int i = 0; i < OUT * IN; i++) b.w[i] = DRAW();
    hyper.lr = 1e-2;
    EXPECT_OK(cairn_param_set_create(env, &param, 1, &set));
    EXPECT_OK(cairn_sgd_create(set, &hyper, &sgd));
    EXPECT_OK(amp_initialize_params(env, set, sgd, amp_options(.opt_level = AMP_O2, .half_type = half, .verbosity = -1),
                                    &amp));
    EXPECT_OK(ddp_create_params(set, cairn_env_group(env), NULL, &net));
    for (int s = 0; s < STEPS; s++) {
        for (int i = 0; i < IN; i++) b.x[i] = DRAW();
        for (int o = 0; o < OUT; o++) b.y[o] = DRAW();
        backward_by_hand(&b, (float)amp_next_scale(amp));
        EXPECT_OK(ddp_grads_ready(net, 0, 1));
        EXPECT_OK(ddp_wait(net));
        EXPECT_OK(cairn_step(sgd));
        PASS(expect_masters(env, set, half));
    }
    EXPECT(cairn_optimizer_steps(sgd) > STEPS / 2);
    ddp_destroy(&net);
    amp_destroy(&amp);
    cairn_optimizer_destroy(&sgd);
    cairn_param_set_destroy(&set);
    return NULL;
}

static void masters_and_half_values_in_the_users_memory_agree_bit_by_bit(void **state) {
    NOT_ON_A_GPU("these buffers are the host's");
    static cairn_dtype halves[] = {CAIRN_F16, CAIRN_BF16};
    (void)state;
    for (int h = 0; h < 2; h++) run_ranks(2, train_buffers, &halves[h]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_have_their_closed_form_in_every_iteration_on_2_to_8_ranks),
        cmocka_unit_test(masters_and_half_weights_agree_bit_by_bit_over_ranks_and_with_each_other),
        cmocka_unit_test(masters_and_half_values_in_the_users_memory_agree_bit_by_bit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
