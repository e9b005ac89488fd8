/* Loss scalers as objects: created, updated, read, captured in a graph, saved and loaded, as structs and as text. */
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "../nn/test_env.h"
#include "cairn/amp.h"
#include "core/philox.h"
#include "param/param.h"
#include "scaler.h"

static char log_text[4096];

static void keep_log(void *cookie, cairn_log_level level, const char *message) {
    (void)cookie;
    const size_t used = strlen(log_text);
    if (level <= CAIRN_LOG_WARNING) snprintf(log_text + used, sizeof(log_text) - used, "%s\n", message);
}

static amp_scaler *make(cairn_env *env, const struct amp_scaler_options *options) {
    amp_scaler *s = NULL;
    assert_int_equal(amp_scaler_create(env, options, &s), CAIRN_OK);
    return s;
}

/* A step with an overflow or without. The CPU's memory is the device's. */
static cairn_status tell(amp_scaler *s, bool found) {
    s->state->found = found;
    cairn__scaler_add_pending(s);
    cairn__scaler_queue_update(s);
    return cairn__scaler_read_reports(s);
}

static struct amp_scaler_state state_of(const amp_scaler *s) {
    struct amp_scaler_state state = AMP_SCALER_STATE_INIT;
    assert_int_equal(amp_scaler_get_state(s, &state), CAIRN_OK);
    return state;
}

static void assert_same(const struct amp_scaler_state *a, const struct amp_scaler_state *b) {
    assert_int_equal(a->kind, b->kind);
    for (int i = 0; i < CAIRN__SCALER_FIELDS; i++) {
        const struct cairn__scaler_field *f = &cairn__scaler_fields[i];
        const size_t nbytes = f->type == CAIRN__FIELD_INT ? sizeof(int) : sizeof(int64_t);
        assert_memory_equal((const char *)a + f->offset, (const char *)b + f->offset, nbytes);
    }
}

static void assert_fails(cairn_status st, cairn_status want, const char *sentence) {
    assert_int_equal(st, want);
    if (!strstr(cairn_last_error(), sentence)) fail_msg("'%s' is not in '%s'", sentence, cairn_last_error());
}

/* ---- making ---- */

static void keep_scale(void *ctx, struct amp_scaler_state *state, int found) {
    (void)ctx, (void)state, (void)found;
}

static void look_at_statistics(void *ctx, struct amp_scaler_state *state, int found,
                               const struct amp_scaler_statistics *statistics) {
    (void)ctx, (void)state, (void)found, (void)statistics;
}

static void a_scaler_begins_with_the_defaults_of_its_kind(void **state) {
    static const struct {
        double init, max, min;
        int interval, hysteresis;
    } want[] = {
        [AMP_SCALER_STATIC] = {1, 0x1p126, 0x1p-126, 2000, 1}, [AMP_SCALER_APEX] = {0x1p16, 0x1p24, 1, 2000, 1},
        [AMP_SCALER_TORCH] = {0x1p16, 0x1p126, 1, 2000, 1},    [AMP_SCALER_DEEPSPEED] = {0x1p16, 0x1p126, 1, 1000, 2},
        [AMP_SCALER_MEGATRON] = {0x1p32, 0x1p126, 1, 1000, 2}, [AMP_SCALER_USER] = {0x1p16, 0x1p126, 1, 2000, 1},
    };
    for (int kind = AMP_SCALER_STATIC; kind <= AMP_SCALER_USER; kind++) {
        amp_scaler *s =
            make(test_env_of(state),
                 amp_scaler_options(.kind = (amp_scaler_kind)kind, .update = kind == AMP_SCALER_USER ? keep_scale : 0));
        const struct amp_scaler_state now = state_of(s);
        assert_true((int)now.kind == kind && now.scale == want[kind].init && now.max_scale == want[kind].max);
        assert_true(now.min_scale == want[kind].min && now.growth_factor == 2 && now.backoff_factor == 0.5);
        assert_true(now.growth_interval == want[kind].interval && now.hysteresis == want[kind].hysteresis);
        assert_true(now.hysteresis_left == now.hysteresis && !now.consecutive_hysteresis && now.last_overflow == -1);
        assert_true(now.updates == 0 && now.growth_tracker == 0 && now.struct_size == sizeof(now));
        assert_true(amp_scaler_get_scale(s) == want[kind].init);
        amp_scaler_destroy(&s);
        assert_null(s);
    }
}

static void logmax_begins_without_a_model(void **state) {
    amp_scaler *s = make(test_env_of(state), amp_scaler_options(.kind = AMP_SCALER_LOGMAX));
    const struct amp_scaler_state now = state_of(s);
    assert_true(now.scale == 1 && now.min_scale == 1 && now.max_scale == 0x1p24);
    assert_true(now.log_max == 16 && now.beta1 == 0.99 && now.beta2 == 0.999 && now.overflow_std_dev == 3.09);
    assert_true(now.x_hat == 0 && now.slow_x_hat == 0 && now.xsquared_hat == 0 && !now.overflow_feeds_power);
    assert_true(now.b1_correction == 1 && now.b2_correction == 1);
    amp_scaler_destroy(&s);
}

