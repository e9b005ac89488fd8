/* Layers: parameters, initial values, results against the operations that they call, errors. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "test_env.h"

#include "cairn/cairn.h"
#include "core/status.h"
#include "nn/module.h"
#include "nn/tensor.h"

/* "weight[3, 4] bias[3]" */
static void assert_params(cairn_module *m, const char *want) {
    static char got[2048];
    cairn_param_set *set = cairn_module_params(m);
    size_t used = 0;
    got[0] = '\0';
    assert_non_null(set);
    for (size_t i = 0; i < set->count; i++) {
        const struct cairn__param *p = set->params[i];
        used +=
            (size_t)snprintf(got + used, sizeof(got) - used, "%s%s%s[", i ? " " : "", p->name, p->is_norm ? "*" : "");
        for (int d = 0; d < p->ndim; d++)
            used += (size_t)snprintf(got + used, sizeof(got) - used, "%s%d", d ? "," : "", (int)p->shape[d]);
        used += (size_t)snprintf(got + used, sizeof(got) - used, "]");
    }
    assert_string_equal(got, want);
}

static void assert_shown(cairn_module *m, const char *want) {
    char text[4096];
    assert_in_range(cairn_module_format(m, text, sizeof(text)), 1, sizeof(text));
    assert_string_equal(text, want);
}

static void assert_shape(cairn_tensor *t, const char *want) {
    char text[CAIRN__SHAPE_TEXT];
    if (!t) fail_msg("%s", cairn_last_error());
    assert_string_equal(cairn__shape_text(t, text), want);
}

static const float *data_of(cairn_module *m, const char *path) {
    return cairn__tensor_data(cairn_module_get(m, path));
}

/* Every |value| is below the bound, and one is near it. */
static void assert_bound(cairn_module *m, const char *path, double bound) {
    cairn_tensor *t = cairn_module_get(m, path);
    double most = 0;
    for (size_t i = 0; i < t->n; i++) most = fmax(most, fabs((double)data_of(m, path)[i]));
    assert_true(most <= (double)(float)bound && most > 0.8 * bound);
}

static void assert_all(cairn_module *m, const char *path, float value) {
    cairn_tensor *t = cairn_module_get(m, path);
    for (size_t i = 0; i < t->n; i++) assert_true(data_of(m, path)[i] == value);
}

/* ---- convolution ---- */

static void convolutions_have_torch_s_shapes_and_bounds(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_module *m = cairn_conv2d(env, 4, 6, 3, cairn_conv_options(.stride = {2}, .padding = {1, 1}, .groups = 2));
    assert_params(m, "weight[6,2,3,3] bias[6]");
    assert_bound(m, "weight", 1 / sqrt(18));
    assert_bound(m, "bias", 1 / sqrt(18));
    assert_shown(m, "Conv2d(4, 6, kernel_size=(3, 3), stride=(2, 2), padding=(1, 1), groups=2)");
    assert_shape(cairn_module_forward(m, cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(5, 4, 8, 7))), "[5, 6, 4, 4]");
    cairn_module_destroy(&m);
    m = cairn_conv2d(env, 1, 1, 3, cairn_conv_options(.padding = {1, CAIRN_NO_PADDING}));
    assert_shown(m, "Conv2d(1, 1, kernel_size=(3, 3), stride=(1, 1), padding=(1, 0))");
    assert_shape(cairn_module_forward(m, cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(1, 4, 4))), "[1, 4, 2]");
    cairn_module_destroy(&m);
    m = cairn_conv1d(env, 3, 2, 5, cairn_conv_options(.bias = CAIRN_OFF));
    assert_params(m, "weight[2,3,5]");
    assert_bound(m, "weight", 1 / sqrt(15));
    assert_shown(m, "Conv1d(3, 2, kernel_size=(5,), stride=(1,), bias=False)");
    assert_shape(cairn_module_forward(m, cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(2, 3, 9))), "[2, 2, 5]");
    cairn_module_destroy(&m);
    NO_TENSOR(cairn_conv2d(env, 4, 6, 0, NULL), "conv2d: 4 channels to 6, kernel 0; all must be positive");
    NO_TENSOR(cairn_conv2d(env, 4, 6, 3, cairn_conv_options(.groups = 4)),
              "conv2d: 4 groups do not divide 4 and 6 channels");
    NO_TENSOR(cairn_conv1d(env, 4, 6, 3, cairn_conv_options(.padding = {-2})),
              "conv1d: stride 1, padding -2, dilation 1; none must be negative");
    assert_null(cairn_conv2d(env, INT64_MAX, INT64_MAX, INT64_MAX, NULL));
}

