/* Modules: building, naming, printing and destroying trees, and errors. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "test_env.h"

#include "cairn/cairn.h"
#include "core/status.h"
#include "nn/module.h"
#include "nn/tensor.h"

/* ---- a module of a user's own: y = x + relu(linear(x)) * gain, and what it counts ---- */

struct residual {
    cairn_module *inner;
    cairn_tensor *gain, *seen;
    int *ended; /* how often the context was ended */
};

static cairn_tensor *residual_forward(cairn_module *module, void *context, cairn_tensor *const *inputs, int count) {
    struct residual *r = context;
    (void)module, (void)count;
    return cairn_add(inputs[0], cairn_relu(cairn_module_forward(r->inner, inputs[0])));
}

static void residual_end(void *context) {
    struct residual *r = context;
    ++*r->ended;
    cairn__free(r);
}

static const struct cairn_module_ops residual_ops = {
    .struct_size = sizeof(struct cairn_module_ops),
    .name = "Residual",
    .forward = residual_forward,
    .destroy = residual_end,
};

static cairn_module *residual(cairn_env *env, int64_t width, int *ended) {
    struct residual *r = NULL;
    assert_int_equal(cairn__calloc(1, sizeof(*r), (void **)&r), CAIRN_OK);
    r->ended = ended;
    cairn_module *m = cairn_module_create(env, &residual_ops, r);
    if (!m) return NULL;
    r->gain = cairn_module_add_param(m, "gain", CAIRN_SHAPE(width), 1);
    r->seen = cairn_module_add_buffer(m, "seen", CAIRN_F32, CAIRN_SHAPE(2));
    r->inner = cairn_module_add_child(m, "inner", cairn_linear(env, width, width));
    if (r->gain && r->seen && r->inner && cairn_init_constant(r->gain, 1) == CAIRN_OK) return m;
    cairn_module_destroy(&m);
    return NULL;
}

static cairn_module *empty(cairn_env *env) {
    struct cairn_module_ops ops = residual_ops;
    ops.name = "Empty";
    ops.destroy = NULL;
    return cairn_module_create(env, &ops, NULL);
}

static void assert_params_are(cairn_module *m, const char *const *names, size_t count) {
    cairn_param_set *set = cairn_module_params(m);
    assert_int_equal(cairn_param_set_count(set), count);
    for (size_t i = 0; i < count; i++) {
        cairn_param p;
        assert_int_equal(cairn_param_set_get(set, i, &p), CAIRN_OK);
        assert_string_equal(p.name, names[i]);
        assert_ptr_equal(set->params[i]->set, set);
        assert_int_equal(set->params[i]->index, i);
    }
}

/* ---- building ---- */

static void parameters_of_a_tree_are_one_set_named_by_path(void **state) {
    cairn_env *env = test_env_of(state);
    int ended = 0;
    cairn_module *root = empty(env), *middle = empty(env);
    cairn_module *block = cairn_module_add_child(middle, "0", residual(env, 3, &ended));
    assert_non_null(cairn_module_add_child(root, "head", cairn_linear_without_bias(env, 3, 2)));
    assert_ptr_equal(cairn_module_add_child(root, "encoder", middle), middle);
    assert_non_null(cairn_module_add_param(root, "scale", 0, NULL, CAIRN_OFF));
    static const char *const names[] = {"head.weight", "encoder.0.gain", "encoder.0.inner.weight",
                                        "encoder.0.inner.bias", "scale"};
    assert_params_are(root, names, 5);
    cairn_param p;
    cairn_param_set_get(cairn_module_params(root), 1, &p);
    assert_int_equal(p.is_norm, CAIRN_ON);
    cairn_param_set_get(cairn_module_params(root), 4, &p);
    assert_int_equal(p.is_norm, CAIRN_OFF);
    assert_int_equal(env->places[CAIRN__PLACE_OF_PARAM].alive, 1);

    assert_null(cairn_module_params(block));
    assert_string_equal(
        cairn_last_error(),
        "module_params: the Residual is child '0' of another module; its parameters are in that module's set");
    cairn_module_destroy(&root);
    assert_null(root);
    assert_int_equal(ended, 1);
}

