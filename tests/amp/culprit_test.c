/* The report of a skipped step names the right one of 200 parameters, whichever it is. */
#include "exact.h"
#include "logged_env.h"
#include "nn/module.h"

enum { PARAMS = 200, N = 3 };

struct wide {
    cairn_tensor *w[PARAMS];
};

/* sum(x * w[i]) over all i: the gradient of each is x. */
static cairn_tensor *wide_forward(cairn_module *module, void *context, cairn_tensor *const *inputs, int count) {
    (void)module, (void)count;
    const struct wide *wide = context;
    cairn_tensor *terms[PARAMS];
    for (int i = 0; i < PARAMS; i++) terms[i] = cairn_mul(inputs[0], wide->w[i]);
    return cairn_sum(cairn_stack(PARAMS, terms, 0));
}

static const struct cairn__module_kind wide_kind = {.name = "Wide", .forward = wide_forward};

static cairn_module *make_wide(cairn_env *env) {
    cairn_module *module = NULL;
    OK(cairn__module_create(env, &wide_kind, sizeof(struct wide), &module));
    struct wide *wide = cairn__module_context(module);
    for (int i = 0; i < PARAMS; i++) {
        char name[32];
        snprintf(name, sizeof(name), "layer%d.weight", i);
        OK(cairn__module_add_param(module, name, 1, (int64_t[]){N}, false, &wide->w[i]));
        memset(cairn_module_params(module)->params[i]->data, 0, N * sizeof(float));
    }
    return module;
}

struct culprit {
    cairn_module *model;
    cairn_optimizer *adam;
    amp_context *amp;
    cairn_tensor *x;
    struct plant plant;
};

static void begin(struct culprit *t, cairn_env *env, const struct exact_level *level) {
    static const float ones[N] = {1, 1, 1};
    t->model = make_wide(env);
    t->x = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(N), ones);
    OK(cairn_adam_create(cairn_module_params(t->model), NULL, &t->adam));
    OK(amp_initialize(env, t->model, t->adam,
                      amp_options(.opt_level = level->level, .half_type = level->half, .verbosity = -1,
                                  .loss_scale = 64),
                      &t->amp));
    plant_install(&t->plant, cairn_module_params(t->model));
}

static void end(struct culprit *t) {
    plant_remove(&t->plant);
    amp_destroy(&t->amp);
    cairn_optimizer_destroy(&t->adam);
    cairn_module_destroy(&t->model);
    cairn_tensor_destroy(&t->x);
}

static void accuse(struct culprit *t, int i) {
    struct amp_overflow told[2];
    size_t found = 0;
    char name[32], sentence[128];
    t->plant.target = i;
    t->plant.all = i % 3 == 0;
    t->plant.value = i % 2 ? INFINITY : NAN;
    const int bad = t->plant.all ? N : 1;
    log_text[0] = '\0'; /* nothing but this step's */
    cairn_zero_grad(t->adam);
    OK(amp_backward(t->amp, cairn_module_forward(t->model, t->x), t->adam));
    OK(cairn_step(t->adam));
    OK(amp_last_overflow(t->amp, t->adam, told, 2, &found));
    snprintf(name, sizeof(name), "layer%d.weight", i);
    snprintf(sentence, sizeof(sentence), "non-finite gradient in %s (%d %s of %d)", name, bad, i % 2 ? "inf" : "nan",
             N);
    assert_int_equal(found, 1);
    assert_string_equal(told[0].name, name);
    assert_int_equal(told[0].infs, i % 2 ? bad : 0);
    assert_int_equal(told[0].nans, i % 2 ? 0 : bad);
    if (!strstr(log_text, sentence)) fail_msg("'%s' is not in: %s", sentence, log_text);
}

static void each_of_200_parameters_is_named_when_it_overflows(void **state) {
    for (int l = 0; l < EXACT_LEVELS; l++) {
        struct culprit t;
        begin(&t, *state, &exact_levels[l]);
        for (int i = 0; i < PARAMS; i++) accuse(&t, i);
        assert_int_equal(cairn_optimizer_skipped(t.adam), PARAMS);
        end(&t);
    }
}

static void all_of_200_parameters_are_counted_when_they_overflow(void **state) {
    struct culprit t;
    struct amp_overflow told[PARAMS];
    size_t found = 0;
    begin(&t, *state, &exact_levels[3]);
    t.plant.target = -2;
    t.plant.value = INFINITY;
    log_text[0] = '\0';
    cairn_zero_grad(t.adam);
    OK(amp_backward(t.amp, cairn_module_forward(t.model, t.x), t.adam));
    OK(cairn_step(t.adam));
    OK(amp_last_overflow(t.amp, t.adam, told, PARAMS, &found));
    assert_int_equal(found, PARAMS);
    for (int i = 0; i < PARAMS; i++) assert_string_equal(told[i].name, cairn_module_params(t.model)->params[i]->name);
    assert_non_null(strstr(log_text, "layer0.weight (1 inf of 3), layer1.weight (1 inf of 3)"));
    assert_non_null(strstr(log_text, " more"));
    end(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_of_200_parameters_is_named_when_it_overflows),
        cmocka_unit_test(all_of_200_parameters_are_counted_when_they_overflow),
    };
    return cmocka_run_group_tests(tests, make_env, end_env);
}
