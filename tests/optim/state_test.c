/* The state that an optimizer saves, and when saving is an error: single facts. tests/train/resume_test.c tests whole
 * trainings. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "../one_env.h"
#include "../state_in_memory.h"

struct pair {
    cairn_module *a, *b;
    cairn_optimizer *o;
};

static void step(struct pair *p, cairn_env *env) {
    cairn_tensor *x = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(4, 3));
    cairn_zero_grad(p->o);
    OK(cairn_backward(cairn_mean(cairn_module_forward(p->b, cairn_module_forward(p->a, x)))));
    OK(cairn_step(p->o));
    cairn_tensor_destroy(&x);
}

static void begin(struct pair *p, cairn_env *env) {
    p->a = cairn_linear(env, 3, 4);
    p->b = cairn_linear(env, 4, 2);
    OK(cairn_adam_create(cairn_module_params(p->a), NULL, &p->o));
    OK(cairn_adam_add_group(p->o, cairn_module_params(p->b), NULL, 0, NULL));
}

static void end(struct pair *p) {
    cairn_optimizer_destroy(&p->o);
    cairn_module_destroy(&p->a);
    cairn_module_destroy(&p->b);
}

static void equal_names_in_two_sets_are_distinguished(void **state) {
    struct pair p;
    struct kept_state kept = {.count = 0}, again = {.count = 0};
    begin(&p, *state);
    const cairn_stateful of = cairn_optimizer_stateful(p.o);
    step(&p, *state);
    CALM(keep_state(&kept, &of, 1));
    assert_non_null(cairn__entries_find(&kept.objects[0].entries, "exp_avg.0:weight"));
    assert_non_null(cairn__entries_find(&kept.objects[0].entries, "exp_avg_sq.1:bias"));
    assert_null(cairn__entries_find(&kept.objects[0].entries, "exp_avg.weight"));
    step(&p, *state);
    CALM(bring_back(&kept, &of, 1));
    CALM(keep_state(&again, &of, 1));
    CALM(same_states(&kept, &again));
    drop_state(&kept);
    drop_state(&again);
    end(&p);
}

/* Of the first group, in their order. */
static void expect_group_entries(cairn_optimizer *o, cairn_env *env, const char *names) {
    struct cairn__entries entries = {.env = env};
    char found[500] = "";
    const cairn_stateful of = cairn_optimizer_stateful(o);
    OK(of.ops->list(of.object, &entries));
    for (size_t i = 0; i < entries.count; i++) {
        if (strncmp(entries.at[i].name, "groups.0.", 9) != 0) continue;
        const size_t used = strlen(found);
        snprintf(found + used, sizeof(found) - used, "%s ", entries.at[i].name + 9);
    }
    assert_string_equal(found, names);
    cairn__entries_clear(&entries);
}

/* So that each loads the other's checkpoints: what is newer is saved where it is chosen. */
static void the_usual_optimizers_save_what_those_of_0_8_0_did(void **state) {
    cairn_module *net = cairn_linear(*state, 3, 2);
    struct cairn_sgd_options sgd = CAIRN_SGD_OPTIONS_INIT;
    struct cairn_adam_options amsgrad = CAIRN_ADAM_OPTIONS_INIT;
    cairn_optimizer *o = NULL;
    sgd.momentum = 0.9;
    amsgrad.amsgrad = CAIRN_ON;
    OK(cairn_sgd_create(cairn_module_params(net), &sgd, &o));
    expect_group_entries(o, *state,
                         "params lr momentum dampening weight_decay has_momentum nesterov used_lr used_momentum ");
    cairn_optimizer_destroy(&o);
    OK(cairn_adamw_create(cairn_module_params(net), NULL, &o));
    expect_group_entries(o, *state, "params lr beta1 beta2 eps weight_decay used_lr used_momentum ");
    cairn_optimizer_destroy(&o);
    OK(cairn_adam_create(cairn_module_params(net), &amsgrad, &o));
    expect_group_entries(o, *state, "params lr beta1 beta2 eps weight_decay amsgrad used_lr used_momentum ");
    cairn_optimizer_destroy(&o);
    cairn_module_destroy(&net);
}

