/* Muon against a model of its formula in double, and the behaviour that it shares with other optimizers. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "../failing_alloc.h"
#include "../one_env.h"
#include "../state_in_memory.h"
#include "one_param.h"
#include "recorded.h"

enum { MOST = 60 * 36, SIDE = 60 }; /* elements of a matrix, and its rows or columns */

/* ---- the model ---- */

struct model {
    int rows, cols;
    double w[MOST], b[MOST], g[MOST], x[MOST];
};

/* c [m, n] = a [m, k] b [k, n] */
static void multiply(int m, int n, int k, const double *a, const double *b, double *c) {
    for (int i = 0; i < m; i++) {
        for (int j = 0; j < n; j++) {
            double sum = 0;
            for (int l = 0; l < k; l++) sum += a[i * k + l] * b[l * n + j];
            c[i * n + j] = sum;
        }
    }
}

static void transpose(int m, int n, const double *a, double *t) {
    for (int i = 0; i < m; i++) {
        for (int j = 0; j < n; j++) t[j * m + i] = a[i * n + j];
    }
}

/* As published: a tall matrix is transposed before and after. */
static void orthogonalize(struct model *m, const struct cairn_muon_options *h) {
    static double x[MOST], t[MOST], gram[SIDE * SIDE], square[SIDE * SIDE], next[MOST];
    const bool is_tall = m->rows > m->cols;
    const int r = is_tall ? m->cols : m->rows, c = is_tall ? m->rows : m->cols, n = r * c;
    double norm = 0;
    for (int i = 0; i < n; i++) norm += m->x[i] * m->x[i];
    norm = fmax(sqrt(norm), h->eps);
    for (int i = 0; i < n; i++) m->x[i] /= norm;
    if (is_tall) transpose(m->rows, m->cols, m->x, x);
    else memcpy(x, m->x, sizeof(x));
    for (int k = 0; k < h->ns_steps; k++) {
        transpose(r, c, x, t);
        multiply(r, r, c, x, t, gram);
        multiply(r, r, r, gram, gram, square);
        for (int i = 0; i < r * r; i++) square[i] = h->ns_coefficients[1] * gram[i] + h->ns_coefficients[2] * square[i];
        multiply(r, c, r, square, x, next);
        for (int i = 0; i < n; i++) x[i] = h->ns_coefficients[0] * x[i] + next[i];
    }
    if (is_tall) transpose(r, c, x, m->x);
    else memcpy(m->x, x, sizeof(x));
}

static double adjustment(const struct model *m, const struct cairn_muon_options *h) {
    const double rows = m->rows, cols = m->cols;
    const bool matches = h->adjust == CAIRN_MUON_MATCH_RMS_ADAMW;
    return matches ? 0.2 * sqrt(fmax(rows, cols)) : sqrt(fmax(1, rows / cols));
}

static void step_model(struct model *m, const struct cairn_muon_options *h) {
    const double adjust = adjustment(m, h);
    for (int i = 0; i < m->rows * m->cols; i++) {
        const double g = h->maximize == CAIRN_ON ? -m->g[i] : m->g[i];
        m->b[i] = h->momentum * m->b[i] + g;
        m->x[i] = h->nesterov == CAIRN_OFF ? m->b[i] : g + h->momentum * m->b[i];
    }
    orthogonalize(m, h);
    for (int i = 0; i < m->rows * m->cols; i++)
        m->w[i] = m->w[i] * (1 - h->lr * h->weight_decay) - h->lr * adjust * m->x[i];
}

/* ---- a parameter of some shape, and a bias ---- */

struct run {
    cairn_param_set *set;
    cairn_optimizer *o;
    struct cairn__param *w, *bias;
    struct model m;
};

static struct run *begin(cairn_env *env, int ndim, const int64_t *shape, cairn_dtype half) {
    static struct run r;
    static float values[MOST];
    memset(&r, 0, sizeof(r));
    OK(cairn__param_set_new(env, &r.set));
    OK(cairn__param_set_add(r.set, "w", ndim, shape, false, &r.w));
    OK(cairn__param_set_add(r.set, "bias", 1, (int64_t[]){N}, false, &r.bias));
    r.m.rows = (int)shape[0];
    r.m.cols = (int)(r.w->n / (size_t)shape[0]);
    for (size_t i = 0; i < r.w->n; i++) values[i] = number(0, (int)i);
    OK(cairn__device_upload(env->device, r.w->data, values, r.w->n * sizeof(float)));
    for (int i = 0; i < N; i++) values[i] = number(0, 5000 + i);
    OK(cairn__device_upload(env->device, r.bias->data, values, N * sizeof(float)));
    if (half) OK(cairn__param_set_to_half(r.set, half, true, false));
    r.set->scale = &SCALE;
    return &r;
}

