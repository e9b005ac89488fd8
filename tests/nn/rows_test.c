/* Softmax, norms, embedding and dropout beyond the op cases: limits, state, random numbers, error messages. */
#include <math.h>
#include <string.h>

#include "core/philox.h"
#include "nn/tensor.h"
#include "test_env.h"

#define FLOATS(...)   \
    (const float[]) { \
        __VA_ARGS__   \
    }

static void assert_values(const cairn_tensor *t, const float *want, size_t n) {
    float got[64];
    assert_int_equal(cairn_tensor_read(t, got, n), CAIRN_OK);
    for (size_t i = 0; i < n; i++) {
        if (got[i] != want[i] && !(isnan(got[i]) && isnan(want[i])))
            fail_msg("element %zu: %g, want %g", i, (double)got[i], (double)want[i]);
    }
}

static cairn_tensor *wanting(cairn_tensor *leaf) {
    assert_int_equal(cairn_tensor_require_grad(leaf), CAIRN_OK);
    return leaf;
}

/* ---- softmax ---- */

static void softmax_of_great_scores_stays_finite(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *x = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(2, 2), FLOATS(1e38f, 1e38f, -3e38f, 3e38f));
    assert_values(cairn_softmax(x, -1), FLOATS(0.5f, 0.5f, 0, 1), 4);
    assert_values(cairn_log_softmax(cairn_slice(x, 0, 0, 1, 1), 1), FLOATS(-0.693147182f, -0.693147182f), 2);
}

/* As torch: nothing to choose from is NaN, and what is masked has probability 0. */
static void rows_of_minus_infinity_are_as_in_torch(void **state) {
    cairn_env *env = test_env_of(state);
    const float inf = INFINITY;
    cairn_tensor *x = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(2, 3), FLOATS(-inf, -inf, -inf, 1, -inf, 1));
    assert_values(cairn_softmax(x, -1), FLOATS(NAN, NAN, NAN, 0.5f, 0, 0.5f), 6);
    enum { LONG = 3000 };
    static float values[LONG], got[LONG];
    for (int i = 0; i < LONG; i++) values[i] = i == 2500 || i == 1 ? 7 : -inf;
    cairn_tensor *y = cairn_softmax(cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(LONG), values), 0);
    assert_int_equal(cairn_tensor_read(y, got, LONG), CAIRN_OK);
    for (int i = 0; i < LONG; i++) assert_true(got[i] == (values[i] > 0 ? 0.5f : 0));
}

static void softmax_refuses_what_it_cannot_take(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *x = cairn_zeros(env, CAIRN_F32, CAIRN_SHAPE(2, 3));
    NO_TENSOR(cairn_softmax(x, 2), "softmax: dimension 2 of a tensor with 2 dimensions");
    NO_TENSOR(cairn_log_softmax(cairn_zeros(env, CAIRN_I64, CAIRN_SHAPE(2)), 0),
              "log_softmax: input is i64; f32, f16, bf16 and f64 are allowed");
    assert_null(cairn_softmax(NULL, 0));
}

/* ---- norms ---- */

/* Two channels of the values 1, 3 and -2, 2: means 2 and 0, variances over n - 1 of 4/3 and 16/3. */
static void running_statistics_follow_the_batch(void **state) {
    cairn_env *env = test_env_of(state);
    const float values[] = {1, 3, -2, 2, 3, 1, 2, -2};
    cairn_tensor *x = cairn_cast(cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(2, 2, 2), values), CAIRN_F16);
    cairn_tensor *mean = cairn_zeros(env, CAIRN_F32, CAIRN_SHAPE(2)),
                 *var = cairn_full(env, CAIRN_F32, CAIRN_SHAPE(2), 1);
    assert_non_null(cairn_batch_norm_forward(x, mean, var, NULL, NULL, 1, 0.5, 1e-5));
    assert_values(mean, FLOATS(1, 0), 2);
    assert_values(var, FLOATS((float)(0.5 + 0.5 * 4 / 3), (float)(0.5 + 0.5 * 16 / 3)), 2);
}