static void without_options_a_scaler_is_as_torchs(void **state) {
    amp_scaler *s = make(test_env_of(state), NULL);
    assert_int_equal(state_of(s).kind, AMP_SCALER_TORCH);
    amp_scaler_destroy(&s);
}

static void options_that_make_no_sense_are_refused_with_a_sentence(void **state) {
    const struct {
        struct amp_scaler_options options;
        const char *sentence;
    } bad[] = {
        {{.kind = (amp_scaler_kind)77}, "kind is 77"},
        {{.kind = (amp_scaler_kind)-1}, "kind is -1"},
        {{.init_scale = -2}, "init_scale is -2"},
        {{.init_scale = NAN}, "init_scale is nan"},
        {{.init_scale = 0x1p127}, "from 2^-126 to 2^126"},
        {{.growth_factor = 1}, "growth_factor is 1; it must be a number above 1"},
        {{.growth_factor = INFINITY}, "growth_factor is inf"},
        {{.backoff_factor = 1}, "backoff_factor is 1; it must be a number between 0 and 1"},
        {{.backoff_factor = -0.5}, "backoff_factor is -0.5"},
        {{.growth_interval = -1}, "growth_interval is -1; it must be at least 1"},
        {{.kind = AMP_SCALER_MEGATRON, .hysteresis = -1}, "hysteresis is -1; it must be at least 1"},
        {{.hysteresis = 2}, "a scaler of kind apex has no hysteresis"},
        {{.kind = AMP_SCALER_MEGATRON, .consecutive_hysteresis = CAIRN_ON},
         "consecutive_hysteresis needs kind deepspeed"},
        {{.kind = AMP_SCALER_DEEPSPEED, .consecutive_hysteresis = (cairn_switch)9},
         "must be CAIRN_DEFAULT, CAIRN_ON or CAIRN_OFF"},
        {{.min_scale = 8, .max_scale = 4}, "min_scale is 8, above max_scale"},
        {{.min_scale = 0x1p-140}, "min_scale is"},
        {{.kind = AMP_SCALER_STATIC, .growth_factor = 2}, "a static scale does not change"},
        {{.kind = AMP_SCALER_STATIC, .backoff_factor = 0.5}, "a static scale does not change"},
        {{.kind = AMP_SCALER_STATIC, .growth_interval = 3}, "a static scale does not change"},
        {{.kind = AMP_SCALER_STATIC, .min_scale = 4}, "leave them out, or choose another kind"},
        {{.kind = AMP_SCALER_STATIC, .max_scale = 4}, "leave them out, or choose another kind"},
        {{.kind = AMP_SCALER_USER}, "AMP_SCALER_USER needs an update function; set update"},
        {{.update = keep_scale}, "a scaler of kind apex does not call update"},
        {{.update_by_statistics = look_at_statistics}, "a scaler of kind apex does not call update_by_statistics"},
        {{.kind = AMP_SCALER_USER, .update = keep_scale, .update_by_statistics = look_at_statistics},
         "update and update_by_statistics are both set"},
        {{.kind = AMP_SCALER_LOGMAX, .growth_factor = 2}, "a logmax scaler sets its scale by a model"},
        {{.kind = AMP_SCALER_LOGMAX, .backoff_factor = 0.5}, "a logmax scaler sets its scale by a model"},
        {{.kind = AMP_SCALER_LOGMAX, .growth_interval = 7}, "a logmax scaler sets its scale by a model"},
        {{.kind = AMP_SCALER_LOGMAX, .hysteresis = 2}, "a scaler of kind logmax has no hysteresis"},
        {{.kind = AMP_SCALER_LOGMAX, .log_max = 127}, "log_max is 127; it must be a number from -126 to 126"},
        {{.kind = AMP_SCALER_LOGMAX, .log_max = NAN}, "log_max is nan"},
        {{.kind = AMP_SCALER_LOGMAX, .beta1 = 1}, "beta1 is 1; it must be a number between 0 and 1"},
        {{.kind = AMP_SCALER_LOGMAX, .beta2 = -0.5}, "beta2 is -0.5; it must be a number between 0 and 1"},
        {{.kind = AMP_SCALER_LOGMAX, .overflow_std_dev = -1}, "overflow_std_dev is -1; it must be a finite number"},
        {{.kind = AMP_SCALER_LOGMAX, .overflow_feeds_power = (cairn_switch)9}, "overflow_feeds_power is 9"},
        {{.log_max = 16}, "need kind logmax, but the kind is apex"},
        {{.saturation_share = 0.5}, "saturation_share needs kind histogram, but the kind is apex"},
        {{.saturation_log = 3}, "saturation_log needs kind histogram or update_by_statistics"},
        {{.kind = AMP_SCALER_HISTOGRAM, .saturation_share = 1}, "saturation_share is 1; it must be a number between"},
        {{.kind = AMP_SCALER_HISTOGRAM, .saturation_log = NAN}, "saturation_log is nan"},
        {{.kind = AMP_SCALER_HISTOGRAM, .saturation_log = 127}, "saturation_log is 127; it must be a number from"},
        {{.kind = AMP_SCALER_TORCH, .overflow_feeds_power = CAIRN_ON}, "need kind logmax, but the kind is torch"},
    };
    amp_scaler *s = NULL;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct amp_scaler_options options = bad[i].options;
        options.struct_size = sizeof(options);
        assert_fails(amp_scaler_create(test_env_of(state), &options, &s), CAIRN_EINVAL, bad[i].sentence);
        assert_null(s);
    }
}

