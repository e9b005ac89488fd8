/* Losses beyond the op cases: limits, invalid class targets, error messages. */
#include <math.h>

#include "nn/tensor.h"
#include "test_env.h"

#define FLOATS(...)   \
    (const float[]) { \
        __VA_ARGS__   \
    }

static cairn_tensor *scores(cairn_env *env) {
    cairn_tensor *x = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(2, 3), FLOATS(0, 0, 0, 5, 5, 5));
    assert_int_equal(cairn_tensor_require_grad(x), CAIRN_OK);
    return x;
}

static cairn_tensor *targets(cairn_env *env, int64_t a, int64_t b) {
    const int64_t values[] = {a, b};
    return cairn_tensor_from(env, CAIRN_I64, CAIRN_SHAPE(2), values);
}

/* torch: 0 / 0, and gradients of 0. */
static void mean_over_ignored_rows_alone_is_nan(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *x = scores(env), *loss = cairn_cross_entropy(x, targets(env, -100, -100), NULL);
    assert_true(isnan(cairn_tensor_item(loss)));
    assert_int_equal(cairn_backward(loss), CAIRN_OK);
    for (int i = 0; i < 6; i++) assert_true(cairn_tensor_grad(x)[i] == 0);
}

static void ignored_row_counts_nothing(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *x = scores(env), *loss = cairn_cross_entropy(x, targets(env, 1, -100), NULL);
    assert_true(cairn_tensor_item(loss) == logf(3));
    loss = cairn_cross_entropy(x, targets(env, 0, 1), cairn_loss_options(.ignores_zero = CAIRN_ON));
    assert_true(cairn_tensor_item(loss) == logf(3));
}

static void scores_of_any_size_give_a_finite_loss(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *x = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(2, 2), FLOATS(1e30f, 0, 20000, 20001));
    assert_int_equal(cairn_tensor_require_grad(x), CAIRN_OK);
    cairn_tensor *loss = cairn_cross_entropy(x, targets(env, 0, 1), NULL);
    assert_true(fabs(cairn_tensor_item(loss) - log1p(exp(-1)) / 2) < 1e-7);
    assert_int_equal(cairn_backward(loss), CAIRN_OK);
    assert_true(cairn_tensor_grad(x)[0] == 0);
    assert_true(fabs(cairn_tensor_grad(x)[2] - 0.5 / (1 + exp(1))) < 1e-7);
}

static void backward_fails_on_a_target_that_is_no_class(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *x = scores(env), *loss = cairn_cross_entropy(x, targets(env, 1, 3), NULL);
    assert_non_null(loss);
    assert_int_equal(cairn_backward(loss), CAIRN_EINVAL);
    assert_string_equal(cairn_last_error(),
                        "cross_entropy: target 1 is 3: neither one of 3 classes nor ignore_index -100");
    env->begin_step(env);
    assert_true(isnan(cairn_tensor_item(cairn_nll_loss(x, targets(env, -1, 3), NULL))));
    assert_string_equal(cairn_last_error(), "nll_loss: target 0 is -1: neither one of 3 classes nor ignore_index -100");
    env->begin_step(env);
    assert_true(cairn_tensor_item(cairn_nll_loss(x, targets(env, 0, 1), NULL)) == -2.5f);
}

/* All of it on one side: the mean over classes of -ln p. */
static void smoothing_of_one_forgets_the_target(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *x = scores(env);
    cairn_tensor *loss = cairn_cross_entropy(x, targets(env, 0, 2), cairn_loss_options(.label_smoothing = 1));
    assert_true(fabs(cairn_tensor_item(loss) - log(3)) < 1e-6);
    assert_int_equal(cairn_backward(loss), CAIRN_OK);
    for (int i = 0; i < 6; i++) assert_true(fabsf(cairn_tensor_grad(x)[i]) < 1e-7f);
}

static void class_losses_say_what_does_not_fit(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *x = scores(env), *t = targets(env, 0, 1), *three = cairn_zeros(env, CAIRN_I64, CAIRN_SHAPE(3));
    NO_TENSOR(cairn_cross_entropy(x, three, NULL), "cross_entropy: input is [2, 3], but the target is [3]; expected "
                                                   "the input's shape without the classes, its dimension 1");
    NO_TENSOR(cairn_nll_loss(x, x, NULL), "nll_loss: the target is f32; expected classes, i64 or i32");
    NO_TENSOR(cairn_cross_entropy(x, t, cairn_loss_options(.weight = cairn_zeros(env, CAIRN_F32, CAIRN_SHAPE(2)))),
              "cross_entropy: weight is [2], but input is [2, 3]; expected [3], one a class");
    NO_TENSOR(cairn_cross_entropy(x, t, cairn_loss_options(.label_smoothing = 2)),
              "cross_entropy: label_smoothing is 2; it must be from 0 to 1");
    NO_TENSOR(cairn_cross_entropy(x, t, cairn_loss_options(.reduction = (cairn_reduction)9)),
              "cross_entropy: reduction is 9; CAIRN_MEAN, CAIRN_SUM_ALL and CAIRN_NONE are allowed");
    NO_TENSOR(cairn_l1_loss(t, t, NULL), "l1_loss: input is i64; f32, f16, bf16 and f64 are allowed");
    assert_null(cairn_cross_entropy(x, NULL, NULL));
    assert_null(cairn_bce(NULL, x, NULL));
}

