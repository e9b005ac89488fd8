/* Frozen parameters in graphs: which products backward computes, and the effect of freezing and thawing between forward
 * and backward. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "../mlp.h"
#include "../one_env.h"

enum { ROWS = 3, IN = 4, HIDDEN = 5, OUT = 2, W1 = 0, B1, W2, B2 };

/* ---- products that a device is asked for ---- */

static struct cairn__device_ops counting;
static const struct cairn__device_ops *real;
static int products;

static cairn_status count_product(struct cairn_device *d, const struct cairn__matmul *product) {
    products++;
    return real->matmul(d, product);
}

static void begin_count(cairn_env *env) {
    real = env->device->ops;
    counting = *real;
    counting.matmul = count_product;
    env->device->ops = &counting;
    products = 0;
}

static int end_count(cairn_env *env) {
    env->device->ops = real;
    return products;
}

/* ---- a net ---- */

struct net {
    cairn_module *model;
    cairn_param_set *set;
    cairn_tensor *x;
};

static void begin(struct net *n, cairn_env *env) {
    n->model = make_mlp(env, IN, HIDDEN, OUT);
    n->set = cairn_module_params(n->model);
    n->x = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(ROWS, IN));
}

static void end(struct net *n) {
    cairn_tensor_destroy(&n->x);
    cairn_module_destroy(&n->model);
}

static cairn_tensor *loss_of(const struct net *n) {
    return cairn_mean(cairn_module_forward(n->model, n->x));
}

static bool has_grad(const struct net *n, size_t i) {
    return cairn__grad_exists(n->set->params[i]->gradient);
}

static int backward_products(const struct net *n, cairn_env *env) {
    cairn_param_set_zero_grad(n->set);
    cairn_tensor *loss = loss_of(n);
    begin_count(env);
    OK(cairn_backward(loss));
    return end_count(env);
}

static void a_frozen_parameter_costs_no_product_and_backward_stops_where_no_input_wants_a_gradient(void **state) {
    struct net n;
    begin(&n, *state);
    assert_int_equal(backward_products(&n, *state), 3); /* dW2, dx2, dW1 */
    OK(cairn_param_set_require_grad(n.set, "0.weight", CAIRN_OFF));
    assert_int_equal(backward_products(&n, *state), 2); /* dW2, dx2 for the bias */
    assert_true(has_grad(&n, B1) && !has_grad(&n, W1));
    OK(cairn_param_set_require_grad(n.set, "0.*", CAIRN_OFF));
    assert_int_equal(backward_products(&n, *state), 1); /* dW2 */
    assert_true(!has_grad(&n, B1) && has_grad(&n, W2) && has_grad(&n, B2));
    OK(cairn_param_set_require_grad(n.set, "2.weight", CAIRN_OFF));
    assert_int_equal(backward_products(&n, *state), 0);
    OK(cairn_param_set_require_grad(n.set, "*", CAIRN_OFF));
    REFUSED(cairn_backward(loss_of(&n)), CAIRN_EINVAL, "requires a gradient");
    OK(cairn_module_require_grad(n.model, 1));
    assert_int_equal(backward_products(&n, *state), 3);
    end(&n);
}

static void take(const struct net *n, size_t i, float *values) {
    const struct cairn__param *p = n->set->params[i];
    assert_true(has_grad(n, i));
    memcpy(values, cairn__grad_peek(p->gradient).x, p->n * sizeof(float));
}

static void freezing_keeps_the_bits_of_other_gradients(void **state) {
    struct net n;
    float all[HIDDEN * OUT], some[HIDDEN * OUT];
    begin(&n, *state);
    (void)backward_products(&n, *state);
    take(&n, W2, all);
    OK(cairn_param_set_require_grad(n.set, "0.*", CAIRN_OFF));
    (void)backward_products(&n, *state);
    take(&n, W2, some);
    assert_memory_equal(all, some, sizeof(all));
    OK(cairn_param_set_require_grad(n.set, "*", CAIRN_ON));
    (void)backward_products(&n, *state);
    float first[IN * HIDDEN], again[IN * HIDDEN];
    take(&n, W1, first);
    OK(cairn_param_set_require_grad(n.set, "2.*", CAIRN_OFF));
    (void)backward_products(&n, *state);
    take(&n, W1, again);
    assert_memory_equal(first, again, sizeof(first));
    end(&n);
}

