/* O1 with an fp8 list: products, gradients and scales against values computed by hand, on exactly representable data
 * and compared bit for bit; trainings; and errors. */
#include <math.h>
#include <string.h>

#include "fp8_casts.h"
#include "../ranks.h"
#include "../one_env.h"
#include "../state_in_memory.h"

enum { ROWS = 3, IN = 4, OUT = 2 };

struct net {
    cairn_module *layer;
    cairn_optimizer *sgd;
    amp_context *amp;
};

static struct net make_net(cairn_env *env, cairn_module *model, cairn_dtype half, double lr,
                           const struct cairn_fp8_recipe *recipe) {
    struct net n = {model, NULL, NULL};
    struct cairn_sgd_options hyper = CAIRN_SGD_OPTIONS_INIT;
    hyper.lr = lr;
    OK(cairn_sgd_create(cairn_module_params(model), &hyper, &n.sgd));
    OK(amp_initialize(env, model, n.sgd,
                      amp_options(.half_type = half, .loss_scale = 1, .fp8 = recipe, .verbosity = -1), &n.amp));
    return n;
}

static void end_net(struct net *n) {
    amp_destroy(&n->amp);
    cairn_optimizer_destroy(&n->sgd);
    cairn_module_destroy(&n->layer);
}

static cairn_module *make_linear(cairn_env *env, const float *weight, const float *bias) {
    cairn_module *layer = cairn_linear(env, IN, OUT);
    cairn_param p;
    OK(cairn_param_set_get(cairn_module_params(layer), 0, &p));
    memcpy(p.data, weight, sizeof(float) * IN * OUT);
    OK(cairn_param_set_get(cairn_module_params(layer), 1, &p));
    memcpy(p.data, bias, sizeof(float) * OUT);
    OK(cairn_param_changed(cairn_module_params(layer), 0, 0));
    OK(cairn_param_changed(cairn_module_params(layer), 1, 1));
    return layer;
}

/* ---- a linear layer by hand ---- */

/* What E4M3 rounds: 17 -> 16, 19 -> 20, 21 -> 20, 300 -> 288 (of 288 and 320), 1000 -> 448. dy: E5M2 makes 5 -> 5, 9 ->
 * 8, 11 -> 12, 13 -> 12. All sums are below 2^24 and, with the bias, below 2^8 in units that bf16 holds, or the test
 * rounds them itself. */
static const float X[ROWS][IN] = {{17, -1, 0, 2}, {19, 3, -21, 1}, {300, 0.5f, -4, 1000}};
static const float W[OUT][IN] = {{1, 2, -17, 0.25f}, {-3, 19, 1, 2}};
static const float B[OUT] = {0.75f, -33};
static const float DY[ROWS][OUT] = {{5, 9}, {-11, 13}, {1, -0.25f}};

struct by_hand {
    float x[ROWS][IN], w[OUT][IN], dy[ROWS][OUT]; /* as fp8 has them */
    float y[ROWS][OUT], dx[ROWS][IN], dw[OUT][IN], db[OUT];
};

static void through_fp8(cairn_fp8_format format, float scale, float *dst, const float *x, size_t n) {
    OK(cairn_fp8_round(dst, x, CAIRN_F32, n, cairn_fp8_options(.format = format, .scale = scale)));
}

static struct by_hand compute_by_hand(float scale_x, float scale_w, float scale_dy, cairn_fp8_format backward) {
    struct by_hand h = {.db = {0}};
    through_fp8(CAIRN_FP8_E4M3, scale_x, h.x[0], X[0], ROWS * IN);
    through_fp8(CAIRN_FP8_E4M3, scale_w, h.w[0], W[0], OUT * IN);
    through_fp8(backward, scale_dy, h.dy[0], DY[0], ROWS * OUT);
    for (int r = 0; r < ROWS; r++) {
        for (int o = 0; o < OUT; o++) {
            double sum = (double)B[o];
            for (int i = 0; i < IN; i++) sum += (double)h.x[r][i] * (double)h.w[o][i];
            h.y[r][o] = (float)sum;
            h.db[o] += DY[r][o]; /* of the gradient as it came */
            for (int i = 0; i < IN; i++) h.dx[r][i] += h.dy[r][o] * h.w[o][i];
            for (int i = 0; i < IN; i++) h.dw[o][i] += h.dy[r][o] * h.x[r][i];
        }
    }
    return h;
}

