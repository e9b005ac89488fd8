/* A chain of layers with a loss scale each: results that must not change, gradients that it saves from underflow, and
 * several ranks. */
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
#include "../on_gpu.h"
#include "../ranks.h"
#include "../state_in_memory.h"
#include "cairn/cairn.h"
#include "nn/hooks.h"
#include "param/param.h"

enum { WIDTH = 16, BATCH = 8, LAYERS = 4, CHILDREN = 2 * LAYERS - 1 };

/* Linear layers with tanh between. */
static cairn_module *chain(cairn_env *env, bool scaled, const struct amp_sequential_options *options) {
    cairn_module *children[CHILDREN];
    for (int i = 0; i < CHILDREN; i++)
        children[i] = i % 2 ? cairn_activation(env, cairn_tanh) : cairn_linear(env, WIDTH, WIDTH);
    return scaled ? amp_sequential(env, CHILDREN, children, options) : cairn_sequential(env, CHILDREN, children);
}

struct training {
    cairn_module *net;
    cairn_optimizer *sgd;
    amp_context *amp;
    cairn_tensor *x, *y;
};

static void begin(struct training *t, cairn_env *env, bool scaled, amp_opt_level level, double scale) {
    struct cairn_sgd_options hyper = CAIRN_SGD_OPTIONS_INIT;
    hyper.lr = 0.05;
    memset(t, 0, sizeof(*t));
    cairn_manual_seed(env, 11);
    t->net = chain(env, scaled, NULL);
    assert_non_null(t->net);
    t->x = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(BATCH, WIDTH));
    t->y = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(BATCH, WIDTH));
    OK(cairn_sgd_create(cairn_module_params(t->net), &hyper, &t->sgd));
    OK(amp_initialize(env, t->net, t->sgd, amp_options(.opt_level = level, .loss_scale = scale, .verbosity = -1),
                      &t->amp));
}

static void end(struct training *t) {
    amp_destroy(&t->amp);
    cairn_optimizer_destroy(&t->sgd);
    cairn_module_destroy(&t->net);
    cairn_tensor_destroy(&t->x);
    cairn_tensor_destroy(&t->y);
}

static void backward(struct training *t, float weight) {
    cairn_zero_grad(t->sgd);
    cairn_tensor *loss = cairn_mul_scalar(cairn_mse_loss(cairn_module_forward(t->net, t->x), t->y), weight);
    OK(amp_backward(t->amp, loss, t->sgd));
}

static void step(struct training *t) {
    backward(t, 1);
    OK(cairn_step(t->sgd));
}

/* ---- what stays as it is ---- */

/* a_i, then 1 / P_i. */
static void set_scales(cairn_module *net, const float a[CHILDREN]) {
    float both[2 * CHILDREN], product = 1;
    for (int i = CHILDREN - 1; i >= 0; i--) {
        both[i] = a[i];
        both[CHILDREN + i] = 1 / (product *= a[i]);
    }
    OK(cairn_tensor_write(cairn_module_get(net, "layer_scales"), both, 2 * CHILDREN));
}

struct weights {
    char name[32];
    cairn_dtype dtype;
    unsigned char bits[WIDTH * WIDTH * sizeof(float)];
};

static void train(cairn_env *env, bool scaled, amp_opt_level level, struct weights out[2 * LAYERS]) {
    static const float a[CHILDREN] = {1, 0.5f, 4, 1, 2, 8, 0.25f};
    struct training t;
    begin(&t, env, scaled, level, 1024);
    if (scaled) set_scales(t.net, a);
    for (int i = 0; i < 5; i++) step(&t);
    assert_int_equal(cairn_optimizer_skipped(t.sgd), 0);
    const cairn_param_set *set = cairn_module_params(t.net);
    assert_int_equal(set->count, 2 * LAYERS);
    memset(out, 0, 2 * LAYERS * sizeof(out[0]));
    for (size_t i = 0; i < set->count; i++) {
        const struct cairn__param *p = set->params[i];
        snprintf(out[i].name, sizeof(out[i].name), "%s", p->name);
        out[i].dtype = p->dtype;
        memcpy(out[i].bits, p->master ? (const void *)p->master : p->data, p->n * sizeof(float));
    }
    end(&t);
}

/* Powers of two change no digit where nothing leaves f16's range: at a loss scale of 2^10 none does. */
static void scales_change_no_bit_of_a_training_within_range(void **state) {
    NOT_ON_A_GPU("the test compares the host's memory");
    static const amp_opt_level levels[] = {AMP_O0, AMP_O1, AMP_O2};
    static struct weights plain[2 * LAYERS], scaled[2 * LAYERS];
    for (int l = 0; l < 3; l++) {
        train(*state, false, levels[l], plain);
        train(*state, true, levels[l], scaled);
        assert_memory_equal(plain, scaled, sizeof(plain));
    }
}