static void a_gradient_is_required_when_the_operation_is_called_and_when_backward_comes(void **state) {
    struct net n;
    float want[IN * HIDDEN], got[IN * HIDDEN];
    begin(&n, *state);
    (void)backward_products(&n, *state);
    take(&n, W1, want);

    cairn_param_set_zero_grad(n.set);
    cairn_tensor *loss = loss_of(&n);
    OK(cairn_param_require_grad(n.set, W1, CAIRN_OFF)); /* frozen behind the graph's back: it gets nothing */
    OK(cairn_backward(loss));
    assert_true(!has_grad(&n, W1) && has_grad(&n, B1));

    cairn_param_set_zero_grad(n.set);
    loss = loss_of(&n);
    OK(cairn_param_require_grad(n.set, W1, CAIRN_ON)); /* thawed: the graph was made without */
    OK(cairn_backward(loss));
    assert_true(!has_grad(&n, W1) && has_grad(&n, B1));

    cairn_param_set_zero_grad(n.set);
    loss = loss_of(&n);
    OK(cairn_param_set_require_grad(n.set, "*", CAIRN_OFF)); /* and back: as if nothing had been */
    OK(cairn_param_set_require_grad(n.set, "*", CAIRN_ON));
    OK(cairn_backward(loss));
    take(&n, W1, got);
    assert_memory_equal(want, got, sizeof(want));
    end(&n);
}

/* ---- checkpoints ---- */

static cairn_tensor *run_model(void *ctx, cairn_tensor *const *inputs, int count) {
    (void)count;
    return cairn_module_forward(ctx, inputs[0]);
}

static void a_checkpoint_must_find_the_same_parameters_frozen_both_times(void **state) {
    struct net n;
    begin(&n, *state);
    OK(cairn_param_require_grad(n.set, W1, CAIRN_OFF));
    OK(cairn_backward(cairn_mean(cairn_checkpoint(run_model, n.model, &n.x, 1))));
    assert_true(!has_grad(&n, W1) && has_grad(&n, B1) && has_grad(&n, W2));
    cairn_param_set_zero_grad(n.set);
    cairn_tensor *loss = cairn_mean(cairn_checkpoint(run_model, n.model, &n.x, 1));
    OK(cairn_param_require_grad(n.set, W1, CAIRN_ON));
    REFUSED(cairn_backward(loss), CAIRN_ESTATE, "checkpoint");
    cairn_param_set_zero_grad(n.set);
    loss = cairn_mean(cairn_checkpoint(run_model, n.model, &n.x, 1));
    OK(cairn_param_require_grad(n.set, W1, CAIRN_OFF));
    REFUSED(cairn_backward(loss), CAIRN_ESTATE, "checkpoint");
    end(&n);
}

/* The first weight is an input as well. */
static cairn_tensor *run_weight(void *ctx, cairn_tensor *const *inputs, int count) {
    (void)count;
    cairn_tensor *y = cairn_module_forward(ctx, cairn_mul(inputs[0], cairn_sum(inputs[1])));
    return cairn_mul(y, cairn_sum(inputs[1]));
}

static cairn_tensor *loss_with_weight(const struct net *n, bool checkpointed) {
    cairn_tensor *const inputs[] = {n->x, cairn_module_get(n->model, "0.weight")};
    return cairn_mean(checkpointed ? cairn_checkpoint(run_weight, n->model, inputs, 2)
                                   : run_weight(n->model, inputs, 2));
}