/* The half type's own rounding of f32 sums. */
static void expect_result(const cairn_tensor *y, cairn_dtype half, const struct by_hand *h) {
    uint16_t got[ROWS * OUT], want[ROWS * OUT];
    assert_int_equal(cairn_tensor_dtype(y), half);
    OK(cairn_tensor_read_as(y, half, got, ROWS * OUT));
    cairn_env *env = cairn__tensor_env(y);
    cairn_tensor *wide = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(ROWS, OUT), h->y[0]);
    OK(cairn_tensor_read_as(cairn_cast(wide, half), half, want, ROWS * OUT));
    assert_memory_equal(got, want, sizeof(got));
}

static void expect_gradients(struct net *n, const cairn_tensor *x, const struct by_hand *h) {
    cairn_param p;
    assert_memory_equal(cairn_tensor_grad(x), h->dx, sizeof(h->dx));
    OK(cairn_param_set_get(cairn_module_params(n->layer), 0, &p));
    assert_memory_equal(p.grad, h->dw, sizeof(h->dw));
    OK(cairn_param_set_get(cairn_module_params(n->layer), 1, &p));
    assert_memory_equal(p.grad, h->db, sizeof(h->db));
}

static cairn_tensor *input(cairn_env *env) {
    cairn_tensor *x = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(ROWS, IN), X[0]);
    cairn_tensor_require_grad(x);
    return x;
}

static void pass(struct net *n, cairn_env *env, cairn_tensor *x, cairn_dtype half, const struct by_hand *h) {
    cairn_tensor *dy = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(ROWS, OUT), DY[0]);
    cairn_tensor *y = cairn_module_forward(n->layer, x);
    expect_result(y, half, h);
    OK(cairn_backward_with(y, &(struct cairn_backward_options){.struct_size = sizeof(struct cairn_backward_options),
                                                               .grad = dy}));
    expect_gradients(n, x, h);
    cairn_tensor_destroy(&dy);
}

static void a_linear_layer_equals_a_computation_by_hand(void **state) {
    cairn_env *env = *state;
    static const cairn_dtype halves[] = {CAIRN_BF16, CAIRN_F16};
    for (int k = 0; k < 4; k++) {
        const bool hybrid = k < 2;
        const struct by_hand h = compute_by_hand(1, 1, 1, hybrid ? CAIRN_FP8_E5M2 : CAIRN_FP8_E4M3);
        struct net n = make_net(env, make_linear(env, W[0], B), halves[k % 2], 0,
                                cairn_fp8_recipe(.scaling = CAIRN_FP8_UNSCALED,
                                                 .formats = hybrid ? CAIRN_FP8_HYBRID : CAIRN_FP8_ALL_E4M3));
        cairn_tensor *x = input(env);
        assert_true(h.x[0][0] == 16 && h.x[2][3] == 448 && h.w[0][2] == -16 && h.dy[0][1] == (hybrid ? 8 : 9));
        pass(&n, env, x, halves[k % 2], &h);
        cairn_tensor_destroy(&x);
        end_net(&n);
    }
}

/* Powers of two, so that sums stay exact: current scales of amax 1000, 19 and 13 are 2^-2, 2^4 and 2^12. */
static void current_scales_are_those_of_the_tensors(void **state) {
    cairn_env *env = *state;
    const struct by_hand h = compute_by_hand(0x1p-2f, 0x1p4f, 0x1p12f, CAIRN_FP8_E5M2);
    struct net n = make_net(env, make_linear(env, W[0], B), CAIRN_BF16, 0,
                            cairn_fp8_recipe(.scaling = CAIRN_FP8_CURRENT, .power_of_two_scales = CAIRN_ON));
    cairn_tensor *x = input(env);
    pass(&n, env, x, CAIRN_BF16, &h);
    assert_true(isnan(amp_fp8_scale(n.amp, "weight", AMP_FP8_INPUT)));
    cairn_tensor_destroy(&x);
    end_net(&n);
}