static void buffers_are_named_by_path_from_the_module_given(void **state) {
    cairn_env *env = test_env_of(state);
    int ended = 0;
    cairn_module *root = empty(env);
    cairn_tensor *own = cairn_module_add_buffer(root, "mean", CAIRN_F32, CAIRN_SHAPE(3));
    cairn_module *block = cairn_module_add_child(root, "block", residual(env, 3, &ended));
    const char *name = NULL;
    assert_int_equal(cairn_module_num_buffers(root), 2);
    assert_ptr_equal(cairn_module_buffer(root, 0, &name), own);
    assert_string_equal(name, "mean");
    cairn_tensor *seen = cairn_module_buffer(root, 1, &name);
    assert_string_equal(name, "block.seen");
    assert_null(cairn_module_buffer(root, 2, &name));
    assert_int_equal(cairn_module_num_buffers(block), 1);
    assert_ptr_equal(cairn_module_buffer(block, 0, &name), seen);
    assert_string_equal(name, "seen");
    assert_ptr_equal(cairn_module_get(root, "block.seen"), seen);
    assert_ptr_equal(cairn_module_get(block, "seen"), seen);
    cairn_module_destroy(&root);
}

static void buffers_hold_values_and_belong_to_the_module(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_module *m = empty(env);
    cairn_tensor *b = cairn_module_add_buffer(m, "mean", CAIRN_F32, CAIRN_SHAPE(2)), *same = b;
    float values[2] = {7, 7};
    assert_int_equal(cairn_tensor_read(b, values, 2), CAIRN_OK);
    assert_true(values[0] == 0 && values[1] == 0);
    assert_int_equal(cairn_tensor_write(b, (const float[]){1, 2}, 2), CAIRN_OK);
    assert_int_equal(cairn_tensor_require_grad(b), CAIRN_ESTATE);
    cairn_tensor_destroy(&same); /* not the user's: nothing happens */
    assert_int_equal(cairn_tensor_read(b, values, 2), CAIRN_OK);
    assert_true(values[0] == 1 && values[1] == 2);
    cairn_module_destroy(&m);
}

static void handles_are_found_by_path(void **state) {
    cairn_env *env = test_env_of(state);
    int ended = 0;
    cairn_module *root = empty(env);
    cairn_module *block = cairn_module_add_child(root, "block", residual(env, 3, &ended));
    cairn_tensor *weight = cairn_module_get(root, "block.inner.weight");
    assert_non_null(weight);
    assert_int_equal(cairn_tensor_size(weight, 1), 3);
    assert_ptr_equal(cairn_module_get(block, "inner.weight"), weight);
    assert_null(cairn_module_get(root, "inner.weight"));
    assert_string_equal(cairn_last_error(), "module_get: the Empty has no parameter or buffer 'inner.weight'");
    assert_null(cairn_module_get(root, "block"));
    assert_null(cairn_module_get(NULL, "block"));
    assert_null(cairn_module_get(root, NULL));
    cairn_module_destroy(&root);
}

