/* Averages of weights during a training: against means in double, across skipped steps, applied and restored. With
 * CAIRN_TEST_SHORT in the environment 2500 weights are averaged instead of 10000. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "../one_env.h"
#include "../state_in_memory.h"
#include "core/philox.h"
#include "param/param.h"

enum { N = 1003 };

static char said[256];

static void note(void *cookie, cairn_log_level level, const char *message) {
    (void)cookie, (void)level;
    snprintf(said, sizeof(said), "%s", message);
}

static float number(int t, int i) {
    return 2.0f * cairn__uniform(cairn__philox(99, (uint64_t)i, (uint64_t)t).word[0]) - 1.0f;
}

/* ---- one parameter, whose f32 weights a test writes ---- */

struct fixture {
    struct cairn_device *d;
    cairn_param_set *set;
    struct cairn__param *p;
    cairn_averages *averages;
};

static void begin(struct fixture *f, cairn_env *env, cairn_dtype half, bool has_master) {
    memset(f, 0, sizeof(*f));
    f->d = env->device;
    OK(cairn__param_set_new(env, &f->set));
    OK(cairn__param_set_add(f->set, "w", 1, (int64_t[]){N}, false, &f->p));
    f->d->passes->fill(f->d, CAIRN_F32, f->p->data, N, 0.0f);
    if (half) OK(cairn__param_set_to_half(f->set, half, has_master, false));
}

static void end(struct fixture *f) {
    cairn_averages_destroy(&f->averages);
    cairn_param_set_destroy(&f->set);
}

static void write_weights(struct fixture *f, const float *w) {
    float *wide = NULL;
    OK(cairn__device_alloc(f->d, CAIRN__HOLDS_TENSORS, N * sizeof(float), (void **)&wide));
    OK(cairn__device_upload(f->d, wide, w, N * sizeof(float)));
    if (f->p->master) OK(cairn__device_copy(f->d, f->p->master, wide, N * sizeof(float)));
    if (!f->p->master) cairn__pass_cast(f->d->passes, f->d, f->p->data, f->p->dtype, wide, CAIRN_F32, N);
    cairn__param_round_from_master(f->p);
    cairn__device_free(f->d, wide);
}

static void read_average(const struct fixture *f, float *out) {
    OK(cairn__device_download(f->d, out, cairn_averages_param(f->averages, 0), N * sizeof(float)));
}

static void read_bits(const struct fixture *f, void *data, float *master) {
    OK(cairn__device_download(f->d, data, f->p->data, N * cairn_dtype_nbytes(f->p->dtype)));
    if (f->p->master) OK(cairn__device_download(f->d, master, f->p->master, N * sizeof(float)));
}

/* ---- numbers ---- */

/* A walk of weights, and their mean in double. The difference is that of an f32 average's roundings. */
static double worst_difference(struct fixture *f, const struct cairn_averages_options *h, int steps) {
    static float w[N], got[N];
    static double want[N];
    double worst = 0, greatest = 0;
    memset(w, 0, sizeof(w));
    OK(cairn_averages_create(cairn_param_set_stateful(f->set), h, &f->averages));
    for (int t = 0; t < steps; t++) {
        for (int i = 0; i < N; i++) {
            w[i] += 0.01f * number(t, i) + 1e-4f;
            const double share = t == 0 ? 1 : h->kind == CAIRN_AVERAGES_SWA ? 1.0 / (t + 1) : 1 - h->decay;
            want[i] += share * (w[i] - want[i]);
        }
        write_weights(f, w);
        OK(cairn_averages_update(f->averages, NULL));
    }
    assert_int_equal(cairn_averages_count(f->averages), steps);
    read_average(f, got);
    for (int i = 0; i < N; i++) {
        worst = fmax(worst, fabs(got[i] - want[i]));
        greatest = fmax(greatest, fabs(want[i]));
    }
    return worst / greatest;
}