static void delayed_scales_are_those_of_the_step_before(void **state) {
    cairn_env *env = *state;
    const struct by_hand first = compute_by_hand(1, 1, 1, CAIRN_FP8_E5M2);
    const struct by_hand second = compute_by_hand(0x1p-2f, 0x1p4f, 0x1p12f, CAIRN_FP8_E5M2);
    struct net n = make_net(env, make_linear(env, W[0], B), CAIRN_BF16, 0, /* steps change nothing */
                            cairn_fp8_recipe(.power_of_two_scales = CAIRN_ON));
    cairn_tensor *x = input(env);
    assert_true(isnan(amp_fp8_scale(n.amp, "weight", AMP_FP8_INPUT)));
    pass(&n, env, x, CAIRN_BF16, &first);
    assert_true(amp_fp8_scale(n.amp, "weight", AMP_FP8_INPUT) == 1); /* no step yet */
    OK(cairn_step(n.sgd));
    assert_true(amp_fp8_scale(n.amp, "weight", AMP_FP8_INPUT) == 0x1p-2f);
    assert_true(amp_fp8_scale(n.amp, "weight", AMP_FP8_WEIGHT) == 0x1p4f);
    assert_true(amp_fp8_scale(n.amp, "weight", AMP_FP8_GRADIENT) == 0x1p12f);
    assert_true(isnan(amp_fp8_scale(n.amp, "bias", AMP_FP8_INPUT)));
    cairn_zero_grad(n.sgd);
    cairn_tensor_clear_grad(x);
    pass(&n, env, x, CAIRN_BF16, &second);
    cairn_tensor_destroy(&x);
    end_net(&n);
}

/* An evaluation notes nothing; the greatest of a step's micro-batches counts. */
static void micro_batches_and_evaluations(void **state) {
    cairn_env *env = *state;
    struct net n = make_net(env, make_linear(env, W[0], B), CAIRN_BF16, 0, cairn_fp8_recipe(.margin = 0));
    for (int m = 0; m < 3; m++) {
        cairn_tensor *x = cairn_full(env, CAIRN_F32, CAIRN_SHAPE(ROWS, IN), m == 1 ? 7 : 2);
        OK(amp_backward(n.amp, cairn_mean(cairn_module_forward(n.layer, x)), n.sgd));
        cairn_tensor_destroy(&x);
    }
    cairn_no_grad_begin(env);
    cairn_tensor *x = cairn_full(env, CAIRN_F32, CAIRN_SHAPE(ROWS, IN), 4000);
    assert_non_null(cairn_module_forward(n.layer, x));
    cairn_no_grad_end(env);
    OK(cairn_step(n.sgd));
    assert_true(amp_fp8_scale(n.amp, "weight", AMP_FP8_INPUT) == 64);
    cairn_tensor_destroy(&x);
    end_net(&n);
}

/* ---- at random ---- */

enum { DRAWS = 1 << 14 };

/* Of a 1 x 1 product with 1: what comes of value, as a part of the way from below to above. */
static void expect_fair(const float *got, float value, float below, float above) {
    double sum = 0;
    const double p = ((double)value - (double)below) / ((double)above - (double)below);
    for (size_t i = 0; i < DRAWS; i++) {
        assert_true(got[i] == below || got[i] == above);
        sum += got[i] == above;
    }
    assert_true(fabs(sum / DRAWS - p) <= 4 * sqrt(p * (1 - p) / DRAWS));
}

