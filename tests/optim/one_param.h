/* One parameter with known values, whose gradient a test writes before each step. Needs cmocka and check.h. */
#ifndef TESTS_OPTIM_ONE_PARAM_H
#define TESTS_OPTIM_ONE_PARAM_H

#include <math.h>

#include "cairn/cairn.h"
#include "core/philox.h"
#include "optim/optim.h"
#include "param/param.h"

enum { N = 1003, STEPS = 100 };

static const struct cairn__loss_scale SCALE = {128, 1.0f / 128};

/* Element i of step t's gradient, in (-1, 1). */
static inline float number(int t, int i) {
    return 2.0f * cairn__uniform(cairn__philox(1234, (uint64_t)i, (uint64_t)t).word[0]) - 1.0f;
}

static inline struct cairn__param *make_param(cairn_env *env, cairn_dtype half, cairn_param_set **set) {
    struct cairn__param *p = NULL;
    assert_int_equal(cairn__param_set_new(env, set), CAIRN_OK);
    assert_int_equal(cairn__param_set_add(*set, "w", 1, (int64_t[]){N}, false, &p), CAIRN_OK);
    for (int i = 0; i < N; i++) ((float *)p->data)[i] = number(0, i);
    if (half) assert_int_equal(cairn__param_set_to_half(p->set, half, true, false), CAIRN_OK);
    return p;
}

/* Writes step t's gradient, times 1/factor, rounded to the slot's type; truth[] receives the unscaled rounded
 * values. */
static inline void write_gradient(struct cairn__param *p, int t, double *truth) {
    void *slot = NULL;
    assert_int_equal(cairn__grad_begin_write(p->gradient, &slot), CAIRN_OK);
    const struct cairn__dtype *type = cairn__dtype(p->dtype);
    for (int i = 0; i < N; i++) {
        char *element = (char *)slot + (size_t)i * type->nbytes;
        const float factor = p->set->scale ? p->set->scale->factor : 1.0f;
        type->from_f32(element, number(t, i) / factor);
        truth[i] = (double)type->to_f32(element) * (double)factor;
    }
    cairn__param_grad_ready(p);
}

/* Bounds the difference's norm relative to want's, and its largest element relative to want's largest. */
static inline void assert_near(const float *got, const double *want, double bound, double greatest_bound) {
    double difference = 0, norm = 0, most = 0, greatest = 0;
    for (int i = 0; i < N; i++) {
        difference += (got[i] - want[i]) * (got[i] - want[i]);
        norm += want[i] * want[i];
        most = fmax(most, fabs(got[i] - want[i]));
        greatest = fmax(greatest, fabs(want[i]));
    }
    if (!(sqrt(difference) <= bound * sqrt(norm)) || !(most <= greatest_bound * greatest)) {
        fail_msg("differs by %g of the norm and %g of the greatest after %d steps", sqrt(difference / norm),
                 most / greatest, STEPS);
    }
}

static inline void assert_within(const float *got, const double *want, double bound) {
    assert_near(got, want, bound, bound);
}

static inline void assert_close(const float *got, const double *want) {
    assert_within(got, want, 1e-6);
}

static inline void assert_half_is_rounded_master(const struct cairn__param *p) {
    const struct cairn__dtype *type = cairn__dtype(p->dtype);
    for (int i = 0; i < N; i++) {
        uint16_t want;
        type->from_f32(&want, p->master[i]);
        assert_int_equal(((uint16_t *)p->data)[i], want);
    }
}

/* As amp does: checks the gradient, and skips the step if an overflow was found. */
static inline cairn_status look_and_skip(void *ctx, struct cairn__step_end *end, bool *may) {
    cairn_optimizer *o = ctx;
    (void)end;
    assert_int_equal(cairn__optimizer_prepare(o), CAIRN_OK);
    *may = true;
    cairn__optimizer_check(o);
    (void)cairn__optimizer_take_flags(o, 1, (uint32_t *[]){&o->state->skip}, 1);
    return CAIRN_OK;
}

#endif
