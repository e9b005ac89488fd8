/* What each opt level does to inputs, outputs, normalisation layers, buffers and the model's original types. Every
 * number is exact in both half types, so the results of all levels are compared bit for bit with a run without amp. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "../on_gpu.h"
#include "cairn/cairn.h"

enum { N = 4 }; /* every matrix is [N, N] */

/* ---- levels ---- */

struct level {
    amp_opt_level level;
    cairn_dtype half;
    cairn_dtype casts_to; /* weights, f32 buffers, inputs; 0 = they are left alone */
    cairn_dtype norms;    /* weights of normalisation layers */
};

static const struct level levels[] = {
    {AMP_O0, CAIRN_F16, CAIRN_F32, CAIRN_F32},    {AMP_O1, CAIRN_F16, 0, CAIRN_F32},
    {AMP_O1, CAIRN_BF16, 0, CAIRN_F32},           {AMP_O2, CAIRN_F16, CAIRN_F16, CAIRN_F32},
    {AMP_O2, CAIRN_BF16, CAIRN_BF16, CAIRN_F32},  {AMP_O3, CAIRN_F16, CAIRN_F16, CAIRN_F16},
    {AMP_O3, CAIRN_BF16, CAIRN_BF16, CAIRN_BF16},
};
enum { LEVELS = sizeof(levels) / sizeof(levels[0]) };

static const char *name_of(const struct level *l) {
    static char text[32];
    snprintf(text, sizeof(text), "O%d in %s", (int)l->level - (int)AMP_O0, cairn_dtype_name(l->half));
    return text;
}

static cairn_dtype weights_of(const struct level *l) {
    return l->casts_to ? l->casts_to : CAIRN_F32;
}

static char told[8192];

static void keep_log(void *cookie, cairn_log_level level, const char *message) {
    (void)cookie;
    const size_t used = strlen(told);
    if (level <= CAIRN_LOG_NOTICE) snprintf(told + used, sizeof(told) - used, "%s\n", message);
}

static int setup(void **state) {
    cairn_env *env = NULL;
    told[0] = '\0';
    cairn_set_log(keep_log, NULL);
    const cairn_status st = cairn_env_create(NULL, NULL, cairn_env_options(.seed = 1), &env);
    *state = env;
    return st == CAIRN_OK ? 0 : -1;
}

static int teardown(void **state) {
    cairn_env *env = *state;
    cairn_env_destroy(&env);
    cairn_set_log(NULL, NULL);
    return 0;
}

static amp_context *initialize(cairn_env *env, cairn_module *model, cairn_optimizer *optimizer,
                               const struct amp_options *options) {
    amp_context *amp = NULL;
    if (amp_initialize(env, model, optimizer, options, &amp) != CAIRN_OK) fail_msg("%s", cairn_last_error());
    return amp;
}

static cairn_optimizer *sgd_of(cairn_module *model) {
    cairn_optimizer *sgd = NULL;
    struct cairn_sgd_options hyper = CAIRN_SGD_OPTIONS_INIT;
    hyper.lr = 0.5;
    assert_int_equal(cairn_sgd_create(cairn_module_params(model), &hyper, &sgd), CAIRN_OK);
    return sgd;
}

/* ---- a module that notes what types it was called with ---- */

struct witness {
    cairn_dtype seen[8];
    cairn_module *inner; /* what it then does; NULL = y is its first input */
};

static cairn_tensor *witness_forward(cairn_module *module, void *context, cairn_tensor *const *inputs, int count) {
    (void)module;
    struct witness *w = context;
    for (int i = 0; i < count; i++) w->seen[i] = cairn_tensor_dtype(inputs[i]);
    return w->inner ? cairn_module_forward(w->inner, inputs[0]) : inputs[0];
}

static const struct cairn_module_ops witness_ops = {
    .struct_size = sizeof(struct cairn_module_ops),
    .name = "Witness",
    .forward = witness_forward,
};