static void names_are_refused_that_make_no_path(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_module *m = empty(env);
    assert_non_null(cairn_module_add_param(m, "weight", CAIRN_SHAPE(2), 0));
    assert_non_null(cairn_module_add_child(m, "layer", cairn_linear(env, 2, 2)));
    static const char *const wrong[] = {"weight", "layer", "", "a.b"};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        assert_null(cairn_module_add_param(m, wrong[i], CAIRN_SHAPE(2), 0));
        assert_null(cairn_module_add_buffer(m, wrong[i], CAIRN_F32, CAIRN_SHAPE(2)));
        assert_null(cairn_module_add_child(m, wrong[i], cairn_linear(env, 2, 2))); /* ended: the teardown counts */
        SAYS(i < 2 ? "the Empty has a member '" : "a name must not be empty or have a dot");
    }
    assert_null(cairn_module_add_param(m, NULL, CAIRN_SHAPE(2), 0));
    assert_null(cairn_module_add_param(NULL, "w", CAIRN_SHAPE(2), 0));
    assert_null(cairn_module_add_param(m, "w", 2, NULL, 0));
    assert_null(cairn_module_add_param(m, "w", CAIRN_SHAPE(-1), 0));
    assert_null(cairn_module_add_param(m, "w", 9, (int64_t[9]){0}, 0));
    assert_null(cairn_module_add_buffer(m, "w", CAIRN_F32, CAIRN_SHAPE(INT64_MAX, INT64_MAX)));
    assert_null(cairn_module_add_child(m, "w", NULL));
    assert_int_equal(cairn_param_set_count(cairn_module_params(m)), 3);
    assert_int_equal(cairn_module_num_buffers(m), 0);
    cairn_module_destroy(&m);
}

static void a_child_belongs_to_one_module_alone(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_module *root = empty(env), *other = empty(env), *child = empty(env);
    assert_non_null(cairn_module_add_child(root, "a", child));
    assert_null(cairn_module_add_child(root, "b", child));
    assert_string_equal(cairn_last_error(), "add_child 'b': the Empty is child 'a' of another module already");
    assert_null(cairn_module_add_child(other, "b", child));
    assert_null(cairn_module_add_child(root, "root", root));
    assert_string_equal(cairn_last_error(), "add_child 'root': a module cannot be its own child");
    assert_null(cairn_module_add_child(child, "root", root)); /* a ring; the root stays whole */
    SAYS("the module is child 'a' of another");
    assert_null(cairn_module_add_param(child, "late", CAIRN_SHAPE(1), 0));
    SAYS("the module is child 'a' of another");
    cairn_module *same = child;
    cairn_module_destroy(&same); /* logged, and kept */
    assert_non_null(same);
    cairn_module_destroy(&other);
    cairn_module_destroy(&root);
}

static void modules_of_two_environments_do_not_mix(void **state) {
    cairn_env *env = test_env_of(state), *foreign = test_env_create(1, 0);
    cairn_module *m = empty(env);
    assert_null(cairn_module_add_child(m, "child", cairn_linear(foreign, 2, 2)));
    assert_string_equal(cairn_last_error(), "add_child 'child': the modules belong to different environments");
    test_env_destroy(foreign);
    cairn_module_destroy(&m);
}

static void modules_in_use_can_neither_grow_nor_be_adopted_nor_end(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_module *m = cairn_linear(env, 2, 2), *root = empty(env);
    cairn_optimizer *sgd = NULL;
    assert_int_equal(cairn_sgd_create(cairn_module_params(m), NULL, &sgd), CAIRN_OK);
    assert_null(cairn_module_add_child(root, "m", m));
    SAYS("an optimizer, averages, amp or ddp use these parameters");
    assert_null(cairn_module_add_param(m, "more", CAIRN_SHAPE(2), 0));
    SAYS("an optimizer, averages, amp or ddp use the module's parameters");
    assert_null(cairn_module_add_child(m, "more", cairn_linear(env, 2, 2)));
    cairn_module_destroy(&m);
    assert_non_null(m);
    assert_int_equal(cairn_param_set_count(cairn_module_params(m)), 2);
    cairn_optimizer_destroy(&sgd);
    assert_non_null(cairn_module_add_child(root, "m", m));
    cairn_module_destroy(&root);
}

static void modules_with_gradients_are_not_adopted(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_module *m = cairn_linear(env, 2, 2), *root = empty(env);
    cairn_tensor *x = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(1, 2));
    assert_int_equal(cairn_backward(cairn_sum(cairn_module_forward(m, x))), CAIRN_OK);
    assert_null(cairn_module_add_child(root, "m", m)); /* and m is ended */
    SAYS("parameter 'weight' has a gradient");
    cairn_module_destroy(&root);
}

