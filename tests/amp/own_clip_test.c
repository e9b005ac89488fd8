/* Clipping and gradient norms for programs with their own update, against f64 copies, within 1e-6, with the formulas of
 * torch.nn.utils.clip_grad_norm_ and clip_grad_value_. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "../on_gpu.h"
#include "../one_env.h"
#include "cairn/cairn.h"
#include "core/convert.h"
#include "param/param.h"

enum { N = 301, PARAMS = 3 };

static const struct {
    cairn_dtype type;
    amp_opt_level level;
    int micro_batches;
} kinds[] = {{CAIRN_F32, AMP_O0, 1}, {CAIRN_F32, AMP_O2, 1}, {CAIRN_F16, AMP_O2, 1},
             {CAIRN_F16, AMP_O3, 1}, {CAIRN_F32, AMP_O2, 3}, {CAIRN_F16, AMP_O2, 3}};
enum { KINDS = sizeof(kinds) / sizeof(kinds[0]) };

struct own {
    cairn_dtype type;
    float w[PARAMS][N], g[PARAMS][N];
    double truth[PARAMS][N]; /* the gradients, unscaled, as they are stored */
    cairn_param_set *set;
    amp_context *amp;
};

static void begin(struct own *t, cairn_env *env, cairn_dtype type, amp_opt_level level) {
    static const char *const names[PARAMS] = {"a", "b", "idle"};
    cairn_param params[PARAMS];
    *t = (struct own){.type = type};
    for (int p = 0; p < PARAMS; p++)
        params[p] =
            (cairn_param){.name = names[p], .data = t->w[p], .grad = t->g[p], .dtype = type, .ndim = 1, .shape = {N}};
    OK(cairn_param_set_create(env, params, PARAMS, &t->set));
    OK(amp_initialize_params(env, t->set, NULL,
                             amp_options(.opt_level = level, .half_type = CAIRN_F16, .verbosity = -1), &t->amp));
}

static void end(struct own *t) {
    amp_destroy(&t->amp);
    cairn_param_set_destroy(&t->set);
}

/* Scaled gradients of all but the last parameter, declared ready; times: added to what there is. */
static void add_gradients(struct own *t, int seed) {
    const float scale = (float)amp_next_scale(t->amp);
    for (int p = 0; p < PARAMS - 1; p++) {
        for (int i = 0; i < N; i++) {
            const float value = scale * (float)((7 * p + 5 * i + 11 * seed) % 29 - 14) / 64;
            float stored;
            char *to = (char *)t->g[p] + (size_t)i * cairn_dtype_nbytes(t->type);
            cairn__convert(to, t->type, &value, CAIRN_F32, 1);
            cairn__convert(&stored, CAIRN_F32, to, t->type, 1);
            t->truth[p][i] += (double)stored / (double)scale;
        }
    }
    OK(cairn_grads_ready(t->set, 0, PARAMS - 1));
}

static double norm_of(const double *g) {
    double squares = 0;
    for (int i = 0; i < N; i++) squares += g[i] * g[i];
    return sqrt(squares);
}

/* Those of one f32 backward are where the user wrote them, clipped as they are. */
static void assert_gradients(struct own *t, int kind) {
    cairn_param shown[PARAMS];
    for (int p = 0; p < PARAMS - 1 && t->type == CAIRN_F32 && kinds[kind].micro_batches == 1; p++) {
        for (int i = 0; i < N; i++) assert_true(fabs((double)t->g[p][i] - t->truth[p][i]) <= 1e-6);
    }
    OK(amp_master_params(t->amp, NULL, shown, PARAMS));
    for (int p = 0; p < PARAMS - 1; p++) {
        for (int i = 0; i < N; i++) {
            const double got = (double)((const float *)shown[p].grad)[i], want = t->truth[p][i];
            if (!(fabs(got - want) <= 1e-6 * (1e-3 + fabs(want)))) fail_msg("%d, %d: %.9g, want %.9g", p, i, got, want);
        }
    }
}

static void begin_step(struct own *t, cairn_env *env, int kind, int seed) {
    int skip = 1;
    if (!t->set) begin(t, env, kinds[kind].type, kinds[kind].level);
    memset(t->truth, 0, sizeof(t->truth));
    for (int m = 0; m < kinds[kind].micro_batches; m++) {
        add_gradients(t, seed + m);
        if (kinds[kind].micro_batches > 1) OK(cairn_grads_taken(t->set, 0, PARAMS));
    }
    OK(amp_begin_step(t->amp, &skip));
    assert_int_equal(skip, 0);
}