static cairn_module *witness(cairn_env *env, struct witness *w, cairn_module *inner) {
    cairn_module *m = cairn_module_create(env, &witness_ops, w);
    w->inner = cairn_module_add_child(m, "inner", inner);
    assert_non_null(w->inner);
    return m;
}

/* ---- inputs ---- */

static const cairn_dtype given[] = {CAIRN_F32, CAIRN_F16, CAIRN_BF16, CAIRN_F64, CAIRN_I64, CAIRN_I32, CAIRN_BOOL};
enum { GIVEN = sizeof(given) / sizeof(given[0]), FLOATS = 4 };

static void assert_seen(cairn_env *env, const struct amp_options *options, cairn_dtype floats, const char *what) {
    cairn_tensor *inputs[GIVEN + 1] = {NULL}; /* the last is NULL: it is left out */
    struct witness w = {.inner = NULL};
    cairn_module *model = witness(env, &w, cairn_linear(env, N, N));
    amp_context *amp = initialize(env, model, NULL, options);
    for (int i = 0; i < GIVEN; i++) inputs[i] = cairn_full(env, given[i], CAIRN_SHAPE(N, N), 1);
    w.inner = NULL;
    assert_non_null(cairn_module_forward_n(model, inputs, GIVEN + 1));
    for (int i = 0; i < GIVEN; i++) {
        const cairn_dtype want = floats && i < FLOATS ? floats : given[i];
        if (w.seen[i] == want) continue;
        fail_msg("%s: %s became %s", what, cairn_dtype_name(given[i]), cairn_dtype_name(w.seen[i]));
    }
    amp_destroy(&amp);
    cairn_module_destroy(&model);
    for (int i = 0; i < GIVEN; i++) cairn_tensor_destroy(&inputs[i]);
}

static void inputs_that_are_floats_get_the_model_s_type(void **state) {
    for (int l = 0; l < LEVELS; l++) {
        assert_seen(*state, amp_options(.opt_level = levels[l].level, .half_type = levels[l].half), levels[l].casts_to,
                    name_of(&levels[l]));
    }
}

static void inputs_are_left_alone_where_types_are_kept_or_amp_is_off(void **state) {
    for (int l = 0; l < LEVELS; l++) {
        assert_seen(*state,
                    amp_options(.opt_level = levels[l].level, .half_type = levels[l].half,
                                .cast_model_type = AMP_KEEP_TYPES),
                    (cairn_dtype)0, name_of(&levels[l]));
    }
    assert_seen(*state, amp_options(.opt_level = AMP_O2, .enabled = CAIRN_OFF), (cairn_dtype)0, "off");
}

static void model_type_may_be_f32_at_o2(void **state) {
    assert_seen(*state, amp_options(.opt_level = AMP_O2, .cast_model_type = CAIRN_F32), CAIRN_F32, "O2 in f32");
}

/* ---- outputs ---- */

static void assert_output(cairn_env *env, const struct amp_options *options, cairn_dtype want, const char *what) {
    cairn_module *model = cairn_linear(env, N, N);
    amp_context *amp = initialize(env, model, NULL, options);
    cairn_tensor *x = cairn_full(env, CAIRN_F32, CAIRN_SHAPE(N, N), 1);
    const cairn_dtype got = cairn_tensor_dtype(cairn_module_forward(model, x));
    if (got != want) fail_msg("%s: the output is %s", what, cairn_dtype_name(got));
    amp_destroy(&amp);
    cairn_module_destroy(&model);
    cairn_tensor_destroy(&x);
}

static void outputs_are_f32_where_the_model_is_cast_and_half_at_o1(void **state) {
    for (int l = 0; l < LEVELS; l++) {
        assert_output(*state, amp_options(.opt_level = levels[l].level, .half_type = levels[l].half),
                      levels[l].casts_to ? CAIRN_F32 : levels[l].half, name_of(&levels[l]));
    }
}