static void users_context_is_ended_also_where_creation_fails(void **state) {
    cairn_env *env = test_env_of(state);
    int ended = 0;
    assert_null(residual(NULL, 3, &ended));
    assert_int_equal(ended, 1);
    assert_null(cairn_module_create(env, NULL, NULL));
    struct cairn_module_ops nameless = residual_ops;
    nameless.name = NULL;
    nameless.destroy = NULL;
    assert_null(cairn_module_create(env, &nameless, NULL));
    assert_string_equal(cairn_last_error(), "module_create: ops->name and ops->forward must be set");
}

/* ---- running ---- */

static void users_module_trains(void **state) {
    cairn_env *env = test_env_of(state);
    int ended = 0;
    cairn_module *root = empty(env);
    cairn_module *m = cairn_module_add_child(root, "block", residual(env, 4, &ended));
    cairn_tensor *x = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(5, 4));
    cairn_tensor *y = cairn_module_forward(m, x);
    assert_int_equal(cairn_tensor_size(y, 1), 4);
    assert_int_equal(cairn_backward(cairn_sum(y)), CAIRN_OK);
    cairn_param_set *set = cairn_module_params(root);
    for (size_t i = 0; i < set->count; i++)
        assert_int_equal(cairn__grad_is_written(set->params[i]->gradient),
                         strstr(set->params[i]->name, "inner") != NULL);
    cairn_module_destroy(&root);
}

static cairn_tensor *second_of(cairn_module *module, void *context, cairn_tensor *const *inputs, int count) {
    (void)module;
    *(int *)context = count;
    return inputs[1] ? cairn_add(inputs[0], inputs[1]) : cairn_relu(inputs[0]);
}

static void modules_take_several_inputs_cast_where_they_are_floats(void **state) {
    cairn_env *env = test_env_of(state);
    int count = 0;
    const struct cairn_module_ops ops = {.struct_size = sizeof(ops), .name = "Second", .forward = second_of};
    cairn_module *m = cairn_module_create(env, &ops, &count);
    cairn_tensor *x = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(1), (const float[]){2});
    cairn__module_set_io_types(m, CAIRN_F16, CAIRN_BF16);
    cairn_tensor *y = cairn_module_forward_n(m, (cairn_tensor *[]){x, x}, 2);
    assert_int_equal(cairn_tensor_dtype(y), CAIRN_BF16);
    assert_true(cairn_tensor_item(y) == 4 && count == 2);
    assert_true(cairn_tensor_item(cairn_module_forward_n(m, (cairn_tensor *[]){x, NULL, NULL}, 3)) == 2);
    assert_int_equal(count, 3);
    cairn_module_destroy(&m);
}

static void forward_refuses_what_makes_no_sense(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_module *m = cairn_linear(env, 2, 2);
    cairn_tensor *x = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(1, 2));
    assert_null(cairn_module_forward_n(m, (cairn_tensor *[]){x, x}, 2));
    assert_string_equal(cairn_last_error(), "Linear: 2 inputs are given; it takes 1 to 1");
    assert_null(cairn_module_forward_n(m, NULL, 1));
    assert_null(cairn_module_forward_n(m, &x, 0));
    assert_null(cairn_module_forward_n(m, &x, -1));
    assert_null(cairn_module_forward(NULL, x));
    (void)cairn__fail(CAIRN_ENOMEM, "the first cause");
    assert_null(cairn_module_forward(m, NULL));
    assert_string_equal(cairn_last_error(), "the first cause");
    cairn_module_destroy(&m);
}