static void end(struct run *r) {
    cairn_optimizer_destroy(&r->o);
    cairn_param_set_destroy(&r->set);
}

static void write(struct cairn__param *p, int t, double *truth) {
    static char values[MOST * sizeof(float)];
    void *slot = NULL;
    OK(cairn__grad_begin_write(p->gradient, &slot));
    const struct cairn__dtype *type = cairn__dtype(p->dtype);
    for (size_t i = 0; i < p->n; i++) {
        char *element = values + i * type->nbytes;
        type->from_f32(element, number(t, (int)i) * 128);
        if (truth) truth[i] = (double)type->to_f32(element) * (double)p->set->scale->factor;
    }
    OK(cairn__device_upload(p->set->env->device, slot, values, p->n * type->nbytes));
    cairn__param_grad_ready(p);
}

static void step(struct run *r, int t) {
    cairn_zero_grad(r->o);
    write(r->w, t, r->m.g);
    write(r->bias, t, NULL);
    OK(cairn_step(r->o));
}

/* ---- tests ---- */

static const struct shape {
    int ndim;
    int64_t sizes[4];
} shapes[] = {{2, {24, 60}}, {2, {60, 36}}, {2, {16, 16}}, {2, {1, 9}}, {4, {8, 3, 3, 3}}, {4, {40, 2, 3, 3}}};
enum { SHAPES = sizeof(shapes) / sizeof(shapes[0]), MUON_STEPS = 5 };

static void read_weights(const struct run *r, float *w) {
    OK(cairn__device_download(r->set->env->device, w, cairn_param_master(r->set, 0), r->w->n * sizeof(float)));
}

/* Of a step, beside its greatest element. */
static double off_in_step(struct run *r, const struct cairn_muon_options *h, int t) {
    static float w[MOST];
    double worst = 0, greatest = 0;
    read_weights(r, w);
    for (size_t i = 0; i < r->w->n; i++) r->m.w[i] = w[i];
    step(r, t);
    step_model(&r->m, h);
    read_weights(r, w);
    for (size_t i = 0; i < r->w->n; i++) {
        worst = fmax(worst, (double)w[i] == (double)w[i] ? fabs((double)w[i] - r->m.w[i]) : INFINITY);
        greatest = fmax(greatest, fabs(r->m.x[i]));
    }
    return worst / (h->lr * adjustment(&r->m, h) * greatest);
}

/* A step's own error: that of f32 products, which the iterations multiply by 485 at most (3.4445^5) where a singular
 * value is small. */
static void a_step_follows_its_double_model(void **state) {
    static const cairn_dtype halves[] = {(cairn_dtype)0, CAIRN_F16, CAIRN_BF16};
    double most = 0;
    for (int s = 0; s < SHAPES; s++) {
        for (int variant = 0; variant < 8; variant++) {
            struct cairn_muon_options h = CAIRN_MUON_OPTIONS_INIT;
            struct run *r = begin(*state, shapes[s].ndim, shapes[s].sizes, halves[variant % 3]);
            h.lr = 64; /* steps are large beside weights, whose roundings are then small beside steps */
            h.weight_decay = 1.0 / 1024;
            h.adjust = variant & 1 ? CAIRN_MUON_MATCH_RMS_ADAMW : CAIRN_MUON_ORIGINAL;
            h.nesterov = variant & 2 ? CAIRN_OFF : CAIRN_DEFAULT;
            h.maximize = variant == 5 ? CAIRN_ON : CAIRN_OFF;
            if (variant == 4) h.eps = 100; /* longer than the momentum */
            if (variant >= 6) {
                h.ns_coefficients[0] = 2, h.ns_coefficients[1] = -1.5, h.ns_coefficients[2] = 0.5;
                h.ns_steps = variant == 6 ? 1 : 12;
            }
            OK(cairn_muon_create(r->set, &h, NULL, &r->o));
            for (int t = 1; t <= MUON_STEPS; t++) {
                const double off = off_in_step(r, &h, t);
                if (!(off <= 1e-4)) fail_msg("shape %d, variant %d, step %d: off by %g", s, variant, t, off);
                most = fmax(most, off);
            }
            end(r);
        }
    }
    print_message("off by at most %.1e of the greatest element of a step\n", most);
}