static void outputs_get_the_chosen_type_at_every_level(void **state) {
    static const cairn_dtype wanted[] = {CAIRN_F32, CAIRN_F16, CAIRN_BF16};
    for (int l = 0; l < LEVELS; l++) {
        for (int i = 0; i < 3; i++) {
            assert_output(*state,
                          amp_options(.opt_level = levels[l].level, .half_type = levels[l].half,
                                      .cast_model_outputs = wanted[i]),
                          wanted[i], name_of(&levels[l]));
        }
    }
}

static cairn_tensor *classes_forward(cairn_module *module, void *context, cairn_tensor *const *inputs, int count) {
    (void)module, (void)context, (void)count;
    return cairn_argmax(inputs[0], 1, 0);
}

static void outputs_that_are_no_floats_are_left_alone(void **state) {
    cairn_env *env = *state;
    const struct cairn_module_ops ops = {.struct_size = sizeof(ops), .name = "Classes", .forward = classes_forward};
    cairn_tensor *x = cairn_full(env, CAIRN_F32, CAIRN_SHAPE(N, N), 1);
    for (int l = 0; l < LEVELS; l++) {
        cairn_module *model = cairn_module_create(env, &ops, NULL);
        amp_context *amp = initialize(env, model, NULL,
                                      amp_options(.opt_level = levels[l].level, .half_type = levels[l].half,
                                                  .cast_model_outputs = CAIRN_F16));
        assert_int_equal(cairn_tensor_dtype(cairn_module_forward(model, x)), CAIRN_I64);
        amp_destroy(&amp);
        cairn_module_destroy(&model);
    }
    cairn_tensor_destroy(&x);
}

/* ---- one step of a model, in all that can be seen of it ---- */

enum { MAX_VALUES = 64 };

struct outcome {
    float y[N * N], dx[N * N];
    float gradients[MAX_VALUES]; /* as they are stored, of the type of their parameters, but for the scale */
    float weights[MAX_VALUES];   /* after the step, one parameter after the other */
    float buffers[MAX_VALUES];
};

static void read_weights(cairn_module *model, float *out) {
    cairn_param_set *set = cairn_module_params(model);
    for (size_t i = 0; i < cairn_param_set_count(set); i++) {
        cairn_param p;
        assert_int_equal(cairn_param_set_get(set, i, &p), CAIRN_OK);
        cairn_tensor *t = cairn_module_get(model, p.name);
        assert_int_equal(cairn_tensor_read(t, out, cairn_tensor_numel(t)), CAIRN_OK);
        out += cairn_tensor_numel(t);
    }
}

static void read_gradients(cairn_env *env, cairn_module *model, float scale, float *out) {
    cairn_param_set *set = cairn_module_params(model);
    for (size_t i = 0; i < cairn_param_set_count(set); i++) {
        cairn_param p;
        assert_int_equal(cairn_param_set_get(set, i, &p), CAIRN_OK);
        cairn_tensor *t = cairn_tensor_from(env, p.dtype, p.ndim, p.shape, p.grad);
        const size_t n = cairn_tensor_numel(t);
        assert_int_equal(cairn_tensor_read(t, out, n), CAIRN_OK);
        for (size_t k = 0; k < n; k++) out[k] /= scale;
        out += n;
        cairn_tensor_destroy(&t);
    }
}

static void read_buffers(cairn_module *model, float *out) {
    for (size_t i = 0; i < cairn_module_num_buffers(model); i++) {
        cairn_tensor *b = cairn_module_buffer(model, i, NULL);
        assert_int_equal(cairn_tensor_read(b, out, cairn_tensor_numel(b)), CAIRN_OK);
        out += cairn_tensor_numel(b);
    }
}

/* Rows and columns of x, and each half of a row, have mean 0 and variance 1. */
static const float x_values[N * N] = {1, -1, 1, -1, -1, 1, -1, 1, 1, -1, 1, -1, -1, 1, -1, 1};
static const float dy_values[N * N] = {1, 2, -1, 0, 2, -1, 0, 1, -2, 1, 1, 1, 0, 0, 2, -1};
enum { SCALE = 8 };

