/* Custom optimizers, written with public headers only, against the built-in optimizers that they re-implement. With
 * OWN_KERNELS they also run on a GPU (CAIRN_DEVICE); an argument allows the GPU to be missing. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "../one_env.h"
#include "cairn/interop_cuda.h"
#include "../state_in_memory.h"
#include "recorded.h"
#ifdef OWN_KERNELS
#include "own_kernels.h"
#else
#define queue_sgd   NULL
#define queue_adamw NULL
#endif

/* ---- SGD with momentum, and AdamW, as a user writes them ---- */

static atomic_int calls;

static void sgd_update(void *ctx, const struct cairn_custom_update *u) {
    const float lr = (float)u->scalars->lr, momentum = (float)u->scalars->momentum;
    const float undamped = (float)(1.0 - u->values[0]), weight_decay = (float)u->values[1];
    const bool nesterov = u->values[3] != 0;
    (void)ctx;
    atomic_fetch_add(&calls, 1);
    for (size_t i = 0; i < u->n; i++) {
        float g = u->grad[i];
        if (weight_decay != 0) g = g + weight_decay * u->weights[i];
        const float b = u->scalars->update == 1 ? g : momentum * u->states[0][i] + undamped * g;
        u->states[0][i] = b;
        g = nesterov ? g + momentum * b : b;
        u->weights[i] = u->weights[i] - lr * g;
    }
}

static const struct cairn_custom_optimizer own_sgd = {
    .struct_size = sizeof(own_sgd),
    .name = "sgd",
    .update = sgd_update,
    .update_cuda = queue_sgd,
    .states = {"momentum"},
    .momentum = "momentum",
    .values = {"dampening", "weight_decay", "has_momentum", "nesterov"},
};

static double power(double base, int64_t exponent) {
    double result = 1;
    for (; exponent > 0; exponent >>= 1) {
        if (exponent & 1) result = result * base;
        base = base * base;
    }
    return result;
}

static void adamw_update(void *ctx, const struct cairn_custom_update *u) {
    const double lr = u->scalars->lr, beta1 = u->scalars->momentum, beta2 = u->values[0];
    const double c1 = 1.0 - power(beta1, u->scalars->update), c2 = 1.0 - power(beta2, u->scalars->update);
    const float step_size = (float)(lr / c1), inv_sqrt_c2 = (float)(1.0 / sqrt(c2)), eps = (float)u->values[1];
    const float decay = (float)(lr * u->values[2]), keep1 = (float)beta1, add1 = (float)(1.0 - beta1);
    const float keep2 = (float)beta2, add2 = (float)(1.0 - beta2);
    (void)ctx;
    atomic_fetch_add(&calls, 1);
    for (size_t i = 0; i < u->n; i++) {
        const float g = u->grad[i];
        const float m = keep1 * u->states[0][i] + add1 * g, v = keep2 * u->states[1][i] + add2 * (g * g);
        u->states[0][i] = m;
        u->states[1][i] = v;
        const float step = step_size * (m / (sqrtf(v) * inv_sqrt_c2 + eps)) + decay * u->weights[i];
        u->weights[i] = u->weights[i] - step;
    }
}

static const struct cairn_custom_optimizer own_adamw = {
    .struct_size = sizeof(own_adamw),
    .name = "adamw",
    .update = adamw_update,
    .update_cuda = queue_adamw,
    .states = {"exp_avg", "exp_avg_sq"},
    .momentum = "beta1",
    .values = {"beta2", "eps", "weight_decay"},
};

/* ---- a training by one of the two, or by its twin ---- */

enum { IN = 96, OUT = 200, STEPS = 10, KEPT_AT = 5, OVERFLOWS_AT = 3, THAWS_AT = 4 };

struct way {
    const char *name;
    bool is_adam;
    amp_opt_level level;
    cairn_dtype half;
    bool stochastic;
    int threads;
};

