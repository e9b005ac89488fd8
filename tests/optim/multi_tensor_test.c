/* The public multi-tensor operations against plain loops in double; on the device of CAIRN_DEVICE. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "../one_env.h"
#include "cairn/multi_tensor.h"
#include "core/convert.h"
#include "core/dtype.h"
#include "device/env.h"

enum { LIST = 5, MOST = 700 };
static const size_t sizes[LIST] = {1, 0, 67, MOST, 300};
static const cairn_dtype types[] = {CAIRN_F32, CAIRN_F16, CAIRN_BF16};

/* What stands on the device: x, y and dst one behind another, of every array. */
struct memory {
    cairn_env *env;
    char *x, *dst;
    float *y, *factor;
    double *norms; /* [LIST + 1] */
    uint32_t *found;
};

static float x_of(size_t a, size_t i) {
    return (float)((int)((7 * a + 3 * i) % 41) - 20) / 8;
}
static float y_of(size_t a, size_t i) {
    return (float)((int)((5 * a + i) % 37) - 18) / 4;
}

static void *device_memory(cairn_env *env, size_t nbytes) {
    void *p = NULL;
    OK(cairn__device_alloc(env->device, CAIRN__HOLDS_TENSORS, nbytes, &p));
    return p;
}

static void set_element(struct memory *m, cairn_dtype type, size_t a, size_t i, float value) {
    char bytes[4];
    cairn__convert(bytes, type, &value, CAIRN_F32, 1);
    OK(cairn__device_upload(m->env->device, m->x + (a * MOST + i) * cairn_dtype_nbytes(type), bytes,
                            cairn_dtype_nbytes(type)));
}

static void make(struct memory *m, cairn_env *env, cairn_dtype from) {
    static float x[LIST * MOST], y[LIST * MOST];
    static char narrow[LIST * MOST * 4];
    const float factor = 0.5f;
    const uint32_t none = 0;
    *m = (struct memory){.env = env};
    m->x = device_memory(env, sizeof(x)), m->dst = device_memory(env, sizeof(x)), m->y = device_memory(env, sizeof(y));
    m->factor = device_memory(env, sizeof(factor)), m->norms = device_memory(env, (LIST + 1) * sizeof(double));
    m->found = device_memory(env, sizeof(*m->found));
    for (size_t a = 0; a < LIST; a++)
        for (size_t i = 0; i < MOST; i++) x[a * MOST + i] = x_of(a, i), y[a * MOST + i] = y_of(a, i);
    cairn__convert(narrow, from, x, CAIRN_F32, LIST * MOST);
    OK(cairn__device_upload(env->device, m->x, narrow, LIST * MOST * cairn_dtype_nbytes(from)));
    OK(cairn__device_upload(env->device, m->y, y, sizeof(y)));
    OK(cairn__device_upload(env->device, m->factor, &factor, sizeof(factor)));
    OK(cairn__device_upload(env->device, m->found, &none, sizeof(none)));
}

static void drop(struct memory *m) {
    void *const all[] = {m->x, m->dst, m->y, m->factor, m->norms, m->found};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) cairn__device_free(m->env->device, all[i]);
}

static void list(const struct memory *m, cairn_dtype to, cairn_dtype from, cairn_array *arrays) {
    for (size_t a = 0; a < LIST; a++)
        arrays[a] = (cairn_array){.n = sizes[a],
                                  .dst = m->dst + a * MOST * cairn_dtype_nbytes(to),
                                  .x = m->x + a * MOST * cairn_dtype_nbytes(from),
                                  .y = m->y + a * MOST};
}

static uint32_t take_found(struct memory *m) {
    uint32_t found = 7;
    const uint32_t none = 0;
    OK(cairn__device_download(m->env->device, &found, m->found, sizeof(found)));
    OK(cairn__device_upload(m->env->device, m->found, &none, sizeof(none)));
    return found;
}

/* Values are such that all is exact. b NULL: scale. */
static void assert_result(struct memory *m, cairn_dtype to, const float *b) {
    static char got[LIST * MOST * 4];
    static float wide[LIST * MOST];
    OK(cairn__device_download(m->env->device, got, m->dst, LIST * MOST * cairn_dtype_nbytes(to)));
    cairn__convert(wide, CAIRN_F32, got, to, LIST * MOST);
    for (size_t a = 0; a < LIST; a++) {
        for (size_t i = 0; i < sizes[a]; i++) {
            const float want = 0.5f * x_of(a, i) + (b ? *b * y_of(a, i) : 0);
            if (wide[a * MOST + i] != want) fail_msg("array %zu, %zu: %g, want %g", a, i, wide[a * MOST + i], want);
        }
    }
}

static void scale_and_axpby_are_their_formulas_in_every_type(void **state) {
    const float b = -2, infinity = INFINITY;
    for (int f = 0; f < 3; f++) {
        for (int t = 0; t < 3; t++) {
            struct memory m;
            cairn_array arrays[LIST];
            make(&m, *state, types[f]);
            list(&m, types[t], types[f], arrays);
            OK(cairn_multi_tensor_scale(*state, arrays, LIST, types[t], types[f], m.factor, m.found));
            assert_result(&m, types[t], NULL);
            OK(cairn_multi_tensor_axpby(*state, arrays, LIST, types[t], types[f], m.factor, b, m.found));
            assert_result(&m, types[t], &b);
            assert_int_equal(take_found(&m), 0);
            set_element(&m, types[f], 3, MOST - 1, infinity);
            OK(cairn_multi_tensor_scale(*state, arrays, LIST, types[t], types[f], NULL, NULL));
            OK(cairn_multi_tensor_scale(*state, arrays, LIST, types[t], types[f], NULL, m.found));
            assert_int_equal(take_found(&m), 1);
            OK(cairn_multi_tensor_axpby(*state, arrays, LIST, types[t], types[f], NULL, b, m.found));
            assert_int_equal(take_found(&m), 1);
            drop(&m);
        }
    }
}

