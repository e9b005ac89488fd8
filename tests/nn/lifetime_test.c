/* Objects that are destroyed while a step uses them, and what remains after a failed step. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "nn/module.h"
#include "nn/tensor.h"
#include "test_env.h"

static const float four[] = {1, 2, 3, 4};

static cairn_tensor *constant(cairn_env *env) {
    cairn_tensor *x = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(2, 2), four);
    assert_non_null(x);
    return x;
}

static cairn_tensor *leaf(cairn_env *env) {
    cairn_tensor *x = constant(env);
    assert_int_equal(cairn_tensor_require_grad(x), CAIRN_OK);
    return x;
}

static uint64_t alive(void) {
    return cairn__alloc_counters().alive;
}

static void assert_values(const cairn_tensor *t, float a, float b, float c, float d) {
    float got[4];
    const float want[] = {a, b, c, d};
    assert_int_equal(cairn_tensor_read(t, got, 4), CAIRN_OK);
    assert_memory_equal(got, want, sizeof(got));
}

/* ---- leaves ---- */

static void graph_keeps_a_leaf_that_was_destroyed(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *x = leaf(env), *f = constant(env), *loss = cairn_sum(cairn_mul(x, f));
    cairn_tensor_destroy(&f);
    assert_null(f);
    cairn_tensor *other = cairn_full(env, CAIRN_F32, CAIRN_SHAPE(2, 2), 99); /* takes memory that is free */
    assert_int_equal(cairn_backward(loss), CAIRN_OK);
    assert_memory_equal(cairn_tensor_grad(x), four, sizeof(four));
    cairn_tensor_destroy(&other);
}

static void leaf_that_requires_a_gradient_may_be_destroyed_before_backward(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *x = leaf(env), *y = leaf(env), *loss = cairn_sum(cairn_mul(x, y));
    cairn_tensor_destroy(&y);
    assert_int_equal(cairn_backward(loss), CAIRN_OK);
    assert_memory_equal(cairn_tensor_grad(x), four, sizeof(four));
}

static void view_keeps_a_leaf_that_was_destroyed(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *f = constant(env), *v = cairn_transpose(f, 0, 1), *same = cairn_contiguous(f), *again = f;
    cairn_tensor_destroy(&f);
    cairn_tensor_destroy(&again);
    cairn_tensor *other = cairn_full(env, CAIRN_F32, CAIRN_SHAPE(2, 2), 99);
    assert_values(v, 1, 3, 2, 4);
    assert_values(same, 1, 2, 3, 4);
    cairn_tensor_destroy(&other);
}

static void destroyed_leaf_is_freed_when_its_step_is_over(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *x = leaf(env);
    uint64_t before = 0;
    for (int i = 0; i < 20; i++) {
        env->begin_step(env);
        if (i == 5) before = alive();
        cairn_tensor *f = constant(env), *loss = cairn_sum(cairn_mul(x, f));
        if (i % 2) assert_int_equal(cairn_backward(loss), CAIRN_OK);
        cairn_tensor_destroy(&f);
    }
    env->begin_step(env);
    assert_int_equal(alive(), before);
}

static void leaf_of_an_earlier_step_is_freed_at_once(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *x = leaf(env);
    (void)cairn_sum(x);
    env->begin_step(env);
    const uint64_t before = alive();
    cairn_tensor_destroy(&x);
    assert_true(alive() < before);
}

static void leaf_that_no_grad_alone_used_is_freed_with_it(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *f = constant(env);
    cairn_no_grad_begin(env);
    cairn_no_grad_begin(env);
    cairn_tensor *v = cairn_transpose(f, 0, 1);
    assert_int_equal(cairn_no_grad_end(env), CAIRN_OK);
    cairn_tensor_destroy(&f);
    assert_values(v, 1, 3, 2, 4);
    const uint64_t before = alive();
    assert_int_equal(cairn_no_grad_end(env), CAIRN_OK);
    assert_true(alive() < before);
}

static void leaf_of_step_and_no_grad_waits_for_the_step(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *x = leaf(env), *f = constant(env), *loss = cairn_sum(cairn_mul(x, f));
    cairn_no_grad_begin(env);
    assert_non_null(cairn_sum(f));
    cairn_tensor_destroy(&f);
    assert_int_equal(cairn_no_grad_end(env), CAIRN_OK);
    assert_int_equal(cairn_backward(loss), CAIRN_OK);
    assert_memory_equal(cairn_tensor_grad(x), four, sizeof(four));
}

static cairn_tensor *multiply(void *ctx, cairn_tensor *const *inputs, int count) {
    (void)count;
    return cairn_mul(inputs[0], ctx);
}