static void gradients_of_an_own_step_are_clipped_by_their_norm(void **state) {
    NOT_ON_A_GPU("these buffers are the host's");
    for (int kind = 0; kind < KINDS; kind++) {
        static struct own t;
        memset(&t, 0, sizeof(t));
        for (int s = 0; s < 3; s++) {
            double norm = 0, again = 0;
            begin_step(&t, *state, kind, s);
            const double want = hypot(norm_of(t.truth[0]), norm_of(t.truth[1])), most = s == 1 ? 1e3 : want / 3;
            OK(amp_clip_grad_norm(t.amp, most, &norm));
            assert_true(fabs(norm - want) <= 1e-6 * want);
            const double by = fmin(1, most / (want + 1e-6));
            for (int p = 0; p < PARAMS; p++)
                for (int i = 0; i < N; i++) t.truth[p][i] *= by;
            assert_gradients(&t, kind);
            OK(amp_clip_grad_norm(t.amp, 1e9, &again));
            assert_true(fabs(again - want * by) <= 1e-6 * want);
            OK(amp_end_step(t.amp));
        }
        end(&t);
    }
}

static void gradients_of_an_own_step_are_clipped_by_value(void **state) {
    NOT_ON_A_GPU("these buffers are the host's");
    for (int kind = 0; kind < KINDS; kind++) {
        static struct own t;
        memset(&t, 0, sizeof(t));
        begin_step(&t, *state, kind, 4);
        OK(amp_clip_grad_value(t.amp, 0.1));
        for (int p = 0; p < PARAMS; p++)
            for (int i = 0; i < N; i++) t.truth[p][i] = fmax(-0.1, fmin(0.1, t.truth[p][i]));
        assert_gradients(&t, kind);
        OK(amp_end_step(t.amp));
        end(&t);
    }
}

static void norms_are_of_each_parameter_and_of_all(void **state) {
    NOT_ON_A_GPU("these buffers are the host's");
    for (int kind = 0; kind < KINDS; kind++) {
        static struct own t;
        double norms[PARAMS] = {-1, -1, -1}, total = 0;
        memset(&t, 0, sizeof(t));
        begin_step(&t, *state, kind, 2);
        OK(amp_grad_norms(t.amp, norms, PARAMS, &total));
        for (int p = 0; p < 2; p++) assert_true(fabs(norms[p] - norm_of(t.truth[p])) <= 1e-6 * norms[p]);
        assert_true(norms[2] == 0 && fabs(total - hypot(norms[0], norms[1])) <= 1e-12 * total);
        OK(amp_grad_norms(t.amp, NULL, 0, NULL));
        assert_gradients(&t, kind); /* are as they were */
        REFUSED(amp_grad_norms(t.amp, norms, 2, &total), CAIRN_EINVAL, "the optimizer has 3 parameters");
        OK(amp_end_step(t.amp));
        end(&t);
    }
}

/* Scaled, half, clipped and not stepped yet: what the step will see. */
static void norms_before_a_step_are_unscaled_and_clipped(void **state) {
    cairn_optimizer *o = NULL;
    amp_context *amp = NULL;
    double norms[2], total, clipped, norm;
    cairn_module *model = cairn_linear(*state, 6, 4);
    OK(cairn_sgd_create(cairn_module_params(model), NULL, &o));
    OK(amp_initialize(*state, model, o, amp_options(.opt_level = AMP_O2, .verbosity = -1), &amp));
    cairn_tensor *x = cairn_randn(*state, CAIRN_F32, 2, (int64_t[]){5, 6}),
                 *y = cairn_randn(*state, CAIRN_F32, 2, (int64_t[]){5, 4});
    cairn_zero_grad(o);
    OK(amp_backward(amp, cairn_mse_loss(cairn_module_forward(model, x), y), o));
    OK(cairn_grad_norms(o, norms, 2, &total));
    OK(cairn_clip_grad_norm(o, total / 4, &norm));
    assert_true(fabs(norm - total) <= 1e-6 * total && total > 0 && norms[0] > 0 && norms[1] > 0);
    OK(cairn_grad_norms(o, NULL, 0, &clipped));
    assert_true(fabs(clipped - total / 4) <= 1e-5 * total);
    OK(cairn_step(o));
    assert_int_equal(cairn_optimizer_step_skipped(o), 0);
    amp_destroy(&amp);
    cairn_optimizer_destroy(&o);
    cairn_module_destroy(&model);
}

