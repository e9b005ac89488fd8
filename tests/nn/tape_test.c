/* Lifetimes: results die with their step and later uses report it, kept ones live on, a steady step allocates nothing,
 * and NULL inputs give NULL. */
#include <math.h>
#include <string.h>

#include "core/status.h"
#include "nn/tensor.h"
#include "test_env.h"

static const float four[] = {1, 2, 3, 4};

static cairn_tensor *leaf(cairn_env *env) {
    cairn_tensor *x = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(4), four);
    assert_int_equal(cairn_tensor_require_grad(x), CAIRN_OK);
    return x;
}

static void use_after_the_step_is_an_error(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *y = cairn_sum(leaf(env));
    assert_true(cairn_tensor_item(y) == 10.0f);
    env->begin_step(env);
    assert_true(isnan(cairn_tensor_item(y)));
    assert_string_equal(cairn_last_error(),
                        "read: the tensor is the result of an earlier step (cairn_zero_grad begins one, "
                        "cairn_optimizer_clear_grads does not) or was released (cairn_release_results); use "
                        "cairn_tensor_keep to hold it");
    assert_int_equal(cairn_backward(y), CAIRN_ESTATE);
    assert_null(cairn_relu(y));
    assert_null(cairn_tensor_keep(y));
    assert_int_equal(cairn_tensor_dtype(y), 0);
    assert_int_equal(cairn_tensor_ndim(y), -1);
    assert_int_equal(cairn_tensor_size(y, 0), -1);
    assert_int_equal(cairn_tensor_numel(y), 0);
}

/* The header of a result is still intact one, two and three steps later, under new results. */
static void stale_use_is_refused_for_three_steps(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *x = leaf(env), *old = cairn_sum(x);
    for (int i = 0; i < 3; i++) {
        env->begin_step(env);
        for (int j = 0; j < 10; j++) assert_non_null(cairn_sum(x));
        assert_null(cairn_relu(old));
    }
}

static void kept_result_outlives_its_step(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *x = leaf(env);
    cairn_tensor *kept = cairn_tensor_keep(cairn_mul_scalar(x, 2));
    env->begin_step(env);
    assert_non_null(cairn_mul_scalar(x, 5));
    float values[4];
    assert_int_equal(cairn_tensor_read(kept, values, 4), CAIRN_OK);
    const float want[] = {2, 4, 6, 8};
    assert_memory_equal(values, want, sizeof(want));
    cairn_tensor_destroy(&kept);
    assert_null(kept);
}

static void written_leaf_has_its_new_values_in_its_old_memory(void **state) {
    cairn_env *env = test_env_of(state);
    const float batch[] = {5, 6, 7, 8};
    const uint16_t ones[] = {0x3c00, 0x3c00};
    float values[4];
    cairn_tensor *x = leaf(env);
    const void *memory = x->data;
    assert_int_equal(cairn_tensor_write(x, batch, 4), CAIRN_OK);
    assert_int_equal(cairn_tensor_read(x, values, 4), CAIRN_OK);
    assert_memory_equal(values, batch, sizeof(batch));
    assert_ptr_equal(x->data, memory);
    cairn_tensor *half = cairn_tensor_from(env, CAIRN_F16, CAIRN_SHAPE(2), (const uint16_t[]){0, 0});
    assert_int_equal(cairn_tensor_write(half, ones, 2), CAIRN_OK);
    assert_int_equal(cairn_tensor_read(half, values, 2), CAIRN_OK);
    assert_true(values[0] == 1 && values[1] == 1);
}

static void only_leaves_can_be_written(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *x = leaf(env);
    assert_int_equal(cairn_tensor_write(NULL, four, 4), CAIRN_EINVAL);
    assert_int_equal(cairn_tensor_write(x, NULL, 4), CAIRN_EINVAL);
    assert_int_equal(cairn_tensor_write(x, four, 3), CAIRN_EINVAL);
    assert_string_equal(cairn_last_error(), "write: 3 values are given, but the tensor has 4");
    assert_int_equal(cairn_tensor_write(cairn_relu(x), four, 4), CAIRN_ESTATE);
    assert_string_equal(cairn_last_error(), "write: only a leaf can be written, not a result");
}

static void scaled_losses_do_not_mix(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *x = leaf(env), *scaled = test_scale_loss(cairn_sum(x), 4);
    static const char message[] = "add: one input is a scaled loss and another is not, or was scaled by another call; "
                                  "combine losses before scaling";
    assert_null(cairn_add(scaled, cairn_sum(x)));
    assert_string_equal(cairn_last_error(), message);
    assert_null(cairn_add(scaled, test_scale_loss(cairn_sum(x), 4)));
    assert_string_equal(cairn_last_error(), message);
    assert_null(test_scale_loss(cairn_mul_scalar(scaled, 2), 4));
    assert_string_equal(cairn_last_error(), "scale_loss: the loss is scaled already");
    assert_int_equal(cairn_backward(NULL), CAIRN_ESTATE);
    assert_null(test_scale_loss(x, 4));
    assert_string_equal(cairn_last_error(), "scale_loss: the loss must have one element, but its shape is [4]");
    assert_non_null(cairn_add(scaled, scaled));
}

