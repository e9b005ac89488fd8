/* The op hook: a step with the hook gives the same bits as the step with explicit casts, and a parameter is cast again
 * exactly when its weights have changed. */
#include <string.h>

#include "core/half.h"
#include "nn/tensor.h"
#include "test_env.h"

enum { B = 8, IN = 32, OUT = 16 };

struct counting {
    cairn_dtype half;
    int calls[CAIRN__NUM_OPS];
};

/* linear in half, mse_loss in f32, the rest as it comes. */
static cairn_status choose(void *ctx, const struct cairn__op_question *q, cairn_dtype *out) {
    struct counting *c = ctx;
    c->calls[q->op]++;
    if (q->op == CAIRN__OP_LINEAR) *out = c->half;
    if (q->op == CAIRN__OP_MSE_LOSS) *out = CAIRN_F32;
    return CAIRN_OK;
}

static const struct cairn__op_hook no_hook;

struct model {
    cairn_module *layer;
    cairn_tensor *x, *y;
};

static struct model make_model(cairn_env *env) {
    struct model m = {.layer = cairn_linear(env, IN, OUT)};
    m.x = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(B, IN));
    m.y = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(B, OUT));
    return m;
}

static struct cairn__param *param(const struct model *m, int i) {
    return cairn_module_params(m->layer)->params[i];
}

/* Values that f16 cannot hold stay visible as rounded ones only where a rounding took place. */
static void assert_rounded(const float *x, size_t n, cairn_dtype half) {
    for (size_t i = 0; i < n; i++) {
        float back = half == CAIRN_F16 ? cairn__f16_to_f32(cairn__f32_to_f16(x[i]))
                                       : cairn__bf16_to_f32(cairn__f32_to_bf16(x[i]));
        assert_true(x[i] == back);
    }
}

static void hook_equals_the_casts_written_out(void **state) {
    cairn_env *env = test_env_of(state);
    static const cairn_dtype halves[] = {CAIRN_F16, CAIRN_BF16};
    for (int i = 0; i < 2; i++) {
        static float dw[OUT * IN], db[OUT];
        struct counting counts = {.half = halves[i]};
        const struct cairn__op_hook hook = {.ctx = &counts, .compute_type = choose};
        struct model m = make_model(env);

        /* The weights as leaves, every cast by hand. */
        cairn_tensor *w = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(OUT, IN), param(&m, 0)->data);
        cairn_tensor *b = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(OUT), param(&m, 1)->data);
        cairn_tensor_require_grad(w), cairn_tensor_require_grad(b);
        cairn_tensor *out =
            cairn_linear_forward(cairn_cast(m.x, halves[i]), cairn_cast(w, halves[i]), cairn_cast(b, halves[i]));
        cairn_tensor *by_hand = test_scale_loss(cairn_mse_loss(cairn_cast(out, CAIRN_F32), m.y), 256);
        const float loss = cairn_tensor_item(by_hand);
        assert_int_equal(cairn_backward(by_hand), CAIRN_OK);
        memcpy(dw, cairn_tensor_grad(w), sizeof(dw));
        memcpy(db, cairn_tensor_grad(b), sizeof(db));

        cairn__set_op_hook(env, &hook);
        cairn_tensor *hooked = test_scale_loss(cairn_mse_loss(cairn_module_forward(m.layer, m.x), m.y), 256);
        const float hooked_loss = cairn_tensor_item(hooked);
        assert_int_equal(cairn_backward(hooked), CAIRN_OK);
        cairn__set_op_hook(env, &no_hook);

        assert_memory_equal(&hooked_loss, &loss, sizeof(loss));
        assert_memory_equal(cairn__grad_memory(param(&m, 0)->gradient), dw, sizeof(dw));
        assert_memory_equal(cairn__grad_memory(param(&m, 1)->gradient), db, sizeof(db));
        assert_rounded(dw, OUT * IN, halves[i]);
        assert_rounded(db, OUT, halves[i]);
        assert_int_equal(counts.calls[CAIRN__OP_LINEAR], 1);
        assert_int_equal(counts.calls[CAIRN__OP_MSE_LOSS], 1);
        assert_int_equal(counts.calls[CAIRN__OP_CAST] + counts.calls[CAIRN__OP_GUEST], 0);
        cairn_module_destroy(&m.layer);
    }
}