/* torch divides by (double)1e-12f there, in every type. */
static void bce_of_certain_probabilities_is_torchs_to_the_last_bit(void **state) {
    cairn_env *env = test_env_of(state);
    static const double p[] = {0, 1, 0, 1}, target[] = {1, 0, 0, 1};
    const double steep = 1 / (double)1e-12f, want[] = {-steep, steep, 0, 0};
    cairn_tensor *x = cairn_tensor_from(env, CAIRN_F64, CAIRN_SHAPE(4), p);
    cairn_tensor *y = cairn_tensor_from(env, CAIRN_F64, CAIRN_SHAPE(4), target);
    double loss, got[4];
    assert_int_equal(cairn_tensor_require_grad(x), CAIRN_OK);
    cairn_tensor *sum = cairn_bce(x, y, cairn_loss_options(.reduction = CAIRN_SUM_ALL));
    assert_int_equal(cairn_tensor_read_as(sum, CAIRN_F64, &loss, 1), CAIRN_OK);
    assert_true(loss == 200);
    assert_int_equal(cairn_backward(sum), CAIRN_OK);
    assert_int_equal(cairn_tensor_read_grad(x, got, 4), CAIRN_OK);
    for (int i = 0; i < 4; i++) assert_true(got[i] == want[i]);
}

/* A weight is a constant, also where it wants a gradient elsewhere. */
static void weight_gets_no_gradient(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *x = scores(env), *w = cairn_full(env, CAIRN_F32, CAIRN_SHAPE(3), 2);
    assert_int_equal(cairn_tensor_require_grad(w), CAIRN_OK);
    cairn_tensor *y = cairn_zeros(env, CAIRN_F32, CAIRN_SHAPE(2, 3));
    cairn_tensor *loss = cairn_bce_with_logits(x, y, cairn_loss_options(.weight = w, .pos_weight = w));
    assert_int_equal(cairn_backward(loss), CAIRN_OK);
    assert_null(cairn_tensor_grad(w));
    assert_true(cairn_tensor_grad(x)[0] == 0.5f * 2 / 6);
}

/* Anomaly mode looks at the f32 gradient of the cast, which is otherwise written as the half that it becomes. */
static void gradient_of_a_cast_is_the_same_whether_it_is_looked_at(void **state) {
    cairn_env *env = test_env_of(state);
    enum { N = 1000 };
    static double dx[2][N];
    for (int half = 0; half < 2; half++) {
        const cairn_dtype type = half ? CAIRN_BF16 : CAIRN_F16;
        for (int looks = 0; looks < 2; looks++) {
            cairn_manual_seed(env, 7);
            cairn_tensor *x = cairn_randn(env, type, CAIRN_SHAPE(N)), *y = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(N));
            OK(cairn_tensor_require_grad(x));
            cairn_detect_anomaly(env, looks);
            OK(cairn_backward(cairn_mse_loss(cairn_cast(cairn_mul_scalar(x, 3), CAIRN_F32), y)));
            cairn_detect_anomaly(env, 0);
            OK(cairn_tensor_read_grad(x, dx[looks], N));
        }
        assert_memory_equal(dx[0], dx[1], sizeof(dx[0]));
    }
}

/* Twice the same graph, and two uses of a cast. */
static void rounded_gradients_are_added_as_others_are(void **state) {
    cairn_env *env = test_env_of(state);
    double once, twice, both;
    cairn_tensor *x = cairn_zeros(env, CAIRN_F16, CAIRN_SHAPE(1));
    cairn_tensor *y = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(1), FLOATS(1));
    OK(cairn_tensor_write(x, FLOATS(0.3f), 1));
    OK(cairn_tensor_require_grad(x));
    cairn_tensor *cast = cairn_cast(cairn_mul_scalar(x, 1), CAIRN_F32), *loss = cairn_mse_loss(cast, y);
    OK(cairn_backward_with(loss, cairn_backward_options(.retain_graph = CAIRN_ON)));
    OK(cairn_tensor_read_grad(x, &once, 1));
    OK(cairn_backward_with(loss, cairn_backward_options(.retain_graph = CAIRN_ON)));
    OK(cairn_tensor_read_grad(x, &twice, 1));
    OK(cairn_backward(cairn_add(loss, cairn_mse_loss(cast, y))));
    OK(cairn_tensor_read_grad(x, &both, 1));
    assert_true(once < -1 && twice == 2 * once && both == 4 * once);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        ENV_TEST(gradient_of_a_cast_is_the_same_whether_it_is_looked_at),
        ENV_TEST(rounded_gradients_are_added_as_others_are),
        ENV_TEST(mean_over_ignored_rows_alone_is_nan),
        ENV_TEST(ignored_row_counts_nothing),
        ENV_TEST(scores_of_any_size_give_a_finite_loss),
        ENV_TEST(backward_fails_on_a_target_that_is_no_class),
        ENV_TEST(smoothing_of_one_forgets_the_target),
        ENV_TEST(class_losses_say_what_does_not_fit),
        ENV_TEST(bce_of_certain_probabilities_is_torchs_to_the_last_bit),
        ENV_TEST(weight_gets_no_gradient),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
