/* Activation checkpoints (cairn_checkpoint): same bits as without, each gradient becomes ready once, memory is
 * reused. */
#include <math.h>
#include <string.h>

#include "nn/tensor.h"
#include "test_env.h"

enum { B = 16, IN = 24, OUT = 24, LAYERS = 4 };

/* ---- equal bits ---- */

struct model {
    cairn_env *env;
    cairn_module *layers[LAYERS];
    cairn_tensor *x, *noise;
    bool use_checkpoints;
    int calls;
};

static struct model make_model(cairn_env *env) {
    struct model m = {.env = env};
    cairn_manual_seed(env, 7);
    for (int i = 0; i < LAYERS; i++) m.layers[i] = cairn_linear(env, IN, OUT);
    m.x = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(B, IN));
    cairn_tensor_require_grad(m.x);
    return m;
}

static void end_model(struct model *m) {
    m->env->begin_step(m->env);
    for (int i = 0; i < LAYERS; i++) cairn_module_destroy(&m->layers[i]);
    cairn_tensor_destroy(&m->x);
}

/* Every other element or so by the number of a random stream, which is the ctx. */
static void keep_some(void *ctx, float *y, const float *x, size_t n) {
    const uint32_t stream = (uint32_t)(uintptr_t)ctx;
    for (size_t i = 0; i < n; i++) y[i] = (stream + (uint32_t)i) * 2654435761u >> 31 ? x[i] : 0;
}
static cairn_status thin_forward(void *ctx, struct cairn_custom_array *y, const struct cairn_custom_array *x,
                                 int count) {
    (void)count;
    keep_some(ctx, y->data, x[0].data, y->n);
    return CAIRN_OK;
}
static cairn_status thin_backward(void *ctx, struct cairn_custom_array *dx, const struct cairn_custom_array *dy,
                                  const struct cairn_custom_array *y, const struct cairn_custom_array *x, int count) {
    (void)y, (void)x, (void)count;
    keep_some(ctx, dx->data, dy->data, dy->n);
    return CAIRN_OK;
}
static const struct cairn_custom_op thin = {.struct_size = sizeof(thin),
                                            .name = "thin",
                                            .forward = thin_forward,
                                            .backward = thin_backward};

static cairn_tensor *thinned(cairn_tensor *x) {
    void *stream = (void *)(uintptr_t)(cairn__env_next_stream(x->env) >> 16);
    x = cairn_cast(x, CAIRN_F32);
    return cairn_custom(&thin, stream, CAIRN_F32, x->ndim, x->shape, &x, 1);
}

/* The input twice, the layer twice, and random numbers in between. */
static cairn_tensor *block(void *ctx, cairn_tensor *const *inputs, int count) {
    cairn_module *layer = ctx;
    assert_int_equal(count, 1);
    cairn_tensor *y = cairn_relu(cairn_module_forward(layer, inputs[0]));
    y = cairn_module_forward(layer, cairn_add(y, thinned(y)));
    return cairn_add(y, inputs[0]);
}

static cairn_tensor *run_block(struct model *m, cairn_module *layer, cairn_tensor *x) {
    return m->use_checkpoints ? cairn_checkpoint(block, layer, &x, 1) : block(layer, &x, 1);
}

/* One layer is used in two checkpoints and outside of them. */
static cairn_tensor *loss_of(struct model *m) {
    cairn_tensor *y = cairn_mul_scalar(m->x, 1);
    for (int i = 0; i < LAYERS; i++) y = run_block(m, m->layers[i], y);
    cairn_tensor *again = run_block(m, m->layers[0], y);
    return cairn_mean(cairn_add(cairn_module_forward(m->layers[0], again), y));
}

struct outcome {
    float loss, weights[LAYERS][OUT * IN], biases[LAYERS][OUT], dx[B * IN];
    uint64_t streams;
};

static void take_outcome(struct model *m, struct outcome *o, double scale) {
    m->env->begin_step(m->env);
    cairn_tensor_clear_grad(m->x);
    m->env->next_stream = 100;
    cairn_tensor *loss = loss_of(m);
    if (!loss) fail_msg("%s", cairn_last_error());
    o->loss = cairn_tensor_item(loss);
    if (cairn_backward(scale != 0 ? test_scale_loss(loss, scale) : loss) != CAIRN_OK)
        fail_msg("%s", cairn_last_error());
    o->streams = m->env->next_stream;
    for (int i = 0; i < LAYERS; i++) {
        struct cairn_param_set *set = cairn_module_params(m->layers[i]);
        memcpy(o->weights[i], cairn__grad_memory(set->params[0]->gradient), sizeof(o->weights[i]));
        memcpy(o->biases[i], cairn__grad_memory(set->params[1]->gradient), sizeof(o->biases[i]));
        for (int k = 0; k < 2; k++) cairn__grad_forget(set->params[k]->gradient);
    }
    memcpy(o->dx, cairn_tensor_grad(m->x), sizeof(o->dx));
}

