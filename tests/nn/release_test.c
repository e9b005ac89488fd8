/* When results are released: tensors that modules create but do not return, and those that cairn_release_results frees.
 * forget_test covers all operations, lifetimes_test random programs. */
#include <math.h>
#include <string.h>

#include "nn/module.h"
#include "nn/tensor.h"
#include "test_env.h"

enum { N = 1 << 10 };

static cairn_tensor *leaf(cairn_env *env) {
    cairn_tensor *x = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(N));
    assert_int_equal(cairn_tensor_require_grad(x), CAIRN_OK);
    return x;
}

static size_t used(cairn_env *env) {
    return cairn__tape_memory(env).values.used;
}

static void assert_alive(const cairn_tensor *t) {
    float values[N];
    if (cairn_tensor_read(t, values, t->n) != CAIRN_OK) fail_msg("%s", cairn_last_error());
}

static void assert_ended(const cairn_tensor *t) {
    float values[N];
    assert_int_equal(cairn_tensor_read(t, values, t->n), CAIRN_ESTATE);
    assert_string_equal(cairn_last_error(),
                        "read: the tensor was made inside a module that did not return it, and ended with that forward "
                        "or, where it requires a gradient, with backward; use cairn_tensor_keep to hold it");
}

/* ---- a module that keeps handles of what it makes ---- */

struct keeper {
    cairn_tensor *square, *mask;
    cairn_status released;
};

/* exp(x^2) where x > 0 */
static cairn_tensor *keep(cairn_module *module, void *context, cairn_tensor *const *inputs, int count) {
    struct keeper *k = context;
    (void)count;
    k->square = cairn_square(inputs[0]);
    k->mask = cairn_mul_scalar(cairn_detach(inputs[0]), 3);
    k->released = cairn_release_results(cairn__module_env(module));
    return cairn_mul(cairn_exp(k->square), k->mask);
}

static const struct cairn_module_ops keeper_ops = {.struct_size = sizeof(keeper_ops),
                                                   .name = "Keeper",
                                                   .forward = keep};

static void what_a_module_kept_ends_with_backward(void **state) {
    cairn_env *env = test_env_of(state);
    struct keeper k;
    cairn_module *m = cairn_module_create(env, &keeper_ops, &k);
    cairn_tensor *x = leaf(env), *y = cairn_module_forward(m, x), *own = cairn_square(y), *loss = cairn_sum(own);
    assert_alive(k.square);
    assert_ended(k.mask); /* backward reads it all the same */
    assert_int_equal(cairn_backward(loss), CAIRN_OK);
    assert_ended(k.square);
    assert_null(cairn_relu(k.square));
    assert_null(cairn_tensor_keep(k.square));
    assert_int_equal(cairn_backward_with(k.square, NULL), CAIRN_ESTATE);
    assert_alive(y);
    assert_alive(own);
    assert_alive(loss);
    cairn_module_destroy(&m);
}

static void retained_graph_keeps_what_modules_made(void **state) {
    cairn_env *env = test_env_of(state);
    struct keeper k;
    cairn_module *m = cairn_module_create(env, &keeper_ops, &k);
    cairn_tensor *x = leaf(env), *loss = cairn_sum(cairn_module_forward(m, x));
    const size_t before = used(env);
    float once[N];
    assert_int_equal(cairn_backward_with(loss, cairn_backward_options(.retain_graph = CAIRN_ON)), CAIRN_OK);
    memcpy(once, cairn_tensor_grad(x), sizeof(once));
    assert_alive(k.square);
    for (int i = 0; i < 4; i++) assert_non_null(cairn_relu(x));
    assert_true(used(env) >= before + 4 * N * sizeof(float));
    cairn_tensor_clear_grad(x);
    assert_int_equal(cairn_backward(loss), CAIRN_OK);
    assert_memory_equal(once, cairn_tensor_grad(x), sizeof(once));
    assert_ended(k.square);
    cairn_module_destroy(&m);
}