/* 1.046875 lies between E4M3's 1 and 1.125, 1.1015625 between E5M2's 1 and 1.25; bf16 has both. */
static void random_rounding_is_fair_and_another_one_in_every_step(void **state) {
    cairn_env *env = *state;
    static float y[2][DRAWS], dx[2][DRAWS];
    struct net n = make_net(env, make_linear(env, W[0], B), CAIRN_BF16, 0,
                            cairn_fp8_recipe(.scaling = CAIRN_FP8_UNSCALED, .stochastic_inputs = CAIRN_ON,
                                             .stochastic_gradients = CAIRN_ON));
    cairn_tensor *x = cairn_full(env, CAIRN_F32, CAIRN_SHAPE(DRAWS, 1), 1.046875),
                 *one = cairn_full(env, CAIRN_F32, CAIRN_SHAPE(1, 1), 1);
    cairn_tensor *dy = cairn_full(env, CAIRN_F32, CAIRN_SHAPE(DRAWS, 1), 1.1015625);
    OK(cairn_tensor_require_grad(x));
    for (int s = 0; s < 2; s++) {
        cairn_tensor_clear_grad(x);
        cairn_tensor *product = cairn_matmul(x, one);
        OK(cairn_tensor_read(product, y[s], DRAWS));
        OK(cairn_backward_with(product,
                               &(struct cairn_backward_options){.struct_size = sizeof(struct cairn_backward_options),
                                                                .grad = dy}));
        memcpy(dx[s], cairn_tensor_grad(x), sizeof(dx[s]));
        expect_fair(y[s], 1.046875f, 1, 1.125f);
        expect_fair(dx[s], 1.1015625f, 1, 1.25f);
    }
    assert_memory_not_equal(y[0], y[1], sizeof(y[0]));
    assert_memory_not_equal(dx[0], dx[1], sizeof(dx[0]));
    cairn_tensor_destroy(&x), cairn_tensor_destroy(&one), cairn_tensor_destroy(&dy);
    end_net(&n);
}

/* ---- values that are none, and nothing ---- */

static void nan_stays_and_infinities_saturate(void **state) {
    cairn_env *env = *state;
    static const float one[OUT][IN] = {{1, 0, 0, 0}, {0, 1, 0, 0}}, none[OUT] = {0, 0};
    const float wild[2][IN] = {{INFINITY, 0x1p-149f, 0, 0}, {-INFINITY, NAN, 0, 0}};
    for (int saturates = 0; saturates < 2; saturates++) {
        struct net n = make_net(env, make_linear(env, one[0], none), CAIRN_F16, 0,
                                cairn_fp8_recipe(.saturate = saturates ? CAIRN_ON : CAIRN_OFF));
        cairn_tensor *x = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(2, IN), wild[0]);
        float y[4];
        OK(cairn_tensor_read(cairn_module_forward(n.layer, x), y, 4));
        if (saturates) assert_true(y[0] == 448 && y[1] == 0);
        else assert_true(isnan(y[0]));
        assert_true(isnan(y[3]));
        cairn_tensor_destroy(&x);
        end_net(&n);
    }
}

static void an_empty_batch_has_an_empty_result_and_gradients_of_zero(void **state) {
    cairn_env *env = *state;
    struct net n = make_net(env, make_linear(env, W[0], B), CAIRN_BF16, 0, cairn_fp8_recipe(.margin = 0));
    cairn_tensor *x = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(0, IN), NULL);
    cairn_tensor *y = cairn_module_forward(n.layer, x);
    assert_non_null(y);
    assert_int_equal(cairn_tensor_numel(y), 0);
    OK(amp_backward(n.amp, cairn_sum(y), n.sgd));
    OK(cairn_step(n.sgd));
    assert_true(amp_fp8_scale(n.amp, "weight", AMP_FP8_INPUT) == 1);
    cairn_tensor_destroy(&x);
    end_net(&n);
}

/* ---- which operations ---- */

static bool goes_through_fp8(cairn_tensor *product) { /* of ones and of 17, which E4M3 makes 16 */
    float y[4];
    OK(cairn_tensor_read(product, y, 4));
    return y[0] == 32;
}

