/* Checkpoints that do not quite match the program's objects: a failed load changes nothing, and objects that program or
 * checkpoint may lack are left unchanged. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "../one_env.h"
#include "folder.h"

enum { IN = 3, OUT = 2 };

struct program {
    cairn_module *net;
    cairn_optimizer *adam;
    cairn_sampler *sampler;
    cairn_state *state;
};

static struct program begin(cairn_env *env, uint64_t sampler_seed) {
    struct program p = {.net = cairn_linear(env, IN, OUT)};
    assert_non_null(p.net);
    OK(cairn_adam_create(cairn_module_params(p.net), NULL, &p.adam));
    OK(cairn_sampler_create(10, cairn_sampler_options(.seed = sampler_seed), &p.sampler));
    OK(cairn_state_create(env, &p.state));
    OK(cairn_state_add(p.state, "model", cairn_module_stateful(p.net)));
    OK(cairn_state_add(p.state, "optimizer", cairn_optimizer_stateful(p.adam)));
    OK(cairn_state_add(p.state, "data", cairn_sampler_stateful(p.sampler)));
    return p;
}

static void end(struct program *p) {
    cairn_state_destroy(&p->state);
    cairn_sampler_destroy(&p->sampler);
    cairn_optimizer_destroy(&p->adam);
    cairn_module_destroy(&p->net);
}

static void step(cairn_env *env, struct program *p) {
    cairn_zero_grad(p->adam);
    cairn_tensor *x = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(4, IN));
    OK(cairn_backward(cairn_mean(cairn_module_forward(p->net, x))));
    OK(cairn_step(p->adam));
    cairn_tensor_destroy(&x);
}

static void read_weights(const struct program *p, float w[IN * OUT]) {
    OK(cairn_tensor_read(cairn_module_get(p->net, "weight"), w, IN * OUT));
}

static void a_module_under_two_names_is_saved_and_loaded_under_both(void **state) {
    struct program p = begin(*state, 1);
    float before[IN * OUT], after[IN * OUT];
    int64_t got = 0;
    OK(cairn_state_add(p.state, "again", cairn_module_stateful(p.net)));
    OK(cairn_state_add(p.state, "set", cairn_param_set_stateful(cairn_module_params(p.net))));
    OK(cairn_param_set_require_grad(cairn_module_params(p.net), "bias", CAIRN_OFF));
    read_weights(&p, before);
    OK(cairn_state_save(p.state, folder, 1, NULL));
    OK(cairn_param_set_require_grad(cairn_module_params(p.net), "bias", CAIRN_ON));
    step(*state, &p);
    OK(cairn_state_load_latest(p.state, folder, NULL, &got));
    read_weights(&p, after);
    assert_memory_equal(before, after, sizeof(before));
    assert_false(cairn_param_requires_grad(cairn_module_params(p.net), 1));
    end(&p);
}

static void schedules_and_plateaus_that_the_program_lacks_are_left(void **state) {
    struct program p = begin(*state, 1);
    struct cairn_plateau_options plateau = CAIRN_PLATEAU_OPTIONS_INIT;
    int64_t got = 0;
    OK(cairn_optimizer_set_schedule(p.adam, cairn_cosine_schedule(.total_steps = 10)));
    OK(cairn_optimizer_set_plateau(p.adam, &plateau));
    step(*state, &p);
    OK(cairn_state_save(p.state, folder, 1, NULL));
    end(&p);
    p = begin(*state, 1);
    OK(cairn_state_load_latest(p.state, folder, NULL, &got));
    assert_int_equal(cairn_optimizer_steps(p.adam), 1);
    OK(cairn_state_save(p.state, folder, 2, NULL));
    end(&p);
    p = begin(*state, 1); /* and the other way round */
    OK(cairn_optimizer_set_schedule(p.adam, cairn_cosine_schedule(.total_steps = 10)));
    OK(cairn_state_load_latest(p.state, folder, NULL, &got));
    assert_int_equal(got, 2);
    step(*state, &p);
    end(&p);
}

static void a_sampler_that_does_not_fit_changes_no_weight(void **state) {
    struct program p = begin(*state, 1);
    float before[IN * OUT], after[IN * OUT];
    int64_t got = 0;
    step(*state, &p);
    OK(cairn_state_save(p.state, folder, 1, NULL));
    end(&p);
    p = begin(*state, 2);
    read_weights(&p, before);
    REFUSED(cairn_state_load_latest(p.state, folder, NULL, &got), CAIRN_EINVAL,
            "it was saved with seed 1, and has seed 2");
    assert_null(strstr(cairn_last_error(), "undefined"));
    read_weights(&p, after);
    assert_memory_equal(before, after, sizeof(before));
    assert_int_equal(cairn_optimizer_steps(p.adam), 0);
    end(&p);
}

static void a_pending_gradient_is_refused_by_save_and_load(void **state) {
    struct program p = begin(*state, 1);
    int64_t got = 0;
    OK(cairn_state_save(p.state, folder, 1, NULL));
    cairn_tensor *x = cairn_randn(*state, CAIRN_F32, CAIRN_SHAPE(4, IN));
    OK(cairn_backward(cairn_mean(cairn_module_forward(p.net, x))));
    REFUSED(cairn_state_save(p.state, folder, 2, NULL), CAIRN_ESTATE, "weight");
    REFUSED(cairn_state_load_latest(p.state, folder, NULL, &got), CAIRN_ESTATE, "weight");
    cairn_zero_grad(p.adam);
    OK(cairn_state_load_latest(p.state, folder, NULL, &got));
    assert_int_equal(got, 1);
    cairn_tensor_destroy(&x);
    end(&p);
}

static int begin_test(void **state) {
    return make_env(state) || make_folder(NULL);
}

static int end_test(void **state) {
    return remove_folder(NULL) || end_env(state);
}

int main(void) {
#define T(name) cmocka_unit_test_setup_teardown(name, begin_test, end_test)
    const struct CMUnitTest tests[] = {
        T(a_module_under_two_names_is_saved_and_loaded_under_both),
        T(schedules_and_plateaus_that_the_program_lacks_are_left),
        T(a_sampler_that_does_not_fit_changes_no_weight),
        T(a_pending_gradient_is_refused_by_save_and_load),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