static void innermost_module_is_named_once(void **state) {
    cairn_env *env = test_env_of(state);
    int ended = 0;
    cairn_module *m =
        cairn_sequential(env, CAIRN_MODULES(cairn_sequential(env, CAIRN_MODULES(cairn_activation(env, cairn_relu),
                                                                                cairn_linear(env, 7, 5))),
                                            residual(env, 4, &ended)));
    cairn_tensor *narrow = cairn_zeros(env, CAIRN_F32, CAIRN_SHAPE(4, 6)),
                 *wide = cairn_zeros(env, CAIRN_F32, CAIRN_SHAPE(4, 7));
    assert_null(cairn_module_forward(m, narrow));
    assert_string_equal(cairn_last_error(), "in 0.1: linear: [4, 6] x [5, 7]: inner sizes 6 and 7 differ");
    assert_int_equal(cairn_backward(NULL), CAIRN_EINVAL);
    assert_null(cairn_module_forward(m, cairn_relu(NULL))); /* the first cause stays */
    assert_string_equal(cairn_last_error(), "in 0.1: linear: [4, 6] x [5, 7]: inner sizes 6 and 7 differ");
    assert_null(cairn_module_forward(m, wide));
    assert_string_equal(cairn_last_error(), "in 1.inner: linear: [4, 5] x [4, 4]: inner sizes 5 and 4 differ");
    cairn_module *leaf = cairn_linear(env, 7, 5);
    assert_null(cairn_module_forward(leaf, narrow));
    assert_string_equal(cairn_last_error(), "linear: [4, 6] x [5, 7]: inner sizes 6 and 7 differ");
    assert_null(cairn_module_forward(m, cairn_matmul(narrow, wide)));
    assert_null(strstr(cairn_last_error(), "in "));
    cairn_module_destroy(&leaf);
    cairn_module_destroy(&m);
    assert_int_equal(ended, 1);
}

static void buffer_may_be_a_mask(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_module *m = empty(env);
    cairn_tensor *mask = cairn_module_add_buffer(m, "mask", CAIRN_BOOL, CAIRN_SHAPE(2));
    uint8_t values[2] = {0, 1};
    assert_int_equal(cairn_tensor_write(mask, values, 2), CAIRN_OK);
    values[1] = 0;
    assert_int_equal(cairn_tensor_read_as(cairn_module_get(m, "mask"), CAIRN_BOOL, values, 2), CAIRN_OK);
    assert_true(values[0] == 0 && values[1] == 1);
    cairn_module_destroy(&m);
}

static void training_mode_reaches_every_child(void **state) {
    cairn_env *env = test_env_of(state);
    int ended = 0;
    cairn_module *root = empty(env);
    cairn_module *block = cairn_module_add_child(root, "block", residual(env, 3, &ended));
    assert_true(cairn_module_is_training(root) && cairn_module_is_training(block));
    cairn_module_train(root, 0);
    assert_true(!cairn_module_is_training(root) && !cairn_module_is_training(block));
    cairn_module_train(root, CAIRN_ON);
    assert_int_equal(cairn_module_is_training(root), 1);
    cairn_module_train(root, CAIRN_OFF);
    assert_true(!cairn_module_is_training(root) && !cairn_module_is_training(block));
    cairn_module_train(block, 7);
    assert_int_equal(cairn_module_is_training(block), 1);
    assert_int_equal(cairn_module_is_training(root), 0);
    cairn_module_train(NULL, 1);
    assert_int_equal(cairn_module_is_training(NULL), 0);
    cairn_module_destroy(&root);
}

/* ---- types ---- */

static void half_model_keeps_norms_in_f32(void **state) {
    cairn_env *env = test_env_of(state);
    int ended = 0;
    cairn_module *root = empty(env);
    assert_non_null(cairn_module_add_child(root, "block", residual(env, 3, &ended)));
    assert_int_equal(cairn__param_set_to_half(cairn_module_params(root), CAIRN_BF16, true, true), CAIRN_OK);
    assert_int_equal(cairn_tensor_dtype(cairn_module_get(root, "block.gain")), CAIRN_F32);
    assert_int_equal(cairn_tensor_dtype(cairn_module_get(root, "block.inner.weight")), CAIRN_BF16);
    assert_int_equal(cairn_tensor_dtype(cairn_module_get(root, "block.seen")), CAIRN_F32);
    assert_int_equal(cairn_init_constant(cairn_module_get(root, "block.inner.weight"), 1), CAIRN_ESTATE);
    cairn_module_destroy(&root);
}