static void a_checkpoint_gives_the_same_bits_where_first_layers_are_frozen(void **state) {
    static const char *const patterns[] = {"0.weight", "0.*", "[02].weight"};
    struct net n;
    float want[4][IN * HIDDEN], got[IN * HIDDEN];
    begin(&n, *state);
    for (int leaf = 0; leaf < 2; leaf++) {
        if (leaf) OK(cairn_tensor_require_grad(n.x));
        for (size_t c = 0; c < sizeof(patterns) / sizeof(patterns[0]); c++) {
            OK(cairn_param_set_require_grad(n.set, "*", CAIRN_ON));
            OK(cairn_param_set_require_grad(n.set, patterns[c], CAIRN_OFF));
            for (int checkpointed = 0; checkpointed < 2; checkpointed++) {
                cairn_param_set_zero_grad(n.set);
                OK(cairn_backward(loss_with_weight(&n, checkpointed)));
                for (size_t i = W1; i <= B2; i++) {
                    assert_int_equal(has_grad(&n, i), cairn_param_requires_grad(n.set, i));
                    if (!has_grad(&n, i)) continue;
                    take(&n, i, checkpointed ? got : want[i]);
                    if (checkpointed) assert_memory_equal(want[i], got, n.set->params[i]->n * sizeof(float));
                }
            }
        }
    }
    end(&n);
}

static void a_frozen_input_of_a_checkpoint_must_be_frozen_both_times_whatever_the_others_want(void **state) {
    struct net n;
    cairn_module *layer = cairn_linear(*state, IN, OUT);
    begin(&n, *state);
    for (int leaf = 0; leaf < 2; leaf++) {
        if (leaf) OK(cairn_tensor_require_grad(n.x));
        OK(cairn_param_require_grad(n.set, W1, CAIRN_OFF));
        cairn_tensor *const inputs[] = {n.x, cairn_module_get(n.model, "0.weight")};
        cairn_tensor *loss = cairn_mean(cairn_checkpoint(run_weight, layer, inputs, 2));
        OK(cairn_param_require_grad(n.set, W1, CAIRN_ON));
        REFUSED(cairn_backward(loss), CAIRN_ESTATE, "checkpoint");
        cairn_module_zero_grad(layer);
    }
    cairn_module_destroy(&layer);
    end(&n);
}

/* ---- casts, modules, buffers, places where it is refused ---- */

static void a_parameter_that_is_frozen_or_thawed_is_not_taken_from_a_cast_made_before(void **state) {
    struct net n;
    amp_context *amp = NULL;
    begin(&n, *state);
    OK(amp_initialize(*state, n.model, NULL, amp_options(.opt_level = AMP_O1, .verbosity = -1), &amp));
    cairn_tensor *first = loss_of(&n); /* casts of this step are used again */
    OK(cairn_param_set_require_grad(n.set, "0.*", CAIRN_OFF));
    cairn_tensor *second = loss_of(&n);
    OK(cairn_param_set_require_grad(n.set, "0.*", CAIRN_ON));
    cairn_tensor *third = loss_of(&n);
    OK(cairn_backward(second));
    assert_true(!has_grad(&n, W1) && has_grad(&n, W2));
    OK(cairn_backward(third));
    assert_true(has_grad(&n, W1));
    OK(cairn_backward(first));
    cairn_param_set_zero_grad(n.set);
    amp_destroy(&amp);
    end(&n);
}

static void a_module_is_frozen_with_its_children_and_no_other(void **state) {
    cairn_module *child = cairn_sequential(*state, CAIRN_MODULES(cairn_linear(*state, IN, IN)));
    cairn_module *root = cairn_sequential(*state, CAIRN_MODULES(child, cairn_linear(*state, IN, IN)));
    assert_non_null(root);
    cairn_param_set *set = cairn_module_params(root);
    OK(cairn_module_require_grad(child, CAIRN_OFF));
    const int want[] = {0, 0, 1, 1};
    for (size_t i = 0; i < 4; i++) assert_int_equal(cairn_param_requires_grad(set, i), want[i]);
    OK(cairn_module_require_grad(root, 1));
    for (size_t i = 0; i < 4; i++) assert_true(cairn_param_requires_grad(set, i));
    REFUSED(cairn_module_require_grad(NULL, 1), CAIRN_EINVAL, "NULL");
    cairn_module_destroy(&root);
}