/* loss = sum(y * dy), a step of SGD. options NULL: without amp. */
static void train_once(cairn_env *env, cairn_module *model, const struct amp_options *options, struct outcome *out) {
    cairn_tensor *x = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(N, N), x_values);
    cairn_tensor *dy = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(N, N), dy_values);
    cairn_optimizer *sgd = sgd_of(model);
    amp_context *amp = options ? initialize(env, model, sgd, options) : NULL;
    *out = (struct outcome){.y = {0}};
    assert_int_equal(cairn_tensor_require_grad(x), CAIRN_OK);
    cairn_tensor *y = cairn_module_forward(model, x);
    if (!y || cairn_tensor_read(y, out->y, N * N) != CAIRN_OK) fail_msg("%s", cairn_last_error());
    cairn_tensor *loss = cairn_sum(cairn_mul(y, dy));
    const cairn_status st = amp ? amp_backward(amp, loss, sgd) : cairn_backward(loss);
    if (st != CAIRN_OK) fail_msg("%s", cairn_last_error());
    memcpy(out->dx, cairn_tensor_grad(x), sizeof(out->dx));
    for (int i = 0; amp && i < N * N; i++) out->dx[i] /= SCALE;
    read_gradients(env, model, amp ? SCALE : 1, out->gradients);
    assert_int_equal(cairn_step(sgd), CAIRN_OK);
    read_weights(model, out->weights);
    read_buffers(model, out->buffers);
    amp_destroy(&amp);
    cairn_optimizer_destroy(&sgd);
    cairn_tensor_destroy(&x);
    cairn_tensor_destroy(&dy);
}

static void assert_same(const struct level *l, const char *what, const struct outcome *got,
                        const struct outcome *want) {
    static const struct {
        const char *name;
        size_t offset, count;
    } parts[] = {{"output", offsetof(struct outcome, y), N * N},
                 {"input's gradient", offsetof(struct outcome, dx), N * N},
                 {"gradient", offsetof(struct outcome, gradients), MAX_VALUES},
                 {"weight", offsetof(struct outcome, weights), MAX_VALUES},
                 {"buffer", offsetof(struct outcome, buffers), MAX_VALUES}};
    for (size_t p = 0; p < sizeof(parts) / sizeof(parts[0]); p++) {
        const float *a = (const float *)((const char *)got + parts[p].offset);
        const float *b = (const float *)((const char *)want + parts[p].offset);
        for (size_t i = 0; i < parts[p].count; i++) {
            if (a[i] == b[i]) continue;
            fail_msg("%s, %s: %s %zu is %g, without amp %g", what, name_of(l), parts[p].name, i, (double)a[i],
                     (double)b[i]);
        }
    }
}

static cairn_dtype param_type(cairn_module *model, const char *name) {
    return cairn_tensor_dtype(cairn_module_get(model, name));
}

/* ---- normalisation layers ---- */

/* eps 3: the deviation of the data is 1, and 1 / sqrt(1 + 3) is exact. */
static cairn_module *make_norm(cairn_env *env, int which) {
    const double eps = 3;
    switch (which) {
    case 0:
        return cairn_layer_norm(env, 1, (const int64_t[]){N}, eps);
    case 1:
        return cairn_rms_norm(env, N, eps);
    case 2:
        return cairn_group_norm(env, 2, N, eps);
    default:
        return cairn_batch_norm(env, N, eps, 0.5);
    }
}
static const char *const norms[] = {"layer_norm", "rms_norm", "group_norm", "batch_norm"};
enum { NORMS = 4 };