static void the_list_is_what_classes_say(void **state) {
    cairn_env *env = *state;
    const char *why = NULL;
    struct net n = make_net(env, make_linear(env, W[0], B), CAIRN_F16, 0, cairn_fp8_recipe(.margin = 0));
    cairn_tensor *a = cairn_full(env, CAIRN_F32, CAIRN_SHAPE(2, 2), 17),
                 *b = cairn_full(env, CAIRN_F32, CAIRN_SHAPE(2, 2), 1);
    cairn_tensor *as = cairn_full(env, CAIRN_F32, CAIRN_SHAPE(1, 2, 2), 17),
                 *bs = cairn_full(env, CAIRN_F32, CAIRN_SHAPE(1, 2, 2), 1);
    cairn_tensor *wide = cairn_full(env, CAIRN_F64, CAIRN_SHAPE(2, 2), 17);
    OK(amp_op_set_cast(env, "bmm", AMP_CAST_FP8));
    /* Two results are scaled by their amax, which maps 17 to 448. */
    assert_false(goes_through_fp8(cairn_matmul(a, b)));
    end_net(&n);

    n = make_net(env, make_linear(env, W[0], B), CAIRN_F16, 0, cairn_fp8_recipe(.scaling = CAIRN_FP8_UNSCALED));
    assert_int_equal(amp_op_cast(env, "matmul", &why), AMP_CAST_FP8);
    assert_string_equal(why, "a product, by the recipe of amp_options.fp8");
    assert_true(goes_through_fp8(cairn_matmul(a, b)));
    assert_int_equal(cairn_tensor_dtype(cairn_matmul(a, b)), CAIRN_F16);
    assert_true(goes_through_fp8(cairn_linear_forward(a, b, NULL)));
    assert_true(goes_through_fp8(cairn_bmm(as, bs)));
    assert_int_equal(cairn_tensor_dtype(cairn_matmul(wide, wide)), CAIRN_F64);
    OK(amp_op_set_cast(env, "matmul", AMP_CAST_HALF));
    assert_false(goes_through_fp8(cairn_matmul(a, b)));
    OK(amp_op_set_cast(env, "matmul", (amp_cast)0));
    assert_true(goes_through_fp8(cairn_matmul(a, b)));
    int scope = 0;
    OK(amp_autocast_begin(env, amp_autocast_options(.enabled = CAIRN_OFF), &scope));
    assert_false(goes_through_fp8(cairn_matmul(a, b)));
    OK(amp_autocast_end(env, scope));
    OK(amp_autocast_begin(env, amp_autocast_options(.half_type = CAIRN_BF16), &scope));
    assert_int_equal(cairn_tensor_dtype(cairn_matmul(a, b)), CAIRN_BF16);
    OK(amp_autocast_end(env, scope));
    end_net(&n);

    assert_int_equal(amp_op_cast(env, "matmul", NULL), AMP_CAST_HALF); /* without the context */
    OK(amp_autocast_begin(env, NULL, &scope));
    assert_null(cairn_bmm(as, bs)); /* the user's class stays */
    assert_non_null(strstr(cairn_last_error(), "no O1 context with a recipe is alive"));
    OK(amp_autocast_end(env, scope));
    OK(amp_op_set_cast(env, "bmm", (amp_cast)0));
    cairn_tensor_destroy(&a), cairn_tensor_destroy(&b), cairn_tensor_destroy(&as), cairn_tensor_destroy(&bs);
    cairn_tensor_destroy(&wide);
}

static void what_cannot_be_is_refused(void **state) {
    cairn_env *env = *state;
    cairn_module *model = cairn_linear(env, IN, OUT);
    amp_context *amp = NULL;
    REFUSED(amp_initialize(env, model, NULL, amp_options(.opt_level = AMP_O2, .fp8 = cairn_fp8_recipe(.margin = 0)),
                           &amp),
            CAIRN_EINVAL, "choose O1");
    REFUSED(amp_initialize(env, model, NULL, amp_options(.patch_ops = CAIRN_OFF, .fp8 = cairn_fp8_recipe(.margin = 0)),
                           &amp),
            CAIRN_EINVAL, "O1 with patch_ops");
    REFUSED(amp_initialize(env, model, NULL, amp_options(.fp8 = cairn_fp8_recipe(.margin = 99)), &amp), CAIRN_EINVAL,
            "fp8: margin is 99");
    REFUSED(amp_op_set_cast(env, "relu", AMP_CAST_FP8), CAIRN_EINVAL, "not for 'relu'");
    REFUSED(amp_op_set_cast(env, "rope", AMP_CAST_FP8), CAIRN_EINVAL, "not for 'rope'");
    assert_null(amp);
    OK(amp_initialize(env, model, NULL, amp_options(.fp8 = cairn_fp8_recipe(.margin = 0), .verbosity = -1), &amp));
    cairn_tensor *x = cairn_full(env, CAIRN_F32, CAIRN_SHAPE(2, IN + 1), 1),
                 *bias = cairn_full(env, CAIRN_F32, CAIRN_SHAPE(3), 1);
    cairn_tensor *w = cairn_full(env, CAIRN_F32, CAIRN_SHAPE(2, IN + 1), 1);
    assert_null(cairn_module_forward(model, x));
    assert_non_null(strstr(cairn_last_error(), "inner sizes 5 and 4 differ"));
    assert_null(cairn_linear_forward(x, w, bias));
    assert_non_null(strstr(cairn_last_error(), "bias is [3], but the product is [2, 2]"));
    cairn_tensor_destroy(&x), cairn_tensor_destroy(&bias), cairn_tensor_destroy(&w);
    amp_destroy(&amp);
    cairn_module_destroy(&model);
}

