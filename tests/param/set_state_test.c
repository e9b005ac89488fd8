/* The state that a parameter set saves, and when saving is an error. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "../mlp.h"
#include "../one_env.h"
#include "../state_in_memory.h"

struct model {
    cairn_module *net;
    cairn_optimizer *sgd;
    cairn_param_set *set;
    cairn_tensor *x;
};

static void begin(struct model *m, cairn_env *env) {
    cairn_manual_seed(env, 3);
    m->x = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(4, 3));
    m->net = make_mlp(env, 3, 5, 2);
    m->set = cairn_module_params(m->net);
    OK(cairn_sgd_create(m->set, NULL, &m->sgd));
}

static void end(struct model *m) {
    cairn_optimizer_destroy(&m->sgd);
    cairn_module_destroy(&m->net);
    cairn_tensor_destroy(&m->x);
}

static cairn_tensor *loss_of(struct model *m) {
    return cairn_mean(cairn_module_forward(m->net, m->x));
}

/* Empty where it is not refused. */
static const char *refusal(const cairn_stateful *of) {
    struct cairn__entries entries = {.env = state_env(of), .object = "model"};
    const cairn_status st = of->ops->list(of->object, &entries);
    cairn__entries_clear(&entries);
    if (st == CAIRN_OK) return "";
    assert_int_equal(st, CAIRN_ESTATE);
    return cairn_last_error();
}

static void weights_come_back_under_their_names(void **state) {
    struct model m;
    struct kept_state kept = {.count = 0}, again = {.count = 0};
    begin(&m, *state);
    const cairn_stateful of = cairn_param_set_stateful(m.set);
    CALM(keep_state(&kept, &of, 1));
    assert_int_equal(kept.objects[0].entries.count, 5);
    assert_non_null(cairn__entries_find(&kept.objects[0].entries, "0.weight"));
    assert_non_null(cairn__entries_find(&kept.objects[0].entries, "2.bias"));
    const uint64_t version = m.set->params[0]->version;
    for (size_t i = 0; i < m.set->count; i++) memset(m.set->params[i]->data, 0, m.set->params[i]->n * sizeof(float));
    CALM(bring_back(&kept, &of, 1));
    assert_true(m.set->params[0]->version > version); /* casts are made anew */
    CALM(keep_state(&again, &of, 1));
    CALM(same_states(&kept, &again));
    drop_state(&kept);
    drop_state(&again);
    end(&m);
}

static void half_weights_are_rounded_from_their_masters(void **state) {
    struct model m;
    struct kept_state kept = {.count = 0};
    begin(&m, *state);
    cairn_optimizer_destroy(&m.sgd);
    OK(cairn__param_set_to_half(m.set, CAIRN_BF16, true, false));
    const cairn_stateful of = cairn_param_set_stateful(m.set);
    struct cairn__param *p = m.set->params[0];
    uint16_t *half = p->data;
    const uint16_t was = half[1];
    CALM(keep_state(&kept, &of, 1));
    const struct cairn__entry *e = cairn__entries_find(&kept.objects[0].entries, "0.weight");
    assert_int_equal(e->dtype, CAIRN_F32);
    assert_ptr_equal(e->memory, p->master);
    p->master[1] = 77;
    half[1] = 0x1234;
    CALM(bring_back(&kept, &of, 1));
    assert_int_equal(half[1], was);
    drop_state(&kept);
    end(&m);
}

static void what_is_frozen_comes_back(void **state) {
    struct model m;
    struct kept_state kept = {.count = 0};
    begin(&m, *state);
    const cairn_stateful of = cairn_param_set_stateful(m.set);
    OK(cairn_param_set_require_grad(m.set, "0.*", 0));
    CALM(keep_state(&kept, &of, 1));
    OK(cairn_param_set_require_grad(m.set, "0.*", 1));
    OK(cairn_param_require_grad(m.set, 3, 0));
    CALM(bring_back(&kept, &of, 1));
    for (size_t i = 0; i < m.set->count; i++) assert_int_equal(cairn_param_requires_grad(m.set, i), i >= 2);
    drop_state(&kept);
    end(&m);
}

