/* Parameter groups: their own learning rates, fresh moments for groups added later, and every wrong argument. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "../failing_alloc.h"
#include "../one_env.h"
#include "cairn/cairn.h"
#include "core/alloc.h"
#include "param/param.h"

/* ---- two sets of the user's ---- */

enum { N = 3, PARAMS = 3 };

struct sets {
    cairn_env *env;
    float w[2][PARAMS][N], grad[2][PARAMS][N];
    cairn_param_set *set[2];
};

static void make_sets(struct sets *s, cairn_env *env) {
    static const char *const names[] = {"a", "b", "c"};
    memset(s, 0, sizeof(*s));
    s->env = env;
    for (int k = 0; k < 2; k++) {
        cairn_param params[PARAMS];
        for (int p = 0; p < PARAMS; p++) {
            for (int i = 0; i < N; i++) s->w[k][p][i] = (float)(k + p + i) / 4;
            params[p] = (cairn_param){.name = names[p],
                                      .data = s->w[k][p],
                                      .grad = s->grad[k][p],
                                      .dtype = CAIRN_F32,
                                      .ndim = 1,
                                      .shape = {N}};
        }
        OK(cairn_param_set_create(env, params, PARAMS, &s->set[k]));
    }
}

static void drop_sets(struct sets *s) {
    for (int k = 0; k < 2; k++) cairn_param_set_destroy(&s->set[k]);
}

/* Gradients of step t for every parameter. */
static void write_gradients(struct sets *s, int t) {
    for (int k = 0; k < 2; k++) {
        cairn_param_set_zero_grad(s->set[k]);
        for (int p = 0; p < PARAMS; p++) {
            for (int i = 0; i < N; i++) s->grad[k][p][i] = (float)((3 * t + 5 * k + p + i) % 7 - 3);
        }
        OK(cairn_grads_ready(s->set[k], 0, PARAMS));
    }
}

static struct cairn_sgd_options sgd_with(double lr, double momentum) {
    struct cairn_sgd_options h = CAIRN_SGD_OPTIONS_INIT;
    h.lr = lr;
    h.momentum = momentum;
    return h;
}

static const size_t first_only[] = {0}, second_only[] = {1};

/* ---- what groups have of their own ---- */

static void groups_have_learning_rates_of_their_own(void **state) {
    struct sets s;
    cairn_optimizer *o = NULL;
    const struct cairn_sgd_options fast = sgd_with(0.5, 0), slow = sgd_with(0.25, 0);
    make_sets(&s, *state);
    OK(cairn_sgd_create_over(s.set[0], first_only, 1, &fast, &o));
    OK(cairn_sgd_add_group(o, s.set[1], NULL, 0, &slow));
    OK(cairn_sgd_add_group(o, s.set[0], second_only, 1, &slow));
    assert_int_equal(cairn_optimizer_num_groups(o), 3);
    assert_int_equal(cairn_optimizer_num_params(o), 1 + PARAMS + 1);
    assert_true(cairn_optimizer_group_lr(o, 0) == 0.5 && cairn_optimizer_group_lr(o, 2) == 0.25);
    assert_true(isnan(cairn_optimizer_group_lr(o, 3)) && isnan(cairn_optimizer_group_lr(o, -1)));
    assert_int_equal(cairn_optimizer_set_group_lr(o, 3, 1), CAIRN_EINVAL);
    assert_int_equal(cairn_optimizer_set_group_lr(o, 1, -1), CAIRN_EINVAL);
    OK(cairn_optimizer_set_group_lr(o, 1, 2));
    float want[2][PARAMS][N];
    write_gradients(&s, 0);
    for (int k = 0; k < 2; k++) {
        for (int p = 0; p < PARAMS; p++) {
            const float lr = k ? 2.0f : p == 0 ? 0.5f : p == 1 ? 0.25f : 0.0f;
            for (int i = 0; i < N; i++) want[k][p][i] = s.w[k][p][i] - lr * s.grad[k][p][i];
        }
    }
    OK(cairn_step(o));
    assert_memory_equal(s.w, want, sizeof(want));
    OK(cairn_optimizer_set_lr(o, 0.125));
    for (int g = 0; g < 3; g++) assert_true(cairn_optimizer_group_lr(o, g) == 0.125);
    cairn_optimizer_destroy(&o);
    drop_sets(&s);
}