static void backward_gives_every_set_the_address_of_its_factor(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_module *m = cairn_linear(env, 4, 1);
    cairn_param_set *set = cairn_module_params(m);
    cairn_tensor *x = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(1, 4), four);
    assert_int_equal(cairn_backward(test_scale_loss(cairn_sum(cairn_module_forward(m, x)), 3)), CAIRN_OK);
    assert_true(set->scale->factor == (float)(1.0 / 3.0));
    assert_true(((const float *)cairn__grad_memory(set->params[1]->gradient))[0] == 3.0f);
    assert_int_equal(cairn_backward(cairn_sum(cairn_module_forward(m, x))), CAIRN_OK);
    assert_null(set->scale);
    cairn_module_destroy(&m);
}

static void destroyed_leaf_gives_its_memory_back(void **state) {
    cairn_env *env = test_env_of(state);
    uint64_t alive = cairn__alloc_counters().alive;
    cairn_tensor *a = leaf(env), *b = leaf(env), *c = leaf(env);
    cairn_tensor_destroy(&b);
    cairn_tensor_destroy(&a);
    cairn_tensor_destroy(&c);
    cairn_tensor_destroy(&c);
    assert_int_equal(cairn__alloc_counters().alive, alive);
}

static void null_passes_on_with_its_first_cause(void **state) {
    cairn_env *env = test_env_of(state);
    const int64_t three[] = {3};
    cairn_tensor *a = leaf(env), *b = cairn_tensor_from(env, CAIRN_F32, 1, three, four);
    cairn_tensor *y = cairn_sum(cairn_relu(cairn_mul_scalar(cairn_add(a, b), 2)));
    assert_null(y);
    assert_int_equal(cairn_backward(y), CAIRN_EINVAL);
    assert_string_equal(cairn_last_error(), "add: [4] and [3] do not broadcast: sizes 4 and 3 in dimension -1");
    assert_null(cairn_mean(NULL));
    assert_null(cairn_mse_loss(a, NULL));
    assert_null(cairn_cast(NULL, CAIRN_F16));
    assert_null(cairn_linear_forward(NULL, a, b));
    assert_null(test_scale_loss(NULL, 2));
    assert_null(cairn_module_forward(NULL, a));
    assert_null(cairn_tensor_keep(NULL));
    assert_true(isnan(cairn_tensor_item(NULL)));
    assert_string_equal(cairn_last_error(), "add: [4] and [3] do not broadcast: sizes 4 and 3 in dimension -1");
}

static void graph_is_consumed_by_its_backward(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *x = leaf(env), *shared = cairn_relu(x);
    cairn_tensor *loss = cairn_sum(shared);
    assert_int_equal(cairn_backward(loss), CAIRN_OK);
    assert_int_equal(cairn_backward(loss), CAIRN_ESTATE);
    assert_string_equal(
        cairn_last_error(),
        "backward: an earlier backward has consumed this graph (its sum); compute the loss again, or give "
        "retain_graph to cairn_backward_with before");
    assert_int_equal(cairn_backward(cairn_mean(shared)), CAIRN_ESTATE);
    assert_true(cairn_tensor_grad(x)[0] == 1.0f); /* a refused graph changes nothing */
}

static void backward_refuses_more_than_one_element_and_no_gradient(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *x = leaf(env), *plain = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(4), four);
    assert_int_equal(cairn_backward(cairn_relu(x)), CAIRN_EINVAL);
    assert_string_equal(cairn_last_error(), "backward: the loss must be one element, not [4]");
    assert_int_equal(cairn_backward(cairn_sum(plain)), CAIRN_EINVAL);
    assert_string_equal(cairn_last_error(), "backward: nothing that the loss depends on requires a gradient");
}

static void only_leaves_can_require_gradients(void **state) {
    cairn_env *env = test_env_of(state);
    assert_int_equal(cairn_tensor_require_grad(NULL), CAIRN_EINVAL);
    assert_int_equal(cairn_tensor_require_grad(cairn_sum(leaf(env))), CAIRN_ESTATE);
    assert_string_equal(cairn_last_error(), "require_grad: only a leaf can require a gradient, not a result");
    assert_null(cairn_tensor_grad(cairn_sum(leaf(env))));
}

/* Several layers and types, more than one arena chunk. */
static void step(cairn_env *env, cairn_module *m, cairn_tensor *x) {
    cairn__param_set_zero_grad(cairn_module_params(m));
    cairn_tensor *y = cairn_relu(cairn_module_forward(m, cairn_relu(cairn_module_forward(m, x))));
    cairn_tensor *half = cairn_cast(y, CAIRN_F16);
    cairn_tensor *loss = cairn_add(cairn_mean(cairn_mul_scalar(half, 3)), cairn_sum(y));
    assert_int_equal(cairn_backward(test_scale_loss(loss, 8)), CAIRN_OK);
    (void)env;
}