static void gradients_may_be_as_large_or_small_as_f32(void **state) {
    static const struct {
        float factor; /* gradients are up to 128 times it */
        double eps;
    } cases[] = {{0x1p96f, 1e-7}, {0x1p-5f, 1e-38}, {0x1p-100f, 1e-38}, {0x1p110f, 1e-38}, {0x1p96f, 1e30}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct cairn__loss_scale scale = {128, cases[i].factor};
        struct cairn_muon_options h = CAIRN_MUON_OPTIONS_INIT;
        struct run *r = begin(*state, 2, shapes[0].sizes, (cairn_dtype)0);
        r->set->scale = &scale;
        h.lr = 64, h.eps = cases[i].eps;
        OK(cairn_muon_create(r->set, &h, NULL, &r->o));
        for (int t = 1; t <= MUON_STEPS; t++) {
            const double off = off_in_step(r, &h, t);
            if (!(off <= 1e-4)) fail_msg("factor %g, eps %g, step %d: off by %g", (double)scale.factor, h.eps, t, off);
        }
        end(r);
    }
}

static cairn_status make_muon(cairn_param_set *set, cairn_optimizer **out) {
    return cairn_muon_create(set, NULL, NULL, out);
}

static void recorded_steps_have_the_bits_of_called_ones(void **state) {
    assert_recorded_as_called(*state, make_muon);
}

static void other_parameters_have_adamws_bits(void **state) {
    static float bias[N];
    struct cairn_adam_options adamw = CAIRN_ADAMW_OPTIONS_INIT;
    adamw.lr = 0.0625;
    for (int turn = 0; turn < 2; turn++) {
        struct run *r = begin(*state, 2, shapes[0].sizes, CAIRN_F16);
        if (turn) OK(cairn_adamw_create(r->set, &adamw, &r->o));
        else OK(cairn_muon_create(r->set, NULL, &adamw, &r->o));
        for (int t = 1; t <= 5; t++) step(r, t);
        if (turn) assert_memory_equal(bias, r->bias->master, sizeof(bias));
        memcpy(bias, r->bias->master, sizeof(bias));
        end(r);
    }
}

static void steps_match_those_of_any_scale_of_gradients(void **state) {
    static float w[2][24 * 60];
    for (int turn = 0; turn < 2; turn++) {
        static const struct cairn__loss_scale other = {128, 1.0f / 4096};
        struct run *r = begin(*state, 2, shapes[0].sizes, (cairn_dtype)0);
        if (turn) r->set->scale = &other;
        OK(cairn_muon_create(r->set, NULL, NULL, &r->o));
        step(r, 1);
        memcpy(w[turn], r->w->data, sizeof(w[turn]));
        end(r);
    }
    for (int i = 0; i < 24 * 60; i++) assert_true(fabsf(w[0][i] - w[1][i]) <= 1e-6f);
}

static void expect_skip(cairn_env *env, bool in_matrix) {
    static float w[24 * 60], momentum[24 * 60], bias[N];
    struct run *r = begin(env, 2, shapes[0].sizes, CAIRN_F16);
    OK(cairn_muon_create(r->set, NULL, NULL, &r->o));
    cairn__set_step_guard(r->o, &(struct cairn__step_guard){.ctx = r->o, .before = look_and_skip});
    step(r, 1);
    memcpy(w, r->w->master, sizeof(w));
    memcpy(momentum, r->o->arrays.moments[0].array[0], sizeof(momentum));
    memcpy(bias, r->bias->master, sizeof(bias));
    cairn_zero_grad(r->o);
    write(r->w, 2, r->m.g);
    write(r->bias, 2, NULL);
    ((uint16_t *)cairn__grad_memory((in_matrix ? r->w : r->bias)->gradient))[7] = 0x7c00;
    OK(cairn_step(r->o));
    assert_int_equal(cairn_optimizer_step_skipped(r->o), 1);
    assert_memory_equal(w, r->w->master, sizeof(w));
    assert_memory_equal(momentum, r->o->arrays.moments[0].array[0], sizeof(momentum));
    assert_memory_equal(bias, r->bias->master, sizeof(bias));
    cairn__set_step_guard(r->o, NULL);
    end(r);
}

static void overflow_keeps_every_bit_of_weights_and_states(void **state) {
    expect_skip(*state, false);
    expect_skip(*state, true);
}