static void pools_have_torch_s_shapes(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_tensor *x = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(2, 3, 8, 8));
    cairn_module *m = cairn_max_pool(env, 3, cairn_pool_options(.stride = {2}, .padding = {1}));
    assert_shown(m, "MaxPool2d(kernel_size=3, stride=(2, 2), padding=(1, 1))");
    assert_shape(cairn_module_forward(m, x), "[2, 3, 4, 4]");
    cairn_module_destroy(&m);
    m = cairn_avg_pool(env, 2, NULL);
    assert_shape(cairn_module_forward(m, x), "[2, 3, 4, 4]");
    cairn_module_destroy(&m);
    m = cairn_adaptive_avg_pool(env, 1, 3);
    assert_shown(m, "AdaptiveAvgPool2d(output_size=(1, 3))");
    assert_shape(cairn_module_forward(m, x), "[2, 3, 1, 3]");
    cairn_module_destroy(&m);
    NO_TENSOR(cairn_max_pool(env, 0, NULL), "max_pool: kernel 0; it must be positive");
    NO_TENSOR(cairn_avg_pool(env, 2, cairn_pool_options(.padding = {2, 0})),
              "avg_pool: padding 2 is more than half of the kernel 2");
    NO_TENSOR(cairn_adaptive_avg_pool(env, 1, 0), "adaptive_avg_pool: output of 1 x 0; both must be positive");
}

/* ---- embedding, norms ---- */

static void embedding_looks_rows_up_and_pads_with_zeros(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_module *m = cairn_embedding(env, 5, 3, 2);
    assert_params(m, "weight[5,3]");
    assert_shown(m, "Embedding(5, 3, padding_idx=2)");
    float rows[9];
    cairn_tensor *at = cairn_tensor_from(env, CAIRN_I64, CAIRN_SHAPE(3), (const int64_t[]){4, 2, 0});
    assert_int_equal(cairn_tensor_read(cairn_module_forward(m, at), rows, 9), CAIRN_OK);
    assert_memory_equal(rows, data_of(m, "weight") + 12, 3 * sizeof(float));
    assert_true(rows[3] == 0 && rows[4] == 0 && rows[5] == 0);
    assert_true(rows[6] != 0);
    cairn_module_destroy(&m);
    NO_TENSOR(cairn_embedding(env, 5, 3, 5), "embedding: padding_idx 5 of 5 rows; -1 is none");
    NO_TENSOR(cairn_embedding(env, 0, 3, -1), "embedding: 0 rows of 3; both must be positive");
}