/* Of a device that is no CPU the name alone is looked at. */
static void a_gpu_is_refused_with_a_message(void **state) {
    cairn_env *env = *state;
    const struct cairn__device_ops *own = env->device->ops;
    struct cairn__device_ops other = *own;
    cairn_module *model = cairn_linear(env, IN, OUT);
    amp_context *amp = NULL;
    other.name = "cuda";
    env->device->ops = &other;
    const cairn_status st =
        amp_initialize(env, model, NULL, amp_options(.fp8 = cairn_fp8_recipe(.margin = 0), .verbosity = -1), &amp);
    env->device->ops = own;
    REFUSED(st, CAIRN_ENOTSUP, "fp8 casts are emulated on the CPU alone");
    assert_null(amp);
    assert_int_equal(amp_op_cast(env, "linear", NULL), AMP_CAST_HALF); /* nothing was changed */
    assert_int_equal(amp_autocast_type(env), 0);
    cairn_module_destroy(&model);
}

/* ---- trainings ---- */

enum { BATCH = 32, FEATURES = 16, HIDDEN = 32, CLASSES = 4, STEPS = 60 };

struct training {
    struct net net;
    cairn_tensor *x, *y;
};

static cairn_module *make_mlp(cairn_env *env) {
    return cairn_sequential(env, CAIRN_MODULES(cairn_linear(env, FEATURES, HIDDEN), cairn_activation(env, cairn_relu),
                                               cairn_linear(env, HIDDEN, CLASSES)));
}

static struct training begin_training(cairn_env *env, cairn_dtype half, const struct cairn_fp8_recipe *recipe) {
    cairn_manual_seed(env, 5);
    struct training t = {.x = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(BATCH, FEATURES)),
                         .y = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(BATCH, CLASSES))};
    t.net = make_net(env, make_mlp(env), half, 0.1, recipe);
    return t;
}

static cairn_tensor *whole(void *ctx, cairn_tensor *const *inputs, int count) {
    (void)count;
    return cairn_module_forward(ctx, inputs[0]);
}

static float train_step(struct training *t, bool checkpointed) {
    cairn_zero_grad(t->net.sgd);
    cairn_tensor *out =
        checkpointed ? cairn_checkpoint(whole, t->net.layer, &t->x, 1) : cairn_module_forward(t->net.layer, t->x);
    cairn_tensor *loss = cairn_mse_loss(out, t->y);
    OK(amp_backward(t->net.amp, loss, t->net.sgd));
    OK(cairn_step(t->net.sgd));
    return cairn_tensor_item(loss);
}

static void end_training(struct training *t) {
    end_net(&t->net);
    cairn_tensor_destroy(&t->x);
    cairn_tensor_destroy(&t->y);
}