static void step_that_runs_out_of_memory_changes_nothing(void **state) {
    static float w[24 * 60], bias[N];
    const struct cairn_adam_options adamw = CAIRN_ADAMW_OPTIONS_INIT;
    const cairn_group_rule rules[] = {{.names = "bias", .adam = &adamw}, {.names = NULL}};
    struct run *r = begin(*state, 2, shapes[0].sizes, (cairn_dtype)0);
    cairn_status st = CAIRN_ENOMEM;
    int failures = 0;
    OK(cairn_muon_create_grouped(r->set, rules, 2, &r->o));
    write(r->w, 1, NULL);
    write(r->bias, 1, NULL);
    memcpy(w, r->w->data, sizeof(w));
    memcpy(bias, r->bias->data, sizeof(bias));
    for (; st == CAIRN_ENOMEM; failures++) {
        assert_memory_equal(w, r->w->data, sizeof(w));
        assert_memory_equal(bias, r->bias->data, sizeof(bias));
        fail_in = failures + 1;
        st = cairn_step(r->o);
        fail_in = 0;
    }
    OK(st);
    assert_true(failures > 1);
    assert_int_equal(cairn_optimizer_steps(r->o), 1);
    assert_memory_not_equal(bias, r->bias->data, sizeof(bias));
    end(r);
}

/* Whose rules lie as far apart as in 0.9.0's header: read closer together, the second would begin in the first. */
static void function_without_a_size_reads_every_rule(void **state) {
    struct cairn_adam_options adamw = CAIRN_ADAMW_OPTIONS_INIT, rest = CAIRN_ADAMW_OPTIONS_INIT;
    struct cairn_muon_options muon = CAIRN_MUON_OPTIONS_INIT;
    muon.lr = 0.5, adamw.lr = 0.25, rest.lr = 0.125;
    const cairn_group_rule rules[] = {{.names = "w", .muon = &muon},
                                      {.names = "bias", .adam = &adamw},
                                      {.names = NULL, .adam = &rest}};
    struct run *r = begin(*state, 2, shapes[0].sizes, (cairn_dtype)0);
    OK((cairn_muon_create_grouped)(r->set, rules, 3, &r->o));
    assert_int_equal(cairn_optimizer_num_groups(r->o), 3);
    for (int g = 0; g < 3; g++) {
        assert_true(cairn_optimizer_group_lr(r->o, g) == 0.5 / (1 << g));
        assert_int_equal(r->o->groups[g].count, g < 2);
    }
    end(r);
}

static void training_goes_on_to_the_bit_from_a_saved_state(void **state) {
    struct kept_state kept = {.count = 0}, whole = {.count = 0}, resumed = {.count = 0};
    struct cairn_muon_options h = CAIRN_MUON_OPTIONS_INIT;
    h.maximize = CAIRN_ON;
    struct run *r = begin(*state, 2, shapes[1].sizes, CAIRN_BF16);
    OK(cairn_muon_create(r->set, &h, NULL, &r->o));
    OK(cairn_optimizer_set_schedule(r->o, cairn_one_cycle_schedule(.total_steps = 12)));
    cairn_stateful of[] = {cairn_param_set_stateful(r->set), cairn_optimizer_stateful(r->o)};
    for (int t = 1; t <= 4; t++) step(r, t);
    CALM(keep_state(&kept, of, 2));
    assert_non_null(cairn__entries_find(&kept.objects[1].entries, "momentum_buffer.w"));
    assert_non_null(cairn__entries_find(&kept.objects[1].entries, "exp_avg_sq.bias"));
    for (int t = 5; t <= 8; t++) step(r, t);
    CALM(keep_state(&whole, of, 2));
    end(r);
    r = begin(*state, 2, shapes[1].sizes, CAIRN_BF16);
    OK(cairn_muon_create(r->set, NULL, NULL, &r->o)); /* what is saved takes its place */
    OK(cairn_optimizer_set_schedule(r->o, cairn_one_cycle_schedule(.total_steps = 12)));
    of[0] = cairn_param_set_stateful(r->set), of[1] = cairn_optimizer_stateful(r->o);
    CALM(bring_back(&kept, of, 2));
    for (int t = 5; t <= 8; t++) step(r, t);
    CALM(keep_state(&resumed, of, 2));
    CALM(same_states(&whole, &resumed));
    drop_state(&kept), drop_state(&whole), drop_state(&resumed);
    end(r);
}