static float output(const struct model *m) {
    return cairn_tensor_item(cairn_sum(cairn_module_forward(m->layer, m->x)));
}

static void cast_is_refreshed_when_the_version_changes(void **state) {
    cairn_env *env = test_env_of(state);
    struct counting counts = {.half = CAIRN_F16};
    const struct cairn__op_hook hook = {.ctx = &counts, .compute_type = choose};
    struct model m = make_model(env);
    cairn__set_op_hook(env, &hook);
    const float before = output(&m);
    float *w = param(&m, 0)->data;
    for (int i = 0; i < OUT * IN; i++) w[i] = 0;
    env->begin_step(env);
    assert_true(output(&m) == before); /* no call has said that the weights changed */
    env->begin_step(env);
    cairn_param_changed(cairn_module_params(m.layer), 0, 0);
    const float changed = output(&m);
    assert_true(changed != before);
    for (int i = 0; i < OUT * IN; i++) w[i] = 1;
    env->replays++; /* a graph was replayed: weights may have changed */
    assert_true(output(&m) != changed);
    cairn_module_destroy(&m.layer);
}

/* The first graph still needs the copy of the old weights when the new ones are requested. */
static void change_between_two_forwards_leaves_the_first_graph_intact(void **state) {
    cairn_env *env = test_env_of(state);
    struct counting counts = {.half = CAIRN_F16};
    const struct cairn__op_hook hook = {.ctx = &counts, .compute_type = choose};
    static float dx[B * IN];
    struct model m = make_model(env);
    cairn_tensor_require_grad(m.x);
    cairn__set_op_hook(env, &hook);
    assert_int_equal(cairn_backward(cairn_mean(cairn_module_forward(m.layer, m.x))), CAIRN_OK);
    memcpy(dx, cairn_tensor_grad(m.x), sizeof(dx));
    cairn_tensor_clear_grad(m.x);

    cairn_tensor *first = cairn_mean(cairn_module_forward(m.layer, m.x));
    memset(param(&m, 0)->data, 0, OUT * IN * sizeof(float));
    cairn_param_changed(cairn_module_params(m.layer), 0, 0);
    assert_non_null(cairn_module_forward(m.layer, m.x));
    assert_int_equal(cairn_backward(first), CAIRN_OK);
    assert_memory_equal(cairn_tensor_grad(m.x), dx, sizeof(dx));
    cairn_module_destroy(&m.layer);
}

static void hooked_parameter_used_twice_has_the_summed_gradient(void **state) {
    cairn_env *env = test_env_of(state);
    struct counting counts = {.half = CAIRN_F16};
    const struct cairn__op_hook hook = {.ctx = &counts, .compute_type = choose};
    float ones[B * IN];
    for (int i = 0; i < B * IN; i++) ones[i] = 1;
    struct model m = make_model(env);
    cairn_tensor *x = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(B, IN), ones);
    cairn__set_op_hook(env, &hook);
    for (int again = 0; again < 2; again++) {
        cairn__param_set_zero_grad(cairn_module_params(m.layer));
        cairn_tensor *y = cairn_add(cairn_module_forward(m.layer, x), cairn_module_forward(m.layer, x));
        assert_int_equal(cairn_backward(cairn_sum(y)), CAIRN_OK);
        const float *dw = cairn__grad_memory(param(&m, 0)->gradient);
        for (int i = 0; i < OUT * IN; i++) assert_true(dw[i] == 2 * B);
    }
    cairn_module_destroy(&m.layer);
}

static cairn_tensor *loss_of(const struct model *m, cairn_tensor *x) {
    return test_scale_loss(cairn_sum(cairn_module_forward(m->layer, x)), 4);
}

static void copy_final_gradient(struct cairn__param *p, float *out) {
    struct cairn__grad_view grad;
    assert_int_equal(cairn__grad_prepare_read(p->gradient, &grad), CAIRN_OK);
    assert_int_equal(grad.dtype, CAIRN_F32);
    for (size_t i = 0; i < p->n; i++) out[i] = ((const float *)grad.x)[i] * (grad.factor ? *grad.factor : 1);
}