static void normalisation_layers_compute_the_same_at_every_level(void **state) {
    cairn_env *env = *state;
    for (int n = 0; n < NORMS; n++) {
        struct outcome want, got;
        cairn_module *plain = make_norm(env, n);
        train_once(env, plain, NULL, &want);
        cairn_module_destroy(&plain);
        assert_true(want.y[0] == 0.5f && want.dx[0] != 0 && want.gradients[0] != 0 && want.weights[0] != 1);
        for (int l = 0; l < LEVELS; l++) {
            cairn_module *model = make_norm(env, n);
            train_once(env, model,
                       amp_options(.opt_level = levels[l].level, .half_type = levels[l].half, .loss_scale = SCALE),
                       &got);
            assert_same(&levels[l], norms[n], &got, &want);
            assert_int_equal(param_type(model, "weight"), levels[l].norms);
            cairn_module_destroy(&model);
        }
    }
}

static void normalisation_layers_take_half_input_at_o2_and_o3(void **state) {
    cairn_env *env = *state;
    cairn_tensor *x = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(N, N), x_values);
    for (int l = 0; l < LEVELS; l++) {
        for (int n = 0; n < NORMS; n++) {
            struct witness w = {.inner = NULL};
            cairn_module *model = witness(env, &w, make_norm(env, n));
            amp_context *amp =
                initialize(env, model, NULL, amp_options(.opt_level = levels[l].level, .half_type = levels[l].half));
            assert_non_null(cairn_module_forward(model, x));
            assert_int_equal(w.seen[0], levels[l].casts_to ? levels[l].casts_to : CAIRN_F32);
            const cairn_dtype inner =
                cairn_tensor_dtype(cairn_module_forward(w.inner, cairn_cast(x, weights_of(&levels[l]))));
            assert_int_equal(inner, weights_of(&levels[l])); /* it gives back what it is given */
            amp_destroy(&amp);
            cairn_module_destroy(&model);
        }
    }
    cairn_tensor_destroy(&x);
}

static void normalisation_weights_in_f32_are_their_own_masters(void **state) {
    cairn_env *env = *state;
    for (int l = 0; l < LEVELS; l++) {
        for (int n = 0; n < NORMS; n++) {
            cairn_module *model = make_norm(env, n);
            cairn_optimizer *sgd = sgd_of(model);
            amp_context *amp =
                initialize(env, model, sgd, amp_options(.opt_level = levels[l].level, .half_type = levels[l].half));
            cairn_param_set *set = cairn_module_params(model);
            for (size_t i = 0; i < cairn_param_set_count(set); i++) {
                cairn_param p;
                assert_int_equal(cairn_param_set_get(set, i, &p), CAIRN_OK);
                assert_int_equal(p.dtype, levels[l].norms);
                const float *master = cairn_param_master(set, i);
                assert_int_equal(master != NULL, levels[l].norms == CAIRN_F32); /* O2 makes none of f32 weights */
                if (master) assert_ptr_equal(master, p.data);
            }
            amp_destroy(&amp);
            cairn_optimizer_destroy(&sgd);
            cairn_module_destroy(&model);
        }
    }
}

static void norms_are_kept_in_f32_or_not_as_chosen(void **state) {
    cairn_env *env = *state;
    static const struct {
        amp_opt_level level;
        cairn_switch keep;
        cairn_dtype want;
    } rows[] = {{AMP_O2, CAIRN_OFF, CAIRN_F16}, {AMP_O2, CAIRN_ON, CAIRN_F32}, {AMP_O3, CAIRN_ON, CAIRN_F32},
                {AMP_O3, CAIRN_OFF, CAIRN_F16}, {AMP_O0, CAIRN_ON, CAIRN_F32}, {AMP_O0, CAIRN_OFF, CAIRN_F32}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        cairn_module *model = cairn_sequential(env, CAIRN_MODULES(cairn_linear(env, N, N), make_norm(env, 3)));
        amp_context *amp =
            initialize(env, model, NULL, amp_options(.opt_level = rows[i].level, .keep_batchnorm_fp32 = rows[i].keep));
        assert_int_equal(param_type(model, "1.weight"), rows[i].want);
        assert_int_equal(param_type(model, "1.running_mean"), CAIRN_F32);
        assert_int_equal(param_type(model, "0.weight"), rows[i].level == AMP_O0 ? CAIRN_F32 : CAIRN_F16);
        amp_destroy(&amp);
        cairn_module_destroy(&model);
    }
}

