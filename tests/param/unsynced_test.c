/* Unsynced gradients: they are added to the next synchronised gradient, or used by a step that comes before. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "../one_env.h"
#include "cairn/cairn.h"
#include "core/dtype.h"
#include "param/param.h"

enum { N = 37, MICRO = 4 };

/* ---- a listener ---- */

struct listening {
    struct cairn__grad_listener listener;
    int begins, readies, settles;
    const float *slot; /* (optional) of an f32 parameter, to look at when it is ready */
    float first;
};

static cairn_status count_begin(void *ctx) {
    ((struct listening *)ctx)->begins++;
    return CAIRN_OK;
}

static void count_ready(void *ctx, size_t index) {
    struct listening *l = ctx;
    (void)index;
    l->readies++;
    if (l->slot) l->first = *l->slot;
}

static cairn_status go_on(void *ctx) {
    (void)ctx;
    return CAIRN_OK;
}

static cairn_status count_settle(void *ctx) {
    ((struct listening *)ctx)->settles++;
    return CAIRN_OK;
}

static void never_mind(void *ctx) {
    (void)ctx;
}

static void listen(struct listening *l, cairn_param_set *set) {
    *l = (struct listening){.listener = {.ctx = l,
                                         .begin = count_begin,
                                         .ready = count_ready,
                                         .progress = go_on,
                                         .settle = count_settle,
                                         .failed = never_mind}};
    set->listener = &l->listener;
}

/* ---- one parameter ---- */

static struct cairn__param *make_param(cairn_env *env, cairn_dtype dtype, cairn_param_set **set) {
    struct cairn__param *p = NULL;
    assert_int_equal(cairn__param_set_new(env, set), CAIRN_OK);
    assert_int_equal(cairn__param_set_add(*set, "w", 1, (int64_t[]){N}, false, &p), CAIRN_OK);
    memset(p->data, 0, N * sizeof(float));
    if (dtype != CAIRN_F32) assert_int_equal(cairn__param_set_to_half(*set, dtype, true, false), CAIRN_OK);
    return p;
}

static float rounded(cairn_dtype dtype, float x) {
    unsigned char bits[8];
    cairn__dtype(dtype)->from_f32(bits, x);
    return cairn__dtype(dtype)->to_f32(bits);
}

static float stored(const struct cairn__param *p, size_t i) {
    return cairn__dtype(p->dtype)->to_f32((const char *)cairn__grad_memory(p->gradient) +
                                          i * cairn_dtype_nbytes(p->dtype));
}

/* Not exact in any half type. */
static float value(int micro, size_t i) {
    return sinf((float)(micro * 101 + (int)i)) * 3.0f;
}

/* As a backward of one parameter does. */
static void backward(struct cairn__param *p, int micro, const struct cairn__loss_scale *cell) {
    const float scale = cell ? 1 / cell->factor : 1;
    void *slot = NULL;
    assert_int_equal(cairn__param_set_begin_backward(p->set, 0, cell), CAIRN_OK);
    assert_int_equal(cairn__grad_begin_write(p->gradient, &slot), CAIRN_OK);
    for (size_t i = 0; i < N; i++)
        cairn__dtype(p->dtype)->from_f32((char *)slot + i * cairn_dtype_nbytes(p->dtype), scale * value(micro, i));
    cairn__param_grad_ready(p);
    assert_int_equal(cairn__param_set_settle(p->set), CAIRN_OK);
}

static void keep_unsynced(cairn_param_set *set, bool on) {
    assert_int_equal(cairn__param_set_keep_unsynced(set, on), CAIRN_OK);
}

/* ---- added to the first that is synchronised ---- */

static const struct cairn__loss_scale scales[] = {
    {1024, 0x1p-10f}, {512, 0x1p-9f}, {2048, 0x1p-11f}, {128, 0x1p-7f}, {384, (float)(1.0 / 384)}};

static void unsynced_and_new_gradients_are_rounded_once(void **state) {
    for (cairn_dtype dtype = CAIRN_F32; dtype <= CAIRN_BF16; dtype++) {
        for (int last = 3; last <= 4; last++) {
            cairn_param_set *set = NULL;
            struct listening l;
            struct cairn__param *p = make_param(*state, dtype, &set);
            float local[N];
            listen(&l, set);
            keep_unsynced(set, true);
            for (int m = 0; m < MICRO - 1; m++) backward(p, m, &scales[m]);
            assert_int_equal(l.begins + l.readies + l.settles, 0);
            keep_unsynced(set, false);
            backward(p, MICRO - 1, &scales[last]);
            assert_int_equal(l.begins + l.readies + l.settles, 3);
            for (size_t i = 0; i < N; i++) {
                for (int m = 0; m < MICRO - 1; m++) {
                    const float one = rounded(dtype, scales[m].scale * value(m, i)) * scales[m].factor;
                    local[i] = m ? one + local[i] : one;
                }
                const float came = rounded(dtype, 1 / scales[last].factor * value(MICRO - 1, i));
                const float want = rounded(dtype, local[i] * scales[last].scale + came), got = stored(p, i);
                assert_memory_equal(&got, &want, sizeof(got));
            }
            assert_true(cairn__grad_is_written(p->gradient) && !cairn__grad_is_accumulated(p->gradient) &&
                        !cairn__grad_is_unsynced(p->gradient));
            cairn_param_set_destroy(&set);
        }
    }
}

