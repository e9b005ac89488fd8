/* The state that amp saves, and when saving is an error: single facts, and user-owned buffers.
 * tests/train/resume_test.c tests whole trainings. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "logged_env.h"
#include "../mlp.h"
#include "../on_gpu.h"
#include "../state_in_memory.h"

/* ---- buffers of the user's own ---- */

enum { N = 6, STEPS = 40, AT = 17 };

struct own {
    cairn_param_set *set;
    cairn_optimizer *adam; /* NULL: the user updates */
    amp_context *amp;
    float w[2][N], g[2][N];
    cairn_stateful parts[3];
    size_t num_parts;
};

static void begin_own(struct own *t, cairn_env *env, amp_opt_level level, bool by_user) {
    memset(t, 0, sizeof(*t));
    for (int i = 0; i < N; i++) t->w[0][i] = (float)i / 7, t->w[1][i] = 1 - (float)i / 3;
    const cairn_param given[] = {
        {.name = "a", .data = t->w[0], .grad = t->g[0], .dtype = CAIRN_F32, .ndim = 1, .shape = {N}},
        {.name = "b", .data = t->w[1], .grad = t->g[1], .dtype = CAIRN_F32, .ndim = 2, .shape = {2, N / 2}}};
    OK(cairn_param_set_create(env, given, 2, &t->set));
    if (!by_user) OK(cairn_adam_create(t->set, NULL, &t->adam));
    OK(amp_initialize_params(env, t->set, t->adam,
                             amp_options(.opt_level = level,
                                         .scaler = amp_scaler_options(.kind = AMP_SCALER_APEX, .init_scale = 64,
                                                                      .growth_interval = 6)),
                             &t->amp));
    t->parts[t->num_parts++] = cairn_param_set_stateful(t->set);
    t->parts[t->num_parts++] = amp_stateful(t->amp);
    if (t->adam) t->parts[t->num_parts++] = cairn_optimizer_stateful(t->adam);
}

static void end_own(struct own *t) {
    amp_destroy(&t->amp);
    cairn_optimizer_destroy(&t->adam);
    cairn_param_set_destroy(&t->set);
}

static void update(struct own *t) {
    int skip = 0;
    OK(amp_begin_step(t->amp, &skip));
    for (size_t p = 0; p < 2 && !skip; p++) {
        float *master = cairn_param_master(t->set, p);
        for (int i = 0; i < N; i++) master[i] -= 0.01f * t->g[p][i];
    }
    OK(amp_end_step(t->amp));
}

static void step_own(struct own *t, int step) {
    const double scale = amp_next_scale(t->amp);
    for (int p = 0; p < 2; p++) {
        for (int i = 0; i < N; i++) t->g[p][i] = (float)(scale * ((double)t->w[p][i] - sin(step + i)));
    }
    if (step == AT - 1 || step == AT) t->g[1][2] = INFINITY;
    OK(cairn_grads_ready(t->set, 0, 2));
    if (t->adam) {
        OK(cairn_step(t->adam));
    } else {
        update(t);
    }
}

static void buffers_of_the_users_own_go_on_to_the_bit(void **state) {
    NOT_ON_A_GPU("these buffers are the host's");
    static const amp_opt_level levels[] = {AMP_O0, AMP_O2, AMP_O3};
    for (int k = 0; k < 6; k++) {
        struct own whole, rest;
        struct kept_state at = {.count = 0}, want = {.count = 0}, got = {.count = 0};
        begin_own(&whole, *state, levels[k / 2], k % 2);
        for (int i = 0; i < STEPS; i++) {
            if (i == AT) CALM(keep_state(&at, whole.parts, whole.num_parts));
            step_own(&whole, i);
        }
        CALM(keep_state(&want, whole.parts, whole.num_parts));
        begin_own(&rest, *state, levels[k / 2], k % 2);
        for (int i = 0; i < k; i++) step_own(&rest, i);
        CALM(bring_back(&at, rest.parts, rest.num_parts));
        for (int i = AT; i < STEPS; i++) step_own(&rest, i);
        CALM(keep_state(&got, rest.parts, rest.num_parts));
        CALM(same_states(&want, &got));
        assert_memory_equal(whole.w, rest.w, sizeof(whole.w));
        end_own(&whole);
        end_own(&rest);
        drop_state(&at);
        drop_state(&want);
        drop_state(&got);
    }
}