static void evaluation_takes_the_running_statistics_and_leaves_them(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *x = wanting(cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(1, 2, 1), FLOATS(5, 7)));
    cairn_tensor *mean = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(2), FLOATS(1, 3));
    cairn_tensor *var = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(2), FLOATS(4, 16));
    cairn_tensor *y = cairn_batch_norm_forward(x, mean, var, NULL, NULL, 0, 0.1, 0);
    assert_values(y, FLOATS(2, 1), 2);
    assert_int_equal(cairn_backward(cairn_sum(y)), CAIRN_OK);
    assert_true(cairn_tensor_grad(x)[0] == 0.5f && cairn_tensor_grad(x)[1] == 0.25f);
    assert_values(mean, FLOATS(1, 3), 2);
    assert_values(var, FLOATS(4, 16), 2);
}

/* What O2 does: the input is half, all of the norm's own is f32. */
static void half_input_meets_f32_weights(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *x = wanting(cairn_randn(env, CAIRN_BF16, CAIRN_SHAPE(4, 3)));
    cairn_tensor *w = wanting(cairn_full(env, CAIRN_F32, CAIRN_SHAPE(3), 2));
    cairn_tensor *b = wanting(cairn_full(env, CAIRN_F32, CAIRN_SHAPE(3), 1));
    cairn_tensor *y = cairn_batch_norm_forward(x, NULL, NULL, w, b, 1, 0.1, 1e-5);
    assert_int_equal(cairn_tensor_dtype(y), CAIRN_BF16);
    assert_int_equal(cairn_backward(cairn_sum(y)), CAIRN_OK);
    assert_values(b, FLOATS(1, 1, 1), 3);
    assert_true(cairn_tensor_grad(b)[0] == 4);
    cairn_tensor *z = cairn_layer_norm_forward(x, w, b, 1, 1e-5);
    assert_int_equal(cairn_tensor_dtype(z), CAIRN_BF16);
}

/* The same tensor as weight and bias gets both gradients. */
static void one_tensor_may_be_weight_and_bias(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *x = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(1, 2), FLOATS(-1, 1));
    cairn_tensor *w = wanting(cairn_full(env, CAIRN_F32, CAIRN_SHAPE(2), 1));
    assert_int_equal(cairn_backward(cairn_sum(cairn_layer_norm_forward(x, w, w, 1, 0))), CAIRN_OK);
    assert_true(cairn_tensor_grad(w)[0] == 0 && cairn_tensor_grad(w)[1] == 2);
}

static void norms_say_what_does_not_fit(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *x = cairn_zeros(env, CAIRN_F32, CAIRN_SHAPE(2, 3, 4)),
                 *w = cairn_zeros(env, CAIRN_F32, CAIRN_SHAPE(5));
    cairn_tensor *half = cairn_zeros(env, CAIRN_F16, CAIRN_SHAPE(4)),
                 *three = cairn_zeros(env, CAIRN_F32, CAIRN_SHAPE(3));
    NO_TENSOR(cairn_layer_norm_forward(x, w, NULL, 1, 1e-5),
              "layer_norm: weight is [5], which is not the last 1 dimension of [2, 3, 4]");
    NO_TENSOR(cairn_layer_norm_forward(x, NULL, NULL, 4, 1e-5), "layer_norm: over the last 4 dimensions of [2, 3, 4]");
    NO_TENSOR(
        cairn_rms_norm_forward(x, half, 1, 1e-5),
        "rms_norm: input is f32 but weight is f16; it must have the input's type, or be f32 where the input is half");
    NO_TENSOR(cairn_group_norm_forward(x, 2, NULL, NULL, 1e-5),
              "group_norm: the 3 channels of [2, 3, 4] cannot be divided into 2 groups");
    NO_TENSOR(cairn_group_norm_forward(x, 0, NULL, NULL, 1e-5),
              "group_norm: the 3 channels of [2, 3, 4] cannot be divided into 0 groups");
    NO_TENSOR(cairn_batch_norm_forward(x, NULL, NULL, w, NULL, 1, 0.1, 1e-5),
              "batch_norm: weight is [5], but input is [2, 3, 4]; expected [3], one for each of dimension 1");
    NO_TENSOR(cairn_batch_norm_forward(x, NULL, NULL, NULL, NULL, 0, 0.1, 1e-5),
              "batch_norm: running_mean and running_var are NULL; evaluation needs both");
    NO_TENSOR(cairn_batch_norm_forward(x, three, NULL, NULL, NULL, 1, 0.1, 1e-5),
              "batch_norm: only one of running_mean and running_var is set; set both or neither");
    NO_TENSOR(cairn_batch_norm_forward(cairn_slice(cairn_slice(x, 0, 0, 1, 1), 2, 0, 1, 1), NULL, NULL, NULL, NULL, 1,
                                       0.1, 1e-5),
              "batch_norm: training needs more than one value for each channel, but input is [1, 3, 1]");
    NO_TENSOR(cairn_batch_norm_forward(w, NULL, NULL, NULL, NULL, 1, 0.1, 1e-5),
              "batch_norm: input is [5]; expected [N, C, ...]");
    assert_null(cairn_layer_norm_forward(NULL, w, w, 1, 1e-5));
    assert_null(cairn_normalize(NULL, 2, 0, 1e-12));
}