static void a_gradient_that_no_step_has_used_is_refused(void **state) {
    struct model m;
    struct kept_state kept = {.count = 0};
    begin(&m, *state);
    const cairn_stateful of = cairn_param_set_stateful(m.set);
    assert_string_equal(refusal(&of), "");
    OK(cairn_backward(loss_of(&m)));
    assert_non_null(strstr(refusal(&of), "parameter '0.weight' has a gradient that no step has used"));
    SAYS("cairn_step or cairn_zero_grad");
    OK(cairn_step(m.sgd));
    assert_string_equal(refusal(&of), "");
    OK(cairn_backward(loss_of(&m))); /* accumulates */
    assert_non_null(strstr(refusal(&of), "that no step has used"));
    cairn_zero_grad(m.sgd);
    assert_string_equal(refusal(&of), "");
    OK(cairn_backward(loss_of(&m)));
    OK(cairn_step(m.sgd));
    CALM(keep_state(&kept, &of, 1));
    assert_true(cairn__param_set_has_gradients(m.set));
    CALM(bring_back(&kept, &of, 1));
    assert_false(cairn__param_set_has_gradients(m.set)); /* a further step applies none */
    drop_state(&kept);
    end(&m);
}

static void a_gradient_without_an_optimizer_is_refused(void **state) {
    struct model m;
    begin(&m, *state);
    const cairn_stateful of = cairn_param_set_stateful(m.set);
    cairn_optimizer_destroy(&m.sgd);
    OK(cairn_backward(loss_of(&m)));
    assert_non_null(strstr(refusal(&of), "no optimizer that uses it"));
    cairn_param_set_zero_grad(m.set);
    assert_string_equal(refusal(&of), "");
    end(&m);
}

static void an_unsynced_gradient_is_refused(void **state) {
    struct model m;
    begin(&m, *state);
    const cairn_stateful of = cairn_param_set_stateful(m.set);
    OK(cairn__param_set_keep_unsynced(m.set, true));
    OK(cairn_backward(loss_of(&m)));
    assert_non_null(strstr(refusal(&of), "of ddp_no_sync that is unsynced"));
    OK(cairn__param_set_keep_unsynced(m.set, false));
    OK(cairn_backward(loss_of(&m)));
    OK(cairn_step(m.sgd));
    assert_string_equal(refusal(&of), "");
    end(&m);
}

static const cairn_stateful *within;
static char said_within[256];

static cairn_status hear_progress(void *ctx) {
    (void)ctx;
    if (!said_within[0]) snprintf(said_within, sizeof(said_within), "%s", refusal(within));
    return CAIRN_OK;
}

static cairn_status hear_settle(void *ctx) {
    (void)ctx;
    return CAIRN_OK;
}

static void hear_failed(void *ctx) {
    (void)ctx;
}

static void hear_ready(void *ctx, size_t index) {
    (void)ctx, (void)index;
}

static void a_state_within_a_backward_is_refused(void **state) {
    struct model m;
    begin(&m, *state);
    const cairn_stateful of = cairn_param_set_stateful(m.set);
    const struct cairn__grad_listener listener = {.ready = hear_ready,
                                                  .progress = hear_progress,
                                                  .settle = hear_settle,
                                                  .failed = hear_failed};
    within = &of;
    cairn__param_set_begin_listen(m.set, &listener, "the test");
    OK(cairn_backward(loss_of(&m)));
    cairn__param_set_end_listen(m.set);
    assert_non_null(strstr(said_within, "a backward is running"));
    end(&m);
}

static void a_state_of_a_scaled_loss_is_refused(void **state) {
    struct model m;
    cairn_env *env = *state;
    amp_scaler *scaler = NULL;
    begin(&m, env);
    const cairn_stateful of = cairn_param_set_stateful(m.set);
    OK(amp_scaler_create(env, NULL, &scaler));
    OK(cairn_backward(amp_scaler_scale(scaler, loss_of(&m))));
    cairn_param_set_zero_grad(m.set);
    assert_non_null(strstr(refusal(&of), "scaled losses wait for their step, 1 of them"));
    OK(cairn_backward(amp_scaler_scale(scaler, loss_of(&m))));
    OK(amp_scaler_step(scaler, m.sgd, NULL));
    assert_non_null(strstr(refusal(&of), "scaled losses wait for their step, 2 of them"));
    OK(amp_scaler_update(scaler));
    assert_string_equal(refusal(&of), "");
    env->open_losses = 1;
    assert_non_null(strstr(refusal(&of), "amp_scale_loss_end"));
    env->open_losses = 0;
    env->device->capturing = true;
    assert_non_null(strstr(refusal(&of), "save and load between replays"));
    env->device->capturing = false;
    end(&m);
    amp_scaler_destroy(&scaler);
}