static void listener_sees_the_sum(void **state) {
    cairn_param_set *set = NULL;
    struct listening l;
    struct cairn__param *p = make_param(*state, CAIRN_F32, &set);
    listen(&l, set);
    keep_unsynced(set, true);
    backward(p, 0, NULL);
    keep_unsynced(set, false);
    l.slot = cairn__grad_memory(p->gradient);
    backward(p, 1, NULL);
    assert_true(l.first == value(0, 0) + value(1, 0));
    cairn_param_set_destroy(&set);
}

static void parameter_without_a_gradient_has_its_unsynced_sum_or_zero(void **state) {
    for (int unsynced = 0; unsynced < 2; unsynced++) {
        cairn_param_set *set = NULL;
        struct cairn__param *p = make_param(*state, CAIRN_F16, &set);
        backward(p, 0, NULL); /* goes into the accumulator */
        keep_unsynced(set, unsynced);
        if (unsynced) backward(p, 1, NULL);
        keep_unsynced(set, false);
        assert_int_equal(cairn__param_set_begin_backward(set, 0, &scales[1]), CAIRN_OK);
        assert_int_equal(cairn__grad_write_unreached(p->gradient), CAIRN_OK);
        assert_true(cairn__grad_is_written(p->gradient) && !cairn__grad_is_at_other_scale(p->gradient) &&
                    !cairn__grad_is_unsynced(p->gradient) && cairn__grad_is_accumulated(p->gradient));
        for (size_t i = 0; i < N; i++) {
            const float one = rounded(CAIRN_F16, value(1, i));
            assert_true(stored(p, i) == (unsynced ? rounded(CAIRN_F16, one * 512) : 0));
            assert_true(cairn__grad_unscaled_memory(p->gradient)[i] == rounded(CAIRN_F16, value(0, i)));
        }
        cairn_param_set_destroy(&set);
    }
}

/* ---- unsynced gradients are not checked ---- */

static void unsynced_gradients_are_checked_when_added(void **state) {
    cairn_param_set *set = NULL;
    struct cairn__param *p = make_param(*state, CAIRN_F32, &set);
    keep_unsynced(set, true);
    backward(p, 0, NULL);
    ((float *)cairn__grad_memory(p->gradient))[3] = INFINITY;
    assert_int_equal(cairn__param_set_check(set), CAIRN_OK);
    assert_int_equal(set->flags[0], 0);
    backward(p, 1, NULL);
    assert_int_equal(cairn__param_set_check(set), CAIRN_OK);
    assert_int_equal(set->flags[0] + set->flags[1], 0);
    keep_unsynced(set, false);
    backward(p, 2, NULL);
    assert_int_equal(cairn__param_set_check(set), CAIRN_OK);
    assert_int_equal(set->flags[0], 1);
    cairn_param_set_destroy(&set);
}

static void zero_grad_forgets_unsynced_gradients(void **state) {
    cairn_param_set *set = NULL;
    struct cairn__param *p = make_param(*state, CAIRN_BF16, &set);
    keep_unsynced(set, true);
    backward(p, 0, NULL);
    backward(p, 1, NULL);
    cairn_param_set_zero_grad(set);
    assert_false(cairn__grad_is_unsynced(p->gradient));
    keep_unsynced(set, false);
    backward(p, 2, NULL);
    for (size_t i = 0; i < N; i++) assert_true(stored(p, i) == rounded(CAIRN_BF16, value(2, i)));
    cairn_param_set_destroy(&set);
}

/* The place of an old scale is about to be used again. */
static void unsynced_gradient_whose_scale_changes_is_kept_separately(void **state) {
    cairn_param_set *set = NULL;
    struct cairn__param *p = make_param(*state, CAIRN_F16, &set);
    keep_unsynced(set, true);
    backward(p, 0, &scales[0]);
    assert_int_equal(cairn__params_accumulate_at(*state, &scales[0]), CAIRN_OK);
    assert_true(!cairn__grad_is_written(p->gradient) && !cairn__grad_is_accumulated(p->gradient) &&
                (cairn__grad_states(p->gradient).unsynced == CAIRN__UNSYNCED_KEPT));
    cairn_param_set_destroy(&set);
}

/* ---- a step that comes before ---- */