static void null_arguments_are_refused(void **state) {
    amp_scaler *s = NULL;
    struct amp_scaler_state now = AMP_SCALER_STATE_INIT, unset = {0};
    assert_fails(amp_scaler_create(NULL, NULL, &s), CAIRN_EINVAL, "env is NULL");
    assert_fails(amp_scaler_create(test_env_of(state), NULL, NULL), CAIRN_EINVAL, "out is NULL");
    assert_true(isnan(amp_scaler_get_scale(NULL)));
    assert_int_equal(amp_scaler_recorded(NULL), 0);
    assert_int_equal(amp_scaler_get_state(NULL, &now), CAIRN_EINVAL);
    assert_int_equal(amp_scaler_set_state(NULL, &now), CAIRN_EINVAL);
    assert_int_equal(amp_scaler_record(NULL, NULL, 0), CAIRN_EINVAL);
    amp_scaler_destroy(NULL);
    amp_scaler_destroy(&s);
    s = make(test_env_of(state), NULL);
    assert_int_equal(amp_scaler_get_state(s, NULL), CAIRN_EINVAL);
    assert_fails(amp_scaler_get_state(s, &unset), CAIRN_EINVAL, "begin with AMP_SCALER_STATE_INIT");
    assert_int_equal(amp_scaler_set_state(s, NULL), CAIRN_EINVAL);
    amp_scaler_destroy(&s);
}

static void what_a_context_owns_is_not_destroyed(void **state) {
    amp_scaler *s = make(test_env_of(state), NULL), *handle = s;
    s->is_own = false;
    amp_scaler_destroy(&handle);
    assert_null(handle);
    assert_true(amp_scaler_get_scale(s) == 0x1p16);
    cairn__scaler_end(&s);
}

/* ---- updates ---- */

static void updates_change_what_a_scaler_reports(void **state) {
    amp_scaler *s = make(test_env_of(state), amp_scaler_options(.growth_interval = 2));
    tell(s, true);
    assert_true(amp_scaler_get_scale(s) == 0x1p15);
    tell(s, false);
    const struct amp_scaler_state now = state_of(s);
    assert_true(now.scale == 0x1p15 && now.growth_tracker == 1 && now.updates == 2 && now.last_overflow == 0);
    tell(s, false);
    assert_true(amp_scaler_get_scale(s) == 0x1p16);
    amp_scaler_destroy(&s);
}

static void reports_are_read_wherever_the_environment_reads_reports(void **state) {
    cairn_env *env = test_env_of(state);
    amp_scaler *a = make(env, NULL), *b = make(env, NULL);
    a->state->found = 1;
    cairn__scaler_queue_update(a);
    assert_int_equal(cairn__env_read_reports(env), CAIRN_OK);
    assert_true(amp_scaler_get_scale(a) == 0x1p15 && amp_scaler_get_scale(b) == 0x1p16);
    amp_scaler_destroy(&a);
    amp_scaler_destroy(&b);
    assert_null(env->readers);
}

static void pending_losses_are_counted_until_the_update_or_the_end(void **state) {
    cairn_env *env = test_env_of(state);
    amp_scaler *s = make(env, NULL);
    env->unstepped = 5; /* others' */
    cairn__scaler_add_pending(s);
    cairn__scaler_add_pending(s);
    assert_int_equal(env->unstepped, 7);
    cairn__scaler_queue_update(s);
    assert_int_equal(env->unstepped, 5);
    cairn__scaler_add_pending(s);
    amp_scaler_destroy(&s);
    assert_int_equal(env->unstepped, 5);
    env->unstepped = 0;
}

/* ---- losses ---- */

static void a_loss_is_multiplied_by_the_scale_and_a_static_1_leaves_it_alone(void **state) {
    cairn_env *env = test_env_of(state);
    amp_scaler *s = make(env, amp_scaler_options(.init_scale = 256)), *one = NULL;
    one = make(env, amp_scaler_options(.kind = AMP_SCALER_STATIC));
    const float three = 3;
    cairn_tensor *x = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(1), &three), *loss = cairn_sum(x);
    assert_true(cairn_tensor_item(cairn__scaler_scale(s, loss, NULL)) == 768);
    assert_ptr_equal(cairn__scaler_scale(one, loss, NULL), loss);
    assert_null(cairn__scaler_scale(one, NULL, NULL));
    assert_null(cairn__scaler_scale(s, NULL, NULL));
    amp_scaler_destroy(&s);
    amp_scaler_destroy(&one);
}