static void norms_start_as_the_identity_and_are_marked(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_module *layer = cairn_layer_norm(env, CAIRN_SHAPE(4, 6), 0), *rms = cairn_rms_norm(env, 6, 1e-6);
    cairn_module *group = cairn_group_norm(env, 2, 4, 0);
    cairn_tensor *x = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(3, 4, 6));
    assert_params(layer, "weight*[4,6] bias*[4,6]");
    assert_shown(layer, "LayerNorm((4, 6), eps=1e-05, elementwise_affine=True)");
    assert_all(layer, "weight", 1);
    assert_all(layer, "bias", 0);
    assert_params(rms, "weight*[6]");
    assert_shown(rms, "RMSNorm((6,), eps=1e-06, elementwise_affine=True)");
    assert_params(group, "weight*[4] bias*[4]");
    assert_shown(group, "GroupNorm(2, 4, eps=1e-05, affine=True)");
    assert_shape(cairn_module_forward(layer, x), "[3, 4, 6]");
    assert_shape(cairn_module_forward(rms, x), "[3, 4, 6]");
    assert_shape(cairn_module_forward(group, x), "[3, 4, 6]");
    assert_true(fabsf(cairn_tensor_item(cairn_mean(cairn_module_forward(layer, x)))) < 1e-6f);
    cairn_module_destroy(&layer);
    cairn_module_destroy(&rms);
    cairn_module_destroy(&group);
    NO_TENSOR(cairn_layer_norm(env, CAIRN_SHAPE(0), 0), "layer_norm: size 0; it must be positive");
    NO_TENSOR(cairn_layer_norm(env, 0, NULL, 0), "layer_norm: 0 dimensions; 1 to 8 are allowed");
    NO_TENSOR(cairn_rms_norm(env, 3, -1), "rms_norm: eps -1");
    NO_TENSOR(cairn_group_norm(env, 3, 4, 0), "group_norm: 3 groups do not divide 4 channels");
    NO_TENSOR(cairn_batch_norm(env, 3, 0, 2), "batch_norm: momentum 2; it must be from 0 to 1");
}

static void batch_norm_keeps_statistics_and_uses_them_in_evaluation(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_module *m = cairn_batch_norm(env, 2, 0, 0.5);
    assert_params(m, "weight*[2] bias*[2]");
    assert_shown(m, "BatchNorm(2, eps=1e-05, momentum=0.5, affine=True, track_running_stats=True)");
    static const char *const names[] = {"running_mean", "running_var", "num_batches_tracked"};
    for (size_t i = 0; i < 3; i++) {
        const char *name = NULL;
        assert_non_null(cairn_module_buffer(m, i, &name));
        assert_string_equal(name, names[i]);
    }
    const float values[] = {1, 10, 3, 30}; /* [2, 2]: means 2 and 20, unbiased variances 2 and 200 */
    cairn_tensor *x = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(2, 2), values);
    float mean[2], var[2], y[4];
    int64_t batches = 0;
    assert_int_equal(cairn_tensor_read(cairn_module_forward(m, x), y, 4), CAIRN_OK);
    assert_true(fabsf(y[0] + 1) < 1e-4f && fabsf(y[3] - 1) < 1e-4f);
    assert_int_equal(cairn_tensor_read(cairn_module_get(m, "running_mean"), mean, 2), CAIRN_OK);
    assert_int_equal(cairn_tensor_read(cairn_module_get(m, "running_var"), var, 2), CAIRN_OK);
    assert_int_equal(cairn_tensor_read_as(cairn_module_get(m, "num_batches_tracked"), CAIRN_I64, &batches, 1),
                     CAIRN_OK);
    assert_true(mean[0] == 1 && mean[1] == 10 && batches == 1);
    assert_true(fabsf(var[0] - 1.5f) < 1e-6f && fabsf(var[1] - 100.5f) < 1e-4f);
    cairn_module_train(m, 0);
    assert_int_equal(cairn_tensor_read(cairn_module_forward(m, x), y, 4), CAIRN_OK);
    assert_true(y[0] == 0 && fabsf(y[2] - 2 / sqrtf(1.5f)) < 1e-4f);
    assert_int_equal(cairn_tensor_read_as(cairn_module_get(m, "num_batches_tracked"), CAIRN_I64, &batches, 1),
                     CAIRN_OK);
    assert_int_equal(batches, 1);
    cairn_module_destroy(&m);
}

/* ---- without parameters ---- */