/* Statistics of nothing take no memory, however many there would be. */
static void norms_of_nothing_are_empty(void **state) {
    cairn_env *env = test_env_of(state);
    const int64_t many = (int64_t)1 << 40;
    cairn_tensor *x = wanting(cairn_zeros(env, CAIRN_F32, CAIRN_SHAPE(2, 0)));
    cairn_tensor *rows = wanting(cairn_zeros(env, CAIRN_F32, CAIRN_SHAPE(many, 0)));
    cairn_tensor *weight = wanting(cairn_full(env, CAIRN_F32, CAIRN_SHAPE(4), 1));
    cairn_tensor *running = cairn_full(env, CAIRN_F32, CAIRN_SHAPE(4), 3);
    cairn_tensor *none = cairn_zeros(env, CAIRN_F32, CAIRN_SHAPE(0, 4));
    assert_int_equal(cairn_backward(cairn_sum(cairn_group_norm_forward(x, INT64_MAX, NULL, NULL, 1e-5))), CAIRN_OK);
    assert_int_equal(cairn_backward(cairn_sum(cairn_layer_norm_forward(rows, NULL, NULL, 1, 1e-5))), CAIRN_OK);
    cairn_tensor *y = cairn_batch_norm_forward(none, running, running, weight, NULL, 0, 0.1, 1e-5);
    assert_int_equal(cairn_backward(cairn_sum(y)), CAIRN_OK);
    assert_true(cairn_tensor_grad(weight)[3] == 0);
    assert_values(running, FLOATS(3, 3, 3, 3), 4);
}

/* ---- embedding ---- */

static cairn_tensor *indices(cairn_env *env, int64_t a, int64_t b, int64_t c) {
    const int64_t values[] = {a, b, c};
    return cairn_tensor_from(env, CAIRN_I64, CAIRN_SHAPE(3), values);
}

static void padding_row_gets_no_gradient(void **state) {
    cairn_env *env = test_env_of(state);
    for (int half = 0; half < 2; half++) {
        cairn_tensor *table = wanting(cairn_full(env, half ? CAIRN_F16 : CAIRN_F32, CAIRN_SHAPE(4, 2), 1));
        cairn_tensor *y = cairn_embedding_forward(indices(env, 3, 1, 3), table, 1);
        assert_int_equal(cairn_backward(cairn_sum(y)), CAIRN_OK);
        assert_memory_equal(cairn_tensor_grad(table), FLOATS(0, 0, 0, 0, 0, 0, 2, 2), 8 * sizeof(float));
    }
}

