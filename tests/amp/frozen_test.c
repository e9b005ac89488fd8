/* amp and frozen parameters: masters keep the original bits, and frozen parameters never cause a skipped step. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "../mlp.h"
#include "../one_env.h"
#include "optim/optim.h"

enum { ROWS = 4, IN = 3, HIDDEN = 5, OUT = 2, W1 = 0, STEPS = 5 };

static const struct level {
    amp_opt_level level;
    cairn_dtype half;
} levels[] = {{AMP_O0, CAIRN_F16},  {AMP_O1, CAIRN_F16}, {AMP_O1, CAIRN_BF16}, {AMP_O2, CAIRN_F16},
              {AMP_O2, CAIRN_BF16}, {AMP_O3, CAIRN_F16}, {AMP_O3, CAIRN_BF16}};
enum { LEVELS = sizeof(levels) / sizeof(levels[0]) };

struct training {
    cairn_module *model;
    cairn_param_set *set;
    cairn_optimizer *adam;
    amp_context *amp;
    cairn_tensor *x, *y;
};

static void begin(struct training *t, cairn_env *env, const struct level *level, const char *frozen) {
    struct cairn_adam_options hyper = CAIRN_ADAM_OPTIONS_INIT;
    hyper.lr = 0.01;
    cairn_manual_seed(env, 5);
    t->x = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(ROWS, IN));
    t->y = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(ROWS, OUT));
    t->model = make_mlp(env, IN, HIDDEN, OUT);
    t->set = cairn_module_params(t->model);
    if (frozen) OK(cairn_param_set_require_grad(t->set, frozen, CAIRN_OFF));
    OK(cairn_adam_create(t->set, &hyper, &t->adam));
    OK(amp_initialize(env, t->model, t->adam,
                      amp_options(.opt_level = level->level, .half_type = level->half, .loss_scale = 128,
                                  .verbosity = -1),
                      &t->amp));
}

static void end(struct training *t) {
    amp_destroy(&t->amp);
    cairn_optimizer_destroy(&t->adam);
    cairn_module_destroy(&t->model);
    cairn_tensor_destroy(&t->x);
    cairn_tensor_destroy(&t->y);
}

static void step(struct training *t) {
    cairn_zero_grad(t->adam);
    OK(amp_backward(t->amp, cairn_mse_loss(cairn_module_forward(t->model, t->x), t->y), t->adam));
    OK(cairn_step(t->adam));
}

static void take(const struct training *t, size_t i, unsigned char *bits) {
    const struct cairn__param *p = t->set->params[i];
    memcpy(bits, p->data, p->n * cairn_dtype_nbytes(p->dtype));
    if (p->master) memcpy(bits + p->n * sizeof(float), p->master, p->n * sizeof(float));
}

/* The model's first values do not fit into a half type. */
static void a_layer_frozen_before_amp_initialize_is_thawed_with_its_original_bits(void **state) {
    for (int l = 0; l < LEVELS; l++) {
        struct training t;
        float first[IN * HIDDEN];
        begin(&t, *state, &(struct level){AMP_O0, CAIRN_F16}, NULL);
        memcpy(first, t.set->params[W1]->data, sizeof(first));
        end(&t);
        begin(&t, *state, &levels[l], "0.weight");
        for (int s = 0; s < STEPS; s++) step(&t);
        OK(cairn_param_set_require_grad(t.set, "0.weight", CAIRN_ON));
        const float *master = cairn_param_master(t.set, W1);
        assert_true((master == NULL) == (levels[l].level == AMP_O3));
        if (master) assert_memory_equal(master, first, sizeof(first));
        step(&t);
        if (master) assert_memory_not_equal(cairn_param_master(t.set, W1), first, sizeof(first));
        end(&t);
    }
}

/* As a parameter that joins the optimizer after these steps: its first update is number 1, with fresh moments. */
static void a_thawed_parameter_begins_with_its_first_update(void **state) {
    for (int l = 0; l < LEVELS; l++) {
        struct training t;
        begin(&t, *state, &levels[l], "0.weight");
        assert_null(t.adam->arrays.moments[W1].array[0]);
        for (int s = 0; s < STEPS; s++) step(&t);
        assert_null(t.adam->arrays.moments[W1].array[0]);
        OK(cairn_param_require_grad(t.set, W1, CAIRN_ON));
        step(&t);
        assert_non_null(t.adam->arrays.moments[W1].array[0]);
        assert_int_equal(t.adam->arrays.missed[W1], STEPS);
        end(&t);
    }
}