static void assert_equal_outcomes(cairn_env *env, double scale) {
    static struct outcome want, got;
    struct model m = make_model(env);
    memset(&want, 0, sizeof(want)), memset(&got, 0, sizeof(got));
    take_outcome(&m, &want, scale);
    m.use_checkpoints = true;
    for (int i = 0; i < 2; i++) {
        take_outcome(&m, &got, scale);
        assert_memory_equal(&got, &want, sizeof(want));
    }
    end_model(&m);
}

static void checkpoint_gives_the_bits_of_the_graph_it_stands_for(void **state) {
    assert_equal_outcomes(test_env_of(state), 0);
    assert_equal_outcomes(test_env_of(state), 1024);
}

static cairn_status linear_in_half(void *ctx, const struct cairn__op_question *q, cairn_dtype *out) {
    if (q->op == CAIRN__OP_LINEAR) *out = *(cairn_dtype *)ctx;
    if (q->op == CAIRN__OP_MEAN) *out = CAIRN_F32;
    return CAIRN_OK;
}

static const struct cairn__op_hook no_hook;

/* A parameter that is used on both sides has a cast on either: one layer a block, then. */
static cairn_tensor *half_loss(struct model *m) {
    cairn_tensor *y = cairn_mul_scalar(m->x, 1);
    for (int i = 0; i < LAYERS; i++) y = run_block(m, m->layers[i], y);
    return cairn_mean(y);
}

static void casts_inside_give_the_same_bits(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_dtype types[] = {CAIRN_F16, CAIRN_BF16};
    for (int t = 0; t < 2; t++) {
        const struct cairn__op_hook hook = {.ctx = &types[t], .compute_type = linear_in_half};
        static float dw[2][OUT * IN], dx[2][B * IN];
        cairn__set_op_hook(env, &hook);
        for (int i = 0; i < 2; i++) {
            struct model m = make_model(env);
            m.use_checkpoints = i == 1;
            assert_int_equal(cairn_backward(test_scale_loss(half_loss(&m), 256)), CAIRN_OK);
            memcpy(dw[i], cairn__grad_memory(cairn_module_params(m.layers[1])->params[0]->gradient), sizeof(dw[i]));
            memcpy(dx[i], cairn_tensor_grad(m.x), sizeof(dx[i]));
            end_model(&m);
        }
        cairn__set_op_hook(env, &no_hook);
        assert_memory_equal(dw[0], dw[1], sizeof(dw[0]));
        assert_memory_equal(dx[0], dx[1], sizeof(dx[0]));
    }
}

static cairn_tensor *two_blocks(void *ctx, cairn_tensor *const *inputs, int count) {
    struct model *m = ctx;
    cairn_tensor *y = inputs[0];
    for (int i = 0; i < 2; i++) y = run_block(m, m->layers[i], y);
    assert_int_equal(count, 2);
    return cairn_add(cairn_add(y, inputs[1]), inputs[1]);
}

static void nested_checkpoints_give_the_same_bits(void **state) {
    cairn_env *env = test_env_of(state);
    static float dw[3][OUT * IN], dx[3][B * IN];
    for (int depth = 0; depth < 3; depth++) {
        struct model m = make_model(env);
        m.use_checkpoints = depth == 2;
        cairn_tensor *y = cairn_relu(m.x), *inputs[] = {y, m.x};
        cairn_tensor *made = depth ? cairn_checkpoint(two_blocks, &m, inputs, 2) : two_blocks(&m, inputs, 2);
        if (!made) fail_msg("%s", cairn_last_error());
        assert_int_equal(cairn_backward(cairn_mean(cairn_add(made, y))), CAIRN_OK);
        memcpy(dw[depth], cairn__grad_memory(cairn_module_params(m.layers[0])->params[0]->gradient), sizeof(dw[0]));
        memcpy(dx[depth], cairn_tensor_grad(m.x), sizeof(dx[0]));
        end_model(&m);
    }
    for (int depth = 1; depth < 3; depth++) {
        assert_memory_equal(dw[depth], dw[0], sizeof(dw[0]));
        assert_memory_equal(dx[depth], dx[0], sizeof(dx[0]));
    }
}