static void dropout_is_off_in_evaluation(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_module *m = cairn_dropout(env, 0.5);
    cairn_tensor *x = cairn_full(env, CAIRN_F32, CAIRN_SHAPE(1000), 1);
    assert_shown(m, "Dropout(p=0.5)");
    const float kept = cairn_tensor_item(cairn_sum(cairn_module_forward(m, x))) / 2;
    assert_true(kept > 400 && kept < 600);
    cairn_module_train(m, 0);
    assert_true(cairn_tensor_item(cairn_sum(cairn_module_forward(m, x))) == 1000);
    cairn_module_destroy(&m);
    NO_TENSOR(cairn_dropout(env, 1.5), "dropout: probability 1.5; it must be from 0 to 1");
    NO_TENSOR(cairn_dropout(env, NAN), "dropout: probability nan; it must be from 0 to 1");
}

static void sequential_runs_its_children_in_order(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_module *m = cairn_sequential(env, CAIRN_MODULES(cairn_flatten_from(env, 1), cairn_linear(env, 6, 4),
                                                          cairn_activation(env, cairn_gelu), cairn_dropout(env, 0),
                                                          cairn_linear_without_bias(env, 4, 2)));
    assert_params(m, "1.weight[4,6] 1.bias[4] 4.weight[2,4]");
    assert_shown(m, "Sequential(\n"
                    "  (0): Flatten(start_dim=1, end_dim=-1)\n"
                    "  (1): Linear(in_features=6, out_features=4, bias=True)\n"
                    "  (2): GELU()\n"
                    "  (3): Dropout(p=0)\n"
                    "  (4): Linear(in_features=4, out_features=2, bias=False)\n"
                    ")");
    assert_shape(cairn_module_forward(m, cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(5, 2, 3))), "[5, 2]");
    cairn_module_destroy(&m);
    m = cairn_sequential(env, 0, NULL);
    cairn_tensor *x = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(2));
    assert_ptr_equal(cairn_module_forward(m, x), x);
    assert_shown(m, "Sequential()");
    cairn_module_destroy(&m);
}

/* The teardown counts what is left. */
static void sequential_takes_its_children_over_also_where_it_fails(void **state) {
    cairn_env *env = test_env_of(state);
    NO_TENSOR(cairn_sequential(env, CAIRN_MODULES(cairn_linear(env, 2, 2), cairn_linear(env, 0, 2),
                                                  cairn_linear(env, 2, 2))),
              "linear: 0 inputs and 2 outputs; both must be positive");
    cairn_module *twice = cairn_linear(env, 2, 2);
    NO_TENSOR(cairn_sequential(env, CAIRN_MODULES(twice, cairn_dropout(env, 0), twice)),
              "sequential: child 2 is there already");
    NO_TENSOR(cairn_sequential(NULL, CAIRN_MODULES(cairn_linear(env, 2, 2))), "Sequential: env is NULL");
    NO_TENSOR(cairn_sequential(env, -1, NULL), "sequential: -1 children");
    NO_TENSOR(cairn_sequential(env, 2, NULL), "sequential: 2 children");

    cairn_module *inner = cairn_linear(env, 2, 2), *owner = cairn_sequential(env, CAIRN_MODULES(inner));
    NO_TENSOR(cairn_sequential(env, CAIRN_MODULES(cairn_dropout(env, 0), inner, owner)), /* and owner is ended, once */
              "add_child '1': the Linear is child '0' of another module already");
    NO_TENSOR(cairn_activation(env, NULL), "activation: the operation is NULL");
}

/* ---- attention ---- */

static void multihead_attention_has_torch_s_parameters(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_module *m = cairn_multihead_attention(env, 8, 2, 0);
    assert_params(m, "in_proj_weight[24,8] in_proj_bias[24] out_proj.weight[8,8] out_proj.bias[8]");
    assert_bound(m, "in_proj_weight", sqrt(6.0 / 32));
    assert_bound(m, "out_proj.weight", 1 / sqrt(8));
    assert_all(m, "in_proj_bias", 0);
    assert_all(m, "out_proj.bias", 0);
    assert_shown(m, "MultiheadAttention(\n"
                    "  (out_proj): Linear(in_features=8, out_features=8, bias=True)\n"
                    ")");
    cairn_module_destroy(&m);
    NO_TENSOR(cairn_multihead_attention(env, 8, 3, 0), "multihead_attention: 3 heads do not divide 8");
    NO_TENSOR(cairn_multihead_attention(env, 8, 2, 1), "multihead_attention: dropout 1; it must be from 0 to 1");
}