static void a_parameter_of_that_name_is_refused(void **state) {
    float data[2] = {0};
    const cairn_param given = {.name = "requires_grad", .data = data, .dtype = CAIRN_F32, .ndim = 1, .shape = {2}};
    cairn_param_set *set = NULL;
    struct cairn__entries entries = {.env = *state};
    OK(cairn_param_set_create(*state, &given, 1, &set));
    const cairn_stateful of = cairn_param_set_stateful(set);
    REFUSED(of.ops->list(of.object, &entries), CAIRN_EINVAL, "a parameter is called 'requires_grad'");
    cairn__entries_clear(&entries);
    cairn_param_set_destroy(&set);
}

static void random_streams_go_on_where_they_were(void **state) {
    cairn_env *env = *state;
    struct kept_state kept = {.count = 0};
    float first[8], second[8];
    const cairn_stateful of = cairn__env_stateful(env);
    cairn_manual_seed(env, 11);
    cairn_tensor *x = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(8));
    CALM(keep_state(&kept, &of, 1));
    cairn_tensor *a = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(8));
    cairn_manual_seed(env, 12);
    CALM(bring_back(&kept, &of, 1));
    cairn_tensor *b = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(8));
    OK(cairn_tensor_read(a, first, 8));
    OK(cairn_tensor_read(b, second, 8));
    assert_memory_equal(first, second, sizeof(first));
    drop_state(&kept);
    cairn_tensor_destroy(&x);
    cairn_tensor_destroy(&a);
    cairn_tensor_destroy(&b);
}

static void a_random_stream_that_cannot_be_is_refused_before_anything_changes(void **state) {
    cairn_env *env = *state;
    struct kept_state kept = {.count = 0};
    struct cairn__entries entries = {.env = env, .has = kept_has};
    const cairn_stateful of = cairn__env_stateful(env);
    CALM(keep_state(&kept, &of, 1));
    OK(of.ops->list(of.object, &entries));
    OK(of.ops->check(of.object, &entries));
    cairn__entries_find(&entries, "next_stream")->number.i64 = (int64_t)1 << 48;
    REFUSED(of.ops->check(of.object, &entries), CAIRN_EINVAL, "next_stream is 281474976710656");
    cairn__entries_clear(&entries);
    drop_state(&kept);
}

/* So many that the test would time out if each were compared with all. */
static void entries_are_found_by_name(void **state) {
    enum { MANY = 200000 };
    struct cairn__entries entries = {.env = *state};
    assert_null(cairn__entries_find(&entries, "groups.0.lr"));
    for (int i = 0; i < MANY; i++) OK(cairn__entries_add_i64(&entries, CAIRN__ENTRY_SHARED, i, "groups.%d.lr", i));
    for (int i = 0; i < MANY; i++) assert_int_equal(cairn__entries_i64(&entries, "groups.%d.lr", i), i);
    OK(cairn__entries_add_i64(&entries, CAIRN__ENTRY_SHARED, -1, "groups.7.lr"));
    assert_int_equal(cairn__entries_i64(&entries, "groups.7.lr"), 7); /* the first of two */
    assert_null(cairn__entries_find(&entries, "groups.200000.lr"));
    cairn__entries_clear(&entries);
    assert_null(cairn__entries_find(&entries, "groups.0.lr"));
    OK(cairn__entries_add_i64(&entries, CAIRN__ENTRY_SHARED, 5, "a"));
    assert_int_equal(cairn__entries_i64(&entries, "a"), 5);
    cairn__entries_clear(&entries);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weights_come_back_under_their_names),
        cmocka_unit_test(half_weights_are_rounded_from_their_masters),
        cmocka_unit_test(what_is_frozen_comes_back),
        cmocka_unit_test(a_gradient_that_no_step_has_used_is_refused),
        cmocka_unit_test(a_gradient_without_an_optimizer_is_refused),
        cmocka_unit_test(an_unsynced_gradient_is_refused),
        cmocka_unit_test(a_state_within_a_backward_is_refused),
        cmocka_unit_test(a_state_of_a_scaled_loss_is_refused),
        cmocka_unit_test(a_parameter_of_that_name_is_refused),
        cmocka_unit_test(random_streams_go_on_where_they_were),
        cmocka_unit_test(a_random_stream_that_cannot_be_is_refused_before_anything_changes),
        cmocka_unit_test(entries_are_found_by_name),
    };
    return cmocka_run_group_tests(tests, make_env, end_env);
}