static void averages_of_thousands_of_weights_follow_means_in_double(void **state) {
    const int steps = check_is_short() ? 2500 : 10000;
    const struct cairn_averages_options of[] = {CAIRN_EMA_OPTIONS_INIT, CAIRN_SWA_OPTIONS_INIT};
    for (int k = 0; k < 2; k++) {
        for (int masters = 0; masters < 2; masters++) {
            struct fixture f;
            begin(&f, *state, masters ? CAIRN_BF16 : (cairn_dtype)0, true);
            const double worst =
                worst_difference(&f, &of[k], cairn__is_on_host(f.d) ? steps : 200); /* slow elsewhere */
            if (!(worst <= 3e-6)) fail_msg("%s is off by %g of the greatest average", k ? "SWA" : "EMA", worst);
            end(&f);
        }
    }
}

/* Weights are whole numbers, and shares 1/2: all is exact. */
static void half_weights_without_masters_are_averaged_in_f32(void **state) {
    static float w[N], got[N];
    struct fixture f;
    struct cairn_averages_options h = CAIRN_EMA_OPTIONS_INIT;
    h.decay = 0.5;
    begin(&f, *state, CAIRN_F16, false);
    OK(cairn_averages_create(cairn_param_set_stateful(f.set), &h, &f.averages));
    for (int t = 0; t < 2; t++) {
        for (int i = 0; i < N; i++) w[i] = (float)(t ? i : 2047 - i);
        write_weights(&f, w);
        OK(cairn_averages_update(f.averages, NULL));
    }
    read_average(&f, got);
    for (int i = 0; i < N; i++) assert_true(got[i] == 1023.5f); /* no f16 */
    end(&f);
}

static void start_and_every_choose_the_steps(void **state) {
    static float w[N], got[N];
    struct fixture f;
    struct cairn_averages_options h = CAIRN_SWA_OPTIONS_INIT;
    h.start = 4;
    h.every = 3;
    begin(&f, *state, (cairn_dtype)0, false);
    OK(cairn_averages_create(cairn_param_set_stateful(f.set), &h, &f.averages));
    for (int t = 1; t <= 12; t++) {
        for (int i = 0; i < N; i++) w[i] = (float)(1 << t);
        write_weights(&f, w);
        OK(cairn_averages_update(f.averages, NULL));
        assert_int_equal(cairn_averages_count(f.averages), t < 7 ? 0 : t < 10 ? 1 : 2);
    }
    read_average(&f, got);
    assert_true(got[0] == (float)((1 << 7) + (1 << 10)) / 2);
    end(&f);
}

/* ---- applied and restored ---- */

static void the_model_gets_its_own_bits_back(void **state) {
    static const struct {
        cairn_dtype half;
        bool has_master;
    } of[] = {{(cairn_dtype)0, false}, {CAIRN_F16, true}, {CAIRN_BF16, true}, {CAIRN_F16, false}, {CAIRN_BF16, false}};
    static float w[N], average[N], again[N], master[2][N];
    static char data[2][N * sizeof(float)];
    for (int k = 0; k < 5; k++) {
        struct fixture f;
        begin(&f, *state, of[k].half, of[k].has_master);
        OK(cairn_averages_create(cairn_param_set_stateful(f.set), NULL, &f.averages));
        for (int t = 0; t < 3; t++) {
            for (int i = 0; i < N; i++) w[i] = number(t, i);
            w[5] = -0.0f;
            write_weights(&f, w);
            OK(cairn_averages_update(f.averages, NULL));
        }
        memset(master, 0, sizeof(master));
        read_bits(&f, data[0], master[0]);
        read_average(&f, average);
        OK(cairn_averages_apply(f.averages));
        assert_null(cairn_averages_param(f.averages, 0));
        REFUSED(cairn_averages_update(f.averages, NULL), CAIRN_ESTATE, "cairn_averages_restore first");
        REFUSED(cairn_averages_apply(f.averages), CAIRN_ESTATE, "cairn_averages_restore first");
        read_bits(&f, data[1], master[1]);
        for (int i = 0; i < N; i++) {
            char want[sizeof(float)];
            cairn__dtype(f.p->dtype)->from_f32(want, average[i]);
            assert_memory_equal(want, data[1] + (size_t)i * cairn_dtype_nbytes(f.p->dtype),
                                cairn_dtype_nbytes(f.p->dtype));
        }
        if (f.p->master) assert_memory_equal(master[1], average, sizeof(average));
        OK(cairn_averages_restore(f.averages));
        read_bits(&f, data[1], master[1]);
        assert_memory_equal(data[0], data[1], N * cairn_dtype_nbytes(f.p->dtype));
        assert_memory_equal(master[0], master[1], sizeof(master[0]));
        read_average(&f, again);
        assert_memory_equal(average, again, sizeof(average));
        REFUSED(cairn_averages_restore(f.averages), CAIRN_ESTATE, "the model does not have these averages");
        OK(cairn_averages_copy(f.averages));
        if (f.p->master) read_bits(&f, data[1], master[1]);
        if (f.p->master) assert_memory_equal(master[1], average, sizeof(average));
        end(&f);
    }
}

