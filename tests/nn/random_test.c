/* Random tensors depend only on the seed, the rank and how many were drawn before. */
#include <math.h>
#include <string.h>

#include "core/half.h"
#include "core/philox.h"
#include "nn/module.h"
#include "test_env.h"

enum { N = 1003 }; /* no multiple of a block */

static void draw(uint64_t seed, int rank, int skip, float *out) {
    cairn_env *env = test_env_create(seed, rank);
    for (int i = 0; i < skip; i++) cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(3));
    assert_int_equal(cairn_tensor_read(cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(17, 59)), out, N), CAIRN_OK);
    test_env_destroy(env);
}

static void randn_repeats_for_equal_seed_rank_and_number(void **state) {
    (void)state;
    static float first[N], again[N], other[N];
    draw(7, 1, 2, first);
    draw(7, 1, 2, again);
    assert_memory_equal(first, again, sizeof(first));
    static const struct {
        uint64_t seed;
        int rank, skip;
    } others[] = {{8, 1, 2}, {7, 0, 2}, {7, 1, 1}};
    for (int i = 0; i < 3; i++) {
        draw(others[i].seed, others[i].rank, others[i].skip, other);
        assert_memory_not_equal(first, other, sizeof(first));
    }
}

/* Any element can be made alone, by the numbering that device/env.h promises. */
static void randn_numbers_follow_the_numbering(void **state) {
    (void)state;
    static float values[N];
    draw(7, 1, 2, values);
    for (size_t i = 0; i < N; i += 101) {
        float normals[4];
        cairn__normal4(cairn__philox(7, i / 4, 2 << 16 | 1), normals);
        assert_true(values[i] == normals[i % 4]);
    }
}

static void randn_looks_normal(void **state) {
    cairn_env *env = test_env_of(state);
    enum { MANY = 1 << 16 };
    static float x[MANY];
    assert_int_equal(cairn_tensor_read(cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(MANY)), x, MANY), CAIRN_OK);
    double sum = 0, squares = 0;
    for (int i = 0; i < MANY; i++) sum += x[i], squares += (double)x[i] * x[i];
    assert_true(fabs(sum / MANY) < 5.0 / 256);             /* five standard errors: 1/sqrt(n) */
    assert_true(fabs(squares / MANY - 1) < 5 * 1.5 / 256); /* sqrt(2/n) */
}

static void half_randn_is_the_f32_one_rounded(void **state) {
    (void)state;
    cairn_env *a = test_env_create(3, 0), *b = test_env_create(3, 0);
    static float wide[N], half[N];
    cairn_tensor_read(cairn_randn(a, CAIRN_F32, CAIRN_SHAPE(N)), wide, N);
    cairn_tensor_read(cairn_randn(b, CAIRN_F16, CAIRN_SHAPE(N)), half, N);
    for (int i = 0; i < N; i++) assert_true(half[i] == cairn__f16_to_f32(cairn__f32_to_f16(wide[i])));
    test_env_destroy(a);
    test_env_destroy(b);
}

static void linear_starts_within_its_bound(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_module *m = cairn_linear(env, 64, 33);
    cairn_param_set *set = cairn_module_params(m);
    assert_int_equal(cairn_param_set_count(set), 2);
    assert_string_equal(set->params[0]->name, "weight");
    assert_string_equal(set->params[1]->name, "bias");
    assert_int_equal(set->params[0]->n, 64 * 33);
    assert_int_equal(set->params[1]->n, 33);
    float least = 1, most = -1;
    for (int p = 0; p < 2; p++) {
        const float *w = set->params[p]->data;
        for (size_t i = 0; i < set->params[p]->n; i++) {
            assert_true(w[i] >= -0.125f && w[i] < 0.125f); /* 1/sqrt(64) */
            least = fminf(least, w[i]), most = fmaxf(most, w[i]);
        }
    }
    assert_true(least < -0.12f && most > 0.12f);
    cairn_module_destroy(&m);
}

static void linear_starts_equal_for_equal_seeds(void **state) {
    (void)state;
    cairn_env *a = test_env_create(5, 0), *b = test_env_create(5, 0);
    cairn_module *ma = cairn_linear(a, 10, 3), *mb = cairn_linear(b, 10, 3);
    assert_memory_equal(cairn_module_params(ma)->params[0]->data, cairn_module_params(mb)->params[0]->data, 120);
    cairn_module_destroy(&ma);
    cairn_module_destroy(&mb);
    test_env_destroy(a);
    test_env_destroy(b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        ENV_TEST(randn_looks_normal),
        ENV_TEST(linear_starts_within_its_bound),
        cmocka_unit_test(randn_repeats_for_equal_seed_rank_and_number),
        cmocka_unit_test(randn_numbers_follow_the_numbering),
        cmocka_unit_test(half_randn_is_the_f32_one_rounded),
        cmocka_unit_test(linear_starts_equal_for_equal_seeds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