/* The second output is an input of the program's: its own graph outlives the first loss. */
static void losses_that_share_values_keep_what_the_other_reads(void **state) {
    cairn_env *env = test_env_of(state);
    struct keeper k;
    cairn_module *m = cairn_module_create(env, &keeper_ops, &k);
    cairn_tensor *x = leaf(env), *z = leaf(env);
    cairn_tensor *y = cairn_module_forward(m, x), *second = cairn_sum(cairn_mul(z, cairn_detach(k.square)));
    float want[N];
    assert_int_equal(cairn_tensor_read(k.square, want, N), CAIRN_OK);
    assert_int_equal(cairn_backward(cairn_sum(y)), CAIRN_OK);
    for (int i = 0; i < 8; i++) assert_non_null(cairn_mul_scalar(x, NAN)); /* over what was given back */
    assert_int_equal(cairn_backward(second), CAIRN_OK);
    assert_memory_equal(cairn_tensor_grad(z), want, sizeof(want));
    cairn_module_destroy(&m);
}

static void no_grad_ends_what_modules_made_when_they_return(void **state) {
    cairn_env *env = test_env_of(state);
    struct keeper k;
    cairn_module *m = cairn_module_create(env, &keeper_ops, &k);
    cairn_tensor *x = leaf(env);
    cairn_no_grad_begin(env);
    cairn_tensor *y = cairn_module_forward(m, x);
    assert_ended(k.square);
    assert_ended(k.mask);
    assert_alive(y);
    assert_int_equal(cairn_no_grad_end(env), CAIRN_OK);
    cairn_module_destroy(&m);
}

/* ---- memory ---- */

enum { LAYERS = 40 };

static cairn_module *deep(cairn_env *env) {
    cairn_module *layers[LAYERS];
    for (int i = 0; i < LAYERS; i++)
        layers[i] = i % 2 ? cairn_layer_norm(env, CAIRN_SHAPE(N), 1e-5) : cairn_activation(env, cairn_sigmoid);
    return cairn_sequential(env, LAYERS, layers);
}

static void layers_in_a_row_use_each_others_memory_under_no_grad(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_module *m = deep(env);
    cairn_tensor *x = leaf(env);
    cairn_no_grad_begin(env);
    assert_alive(cairn_module_forward(m, x));
    assert_true(used(env) < 4 * N * sizeof(float));
    assert_int_equal(cairn_no_grad_end(env), CAIRN_OK);
    cairn_module_destroy(&m);
}

typedef cairn_tensor *(*loss_fn)(cairn_env *env, cairn_module *m, cairn_tensor *x);

static cairn_tensor *through_a_module(cairn_env *env, cairn_module *m, cairn_tensor *x) {
    (void)env;
    return cairn_sum(cairn_module_forward(m, x));
}

/* With an evaluation in between, which is to leave what was given back. */
static cairn_tensor *beside_an_evaluation(cairn_env *env, cairn_module *m, cairn_tensor *x) {
    cairn_no_grad_begin(env);
    assert_alive(cairn_module_forward(m, x));
    assert_int_equal(cairn_no_grad_end(env), CAIRN_OK);
    return cairn_sum(cairn_module_forward(m, x));
}

static cairn_tensor *run(void *ctx, cairn_tensor *const *inputs, int count) {
    (void)count;
    return cairn_sum(cairn_module_forward(ctx, inputs[0]));
}

static cairn_tensor *through_a_checkpoint(cairn_env *env, cairn_module *m, cairn_tensor *x) {
    (void)env;
    return cairn_checkpoint(run, m, &x, 1);
}

static cairn_tensor *evaluated_checkpoint(cairn_env *env, cairn_module *m, cairn_tensor *x) {
    cairn_no_grad_begin(env);
    const size_t before = used(env);
    assert_alive(cairn_checkpoint(run, m, &x, 1));
    assert_true(used(env) < before + 4 * N * sizeof(float));
    assert_int_equal(cairn_no_grad_end(env), CAIRN_OK);
    return through_a_checkpoint(env, m, x);
}

/* What operations made of others make in between. */
static cairn_tensor *composed(cairn_env *env, cairn_module *m, cairn_tensor *x) {
    (void)env, (void)m;
    return cairn_cosine_similarity(x, x, 0, 1e-8);
}