static const struct way ways[] = {
    {"SGD at O0", false, AMP_O0, CAIRN_F16, false, 1},
    {"SGD at O2 in f16", false, AMP_O2, CAIRN_F16, false, 3},
    {"SGD at O2 in bf16", false, AMP_O2, CAIRN_BF16, false, 1},
    {"SGD at O3 in bf16, rounded at random", false, AMP_O3, CAIRN_BF16, true, 3},
    {"AdamW at O0", true, AMP_O0, CAIRN_F16, false, 3},
    {"AdamW at O1 in f16", true, AMP_O1, CAIRN_F16, false, 1},
    {"AdamW at O2 in f16", true, AMP_O2, CAIRN_F16, false, 1},
    {"AdamW at O2 in bf16", true, AMP_O2, CAIRN_BF16, false, 3},
    {"AdamW at O3 in f16", true, AMP_O3, CAIRN_F16, false, 1},
    {"AdamW at O3 in bf16, rounded at random", true, AMP_O3, CAIRN_BF16, true, 1},
};
enum { WAYS = sizeof(ways) / sizeof(ways[0]) };

static cairn_status create(const struct way *way, bool own, cairn_param_set *set, cairn_optimizer **out) {
    struct cairn_custom_options custom = CAIRN_CUSTOM_OPTIONS_INIT;
    struct cairn_sgd_options sgd = CAIRN_SGD_OPTIONS_INIT;
    struct cairn_adam_options adam = CAIRN_ADAMW_OPTIONS_INIT;
    const size_t biases[] = {1};
    cairn_status st;
    custom.lr = sgd.lr = adam.lr = 0.01;
    if (way->is_adam) {
        adam.weight_decay = 0.125;
        custom.momentum = adam.beta1;
        custom.values[0] = adam.beta2, custom.values[1] = adam.eps, custom.values[2] = adam.weight_decay;
        const size_t weights[] = {0};
        st = own ? cairn_custom_optimizer_create_over(set, weights, 1, &own_adamw, &custom, out)
                 : cairn_adamw_create_over(set, weights, 1, &adam, out);
        custom.values[2] = adam.weight_decay = 0;
        if (st) return st;
        return own ? cairn_custom_optimizer_add_group(*out, set, biases, 1, &custom)
                   : cairn_adam_add_group(*out, set, biases, 1, &adam);
    }
    sgd.momentum = custom.momentum = 0.9;
    sgd.weight_decay = custom.values[1] = 0.0625;
    sgd.nesterov = CAIRN_ON;
    custom.values[2] = custom.values[3] = 1; /* has_momentum, nesterov */
    return own ? cairn_custom_optimizer_create(set, &own_sgd, &custom, out) : cairn_sgd_create(set, &sgd, out);
}

struct training {
    cairn_env *env;
    cairn_module *net;
    cairn_optimizer *optimizer;
    amp_context *amp;
    cairn_stateful of[3];
};

static void begin(struct training *t, cairn_env *env, const struct way *way, bool own) {
    t->env = env;
    cairn_manual_seed(env, 7);
    t->net = cairn_linear(env, IN, OUT);
    OK(cairn_param_require_grad(cairn_module_params(t->net), 1, false));
    OK(create(way, own, cairn_module_params(t->net), &t->optimizer));
    OK(cairn_optimizer_set_schedule(t->optimizer, cairn_one_cycle_schedule(.total_steps = 2 * STEPS)));
    OK(amp_initialize(env, t->net, t->optimizer,
                      amp_options(.opt_level = way->level, .half_type = way->half, .verbosity = -1,
                                  .loss_scale = way->level == AMP_O0 || way->level == AMP_O3 ? 128 : 0,
                                  .skip_nonfinite = CAIRN_ON, .rounding_seed = 7,
                                  .stochastic_rounding = way->stochastic ? CAIRN_ON : CAIRN_OFF),
                      &t->amp));
    t->of[0] = cairn_module_stateful(t->net);
    t->of[1] = cairn_optimizer_stateful(t->optimizer);
    t->of[2] = amp_stateful(t->amp);
}

static void end(struct training *t) {
    amp_destroy(&t->amp);
    cairn_optimizer_destroy(&t->optimizer);
    cairn_module_destroy(&t->net);
}