/* The same by hand, for one head after another. */
static void attend_by_hand(cairn_module *m, const float *x, int B, int T, int D, int H, float *y) {
    const float *w = data_of(m, "in_proj_weight"), *b = data_of(m, "in_proj_bias");
    const float *wo = data_of(m, "out_proj.weight"), *bo = data_of(m, "out_proj.bias");
    static double p[3][8][16], merged[8][16];
    for (int n = 0; n < B; n++) {
        for (int part = 0; part < 3; part++) {
            for (int t = 0; t < T; t++) {
                for (int o = 0; o < D; o++) {
                    p[part][t][o] = (double)b[part * D + o];
                    for (int i = 0; i < D; i++)
                        p[part][t][o] += (double)x[(n * T + t) * D + i] * (double)w[(part * D + o) * D + i];
                }
            }
        }
        for (int h = 0; h < H; h++) {
            const int from = h * D / H, to = (h + 1) * D / H;
            for (int t = 0; t < T; t++) {
                double e[8], total = 0;
                for (int s = 0; s < T; s++) {
                    double score = 0;
                    for (int i = from; i < to; i++) score += p[0][t][i] * p[1][s][i];
                    total += e[s] = exp(score / sqrt((double)D / H));
                }
                for (int i = from; i < to; i++) {
                    merged[t][i] = 0;
                    for (int s = 0; s < T; s++) merged[t][i] += e[s] / total * p[2][s][i];
                }
            }
        }
        for (int t = 0; t < T; t++) {
            for (int o = 0; o < D; o++) {
                double sum = (double)bo[o];
                for (int i = 0; i < D; i++) sum += merged[t][i] * (double)wo[o * D + i];
                y[(n * T + t) * D + o] = (float)sum;
            }
        }
    }
}

static void multihead_attention_attends_with_every_head(void **state) {
    cairn_env *env = test_env_of(state);
    enum { B = 2, T = 5, D = 8, H = 2, N = B * T * D };
    cairn_module *m = cairn_multihead_attention(env, D, H, 0);
    assert_int_equal(cairn_init_normal(cairn_module_get(m, "in_proj_bias"), 0, 1), CAIRN_OK);
    cairn_tensor *x = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(B, T, D));
    cairn_tensor *twin = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(B, T, D), x->data);
    float in[N], want[N], itself[N], three[N];
    assert_int_equal(cairn_tensor_read(x, in, N), CAIRN_OK);
    attend_by_hand(m, in, B, T, D, H, want);
    assert_int_equal(cairn_tensor_read(cairn_module_forward(m, x), itself, N), CAIRN_OK);
    cairn_tensor *apart =
        cairn_module_forward_n(m, (cairn_tensor *[]){x, twin, x}, 3); /* not one input: three products */
    assert_int_equal(cairn_tensor_read(apart, three, N), CAIRN_OK);
    for (int i = 0; i < N; i++) {
        assert_true(fabsf(itself[i] - want[i]) < 1e-5f);
        assert_true(fabsf(three[i] - want[i]) < 1e-5f);
    }
    assert_int_equal(cairn_backward(cairn_sum(apart)), CAIRN_OK);
    cairn_module_destroy(&m);
}