static void micro_batches_use_each_others_memory(void **state) {
    cairn_env *env = test_env_of(state);
    static const loss_fn ways[] = {through_a_module, beside_an_evaluation, through_a_checkpoint, evaluated_checkpoint,
                                   composed};
    cairn_module *m = deep(env);
    cairn_tensor *x = leaf(env);
    for (size_t w = 0; w < sizeof(ways) / sizeof(ways[0]); w++) {
        size_t first = 0;
        env->begin_step(env);
        for (int i = 0; i < 20; i++) {
            assert_int_equal(cairn_backward(ways[w](env, m, x)), CAIRN_OK);
            if (i == 1) first = used(env);
        }
        /* the module's output and the losses are the program's */
        if (used(env) > first + 18 * (N * sizeof(float) + 256)) fail_msg("way %zu: %zu, then %zu", w, first, used(env));
    }
    cairn_module_destroy(&m);
}

static void released_micro_batches_stand_in_one_place(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *x = leaf(env);
    const void *place = NULL;
    for (int i = 0; i < 10; i++) {
        cairn_tensor *y = cairn_square(x), *loss = cairn_sum(cairn_exp(y));
        if (i > 1) assert_ptr_equal(y->data, place);
        place = y->data;
        assert_int_equal(cairn_backward(loss), CAIRN_OK);
        assert_int_equal(cairn_release_results(env), CAIRN_OK);
    }
}

/* ---- release ---- */

static void release_ends_results_and_keeps_gradients(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *x = leaf(env);
    float once[N];
    for (int i = 1; i <= 3; i++) {
        cairn_tensor *y = cairn_square(x), *loss = cairn_sum(y);
        assert_int_equal(cairn_backward(loss), CAIRN_OK);
        assert_int_equal(cairn_release_results(env), CAIRN_OK);
        assert_true(isnan(cairn_tensor_item(loss)));
        assert_non_null(strstr(cairn_last_error(), "or was released (cairn_release_results)"));
        assert_null(cairn_relu(y));
        const float *grad = cairn_tensor_grad(x);
        if (i == 1) memcpy(once, grad, sizeof(once));
        for (int k = 0; i == 2 && k < N; k++) assert_true(grad[k] == 2 * once[k]);
    }
}

static void use_of_a_released_result_is_refused_for_three_releases(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *x = leaf(env), *old = cairn_sum(x);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(cairn_release_results(env), CAIRN_OK);
        for (int k = 0; k < 8; k++) assert_non_null(cairn_sum(x));
        assert_true(isnan(cairn_tensor_item(old)));
        assert_int_equal(cairn_backward(old), CAIRN_ESTATE);
    }
}

static void release_frees_leaves_that_waited_for_it(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *x = leaf(env), *f = leaf(env), *loss = cairn_sum(cairn_mul(x, f));
    cairn_tensor_destroy(&f);
    assert_int_equal(cairn_backward(loss), CAIRN_OK);
    const uint64_t before = cairn__alloc_counters().alive;
    assert_int_equal(cairn_release_results(env), CAIRN_OK);
    assert_true(cairn__alloc_counters().alive < before);
}

/* The gradients that it went into stay, and so does what is known of them. */
static void release_keeps_a_failure_of_the_step(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *x = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(2, 2));
    cairn_tensor *t = cairn_tensor_from(env, CAIRN_I64, CAIRN_SHAPE(2), (const int64_t[]){0, 3});
    assert_int_equal(cairn_tensor_require_grad(x), CAIRN_OK);
    assert_non_null(cairn_cross_entropy(x, t, NULL));
    assert_int_equal(cairn_release_results(env), CAIRN_OK);
    assert_int_equal(cairn_backward(cairn_sum(x)), CAIRN_EINVAL);
    assert_non_null(strstr(cairn_last_error(), "target 1 is 3"));
    env->begin_step(env);
    assert_int_equal(cairn_backward(cairn_sum(x)), CAIRN_OK);
}

static cairn_tensor *release_inside(void *ctx, cairn_tensor *const *inputs, int count) {
    (void)count;
    *(cairn_status *)ctx = cairn_release_results(inputs[0]->env);
    return cairn_square(inputs[0]);
}

static cairn_status custom_copy(void *ctx, struct cairn_custom_array *y, const struct cairn_custom_array *x,
                                int count) {
    (void)ctx, (void)count;
    memcpy(y->data, x->data, y->n * sizeof(float));
    return CAIRN_OK;
}

