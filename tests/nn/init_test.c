/* Parameter initialization: exact bounds, moments within five standard errors, the same bits for the same seed. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "test_env.h"

#include "cairn/cairn.h"
#include "core/status.h"
#include "nn/tensor.h"

enum { ROWS = 200, COLS = 300, N = ROWS * COLS };

static cairn_tensor *matrix(cairn_env *env) {
    return cairn_full(env, CAIRN_F32, CAIRN_SHAPE(ROWS, COLS), 7);
}

static const float *values_of(cairn_tensor *t) {
    static float values[N];
    assert_int_equal(cairn_tensor_read(t, values, N), CAIRN_OK);
    return values;
}

struct facts {
    double mean, std, least, most;
};

static struct facts look_at(cairn_tensor *t) {
    const float *x = values_of(t);
    struct facts f = {.least = INFINITY, .most = -INFINITY};
    double squares = 0;
    for (int i = 0; i < N; i++) f.mean += (double)x[i] / N;
    for (int i = 0; i < N; i++) squares += ((double)x[i] - f.mean) * ((double)x[i] - f.mean);
    for (int i = 0; i < N; i++) f.least = fmin(f.least, (double)x[i]), f.most = fmax(f.most, (double)x[i]);
    f.std = sqrt(squares / N);
    return f;
}

/* Of N draws the mean is off by std / sqrt(N), and the standard deviation by less than that. */
static void assert_moments(struct facts f, double mean, double std) {
    const double room = 5 * std / sqrt(N);
    assert_true(fabs(f.mean - mean) < room);
    assert_true(fabs(f.std - std) < room);
}

static void assert_uniform(cairn_tensor *t, double low, double high) {
    const struct facts f = look_at(t);
    assert_true(f.least >= low && f.most <= high);
    assert_true(f.least < low + 1e-3 * (high - low) && f.most > high - 1e-3 * (high - low));
    assert_moments(f, (low + high) / 2, (high - low) / sqrt(12));
}

static void constant_is_everywhere(void **state) {
    cairn_tensor *t = matrix(test_env_of(state));
    assert_int_equal(cairn_init_constant(t, -0.1), CAIRN_OK);
    const struct facts f = look_at(t);
    assert_true(f.least == (double)-0.1f && f.most == (double)-0.1f);
}

static void uniform_fills_its_range(void **state) {
    cairn_tensor *t = matrix(test_env_of(state));
    assert_int_equal(cairn_init_uniform(t, -2, 2), CAIRN_OK);
    assert_uniform(t, -2, 2);
    assert_int_equal(cairn_init_uniform(t, 3, 10), CAIRN_OK);
    assert_uniform(t, 3, 10);
    assert_int_equal(cairn_init_uniform(t, 3, 3), CAIRN_OK);
    assert_true(look_at(t).least == 3 && look_at(t).most == 3);
}

static void normal_is_randn_times_std_plus_mean(void **state) {
    cairn_env *env = test_env_of(state), *twin = test_env_create(1, 0);
    cairn_tensor *t = matrix(env), *drawn = cairn_randn(twin, CAIRN_F32, CAIRN_SHAPE(ROWS, COLS));
    static float want[N];
    assert_int_equal(cairn_tensor_read(drawn, want, N), CAIRN_OK);
    assert_int_equal(cairn_init_normal(t, 0.5, 0.25), CAIRN_OK);
    const float *got = values_of(t);
    for (int i = 0; i < N; i++) assert_true(got[i] == want[i] * 0.25f + 0.5f);
    assert_moments(look_at(t), 0.5, 0.25);
    test_env_destroy(twin);
}

static int by_value(const void *a, const void *b) {
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static double cdf(double x) {
    return (1 + erf(x / sqrt(2.0))) / 2;
}

/* The greatest distance between the drawn distribution and the wanted one: Kolmogorov's, whose 1e-6 quantile is 2.7 /
 * sqrt(N). */
static void assert_truncated(cairn_tensor *t, double mean, double std, double low, double high) {
    static float x[N];
    memcpy(x, values_of(t), sizeof(x));
    qsort(x, N, sizeof(x[0]), by_value);
    assert_true((double)x[0] >= (double)(float)low && (double)x[N - 1] <= (double)(float)high);
    const double below = cdf((low - mean) / std), above = cdf((high - mean) / std);
    for (int i = 0; i < N; i++) {
        const double want = (cdf(((double)x[i] - mean) / std) - below) / (above - below);
        assert_true(fabs(want - (i + 0.5) / N) < 2.7 / sqrt(N));
    }
}

static void trunc_normal_has_its_distribution_and_its_ends(void **state) {
    static const double cases[][4] = {
        {0, 1, -2, 2}, {0, 0.02, -2, 2}, {1, 3, 2, 2.5}, {0, 1, 3, 9}, {5, 2, -INFINITY, 5}};
    cairn_tensor *t = matrix(test_env_of(state));
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const double *c = cases[i];
        assert_int_equal(cairn_init_trunc_normal(t, c[0], c[1], c[2], c[3]), CAIRN_OK);
        assert_truncated(t, c[0], c[1], c[2], c[3]);
    }
}

