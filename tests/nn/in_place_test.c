/* In-place operations: results, errors, and no memory use. */
#include <math.h>
#include <string.h>

#include "core/status.h"
#include "nn/tensor.h"
#include "test_env.h"

#define FLOATS(...) ((const float[]){__VA_ARGS__})

static cairn_tensor *leaf(cairn_env *env) {
    return cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(4), FLOATS(1, 4, 9, 16));
}

static void assert_values(const cairn_tensor *t, const float *want, size_t n) {
    float got[16];
    assert_int_equal(cairn_tensor_read(t, got, n), CAIRN_OK);
    for (size_t i = 0; i < n; i++) {
        if (!(got[i] == want[i])) fail_msg("element %zu: %g, want %g", i, (double)got[i], (double)want[i]);
    }
}

static void assert_refused(const cairn_tensor *y, cairn_status st, const char *words) {
    assert_null(y);
    assert_int_equal(cairn__last_status(), st);
    SAYS(words);
}

static void each_writes_what_its_operation_gives(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *x = leaf(env), *b = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(1), FLOATS(2));
    assert_ptr_equal(cairn_add_(x, b), x);
    assert_values(x, FLOATS(3, 6, 11, 18), 4);
    assert_ptr_equal(cairn_sub_(x, b), x);
    assert_values(x, FLOATS(1, 4, 9, 16), 4);
    assert_ptr_equal(cairn_sqrt_(x), x);
    assert_values(x, FLOATS(1, 2, 3, 4), 4);
    assert_ptr_equal(cairn_mul_(x, b), x);
    assert_values(x, FLOATS(2, 4, 6, 8), 4);
    assert_ptr_equal(cairn_div_(x, b), x);
    assert_values(x, FLOATS(1, 2, 3, 4), 4);
    assert_ptr_equal(cairn_pow_scalar_(x, 2), x);
    assert_values(x, FLOATS(1, 4, 9, 16), 4);
    assert_ptr_equal(cairn_add_scalar_(x, -1), x);
    assert_ptr_equal(cairn_mul_scalar_(x, 2), x);
    assert_values(x, FLOATS(0, 6, 16, 30), 4);
    assert_ptr_equal(cairn_clamp_(x, 1, 20), x);
    assert_values(x, FLOATS(1, 6, 16, 20), 4);
    assert_ptr_equal(cairn_copy_(x, b), x); /* broadcast */
    assert_values(x, FLOATS(2, 2, 2, 2), 4);
    assert_ptr_equal(cairn_exp_(cairn_mul_scalar_(x, 0)), x);
    assert_values(x, FLOATS(1, 1, 1, 1), 4);
    assert_ptr_equal(cairn_add_(x, x), x);
    assert_values(x, FLOATS(2, 2, 2, 2), 4);
}

static void types_are_converted_to_the_first_s(void **state) {
    cairn_env *env = test_env_of(state);
    const int64_t whole[] = {1, 2, 3, 4};
    cairn_tensor *half = cairn_full(env, CAIRN_F16, CAIRN_SHAPE(2), 1);
    cairn_tensor *fine = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(2), FLOATS(0x1p-12f, 0x1p-10f));
    assert_non_null(cairn_add_(half, fine)); /* computed in f32, rounded once */
    assert_values(half, FLOATS(1, 1 + 0x1p-10f), 2);
    cairn_tensor *i = cairn_tensor_from(env, CAIRN_I64, CAIRN_SHAPE(4), whole);
    assert_non_null(cairn_add_(i, i));
    assert_values(i, FLOATS(2, 4, 6, 8), 4);
    assert_refused(cairn_div_(i, i), CAIRN_EINVAL, "does not fit into a tensor of i64");
    assert_refused(cairn_add_(i, leaf(env)), CAIRN_EINVAL, "f32");
    assert_values(i, FLOATS(2, 4, 6, 8), 4);
    assert_non_null(cairn_copy_(i, leaf(env)));
    assert_values(i, FLOATS(1, 4, 9, 16), 4);
}

static void strided_memory_is_written_where_it_is_shown(void **state) {
    cairn_env *env = test_env_of(state);
    float data[6] = {1, 2, 3, 4, 5, 6};
    cairn_tensor *x = cairn_tensor_over(env, CAIRN_F32, CAIRN_SHAPE(3), (const int64_t[]){2}, data);
    assert_non_null(cairn_mul_scalar_(x, 10));
    assert_memory_equal(data, FLOATS(10, 2, 30, 4, 50, 6), sizeof(data));
    cairn_tensor *twice = cairn_tensor_over(env, CAIRN_F32, CAIRN_SHAPE(3), (const int64_t[]){0}, data);
    assert_refused(cairn_mul_scalar_(twice, 10), CAIRN_EINVAL, "several elements at one place");
    cairn_tensor *square = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(2, 2), FLOATS(1, 2, 3, 4));
    assert_non_null(cairn_copy_(square, cairn_transpose(square, 0, 1)));
    assert_values(square, FLOATS(1, 3, 2, 4), 4);
}

static void shapes_must_fit(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *x = leaf(env), *wide = cairn_zeros(env, CAIRN_F32, CAIRN_SHAPE(2, 4));
    assert_refused(cairn_add_(x, wide), CAIRN_EINVAL, "[2, 4], which does not fit into [4]");
    assert_refused(cairn_copy_(x, wide), CAIRN_EINVAL, "expand");
    assert_refused(cairn_add_(NULL, x), CAIRN_EINVAL, "expand"); /* the first cause stays */
    cairn_env *other = test_env_create(1, 0);
    assert_refused(cairn_copy_(x, leaf(other)), CAIRN_EINVAL, "different environments");
    test_env_destroy(other);
    assert_values(x, FLOATS(1, 4, 9, 16), 4);
    assert_int_equal(cairn__tape_of(env)->no_grad.depth, 0);
}