static void checkpoint_can_be_walked_again(void **state) {
    cairn_env *env = test_env_of(state);
    static float first[B * IN];
    struct model m = make_model(env);
    m.use_checkpoints = true;
    cairn_tensor *loss = loss_of(&m);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(cairn_backward_with(loss, cairn_backward_options(.retain_graph = CAIRN_ON)), CAIRN_OK);
        if (i == 0) memcpy(first, cairn_tensor_grad(m.x), sizeof(first));
    }
    for (int i = 0; i < B * IN; i++) assert_true(cairn_tensor_grad(m.x)[i] == 2 * first[i]);
    assert_int_equal(cairn_backward(loss), CAIRN_OK);
    assert_int_equal(cairn_backward(loss), CAIRN_ESTATE);
    end_model(&m);
}

/* ---- ready ---- */

struct listening {
    struct cairn__grad_listener listener;
    const cairn_param_set *set;
    int reached[2], ready[2];
};

static cairn_status count_reached(void *ctx) {
    struct listening *l = ctx;
    for (int i = 0; i < 2; i++) l->reached[i] += cairn__param_is_reached(l->set->params[i]);
    return CAIRN_OK;
}

static void count_ready(void *ctx, size_t index) {
    ((struct listening *)ctx)->ready[index]++;
}
static cairn_status go_on(void *ctx) {
    (void)ctx;
    return CAIRN_OK;
}
static void never_mind(void *ctx) {
    (void)ctx;
}

static void parameter_is_ready_once_wherever_it_is_used(void **state) {
    cairn_env *env = test_env_of(state);
    struct model m = make_model(env);
    struct listening l[LAYERS];
    m.use_checkpoints = true;
    for (int i = 0; i < LAYERS; i++) {
        l[i] = (struct listening){.set = cairn_module_params(m.layers[i]),
                                  .listener = {.ctx = &l[i],
                                               .begin = count_reached,
                                               .ready = count_ready,
                                               .progress = go_on,
                                               .settle = go_on,
                                               .failed = never_mind}};
        cairn_module_params(m.layers[i])->listener = &l[i].listener;
    }
    for (int step = 1; step <= 3; step++) {
        env->begin_step(env);
        assert_int_equal(cairn_backward(loss_of(&m)), CAIRN_OK);
        for (int i = 0; i < LAYERS; i++) {
            assert_true(l[i].ready[0] == step && l[i].ready[1] == step);
            assert_true(l[i].reached[0] == step && l[i].reached[1] == step);
        }
    }
    for (int i = 0; i < LAYERS; i++) cairn_module_params(m.layers[i])->listener = NULL;
    end_model(&m);
}

/* ---- memory ---- */

static size_t peak_of_values(cairn_env *env, bool use_checkpoints) {
    struct model m = make_model(env);
    m.use_checkpoints = use_checkpoints;
    for (int step = 0; step < 3; step++) {
        env->begin_step(env);
        assert_int_equal(cairn_backward(loss_of(&m)), CAIRN_OK);
    }
    const uint64_t before = cairn__alloc_counters().allocations;
    for (int step = 0; step < 5; step++) {
        for (int i = 0; i < LAYERS; i++) cairn__param_set_zero_grad(cairn_module_params(m.layers[i]));
        assert_int_equal(cairn_backward(loss_of(&m)), CAIRN_OK);
    }
    assert_int_equal(cairn__alloc_counters().allocations, before);
    const struct cairn__tape_memory memory = cairn__tape_memory(env);
    end_model(&m);
    assert_int_equal(memory.gradients.used, 0);
    return memory.values.peak;
}

static void checkpoints_share_the_memory_of_what_they_forget(void **state) {
    cairn_env *env = test_env_of(state), *other = test_env_create(1, 0);
    const size_t with = peak_of_values(env, true), without = peak_of_values(other, false);
    assert_true(with < without / 2);
    test_env_destroy(other);
}

/* ---- what the function may do ---- */

static cairn_tensor *as_it_is(void *ctx, cairn_tensor *const *inputs, int count) {
    (void)count;
    ++*(int *)ctx;
    return inputs[0];
}