static void fill_weights(struct fixture *f, int t) {
    static float w[N];
    for (int i = 0; i < N; i++) w[i] = number(t, i);
    write_weights(f, w);
    OK(cairn_param_changed(f->set, 0, f->p->master != NULL));
}

/* Two averages of one model, whose shares differ. */
static void averages_of_other_kinds_wait_for_the_own_weights(void **state) {
    static float own[N], average[2][N], got[N], unused[N];
    struct fixture f;
    cairn_averages *of[2] = {NULL, NULL}, *third = NULL;
    begin(&f, *state, (cairn_dtype)0, false);
    OK(cairn_averages_create(cairn_param_set_stateful(f.set), NULL, &of[0]));
    OK(cairn_averages_create(cairn_param_set_stateful(f.set), &(struct cairn_averages_options)CAIRN_SWA_OPTIONS_INIT,
                             &of[1]));
    for (int t = 0; t < 3; t++) {
        fill_weights(&f, t);
        for (int k = 0; k < 2; k++) OK(cairn_averages_update(of[k], NULL));
    }
    read_bits(&f, own, unused);
    for (int k = 0; k < 2; k++) f.averages = of[k], read_average(&f, average[k]);
    for (int k = 0; k < 2; k++) {
        cairn_averages *const other = of[1 - k];
        OK(cairn_averages_apply(of[k]));
        REFUSED(cairn_averages_apply(other), CAIRN_ESTATE, "cairn_averages_restore first");
        REFUSED(cairn_averages_update(other, NULL), CAIRN_ESTATE, "cairn_averages_restore first");
        REFUSED(cairn_averages_copy(other), CAIRN_ESTATE, "cairn_averages_restore first");
        REFUSED(cairn_averages_restore(other), CAIRN_ESTATE, "the model does not have these averages");
        REFUSED(cairn_averages_create(cairn_param_set_stateful(f.set), NULL, &third), CAIRN_ESTATE,
                "cairn_averages_restore first");
        read_bits(&f, got, unused);
        assert_memory_equal(got, average[k], sizeof(got));
        OK(cairn_averages_restore(of[k]));
        read_bits(&f, got, unused);
        assert_memory_equal(got, own, sizeof(got));
    }
    for (int k = 0; k < 2; k++) {
        f.averages = of[k], read_average(&f, got);
        assert_memory_equal(got, average[k], sizeof(got));
    }
    OK(cairn_averages_apply(of[0]));
    cairn_averages_destroy(&of[0]); /* restores */
    OK(cairn_averages_apply(of[1]));
    cairn_averages_destroy(&of[1]);
    read_bits(&f, got, unused);
    assert_memory_equal(got, own, sizeof(got));
    f.averages = NULL;
    end(&f);
}