/* Whole numbers up to 3 * B * 4: exact in f16, and in the order of any sum. */
static void losses_may_be_built_before_the_first_backward(void **state) {
    cairn_env *env = test_env_of(state);
    struct counting counts = {.half = CAIRN_F16};
    const struct cairn__op_hook hook = {.ctx = &counts, .compute_type = choose};
    static float twos[B * IN], ramp[B * IN], want[OUT * IN], got[OUT * IN], want_b[OUT], got_b[OUT];
    for (int i = 0; i < B * IN; i++) twos[i] = 2, ramp[i] = (float)(i % 4);
    struct model m = make_model(env);
    cairn_tensor *x1 = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(B, IN), twos);
    cairn_tensor *x2 = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(B, IN), ramp);
    cairn__set_op_hook(env, &hook);

    cairn__param_set_zero_grad(cairn_module_params(m.layer));
    assert_int_equal(cairn_backward(loss_of(&m, x1)), CAIRN_OK);
    assert_int_equal(cairn_backward(loss_of(&m, x2)), CAIRN_OK);
    copy_final_gradient(param(&m, 0), want), copy_final_gradient(param(&m, 1), want_b);
    for (int i = 0; i < OUT * IN; i++) assert_true(want[i] == B * (2 + (float)(i % 4)));
    for (int i = 0; i < OUT; i++) assert_true(want_b[i] == B * 2);

    cairn__param_set_zero_grad(cairn_module_params(m.layer));
    cairn_tensor *l1 = loss_of(&m, x1), *l2 = loss_of(&m, x2);
    assert_int_equal(cairn_backward(l1), CAIRN_OK);
    assert_int_equal(cairn_backward(l2), CAIRN_OK);
    copy_final_gradient(param(&m, 0), got), copy_final_gradient(param(&m, 1), got_b);
    assert_memory_equal(got, want, sizeof(want));
    assert_memory_equal(got_b, want_b, sizeof(want_b));
    assert_int_equal(cairn_backward(l1), CAIRN_ESTATE); /* only casts are shared */
    cairn_module_destroy(&m.layer);
}

static void weights_changed_within_a_step_are_cast_once_more(void **state) {
    cairn_env *env = test_env_of(state);
    struct counting counts = {.half = CAIRN_F16};
    const struct cairn__op_hook hook = {.ctx = &counts, .compute_type = choose};
    struct model m = make_model(env);
    cairn__set_op_hook(env, &hook);
    size_t nodes[4];
    for (int i = 0; i < 4; i++) {
        if (i == 2) cairn__param_set_weights_changed(cairn_module_params(m.layer));
        const size_t before = cairn__tape_of(env)->count;
        assert_non_null(cairn_module_forward(m.layer, m.x));
        nodes[i] = cairn__tape_of(env)->count - before;
    }
    assert_int_equal(nodes[0], 3); /* weight, bias, the product */
    assert_int_equal(nodes[1], 1);
    assert_int_equal(nodes[2], 3);
    assert_int_equal(nodes[3], 1);
    cairn_module_destroy(&m.layer);
}

static void steady_step_under_a_hook_allocates_nothing(void **state) {
    cairn_env *env = test_env_of(state);
    struct counting counts = {.half = CAIRN_F16};
    const struct cairn__op_hook hook = {.ctx = &counts, .compute_type = choose};
    struct model m = make_model(env);
    cairn__set_op_hook(env, &hook);
    uint64_t before = 0;
    for (int i = 0; i < 20; i++) {
        if (i == 5) before = cairn__alloc_counters().allocations;
        cairn__param_set_zero_grad(cairn_module_params(m.layer));
        cairn__param_set_weights_changed(cairn_module_params(m.layer));
        assert_int_equal(cairn_backward(cairn_mse_loss(cairn_module_forward(m.layer, m.x), m.y)), CAIRN_OK);
    }
    assert_int_equal(cairn__alloc_counters().allocations, before);
    cairn_module_destroy(&m.layer);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        ENV_TEST(hook_equals_the_casts_written_out),
        ENV_TEST(cast_is_refreshed_when_the_version_changes),
        ENV_TEST(change_between_two_forwards_leaves_the_first_graph_intact),
        ENV_TEST(hooked_parameter_used_twice_has_the_summed_gradient),
        ENV_TEST(losses_may_be_built_before_the_first_backward),
        ENV_TEST(weights_changed_within_a_step_are_cast_once_more),
        ENV_TEST(steady_step_under_a_hook_allocates_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