static void function_may_give_back_its_input(void **state) {
    cairn_env *env = test_env_of(state);
    struct model m = make_model(env);
    int calls = 0;
    cairn_tensor *y = cairn_mul_scalar(m.x, 3);
    assert_int_equal(cairn_backward(cairn_sum(cairn_checkpoint(as_it_is, &calls, &y, 1))), CAIRN_OK);
    assert_int_equal(cairn_backward(cairn_sum(cairn_checkpoint(as_it_is, &calls, &m.x, 1))), CAIRN_OK);
    assert_int_equal(calls, 4);
    assert_true(cairn_tensor_grad(m.x)[5] == 4);
    y = cairn_transpose(m.x, 0, 1);
    cairn_tensor *made = cairn_checkpoint(as_it_is, &calls, &y, 1);
    assert_true(made && made->is_dense && cairn_tensor_size(made, 0) == IN);
    assert_int_equal(cairn_backward(cairn_sum(made)), CAIRN_OK);
    assert_true(cairn_tensor_grad(m.x)[5] == 5);
    end_model(&m);
}

static void without_a_graph_the_function_just_runs(void **state) {
    cairn_env *env = test_env_of(state);
    struct model m = make_model(env);
    int calls = 0;
    cairn_no_grad_begin(env);
    assert_ptr_equal(cairn_checkpoint(as_it_is, &calls, &m.x, 1), m.x);
    assert_int_equal(cairn_no_grad_end(env), CAIRN_OK);
    cairn_tensor *plain = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(3));
    assert_false(cairn_checkpoint(as_it_is, &calls, &plain, 1)->wants_grad);
    assert_int_equal(calls, 2);
    end_model(&m);
}

/* What a function does wrong, by number, in the calls from `since` on. */
enum wrong {
    GIVES_NULL,
    GIVES_OUTSIDER,
    OTHER_SHAPE,
    OTHER_TYPE,
    OTHER_TENSORS,
    LEAVES_NO_GRAD,
    USES_OUTSIDER,
    BACKWARD,
    OTHER_OPERATION,
    MORE_OPERATIONS,
    ZERO_GRAD
};
struct misbehaving {
    struct model *m;
    cairn_tensor *outsider, *escaped;
    enum wrong wrong;
    int calls, since;
};

static cairn_tensor *misbehave(void *ctx, cairn_tensor *const *inputs, int count) {
    struct misbehaving *w = ctx;
    cairn_tensor *y = cairn_module_forward(w->m->layers[0], inputs[0]);
    (void)count;
    w->escaped = y;
    if (w->calls++ < w->since) return w->wrong == OTHER_OPERATION ? cairn_neg(y) : y;
    switch (w->wrong) {
    case GIVES_NULL:
        return NULL;
    case GIVES_OUTSIDER:
        return w->outsider;
    case OTHER_SHAPE:
        return cairn_sum(y);
    case OTHER_TYPE:
        return cairn_cast(y, CAIRN_F16);
    case OTHER_TENSORS:
        return cairn_module_forward(w->m->layers[1], inputs[0]);
    case LEAVES_NO_GRAD:
        return cairn_no_grad_begin(y->env), y;
    case USES_OUTSIDER:
        return cairn_add(y, w->outsider);
    case BACKWARD:
        return cairn_backward(cairn_sum(y)) == CAIRN_OK ? y : NULL;
    case OTHER_OPERATION:
        return cairn_relu(y);
    case MORE_OPERATIONS:
        return cairn_neg(cairn_neg(y));
    case ZERO_GRAD:
        cairn__param_set_zero_grad(cairn_module_params(w->m->layers[0]));
        return y;
    }
    return NULL;
}