static void steady_step_allocates_nothing(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_module *m = cairn_linear(env, 128, 128);
    cairn_tensor *x = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(128, 128));
    for (int i = 0; i < 5; i++) step(env, m, x);
    uint64_t before = cairn__alloc_counters().allocations;
    for (int i = 0; i < 20; i++) step(env, m, x);
    assert_int_equal(cairn__alloc_counters().allocations, before);
    cairn_module_destroy(&m);
}

static void equal_steps_give_equal_bits(void **state) {
    cairn_env *env = test_env_of(state);
    enum { N = 128 * 128 };
    static float first[N];
    cairn_module *m = cairn_linear(env, 128, 128);
    cairn_tensor *x = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(128, 128));
    step(env, m, x);
    memcpy(first, cairn__grad_memory(cairn_module_params(m)->params[0]->gradient), sizeof(first));
    for (int i = 0; i < 3; i++) step(env, m, x);
    assert_memory_equal(cairn__grad_memory(cairn_module_params(m)->params[0]->gradient), first, sizeof(first));
    cairn_module_destroy(&m);
}

static void environments_do_not_mix(void **state) {
    cairn_env *env = test_env_of(state), *other = test_env_create(1, 0);
    assert_null(cairn_add(leaf(env), leaf(other)));
    assert_string_equal(cairn_last_error(), "add: the tensors belong to different environments");
    test_env_destroy(other);
}

/* A listener that counts, and fails where the test wants it to. */
struct listening {
    struct cairn__grad_listener listener;
    cairn_status of_progress, of_settle;
    int ready, settled, aborted;
};

static void count_ready(void *ctx, size_t index) {
    (void)index;
    ((struct listening *)ctx)->ready++;
}

static cairn_status tell_progress(void *ctx) {
    return ((struct listening *)ctx)->of_progress;
}

static cairn_status tell_settle(void *ctx) {
    struct listening *l = ctx;
    l->settled++;
    return l->of_settle;
}

static void count_abort(void *ctx) {
    ((struct listening *)ctx)->aborted++;
}

static void listen_to(cairn_module *module, struct listening *l) {
    *l = (struct listening){
        .listener = {
            .ctx = l, .ready = count_ready, .progress = tell_progress, .settle = tell_settle, .failed = count_abort}};
    cairn_module_params(module)->listener = &l->listener;
}

static void every_listener_is_called_at_a_backwards_end(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_module *first = cairn_linear(env, 4, 3), *last = cairn_linear(env, 3, 2);
    cairn_tensor *x = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(1, 4), four);
    static const struct {
        cairn_status of_progress, of_settle;  /* of last, which is called first */
        int ready[2], settled[2], aborted[2]; /* first, last */
    } cases[] = {
        {CAIRN_OK, CAIRN_OK, {2, 2}, {1, 1}, {0, 0}},
        {CAIRN_ENOMEM, CAIRN_OK, {0, 0}, {0, 0}, {1, 1}}, /* after the sum's node, before any gradient */
        {CAIRN_OK, CAIRN_EPEER, {2, 2}, {0, 1}, {1, 1}},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct listening l[2];
        listen_to(first, &l[0]), listen_to(last, &l[1]);
        l[1].of_progress = cases[i].of_progress, l[1].of_settle = cases[i].of_settle;
        cairn_tensor *loss = cairn_sum(cairn_module_forward(last, cairn_module_forward(first, x)));
        const cairn_status want = cases[i].of_progress ? cases[i].of_progress : cases[i].of_settle;
        assert_int_equal(cairn_backward(loss), want);
        for (int j = 0; j < 2; j++) {
            assert_int_equal(l[j].ready, cases[i].ready[j]);
            assert_int_equal(l[j].settled, cases[i].settled[j]);
            assert_int_equal(l[j].aborted, cases[i].aborted[j]);
        }
    }
    cairn_module_destroy(&first);
    cairn_module_destroy(&last);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        ENV_TEST(use_after_the_step_is_an_error),
        ENV_TEST(stale_use_is_refused_for_three_steps),
        ENV_TEST(kept_result_outlives_its_step),
        ENV_TEST(written_leaf_has_its_new_values_in_its_old_memory),
        ENV_TEST(only_leaves_can_be_written),
        ENV_TEST(scaled_losses_do_not_mix),
        ENV_TEST(backward_gives_every_set_the_address_of_its_factor),
        ENV_TEST(destroyed_leaf_gives_its_memory_back),
        ENV_TEST(null_passes_on_with_its_first_cause),
        ENV_TEST(graph_is_consumed_by_its_backward),
        ENV_TEST(backward_refuses_more_than_one_element_and_no_gradient),
        ENV_TEST(only_leaves_can_require_gradients),
        ENV_TEST(steady_step_allocates_nothing),
        ENV_TEST(equal_steps_give_equal_bits),
        ENV_TEST(every_listener_is_called_at_a_backwards_end),
        ENV_TEST(environments_do_not_mix),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