/* ---- buffers ---- */

/* y = linear(x + table) * mask, where the module may keep more than it uses. */
struct shifted {
    cairn_tensor *table, *total, *mask;
    cairn_module *linear;
};

static cairn_tensor *shifted_forward(cairn_module *module, void *context, cairn_tensor *const *inputs, int count) {
    (void)module, (void)count;
    struct shifted *s = context;
    cairn_tensor *y = cairn_module_forward(s->linear, cairn_add(inputs[0], s->table));
    return s->mask ? cairn_mul(y, s->mask) : y;
}

static const struct cairn_module_ops shifted_ops = {
    .struct_size = sizeof(struct cairn_module_ops),
    .name = "Shifted",
    .forward = shifted_forward,
};

static const float table_values[N] = {0.5f, 1, -1.5f, 2};

static cairn_module *make_shifted(cairn_env *env, struct shifted *s) {
    static float weight[N * N];
    for (int i = 0; i < N * N; i++) weight[i] = (float)(i % 5 - 2) / 4;
    *s = (struct shifted){.table = NULL};
    cairn_module *m = cairn_module_create(env, &shifted_ops, s);
    s->table = cairn_module_add_buffer(m, "table", CAIRN_F32, CAIRN_SHAPE(N));
    s->total = cairn_module_add_buffer(m, "total", CAIRN_F32, CAIRN_SHAPE(N));
    assert_non_null(cairn_module_add_buffer(m, "count", CAIRN_I64, CAIRN_SHAPE(1)));
    assert_int_equal(cairn_buffer_keep_type(s->total), CAIRN_OK);
    assert_int_equal(cairn_tensor_write(s->table, table_values, N), CAIRN_OK);
    cairn_module *linear = cairn_linear(env, N, N);
    cairn_param p;
    assert_int_equal(cairn_param_set_get(cairn_module_params(linear), 0, &p), CAIRN_OK);
    memcpy(p.data, weight, sizeof(weight)); /* the CPU's memory is the host's */
    assert_int_equal(cairn_init_constant(cairn_module_get(linear, "bias"), 0.25), CAIRN_OK);
    s->linear = cairn_module_add_child(m, "linear", linear);
    assert_non_null(s->linear);
    return m;
}

static void buffers_get_the_model_s_type_but_for_those_that_keep_theirs(void **state) {
    for (int l = 0; l < LEVELS; l++) {
        struct shifted s;
        float values[N];
        cairn_module *model = make_shifted(*state, &s);
        amp_context *amp =
            initialize(*state, model, NULL, amp_options(.opt_level = levels[l].level, .half_type = levels[l].half));
        assert_int_equal(cairn_tensor_dtype(s.table), weights_of(&levels[l]));
        assert_int_equal(cairn_tensor_dtype(s.total), CAIRN_F32);
        assert_int_equal(param_type(model, "count"), CAIRN_I64);
        assert_int_equal(cairn_tensor_read(s.table, values, N), CAIRN_OK);
        assert_memory_equal(values, table_values, sizeof(values));
        amp_destroy(&amp);
        cairn_module_destroy(&model);
    }
}

static void buffers_stay_as_they_are_where_types_are_kept_or_amp_is_off(void **state) {
    const struct amp_options *const rows[] = {
        amp_options(.opt_level = AMP_O2, .cast_model_type = AMP_KEEP_TYPES),
        amp_options(.opt_level = AMP_O3, .cast_model_type = CAIRN_F32),
        amp_options(.opt_level = AMP_O2, .enabled = CAIRN_OFF),
    };
    for (int i = 0; i < 3; i++) {
        struct shifted s;
        cairn_module *model = make_shifted(*state, &s);
        amp_context *amp = initialize(*state, model, NULL, rows[i]);
        assert_int_equal(cairn_tensor_dtype(s.table), CAIRN_F32);
        assert_int_equal(param_type(model, "linear.weight"), CAIRN_F32);
        amp_destroy(&amp);
        cairn_module_destroy(&model);
    }
}