static void step_takes_unsynced_gradients_and_a_later_one_takes_them_back(void **state) {
    for (int earlier = 0; earlier < 2; earlier++) {
        cairn_param_set *set = NULL;
        struct cairn__grad_view grad;
        float sum[N];
        struct cairn__param *p = make_param(*state, CAIRN_F32, &set);
        for (int m = 1 - earlier; m < 3; m++) {
            keep_unsynced(set, m > 0);
            backward(p, m, NULL);
        }
        for (size_t i = 0; i < N; i++) sum[i] = (earlier ? value(1, i) + value(0, i) : value(1, i)) + value(2, i);
        assert_int_equal(cairn__grad_prepare_read(p->gradient, &grad), CAIRN_OK);
        assert_int_equal(grad.dtype, CAIRN_F32);
        assert_memory_equal(grad.x, sum, sizeof(sum));
        assert_true((cairn__grad_states(p->gradient).unsynced == CAIRN__UNSYNCED_USED));
        keep_unsynced(set, false);
        backward(p, 3, NULL);
        assert_int_equal(cairn__grad_states(p->gradient).unsynced, CAIRN__UNSYNCED_NONE);
        assert_false(cairn__grad_is_accumulated(p->gradient));
        for (size_t i = 0; i < N; i++) assert_true(stored(p, i) == sum[i] + value(3, i));
        cairn_param_set_destroy(&set);
    }
}

static void step_finds_an_unsynced_overflow(void **state) {
    for (int bad = 0; bad < 3; bad++) {
        cairn_param_set *set = NULL;
        struct cairn__param *p = make_param(*state, CAIRN_F16, &set);
        keep_unsynced(set, true);
        for (int m = 0; m < 3; m++) {
            backward(p, m, &scales[0]);
            if (m == bad) ((uint16_t *)cairn__grad_memory(p->gradient))[5] = 0x7c00;
        }
        assert_int_equal(cairn__params_use_unsynced(&p, 1), CAIRN_OK);
        assert_int_equal(cairn__param_set_check(set), CAIRN_OK);
        assert_int_equal(set->flags[0], 1);
        cairn_param_set_destroy(&set);
    }
}

static void parameters_that_become_half_hold_nothing(void **state) {
    cairn_param_set *set = NULL;
    struct cairn__param *p = make_param(*state, CAIRN_F32, &set);
    keep_unsynced(set, true);
    backward(p, 0, NULL);
    backward(p, 1, NULL);
    assert_int_equal(cairn__param_set_to_half(set, CAIRN_F16, true, false), CAIRN_OK);
    assert_false(cairn__grad_is_unsynced(p->gradient));
    cairn_param_set_destroy(&set);
}

/* ---- the user's memory ---- */

static void declare(cairn_param_set *set, float *grad, int micro) {
    for (size_t i = 0; i < N; i++) grad[i] = value(micro, i);
    assert_int_equal(cairn_grads_ready(set, 0, 1), CAIRN_OK);
}

static void user_memory_may_be_written_again_once_it_is_unsynced(void **state) {
    static const cairn_dtype values[] = {(cairn_dtype)0, CAIRN_F16, CAIRN_BF16};
    for (int v = 0; v < 3; v++) {
        cairn_param_set *set = NULL;
        struct listening l;
        float data[N] = {0}, grad[N];
        const cairn_dtype type = values[v] ? values[v] : CAIRN_F32;
        const cairn_param w = {.name = "w", .data = data, .grad = grad, .dtype = CAIRN_F32, .ndim = 1, .shape = {N}};
        assert_int_equal(cairn_param_set_create(*state, &w, 1, &set), CAIRN_OK);
        assert_int_equal(cairn__param_set_take_half_values(set, values[v], true, false), CAIRN_OK);
        listen(&l, set);
        keep_unsynced(set, true);
        declare(set, grad, 0);
        assert_int_equal(cairn__param_set_settle(set), CAIRN_OK);
        declare(set, grad, 1); /* and forgets to settle */
        keep_unsynced(set, false);
        assert_int_equal(l.begins + l.readies + l.settles, 0);
        declare(set, grad, 2);
        assert_int_equal(l.begins, 1);
        assert_int_equal(l.readies, 1);
        for (size_t i = 0; i < N; i++) {
            const float local = rounded(type, value(1, i)) + rounded(type, value(0, i));
            assert_true(grad[i] == rounded(type, local + rounded(type, value(2, i))));
        }
        assert_int_equal(cairn__param_set_settle(set), CAIRN_OK);
        declare(set, grad, 0);
        assert_int_equal(l.begins, 2);
        assert_int_equal(cairn__param_set_settle(set), CAIRN_OK);
        cairn_param_set_destroy(&set);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unsynced_and_new_gradients_are_rounded_once),
        cmocka_unit_test(listener_sees_the_sum),
        cmocka_unit_test(parameter_without_a_gradient_has_its_unsynced_sum_or_zero),
        cmocka_unit_test(unsynced_gradients_are_checked_when_added),
        cmocka_unit_test(zero_grad_forgets_unsynced_gradients),
        cmocka_unit_test(unsynced_gradient_whose_scale_changes_is_kept_separately),
        cmocka_unit_test(step_takes_unsynced_gradients_and_a_later_one_takes_them_back),
        cmocka_unit_test(step_finds_an_unsynced_overflow),
        cmocka_unit_test(parameters_that_become_half_hold_nothing),
        cmocka_unit_test(user_memory_may_be_written_again_once_it_is_unsynced),
    };
    return cmocka_run_group_tests(tests, make_env, end_env);
}