static void masters_come_in_the_order_of_the_groups(void **state) {
    struct sets s;
    cairn_optimizer *o = NULL;
    cairn_param got[5];
    make_sets(&s, *state);
    OK(cairn_sgd_create_over(s.set[0], second_only, 1, NULL, &o));
    OK(cairn_sgd_add_group(o, s.set[1], NULL, 0, NULL));
    OK(cairn_sgd_add_group(o, s.set[0], first_only, 1, NULL));
    write_gradients(&s, 1);
    OK(cairn_optimizer_masters(o, got, 5));
    const float *want[] = {s.w[0][1], s.w[1][0], s.w[1][1], s.w[1][2], s.w[0][0]};
    for (int i = 0; i < 5; i++) assert_ptr_equal(got[i].data, want[i]);
    assert_int_equal(cairn_optimizer_masters(o, got, 4), CAIRN_EINVAL);
    cairn_optimizer_destroy(&o);
    drop_sets(&s);
}

typedef cairn_status create_fn(cairn_param_set *set, const size_t *indices, cairn_optimizer **out);
typedef cairn_status add_fn(cairn_optimizer *o, cairn_param_set *set);

static cairn_status create_sgd(cairn_param_set *set, const size_t *indices, cairn_optimizer **out) {
    const struct cairn_sgd_options h = sgd_with(0.125, 0.5);
    return cairn_sgd_create_over(set, indices, 1, &h, out);
}
static cairn_status add_sgd(cairn_optimizer *o, cairn_param_set *set) {
    const struct cairn_sgd_options h = sgd_with(0.125, 0.5);
    return cairn_sgd_add_group(o, set, first_only, 1, &h);
}
static cairn_status create_adam(cairn_param_set *set, const size_t *indices, cairn_optimizer **out) {
    return cairn_adam_create_over(set, indices, 1, NULL, out);
}
static cairn_status create_adamw(cairn_param_set *set, const size_t *indices, cairn_optimizer **out) {
    const struct cairn_adam_options h = CAIRN_ADAMW_OPTIONS_INIT;
    return cairn_adamw_create_over(set, indices, 1, &h, out);
}
static cairn_status add_adam(cairn_optimizer *o, cairn_param_set *set) {
    return cairn_adam_add_group(o, set, first_only, 1, NULL);
}

/* A group that comes after three steps is updated as by an optimizer that is made then; those before as if it never
 * came. */
static void late_parameters_begin_with_fresh_moments(void **state) {
    static const struct {
        create_fn *create;
        add_fn *add;
    } kinds[] = {{create_sgd, add_sgd}, {create_adam, add_adam}, {create_adamw, add_adam}};
    for (size_t kind = 0; kind < 3; kind++) {
        struct sets grouped, apart;
        cairn_optimizer *o = NULL, *early = NULL, *late = NULL;
        make_sets(&grouped, *state);
        make_sets(&apart, *state);
        OK(kinds[kind].create(grouped.set[0], first_only, &o));
        OK(kinds[kind].create(apart.set[0], first_only, &early));
        for (int t = 0; t < 6; t++) {
            if (t == 3) OK(kinds[kind].add(o, grouped.set[1]));
            if (t == 3) OK(kinds[kind].create(apart.set[1], first_only, &late));
            write_gradients(&grouped, t);
            write_gradients(&apart, t);
            OK(cairn_step(o));
            OK(cairn_step(early));
            if (late) OK(cairn_step(late));
        }
        assert_memory_equal(grouped.w, apart.w, sizeof(grouped.w));
        assert_int_equal(cairn_optimizer_steps(o), 6);
        cairn_optimizer_destroy(&o);
        cairn_optimizer_destroy(&early);
        cairn_optimizer_destroy(&late);
        drop_sets(&grouped);
        drop_sets(&apart);
    }
}

/* ---- what is refused ---- */