static void layers_that_add_a_buffer_compute_the_same_at_every_level(void **state) {
    cairn_env *env = *state;
    struct shifted s;
    struct outcome want, got;
    cairn_module *plain = make_shifted(env, &s);
    train_once(env, plain, NULL, &want);
    cairn_module_destroy(&plain);
    assert_true(want.y[0] != 0 && want.dx[0] != 0);
    for (int l = 0; l < LEVELS; l++) {
        cairn_module *model = make_shifted(env, &s);
        train_once(env, model,
                   amp_options(.opt_level = levels[l].level, .half_type = levels[l].half, .loss_scale = SCALE), &got);
        assert_same(&levels[l], "shifted", &got, &want);
        cairn_module_destroy(&model);
    }
}

static void buffer_is_written_in_f32_at_every_level(void **state) {
    cairn_env *env = *state;
    cairn_tensor *x = cairn_zeros(env, CAIRN_F32, CAIRN_SHAPE(N, N));
    float y[LEVELS][N * N];
    for (int l = 0; l < LEVELS; l++) {
        struct shifted s;
        cairn_module *model = make_shifted(env, &s);
        amp_context *amp =
            initialize(env, model, NULL, amp_options(.opt_level = levels[l].level, .half_type = levels[l].half));
        assert_int_equal(cairn_tensor_write(s.table, (const float[N]){4, -2, 0.5f, 1}, N), CAIRN_OK);
        assert_int_equal(cairn_tensor_read(cairn_module_forward(model, x), y[l], N * N), CAIRN_OK);
        assert_memory_equal(y[l], y[0], sizeof(y[0]));
        amp_destroy(&amp);
        cairn_module_destroy(&model);
    }
    cairn_tensor_destroy(&x);
}

static void tensor_over_the_user_s_memory_is_never_cast(void **state) {
    NOT_ON_A_GPU("these buffers are the host's");
    cairn_env *env = *state;
    static float mask[N] = {1, 0, 1, 1};
    cairn_tensor *x = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(N, N), x_values);
    for (int l = 0; l < LEVELS; l++) {
        struct shifted s;
        float y[N * N];
        cairn_module *model = make_shifted(env, &s);
        s.mask = cairn_tensor_over(env, CAIRN_F32, 1, (const int64_t[]){N}, NULL, mask);
        amp_context *amp =
            initialize(env, model, NULL, amp_options(.opt_level = levels[l].level, .half_type = levels[l].half));
        assert_int_equal(cairn_tensor_dtype(s.mask), CAIRN_F32);
        mask[1] = 2; /* written behind Cairn's back, and seen */
        assert_int_equal(cairn_tensor_read(cairn_module_forward(model, x), y, N * N), CAIRN_OK);
        assert_true(y[1] != 0);
        mask[1] = 0;
        assert_int_equal(cairn_tensor_read(cairn_module_forward(model, x), y, N * N), CAIRN_OK);
        assert_true(y[1] == 0 && y[0] != 0);
        amp_destroy(&amp);
        cairn_module_destroy(&model);
        cairn_tensor_destroy(&s.mask);
    }
    cairn_tensor_destroy(&x);
}

/* ---- the types a model comes with, and messages ---- */

static void half_model_is_refused_with_advice_at_every_level(void **state) {
    cairn_env *env = *state;
    cairn_module *model = cairn_linear(env, N, N);
    amp_context *amp = initialize(env, model, NULL, amp_options(.opt_level = AMP_O3));
    amp_destroy(&amp);
    for (int l = 0; l < LEVELS; l++) {
        const struct amp_options *options = amp_options(.opt_level = levels[l].level, .half_type = levels[l].half);
        assert_int_equal(amp_initialize(env, model, NULL, options, &amp), CAIRN_EINVAL);
        assert_non_null(strstr(cairn_last_error(), "parameter 'weight' is f16"));
        assert_non_null(strstr(cairn_last_error(), "give amp an f32 model"));
        assert_null(amp);
    }
    cairn_module_destroy(&model);
}