static void a_pending_gradient_is_accumulated_before_its_cell_is_reused(void **state) {
    cairn_env *env = test_env_of(state);
    amp_scaler *s = make(env, amp_scaler_options(.init_scale = 256));
    cairn_module *line = cairn_linear_without_bias(env, 1, 1);
    const float three = 3;
    cairn_tensor *x = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(1, 1), &three);
    const struct cairn__param *weight = cairn_module_params(line)->params[0];
    cairn_tensor *loss = cairn_sum(cairn_module_forward(line, x));
    assert_int_equal(cairn_backward(cairn__scaler_scale(s, loss, NULL)), CAIRN_OK);
    for (int i = 1; i < CAIRN__AMP_CELLS; i++) assert_non_null(cairn__scaler_scale(s, cairn_sum(x), NULL));
    assert_true(cairn__grad_is_written(weight->gradient) &&
                *(const float *)cairn__grad_memory(weight->gradient) == 768);
    assert_non_null(cairn__scaler_scale(s, cairn_sum(x), NULL));
    assert_true(!cairn__grad_is_written(weight->gradient) && cairn__grad_is_accumulated(weight->gradient) &&
                cairn__grad_unscaled_memory(weight->gradient)[0] == 3);
    loss = cairn_sum(cairn_module_forward(line, x));
    assert_int_equal(cairn_backward(cairn__scaler_scale(s, loss, NULL)), CAIRN_OK);
    assert_true(cairn__grad_is_written(weight->gradient));
    amp_scaler_destroy(&s); /* and before the scaler goes */
    assert_true(!cairn__grad_is_written(weight->gradient) && cairn__grad_unscaled_memory(weight->gradient)[0] == 6);
    cairn_module_destroy(&line);
}

/* ---- records ---- */

static void updates_are_recorded_up_to_the_room_there_is(void **state) {
    amp_scaler *s = make(test_env_of(state), amp_scaler_options(.growth_interval = 2));
    struct amp_scaler_update_record records[4] = {{0}};
    tell(s, true);
    assert_int_equal(amp_scaler_record(s, records, 3), CAIRN_OK);
    assert_int_equal(amp_scaler_recorded(s), 0);
    tell(s, true), tell(s, false), tell(s, false), tell(s, false), tell(s, true);
    static const struct amp_scaler_update_record want[4] = {{2, 0x1p14, 0, 1},
                                                            {3, 0x1p14, 1, 0},
                                                            {4, 0x1p15, 0, 0},
                                                            {0, 0, 0, 0}};
    for (int i = 0; i < 4; i++) {
        assert_true(records[i].step == want[i].step && records[i].scale == want[i].scale);
        assert_true(records[i].growth_tracker == want[i].growth_tracker && records[i].found == want[i].found);
    }
    assert_int_equal(amp_scaler_recorded(s), 5);
    assert_int_equal(amp_scaler_record(s, NULL, 0), CAIRN_OK);
    tell(s, true);
    assert_int_equal(amp_scaler_recorded(s), 0);
    assert_int_equal(amp_scaler_record(s, records, 0), CAIRN_EINVAL);
    assert_fails(amp_scaler_record(s, NULL, 3), CAIRN_EINVAL, "set both, or neither to end a recording");
    amp_scaler_destroy(&s);
}

static void a_trace_is_whole_when_a_scaler_ends(void **state) {
    amp_scaler *s = make(test_env_of(state), NULL);
    struct amp_scaler_update_record record = {0};
    assert_int_equal(amp_scaler_record(s, &record, 1), CAIRN_OK);
    cairn__scaler_queue_update(s);
    amp_scaler_destroy(&s);
    assert_int_equal(record.step, 1);
}

/* ---- the user's own rule ---- */

struct thirds {
    int calls;
    double scale_next; /* what is written once, where it is not 0 */
};

/* Three times less on an overflow, half as much more after every second clean step; its counts in user[]. */
static void update_in_thirds(void *ctx, struct amp_scaler_state *state, int found) {
    struct thirds *t = ctx;
    t->calls++;
    state->user[0] += found;
    state->growth_tracker = found ? 0 : state->growth_tracker + 1;
    state->hysteresis_left = 10 * t->calls;
    if (found) state->scale /= 3;
    if (!found && state->growth_tracker % 2 == 0) state->scale *= 1.5;
    if (t->scale_next != 0) state->scale = t->scale_next;
    state->updates = 77, state->max_scale = 1, state->growth_factor = 0; /* are not its to change */
}

static amp_scaler *make_thirds(cairn_env *env, struct thirds *t) {
    return make(env, amp_scaler_options(.kind = AMP_SCALER_USER, .update = update_in_thirds, .ctx = t, .init_scale = 81,
                                        .max_scale = 1000));
}

static void a_rule_of_the_users_own_decides_once_a_step(void **state) {
    struct thirds t = {0};
    amp_scaler *s = make_thirds(test_env_of(state), &t);
    struct amp_scaler_update_record records[3];
    assert_int_equal(amp_scaler_record(s, records, 3), CAIRN_OK);
    assert_int_equal(tell(s, true), CAIRN_OK);
    assert_true(amp_scaler_get_scale(s) == 27 && s->state->scale == 27);
    assert_int_equal(tell(s, false), CAIRN_OK);
    assert_int_equal(tell(s, false), CAIRN_OK);
    const struct amp_scaler_state now = state_of(s);
    assert_true(now.scale == 40.5 && now.growth_tracker == 2 && now.user[0] == 1 && now.hysteresis_left == 30);
    assert_true(now.updates == 3 && now.last_overflow == 0 && now.max_scale == 1000 && now.growth_factor == 2);
    assert_true(records[0].scale == 27 && records[2].scale == 40.5 && records[2].growth_tracker == 2);
    assert_int_equal(t.calls, 3);
    amp_scaler_destroy(&s);
}