static void what_a_graph_holds_is_refused_with_advice(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *x = leaf(env), *w = leaf(env);
    cairn_tensor_require_grad(w);
    assert_refused(cairn_exp_(cairn_mul_scalar(x, 2)), CAIRN_ESTATE, "y = cairn_exp(x, ...)");
    assert_refused(cairn_add_(w, x), CAIRN_ESTATE, "is being used in an in-place operation");
    assert_refused(cairn_add_(x, w), CAIRN_ESTATE, "cairn_detach");
    assert_non_null(cairn_add_(x, cairn_detach(w)));
    cairn_no_grad_begin(env);
    assert_non_null(cairn_add_(w, x));
    assert_int_equal(cairn_no_grad_end(env), CAIRN_OK);
    assert_values(w, FLOATS(3, 12, 27, 48), 4);
}

static cairn_tensor *writes(void *ctx, cairn_tensor *const *in, int count) {
    (void)count;
    return cairn_add_(ctx, in[0]) ? cairn_mul(in[0], in[0]) : NULL;
}

static void checkpoint_would_write_twice(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *x = leaf(env), *y = cairn_mul_scalar(x, 2);
    assert_refused(cairn_checkpoint(writes, x, &y, 1), CAIRN_ESTATE, "within a checkpoint");
}

/* ---- parameters ---- */

static void parameters_versions_follow(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_module *m = cairn_linear(env, 2, 2);
    struct cairn__param *p = cairn_module_params(m)->params[0];
    cairn_tensor *w = cairn_module_get(m, "weight");
    const uint64_t before = p->version;
    assert_refused(cairn_mul_scalar_(w, 2), CAIRN_ESTATE, "a parameter is being used");
    assert_true(p->version == before);
    cairn_no_grad_begin(env);
    assert_ptr_equal(cairn_mul_scalar_(w, 0), w);
    assert_ptr_equal(cairn_add_scalar_(w, 3), w);
    cairn_no_grad_end(env);
    assert_true(p->version == before + 2);
    for (int i = 0; i < 4; i++) assert_true(((float *)p->data)[i] == 3);
    cairn_module_destroy(&m);
}

/* 1 + 2^-12 is no f16 value: it stays in the master. */
static void half_parameters_are_computed_on_their_masters(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_module *m = cairn_linear(env, 2, 2);
    struct cairn_param_set *set = cairn_module_params(m);
    assert_int_equal(cairn__param_set_to_half(set, CAIRN_F16, true, true), CAIRN_OK);
    struct cairn__param *p = set->params[0];
    cairn_tensor *w = cairn_module_get(m, "weight");
    const uint64_t before = p->version;
    cairn_no_grad_begin(env);
    assert_non_null(cairn_copy_(w, cairn_full(env, CAIRN_F32, CAIRN_SHAPE(2, 2), 1)));
    assert_non_null(cairn_add_scalar_(w, 0x1p-12));
    assert_true(p->version == before + 2);
    for (int i = 0; i < 4; i++) assert_true(p->master[i] == 1 + 0x1p-12f);
    assert_values(w, FLOATS(1, 1, 1, 1), 4);
    assert_non_null(cairn_add_scalar_(w, 0x1p-11));
    assert_values(w, FLOATS(1 + 0x1p-10f, 1 + 0x1p-10f, 1 + 0x1p-10f, 1 + 0x1p-10f), 4);
    cairn_no_grad_end(env);
    cairn_module_destroy(&m);
}

static void a_parameter_with_itself_is_computed_on_its_master_twice(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_module *m = cairn_linear(env, 2, 2);
    struct cairn_param_set *set = cairn_module_params(m);
    assert_int_equal(cairn__param_set_to_half(set, CAIRN_F16, true, true), CAIRN_OK);
    struct cairn__param *p = set->params[0];
    cairn_tensor *w = cairn_module_get(m, "weight");
    cairn_no_grad_begin(env);
    assert_non_null(cairn_copy_(w, cairn_full(env, CAIRN_F32, CAIRN_SHAPE(2, 2), 1 + 0x1p-12)));
    assert_ptr_equal(cairn_copy_(w, w), w);
    for (int i = 0; i < 4; i++) assert_true(p->master[i] == 1 + 0x1p-12f);
    assert_ptr_equal(cairn_add_(w, w), w);
    for (int i = 0; i < 4; i++) assert_true(p->master[i] == 2 + 0x1p-11f);
    cairn_no_grad_end(env);
    cairn_module_destroy(&m);
}

static void steady_writes_allocate_nothing(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *x = leaf(env), *b = leaf(env);
    uint64_t before = 0;
    for (int i = 0; i < 50; i++) {
        if (i == 8) before = cairn__alloc_counters().allocations;
        assert_non_null(cairn_add_(x, b));
        assert_non_null(cairn_copy_(x, b));
        assert_non_null(cairn_clamp_(x, 0, 10));
    }
    assert_int_equal(cairn__alloc_counters().allocations, before);
    assert_int_equal(cairn__tape_memory(env).values.used, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        ENV_TEST(each_writes_what_its_operation_gives),
        ENV_TEST(types_are_converted_to_the_first_s),
        ENV_TEST(strided_memory_is_written_where_it_is_shown),
        ENV_TEST(shapes_must_fit),
        ENV_TEST(what_a_graph_holds_is_refused_with_advice),
        ENV_TEST(checkpoint_would_write_twice),
        ENV_TEST(parameters_versions_follow),
        ENV_TEST(half_parameters_are_computed_on_their_masters),
        ENV_TEST(a_parameter_with_itself_is_computed_on_its_master_twice),
        ENV_TEST(steady_writes_allocate_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