static void refused_options_change_nothing(void **state) {
    cairn_env *env = *state;
    struct shifted s;
    cairn_module *model = make_shifted(env, &s);
    amp_context *amp = NULL;
    told[0] = '\0';
    assert_int_equal(amp_initialize(env, model, NULL, amp_options(.opt_level = AMP_O2, .patch_ops = CAIRN_ON), &amp),
                     CAIRN_EINVAL);
    assert_non_null(strstr(cairn_last_error(), "leave patch_ops out"));
    assert_int_equal(cairn_tensor_dtype(s.table), CAIRN_F32);
    assert_int_equal(param_type(model, "linear.weight"), CAIRN_F32);
    assert_string_equal(told, "");
    amp = initialize(env, model, NULL, amp_options(.opt_level = AMP_O2));
    amp_destroy(&amp);
    cairn_module_destroy(&model);
}

static int count_in(const char *text, const char *part) {
    int count = 0;
    for (const char *at = text; (at = strstr(at, part)) != NULL; at++) count++;
    return count;
}

static void settings_are_logged_once(void **state) {
    cairn_env *env = *state;
    struct shifted s;
    struct outcome out;
    for (int l = 0; l < LEVELS; l++) {
        cairn_module *model = make_shifted(env, &s);
        told[0] = '\0';
        train_once(env, model,
                   amp_options(.opt_level = levels[l].level, .half_type = levels[l].half, .loss_scale = SCALE), &out);
        assert_int_equal(count_in(told, "Selected optimization level O"), 1);
        assert_int_equal(count_in(told, ", loss_scale 8"), 1);
        cairn_module_destroy(&model);
    }
}

static void settings_are_not_logged_with_verbosity_minus_1(void **state) {
    struct shifted s;
    cairn_module *model = make_shifted(*state, &s);
    told[0] = '\0';
    amp_context *amp = initialize(*state, model, NULL, amp_options(.verbosity = -1));
    amp_destroy(&amp);
    cairn_module_destroy(&model);
    assert_string_equal(told, "");
}

#define LEVEL_TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        LEVEL_TEST(inputs_that_are_floats_get_the_model_s_type),
        LEVEL_TEST(inputs_are_left_alone_where_types_are_kept_or_amp_is_off),
        LEVEL_TEST(model_type_may_be_f32_at_o2),
        LEVEL_TEST(outputs_are_f32_where_the_model_is_cast_and_half_at_o1),
        LEVEL_TEST(outputs_get_the_chosen_type_at_every_level),
        LEVEL_TEST(outputs_that_are_no_floats_are_left_alone),
        LEVEL_TEST(normalisation_layers_compute_the_same_at_every_level),
        LEVEL_TEST(normalisation_layers_take_half_input_at_o2_and_o3),
        LEVEL_TEST(normalisation_weights_in_f32_are_their_own_masters),
        LEVEL_TEST(norms_are_kept_in_f32_or_not_as_chosen),
        LEVEL_TEST(buffers_get_the_model_s_type_but_for_those_that_keep_theirs),
        LEVEL_TEST(buffers_stay_as_they_are_where_types_are_kept_or_amp_is_off),
        LEVEL_TEST(layers_that_add_a_buffer_compute_the_same_at_every_level),
        LEVEL_TEST(buffer_is_written_in_f32_at_every_level),
        LEVEL_TEST(tensor_over_the_user_s_memory_is_never_cast),
        LEVEL_TEST(half_model_is_refused_with_advice_at_every_level),
        LEVEL_TEST(refused_options_change_nothing),
        LEVEL_TEST(settings_are_logged_once),
        LEVEL_TEST(settings_are_not_logged_with_verbosity_minus_1),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