/* A root with buffers of its own and of two children, a batch norm among them. */
static cairn_module *with_buffers(cairn_env *env, int *ended) {
    cairn_module *root = empty(env);
    assert_non_null(cairn_module_add_buffer(root, "table", CAIRN_F32, CAIRN_SHAPE(3)));
    assert_non_null(cairn_module_add_buffer(root, "none", CAIRN_F32, CAIRN_SHAPE(0)));
    assert_non_null(cairn_module_add_buffer(root, "exact", CAIRN_F64, CAIRN_SHAPE(3)));
    assert_non_null(cairn_module_add_buffer(root, "count", CAIRN_I64, CAIRN_SHAPE(1)));
    assert_int_equal(cairn_buffer_keep_type(cairn_module_add_buffer(root, "total", CAIRN_F32, CAIRN_SHAPE(3))),
                     CAIRN_OK);
    assert_non_null(cairn_module_add_child(root, "block", residual(env, 3, ended)));
    assert_non_null(cairn_module_add_child(root, "norm", cairn_batch_norm(env, 3, 0, 0)));
    return root;
}

static void assert_buffer_types(const cairn_module *root, cairn_dtype of_f32) {
    const struct {
        const char *path;
        cairn_dtype dtype;
    } rows[] = {
        {"table", of_f32},      {"none", of_f32},
        {"exact", CAIRN_F64},   {"count", CAIRN_I64},
        {"total", CAIRN_F32},   {"norm.running_mean", CAIRN_F32},
        {"block.seen", of_f32}, {"norm.running_var", CAIRN_F32},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const cairn_dtype dtype = cairn_tensor_dtype(cairn_module_get(root, rows[i].path));
        if (dtype != rows[i].dtype) fail_msg("%s is %s", rows[i].path, cairn_dtype_name(dtype));
    }
}

static void f32_buffers_become_half_but_those_that_keep_their_type(void **state) {
    cairn_env *env = test_env_of(state);
    for (int i = 0; i < 2; i++) {
        const cairn_dtype half = i ? CAIRN_BF16 : CAIRN_F16;
        int ended = 0;
        float values[3];
        cairn_module *root = with_buffers(env, &ended);
        cairn_tensor *table = cairn_module_get(root, "table");
        assert_int_equal(cairn_tensor_write(table, (const float[]){1.5f, 1.0f + 0x1p-20f, -2}, 3), CAIRN_OK);
        assert_int_equal(cairn__module_make_half_buffers(root, half), CAIRN_OK);
        assert_buffer_types(root, CAIRN_F32);
        cairn__module_use_half_buffers(root, half);
        assert_buffer_types(root, half);
        assert_int_equal(cairn_tensor_read(table, values, 3), CAIRN_OK);
        assert_true(values[0] == 1.5f && values[1] == 1 && values[2] == -2);
        cairn_module_destroy(&root);
    }
}