static void checkpoint_keeps_a_leaf_that_was_destroyed(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *x = leaf(env), *f = constant(env), *inner = f;
    cairn_tensor *loss = cairn_sum(cairn_checkpoint(multiply, inner, (cairn_tensor *[]){x}, 1));
    cairn_tensor_destroy(&f);
    cairn_tensor *second = cairn_sum(cairn_checkpoint(multiply, inner, (cairn_tensor *[]){x}, 1));
    assert_int_equal(cairn_backward(cairn_add(loss, second)), CAIRN_OK);
    for (int i = 0; i < 4; i++) assert_true(cairn_tensor_grad(x)[i] == 2 * four[i]);
}

/* A graph's tape and the one beside it both use the leaf: it waits for both. */
static void leaf_waits_for_every_tape(void **state) {
    cairn_env *env = test_env_of(state);
    void *graphs = NULL;
    cairn_tensor *f = constant(env), *v = cairn_transpose(f, 0, 1);
    assert_int_equal(env->fork_results(env, &graphs), CAIRN_OK);
    void *const beside = env->use_results(env, graphs);
    assert_non_null(cairn_sum(f));
    assert_ptr_equal(env->use_results(env, beside), graphs);
    cairn_tensor_destroy(&f);
    env->end_results(graphs);
    assert_values(v, 1, 3, 2, 4);
    const uint64_t before = alive();
    env->begin_step(env);
    assert_true(alive() < before);
}

/* ---- modules ---- */

static const char DESTROYED[] =
    "backward: a module whose parameters this graph used (in its linear) has been destroyed";

static void backward_refuses_a_graph_of_a_destroyed_module(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_module *m = cairn_linear(env, 2, 2);
    cairn_tensor *x = leaf(env), *y = cairn_module_forward(m, x), *loss = cairn_sum(y);
    float before[4], after[4];
    assert_int_equal(cairn_tensor_read(y, before, 4), CAIRN_OK);
    cairn_module_destroy(&m);
    assert_int_equal(cairn_tensor_read(y, after, 4), CAIRN_OK);
    assert_memory_equal(before, after, sizeof(before));
    assert_int_equal(cairn_backward(loss), CAIRN_ESTATE);
    assert_string_equal(cairn_last_error(), DESTROYED);
    assert_null(cairn_tensor_grad(x));
}

static cairn_tensor *run_module(void *ctx, cairn_tensor *const *inputs, int count) {
    (void)count;
    return cairn_module_forward(ctx, inputs[0]);
}

static void backward_of_a_checkpoint_refuses_a_destroyed_module(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_module *m = cairn_linear(env, 2, 2);
    cairn_tensor *x = leaf(env), *loss = cairn_sum(cairn_checkpoint(run_module, m, (cairn_tensor *[]){x}, 1));
    cairn_module_destroy(&m);
    assert_int_equal(cairn_backward(loss), CAIRN_ESTATE);
    assert_non_null(strstr(cairn_last_error(), "has been destroyed"));
}

static void view_of_a_destroyed_parameter_is_an_error(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_module *m = cairn_linear(env, 2, 2);
    cairn_tensor *v = cairn_detach(cairn_transpose(m->handles[0], 0, 1)), *x = leaf(env);
    cairn_tensor *loss = cairn_sum(cairn_mul(x, v));
    cairn_module_destroy(&m);
    assert_int_equal(cairn_backward(loss), CAIRN_ESTATE);
    assert_null(cairn_relu(v));
    assert_string_equal(cairn_last_error(),
                        "relu: the tensor is a parameter of a module that has been destroyed, or a view of one");
}

static void graphs_without_the_module_go_on(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_module *m = cairn_linear(env, 2, 2);
    cairn_tensor *x = leaf(env), *loss = cairn_sum(x);
    assert_non_null(cairn_module_forward(m, x));
    cairn_module_destroy(&m);
    assert_int_equal(cairn_backward(loss), CAIRN_OK);
    env->begin_step(env);
    assert_int_equal(cairn_backward(cairn_sum(x)), CAIRN_OK);
}

static void buffers_of_a_destroyed_module_wait_for_the_step(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_module *m = cairn_batch_norm(env, 2, 1e-5, 0.1);
    cairn_tensor *v = cairn_detach(cairn_module_buffer(m, 1, NULL));
    float values[2];
    cairn_module_destroy(&m);
    assert_int_equal(cairn_tensor_read(v, values, 2), CAIRN_OK);
    assert_true(values[0] == 1 && values[1] == 1);
}

static void modules_made_and_destroyed_in_each_step_leave_nothing(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *x = leaf(env);
    uint64_t before = 0;
    for (int i = 0; i < 20; i++) {
        env->begin_step(env);
        if (i == 5) before = alive();
        cairn_module *m = cairn_linear(env, 2, 2);
        assert_non_null(cairn_module_forward(m, x));
        cairn_module_destroy(&m);
    }
    env->begin_step(env);
    assert_int_equal(alive(), before);
}

/* ---- failures ---- */