static void the_gradient_of_the_input_has_no_scale(void **state) {
    static const float a[CHILDREN] = {1, 2, 2, 4, 1, 0.5f, 8};
    double grads[2][BATCH * WIDTH];
    for (int scaled = 0; scaled < 2; scaled++) {
        cairn_manual_seed(*state, 4);
        cairn_module *net = chain(*state, scaled, NULL);
        cairn_tensor *x = cairn_randn(*state, CAIRN_F32, CAIRN_SHAPE(BATCH, WIDTH));
        if (scaled) set_scales(net, a);
        OK(cairn_tensor_require_grad(x));
        OK(cairn_backward(cairn_mean(cairn_module_forward(net, x))));
        OK(cairn_tensor_read_grad(x, grads[scaled], BATCH * WIDTH));
        cairn_module_destroy(&net);
        cairn_tensor_destroy(&x);
    }
    assert_memory_equal(grads[0], grads[1], sizeof(grads[0]));
}

static void an_evaluation_without_a_graph_is_the_same(void **state) {
    float y[2][BATCH * WIDTH];
    for (int scaled = 0; scaled < 2; scaled++) {
        cairn_manual_seed(*state, 4);
        cairn_module *net = chain(*state, scaled, NULL);
        cairn_tensor *x = cairn_randn(*state, CAIRN_F32, CAIRN_SHAPE(BATCH, WIDTH));
        cairn_no_grad_begin(*state);
        OK(cairn_tensor_read(cairn_module_forward(net, x), y[scaled], BATCH * WIDTH));
        OK(cairn_no_grad_end(*state));
        cairn_module_destroy(&net);
        cairn_tensor_destroy(&x);
    }
    assert_memory_equal(y[0], y[1], sizeof(y[0]));
}

/* ---- underflow ---- */

/* Weights so small that a layer makes a gradient seven times smaller. */
static void shrink_weights(cairn_module *net) {
    cairn_manual_seed(cairn__module_env(net), 21);
    for (int i = 0; i < CHILDREN; i += 2) {
        char name[16];
        snprintf(name, sizeof(name), "%d.weight", i);
        OK(cairn_init_uniform(cairn_module_get(net, name), -0x1p-4, 0x1p-4));
    }
}

/* Of the first layer's weights: how far its gradient is from f32's, of its size. */
static double error_of(const struct training *t, const float *f32) {
    const struct cairn__param *p = cairn_module_params(t->net)->params[0];
    const float *g = cairn__grad_memory(p->gradient);
    double off = 0, all = 0;
    for (size_t i = 0; i < p->n; i++) {
        off += pow((double)g[i] - (double)f32[i], 2);
        all += pow((double)f32[i], 2);
    }
    return sqrt(off / all);
}

/* A loss so small that f16 keeps little of the first layer's gradients; one scale a layer brings them back. */
static void small_gradients_come_back_from_underflow(void **state) {
    NOT_ON_A_GPU("the test reads gradients on the host");
    const float weight = 0x1p-11f;
    float want[WIDTH * WIDTH];
    struct training t;
    begin(&t, *state, false, AMP_O0, 1);
    shrink_weights(t.net);
    backward(&t, weight);
    memcpy(want, cairn__grad_memory(cairn_module_params(t.net)->params[0]->gradient), sizeof(want));
    end(&t);
    double errors[2];
    for (int scaled = 0; scaled < 2; scaled++) {
        begin(&t, *state, scaled, AMP_O1, 1);
        shrink_weights(t.net);
        for (int i = 0; i < 4; i++) {
            backward(&t, weight);
            if (scaled) OK(amp_sequential_update(t.net));
        }
        backward(&t, weight);
        errors[scaled] = error_of(&t, want);
        if (scaled) {
            double scales[CHILDREN];
            OK(amp_sequential_scales(t.net, scales, CHILDREN));
            assert_true(scales[0] > 1 && scales[0] == scales[1]);
        }
        end(&t);
    }
    if (!(errors[0] > 0.2 && errors[1] < 0.1 * errors[0]))
        fail_msg("relative error %g without scales, %g with", errors[0], errors[1]);
}

static void an_overflow_halves_a_scale_and_skips_the_step(void **state) {
    static const float a[CHILDREN] = {1, 1, 1, 1, 16, 1, 1};
    double scales[CHILDREN];
    struct training t;
    begin(&t, *state, true, AMP_O1, 1);
    set_scales(t.net, a);
    backward(&t, 0x1p22f);
    OK(cairn_step(t.sgd));
    OK(cairn_env_synchronize(*state));
    assert_int_equal(cairn_optimizer_skipped(t.sgd), 1);
    OK(amp_sequential_update(t.net));
    OK(amp_sequential_scales(t.net, scales, CHILDREN));
    assert_true(scales[0] == 8);
    end(&t);
}