/* As a load changes them. */
static void averages_restart_if_weights_were_changed_meanwhile(void **state) {
    static float own[N], got[N], unused[N];
    struct fixture f;
    begin(&f, *state, (cairn_dtype)0, false);
    OK(cairn_averages_create(cairn_param_set_stateful(f.set), NULL, &f.averages));
    for (int t = 0; t < 3; t++) {
        fill_weights(&f, t);
        OK(cairn_averages_update(f.averages, NULL));
    }
    read_bits(&f, own, unused);
    OK(cairn_averages_apply(f.averages));
    fill_weights(&f, 77);
    REFUSED(cairn_averages_restore(f.averages), CAIRN_ESTATE, "the averages, which are lost, begin anew");
    read_bits(&f, got, unused);
    assert_memory_equal(got, own, sizeof(got));
    read_average(&f, got);
    assert_memory_equal(got, own, sizeof(got));
    assert_int_equal(cairn_averages_count(f.averages), 0);
    fill_weights(&f, 78);
    OK(cairn_averages_update(f.averages, NULL));
    read_bits(&f, own, unused);
    read_average(&f, got);
    assert_memory_equal(got, own, sizeof(got)); /* whole, as the first one */
    end(&f);
}

/* ---- beside an optimizer ---- */

struct training {
    cairn_env *env;
    cairn_module *net;
    cairn_optimizer *optimizer;
    amp_context *amp;
    cairn_averages *averages;
    cairn_stateful of[4];
};

static void begin_training(struct training *t, cairn_env *env, amp_opt_level level) {
    struct cairn_averages_options h = CAIRN_EMA_OPTIONS_INIT;
    h.decay = 0.75;
    h.use_buffers = CAIRN_ON;
    t->env = env;
    cairn_manual_seed(env, 5);
    t->net = cairn_sequential(env, CAIRN_MODULES(cairn_linear(env, 3, 4), cairn_batch_norm(env, 4, 0, 0)));
    OK(cairn_param_require_grad(cairn_module_params(t->net), 1, false));
    OK(cairn_adam_create(cairn_module_params(t->net), NULL, &t->optimizer));
    OK(cairn_averages_create(cairn_module_stateful(t->net), &h, &t->averages)); /* before amp */
    OK(amp_initialize(env, t->net, t->optimizer,
                      amp_options(.opt_level = level, .half_type = CAIRN_F16, .verbosity = -1, .loss_scale = 128,
                                  .skip_nonfinite = CAIRN_ON),
                      &t->amp));
    t->of[0] = cairn_module_stateful(t->net);
    t->of[1] = cairn_optimizer_stateful(t->optimizer);
    t->of[2] = amp_stateful(t->amp);
    t->of[3] = cairn_averages_stateful(t->averages);
}

static void end_training(struct training *t) {
    cairn_averages_destroy(&t->averages);
    amp_destroy(&t->amp);
    cairn_optimizer_destroy(&t->optimizer);
    cairn_module_destroy(&t->net);
}

/* Two micro-batches; the first one thaws the bias at step 3. */
static void step(struct training *t, int number_of_step, bool overflows) {
    float x[5 * 3];
    if (number_of_step == 3) OK(cairn_param_require_grad(cairn_module_params(t->net), 1, true));
    cairn_zero_grad(t->optimizer);
    for (int part = 0; part < 2; part++) {
        for (int i = 0; i < 15; i++) x[i] = number(10 * number_of_step + part, i);
        if (overflows && part) x[4] = INFINITY;
        cairn_tensor *in = cairn_tensor_from(t->env, CAIRN_F32, CAIRN_SHAPE(5, 3), x);
        cairn_tensor *y = cairn_module_forward(t->net, in);
        OK(amp_backward(t->amp, cairn_mean(cairn_mul(y, cairn_mul(y, y))), t->optimizer));
        cairn_tensor_destroy(&in);
    }
    OK(cairn_step(t->optimizer));
    OK(cairn_averages_update(t->averages, t->optimizer));
}

static void skipped_steps_are_not_averaged(void **state) {
    float before[12], after[12];
    struct training t;
    begin_training(&t, *state, AMP_O2);
    for (int k = 1; k <= 2; k++) step(&t, k, false);
    assert_int_equal(cairn_averages_count(t.averages), 2);
    OK(cairn__device_download(t.env->device, before, cairn_averages_param(t.averages, 0), sizeof(before)));
    step(&t, 3, true);
    assert_int_equal(cairn_averages_count(t.averages), 2);
    OK(cairn__device_download(t.env->device, after, cairn_averages_param(t.averages, 0), sizeof(after)));
    assert_memory_equal(before, after, sizeof(before));
    step(&t, 4, false);
    assert_int_equal(cairn_averages_count(t.averages), 3);
    end_training(&t);
}