static const struct cairn__passes *real;
static int norm_passes;

static void count_l2norm(struct cairn_device *d, const struct cairn__item *items, size_t count, cairn_dtype dtype,
                         const float *factor, double *norm, double *each, uint32_t *found) {
    norm_passes++;
    real->l2norm(d, items, count, dtype, factor, norm, each, found);
}

/* A pass a list of one type, and the bits of a pass a parameter. */
static void norms_of_each_parameter_take_one_pass_a_type(void **state) {
    cairn_env *env = *state;
    cairn_optimizer *o = NULL;
    amp_context *amp = NULL;
    double norms[8], total, squares = 0;
    cairn_module *model =
        cairn_sequential(env, CAIRN_MODULES(cairn_linear(env, 6, 5), cairn_layer_norm(env, CAIRN_SHAPE(5), 1e-5),
                                            cairn_linear(env, 5, 4), cairn_layer_norm(env, CAIRN_SHAPE(4), 1e-5)));
    struct cairn_param_set *set = cairn_module_params(model);
    OK(cairn_sgd_create(set, NULL, &o));
    OK(amp_initialize(env, model, o, amp_options(.opt_level = AMP_O2, .verbosity = -1), &amp));
    cairn_tensor *x = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(7, 6)),
                 *y = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(7, 4));
    OK(cairn_param_require_grad(set, 3, CAIRN_OFF));
    cairn_zero_grad(o);
    OK(amp_backward(amp, cairn_mse_loss(cairn_module_forward(model, x), y), o));

    struct cairn__passes counting = *env->device->passes;
    real = env->device->passes;
    counting.l2norm = count_l2norm;
    env->device->passes = &counting;
    norm_passes = 0;
    OK(cairn_grad_norms(o, norms, 8, &total));
    env->device->passes = real;
    assert_int_equal(norm_passes, 2); /* f16 and f32 */

    for (size_t i = 0; i < 8; i++) {
        const struct cairn__grad_view grad = cairn__grad_peek(set->params[i]->gradient);
        const struct cairn__item item = {.n = set->params[i]->n, .x = grad.x};
        double one = 0;
        if (grad.x) real->l2norm(env->device, &item, 1, grad.dtype, grad.factor, &one, NULL, NULL);
        assert_memory_equal(&norms[i], &one, sizeof(one));
        assert_true(one > 0 || i == 3);
        squares += one * one;
    }
    assert_true(total == sqrt(squares));
    OK(cairn_step(o));
    amp_destroy(&amp);
    cairn_optimizer_destroy(&o);
    cairn_module_destroy(&model);
    cairn_tensor_destroy(&x), cairn_tensor_destroy(&y);
}

static void clipping_outside_of_an_own_step_is_refused(void **state) {
    NOT_ON_A_GPU("these buffers are the host's");
    static struct own t;
    double norm;
    begin(&t, *state, CAIRN_F32, AMP_O2);
    REFUSED(amp_clip_grad_norm(t.amp, 1, &norm), CAIRN_ESTATE, "between amp_begin_step and amp_end_step");
    REFUSED(amp_clip_grad_value(t.amp, 1), CAIRN_ESTATE, "between amp_begin_step and amp_end_step");
    REFUSED(amp_grad_norms(t.amp, NULL, 0, &norm), CAIRN_ESTATE, "between amp_begin_step and amp_end_step");
    REFUSED(amp_clip_grad_norm(NULL, 1, &norm), CAIRN_EINVAL, "amp is NULL");
    end(&t);
    memset(&t, 0, sizeof(t));
    begin_step(&t, *state, 0, 0);
    REFUSED(amp_clip_grad_norm(t.amp, 0, &norm), CAIRN_EINVAL, "max_norm is 0");
    REFUSED(amp_clip_grad_value(t.amp, -1), CAIRN_EINVAL, "limit is -1");
    OK(amp_end_step(t.amp));
    end(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_of_an_own_step_are_clipped_by_their_norm),
        cmocka_unit_test(gradients_of_an_own_step_are_clipped_by_value),
        cmocka_unit_test(norms_are_of_each_parameter_and_of_all),
        cmocka_unit_test(norms_before_a_step_are_unscaled_and_clipped),
        cmocka_unit_test(norms_of_each_parameter_take_one_pass_a_type),
        cmocka_unit_test(clipping_outside_of_an_own_step_is_refused),
    };
    return cmocka_run_group_tests(tests, make_env, end_env);
}