static void a_rule_of_the_users_own_is_held_between_floor_and_ceiling(void **state) {
    struct thirds t = {.scale_next = 5000};
    amp_scaler *s = make_thirds(test_env_of(state), &t);
    assert_int_equal(tell(s, false), CAIRN_OK);
    assert_true(amp_scaler_get_scale(s) == 1000);
    t.scale_next = 0.25;
    assert_int_equal(tell(s, true), CAIRN_OK);
    assert_true(amp_scaler_get_scale(s) == 1);
    assert_fails(tell(s, true), CAIRN_ENUMERIC, "at its floor of 1");
    assert_int_equal(tell(s, false), CAIRN_OK);
    amp_scaler_destroy(&s);
}

static void a_user_scale_that_is_no_number_is_refused(void **state) {
    static const double bad[] = {NAN, INFINITY, -1};
    struct thirds t = {0};
    amp_scaler *s = make_thirds(test_env_of(state), &t);
    for (int i = 0; i < 3; i++) {
        t.scale_next = bad[i];
        assert_fails(tell(s, false), CAIRN_EINVAL, "it must be a finite number above 0, so the scale stays 81");
        assert_true(state_of(s).scale == 81 && state_of(s).growth_tracker == 0);
    }
    amp_scaler_destroy(&s);
}

/* ---- states ---- */

static uint32_t number(uint64_t seed, uint64_t i) {
    return cairn__philox(seed, i, 0).word[0];
}

static const struct amp_scaler_options *lively(amp_scaler_kind kind, struct thirds *t) {
    static struct amp_scaler_options o;
    o = (struct amp_scaler_options){.struct_size = sizeof(o), .kind = kind};
    if (kind != AMP_SCALER_STATIC) o.growth_interval = 3, o.growth_factor = 1.1;
    if (kind == AMP_SCALER_USER) o.update = update_in_thirds, o.ctx = t;
    if (kind == AMP_SCALER_DEEPSPEED || kind == AMP_SCALER_MEGATRON) o.hysteresis = 3;
    return &o;
}

/* a runs on; b begins as another and takes a's state over, by `carry`, in the middle. */
static void go_on_alike(cairn_env *env, amp_scaler_kind kind, void (*carry)(amp_scaler *a, amp_scaler *b)) {
    struct thirds ta = {0}, tb = {0};
    amp_scaler *a = make(env, lively(kind, &ta)), *b = make(env, lively(kind, &tb));
    if (kind != AMP_SCALER_USER) {
        amp_scaler_destroy(&b);
        b = make(env, amp_scaler_options(.kind = AMP_SCALER_DEEPSPEED, .hysteresis = 7, .growth_interval = 9));
    }
    for (uint64_t i = 0; i < 137; i++) tell(a, number(1, i) % 4 == 0);
    for (uint64_t i = 0; i < 20; i++) tell(b, number(2, i) % 2 == 0);
    carry(a, b);
    tb.calls = ta.calls;
    for (uint64_t i = 0; i < 500; i++) {
        const struct amp_scaler_state sa = state_of(a), sb = state_of(b);
        assert_same(&sa, &sb);
        assert_true(amp_scaler_get_scale(b) == sa.scale);
        tell(a, number(3, i) % 5 == 0);
        tell(b, number(3, i) % 5 == 0);
    }
    amp_scaler_destroy(&a);
    amp_scaler_destroy(&b);
}

static void carry_struct(amp_scaler *a, amp_scaler *b) {
    const struct amp_scaler_state saved = state_of(a);
    assert_int_equal(amp_scaler_set_state(b, &saved), CAIRN_OK);
}

static void carry_text(amp_scaler *a, amp_scaler *b) {
    char text[2048];
    const int length = cairn__state_write(&a, 1, text, sizeof(text));
    assert_true(length > 0 && length < (int)sizeof(text));
    assert_int_equal(cairn__state_read(&b, 1, text), CAIRN_OK);
}

static void every_kind_continues_alike_from_a_loaded_state(void **state) {
    for (int kind = AMP_SCALER_STATIC; kind <= AMP_SCALER_USER; kind++) {
        go_on_alike(test_env_of(state), (amp_scaler_kind)kind, carry_struct);
        go_on_alike(test_env_of(state), (amp_scaler_kind)kind, carry_text);
    }
}

static void a_state_of_an_earlier_update_continues_from_there(void **state) {
    amp_scaler *s = make(test_env_of(state), NULL);
    struct amp_scaler_update_record record;
    tell(s, false);
    const struct amp_scaler_state early = state_of(s);
    for (int i = 0; i < 40; i++) tell(s, true);
    assert_int_equal(amp_scaler_set_state(s, &early), CAIRN_OK);
    assert_int_equal(amp_scaler_record(s, &record, 1), CAIRN_OK);
    tell(s, true);
    assert_true(record.step == 2 && record.scale == 0x1p15 && amp_scaler_get_scale(s) == 0x1p15);
    amp_scaler_destroy(&s);
}