/* Within a few percent of what O1 reaches without fp8; E4M3 has 4 significant bits. */
static void an_mlp_trains_with_every_recipe(void **state) {
    cairn_env *env = *state;
    const struct cairn_fp8_recipe recipes[] = {
        *cairn_fp8_recipe(.amax_history_len = 16),
        *cairn_fp8_recipe(.amax_compute_algo = CAIRN_FP8_AMAX_MOST_RECENT),
        *cairn_fp8_recipe(.scaling = CAIRN_FP8_CURRENT),
        *cairn_fp8_recipe(.scaling = CAIRN_FP8_CURRENT, .formats = CAIRN_FP8_ALL_E4M3),
        *cairn_fp8_recipe(.stochastic_inputs = CAIRN_ON, .stochastic_gradients = CAIRN_ON),
    };
    for (int k = 0; k < 2; k++) {
        const cairn_dtype half = k ? CAIRN_BF16 : CAIRN_F16;
        struct training plain = begin_training(env, half, NULL);
        float first = 0, want = 0;
        for (int s = 0; s < STEPS; s++) want = train_step(&plain, false), first = s == 0 ? want : first;
        end_training(&plain);
        assert_true(want < 0.6f * first);
        for (size_t r = 0; r < sizeof(recipes) / sizeof(recipes[0]); r++) {
            struct training t = begin_training(env, half, &recipes[r]);
            float got = 0;
            for (int s = 0; s < STEPS; s++) got = train_step(&t, false);
            if (!(fabsf(got - want) < 0.1f * want)) fail_msg("recipe %zu: %g, want %g", r, (double)got, (double)want);
            assert_true(got != want);
            end_training(&t);
        }
    }
}

static void expect_same_weights(struct training *a, struct training *b) {
    for (size_t i = 0; i < 4; i++) {
        cairn_param p, q;
        OK(cairn_param_set_get(cairn_module_params(a->net.layer), i, &p));
        OK(cairn_param_set_get(cairn_module_params(b->net.layer), i, &q));
        assert_memory_equal(p.data, q.data,
                            (size_t)p.shape[0] * (p.ndim == 2 ? (size_t)p.shape[1] : 1) * sizeof(float));
    }
}

static void a_checkpoint_trains_to_the_same_bits(void **state) {
    cairn_env *env = *state;
    const struct cairn_fp8_recipe *recipe =
        cairn_fp8_recipe(.stochastic_inputs = CAIRN_ON, .stochastic_gradients = CAIRN_ON);
    float losses[6];
    struct training t = begin_training(env, CAIRN_BF16, recipe);
    for (int s = 0; s < 6; s++) losses[s] = train_step(&t, false);
    struct training other = t;
    other.net.amp = NULL;
    amp_destroy(&t.net.amp);
    struct training again = begin_training(env, CAIRN_BF16, recipe);
    for (int s = 0; s < 6; s++) assert_true(train_step(&again, true) == losses[s]);
    expect_same_weights(&other, &again);
    end_training(&again);
    end_training(&other);
}

static void a_training_that_was_saved_goes_on_to_the_bit(void **state) {
    cairn_env *env = *state;
    const struct cairn_fp8_recipe *recipe = cairn_fp8_recipe(.amax_history_len = 4);
    struct kept_state at = {.count = 0}, want = {.count = 0}, got = {.count = 0};
    float losses[5], scale;
    struct training t = begin_training(env, CAIRN_F16, recipe);
    cairn_stateful parts[] = {cairn_module_stateful(t.net.layer), cairn_optimizer_stateful(t.net.sgd),
                              amp_stateful(t.net.amp)};
    for (int s = 0; s < 7; s++) (void)train_step(&t, false);
    CALM(keep_state(&at, parts, 3));
    for (int s = 0; s < 5; s++) losses[s] = train_step(&t, false);
    CALM(keep_state(&want, parts, 3));
    scale = amp_fp8_scale(t.net.amp, "0.weight", AMP_FP8_GRADIENT);
    assert_true(scale > 0 && scale != 1);
    end_training(&t);
    for (int fresh = 0; fresh < 2; fresh++) { /* and into one that has scales of its own */
        t = begin_training(env, CAIRN_F16, recipe);
        cairn_stateful into[] = {cairn_module_stateful(t.net.layer), cairn_optimizer_stateful(t.net.sgd),
                                 amp_stateful(t.net.amp)};
        for (int s = 0; s < (fresh ? 0 : 3); s++) (void)train_step(&t, false);
        CALM(bring_back(&at, into, 3));
        for (int s = 0; s < 5; s++) assert_true(train_step(&t, false) == losses[s]);
        CALM(keep_state(&got, into, 3));
        CALM(same_states(&want, &got));
        end_training(&t);
    }
    drop_state(&at), drop_state(&want), drop_state(&got);
}