static void unused_and_clipped_gradients_are_refused(void **state) {
    struct pair p;
    struct cairn__entries entries = {.env = *state};
    begin(&p, *state);
    const cairn_stateful of = cairn_optimizer_stateful(p.o);
    cairn_tensor *x = cairn_randn(*state, CAIRN_F32, CAIRN_SHAPE(4, 3));
    OK(cairn_backward(cairn_mean(cairn_module_forward(p.a, x))));
    REFUSED(of.ops->list(of.object, &entries), CAIRN_ESTATE, "'weight' has a gradient that no step has used");
    OK(cairn_clip_grad_norm(p.o, 1e-3, NULL));
    OK(cairn_step(p.o));
    OK(of.ops->list(of.object, &entries));
    cairn__entries_clear(&entries);
    OK(cairn_clip_grad_norm(p.o, 1e-3, NULL)); /* of what the step has used, for a further one */
    REFUSED(of.ops->list(of.object, &entries), CAIRN_ESTATE, "clipped gradients");
    cairn_zero_grad(p.o);
    OK(of.ops->list(of.object, &entries));
    cairn__entries_clear(&entries);
    cairn_tensor_destroy(&x);
    end(&p);
}

static void what_is_saved_takes_the_place_of_the_programs_rates(void **state) {
    struct pair p;
    struct kept_state kept = {.count = 0};
    begin(&p, *state);
    const cairn_stateful of = cairn_optimizer_stateful(p.o);
    OK(cairn_optimizer_set_group_lr(p.o, 1, 0.25));
    step(&p, *state);
    CALM(keep_state(&kept, &of, 1));
    OK(cairn_optimizer_set_lr(p.o, 0.5));
    step(&p, *state);
    CALM(bring_back(&kept, &of, 1));
    assert_float_equal(cairn_optimizer_group_lr(p.o, 1), 0.25, 0);
    assert_float_equal(cairn_optimizer_step_lr(p.o, 1), 0.25, 0);
    assert_int_equal(cairn_optimizer_steps(p.o), 1);
    drop_state(&kept);
    end(&p);
}

static void another_schedule_begins_where_the_counters_are(void **state) {
    struct pair p;
    struct kept_state kept = {.count = 0};
    double want = 0;
    begin(&p, *state);
    for (int i = 0; i < 5; i++) step(&p, *state);
    cairn_stateful of = cairn_optimizer_stateful(p.o);
    CALM(keep_state(&kept, &of, 1));
    end(&p);
    begin(&p, *state);
    of = cairn_optimizer_stateful(p.o);
    OK(cairn_optimizer_set_schedule(p.o, cairn_linear_schedule(.total_steps = 20)));
    CALM(bring_back(&kept, &of, 1));
    OK(cairn_schedule_at(cairn_linear_schedule(.total_steps = 20), 1e-3, 5, &want, NULL));
    assert_float_equal(cairn_optimizer_lr(p.o), want, 0);
    drop_state(&kept);
    end(&p);
}

static void a_schedule_goes_on_from_the_step_that_it_began_at(void **state) {
    struct pair p;
    struct kept_state kept = {.count = 0};
    double want = 0;
    begin(&p, *state);
    cairn_stateful of = cairn_optimizer_stateful(p.o);
    for (int i = 0; i < 5; i++) {
        if (i == 3) OK(cairn_optimizer_set_schedule(p.o, cairn_linear_schedule(.total_steps = 20)));
        step(&p, *state);
    }
    CALM(keep_state(&kept, &of, 1));
    end(&p);
    begin(&p, *state);
    of = cairn_optimizer_stateful(p.o);
    OK(cairn_optimizer_set_schedule(p.o, cairn_linear_schedule(.total_steps = 20)));
    CALM(bring_back(&kept, &of, 1));
    OK(cairn_schedule_at(cairn_linear_schedule(.total_steps = 20), 1e-3, 2, &want, NULL));
    assert_float_equal(cairn_optimizer_lr(p.o), want, 0);
    drop_state(&kept);
    end(&p);
}