static const char BAD[] = "cross_entropy: target 1 is 3: neither one of 2 classes nor ignore_index -100";

static cairn_tensor *bad_loss(cairn_env *env, cairn_tensor *x) {
    cairn_tensor *t = cairn_tensor_from(env, CAIRN_I64, CAIRN_SHAPE(2), (const int64_t[]){0, 3});
    cairn_tensor *loss = cairn_cross_entropy(x, t, NULL);
    cairn_tensor_destroy(&t);
    return loss;
}

static int errors;
static char last_log[256];

static void keep_log(void *cookie, cairn_log_level level, const char *message) {
    (void)cookie;
    if (level != CAIRN_LOG_ERROR) return;
    errors++;
    snprintf(last_log, sizeof(last_log), "%s", message);
}

static void failure_stays_with_its_step(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *x = leaf(env), *loss = bad_loss(env, x);
    float values[4];
    for (int i = 0; i < 2; i++) {
        assert_true(isnan(cairn_tensor_item(loss)));
        assert_string_equal(cairn_last_error(), BAD);
        assert_int_equal(cairn_backward_with(loss, cairn_backward_options(.retain_graph = CAIRN_ON)), CAIRN_EINVAL);
        assert_string_equal(cairn_last_error(), BAD);
    }
    assert_null(cairn_tensor_keep(loss));
    assert_int_equal(cairn_tensor_format(loss, NULL, 0), -1);
    assert_int_equal(cairn_tensor_read(x, values, 4), CAIRN_OK);
    cairn_set_log(keep_log, NULL);
    errors = 0;
    env->begin_step(env);
    assert_int_equal(errors, 0);
    cairn_set_log(NULL, NULL);
    assert_int_equal(cairn_backward(cairn_sum(x)), CAIRN_OK);
}

static void failure_that_no_call_returned_is_logged(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *x = leaf(env);
    assert_non_null(bad_loss(env, x));
    cairn_set_log(keep_log, NULL);
    errors = 0;
    env->begin_step(env);
    cairn_set_log(NULL, NULL);
    assert_int_equal(errors, 1);
    assert_non_null(strstr(last_log, BAD));
    assert_int_equal(cairn_backward(cairn_sum(x)), CAIRN_OK);
}

static void failed_evaluation_fails_no_step(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *x = leaf(env), *loss = cairn_sum(x);
    cairn_no_grad_begin(env);
    assert_true(isnan(cairn_tensor_item(bad_loss(env, x))));
    assert_true(isnan(cairn_tensor_item(cairn_sum(x))));
    assert_int_equal(cairn_no_grad_end(env), CAIRN_OK);
    cairn_no_grad_begin(env);
    assert_true(cairn_tensor_item(cairn_sum(x)) == 10);
    assert_int_equal(cairn_no_grad_end(env), CAIRN_OK);
    assert_int_equal(cairn_backward(loss), CAIRN_OK);
}

static void failed_step_fails_behind_an_evaluation(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *x = leaf(env), *loss = bad_loss(env, x);
    cairn_no_grad_begin(env);
    assert_true(cairn_tensor_item(cairn_sum(x)) == 10);
    assert_int_equal(cairn_no_grad_end(env), CAIRN_OK);
    assert_int_equal(cairn_backward(loss), CAIRN_EINVAL);
    assert_string_equal(cairn_last_error(), BAD);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        ENV_TEST(graph_keeps_a_leaf_that_was_destroyed),
        ENV_TEST(leaf_that_requires_a_gradient_may_be_destroyed_before_backward),
        ENV_TEST(view_keeps_a_leaf_that_was_destroyed),
        ENV_TEST(destroyed_leaf_is_freed_when_its_step_is_over),
        ENV_TEST(leaf_of_an_earlier_step_is_freed_at_once),
        ENV_TEST(leaf_that_no_grad_alone_used_is_freed_with_it),
        ENV_TEST(leaf_of_step_and_no_grad_waits_for_the_step),
        ENV_TEST(checkpoint_keeps_a_leaf_that_was_destroyed),
        ENV_TEST(leaf_waits_for_every_tape),
        ENV_TEST(backward_refuses_a_graph_of_a_destroyed_module),
        ENV_TEST(backward_of_a_checkpoint_refuses_a_destroyed_module),
        ENV_TEST(view_of_a_destroyed_parameter_is_an_error),
        ENV_TEST(graphs_without_the_module_go_on),
        ENV_TEST(buffers_of_a_destroyed_module_wait_for_the_step),
        ENV_TEST(modules_made_and_destroyed_in_each_step_leave_nothing),
        ENV_TEST(failure_stays_with_its_step),
        ENV_TEST(failure_that_no_call_returned_is_logged),
        ENV_TEST(failed_evaluation_fails_no_step),
        ENV_TEST(failed_step_fails_behind_an_evaluation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
