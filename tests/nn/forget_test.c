/* Tensors that backward does not read, as operations declare: the test overwrites them, gradients keep their bits, and
 * their memory is reused. */
#include <math.h>
#include <string.h>

#include "case_run.h"
#include "nn/tensor.h"
#include "test_env.h"

/* ---- honesty, over all cases ---- */

static void poison_gaps(const struct cairn__tape *tape) {
    for (size_t i = 0; i < tape->num_gaps; i++) memset(tape->gaps[i].data, 0xff, tape->gaps[i].nbytes);
}

/* A result with the values of a leaf: something that can be forgotten. */
static cairn_tensor *as_result(cairn_tensor *leaf, const struct op_case *c, int i) {
    if (!case_input_is_float(&c->inputs[i])) return leaf;
    return leaf->ndim > 1 ? cairn_transpose(cairn_mul_scalar(cairn_transpose(leaf, 0, 1), 1), 0, 1)
                          : cairn_mul_scalar(leaf, 1);
}

/* But for the last result, from which backward begins. */
static void forget_all(struct cairn__tape *tape, cairn_tensor *const *in) {
    for (size_t i = 0; i + 1 < tape->count; i++) cairn__forget(tape->nodes[i]->result);
    for (int i = 0; i < CASE_INPUTS; i++) cairn__forget(in[i]);
}

enum { MOST = 1 << 16 };

/* The gradients of all inputs, one behind the other. */
static size_t gradients_of(cairn_env *env, const struct op_case *c, bool forgets, double *grads) {
    struct case_array inputs[CASE_INPUTS];
    cairn_tensor *leaves[CASE_INPUTS] = {NULL}, *in[CASE_INPUTS] = {NULL};
    size_t used = 0;
    case_draw(c, CAIRN_F64, inputs);
    for (int i = 0; i < CASE_INPUTS; i++) {
        if (!inputs[i].values) continue;
        void *values = case_room(inputs[i].n, 8);
        const double *from = inputs[i].values;
        cairn_tensor *wide = cairn_tensor_from(env, CAIRN_F64, inputs[i].ndim, inputs[i].shape, from);
        assert_int_equal(cairn_tensor_read_as(wide, inputs[i].dtype, values, inputs[i].n), CAIRN_OK);
        leaves[i] = cairn_tensor_from(env, inputs[i].dtype, inputs[i].ndim, inputs[i].shape, values);
        if (case_wants(c, i)) cairn_tensor_require_grad(leaves[i]);
        in[i] = as_result(leaves[i], c, i);
        cairn_tensor_destroy(&wide);
        cairn__free(values);
    }
    env->next_stream = 1000;
    cairn_tensor *y = c->build(in);
    if (!y) fail_msg("%s: %s", c->name, cairn_last_error());
    if (y->wants_grad) {
        cairn_tensor *dy = cairn_mul_scalar(y, 0.5), *end = cairn_mul_scalar(y, 1); /* y is an operation's input, too */
        dy = cairn_tensor_keep(dy);
        if (forgets) forget_all(cairn__tape_of(env), in), poison_gaps(cairn__tape_of(env));
        if (cairn_backward_with(end, cairn_backward_options(.grad = dy)) != CAIRN_OK)
            fail_msg("%s: %s", c->name, cairn_last_error());
        cairn_tensor_destroy(&dy);
    }
    for (int i = 0; i < CASE_INPUTS; i++) {
        if (!leaves[i] || !leaves[i]->wants_grad) continue;
        assert_true(used + leaves[i]->n <= MOST);
        assert_int_equal(cairn_tensor_read_grad(leaves[i], grads + used, leaves[i]->n), CAIRN_OK);
        used += leaves[i]->n;
    }
    env->begin_step(env);
    for (int i = 0; i < CASE_INPUTS; i++) cairn_tensor_destroy(&leaves[i]);
    case_arrays_free(inputs, CASE_INPUTS);
    return used;
}

static void backward_reads_nothing_that_may_be_forgotten(void **state) {
    cairn_env *env = test_env_of(state);
    static double want[MOST], got[MOST];
    for (int f = 0; f < NUM_FAMILIES; f++) {
        for (size_t k = 0; k < families[f].cases->count; k++) {
            const struct op_case *c = &families[f].cases->cases[k];
            const size_t n = gradients_of(env, c, false, want);
            assert_int_equal(gradients_of(env, c, true, got), n);
            if (memcmp(got, want, n * sizeof(got[0])) != 0) fail_msg("%s: reads what it says it does not", c->name);
        }
    }
}