static void wrong_groups_are_refused_with_a_message(void **state) {
    static const size_t twice[] = {1, 1}, far[] = {7};
    struct sets s, elsewhere;
    cairn_env *env = NULL;
    cairn_optimizer *o = NULL, *other = NULL, *none = NULL;
    make_sets(&s, *state);
    OK(cairn_env_create(NULL, NULL, NULL, &env));
    make_sets(&elsewhere, env);
    REFUSED(cairn_sgd_create_over(s.set[0], NULL, 1, NULL, &none), CAIRN_EINVAL, "indices is NULL");
    REFUSED(cairn_sgd_create_over(s.set[0], twice, 2, NULL, &none), CAIRN_EINVAL, "'b' is given twice");
    REFUSED(cairn_sgd_create_over(s.set[0], far, 1, NULL, &none), CAIRN_EINVAL,
            "parameter index is 7, but the set has 3 parameters");
    assert_null(none);
    OK(cairn_sgd_create_over(s.set[0], first_only, 1, NULL, &o));
    OK(cairn_sgd_create_over(s.set[0], second_only, 1, NULL, &other));
    REFUSED(cairn_sgd_add_group(o, s.set[0], first_only, 1, NULL), CAIRN_EINVAL, "'a' is given twice");
    REFUSED(cairn_sgd_add_group(o, s.set[0], second_only, 1, NULL), CAIRN_EINVAL,
            "'b' belongs to an optimizer already");
    REFUSED(cairn_sgd_add_group(o, s.set[1], twice, 2, NULL), CAIRN_EINVAL, "'b' is given twice");
    REFUSED(cairn_sgd_add_group(o, s.set[1], far, 1, NULL), CAIRN_EINVAL,
            "parameter index is 7, but the set has 3 parameters");
    REFUSED(cairn_sgd_add_group(o, s.set[1], far, SIZE_MAX, NULL), CAIRN_EINVAL,
            "parameters are given, but the set has 3");
    REFUSED(cairn_sgd_create_over(s.set[1], far, 4, NULL, &none), CAIRN_EINVAL,
            "4 parameters are given, but the set has 3");
    REFUSED(cairn_adam_add_group(o, s.set[1], NULL, 0, NULL), CAIRN_EINVAL, "a group of Adam cannot be added");
    REFUSED(cairn_sgd_add_group(o, elsewhere.set[0], NULL, 0, NULL), CAIRN_EINVAL, "another environment");
    REFUSED(cairn_sgd_add_group(o, NULL, NULL, 0, NULL), CAIRN_EINVAL, "parameter set is NULL");
    REFUSED(cairn_sgd_add_group(NULL, s.set[0], NULL, 0, NULL), CAIRN_EINVAL, "is NULL");
    REFUSED(cairn_adam_add_group(NULL, s.set[0], NULL, 0, NULL), CAIRN_EINVAL, "is NULL");
    assert_int_equal(cairn_optimizer_num_groups(o), 1);
    assert_int_equal(cairn_optimizer_num_params(o), 1);
    OK(cairn_sgd_add_group(o, s.set[1], NULL, 0, NULL)); /* nothing of it was left behind */
    cairn_optimizer_destroy(&o);
    OK(cairn_sgd_create_over(s.set[0], first_only, 1, NULL, &o)); /* free again */
    cairn_optimizer_destroy(&o);
    cairn_optimizer_destroy(&other);
    drop_sets(&elsewhere);
    cairn_env_destroy(&env);
    drop_sets(&s);
}

static cairn_status nothing(void *user) {
    (void)user;
    return CAIRN_OK;
}

/* Its learning rates and counters move with a further group. */
static void captured_optimizer_takes_no_group(void **state) {
    struct sets s;
    cairn_graph *graph = NULL;
    cairn_optimizer *o = NULL, *other = NULL;
    make_sets(&s, *state);
    OK(cairn_sgd_create(s.set[0], NULL, &o));
    OK(cairn_graph_capture(*state, nothing, NULL, &graph));
    REFUSED(cairn_sgd_add_group(o, s.set[1], first_only, 1, NULL), CAIRN_ESTATE, "destroy the graph first");
    OK(cairn_sgd_create(s.set[1], NULL, &other)); /* no graph has it */
    cairn_optimizer_destroy(&other);
    cairn_graph_destroy(&graph);
    OK(cairn_sgd_add_group(o, s.set[1], first_only, 1, NULL));
    cairn_optimizer_destroy(&o);
    drop_sets(&s);
}