static void backward(struct training *t, int step, int part) {
    static float x[4 * IN];
    for (int i = 0; i < 4 * IN; i++) x[i] = (float)((i + 1) * (step + 3 * part + 2) * 29 % 97 - 48) / 32;
    if (step == OVERFLOWS_AT && part == 1) x[5] = INFINITY;
    cairn_tensor *in = cairn_tensor_from(t->env, CAIRN_F32, CAIRN_SHAPE(4, IN), x);
    cairn_tensor *y = cairn_module_forward(t->net, in);
    OK(amp_backward(t->amp, cairn_mean(cairn_mul(y, y)), t->optimizer));
    cairn_tensor_destroy(&in);
}

/* Two micro-batches, the second of which may overflow; clipped. */
static void step(struct training *t, int number) {
    if (number == THAWS_AT) OK(cairn_param_require_grad(cairn_module_params(t->net), 1, true));
    cairn_zero_grad(t->optimizer);
    backward(t, number, 0);
    backward(t, number, 1);
    OK(cairn_clip_grad_norm(t->optimizer, 0.5, NULL));
    OK(cairn_step(t->optimizer));
    OK(cairn_env_synchronize(t->env)); /* a GPU's host learns of it then */
    assert_int_equal(cairn_optimizer_step_skipped(t->optimizer), number == OVERFLOWS_AT);
}

static void train(struct training *t, int from, int to) {
    for (int number = from; number <= to; number++) step(t, number);
}

static void run_whole(cairn_env *env, const struct way *way, bool own, struct kept_state *half_way,
                      struct kept_state *whole) {
    struct training t;
    begin(&t, env, way, own);
    train(&t, 1, KEPT_AT);
    CALM(keep_state(half_way, t.of, 3));
    train(&t, KEPT_AT + 1, STEPS);
    CALM(keep_state(whole, t.of, 3));
    end(&t);
}

static void resume(cairn_env *env, const struct way *way, bool own, const struct kept_state *half_way,
                   const struct kept_state *whole) {
    struct training t;
    struct kept_state resumed = {.count = 0};
    begin(&t, env, way, own);
    CALM(bring_back(half_way, t.of, 3));
    train(&t, KEPT_AT + 1, STEPS);
    CALM(keep_state(&resumed, t.of, 3));
    CALM(same_states(whole, &resumed));
    drop_state(&resumed);
    end(&t);
}

static void own_optimizers_have_the_bits_of_built_in_ones_and_resume_each_other(void **state) {
    for (int w = 0; w < WAYS; w++) {
        struct kept_state built_in[2] = {{.count = 0}, {.count = 0}}, own[2] = {{.count = 0}, {.count = 0}};
        check_as(ways[w].name);
        OK(cairn_set_num_threads(ways[w].threads));
        run_whole(*state, &ways[w], false, &built_in[0], &built_in[1]);
        run_whole(*state, &ways[w], true, &own[0], &own[1]);
        for (int i = 0; i < 2; i++) CALM(same_states(&built_in[i], &own[i]));
        resume(*state, &ways[w], true, &own[0], &own[1]);
        resume(*state, &ways[w], true, &built_in[0], &built_in[1]);
        resume(*state, &ways[w], false, &own[0], &own[1]);
        for (int i = 0; i < 2; i++) drop_state(&built_in[i]), drop_state(&own[i]);
    }
    OK(cairn_set_num_threads(1));
}

static bool is_on_gpu(cairn_env *env) {
    return cairn_cuda_ordinal(env) >= 0;
}

static void skipped_steps_do_not_call_the_function(void **state) {
    if (is_on_gpu(*state)) return; /* where the host does not know of them */
    struct training t;
    begin(&t, *state, &ways[1], true);
    train(&t, 1, OVERFLOWS_AT - 1);
    const int before = atomic_load(&calls);
    step(&t, OVERFLOWS_AT);
    assert_int_equal(atomic_load(&calls), before);
    step(&t, OVERFLOWS_AT + 1);
    assert_true(atomic_load(&calls) > before);
    end(&t);
}

static cairn_status make_sgd(cairn_param_set *set, cairn_optimizer **out) {
    struct cairn_custom_options h = CAIRN_CUSTOM_OPTIONS_INIT;
    h.momentum = 0.9;
    return cairn_custom_optimizer_create(set, &own_sgd, &h, out);
}