/* ---- what comes back ---- */

enum { N = 1 << 12 };

static cairn_tensor *leaf(cairn_env *env) {
    cairn_tensor *x = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(N));
    assert_int_equal(cairn_tensor_require_grad(x), CAIRN_OK);
    return x;
}

static void forgotten_memory_is_the_next_results(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *x = leaf(env), *y = cairn_mul_scalar(x, 2);
    const void *memory = y->data;
    cairn_tensor *z = cairn_relu(y); /* reads its result */
    assert_ptr_not_equal(z->data, memory);
    cairn__forget(y);
    cairn__forget(y);
    assert_ptr_equal(cairn_mul_scalar(z, 3)->data, memory);
    assert_null(cairn_relu(y));
    assert_string_equal(cairn_last_error(),
                        "relu: the tensor was made inside a module that did not return it, and ended with that forward "
                        "or, where it requires a gradient, with backward; use cairn_tensor_keep to hold it");
    assert_true(isnan(cairn_tensor_item(y)));
}

static void results_that_are_still_read_keep_their_memory(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *x = leaf(env), *y = cairn_mul_scalar(x, 2), *z = cairn_square(y), *w = cairn_relu(x);
    const void *of_y = y->data, *of_w = w->data;
    cairn__forget(y); /* square reads it */
    cairn_tensor *view = cairn_reshape(w, CAIRN_SHAPE(N / 2, 2));
    cairn__forget(w); /* relu reads it, and so does the view */
    cairn_tensor *others[] = {cairn_mul_scalar(x, 1), cairn_mul_scalar(z, 1), cairn_mul_scalar(view, 1)};
    for (int i = 0; i < 3; i++) assert_true(others[i]->data != of_y && others[i]->data != of_w);
    cairn__forget(NULL);
    cairn__forget(x);
    assert_non_null(cairn_relu(x));
}

static void view_holds_the_memory_it_shows(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *x = leaf(env), *y = cairn_mul_scalar(x, 2), *rows = cairn_reshape(y, CAIRN_SHAPE(N / 2, 2));
    cairn_tensor *columns = cairn_transpose(rows, 0, 1);
    const void *memory = y->data;
    cairn__forget(rows);
    cairn__forget(y);
    assert_ptr_not_equal(cairn_mul_scalar(x, 1)->data, memory);
    cairn__forget(columns);
    assert_ptr_equal(cairn_mul_scalar(x, 1)->data, memory);
}

static void without_a_graph_everything_forgotten_comes_back(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *x = leaf(env);
    for (int round = 0; round < 3; round++) {
        cairn_no_grad_begin(env);
        cairn_tensor *y = cairn_square(x);
        for (int i = 0; i < 20; i++) {
            cairn_tensor *next = cairn_square(y);
            cairn__forget(y);
            y = next;
        }
        assert_int_equal(cairn__tape_memory(env).values.used, 2 * N * sizeof(float));
        cairn_no_grad_end(env);
    }
}

static cairn_status sums_in_f32(void *ctx, const struct cairn__op_question *q, cairn_dtype *out) {
    (void)ctx;
    if (q->op == CAIRN__OP_SUM) *out = CAIRN_F32;
    return CAIRN_OK;
}

/* Nothing reads the cast that sum needs once there is a sum. */
static void casts_that_operations_make_are_forgotten(void **state) {
    cairn_env *env = test_env_of(state);
    const struct cairn__op_hook hook = {.compute_type = sums_in_f32};
    cairn_tensor *x = leaf(env), *half = cairn_cast(x, CAIRN_F16);
    cairn__set_op_hook(env, &hook);
    cairn_tensor *loss = cairn_sum(half);
    const size_t used = cairn__tape_memory(env).values.used;
    for (int i = 0; i < 10; i++) loss = cairn_add(loss, cairn_sum(half));
    assert_true(cairn__tape_memory(env).values.used <= used + 20 * 64);
    assert_int_equal(cairn_backward(loss), CAIRN_OK);
    assert_true(cairn_tensor_grad(x)[7] == 11);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        ENV_TEST(backward_reads_nothing_that_may_be_forgotten),    ENV_TEST(forgotten_memory_is_the_next_results),
        ENV_TEST(results_that_are_still_read_keep_their_memory),   ENV_TEST(view_holds_the_memory_it_shows),
        ENV_TEST(without_a_graph_everything_forgotten_comes_back), ENV_TEST(casts_that_operations_make_are_forgotten),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