/* ---- saved and loaded ---- */

static void go_on(struct training *t, int steps, double scales[CHILDREN]) {
    for (int i = 0; i < steps; i++) {
        backward(t, 0x1p-11f);
        OK(cairn_step(t->sgd));
        OK(amp_sequential_update(t->net));
    }
    OK(amp_sequential_scales(t->net, scales, CHILDREN));
}

/* The other one comes from elsewhere, with scales of its own. */
static void scales_go_on_to_the_bit_from_a_saved_state(void **state) {
    double at[CHILDREN], want[CHILDREN], got[CHILDREN];
    struct kept_state saved = {.count = 0}, whole = {.count = 0}, rest = {.count = 0};
    static const float other[CHILDREN] = {1, 4, 4, 4, 4, 2, 1};
    struct training t;
    begin(&t, *state, true, AMP_O1, 1);
    shrink_weights(t.net);
    go_on(&t, 3, at);
    cairn_stateful parts[] = {cairn_module_stateful(t.net), cairn_optimizer_stateful(t.sgd)};
    CALM(keep_state(&saved, parts, 2));
    go_on(&t, 4, want);
    CALM(keep_state(&whole, parts, 2));
    end(&t);
    begin(&t, *state, true, AMP_O1, 1);
    set_scales(t.net, other);
    cairn_stateful same[] = {cairn_module_stateful(t.net), cairn_optimizer_stateful(t.sgd)};
    CALM(bring_back(&saved, same, 2));
    OK(amp_sequential_scales(t.net, got, CHILDREN));
    assert_memory_equal(got, at, sizeof(at));
    go_on(&t, 4, got);
    assert_memory_equal(got, want, sizeof(want));
    CALM(keep_state(&rest, same, 2));
    CALM(same_states(&whole, &rest));
    assert_true(want[0] > 1);
    end(&t);
    drop_state(&saved);
    drop_state(&whole);
    drop_state(&rest);
}

/* ---- ranks ---- */

enum { RANKS = 3 };

static char *update_on_a_rank(cairn_env *env, void *ctx) {
    double *scales = (double *)ctx + cairn_env_rank(env) * CHILDREN;
    struct cairn_sgd_options hyper = CAIRN_SGD_OPTIONS_INIT;
    cairn_optimizer *sgd = NULL;
    amp_context *amp = NULL;
    ddp_context *ddp = NULL;
    hyper.lr = 0.05;
    cairn_manual_seed(env, 5);
    cairn_module *net = chain(env, true, NULL);
    EXPECT(net);
    EXPECT_OK(cairn_sgd_create(cairn_module_params(net), &hyper, &sgd));
    EXPECT_OK(amp_initialize(env, net, sgd, amp_options(.opt_level = AMP_O1, .loss_scale = 1, .verbosity = -1), &amp));
    EXPECT_OK(ddp_create(net, cairn_env_group(env), NULL, &ddp));
    cairn_manual_seed(env, 50 + (uint64_t)cairn_env_rank(env));
    cairn_tensor *x = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(BATCH, WIDTH));
    cairn_tensor *y = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(BATCH, WIDTH));
    for (int i = 0; i < 5; i++) {
        cairn_zero_grad(sgd);
        /* Ranks whose gradients are of other sizes. */
        const float weight = ldexpf(1, -10 - 2 * cairn_env_rank(env));
        cairn_tensor *loss = cairn_mul_scalar(cairn_mse_loss(cairn_module_forward(net, x), y), weight);
        EXPECT_OK(amp_backward(amp, loss, sgd));
        EXPECT_OK(cairn_step(sgd));
        EXPECT_OK(amp_sequential_update(net));
    }
    EXPECT_OK(amp_sequential_scales(net, scales, CHILDREN));
    ddp_destroy(&ddp);
    amp_destroy(&amp);
    cairn_optimizer_destroy(&sgd);
    cairn_module_destroy(&net);
    cairn_tensor_destroy(&x);
    cairn_tensor_destroy(&y);
    return NULL;
}

static void ranks_have_the_same_scales(void **state) {
    (void)state;
    for (int size = 2; size <= RANKS; size++) {
        double scales[RANKS][CHILDREN] = {{0}};
        run_ranks(size, update_on_a_rank, scales);
        for (int r = 1; r < size; r++) assert_memory_equal(scales[r], scales[0], sizeof(scales[0]));
        assert_true(scales[0][0] > 1);
    }
}

/* ---- refusals ---- */