static void averages_go_on_to_the_bit_from_a_saved_state(void **state) {
    for (int level = AMP_O0; level <= AMP_O3; level++) {
        struct kept_state kept = {.count = 0}, whole = {.count = 0}, resumed = {.count = 0};
        struct training t;
        begin_training(&t, *state, (amp_opt_level)level);
        for (int k = 1; k <= 5; k++) step(&t, k, false);
        OK(cairn_averages_apply(t.averages));
        struct cairn__entries refused = {.env = t.env};
        REFUSED(t.of[3].ops->list(t.of[3].object, &refused), CAIRN_ESTATE, "the model has averages instead");
        cairn__entries_clear(&refused);
        OK(cairn_averages_restore(t.averages));
        CALM(keep_state(&kept, t.of, 4));
        for (int k = 6; k <= 9; k++) step(&t, k, false);
        CALM(keep_state(&whole, t.of, 4));
        end_training(&t);
        begin_training(&t, *state, (amp_opt_level)level);
        CALM(bring_back(&kept, t.of, 4));
        for (int k = 6; k <= 9; k++) step(&t, k, false);
        CALM(keep_state(&resumed, t.of, 4));
        CALM(same_states(&whole, &resumed));
        drop_state(&kept), drop_state(&whole), drop_state(&resumed);
        end_training(&t);
    }
}

/* Memory of the user's, of which amp could make something else, and ddp other values. */
static void a_model_with_averages_is_not_prepared(void **state) {
    static const cairn_dtype half = CAIRN_F16;
    amp_context *amp = NULL;
    ddp_context *ddp = NULL;
    cairn_optimizer *optimizer = NULL;
    cairn_averages *averages = NULL;
    cairn_env *env = *state;
    float own[5], got[5];
    float *memory = NULL;
    cairn_param_set *set = NULL;
    for (int i = 0; i < 5; i++) own[i] = number(1, i);
    OK(cairn__device_alloc(env->device, CAIRN__HOLDS_PARAMS, sizeof(own), (void **)&memory));
    OK(cairn__device_upload(env->device, memory, own, sizeof(own)));
    const cairn_param param = {.name = "w", .data = memory, .dtype = CAIRN_F32, .ndim = 1, .shape = {5}};
    OK(cairn_param_set_create(env, &param, 1, &set));
    OK(cairn_sgd_create(set, NULL, &optimizer));
    OK(cairn_averages_create(cairn_param_set_stateful(set), NULL, &averages));
    OK(cairn_averages_apply(averages));
    REFUSED(amp_initialize_params(env, set, optimizer,
                                  amp_options(.opt_level = AMP_O3, .half_type = half, .verbosity = -1), &amp),
            CAIRN_ESTATE, "cairn_averages_restore first");
    REFUSED(ddp_create_params(set, cairn_env_group(env), NULL, &ddp), CAIRN_ESTATE, "cairn_averages_restore first");
    OK(cairn_averages_restore(averages));
    OK(cairn__device_download(env->device, got, memory, sizeof(got)));
    assert_memory_equal(own, got, sizeof(got));
    OK(ddp_create_params(set, cairn_env_group(env), NULL, &ddp));
    OK(cairn_averages_apply(averages));
    REFUSED(ddp_weights_average(ddp, 0, NULL), CAIRN_ESTATE, "cairn_averages_restore first");
    OK(cairn_averages_restore(averages));
    OK(ddp_weights_average(ddp, 0, NULL));
    ddp_destroy(&ddp);
    cairn_averages_destroy(&averages);
    cairn_optimizer_destroy(&optimizer);
    cairn_param_set_destroy(&set);
    cairn__device_free(env->device, memory);
}

static void backward(struct training *t) {
    float x[5 * 3];
    for (int i = 0; i < 15; i++) x[i] = number(50, i);
    cairn_zero_grad(t->optimizer);
    cairn_tensor *in = cairn_tensor_from(t->env, CAIRN_F32, CAIRN_SHAPE(5, 3), x);
    cairn_tensor *y = cairn_module_forward(t->net, in);
    OK(amp_backward(t->amp, cairn_mean(cairn_mul(y, cairn_mul(y, y))), t->optimizer));
    cairn_tensor_destroy(&in);
}