static void running_statistics_of_a_frozen_norm_follow_its_mode(void **state) {
    float before[IN], after[IN];
    cairn_module *norm = cairn_batch_norm(*state, IN, 1e-5, 0.1);
    cairn_tensor *x = cairn_randn(*state, CAIRN_F32, CAIRN_SHAPE(ROWS, IN));
    cairn_tensor *mean = cairn_module_get(norm, "running_mean");
    OK(cairn_module_require_grad(norm, CAIRN_OFF));
    OK(cairn_tensor_read(mean, before, IN));
    assert_non_null(cairn_module_forward(norm, x));
    OK(cairn_tensor_read(mean, after, IN));
    assert_true(memcmp(before, after, sizeof(before)) != 0);
    cairn_module_train(norm, 0);
    assert_non_null(cairn_module_forward(norm, x));
    OK(cairn_tensor_read(mean, before, IN));
    assert_memory_equal(before, after, sizeof(before));
    cairn_tensor_destroy(&x);
    cairn_module_destroy(&norm);
}

struct meddler {
    cairn_param_set *set;
    cairn_status status;
};

static cairn_status copy_forward(void *ctx, struct cairn_custom_array *y, const struct cairn_custom_array *x, int n) {
    (void)ctx, (void)n;
    memcpy(y->data, x->data, x->n * sizeof(float));
    return CAIRN_OK;
}

static cairn_status meddle(void *ctx, struct cairn_custom_array *dx, const struct cairn_custom_array *dy,
                           const struct cairn_custom_array *y, const struct cairn_custom_array *x, int n) {
    struct meddler *m = ctx;
    (void)y, (void)x, (void)n;
    memcpy(dx->data, dy->data, dy->n * sizeof(float));
    m->status = cairn_param_set_require_grad(m->set, "*", CAIRN_OFF);
    return CAIRN_OK;
}

static void freezing_within_a_backward_is_refused(void **state) {
    struct net n;
    begin(&n, *state);
    struct meddler m = {n.set, CAIRN_OK};
    struct cairn_custom_op op = {.struct_size = sizeof(op),
                                 .name = "meddle",
                                 .forward = copy_forward,
                                 .backward = meddle};
    cairn_tensor *y = cairn_module_forward(n.model, n.x);
    OK(cairn_backward(cairn_mean(cairn_custom(&op, &m, CAIRN_F32, CAIRN_SHAPE(ROWS, OUT), &y, 1))));
    assert_int_equal(m.status, CAIRN_ESTATE);
    SAYS("cairn_param_set_require_grad: called within a backward");
    assert_true(has_grad(&n, W1) && cairn_param_requires_grad(n.set, W1));
    end(&n);
}

static cairn_status step(void *ctx) {
    struct net *n = ctx;
    cairn_param_set_zero_grad(n->set);
    return cairn_backward(loss_of(n));
}

static void freezing_under_a_captured_graph_is_refused(void **state) {
    struct net n;
    cairn_graph *graph = NULL;
    begin(&n, *state);
    OK(cairn_graph_capture(*state, step, &n, &graph));
    REFUSED(cairn_param_require_grad(n.set, W1, CAIRN_OFF), CAIRN_ESTATE, "destroy the graph first");
    REFUSED(cairn_module_require_grad(n.model, CAIRN_OFF), CAIRN_ESTATE, "destroy the graph first");
    assert_true(cairn_param_requires_grad(n.set, W1));
    cairn_graph_destroy(&graph);
    OK(cairn_param_require_grad(n.set, W1, CAIRN_OFF));
    end(&n);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_frozen_parameter_costs_no_product_and_backward_stops_where_no_input_wants_a_gradient),
        cmocka_unit_test(freezing_keeps_the_bits_of_other_gradients),
        cmocka_unit_test(a_gradient_is_required_when_the_operation_is_called_and_when_backward_comes),
        cmocka_unit_test(a_checkpoint_must_find_the_same_parameters_frozen_both_times),
        cmocka_unit_test(a_checkpoint_gives_the_same_bits_where_first_layers_are_frozen),
        cmocka_unit_test(a_frozen_input_of_a_checkpoint_must_be_frozen_both_times_whatever_the_others_want),
        cmocka_unit_test(a_parameter_that_is_frozen_or_thawed_is_not_taken_from_a_cast_made_before),
        cmocka_unit_test(a_module_is_frozen_with_its_children_and_no_other),
        cmocka_unit_test(running_statistics_of_a_frozen_norm_follow_its_mode),
        cmocka_unit_test(freezing_within_a_backward_is_refused),
        cmocka_unit_test(freezing_under_a_captured_graph_is_refused),
    };
    return cmocka_run_group_tests(tests, make_env, end_env);
}