static void a_state_that_makes_no_sense_is_refused_and_changes_nothing(void **state) {
    amp_scaler *s = make(test_env_of(state), NULL);
    tell(s, true);
    const struct amp_scaler_state good = state_of(s);
    struct amp_scaler_state bad[12];
    for (int i = 0; i < 12; i++) bad[i] = good;
    bad[0].scale = 0, bad[1].growth_factor = 0.5, bad[2].backoff_factor = 2, bad[3].min_scale = -1;
    bad[4].max_scale = 0.5, bad[5].growth_interval = 0, bad[6].growth_tracker = -1, bad[7].updates = -1;
    bad[8].last_overflow = 1, bad[9].hysteresis = 0, bad[10].kind = AMP_SCALER_USER, bad[11].struct_size = 3;
    static const char *const sentence[] = {"scale is 0",        "growth_factor is 0.5", "backoff_factor is 2",
                                           "min_scale is -1",   "min_scale is",         "growth_interval is 0",
                                           "growth_tracker is", "updates is -1",        "last_overflow is 1",
                                           "hysteresis is 0",   "without an update",    "struct_size is 3"};
    for (int i = 0; i < 12; i++) assert_fails(amp_scaler_set_state(s, &bad[i]), CAIRN_EINVAL, sentence[i]);
    const struct amp_scaler_state after = state_of(s);
    assert_same(&after, &good);
    amp_scaler_destroy(&s);
}

static void a_state_is_not_set_between_a_scaled_loss_and_its_step(void **state) {
    amp_scaler *s = make(test_env_of(state), NULL);
    const struct amp_scaler_state fresh = state_of(s);
    cairn__scaler_add_pending(s);
    assert_fails(amp_scaler_set_state(s, &fresh), CAIRN_ESTATE, "were not stepped yet");
    assert_fails(cairn__state_read(&s, 1, "loss_scaler0.scale 4\n"), CAIRN_ESTATE, "were not stepped yet");
    cairn__scaler_queue_update(s);
    assert_int_equal(amp_scaler_set_state(s, &fresh), CAIRN_OK);
    amp_scaler_destroy(&s);
}

static void a_state_is_neither_read_nor_set_while_a_graph_is_recorded(void **state) {
    cairn_env *env = test_env_of(state);
    struct thirds t = {0};
    amp_scaler *s = make_thirds(env, &t);
    struct amp_scaler_state now = state_of(s);
    env->device->capturing = true;
    assert_fails(amp_scaler_set_state(s, &now), CAIRN_ESTATE, "set it between replays");
    assert_int_equal(amp_scaler_get_state(s, &now), CAIRN_ESTATE);
    assert_int_equal(cairn__state_read(&s, 1, ""), CAIRN_ESTATE);
    assert_int_equal(tell(s, true), CAIRN_OK);
    assert_int_equal(t.calls, 0);
    env->device->capturing = false;
    assert_int_equal(cairn__scaler_read_reports(s), CAIRN_OK);
    assert_int_equal(t.calls, 1);
    amp_scaler_destroy(&s);
}

static void a_dynamic_state_is_refused_where_no_step_is_skipped(void **state) {
    cairn_env *env = test_env_of(state);
    cairn_module *m = cairn_linear(env, 2, 2);
    amp_context *amp = NULL;
    assert_int_equal(amp_initialize(env, m, NULL, amp_options(.opt_level = AMP_O3, .verbosity = -1), &amp), CAIRN_OK);
    struct amp_scaler_state s = state_of(amp_scaler_of(amp, 0));
    s.kind = AMP_SCALER_APEX;
    assert_fails(amp_scaler_set_state(amp_scaler_of(amp, 0), &s), CAIRN_EINVAL, "the kind is apex, a dynamic scale");
    assert_fails(amp_load_state_dict(amp, "loss_scaler0.kind torch\n"), CAIRN_EINVAL, "skip_nonfinite=OFF");
    assert_int_equal(amp_load_state_dict(amp, "loss_scaler0.scale 8\n"), CAIRN_OK);
    amp_destroy(&amp);
    cairn_module_destroy(&m);
    m = cairn_linear(env, 2, 2);
    assert_int_equal(amp_initialize(env, m, NULL, amp_options(.enabled = CAIRN_OFF, .verbosity = -1), &amp), CAIRN_OK);
    assert_int_equal(amp_load_state_dict(amp, "loss_scaler0.kind torch\n"), CAIRN_OK);
    amp_destroy(&amp);
    cairn_module_destroy(&m);
}

/* ---- text ---- */

