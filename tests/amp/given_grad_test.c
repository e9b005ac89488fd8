/* A model in two parts gives the results of one model: the second part scales the loss, the first one runs backward
 * from a given gradient. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "../kept_log.h"
#include "../one_env.h"

enum { WIDTH = 6, ROWS = 4, STEPS = 3 };

struct part {
    cairn_module *module;
    cairn_optimizer *optimizer;
    amp_context *amp;
};

static cairn_module *make_layer(cairn_env *env, int salt) {
    cairn_module *layer = cairn_linear(env, WIDTH, WIDTH);
    cairn_tensor *weight = cairn_module_get(layer, "weight");
    cairn_param p;
    OK(cairn_init_constant(cairn_module_get(layer, "bias"), salt / 8.0));
    OK(cairn_init_constant(weight, 0));
    OK(cairn_param_set_get(cairn_module_params(layer), 0, &p));
    for (int k = 0; k < WIDTH * WIDTH; k++) ((float *)p.data)[k] = (float)((k * 7 + salt * 5) % 11 - 5) / 8;
    OK(cairn_param_changed(cairn_module_params(layer), 0, 0));
    return layer;
}

static struct part make_part(cairn_env *env, int count, cairn_module **layers, const struct amp_options *options) {
    struct part p = {cairn_sequential(env, count, layers), NULL, NULL};
    struct cairn_sgd_options hyper = CAIRN_SGD_OPTIONS_INIT;
    hyper.lr = 0.125;
    OK(cairn_sgd_create(cairn_module_params(p.module), &hyper, &p.optimizer));
    OK(amp_initialize(env, p.module, p.optimizer, options, &p.amp));
    return p;
}

static void end_part(struct part *p) {
    amp_destroy(&p->amp);
    cairn_optimizer_destroy(&p->optimizer);
    cairn_module_destroy(&p->module);
}

static void read_weights(const struct part *p, const char *path, float *values) {
    OK(cairn_tensor_read(cairn_module_get(p->module, path), values, WIDTH * WIDTH));
}

static cairn_tensor *input(cairn_env *env, int step, int micro_batch) {
    float x[ROWS * WIDTH];
    for (int i = 0; i < ROWS * WIDTH; i++) x[i] = (float)((i * 3 + step * 5 + micro_batch) % 7 - 3) / 4;
    return cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(ROWS, WIDTH), x);
}

static void two_parts_give_the_bits_of_one(void **state) {
    cairn_env *env = *state;
    static const struct amp_options options[] = {
        {.struct_size = sizeof(struct amp_options), .opt_level = AMP_O2, .half_type = CAIRN_F16, .verbosity = -1},
        {.struct_size = sizeof(struct amp_options), .opt_level = AMP_O2, .half_type = CAIRN_BF16, .verbosity = -1},
        {.struct_size = sizeof(struct amp_options), .opt_level = AMP_O0, .loss_scale = 64, .verbosity = -1},
        {.struct_size = sizeof(struct amp_options), .opt_level = AMP_O3, .loss_scale = 8, .verbosity = -1},
        {.struct_size = sizeof(struct amp_options), .enabled = CAIRN_OFF},
    };
    for (size_t o = 0; o < sizeof(options) / sizeof(options[0]); o++) {
        cairn_module *both[] = {make_layer(env, 1), make_layer(env, 2)};
        cairn_module *first[] = {make_layer(env, 1)}, *second[] = {make_layer(env, 2)};
        struct part whole = make_part(env, 2, both, &options[o]);
        struct part a = make_part(env, 1, first, &options[o]), b = make_part(env, 1, second, &options[o]);
        for (int s = 0; s < STEPS; s++) {
            for (int m = 0; m < 2; m++) {
                cairn_tensor *x = input(env, s, m), *between, *grad;
                cairn_tensor *y = cairn_module_forward(whole.module, x);
                OK(amp_backward(whole.amp, cairn_mean(cairn_mul(y, y)), whole.optimizer));
                cairn_tensor *half_way = cairn_module_forward(a.module, x);
                between = cairn_tensor_keep(half_way);
                OK(cairn_tensor_require_grad(between));
                y = cairn_module_forward(b.module, between);
                OK(amp_backward(b.amp, cairn_mean(cairn_mul(y, y)), b.optimizer));
                grad = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(ROWS, WIDTH), cairn_tensor_grad(between));
                OK(amp_backward_with(a.amp, half_way, amp_loss_options(.grad = grad)));
                cairn_tensor_destroy(&x);
                cairn_tensor_destroy(&between);
                cairn_tensor_destroy(&grad);
            }
            OK(cairn_step(whole.optimizer));
            OK(cairn_step(a.optimizer));
            OK(cairn_step(b.optimizer));
            cairn_zero_grad(whole.optimizer);
            cairn_zero_grad(a.optimizer);
            cairn_zero_grad(b.optimizer);
            float want[WIDTH * WIDTH], got[WIDTH * WIDTH];
            read_weights(&whole, "0.weight", want);
            read_weights(&a, "0.weight", got);
            assert_memory_equal(got, want, sizeof(got));
            read_weights(&whole, "1.weight", want);
            read_weights(&b, "0.weight", got);
            assert_memory_equal(got, want, sizeof(got));
        }
        end_part(&whole);
        end_part(&a);
        end_part(&b);
    }
}

static const struct amp_options plain = {.struct_size = sizeof(struct amp_options),
                                         .opt_level = AMP_O2,
                                         .half_type = CAIRN_F16,
                                         .verbosity = -1};

static void a_gradient_that_is_infinite_skips_the_step(void **state) {
    cairn_env *env = *state;
    cairn_module *layer = make_layer(env, 1);
    struct part p = make_part(env, 1, &layer, &plain);
    cairn_tensor *x = input(env, 0, 0), *good = cairn_full(env, CAIRN_F32, CAIRN_SHAPE(ROWS, WIDTH), 1);
    cairn_tensor *bad = cairn_full(env, CAIRN_F32, CAIRN_SHAPE(ROWS, WIDTH), (double)INFINITY);
    log_text[0] = '\0';
    cairn_set_log(keep_log, NULL);
    OK(amp_backward_with(p.amp, cairn_module_forward(p.module, x), amp_loss_options(.grad = good)));
    OK(amp_backward_with(p.amp, cairn_module_forward(p.module, x), amp_loss_options(.grad = bad, .micro_batch = 7)));
    OK(cairn_step(p.optimizer));
    cairn_set_log(NULL, NULL);
    assert_true(cairn_optimizer_step_skipped(p.optimizer));
    assert_non_null(strstr(log_text, "reducing loss scale to 32768"));
    assert_non_null(strstr(log_text, "first in micro-batch 7"));
    cairn_zero_grad(p.optimizer);
    end_part(&p);
    cairn_tensor_destroy(&x);
    cairn_tensor_destroy(&good);
    cairn_tensor_destroy(&bad);
}

static void what_is_wrong_is_said(void **state) {
    cairn_env *env = *state;
    cairn_module *layer = make_layer(env, 1);
    struct part p = make_part(env, 1, &layer, &plain);
    cairn_tensor *x = input(env, 0, 0), *grad = cairn_full(env, CAIRN_F32, CAIRN_SHAPE(ROWS, WIDTH), 1), *scaled = NULL;
    cairn_tensor *y = cairn_module_forward(p.module, x), *small = cairn_zeros(env, CAIRN_F32, CAIRN_SHAPE(2));
    REFUSED(amp_scale_loss_with(p.amp, y, amp_loss_options(.grad = grad), &scaled), CAIRN_EINVAL,
            "amp_loss_options.grad is for amp_backward_with");
    REFUSED(amp_backward_with(p.amp, y, amp_loss_options(.grad = small)), CAIRN_EINVAL,
            "the gradient is [2], but the tensor is [4, 6]");
    REFUSED(amp_backward_with(p.amp, y, amp_loss_options(.grad = grad, .micro_batch = -1)), CAIRN_EINVAL,
            "micro_batch is -1");
    OK(amp_scale_loss(p.amp, cairn_mean(y), p.optimizer, &scaled));
    REFUSED(amp_backward_with(p.amp, y, amp_loss_options(.grad = grad)), CAIRN_ESTATE,
            "the last scaled loss was not ended");
    OK(amp_scale_loss_end(p.amp));
    cairn_tensor *one = cairn_full(env, CAIRN_F32, 0, NULL, 1);
    REFUSED(amp_backward_with(p.amp, scaled, amp_loss_options(.grad = one)), CAIRN_ESTATE,
            "the tensor was made from a scaled loss");
    OK(amp_backward_with(p.amp, y, amp_loss_options(.grad = grad)));
    cairn_zero_grad(p.optimizer);
    end_part(&p);
    cairn_tensor_destroy(&one);
    cairn_tensor_destroy(&x);
    cairn_tensor_destroy(&grad);
    cairn_tensor_destroy(&small);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(two_parts_give_the_bits_of_one, make_env, end_env),
        cmocka_unit_test_setup_teardown(a_gradient_that_is_infinite_skips_the_step, make_env, end_env),
        cmocka_unit_test_setup_teardown(what_is_wrong_is_said, make_env, end_env),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
