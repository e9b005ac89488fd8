/* A step calls into amp only twice, counted by trace events: once before the step and once after its report. */
#include <string.h>

#include "core/trace.h"
#include "logged_env.h"
#include "probe.h"

enum { MAX_SPANS = 32, STEPS = 4 };

struct spans {
    struct cairn__event events[MAX_SPANS];
    int count;
};

static void keep(void *cookie, const struct cairn__event *event) {
    struct spans *spans = cookie;
    if (strcmp(event->room, "amp") != 0 || event->begin_ns == event->end_ns) return;
    assert_true(spans->count < MAX_SPANS);
    spans->events[spans->count++] = *event;
}

static bool is_within(const struct cairn__event *inner, const struct cairn__event *outer) {
    return inner != outer && inner->begin_ns >= outer->begin_ns && inner->end_ns <= outer->end_ns;
}

/* The spans that lie in no other: the way from optim into amp. */
static int count_entries(const struct spans *spans, bool *asked, bool *told) {
    int entries = 0;
    *asked = *told = false;
    for (int i = 0; i < spans->count; i++) {
        bool is_inner = false;
        for (int k = 0; k < spans->count; k++) is_inner |= is_within(&spans->events[i], &spans->events[k]);
        entries += !is_inner;
        *asked |= strcmp(spans->events[i].what, "before_step") == 0;
        *told |= strcmp(spans->events[i].what, "after_step") == 0;
    }
    return entries;
}

static void step_counted(cairn_optimizer *optimizer) {
    struct spans spans = {.count = 0};
    bool asked, told;
    cairn__trace_set_sink(keep, &spans);
    OK(cairn_step(optimizer));
    cairn__trace_set_sink(NULL, NULL);
    assert_int_equal(count_entries(&spans, &asked, &told), 2);
    assert_true(asked && told);
}

/* Whatever is to be checked: a loss, several of them, clipping before, an overflow. */
static void a_step_calls_the_guard_once_before_and_once_after(void **state) {
    for (size_t l = 0; l < sizeof(exact_levels) / sizeof(exact_levels[0]); l++) {
        for (int micro = 1; micro <= 2; micro++) {
            for (int clips = 0; clips < 2; clips++) {
                struct probe p;
                probe_begin(&p, *state, &exact_levels[l], amp_options(.loss_scale = 128, .skip_nonfinite = CAIRN_ON));
                for (int t = 0; t < STEPS; t++) {
                    const float gradient[PROBE] = {1, 2, 3, 4, 5, t == 2 ? INFINITY : 6};
                    cairn_zero_grad(p.sgd);
                    for (int m = 0; m < micro; m++) OK(amp_backward(p.amp, probe_loss(&p, gradient), p.sgd));
                    if (clips) OK(cairn_clip_grad_norm(p.sgd, 4, NULL));
                    step_counted(p.sgd);
                    assert_int_equal(cairn_optimizer_step_skipped(p.sgd), t == 2);
                }
                probe_end(&p);
            }
        }
    }
}

/* The loss of another optimizer, which is under amp, is checked before any step: that is the one way in. */
static void a_step_without_a_guard_enters_amp_for_other_losses_only(void **state) {
    static const float gradient[PROBE] = {1, 2, 3, 4, 5, 6};
    struct cairn_sgd_options hyper = CAIRN_SGD_OPTIONS_INIT;
    cairn_optimizer *sgd = NULL;
    struct probe p;
    probe_begin(&p, *state, &exact_levels[3], amp_options(.loss_scale = 128));
    cairn_module *model = make_probe(*state);
    OK(cairn_sgd_create(cairn_module_params(model), &hyper, &sgd));
    for (int pending = 0; pending < 2; pending++) {
        struct spans spans = {.count = 0};
        bool asked, told;
        if (pending) OK(amp_backward(p.amp, probe_loss(&p, gradient), p.sgd));
        cairn__trace_set_sink(keep, &spans);
        OK(cairn_step(sgd));
        cairn__trace_set_sink(NULL, NULL);
        assert_int_equal(count_entries(&spans, &asked, &told), pending);
        assert_true(!asked && !told);
    }
    cairn_optimizer_destroy(&sgd);
    cairn_module_destroy(&model);
    probe_end(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_calls_the_guard_once_before_and_once_after),
        cmocka_unit_test(a_step_without_a_guard_enters_amp_for_other_losses_only),
    };
    return cmocka_run_group_tests(tests, make_env, end_env);
}