static void index_out_of_range_fails_every_read_of_its_step(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *table = wanting(cairn_full(env, CAIRN_F32, CAIRN_SHAPE(4, 2), 1));
    cairn_tensor *y = cairn_embedding_forward(indices(env, 0, 4, -1), table, -1);
    float got[6];
    assert_non_null(y);
    assert_int_equal(cairn_tensor_read(y, got, 6), CAIRN_EINVAL);
    assert_string_equal(cairn_last_error(), "embedding: index 1 is 4, and the table has 4 rows");
    assert_int_equal(cairn_tensor_read(y, got, 6), CAIRN_EINVAL);
    env->begin_step(env);
    y = cairn_embedding_forward(indices(env, 0, 0, -7), table, -1);
    assert_int_equal(cairn_backward(cairn_sum(y)), CAIRN_EINVAL);
    assert_string_equal(cairn_last_error(), "embedding: index 2 is -7, and the table has 4 rows");
}

static void embedding_says_what_does_not_fit(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *table = cairn_zeros(env, CAIRN_F32, CAIRN_SHAPE(4, 2)), *i = indices(env, 0, 1, 2);
    NO_TENSOR(cairn_embedding_forward(table, table, -1), "embedding: indices are f32; i64 and i32 are allowed");
    NO_TENSOR(cairn_embedding_forward(i, i, -1), "embedding: the table is [3]; expected [rows, n]");
    NO_TENSOR(cairn_embedding_forward(i, table, 4),
              "embedding: padding_idx is 4, but the table has 4 rows; -1 means none");
    assert_null(cairn_embedding_forward(NULL, table, -1));
}

/* ---- dropout ---- */

enum { MANY = 1000 };

static void dropout_keeps_what_its_uniforms_say(void **state) {
    cairn_env *env = test_env_of(state);
    float got[MANY];
    int dropped = 0;
    cairn_tensor *x = wanting(cairn_full(env, CAIRN_F32, CAIRN_SHAPE(MANY), 3));
    const uint64_t stream = env->next_stream << 16;
    cairn_tensor *y = cairn_dropout_forward(x, 0.25, 1);
    assert_int_equal(cairn_tensor_read(y, got, MANY), CAIRN_OK);
    assert_int_equal(cairn_backward(cairn_sum(y)), CAIRN_OK);
    for (size_t i = 0; i < MANY; i++) {
        const float u = cairn__uniform(cairn__philox(env->seed, i / 4, stream).word[i % 4]);
        dropped += u < 0.25f;
        assert_true(got[i] == (u < 0.25f ? 0 : 3 * (float)(1 / 0.75)));
        assert_true(cairn_tensor_grad(x)[i] == (u < 0.25f ? 0 : (float)(1 / 0.75)));
    }
    assert_in_range(dropped, 200, 300);
}

static void dropout_of_nothing_and_in_evaluation_is_the_input(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *x = cairn_full(env, CAIRN_F32, CAIRN_SHAPE(3), 3);
    const uint64_t next = env->next_stream;
    assert_ptr_equal(cairn_dropout_forward(x, 0.5, 0), x);
    assert_ptr_equal(cairn_dropout_forward(x, 0, 1), x);
    assert_int_equal(env->next_stream, next);
    assert_values(cairn_dropout_forward(x, 1, 1), FLOATS(0, 0, 0), 3);
    NO_TENSOR(cairn_dropout_forward(x, 1.5, 1), "dropout: p is 1.5; it must be from 0 to 1");
    assert_null(cairn_dropout_forward(x, NAN, 1));
    assert_null(cairn_dropout_forward(NULL, 0.5, 0));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        ENV_TEST(softmax_of_great_scores_stays_finite),
        ENV_TEST(rows_of_minus_infinity_are_as_in_torch),
        ENV_TEST(softmax_refuses_what_it_cannot_take),
        ENV_TEST(running_statistics_follow_the_batch),
        ENV_TEST(evaluation_takes_the_running_statistics_and_leaves_them),
        ENV_TEST(half_input_meets_f32_weights),
        ENV_TEST(one_tensor_may_be_weight_and_bias),
        ENV_TEST(norms_of_nothing_are_empty),
        ENV_TEST(norms_say_what_does_not_fit),
        ENV_TEST(padding_row_gets_no_gradient),
        ENV_TEST(index_out_of_range_fails_every_read_of_its_step),
        ENV_TEST(embedding_says_what_does_not_fit),
        ENV_TEST(dropout_keeps_what_its_uniforms_say),
        ENV_TEST(dropout_of_nothing_and_in_evaluation_is_the_input),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