static void moments_are_made_for_what_has_some_in_the_state(void **state) {
    struct pair p;
    struct kept_state kept = {.count = 0}, again = {.count = 0};
    cairn_optimizer *o = NULL;
    begin(&p, *state);
    cairn_optimizer_destroy(&p.o);
    cairn_param_set *set = cairn_module_params(p.a);
    OK(cairn_sgd_create(cairn_module_params(p.b), NULL, &o)); /* so that a step may use those of b */
    OK(cairn_adam_create(set, NULL, &p.o));
    cairn_stateful of = cairn_optimizer_stateful(p.o);
    step(&p, *state);
    CALM(keep_state(&kept, &of, 1));
    cairn_optimizer_destroy(&p.o);
    OK(cairn_param_set_require_grad(set, "*", 0));
    OK(cairn_adam_create(set, NULL, &p.o));
    of = cairn_optimizer_stateful(p.o);
    CALM(keep_state(&again, &of, 1));
    assert_non_null(cairn__entries_find(&again.objects[0].entries, "waits.weight"));
    assert_null(cairn__entries_find(&again.objects[0].entries, "exp_avg.weight"));
    CALM(bring_back(&kept, &of, 1));
    CALM(keep_state(&again, &of, 1));
    CALM(same_states(&kept, &again));
    cairn_optimizer_destroy(&o);
    drop_state(&kept);
    drop_state(&again);
    end(&p);
}

/* Of a load that fails for these numbers nothing has changed: it is `check` that says so. */
static void refused_before_it_changes(const cairn_stateful *of, struct kept_state *kept, const char *name, double f64,
                                      int64_t i64, const char *words) {
    struct cairn__entry *e = cairn__entries_find(&kept->objects[0].entries, name);
    struct kept_state before = {.count = 0}, after = {.count = 0};
    assert_non_null(e);
    const struct cairn__entry good = *e;
    if (e->dtype == CAIRN_F64) e->number.f64 = f64;
    if (e->dtype == CAIRN_I64) e->number.i64 = i64;
    CALM(keep_state(&before, of, 1));
    char *said = bring_back(kept, of, 1);
    assert_non_null(said);
    if (!strstr(said, words)) fail_msg("%s", said);
    free(said);
    CALM(keep_state(&after, of, 1));
    CALM(same_states(&before, &after));
    e->number = good.number;
    drop_state(&before);
    drop_state(&after);
}

static void hyperparameters_and_counters_are_checked_as_when_they_are_set(void **state) {
    struct pair p;
    struct kept_state kept = {.count = 0};
    cairn_optimizer *sgd = NULL;
    begin(&p, *state);
    OK(cairn_optimizer_set_plateau(p.o, &(struct cairn_plateau_options)CAIRN_PLATEAU_OPTIONS_INIT));
    OK(cairn_optimizer_set_schedule(p.o, cairn_linear_schedule(.total_steps = 20, .first_step = 4)));
    cairn_stateful of = cairn_optimizer_stateful(p.o);
    step(&p, *state);
    CALM(keep_state(&kept, &of, 1));
    step(&p, *state);
    refused_before_it_changes(&of, &kept, "groups.1.beta2", 1, 0, "beta2 is 1; it must be in [0, 1)");
    refused_before_it_changes(&of, &kept, "groups.0.beta1", -0.5, 0, "beta1 is -0.5");
    refused_before_it_changes(&of, &kept, "groups.0.lr", -1, 0, "lr is -1");
    refused_before_it_changes(&of, &kept, "groups.1.eps", -1e-8, 0, "eps is -1e-08");
    refused_before_it_changes(&of, &kept, "groups.1.weight_decay", INFINITY, 0, "weight_decay of group 1 is inf");
    refused_before_it_changes(&of, &kept, "groups.0.schedule_origin", 0, INT64_MIN,
                              "began at step -9223372036854775808");
    refused_before_it_changes(&of, &kept, "plateau.bad", 0, INT64_MAX, "with 9223372036854775807 bad metrics");
    refused_before_it_changes(&of, &kept, "plateau.cooling", 0, -1, "and -1 of cooldown");
    refused_before_it_changes(&of, &kept, "plateau.best", NAN, 0, "the plateau's best is nan");
    refused_before_it_changes(&of, &kept, "steps", 0, INT64_MAX, "must be from 0 to 2^60");
    CALM(bring_back(&kept, &of, 1));
    OK(cairn_optimizer_report_metric(p.o, 1, NULL));
    end(&p);

    p.a = cairn_linear(*state, 3, 4);
    OK(cairn_sgd_create(cairn_module_params(p.a), NULL, &sgd));
    of = cairn_optimizer_stateful(sgd);
    CALM(keep_state(&kept, &of, 1));
    refused_before_it_changes(&of, &kept, "groups.0.momentum", -1, 0, "momentum is -1");
    refused_before_it_changes(&of, &kept, "groups.0.nesterov", 1, 0, "nesterov needs a momentum above 0");
    cairn_optimizer_destroy(&sgd);
    cairn_module_destroy(&p.a);
    drop_state(&kept);
}