static void rules_and_later_groups_choose_muon_or_adamw(void **state) {
    const struct cairn_adam_options adamw = CAIRN_ADAMW_OPTIONS_INIT;
    const struct cairn_sgd_options sgd = CAIRN_SGD_OPTIONS_INIT;
    const cairn_group_rule rules[] = {{.names = "w", .adam = &adamw}, {.adam = &adamw}};
    const cairn_group_rule all = {.are = (cairn_params_are)0}, wrong = {.sgd = &sgd};
    const size_t first = 0, second = 1;
    struct run *r = begin(*state, 2, shapes[0].sizes, (cairn_dtype)0);
    OK(cairn_muon_create_grouped(r->set, rules, 2, &r->o));
    assert_int_equal(cairn_optimizer_num_groups(r->o), 2);
    step(r, 1);
    assert_non_null(r->o->arrays.moments[0].array[1]);
    cairn_optimizer_destroy(&r->o);
    REFUSED(cairn_muon_create_grouped(r->set, &wrong, 1, &r->o), CAIRN_EINVAL, "rule 0 has options of SGD");
    REFUSED(cairn_muon_create_grouped(r->set, &all, 1, &r->o), CAIRN_EINVAL,
            "parameter 'bias' has 1 dimensions, and Muon is for matrices");
    OK(cairn_muon_create_over(r->set, &first, 1, NULL, &r->o));
    REFUSED(cairn_muon_add_group(r->o, r->set, &second, 1, NULL), CAIRN_EINVAL, "'bias' has 1 dimensions");
    OK(cairn_adam_add_group(r->o, r->set, &second, 1, NULL));
    step(r, 1);
    cairn_optimizer_destroy(&r->o);
    OK(cairn_adamw_create_over(r->set, &second, 1, NULL, &r->o));
    REFUSED(cairn_muon_add_group(r->o, r->set, &first, 1, NULL), CAIRN_EINVAL, "a group of Muon cannot be added");
    end(r);
}

static void hyperparameters_out_of_range_are_refused_by_name(void **state) {
    struct run *r = begin(*state, 2, shapes[0].sizes, (cairn_dtype)0);
    struct cairn_muon_options h = CAIRN_MUON_OPTIONS_INIT;
    h.ns_steps = 0;
    REFUSED(cairn_muon_create(r->set, &h, NULL, &r->o), CAIRN_EINVAL, "Muon: ns_steps is 0; it must be from 1 to 100");
    h.ns_steps = 5, h.eps = 0;
    REFUSED(cairn_muon_create(r->set, &h, NULL, &r->o), CAIRN_EINVAL, "Muon: eps is 0");
    h.eps = 1e-7, h.momentum = 1;
    REFUSED(cairn_muon_create(r->set, &h, NULL, &r->o), CAIRN_EINVAL, "Muon: momentum is 1");
    h.momentum = 0.9, h.adjust = (cairn_muon_adjust)3;
    REFUSED(cairn_muon_create(r->set, &h, NULL, &r->o), CAIRN_EINVAL, "Muon: adjust is 3");
    h.adjust = CAIRN_MUON_ORIGINAL, h.ns_coefficients[1] = NAN;
    REFUSED(cairn_muon_create(r->set, &h, NULL, &r->o), CAIRN_EINVAL, "Muon: ns_coefficients are 3.4445, nan");
    assert_null(r->o);
    end(r);
}

static int begin_all(void **state) {
    cairn_set_log(log_nothing, NULL); /* that nothing guards these steps */
    return make_env(state);
}

int main(void) {
    const struct CMUnitTest on_device[] = {cmocka_unit_test(a_step_follows_its_double_model),
                                           cmocka_unit_test(gradients_may_be_as_large_or_small_as_f32),
                                           cmocka_unit_test(recorded_steps_have_the_bits_of_called_ones)};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_follows_its_double_model),
        cmocka_unit_test(gradients_may_be_as_large_or_small_as_f32),
        cmocka_unit_test(recorded_steps_have_the_bits_of_called_ones),
        cmocka_unit_test(other_parameters_have_adamws_bits),
        cmocka_unit_test(steps_match_those_of_any_scale_of_gradients),
        cmocka_unit_test(overflow_keeps_every_bit_of_weights_and_states),
        cmocka_unit_test(step_that_runs_out_of_memory_changes_nothing),
        cmocka_unit_test(function_without_a_size_reads_every_rule),
        cmocka_unit_test(training_goes_on_to_the_bit_from_a_saved_state),
        cmocka_unit_test(rules_and_later_groups_choose_muon_or_adamw),
        cmocka_unit_test(hyperparameters_out_of_range_are_refused_by_name),
    };
    /* The others read the host's memory. */
    if (getenv("CAIRN_DEVICE")) return cmocka_run_group_tests(on_device, begin_all, end_env);
    return cmocka_run_group_tests(tests, begin_all, end_env);
}