static cairn_status make_adamw(cairn_param_set *set, cairn_optimizer **out) {
    struct cairn_custom_options h = CAIRN_CUSTOM_OPTIONS_INIT;
    h.momentum = 0.9;
    h.values[0] = 0.999, h.values[1] = 1e-8;
    return cairn_custom_optimizer_create(set, &own_adamw, &h, out);
}

static void recorded_steps_have_the_bits_of_called_ones(void **state) {
    assert_recorded_as_called(*state, make_sgd);
    assert_recorded_as_called(*state, make_adamw);
}

/* ---- what a function is handed ---- */

enum { LONG = 40001 };

struct seen {
    atomic_int pieces;
    atomic_uchar times[LONG]; /* an element was handed out */
    bool is_wrong;
};

static void look(void *ctx, const struct cairn_custom_update *u) {
    struct seen *seen = ctx;
    const bool is_long = strcmp(u->name, "long") == 0;
    atomic_fetch_add(&seen->pieces, 1);
    if (u->size != (is_long ? LONG : 3) || u->parameter != (is_long ? 0 : 1) || u->group != (is_long ? 0 : 1) ||
        u->values[0] != (is_long ? 0.5 : 0.25) || u->stream || u->scalars->update != 1 || u->scalars->skipped ||
        u->scalars->lr != 0.5 || u->scalars->momentum != 0)
        seen->is_wrong = true;
    for (size_t i = 0; i < u->n; i++) {
        if (is_long) seen->times[u->offset + i]++;
        if (u->grad[i] != (float)(u->offset + i) || u->states[0][i] != 0) seen->is_wrong = true;
        u->states[0][i] = u->weights[i];
    }
}

static const struct cairn_custom_optimizer looks = {
    .struct_size = sizeof(looks), .name = "looks", .update = look, .states = {"first"}, .values = {"share"}};

static void pieces_cover_every_element_once_and_say_which_they_are(void **state) {
    if (is_on_gpu(*state)) return; /* memory is the host's here */
    static float weights[LONG + 3], grads[LONG + 3];
    static struct seen seen;
    struct cairn_custom_optimizer kind = looks;
    struct cairn_custom_options first = CAIRN_CUSTOM_OPTIONS_INIT;
    cairn_optimizer *o = NULL;
    cairn_param_set *set = NULL;
    const cairn_param params[] = {
        {.name = "long", .data = weights, .grad = grads, .dtype = CAIRN_F32, .ndim = 1, .shape = {LONG}},
        {.name = "short", .data = weights + LONG, .grad = grads + LONG, .dtype = CAIRN_F32, .ndim = 1, .shape = {3}},
    };
    for (int i = 0; i < LONG; i++) grads[i] = (float)i;
    for (int i = 0; i < 3; i++) grads[LONG + i] = (float)i;
    first.lr = 0.5;
    first.values[0] = 0.5;
    struct cairn_custom_options second = first;
    second.values[0] = 0.25;
    const cairn_group_rule rules[] = {{.names = "long", .custom = &first}, {.custom = &second}};
    kind.ctx = &seen;
    OK(cairn_set_num_threads(3));
    OK(cairn_param_set_create(*state, params, 2, &set));
    OK(cairn_custom_optimizer_create_grouped(set, &kind, rules, 2, &o));
    OK(cairn_grads_ready(set, 0, 2));
    OK(cairn_step(o));
    assert_false(seen.is_wrong);
    assert_int_equal(atomic_load(&seen.pieces), (LONG + 255) / 256 + 1);
    for (int i = 0; i < LONG; i++) assert_int_equal(seen.times[i], 1);
    OK(cairn_set_num_threads(1));
    cairn_optimizer_destroy(&o);
    cairn_param_set_destroy(&set);
}

