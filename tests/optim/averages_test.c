/* Averages of weights beside a training: against means in double, across skipped steps, applied and restored. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "../one_env.h"
#include "../state_in_memory.h"
#include "core/philox.h"
#include "param/param.h"

enum { N = 1003 };

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

static void averages_of_ten_thousand_weights_follow_means_in_double(void **state) {
    const struct cairn_averages_options of[] = {CAIRN_EMA_OPTIONS_INIT, CAIRN_SWA_OPTIONS_INIT};
    for (int k = 0; k < 2; k++) {
        for (int masters = 0; masters < 2; masters++) {
            struct fixture f;
            begin(&f, *state, masters ? CAIRN_BF16 : (cairn_dtype)0, true);
            const double worst =
                worst_difference(&f, &of[k], cairn__is_on_host(f.d) ? 10000 : 200); /* slow elsewhere */
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
        REFUSED(cairn_averages_apply(f.averages), CAIRN_ESTATE, "has the averages already");
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
        REFUSED(cairn_averages_restore(f.averages), CAIRN_ESTATE, "the model has its own weights");
        OK(cairn_averages_copy(f.averages));
        if (f.p->master) read_bits(&f, data[1], master[1]);
        if (f.p->master) assert_memory_equal(master[1], average, sizeof(average));
        end(&f);
    }
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
        REFUSED(t.of[3].ops->list(t.of[3].object, &refused), CAIRN_ESTATE, "the model has the averages instead");
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

static void what_trains_the_averages_is_lost_and_said(void **state) {
    struct training t;
    struct kept_state before = {.count = 0}, after = {.count = 0};
    begin_training(&t, *state, AMP_O2);
    step(&t, 4, false);
    CALM(keep_state(&before, t.of, 1));
    OK(cairn_averages_apply(t.averages));
    cairn_param_set_zero_grad(cairn_module_params(t.net));
    OK(cairn_step(t.optimizer));
    REFUSED(cairn_averages_restore(t.averages), CAIRN_ESTATE, "which is lost; the model has its own weights again");
    CALM(keep_state(&after, t.of, 1));
    CALM(same_states(&before, &after));
    drop_state(&before), drop_state(&after);
    end_training(&t);
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

static void be_quiet(void *cookie, cairn_log_level level, const char *message) {
    (void)cookie, (void)level, (void)message; /* of steps that are skipped */
}

static int begin_all(void **state) {
    cairn_set_log(be_quiet, NULL);
    return make_env(state);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(averages_of_ten_thousand_weights_follow_means_in_double),
        cmocka_unit_test(half_weights_without_masters_are_averaged_in_f32),
        cmocka_unit_test(start_and_every_choose_the_steps),
        cmocka_unit_test(the_model_gets_its_own_bits_back),
        cmocka_unit_test(skipped_steps_are_not_averaged),
        cmocka_unit_test(averages_go_on_to_the_bit_from_a_saved_state),
        cmocka_unit_test(what_trains_the_averages_is_lost_and_said),
        cmocka_unit_test(options_out_of_range_are_refused_by_name),
    };
    return cmocka_run_group_tests(tests, begin_all, end_env);
}