static void another_kind_or_group_is_refused(void **state) {
    struct pair p;
    struct kept_state kept = {.count = 0};
    cairn_optimizer *other = NULL;
    struct cairn__entries entries = {.env = *state};
    begin(&p, *state);
    const cairn_stateful of = cairn_optimizer_stateful(p.o);
    CALM(keep_state(&kept, &of, 1));
    struct cairn__entry *groups = cairn__entries_find(&kept.objects[0].entries, "groups.adam");
    groups->number.i64 = 3;
    char *said = bring_back(&kept, &of, 1);
    assert_non_null(strstr(said, "saved with 3 groups of parameters, and has 2"));
    free(said);
    groups->number.i64 = 2;
    cairn__entries_find(&kept.objects[0].entries, "steps")->number.i64 = -1;
    said = bring_back(&kept, &of, 1);
    assert_non_null(strstr(said, "steps -1"));
    free(said);
    CALM(keep_state(&kept, &of, 1));
    const struct cairn__entry *missed = cairn__entries_find(&kept.objects[0].entries, "missed");
    ((int64_t *)kept.objects[0].bytes[missed - kept.objects[0].entries.at])[1] = 7;
    said = bring_back(&kept, &of, 1);
    assert_non_null(strstr(said, "parameter 'bias' has missed 7 steps of 0"));
    free(said);
    cairn_optimizer_destroy(&p.o);
    OK(cairn_sgd_create(cairn_module_params(p.a), NULL, &other));
    const cairn_stateful sgd = cairn_optimizer_stateful(other);
    OK(sgd.ops->list(sgd.object, &entries));
    assert_null(cairn__entries_find(&entries, "groups.adam")); /* so that a load of it lacks an entry */
    cairn__entries_clear(&entries);
    cairn_optimizer_destroy(&other);
    drop_state(&kept);
    end(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equal_names_in_two_sets_are_distinguished),
        cmocka_unit_test(the_usual_optimizers_save_what_those_of_0_8_0_did),
        cmocka_unit_test(unused_and_clipped_gradients_are_refused),
        cmocka_unit_test(what_is_saved_takes_the_place_of_the_programs_rates),
        cmocka_unit_test(another_schedule_begins_where_the_counters_are),
        cmocka_unit_test(a_schedule_goes_on_from_the_step_that_it_began_at),
        cmocka_unit_test(moments_are_made_for_what_has_some_in_the_state),
        cmocka_unit_test(hyperparameters_and_counters_are_checked_as_when_they_are_set),
        cmocka_unit_test(another_kind_or_group_is_refused),
    };
    return cmocka_run_group_tests(tests, make_env, end_env);
}