static void checkpoint_refuses_a_function_that_breaks_its_rules(void **state) {
    cairn_env *env = test_env_of(state);
    struct model m = make_model(env);
    static const struct {
        enum wrong wrong;
        int since; /* 0 = in forward, 1 = in backward */
        const char *sentence;
    } cases[] = {
        {GIVES_OUTSIDER, 0,
         "checkpoint: the function returned a tensor that was made outside the checkpoint and is not among its inputs"},
        {OTHER_SHAPE, 1,
         "checkpoint: the function gave [16, 24] of f32 in forward and [] of f32 in backward; it must do the same both "
         "times"},
        {OTHER_TYPE, 1,
         "checkpoint: the function gave [16, 24] of f32 in forward and [16, 24] of f16 in backward; it must do the "
         "same "
         "both times"},
        {OTHER_TENSORS, 1,
         "checkpoint: the function used tensors in backward that it did not use in forward, or in another way; it must "
         "do the same both times"},
        {LEAVES_NO_GRAD, 0, "checkpoint: the function returned between cairn_no_grad_begin and cairn_no_grad_end"},
        {USES_OUTSIDER, 0,
         "add: the tensor was made outside the checkpoint; pass it as one of the checkpoint's inputs"},
        {BACKWARD, 0, "backward: called within a checkpoint or another backward"},
        {BACKWARD, 1, "backward: called within a checkpoint or another backward"},
        {OTHER_OPERATION, 1,
         "checkpoint: the function recorded different operations or shapes in backward than in forward; it must do the "
         "same both times"},
        {MORE_OPERATIONS, 1,
         "checkpoint: the function recorded 1 operations in forward and 3 in backward; it must do the same both times"},
        {ZERO_GRAD, 0,
         "checkpoint: the function called cairn_zero_grad, which would end its own step; no step was begun"},
        {ZERO_GRAD, 1,
         "checkpoint: the function called cairn_zero_grad, which would end its own step; no step was begun"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct misbehaving w = {.m = &m, .wrong = cases[i].wrong, .since = cases[i].since};
        cairn_tensor *y = cairn_relu(m.x);
        w.outsider = cairn_relu(m.x);
        cairn_tensor *made = cairn_checkpoint(misbehave, &w, &y, 1);
        assert_true((made == NULL) == (cases[i].since == 0));
        assert_int_not_equal(cairn_backward(made ? cairn_sum(made) : NULL), CAIRN_OK);
        assert_string_equal(cairn_last_error(), cases[i].sentence);
        assert_int_equal(cairn_backward(cairn_sum(w.outsider)), CAIRN_OK); /* all is as it was around it */
    }
    end_model(&m);
}

static void what_the_function_made_is_gone_after_it(void **state) {
    cairn_env *env = test_env_of(state);
    struct model m = make_model(env);
    struct misbehaving w = {.m = &m, .since = 9};
    assert_non_null(cairn_checkpoint(misbehave, &w, &m.x, 1));
    assert_null(cairn_relu(w.escaped));
    assert_string_equal(cairn_last_error(),
                        "relu: the tensor is the result of an earlier step (cairn_zero_grad begins one, "
                        "cairn_optimizer_clear_grads does not) or was released (cairn_release_results); use "
                        "cairn_tensor_keep to hold it");
    end_model(&m);
}

static void checkpoints_arguments_are_checked(void **state) {
    cairn_env *env = test_env_of(state), *other = test_env_create(1, 0);
    cairn_tensor *x = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(3)), *y = cairn_randn(other, CAIRN_F32, CAIRN_SHAPE(3));
    int calls = 0;
    assert_null(cairn_checkpoint(NULL, NULL, &x, 1));
    assert_null(cairn_checkpoint(as_it_is, &calls, NULL, 1));
    assert_null(cairn_checkpoint(as_it_is, &calls, &x, 0));
    assert_string_equal(cairn_last_error(), "checkpoint: the function and at least one input must be set");
    assert_null(cairn_checkpoint(as_it_is, &calls, (cairn_tensor *[]){x, y}, 2));
    assert_string_equal(cairn_last_error(), "checkpoint: the tensors belong to different environments");
    assert_null(cairn_checkpoint(as_it_is, &calls, (cairn_tensor *[]){x, NULL}, 2));
    cairn_tensor *old = cairn_relu(x);
    env->begin_step(env);
    assert_null(cairn_checkpoint(as_it_is, &calls, &old, 1));
    assert_int_equal(calls, 0);
    test_env_destroy(other);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        ENV_TEST(checkpoint_gives_the_bits_of_the_graph_it_stands_for),
        ENV_TEST(casts_inside_give_the_same_bits),
        ENV_TEST(nested_checkpoints_give_the_same_bits),
        ENV_TEST(checkpoint_can_be_walked_again),
        ENV_TEST(parameter_is_ready_once_wherever_it_is_used),
        ENV_TEST(checkpoints_share_the_memory_of_what_they_forget),
        ENV_TEST(function_may_give_back_its_input),
        ENV_TEST(without_a_graph_the_function_just_runs),
        ENV_TEST(checkpoint_refuses_a_function_that_breaks_its_rules),
        ENV_TEST(what_the_function_made_is_gone_after_it),
        ENV_TEST(checkpoints_arguments_are_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