/* ---- refusals ---- */

/* "" where it is not refused. */
static const char *refusal(cairn_stateful of) {
    struct cairn__entries entries = {.env = state_env(&of), .object = of.ops->kind};
    const cairn_status st = of.ops->list(of.object, &entries);
    cairn__entries_clear(&entries);
    if (st == CAIRN_OK) return "";
    assert_int_equal(st, CAIRN_ESTATE);
    return cairn_last_error();
}

static void between_the_halves_of_a_step_nothing_is_saved(void **state) {
    NOT_ON_A_GPU("these buffers are the host's");
    struct own t;
    int skip = 0;
    begin_own(&t, *state, AMP_O2, true);
    assert_string_equal(refusal(t.parts[1]), "");
    (void)amp_next_scale(t.amp);
    OK(cairn_grads_ready(t.set, 0, 2));
    assert_non_null(strstr(refusal(t.parts[1]), "parameter 'a' has a gradient that no step has used"));
    OK(amp_begin_step(t.amp, &skip));
    assert_non_null(strstr(refusal(t.parts[1]), "amp_begin_step waits for its amp_end_step"));
    OK(amp_end_step(t.amp));
    assert_string_equal(refusal(t.parts[1]), "");
    end_own(&t);
}

struct nets {
    cairn_module *net;
    cairn_optimizer *o[2];
    amp_context *amp;
    cairn_tensor *x;
};

/* Two optimizers, of the first layer and of the second. */
static void begin(struct nets *t, cairn_env *env, int num_losses, const struct amp_scaler_options *scaler) {
    static const size_t first[] = {0, 1}, second[] = {2, 3};
    log_text[0] = '\0';
    t->x = cairn_randn(env, CAIRN_F32, CAIRN_SHAPE(4, 3));
    t->net = make_mlp(env, 3, 5, 2);
    OK(cairn_sgd_create_over(cairn_module_params(t->net), first, 2, NULL, &t->o[0]));
    OK(cairn_sgd_create_over(cairn_module_params(t->net), second, 2, NULL, &t->o[1]));
    OK(amp_initialize_all(env, CAIRN_MODULES(t->net), CAIRN_OPTIMIZERS(t->o[0], t->o[1]),
                          amp_options(.opt_level = AMP_O1, .num_losses = num_losses, .scaler = scaler), &t->amp));
}

static void end(struct nets *t) {
    amp_destroy(&t->amp);
    cairn_optimizer_destroy(&t->o[0]);
    cairn_optimizer_destroy(&t->o[1]);
    cairn_module_destroy(&t->net);
    cairn_tensor_destroy(&t->x);
}

static cairn_tensor *loss_of(struct nets *t) {
    return cairn_mean(cairn_module_forward(t->net, t->x));
}

static void a_scaled_loss_that_waits_is_refused(void **state) {
    struct nets t;
    cairn_tensor *scaled = NULL;
    begin(&t, *state, 1, NULL);
    OK(amp_scale_loss(t.amp, loss_of(&t), NULL, &scaled));
    assert_non_null(strstr(refusal(amp_stateful(t.amp)), "a scaled loss is open: call amp_scale_loss_end"));
    OK(cairn_backward(scaled));
    OK(amp_scale_loss_end(t.amp));
    assert_non_null(strstr(refusal(amp_stateful(t.amp)), "scaled losses wait for their step, 1 of them"));
    assert_non_null(strstr(refusal(cairn_module_stateful(t.net)), "scaled losses wait for their step, 1 of them"));
    assert_non_null(strstr(refusal(amp_scaler_stateful(amp_scaler_of(t.amp, 0))), "scaled losses wait"));
    OK(cairn_step(t.o[0]));
    assert_non_null(strstr(refusal(amp_stateful(t.amp)), "parameter '2.weight' has a gradient that no step has used"));
    OK(cairn_step(t.o[1]));
    assert_string_equal(refusal(amp_stateful(t.amp)), "");
    end(&t);
}