/* Each optimizer forgets its own. */
static void incomplete_gradients_are_refused_until_forgotten(void **state) {
    struct sets s;
    cairn_optimizer *o = NULL, *other = NULL;
    make_sets(&s, *state);
    OK(cairn_sgd_create_over(s.set[0], first_only, 1, NULL, &o));
    OK(cairn_sgd_create_over(s.set[0], second_only, 1, NULL, &other));
    write_gradients(&s, 0);
    cairn__param_set_make_incomplete(s.set[0]);
    REFUSED(cairn_step(o), CAIRN_ESTATE, "gradients are incomplete");
    cairn_optimizer_clear_grads(o);
    OK(cairn_grads_ready(s.set[0], 0, 1));
    OK(cairn_step(o));
    REFUSED(cairn_step(other), CAIRN_ESTATE, "gradients are incomplete");
    cairn_zero_grad(other);
    OK(cairn_step(other));
    cairn_optimizer_destroy(&o);
    cairn_optimizer_destroy(&other);
    drop_sets(&s);
}

static void running_out_of_memory_leaves_the_optimizer_as_it_was(void **state) {
    struct sets s;
    cairn_optimizer *o = NULL;
    make_sets(&s, *state);
    OK(create_adam(s.set[0], first_only, &o));
    write_gradients(&s, 0);
    OK(cairn_step(o));
    cairn_status st = CAIRN_ENOMEM;
    int failures = 0;
    for (; st == CAIRN_ENOMEM; failures++) {
        const uint64_t alive = cairn__alloc_counters().alive;
        fail_in = failures + 1;
        st = add_adam(o, s.set[1]);
        fail_in = 0;
        if (st == CAIRN_OK) break;
        assert_int_equal(st, CAIRN_ENOMEM);
        assert_in_range(cairn__alloc_counters().alive, alive, alive + 2); /* the set's flags stay, once made */
        assert_int_equal(cairn_optimizer_num_params(o), 1);
        write_gradients(&s, failures);
        OK(cairn_step(o));
    }
    assert_in_range(failures, 10, 100);
    assert_int_equal(cairn_optimizer_num_params(o), 2);
    write_gradients(&s, 1);
    OK(cairn_step(o));
    cairn_optimizer_destroy(&o);
    drop_sets(&s);
}

static char log_text[1024];

static void keep_log(void *cookie, cairn_log_level level, const char *message) {
    (void)cookie, (void)level;
    snprintf(log_text, sizeof(log_text), "%s", message);
}

static void sets_of_every_group_outlive_the_optimizer(void **state) {
    struct sets s;
    cairn_optimizer *o = NULL;
    make_sets(&s, *state);
    OK(create_sgd(s.set[0], first_only, &o));
    OK(add_sgd(o, s.set[1]));
    cairn_set_log(keep_log, NULL);
    for (int k = 0; k < 2; k++) {
        log_text[0] = '\0';
        cairn_param_set_destroy(&s.set[k]);
        assert_non_null(s.set[k]);
        assert_non_null(strstr(log_text, "use these parameters, which are kept"));
    }
    cairn_set_log(NULL, NULL);
    write_gradients(&s, 0);
    OK(cairn_step(o));
    cairn_optimizer_destroy(&o);
    drop_sets(&s);
    assert_true(!s.set[0] && !s.set[1]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(groups_have_learning_rates_of_their_own),
        cmocka_unit_test(masters_come_in_the_order_of_the_groups),
        cmocka_unit_test(late_parameters_begin_with_fresh_moments),
        cmocka_unit_test(wrong_groups_are_refused_with_a_message),
        cmocka_unit_test(captured_optimizer_takes_no_group),
        cmocka_unit_test(incomplete_gradients_are_refused_until_forgotten),
        cmocka_unit_test(running_out_of_memory_leaves_the_optimizer_as_it_was),
        cmocka_unit_test(sets_of_every_group_outlive_the_optimizer),
    };
    return cmocka_run_group_tests(tests, make_env, end_env);
}