/* Gradients are there, and stay of no use. */
static void steps_wait_for_the_own_weights(void **state) {
    float before[12], after[12], own[12], got[12];
    struct training t;
    begin_training(&t, *state, AMP_O2);
    for (int k = 1; k <= 2; k++) step(&t, k, false);
    struct cairn_device *d = t.env->device;
    const struct cairn__param *w = cairn_module_params(t.net)->params[0];
    OK(cairn__device_download(d, before, cairn_averages_param(t.averages, 0), sizeof(before)));
    OK(cairn__device_download(d, own, w->master, sizeof(own)));
    OK(cairn_averages_apply(t.averages));
    backward(&t);
    REFUSED(cairn_step(t.optimizer), CAIRN_ESTATE, "call cairn_averages_restore first");
    OK(cairn__device_download(d, got, w->master, sizeof(got)));
    assert_memory_equal(before, got, sizeof(got));
    OK(cairn_averages_restore(t.averages));
    OK(cairn__device_download(d, got, w->master, sizeof(got)));
    assert_memory_equal(own, got, sizeof(got));
    OK(cairn__device_download(d, after, cairn_averages_param(t.averages, 0), sizeof(after)));
    assert_memory_equal(before, after, sizeof(before));
    step(&t, 4, false);
    assert_int_equal(cairn_averages_count(t.averages), 3);
    end_training(&t);
}

/* ---- recorded steps ---- */

struct recorded {
    cairn_module *net;
    cairn_tensor *x;
    cairn_optimizer *optimizer;
};

static const float input[5 * 3] = {1, 2, 3, 4, 5, 6, 7, 8};

static cairn_status recorded_step(void *user) {
    struct recorded *r = user;
    cairn_zero_grad(r->optimizer);
    const cairn_status st = cairn_backward(cairn_mean(cairn_module_forward(r->net, r->x)));
    return st == CAIRN_OK ? cairn_step(r->optimizer) : st;
}

/* Where replays call the step it is refused; a recorded one is found out. */
static void replays_of_a_step_are_refused_or_found_out(void **state) {
    cairn_env *env = *state;
    struct recorded r = {.net = cairn_linear(env, 3, 4),
                         .x = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(5, 3), input)};
    cairn_graph *graph = NULL;
    cairn_averages *averages = NULL;
    float own[12], got[12];
    OK(cairn_sgd_create(cairn_module_params(r.net), NULL, &r.optimizer));
    OK(cairn_averages_create(cairn_module_stateful(r.net), NULL, &averages));
    OK(cairn_graph_capture(env, recorded_step, &r, &graph));
    for (int k = 0; k < CAIRN_GRAPH_WARMUP + 2; k++) {
        OK(cairn_graph_replay(graph));
        OK(cairn_averages_update(averages, r.optimizer));
    }
    const struct cairn__param *w = cairn_module_params(r.net)->params[0];
    OK(cairn__device_download(env->device, own, w->data, sizeof(own)));
    OK(cairn_averages_apply(averages));
    if (cairn_graph_replay(graph) == CAIRN_OK) {
        REFUSED(cairn_averages_restore(averages), CAIRN_ESTATE, "by a load or a replayed step");
        assert_int_equal(cairn_averages_count(averages), 0);
    } else {
        assert_non_null(strstr(cairn_last_error(), "call cairn_averages_restore first"));
        OK(cairn_averages_restore(averages));
    }
    OK(cairn__device_download(env->device, got, w->data, sizeof(got)));
    assert_memory_equal(own, got, sizeof(got));
    cairn_graph_destroy(&graph);
    cairn_averages_destroy(&averages);
    cairn_optimizer_destroy(&r.optimizer);
    cairn_tensor_destroy(&r.x);
    cairn_module_destroy(&r.net);
}