/* A state of before the first product knows no scales: those that there are begin anew. */
static void scales_missing_in_a_state_start_over(void **state) {
    cairn_env *env = *state;
    struct kept_state at = {.count = 0};
    float first[3];
    struct training t = begin_training(env, CAIRN_BF16, cairn_fp8_recipe(.amax_history_len = 4));
    cairn_stateful parts[] = {cairn_module_stateful(t.net.layer), cairn_optimizer_stateful(t.net.sgd),
                              amp_stateful(t.net.amp)};
    CALM(keep_state(&at, parts, 3));
    for (int s = 0; s < 3; s++) first[s] = train_step(&t, false);
    assert_true(amp_fp8_scale(t.net.amp, "0.weight", AMP_FP8_INPUT) != 1);
    CALM(bring_back(&at, parts, 3));
    assert_true(amp_fp8_scale(t.net.amp, "0.weight", AMP_FP8_INPUT) == 1);
    for (int s = 0; s < 3; s++) assert_true(train_step(&t, false) == first[s]);
    end_training(&t);
    drop_state(&at);
}

/* ---- ranks ---- */

static char *train_on_ranks(cairn_env *env, void *ctx) {
    float *scales = ctx;
    const int rank = cairn_env_rank(env);
    cairn_module *layer = cairn_linear(env, IN, OUT);
    cairn_optimizer *sgd = NULL;
    amp_context *amp = NULL;
    ddp_context *net = NULL;
    EXPECT_OK(cairn_sgd_create(cairn_module_params(layer), NULL, &sgd));
    EXPECT_OK(
        amp_initialize(env, layer, sgd, amp_options(.fp8 = cairn_fp8_recipe(.margin = 0), .verbosity = -1), &amp));
    EXPECT_OK(ddp_create(layer, cairn_env_group(env), NULL, &net));
    cairn_tensor *x = cairn_full(env, CAIRN_F32, CAIRN_SHAPE(ROWS, IN), 7 << rank);
    for (int s = 0; s < 2; s++) {
        cairn_zero_grad(sgd);
        EXPECT_OK(amp_backward(amp, cairn_mean(ddp_forward(net, x)), sgd));
        EXPECT_OK(cairn_step(sgd));
    }
    EXPECT(amp_fp8_scale(amp, "weight", AMP_FP8_INPUT) == ldexpf(64, 1 - cairn_env_size(env)));
    for (int t = 0; t < 3; t++) scales[rank * 3 + t] = amp_fp8_scale(amp, "weight", (amp_fp8_tensor)(t + 1));
    cairn_tensor_destroy(&x);
    ddp_destroy(&net);
    amp_destroy(&amp);
    cairn_optimizer_destroy(&sgd);
    cairn_module_destroy(&layer);
    return NULL;
}

static void ranks_have_the_scales_of_the_greatest_amax(void **state) {
    (void)state;
    float scales[9];
    run_ranks(3, train_on_ranks, scales);
    for (int r = 1; r < 3; r++) assert_memory_equal(scales, &scales[r * 3], 3 * sizeof(float));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_linear_layer_equals_a_computation_by_hand),
        cmocka_unit_test(current_scales_are_those_of_the_tensors),
        cmocka_unit_test(delayed_scales_are_those_of_the_step_before),
        cmocka_unit_test(micro_batches_and_evaluations),
        cmocka_unit_test(random_rounding_is_fair_and_another_one_in_every_step),
        cmocka_unit_test(nan_stays_and_infinities_saturate),
        cmocka_unit_test(an_empty_batch_has_an_empty_result_and_gradients_of_zero),
        cmocka_unit_test(the_list_is_what_classes_say),
        cmocka_unit_test(what_cannot_be_is_refused),
        cmocka_unit_test(a_gpu_is_refused_with_a_message),
        cmocka_unit_test(an_mlp_trains_with_every_recipe),
        cmocka_unit_test(a_checkpoint_trains_to_the_same_bits),
        cmocka_unit_test(a_training_that_was_saved_goes_on_to_the_bit),
        cmocka_unit_test(scales_missing_in_a_state_start_over),
    };
    const struct CMUnitTest on_ranks[] = {cmocka_unit_test(ranks_have_the_scales_of_the_greatest_amax)};
    const int failed = cmocka_run_group_tests(tests, make_env, end_env);
    return failed + cmocka_run_group_tests(on_ranks, NULL, NULL);
}