static void a_state_is_written_a_field_a_line(void **state) {
    char text[1024];
    amp_scaler *s = make(test_env_of(state), amp_scaler_options(.growth_factor = 1.1));
    amp_scaler *both[] = {s, s};
    tell(s, true);
    static const char want[] = "loss_scaler0.kind apex\n"
                               "loss_scaler0.scale 32768\n"
                               "loss_scaler0.growth_factor 1.1000000000000001\n"
                               "loss_scaler0.backoff_factor 0.5\n"
                               "loss_scaler0.min_scale 1\n"
                               "loss_scaler0.max_scale 16777216\n"
                               "loss_scaler0.growth_interval 2000\n"
                               "loss_scaler0.growth_tracker 0\n"
                               "loss_scaler0.updates 1\n"
                               "loss_scaler0.last_overflow 0\n"
                               "loss_scaler0.hysteresis 1\n"
                               "loss_scaler0.hysteresis_left 1\n"
                               "loss_scaler0.consecutive_hysteresis 0\n"
                               "loss_scaler0.user[0] 0\n"
                               "loss_scaler0.user[1] 0\n"
                               "loss_scaler0.user[2] 0\n"
                               "loss_scaler0.user[3] 0\n";
    const int length = cairn__state_write(&s, 1, text, sizeof(text));
    assert_string_equal(text, want);
    assert_int_equal(length, sizeof(want) - 1);
    assert_int_equal(cairn__state_write(both, 2, NULL, 0), 2 * length);
    assert_int_equal(cairn__state_write(&s, 1, text, 30), length);
    assert_int_equal(strlen(text), 29);
    assert_memory_equal(text, want, 29);
    assert_int_equal(cairn__state_write(&s, 0, text, sizeof(text)), 0);
    assert_string_equal(text, "");
    assert_int_equal(cairn__state_write(&s, 1, NULL, 5), -1);
    amp_scaler_destroy(&s);
}

static void apexs_own_names_are_read_too(void **state) {
    amp_scaler *s = make(test_env_of(state), amp_scaler_options(0));
    assert_int_equal(cairn__state_read(&s, 1, "loss_scaler0.loss_scale 131072.0\r\n\n  loss_scaler0.unskipped  12"),
                     CAIRN_OK);
    const struct amp_scaler_state now = state_of(s);
    assert_true(now.scale == 131072 && now.growth_tracker == 12 && now.growth_interval == 2000);
    amp_scaler_destroy(&s);
}

static void fields_missing_from_the_text_keep_their_values(void **state) {
    amp_scaler *s = make(test_env_of(state), amp_scaler_options(.kind = AMP_SCALER_MEGATRON, .hysteresis = 5));
    tell(s, true);
    assert_int_equal(cairn__state_read(&s, 1, "loss_scaler0.scale 4\n"), CAIRN_OK);
    const struct amp_scaler_state now = state_of(s);
    assert_true(now.scale == 4 && now.hysteresis_left == 4 && now.updates == 1);
    amp_scaler_destroy(&s);
}

static void text_that_makes_no_sense_is_refused_by_its_line_and_changes_nothing(void **state) {
    static const char *const bad[][2] = {
        {"loss_scaler0.scal 4", "line 2, 'loss_scaler0.scal 4': a loss scaler has no field 'scal'"},
        {"loss_scaler0.scale", "line 2, 'loss_scaler0.scale': a line must be a key and a value"},
        {"loss_scaler0.scale 4 4", "a line must be a key and a value"},
        {"loss_scaler0.scale four", "'four' is not a number"},
        {"loss_scaler0.scale 4x", "'4x' is not a number"},
        {"loss_scaler0.scale 1e400", "scale is inf; it must be a number from 2^-126"},
        {"loss_scaler0.scale nan", "scale is nan"},
        {"loss_scaler0.loss_scale 0.0", "line 2, 'loss_scaler0.loss_scale 0.0': scale is 0"},
        {"loss_scaler0.backoff_factor 1", "backoff_factor is 1; it must be a number between 0 and 1"},
        {"loss_scaler0.growth_interval 1.5", "'1.5' is not an integer"},
        {"loss_scaler0.updates 99999999999999999999", "is not an integer in range"},
        {"loss_scaler0.hysteresis 3000000000", "is not an integer in range"},
        {"loss_scaler0.hysteresis 0", "hysteresis is 0; it must be at least 1"},
        {"loss_scaler0.updates 9223372036854775807", "it must be from 0 to 2^62"},
        {"loss_scaler0.kind adam", "the kind must be static, apex"},
        {"loss_scaler0.kind user", "created without an update function"},
        {"loss_scaler0.max_scale 0.5", "loss_scaler0: min_scale is 1, above max_scale"},
        {"loss_scaler64.scale 4", "a key must be as in 'loss_scaler0.scale', with a number from 0 to 63"},
        {"loss_scaler99999999999999999999.scale 4", "a key must be as in"},
        {"loss_scaler.scale 4", "a key must be as in"},
        {"loss_scaler-1.scale 4", "a key must be as in"},
        {"lr 0.1", "line 2, 'lr 0.1': a key must be as in"},
        {"loss_scaler1.scale -4", "line 2, 'loss_scaler1.scale -4': scale is -4"},
        {"loss_scaler5.scale -4", "scale is -4"},
    };
    amp_scaler *both[] = {make(test_env_of(state), NULL), make(test_env_of(state), NULL)};
    const struct amp_scaler_state before = state_of(both[0]);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        char text[256];
        snprintf(text, sizeof(text), "loss_scaler0.growth_tracker 3\n%s\nloss_scaler1.updates 5\n", bad[i][0]);
        assert_fails(cairn__state_read(both, 2, text), CAIRN_EINVAL, bad[i][1]);
        for (int s = 0; s < 2; s++) {
            const struct amp_scaler_state after = state_of(both[s]);
            assert_same(&after, &before);
        }
    }
    char long_line[400];
    memset(long_line, 'x', sizeof(long_line) - 1);
    long_line[399] = '\0';
    assert_fails(cairn__state_read(both, 2, long_line), CAIRN_EINVAL, "line 1 has 399 characters");
    assert_fails(cairn__state_read(both, 2, "\nloss_scaler0.scale 8\x1b[2J"), CAIRN_EINVAL,
                 "line 2 has bytes that are not printable ASCII");
    assert_fails(cairn__state_read(both, 2, "\xc2\x9b"), CAIRN_EINVAL, "line 1 has bytes that are not printable ASCII");
    assert_fails(cairn__state_read(both, 2, NULL), CAIRN_EINVAL, "text is NULL");
    amp_scaler_destroy(&both[0]);
    amp_scaler_destroy(&both[1]);
}