static void kinds_that_cannot_be_are_refused_by_name(void **state) {
    if (is_on_gpu(*state)) return; /* memory is the host's here */
    float w = 1, g = 1;
    const cairn_param param = {.name = "w", .data = &w, .grad = &g, .dtype = CAIRN_F32, .ndim = 0};
    cairn_param_set *set = NULL;
    cairn_optimizer *o = NULL;
    struct cairn_custom_optimizer kind = {.struct_size = sizeof(kind), .name = "mine"};
    struct cairn_custom_options options = CAIRN_CUSTOM_OPTIONS_INIT;
    OK(cairn_param_set_create(*state, &param, 1, &set));
    REFUSED(cairn_custom_optimizer_create(set, NULL, NULL, &o), CAIRN_EINVAL, "kind is NULL");
    REFUSED(cairn_custom_optimizer_create(set, &kind, NULL, &o), CAIRN_EINVAL, "mine: update and update_cuda");
    kind.update_cuda = look;
    REFUSED(cairn_custom_optimizer_create(set, &kind, NULL, &o), CAIRN_ENOTSUP, "no update for the environment's");
    kind.update = look;
    kind.name = "my own";
    REFUSED(cairn_custom_optimizer_create(set, &kind, NULL, &o), CAIRN_EINVAL, "the kind is 'my own'; it must be of");
    kind.name = NULL;
    REFUSED(cairn_custom_optimizer_create(set, &kind, NULL, &o), CAIRN_EINVAL, "the kind is 'NULL'");
    kind.name = "mine";
    kind.states[0] = "missed";
    REFUSED(cairn_custom_optimizer_create(set, &kind, NULL, &o), CAIRN_EINVAL, "'missed', is in use already");
    for (int i = 0; i < 4; i++) {
        static const char *const fronts[] = {"last", "skip", "plateau", "groups"};
        kind.states[0] = fronts[i];
        REFUSED(cairn_custom_optimizer_create(set, &kind, NULL, &o), CAIRN_EINVAL, "', is in use already");
    }
    kind.states[0] = kind.states[1] = "m";
    REFUSED(cairn_custom_optimizer_create(set, &kind, NULL, &o), CAIRN_EINVAL, "a state, 'm', is in use already");
    kind.states[1] = NULL;
    kind.momentum = kind.values[0] = "beta";
    REFUSED(cairn_custom_optimizer_create(set, &kind, NULL, &o), CAIRN_EINVAL, "a value, 'beta', is in use already");
    kind.momentum = NULL;
    options.momentum = 0.5;
    REFUSED(cairn_custom_optimizer_create(set, &kind, &options, &o), CAIRN_EINVAL, "momentum is 0.5, but the kind");
    options.momentum = 0;
    options.values[1] = 2;
    REFUSED(cairn_custom_optimizer_create(set, &kind, &options, &o), CAIRN_EINVAL,
            "value 1 is 2, but the kind names 1");
    options.values[1] = 0;
    options.values[0] = NAN;
    REFUSED(cairn_custom_optimizer_create(set, &kind, &options, &o), CAIRN_EINVAL, "mine: beta is nan");
    options.values[0] = 0;
    options.lr = -1;
    REFUSED(cairn_custom_optimizer_create(set, &kind, &options, &o), CAIRN_EINVAL, "mine: lr is -1");
    assert_null(o);
    OK(cairn_sgd_create(set, NULL, &o));
    REFUSED(cairn_custom_optimizer_add_group(o, set, NULL, 0, NULL), CAIRN_EINVAL, "to an optimizer of SGD");
    cairn_optimizer_destroy(&o);
    cairn_param_set_destroy(&set);
}

static int begin_all(void **state) {
    cairn_set_log(log_nothing, NULL); /* of steps that are skipped */
    return make_env(state);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(own_optimizers_have_the_bits_of_built_in_ones_and_resume_each_other),
        cmocka_unit_test(recorded_steps_have_the_bits_of_called_ones),
        cmocka_unit_test(skipped_steps_do_not_call_the_function),
        cmocka_unit_test(pieces_cover_every_element_once_and_say_which_they_are),
        cmocka_unit_test(kinds_that_cannot_be_are_refused_by_name),
    };
    cairn_env *probe = NULL;
    if (argc > 1 && cairn_env_create(NULL, NULL, NULL, &probe) != CAIRN_OK) {
        printf("there is no %s here: %s\n", argv[1], cairn_last_error());
        return 77;
    }
    cairn_env_destroy(&probe);
    return cmocka_run_group_tests(tests, begin_all, end_env);
}