/* It counts its steps from 0, so that more weights may have been averaged than it has taken steps. */
static void a_second_optimizer_goes_on_and_its_state_loads(void **state) {
    struct kept_state kept = {.count = 0};
    cairn_env *env = *state;
    cairn_averages *averages = NULL;
    struct recorded r = {.net = cairn_linear(env, 3, 4),
                         .x = cairn_tensor_from(env, CAIRN_F32, CAIRN_SHAPE(5, 3), input)};
    OK(cairn_averages_create(cairn_module_stateful(r.net), NULL, &averages));
    const cairn_stateful of = cairn_averages_stateful(averages);
    for (int k = 0; k < 12; k++) {
        if (k == 0 || k == 10) {
            cairn_optimizer_destroy(&r.optimizer);
            OK(cairn_sgd_create(cairn_module_params(r.net), NULL, &r.optimizer));
        }
        OK(recorded_step(&r));
        OK(cairn_averages_update(averages, r.optimizer));
        assert_int_equal(cairn_averages_count(averages), k + 1);
    }
    CALM(keep_state(&kept, &of, 1));
    CALM(bring_back(&kept, &of, 1));
    assert_int_equal(cairn_averages_count(averages), 12);
    drop_state(&kept);
    cairn_averages_destroy(&averages);
    cairn_optimizer_destroy(&r.optimizer);
    cairn_tensor_destroy(&r.x);
    cairn_module_destroy(&r.net);
}

static void a_set_names_averages_among_those_that_use_it(void **state) {
    struct fixture f;
    begin(&f, *state, (cairn_dtype)0, false);
    OK(cairn_averages_create(cairn_param_set_stateful(f.set), NULL, &f.averages));
    cairn_param_set_destroy(&f.set);
    assert_non_null(f.set);
    assert_non_null(strstr(said, "averages"));
    end(&f);
}

static void options_out_of_range_are_refused_by_name(void **state) {
    struct fixture f;
    struct cairn_averages_options h = CAIRN_EMA_OPTIONS_INIT;
    begin(&f, *state, (cairn_dtype)0, false);
    const cairn_stateful model = cairn_param_set_stateful(f.set);
    h.decay = 1;
    REFUSED(cairn_averages_create(model, &h, &f.averages), CAIRN_EINVAL, "averages: decay is 1; it must be in [0, 1)");
    h.decay = 0.5, h.every = 0;
    REFUSED(cairn_averages_create(model, &h, &f.averages), CAIRN_EINVAL, "start is 0 and every 0");
    h.every = 1, h.kind = (cairn_averages_kind)3;
    REFUSED(cairn_averages_create(model, &h, &f.averages), CAIRN_EINVAL, "averages: kind is 3");
    REFUSED(cairn_averages_create(cairn_module_stateful(NULL), NULL, &f.averages), CAIRN_EINVAL, "the model, or out");
    REFUSED(cairn_averages_create(cairn_averages_stateful(NULL), NULL, &f.averages), CAIRN_EINVAL, "is NULL");
    assert_null(f.averages);
    end(&f);
}

static int begin_all(void **state) {
    cairn_set_log(note, NULL);
    return make_env(state);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(averages_of_thousands_of_weights_follow_means_in_double),
        cmocka_unit_test(half_weights_without_masters_are_averaged_in_f32),
        cmocka_unit_test(start_and_every_choose_the_steps),
        cmocka_unit_test(the_model_gets_its_own_bits_back),
        cmocka_unit_test(averages_of_other_kinds_wait_for_the_own_weights),
        cmocka_unit_test(averages_restart_if_weights_were_changed_meanwhile),
        cmocka_unit_test(skipped_steps_are_not_averaged),
        cmocka_unit_test(averages_go_on_to_the_bit_from_a_saved_state),
        cmocka_unit_test(a_model_with_averages_is_not_prepared),
        cmocka_unit_test(steps_wait_for_the_own_weights),
        cmocka_unit_test(replays_of_a_step_are_refused_or_found_out),
        cmocka_unit_test(a_second_optimizer_goes_on_and_its_state_loads),
        cmocka_unit_test(a_set_names_averages_among_those_that_use_it),
        cmocka_unit_test(options_out_of_range_are_refused_by_name),
    };
    return cmocka_run_group_tests(tests, begin_all, end_env);
}