static cairn_module *of_one(cairn_env *env, const struct amp_sequential_options *options) {
    cairn_module *child = cairn_linear(env, 2, 2);
    return amp_sequential(env, 1, &child, options);
}

static cairn_module *never_called(void *ctx, cairn_env *env, int replica) {
    (void)ctx, (void)env, (void)replica;
    abort();
}

static void invalid_arguments_are_refused_with_a_message(void **state) {
    const struct {
        struct amp_sequential_options options;
        const char *sentence;
    } bad[] = {
        {{.underflow_share = 1}, "underflow_share is 1; it must be a number between 0 and 1"},
        {{.underflow_share = NAN}, "underflow_share is nan"},
        {{.headroom = 0.5}, "headroom is 0.5; it must be a number from 1 to 65536"},
        {{.max_layer_scale = 3}, "max_layer_scale is 3; it must be a power of two"},
        {{.max_layer_scale = 0x1p25}, "it must be a power of two from 1 to 2^24"},
        {{.max_scale = 0.5}, "max_scale is 0.5; it must be a power of two"},
    };
    double scales[2];
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct amp_sequential_options options = bad[i].options;
        options.struct_size = sizeof(options);
        assert_null(of_one(*state, &options));
        SAYS(bad[i].sentence);
    }
    assert_null(amp_sequential(*state, 0, NULL, NULL));
    SAYS("0 children; at least one must be given");
    cairn_module *twice[2];
    twice[0] = twice[1] = cairn_linear(*state, 2, 2);
    assert_null(amp_sequential(*state, 2, twice, NULL));
    SAYS("child 1 is there already");
    cairn_module *holes[] = {cairn_linear(*state, 2, 2), NULL};
    assert_null(amp_sequential(*state, 2, holes, NULL));
    cairn_module *nested[] = {cairn_linear(*state, 2, 2), of_one(*state, NULL)};
    assert_null(amp_sequential(*state, 2, nested, NULL));
    SAYS("'1.0.weight' is in another amp_sequential inside this one; give all their children to one");
    cairn_module *plain = cairn_linear(*state, 2, 2), *net = of_one(*state, NULL);
    REFUSED(amp_sequential_update(NULL), CAIRN_EINVAL, "the module must be one that amp_sequential made");
    REFUSED(amp_sequential_update(plain), CAIRN_EINVAL, "the module must be one that amp_sequential made");
    REFUSED(amp_sequential_scales(net, scales, 2), CAIRN_EINVAL, "count is 2, but the module has 1 children");
    REFUSED(amp_sequential_scales(net, NULL, 1), CAIRN_EINVAL, "amp_sequential_scales");
    OK(amp_sequential_update(net)); /* before any backward */
    OK(amp_sequential_scales(net, scales, 1));
    assert_true(scales[0] == 1);
    cairn_data_parallel *replicas = NULL;
    REFUSED(cairn_data_parallel_create(net, cairn_data_parallel_options(.make = never_called), &replicas),
            CAIRN_ENOTSUP, "'0.weight' is in an amp_sequential, whose scales replicas do not follow");
    cairn_module_destroy(&plain);
    cairn_module_destroy(&net);
}

/* As stages of a pipeline have them. */
static char *update_another_chain(cairn_env *env, void *ctx) {
    cairn_module *children[2] = {cairn_linear(env, 2, 2), cairn_linear(env, 2, 2)};
    const int rank = cairn_env_rank(env);
    if (rank == 1) cairn_module_destroy(&children[1]);
    cairn_module *net = amp_sequential(env, 2 - rank, children, NULL);
    (void)ctx;
    EXPECT(net);
    EXPECT(amp_sequential_update(net) == CAIRN_EINVAL);
    EXPECT(strstr(cairn_last_error(), "all ranks must have the same chain"));
    cairn_module_destroy(&net);
    return NULL;
}

static void chains_that_differ_from_rank_to_rank_are_refused_on_all(void **state) {
    (void)state;
    run_ranks(2, update_another_chain, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scales_change_no_bit_of_a_training_within_range),
        cmocka_unit_test(the_gradient_of_the_input_has_no_scale),
        cmocka_unit_test(an_evaluation_without_a_graph_is_the_same),
        cmocka_unit_test(small_gradients_come_back_from_underflow),
        cmocka_unit_test(an_overflow_halves_a_scale_and_skips_the_step),
        cmocka_unit_test(scales_go_on_to_the_bit_from_a_saved_state),
        cmocka_unit_test(ranks_have_the_same_scales),
        cmocka_unit_test(invalid_arguments_are_refused_with_a_message),
        cmocka_unit_test(chains_that_differ_from_rank_to_rank_are_refused_on_all),
    };
    cairn_set_log(keep_log, NULL);
    return cmocka_run_group_tests(tests, make_env, end_env);
}