static cairn_status release_in_backward(void *ctx, struct cairn_custom_array *dx, const struct cairn_custom_array *dy,
                                        const struct cairn_custom_array *y, const struct cairn_custom_array *x,
                                        int count) {
    (void)y, (void)x, (void)count;
    memcpy(dx->data, dy->data, dy->n * sizeof(float));
    return cairn_release_results(ctx) == CAIRN_ESTATE ? CAIRN_OK : CAIRN_EINTERNAL;
}

static const char WITHIN[] =
    "release_results: called within a module's forward, a checkpoint or a backward, which use the results";

static void release_is_refused_where_results_are_in_use(void **state) {
    cairn_env *env = test_env_of(state);
    const struct cairn_custom_op op = {.struct_size = sizeof(op),
                                       .name = "copy",
                                       .forward = custom_copy,
                                       .backward = release_in_backward};
    struct keeper k;
    cairn_module *m = cairn_module_create(env, &keeper_ops, &k);
    cairn_tensor *x = leaf(env);
    assert_int_equal(cairn_release_results(NULL), CAIRN_EINVAL);
    assert_non_null(cairn_module_forward(m, x));
    assert_int_equal(k.released, CAIRN_ESTATE);
    assert_string_equal(cairn_last_error(), WITHIN);
    cairn_status st = CAIRN_OK;
    cairn_tensor *y = cairn_checkpoint(release_inside, &st, &x, 1);
    assert_int_equal(st, CAIRN_ESTATE);
    y = cairn_custom(&op, env, CAIRN_F32, CAIRN_SHAPE(N), &y, 1);
    assert_int_equal(cairn_backward(cairn_sum(y)), CAIRN_OK);
    cairn_module_destroy(&m);
}

/* ---- casts of parameters ---- */

static cairn_status everything_in_f16(void *ctx, const struct cairn__op_question *q, cairn_dtype *out) {
    (void)ctx, (void)q;
    *out = CAIRN_F16;
    return CAIRN_OK;
}

/* Also one that was made while a backward still waited for that of the weights before. */
static void cast_of_a_parameter_outlives_its_module(void **state) {
    cairn_env *env = test_env_of(state);
    const struct cairn__op_hook hook = {.compute_type = everything_in_f16};
    cairn_module *m = cairn_linear(env, 8, 8);
    cairn_tensor *x = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(8, 8));
    float want[64], got[64];
    cairn__set_op_hook(env, &hook);
    for (int i = 0; i < 3; i++) {
        cairn_tensor *loss = cairn_sum(cairn_module_forward(m, x));
        if (i == 1) assert_int_equal(cairn_param_changed(cairn_module_params(m), 0, 0), CAIRN_OK);
        cairn_tensor *y = cairn_module_forward(m, x), *other = cairn_sum(y);
        assert_int_equal(cairn_tensor_read(y, want, 64), CAIRN_OK);
        assert_int_equal(cairn_backward(loss), CAIRN_OK);
        assert_int_equal(cairn_backward(other), CAIRN_OK);
        for (int k = 0; k < 8; k++) assert_non_null(cairn_mul_scalar(x, NAN)); /* over what was given back */
        assert_int_equal(cairn_tensor_read(cairn_module_forward(m, x), got, 64), CAIRN_OK);
        assert_memory_equal(got, want, sizeof(want));
    }
    cairn_module_destroy(&m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        ENV_TEST(what_a_module_kept_ends_with_backward),
        ENV_TEST(retained_graph_keeps_what_modules_made),
        ENV_TEST(losses_that_share_values_keep_what_the_other_reads),
        ENV_TEST(no_grad_ends_what_modules_made_when_they_return),
        ENV_TEST(layers_in_a_row_use_each_others_memory_under_no_grad),
        ENV_TEST(micro_batches_use_each_others_memory),
        ENV_TEST(released_micro_batches_stand_in_one_place),
        ENV_TEST(release_ends_results_and_keeps_gradients),
        ENV_TEST(use_of_a_released_result_is_refused_for_three_releases),
        ENV_TEST(release_frees_leaves_that_waited_for_it),
        ENV_TEST(release_keeps_a_failure_of_the_step),
        ENV_TEST(release_is_refused_where_results_are_in_use),
        ENV_TEST(cast_of_a_parameter_outlives_its_module),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