static void half_buffer_is_written_as_it_was_added(void **state) {
    cairn_env *env = test_env_of(state);
    enum { N = 2500 }; /* more than one block of conversion */
    static float values[N], got[N];
    cairn_module *m = empty(env);
    cairn_tensor *b = cairn_module_add_buffer(m, "table", CAIRN_F32, CAIRN_SHAPE(N));
    for (int i = 0; i < N; i++) values[i] = (float)(i % 2048);
    assert_int_equal(cairn__module_make_half_buffers(m, CAIRN_F16), CAIRN_OK);
    cairn__module_use_half_buffers(m, CAIRN_F16);
    assert_int_equal(cairn_tensor_write(b, values, N), CAIRN_OK);
    assert_int_equal(cairn_tensor_read(b, got, N), CAIRN_OK);
    assert_memory_equal(values, got, sizeof(got));
    cairn_tensor *added_half = cairn_module_add_buffer(m, "half", CAIRN_F16, CAIRN_SHAPE(1));
    assert_int_equal(cairn_tensor_write(added_half, &(uint16_t){0x3c00}, 1), CAIRN_OK);
    assert_true(cairn_tensor_item(added_half) == 1);
    assert_int_equal(cairn_init_constant(b, 1), CAIRN_ESTATE);
    SAYS("amp has made the buffer f16");
    cairn_module_destroy(&m);
}

static void results_that_show_a_buffer_end_when_it_becomes_half(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_module *m = empty(env);
    cairn_tensor *view =
        cairn_reshape(cairn_module_add_buffer(m, "table", CAIRN_F32, CAIRN_SHAPE(4)), 2, (const int64_t[]){2, 2});
    assert_int_equal(cairn__module_make_half_buffers(m, CAIRN_F16), CAIRN_OK);
    cairn__module_use_half_buffers(m, CAIRN_F16);
    assert_null(cairn_add(view, view));
    SAYS("earlier step");
    cairn_module_destroy(&m);
}

static const struct cairn__device_ops *real_ops;
static int allocations_left;

static cairn_status fail_late(struct cairn_device *d, enum cairn__holder holder, size_t nbytes, void **out) {
    if (allocations_left-- == 0) return cairn__fail(CAIRN_ENOMEM, "no memory");
    return real_ops->alloc(d, holder, nbytes, out);
}

static void buffers_become_half_all_or_none(void **state) {
    cairn_env *env = test_env_of(state);
    int ended = 0;
    cairn_module *root = with_buffers(env, &ended);
    real_ops = env->device->ops;
    struct cairn__device_ops failing = *real_ops;
    failing.alloc = fail_late;
    env->device->ops = &failing;
    const uint64_t alive = cairn__alloc_counters().alive;
    for (int i = 0; i < 3; i++) { /* table, none, block.seen */
        allocations_left = i;
        assert_int_equal(cairn__module_make_half_buffers(root, CAIRN_F16), CAIRN_ENOMEM);
        assert_int_equal(cairn__alloc_counters().alive, alive);
        assert_buffer_types(root, CAIRN_F32);
    }
    allocations_left = 3;
    assert_int_equal(cairn__module_make_half_buffers(root, CAIRN_F16), CAIRN_OK);
    cairn__module_drop_half_buffers(root);
    assert_int_equal(cairn__alloc_counters().alive, alive);
    assert_buffer_types(root, CAIRN_F32);
    env->device->ops = real_ops;
    cairn_module_destroy(&root);
}

static void only_a_buffer_that_is_not_half_yet_keeps_its_type(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_module *m = empty(env);
    cairn_tensor *b = cairn_module_add_buffer(m, "table", CAIRN_F32, CAIRN_SHAPE(2));
    cairn_tensor *leaf = cairn_zeros(env, CAIRN_F32, CAIRN_SHAPE(2));
    assert_int_equal(cairn_buffer_keep_type(leaf), CAIRN_EINVAL);
    SAYS("not a module's buffer");
    assert_int_equal(cairn__module_make_half_buffers(m, CAIRN_F16), CAIRN_OK);
    cairn__module_use_half_buffers(m, CAIRN_F16);
    assert_int_equal(cairn_buffer_keep_type(b), CAIRN_ESTATE);
    SAYS("call it before");
    assert_int_equal(cairn_buffer_keep_type(cairn_module_add_buffer(m, "a.b", CAIRN_F32, CAIRN_SHAPE(2))),
                     CAIRN_EINVAL);
    SAYS("or have a dot"); /* the first cause stays */
    cairn_module_destroy(&m);
    cairn_tensor_destroy(&leaf);
}