static void norms_are_of_each_array_and_of_all(void **state) {
    for (int f = 0; f < 3; f++) {
        struct memory m;
        cairn_array arrays[LIST];
        double got[LIST + 1], squares = 0;
        make(&m, *state, types[f]);
        list(&m, types[f], types[f], arrays);
        OK(cairn_multi_tensor_l2norm(*state, arrays, LIST, types[f], m.factor, &m.norms[LIST], m.norms, m.found));
        OK(cairn__device_download(m.env->device, got, m.norms, sizeof(got)));
        for (size_t a = 0; a < LIST; a++) {
            double of = 0;
            for (size_t i = 0; i < sizes[a]; i++) of += 0.25 * (double)x_of(a, i) * (double)x_of(a, i);
            assert_true(fabs(got[a] - sqrt(of)) <= 1e-6 * sqrt(of));
            squares += of;
        }
        assert_true(fabs(got[LIST] - sqrt(squares)) <= 1e-6 * sqrt(squares));
        assert_int_equal(take_found(&m), 0);
        set_element(&m, types[f], 2, 5, NAN);
        OK(cairn_multi_tensor_l2norm(*state, arrays, LIST, types[f], NULL, &m.norms[LIST], NULL, m.found));
        OK(cairn__device_download(m.env->device, got, m.norms, sizeof(got)));
        assert_true(!isfinite(got[LIST]));
        assert_int_equal(take_found(&m), 1);
        drop(&m);
    }
}

static void wrong_arrays_are_refused_by_their_number(void **state) {
    struct memory m;
    cairn_array arrays[LIST];
    cairn_env *env = *state;
    make(&m, env, CAIRN_F32);
    list(&m, CAIRN_F32, CAIRN_F32, arrays);
    arrays[2].x = NULL;
    REFUSED(cairn_multi_tensor_scale(env, arrays, LIST, CAIRN_F32, CAIRN_F32, NULL, NULL), CAIRN_EINVAL,
            "array 2: x is NULL");
    list(&m, CAIRN_F32, CAIRN_F32, arrays);
    arrays[4].dst = m.dst + 2;
    REFUSED(cairn_multi_tensor_scale(env, arrays, LIST, CAIRN_F32, CAIRN_F32, NULL, NULL), CAIRN_EINVAL,
            "array 4: dst at");
    arrays[3].y = NULL;
    REFUSED(cairn_multi_tensor_axpby(env, arrays, LIST, CAIRN_F32, CAIRN_F32, NULL, 1, NULL), CAIRN_EINVAL,
            "array 3: y is NULL");
    REFUSED(cairn_multi_tensor_scale(env, arrays, LIST, CAIRN_I32, CAIRN_F32, NULL, NULL), CAIRN_EINVAL,
            "dtype is 4 (i32)");
    REFUSED(cairn_multi_tensor_axpby(env, arrays, LIST, CAIRN_F32, CAIRN_F64, NULL, 1, NULL), CAIRN_EINVAL,
            "dtype is 6 (f64)");
    REFUSED(cairn_multi_tensor_scale(env, arrays, LIST, (cairn_dtype)0, CAIRN_F32, NULL, NULL), CAIRN_EINVAL,
            "to is 0; set the type of dst");
    REFUSED(cairn_multi_tensor_l2norm(env, arrays, LIST, CAIRN_F32, NULL, NULL, NULL, NULL), CAIRN_EINVAL,
            "norm is NULL");
    REFUSED(cairn_multi_tensor_l2norm(env, arrays, 0, CAIRN_F32, NULL, (double *)((char *)m.norms + 4), NULL, NULL),
            CAIRN_EINVAL, "norm is not aligned to 8 bytes");
    REFUSED(cairn_multi_tensor_l2norm(NULL, arrays, LIST, CAIRN_F32, NULL, m.norms, NULL, NULL), CAIRN_EINVAL,
            "must be set");
    REFUSED(cairn_multi_tensor_scale_sized(12, env, arrays, LIST, CAIRN_F32, CAIRN_F32, NULL, NULL), CAIRN_EINVAL,
            "cairn_array: 12 is not a size");
    OK(cairn_multi_tensor_l2norm(env, arrays, LIST, CAIRN_F32, NULL, m.norms, NULL,
                                 NULL)); /* needs neither dst nor y */
    OK(cairn_multi_tensor_scale(env, NULL, 0, CAIRN_F32, CAIRN_F32, NULL, NULL));
    drop(&m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scale_and_axpby_are_their_formulas_in_every_type),
        cmocka_unit_test(norms_are_of_each_array_and_of_all),
        cmocka_unit_test(wrong_arrays_are_refused_by_their_number),
    };
    return cmocka_run_group_tests(tests, make_env, end_env);
}