/* ---- single facts ---- */

static void losses_that_wait_for_an_optimizer_are_kept(void **state) {
    struct nets t, u;
    struct kept_state kept = {.count = 0}, again = {.count = 0};
    begin(&t, *state, 2, NULL);
    OK(amp_backward_with(t.amp, loss_of(&t), amp_loss_options(.loss_id = 1)));
    OK(cairn_step(t.o[0]));
    cairn_optimizer_clear_grads(t.o[1]); /* and no step: its guard still knows of the loss */
    const cairn_stateful of = amp_stateful(t.amp);
    CALM(keep_state(&kept, &of, 1));
    assert_int_equal(cairn__entries_find(&kept.objects[0].entries, "optimizers.0.losses")->number.i64, 0);
    assert_int_equal(cairn__entries_find(&kept.objects[0].entries, "optimizers.1.losses")->number.i64, 2);
    assert_int_equal(cairn__entries_find(&kept.objects[0].entries, "loss_scaler1.updates")->number.i64, 1);
    end(&t);
    begin(&u, *state, 2, NULL);
    const cairn_stateful of_u = amp_stateful(u.amp);
    CALM(bring_back(&kept, &of_u, 1));
    CALM(keep_state(&again, &of_u, 1));
    CALM(same_states(&kept, &again));
    end(&u);
    drop_state(&kept);
    drop_state(&again);
}

static void put_number(struct kept_state *kept, const char *name, int64_t i64, double f64) {
    struct cairn__entry *e = cairn__entries_find(&kept->objects[0].entries, name);
    assert_non_null(e);
    if (e->dtype == CAIRN_I64) {
        e->number.i64 = i64;
    } else {
        e->number.f64 = f64;
    }
}

static void numbers_that_make_no_sense_change_nothing(void **state) {
    static const struct {
        const char *name;
        double value;
        const char *says;
    } wrong[] = {{"loss_scaler1.scale", -2, "scale is -2"},
                 {"loss_scaler1.kind", 9, "kind is 9"},
                 {"loss_scaler1.verdict", 70, "verdict is 70"},
                 {"loss_scaler1.hysteresis", 1e12, "which is too large"},
                 {"num_losses", 3, "saved with 3 loss scalers"},
                 {"shown_loss", 2, "the last one used being 2"},
                 {"optimizers.1.micro_batch", -1, "micro_batch is -1"}};
    struct nets t;
    struct kept_state fresh = {.count = 0}, kept = {.count = 0}, again = {.count = 0};
    begin(&t, *state, 2, NULL);
    const cairn_stateful of = amp_stateful(t.amp);
    CALM(keep_state(&fresh, &of, 1));
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        CALM(keep_state(&kept, &of, 1));
        put_number(&kept, "loss_scaler0.scale", 0, 2); /* would be taken */
        put_number(&kept, wrong[i].name, (int64_t)wrong[i].value, wrong[i].value);
        char *said = bring_back(&kept, &of, 1);
        assert_non_null(said);
        if (!strstr(said, wrong[i].says)) fail_msg("'%s' is not in '%s'", wrong[i].says, said);
        free(said);
        CALM(keep_state(&again, &of, 1));
        CALM(same_states(&fresh, &again));
    }
    end(&t);
    drop_state(&fresh);
    drop_state(&kept);
    drop_state(&again);
}

static void count_in_user(void *ctx, struct amp_scaler_state *s, int found) {
    (void)ctx;
    s->scale *= found ? 0.5 : 1.25;
    s->user[2] += 1.5;
    s->hysteresis_left -= 3;
}