static void multihead_attention_obeys_a_mask(void **state) {
    cairn_env *env = test_env_of(state);
    enum { T = 3, D = 4 };
    cairn_module *m = cairn_multihead_attention(env, D, 1, 0);
    const uint8_t first_alone[T] = {1, 0, 0};
    cairn_tensor *x = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(1, T, D));
    cairn_tensor *mask = cairn_tensor_from(env, CAIRN_BOOL, CAIRN_SHAPE(T), first_alone);
    cairn_tensor *y = cairn_module_forward_n(m, (cairn_tensor *[]){x, x, x, mask}, 4);
    float rows[T * D];
    assert_int_equal(cairn_tensor_read(y, rows, T * D), CAIRN_OK);
    for (int i = 0; i < D; i++) assert_true(rows[i] == rows[D + i] && rows[i] == rows[2 * D + i]);
    NO_TENSOR(cairn_module_forward_n(m, (cairn_tensor *[]){x, x}, 2),
              "multihead_attention: 2 inputs; it takes q, or q, k, v, or q, k, v and a mask");
    NO_TENSOR(cairn_module_forward_n(m, (cairn_tensor *[]){x, x, NULL}, 3), "multihead_attention: input 2 is NULL");
    NO_TENSOR(cairn_module_forward(m, cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(T, D))),
              "multihead_attention: input 0 is [3, 4]; expected [batch, length, 4]");
    cairn_module_destroy(&m);
}

static void encoder_layer_is_torch_s(void **state) {
    cairn_env *env = test_env_of(state);
    for (int norm_first = 0; norm_first < 2; norm_first++) {
        cairn_module *m = cairn_transformer_encoder_layer(
            env, 8, 2, 16,
            cairn_encoder_layer_options(.dropout = 0.1, .norm_first = norm_first ? CAIRN_ON : CAIRN_OFF));
        assert_params(m, "self_attn.in_proj_weight[24,8] self_attn.in_proj_bias[24] self_attn.out_proj.weight[8,8] "
                         "self_attn.out_proj.bias[8] linear1.weight[16,8] linear1.bias[16] linear2.weight[8,16] "
                         "linear2.bias[8] norm1.weight*[8] norm1.bias*[8] norm2.weight*[8] norm2.bias*[8]");
        cairn_tensor *x = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(3, 5, 8));
        cairn_tensor *y = cairn_module_forward(m, x);
        assert_shape(y, "[3, 5, 8]");
        assert_int_equal(cairn_backward(cairn_sum(cairn_mul(y, y))), CAIRN_OK);
        for (size_t i = 0; i < 12; i++)
            assert_true(cairn__grad_is_written(cairn_module_params(m)->params[i]->gradient));
        float a[120], b[120];
        cairn_module_train(m, 0); /* no dropout: the same twice */
        assert_int_equal(cairn_tensor_read(cairn_module_forward(m, x), a, 120), CAIRN_OK);
        assert_int_equal(cairn_tensor_read(cairn_module_forward_n(m, (cairn_tensor *[]){x, NULL}, 2), b, 120),
                         CAIRN_OK);
        assert_memory_equal(a, b, sizeof(a));
        cairn_module_destroy(&m);
    }
    NO_TENSOR(cairn_transformer_encoder_layer(env, 8, 2, 0, NULL),
              "linear: 8 inputs and 0 outputs; both must be positive");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        ENV_TEST(convolutions_have_torch_s_shapes_and_bounds),
        ENV_TEST(pools_have_torch_s_shapes),
        ENV_TEST(embedding_looks_rows_up_and_pads_with_zeros),
        ENV_TEST(norms_start_as_the_identity_and_are_marked),
        ENV_TEST(batch_norm_keeps_statistics_and_uses_them_in_evaluation),
        ENV_TEST(dropout_is_off_in_evaluation),
        ENV_TEST(sequential_runs_its_children_in_order),
        ENV_TEST(sequential_takes_its_children_over_also_where_it_fails),
        ENV_TEST(multihead_attention_has_torch_s_parameters),
        ENV_TEST(multihead_attention_attends_with_every_head),
        ENV_TEST(multihead_attention_obeys_a_mask),
        ENV_TEST(encoder_layer_is_torch_s),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