/* ---- looking ---- */

static void tree_is_shown_as_torch_shows_it(void **state) {
    cairn_env *env = test_env_of(state);
    int ended = 0;
    cairn_module *root = empty(env);
    assert_non_null(cairn_module_add_child(root, "block", residual(env, 3, &ended)));
    assert_non_null(cairn_module_add_child(root, "head", cairn_linear_without_bias(env, 3, 2)));
    static const char want[] = "Empty(\n"
                               "  (block): Residual(\n"
                               "    (inner): Linear(in_features=3, out_features=3, bias=True)\n"
                               "  )\n"
                               "  (head): Linear(in_features=3, out_features=2, bias=False)\n"
                               ")";
    char text[512], cut[9];
    assert_int_equal(cairn_module_format(root, NULL, 0), sizeof(want) - 1);
    assert_int_equal(cairn_module_format(root, text, sizeof(text)), sizeof(want) - 1);
    assert_string_equal(text, want);
    assert_int_equal(cairn_module_format(root, cut, sizeof(cut)), sizeof(want) - 1);
    assert_string_equal(cut, "Empty(\n ");
    assert_int_equal(cairn_module_format(NULL, text, sizeof(text)), -1);
    assert_int_equal(cairn_module_format(root, NULL, 3), -1);
    cairn_module_destroy(&root);
}

static cairn_tensor *forget_to_return(cairn_module *module, void *context, cairn_tensor *const *inputs, int count) {
    (void)module, (void)context, (void)inputs, (void)count;
    return NULL;
}

static void forward_that_returns_null_is_an_error(void **state) {
    cairn_env *env = test_env_of(state);
    const struct cairn_module_ops ops = {.struct_size = sizeof(ops), .name = "Silent", .forward = forget_to_return};
    cairn_module *m = cairn_module_create(env, &ops, NULL);
    assert_null(cairn_relu(NULL)); /* an older error */
    assert_null(cairn_module_forward(m, cairn_zeros(env, CAIRN_F32, CAIRN_SHAPE(2))));
    SAYS("Silent: its forward returned NULL");
    cairn_module_destroy(&m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        ENV_TEST(parameters_of_a_tree_are_one_set_named_by_path),
        ENV_TEST(buffers_are_named_by_path_from_the_module_given),
        ENV_TEST(buffers_hold_values_and_belong_to_the_module),
        ENV_TEST(handles_are_found_by_path),
        ENV_TEST(names_are_refused_that_make_no_path),
        ENV_TEST(a_child_belongs_to_one_module_alone),
        ENV_TEST(modules_of_two_environments_do_not_mix),
        ENV_TEST(modules_in_use_can_neither_grow_nor_be_adopted_nor_end),
        ENV_TEST(modules_with_gradients_are_not_adopted),
        ENV_TEST(users_context_is_ended_also_where_creation_fails),
        ENV_TEST(users_module_trains),
        ENV_TEST(modules_take_several_inputs_cast_where_they_are_floats),
        ENV_TEST(forward_refuses_what_makes_no_sense),
        ENV_TEST(innermost_module_is_named_once),
        ENV_TEST(buffer_may_be_a_mask),
        ENV_TEST(training_mode_reaches_every_child),
        ENV_TEST(half_model_keeps_norms_in_f32),
        ENV_TEST(f32_buffers_become_half_but_those_that_keep_their_type),
        ENV_TEST(half_buffer_is_written_as_it_was_added),
        ENV_TEST(results_that_show_a_buffer_end_when_it_becomes_half),
        ENV_TEST(buffers_become_half_all_or_none),
        ENV_TEST(only_a_buffer_that_is_not_half_yet_keeps_its_type),
        ENV_TEST(tree_is_shown_as_torch_shows_it),
        ENV_TEST(forward_that_returns_null_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