static void a_rule_of_the_users_own_keeps_its_numbers(void **state) {
    const struct amp_scaler_options *how =
        amp_scaler_options(.kind = AMP_SCALER_USER, .init_scale = 8, .update = count_in_user);
    struct nets t, u;
    struct kept_state kept = {.count = 0}, again = {.count = 0};
    begin(&t, *state, 1, how);
    for (int i = 0; i < 3; i++) {
        cairn_zero_grad(t.o[0]);
        cairn_optimizer_clear_grads(t.o[1]);
        OK(amp_backward(t.amp, loss_of(&t), NULL));
        OK(cairn_step(t.o[0]));
        OK(cairn_step(t.o[1]));
    }
    const cairn_stateful of = amp_stateful(t.amp);
    CALM(keep_state(&kept, &of, 1));
    end(&t);
    begin(&u, *state, 1, how);
    const cairn_stateful of_u = amp_stateful(u.amp);
    CALM(bring_back(&kept, &of_u, 1));
    struct amp_scaler_state now = AMP_SCALER_STATE_INIT;
    OK(amp_scaler_get_state(amp_scaler_of(u.amp, 0), &now));
    assert_float_equal(now.user[2], 4.5, 0);
    assert_int_equal(now.hysteresis_left, -8);
    assert_float_equal(amp_scaler_get_scale(amp_scaler_of(u.amp, 0)), 8 * 1.25 * 1.25 * 1.25, 0);
    CALM(keep_state(&again, &of_u, 1));
    CALM(same_states(&kept, &again));
    end(&u);
    begin(&u, *state, 1, NULL);
    const cairn_stateful without = amp_stateful(u.amp);
    char *said = bring_back(&kept, &without, 1);
    assert_non_null(strstr(said, "the kind is user, but the scaler was created without an update function"));
    free(said);
    end(&u);
    drop_state(&kept);
    drop_state(&again);
}

/* Reports of steps before amp_initialize are not the guard's; those after a load are, though of lower numbers. */
static void skipped_steps_are_logged_after_a_load_of_fewer_steps(void **state) {
    struct nets t;
    struct kept_state steps = {.count = 0}, context = {.count = 0};
    begin(&t, *state, 1, NULL);
    amp_destroy(&t.amp);
    const cairn_stateful of = cairn_optimizer_stateful(t.o[0]);
    for (int i = 0; i < 5; i++) {
        if (i == 2) CALM(keep_state(&steps, &of, 1));
        OK(cairn_step(t.o[0]));
    }
    OK(amp_initialize_all(*state, CAIRN_MODULES(t.net), CAIRN_OPTIMIZERS(t.o[0], t.o[1]),
                          amp_options(.opt_level = AMP_O1), &t.amp));
    const cairn_stateful of_amp = amp_stateful(t.amp);
    CALM(keep_state(&context, &of_amp, 1));
    CALM(bring_back(&steps, &of, 1));
    CALM(bring_back(&context, &of_amp, 1));
    OK(amp_backward(t.amp, cairn_mul_scalar(cairn_mul_scalar(loss_of(&t), 1e38), 1e3), NULL));
    OK(cairn_step(t.o[0]));
    assert_non_null(strstr(log_text, "Skipping step"));
    assert_int_equal(cairn_optimizer_steps(t.o[0]), 2);
    assert_int_equal(cairn_optimizer_skipped(t.o[0]), 1);
    end(&t);
    drop_state(&steps);
    drop_state(&context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buffers_of_the_users_own_go_on_to_the_bit),
        cmocka_unit_test(between_the_halves_of_a_step_nothing_is_saved),
        cmocka_unit_test(a_scaled_loss_that_waits_is_refused),
        cmocka_unit_test(losses_that_wait_for_an_optimizer_are_kept),
        cmocka_unit_test(numbers_that_make_no_sense_change_nothing),
        cmocka_unit_test(a_rule_of_the_users_own_keeps_its_numbers),
        cmocka_unit_test(skipped_steps_are_logged_after_a_load_of_fewer_steps),
    };
    return cmocka_run_group_tests(tests, make_env, end_env);
}