/* Adam would go on with its moments: frozen is not "a gradient of zero". */
static void a_parameter_that_is_frozen_again_keeps_weights_and_moments(void **state) {
    for (int l = 0; l < LEVELS; l++) {
        struct training t;
        unsigned char before[2 * IN * HIDDEN * sizeof(float)] = {0}, after[sizeof(before)] = {0};
        float m[IN * HIDDEN];
        begin(&t, *state, &levels[l], NULL);
        for (int s = 0; s < STEPS; s++) step(&t);
        take(&t, W1, before);
        memcpy(m, t.adam->arrays.moments[W1].array[0], sizeof(m));
        OK(cairn_param_set_require_grad(t.set, "0.*", CAIRN_OFF));
        const uint64_t version = t.set->params[W1]->version;
        for (int s = 0; s < STEPS; s++) step(&t);
        assert_int_equal(t.set->params[W1]->version, version); /* casts of it stay */
        take(&t, W1, after);
        assert_memory_equal(before, after, sizeof(before));
        assert_memory_equal(m, t.adam->arrays.moments[W1].array[0], sizeof(m));
        assert_int_equal(t.adam->arrays.missed[W1], STEPS);
        OK(cairn_param_set_require_grad(t.set, "0.*", CAIRN_ON));
        step(&t);
        take(&t, W1, after);
        assert_memory_not_equal(before, after, sizeof(before));
        end(&t);
    }
}

/* A gradient that waits when its parameter is frozen is applied by no step, this one or one after the thaw. */
static void freezing_drops_a_pending_gradient(void **state) {
    for (int l = 0; l < LEVELS; l++) {
        struct training t;
        unsigned char before[2 * IN * HIDDEN * sizeof(float)] = {0}, after[sizeof(before)] = {0};
        begin(&t, *state, &levels[l], NULL);
        take(&t, W1, before);
        for (int micro = 0; micro < 2; micro++) /* a slot and a sum */
            OK(amp_backward(t.amp, cairn_mse_loss(cairn_module_forward(t.model, t.x), t.y), t.adam));
        OK(cairn_param_require_grad(t.set, W1, CAIRN_OFF));
        assert_false(cairn__grad_exists(t.set->params[W1]->gradient));
        assert_null(cairn__grad_memory(t.set->params[W1]->gradient));
        OK(cairn_param_require_grad(t.set, W1, CAIRN_ON));
        OK(cairn_step(t.adam));
        take(&t, W1, after);
        assert_memory_equal(before, after, sizeof(before));
        end(&t);
    }
}

/* dW1 = dh x^T overflows f16 for this x; what h is made of does not depend on x, since W1 is 0. */
static void frozen_parameters_skip_no_step(void **state) {
    for (int frozen = 0; frozen < 2; frozen++) {
        struct training t;
        float x[ROWS * IN];
        const struct level level = {AMP_O2, CAIRN_F16};
        begin(&t, *state, &level, frozen ? "0.weight" : NULL);
        for (int i = 0; i < ROWS * IN; i++) x[i] = 60000;
        OK(cairn_tensor_write(t.x, x, ROWS * IN));
        memset(cairn_param_master(t.set, W1), 0, IN * HIDDEN * sizeof(float));
        OK(cairn_param_changed(t.set, W1, 1));
        step(&t);
        assert_int_equal(cairn_optimizer_step_skipped(t.adam), !frozen);
        end(&t);
    }
}

static int be_quiet(void **state) {
    cairn_set_log(log_nothing, NULL); /* of overflows that are meant */
    return make_env(state);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_layer_frozen_before_amp_initialize_is_thawed_with_its_original_bits),
        cmocka_unit_test(a_thawed_parameter_begins_with_its_first_update),
        cmocka_unit_test(a_parameter_that_is_frozen_again_keeps_weights_and_moments),
        cmocka_unit_test(freezing_drops_a_pending_gradient),
        cmocka_unit_test(frozen_parameters_skip_no_step),
    };
    return cmocka_run_group_tests(tests, be_quiet, end_env);
}