static void bounds_follow_the_fans(void **state) {
    cairn_tensor *t = matrix(test_env_of(state)); /* out 200, in 300 */
    assert_int_equal(cairn_init_xavier_uniform(t, 2), CAIRN_OK);
    assert_uniform(t, -2 * sqrt(6.0 / 500), 2 * sqrt(6.0 / 500));
    assert_int_equal(cairn_init_xavier_normal(t, 2), CAIRN_OK);
    assert_moments(look_at(t), 0, 2 * sqrt(2.0 / 500));
    assert_int_equal(cairn_init_kaiming_uniform(t, sqrt(2), 0), CAIRN_OK);
    assert_uniform(t, -sqrt(6.0 / 300), sqrt(6.0 / 300));
    assert_int_equal(cairn_init_kaiming_uniform(t, sqrt(2), 1), CAIRN_OK);
    assert_uniform(t, -sqrt(6.0 / 200), sqrt(6.0 / 200));
    assert_int_equal(cairn_init_kaiming_normal(t, 1, 1), CAIRN_OK);
    assert_moments(look_at(t), 0, sqrt(1.0 / 200));
}

static void fan_counts_the_elements_behind(void **state) {
    cairn_tensor *t = cairn_full(test_env_of(state), CAIRN_F32, CAIRN_SHAPE(40, 60, 5, 5), 0);
    assert_int_equal(cairn_init_kaiming_uniform(t, 1, 0), CAIRN_OK);
    assert_uniform(t, -sqrt(3.0 / 1500), sqrt(3.0 / 1500));
}

static void equal_seeds_give_equal_bits_and_streams_differ(void **state) {
    (void)state;
    static float first[N];
    for (int run = 0; run < 2; run++) {
        cairn_env *env = test_env_create(9, 0);
        cairn_tensor *t = matrix(env);
        assert_int_equal(cairn_init_trunc_normal(t, 0, 1, -1, 1), CAIRN_OK);
        if (run == 0) {
            memcpy(first, values_of(t), sizeof(first));
            assert_int_equal(cairn_init_trunc_normal(t, 0, 1, -1, 1), CAIRN_OK);
            assert_memory_not_equal(values_of(t), first, sizeof(first));
        } else {
            assert_memory_equal(values_of(t), first, sizeof(first));
        }
        test_env_destroy(env);
    }
}

static void refused_arguments_change_nothing(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *t = matrix(env), *half = cairn_full(env, CAIRN_F16, CAIRN_SHAPE(2), 0);
    cairn_tensor *row = cairn_full(env, CAIRN_F32, CAIRN_SHAPE(3), 0);
    assert_int_equal(cairn_init_uniform(t, 1, 0), CAIRN_EINVAL);
    assert_string_equal(cairn_last_error(),
                        "init_uniform: low is 1 and high 0; both must be finite, and low at most high");
    assert_int_equal(cairn_init_uniform(t, NAN, 0), CAIRN_EINVAL);
    assert_int_equal(cairn_init_uniform(t, -INFINITY, 0), CAIRN_EINVAL);
    assert_int_equal(cairn_init_normal(t, 0, -1), CAIRN_EINVAL);
    assert_int_equal(cairn_init_normal(t, NAN, 1), CAIRN_EINVAL);
    assert_int_equal(cairn_init_trunc_normal(t, 0, 0, -1, 1), CAIRN_EINVAL);
    assert_int_equal(cairn_init_trunc_normal(t, 0, 1, 1, -1), CAIRN_EINVAL);
    assert_int_equal(cairn_init_trunc_normal(t, 0, 1, -60, -50), CAIRN_EINVAL);
    assert_int_equal(cairn_init_trunc_normal(t, 0, 1, 50, 60), CAIRN_EINVAL);
    assert_string_equal(cairn_last_error(),
                        "init_trunc_normal: no values lie between low, 50, and high, 60, for mean 0 and std 1");
    assert_int_equal(cairn_init_kaiming_normal(t, INFINITY, 0), CAIRN_EINVAL);
    assert_int_equal(cairn_init_xavier_uniform(row, 1), CAIRN_EINVAL);
    assert_string_equal(cairn_last_error(), "init_xavier_uniform: [3] has no fan; the shape must be [out, in, ...]");
    assert_int_equal(cairn_init_constant(half, 1), CAIRN_EINVAL);
    assert_string_equal(cairn_last_error(), "init_constant: the tensor is f16; it must be f32 and dense");
    assert_int_equal(cairn_init_constant(NULL, 1), CAIRN_EINVAL);
    assert_int_equal(cairn_init_kaiming_uniform(NULL, 1, 0), CAIRN_EINVAL);
    assert_int_equal(cairn_init_constant(cairn_relu(t), 1), CAIRN_ESTATE);
    assert_true(look_at(t).least == 7 && look_at(t).most == 7);
}

static void empty_tensors_need_no_values(void **state) {
    cairn_tensor *t = cairn_full(test_env_of(state), CAIRN_F32, CAIRN_SHAPE(0, 3), 0);
    assert_int_equal(cairn_init_uniform(t, -1, 2), CAIRN_OK);
    assert_int_equal(cairn_init_xavier_normal(t, 1), CAIRN_OK);
    assert_int_equal(cairn_init_kaiming_uniform(t, 1, 1), CAIRN_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        ENV_TEST(constant_is_everywhere),
        ENV_TEST(uniform_fills_its_range),
        ENV_TEST(normal_is_randn_times_std_plus_mean),
        ENV_TEST(trunc_normal_has_its_distribution_and_its_ends),
        ENV_TEST(bounds_follow_the_fans),
        ENV_TEST(fan_counts_the_elements_behind),
        cmocka_unit_test(equal_seeds_give_equal_bits_and_streams_differ),
        ENV_TEST(refused_arguments_change_nothing),
        ENV_TEST(empty_tensors_need_no_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