static void more_or_fewer_scalers_than_losses_are_warned_of(void **state) {
    amp_scaler *both[] = {make(test_env_of(state), NULL), make(test_env_of(state), NULL)};
    cairn_set_log(keep_log, NULL);
    log_text[0] = '\0';
    assert_int_equal(cairn__state_read(both, 2, "loss_scaler1.scale 8\n"), CAIRN_OK);
    assert_non_null(strstr(log_text, "the state has 1 loss scalers, but the context has 2"));
    assert_true(amp_scaler_get_scale(both[0]) == 0x1p16 && amp_scaler_get_scale(both[1]) == 8);
    log_text[0] = '\0';
    assert_int_equal(cairn__state_read(both, 1, "loss_scaler0.scale 4\nloss_scaler63.scale 4\n"), CAIRN_OK);
    assert_non_null(strstr(log_text, "the state has 2 loss scalers, but the context has 1"));
    assert_true(amp_scaler_get_scale(both[0]) == 4);
    log_text[0] = '\0';
    assert_int_equal(cairn__state_read(both, 2, "loss_scaler0.scale 2\nloss_scaler1.scale 2\n"), CAIRN_OK);
    assert_string_equal(log_text, "");
    cairn_set_log(NULL, NULL);
    amp_scaler_destroy(&both[0]);
    amp_scaler_destroy(&both[1]);
}

static void text_has_a_point_whatever_the_programs_locale(void **state) {
    if (!setlocale(LC_NUMERIC, "de_DE.UTF-8")) {
        print_message("no locale with a decimal comma is installed: de_DE.UTF-8\n");
        skip();
    }
    char text[1024];
    amp_scaler *s = make(test_env_of(state), amp_scaler_options(.init_scale = 2.5));
    assert_true(cairn__state_write(&s, 1, text, sizeof(text)) > 0);
    assert_non_null(strstr(text, "scale 2.5\n"));
    assert_int_equal(cairn__state_read(&s, 1, "loss_scaler0.scale 3.25\n"), CAIRN_OK);
    assert_true(amp_scaler_get_scale(s) == 3.25);
    snprintf(text, sizeof(text), "%g", 1.5);
    assert_string_equal(text, "1,5"); /* the program's own is as it was */
    amp_scaler_destroy(&s);
    setlocale(LC_NUMERIC, "C");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        ENV_TEST(a_scaler_begins_with_the_defaults_of_its_kind),
        ENV_TEST(logmax_begins_without_a_model),
        ENV_TEST(without_options_a_scaler_is_as_torchs),
        ENV_TEST(options_that_make_no_sense_are_refused_with_a_sentence),
        ENV_TEST(null_arguments_are_refused),
        ENV_TEST(what_a_context_owns_is_not_destroyed),
        ENV_TEST(updates_change_what_a_scaler_reports),
        ENV_TEST(reports_are_read_wherever_the_environment_reads_reports),
        ENV_TEST(pending_losses_are_counted_until_the_update_or_the_end),
        ENV_TEST(a_loss_is_multiplied_by_the_scale_and_a_static_1_leaves_it_alone),
        ENV_TEST(a_pending_gradient_is_accumulated_before_its_cell_is_reused),
        ENV_TEST(updates_are_recorded_up_to_the_room_there_is),
        ENV_TEST(a_trace_is_whole_when_a_scaler_ends),
        ENV_TEST(a_rule_of_the_users_own_decides_once_a_step),
        ENV_TEST(a_rule_of_the_users_own_is_held_between_floor_and_ceiling),
        ENV_TEST(a_user_scale_that_is_no_number_is_refused),
        ENV_TEST(every_kind_continues_alike_from_a_loaded_state),
        ENV_TEST(a_state_of_an_earlier_update_continues_from_there),
        ENV_TEST(a_state_that_makes_no_sense_is_refused_and_changes_nothing),
        ENV_TEST(a_state_is_not_set_between_a_scaled_loss_and_its_step),
        ENV_TEST(a_state_is_neither_read_nor_set_while_a_graph_is_recorded),
        ENV_TEST(a_dynamic_state_is_refused_where_no_step_is_skipped),
        ENV_TEST(a_state_is_written_a_field_a_line),
        ENV_TEST(apexs_own_names_are_read_too),
        ENV_TEST(fields_missing_from_the_text_keep_their_values),
        ENV_TEST(text_that_makes_no_sense_is_refused_by_its_line_and_changes_nothing),
        ENV_TEST(more_or_fewer_scalers_than_losses_are_warned_of),
        ENV_TEST(text_has_a_point_whatever_the_programs_locale),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
