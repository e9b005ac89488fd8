/* The CPU's convolutions in every type against plain loops in f64, for shapes that exercise every algorithm. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conv_sizes.h"
#include "core/alloc.h"
#include "core/dtype.h"
#include "device/cpu/cpu.h"

/* Operands and results of one convolution, in one type. */
enum { X, WEIGHT, BIAS, DY, Y, DX, DWEIGHT, DBIAS, ARRAYS };
struct arrays {
    size_t n[ARRAYS];
    void *data[ARRAYS];
};

static struct arrays arrays_of(const struct cairn__conv *v, cairn_dtype t) {
    const size_t x = (size_t)(v->n * v->c * v->h * v->w), y = (size_t)(v->n * v->k * v->p * v->q);
    const size_t w = (size_t)(v->c * v->k / v->groups * v->r * v->s), b = (size_t)v->k;
    struct arrays a = {.n = {x, w, b, y, y, x, w, b}};
    for (int i = 0; i < ARRAYS; i++)
        assert_int_equal(cairn__calloc(a.n[i] + 1, cairn_dtype_nbytes(t), &a.data[i]), CAIRN_OK);
    return a;
}

static void arrays_end(struct arrays *a) {
    for (int i = 0; i < ARRAYS; i++) cairn__free(a->data[i]);
}

static double get(cairn_dtype t, const void *x, size_t i) {
    if (t == CAIRN_F64) return ((const double *)x)[i];
    return (double)cairn__dtype(t)->to_f32((const char *)x + i * cairn_dtype_nbytes(t));
}

static void put(cairn_dtype t, void *x, size_t i, double value) {
    if (t == CAIRN_F64) {
        ((double *)x)[i] = value;
    } else {
        cairn__dtype(t)->from_f32((char *)x + i * cairn_dtype_nbytes(t), (float)value);
    }
}

/* The same values in both, as the narrower has them. */
static void draw(struct arrays *a, cairn_dtype t, struct arrays *wide) {
    unsigned state = 12345;
    for (int i = X; i <= DY; i++) {
        for (size_t j = 0; j < a->n[i]; j++) {
            state = state * 1664525u + 1013904223u;
            put(t, a->data[i], j, (double)(state >> 8) / (1 << 23) - 1.0);
            put(CAIRN_F64, wide->data[i], j, get(t, a->data[i], j));
        }
    }
}

static void compute(struct cairn_device *d, struct cairn__conv v, cairn_dtype t, struct arrays *a) {
    v.dtype = t;
    v.x = a->data[X], v.weight = a->data[WEIGHT], v.bias = a->data[BIAS], v.dy = a->data[DY];
    v.y = a->data[Y], v.dx = a->data[DX], v.dweight = a->data[DWEIGHT], v.dbias = a->data[DBIAS];
    d->math->conv(d, &v);
    d->math->conv_backward(d, &v);
    assert_int_equal(d->ops->check(d), CAIRN_OK);
}

/* Terms are below 1: an error of a sum of `terms` of them in f32, and one rounding to t. */
static void assert_near(const char *name, cairn_dtype t, const struct arrays *got, const struct arrays *want, int i,
                        double terms) {
    const double unit = t == CAIRN_F32 ? 0 : t == CAIRN_F16 ? 0x1p-10 : 0x1p-7;
    for (size_t j = 0; j < got->n[i]; j++) {
        const double g = get(t, got->data[i], j), w = get(CAIRN_F64, want->data[i], j);
        if (!(fabs(g - w) <= unit * fabs(w) + terms * 0x1p-22)) {
            fail_msg("%s, %s, array %d, element %zu: got %.9g, want %.9g", name, cairn_dtype_name(t), i, j, g, w);
        }
    }
}

static void every_type_is_near_the_loops_in_f64(void **state) {
    struct cairn_device *d = *state;
    static const cairn_dtype types[] = {CAIRN_F32, CAIRN_F16, CAIRN_BF16};
    for (int i = 0; i < CASES * 3; i++) {
        const struct sizes *z = &conv_cases[i / 3];
        const struct cairn__conv v = conv_of(z);
        const cairn_dtype t = types[i % 3];
        struct arrays got = arrays_of(&v, t), want = arrays_of(&v, CAIRN_F64);
        draw(&got, t, &want);
        compute(d, v, t, &got);
        compute(d, v, CAIRN_F64, &want);
        const double taps = (double)(v.r * v.s), pixels = (double)(v.n * v.p * v.q + v.n * v.h * v.w);
        const double terms[ARRAYS] = {
            [Y] = taps * (double)v.c + 1, [DX] = taps * (double)v.k, [DWEIGHT] = pixels, [DBIAS] = pixels};
        for (int a = Y; a < ARRAYS; a++) assert_near(z->name, t, &got, &want, a, terms[a]);
        arrays_end(&got);
        arrays_end(&want);
    }
}

/* The loops against the sentence in math_passes.h, written once more in the slowest way. */
static double at(const struct cairn__conv *v, const double *x, int64_t n, int64_t c, int64_t y, int64_t z) {
    const bool inside = y >= 0 && y < v->h && z >= 0 && z < v->w;
    return inside ? x[((n * v->c + c) * v->h + y) * v->w + z] : 0;
}

static double expected(const struct cairn__conv *v, const struct arrays *a, int64_t n, int64_t k, int64_t p,
                       int64_t q) {
    const double *x = a->data[X], *w = a->data[WEIGHT];
    const int64_t cg = v->c / v->groups, first = k / (v->k / v->groups) * cg;
    double sum = ((const double *)a->data[BIAS])[k];
    for (int64_t i = 0; i < cg * v->r * v->s; i++) {
        const int64_t c = i / (v->r * v->s), r = i / v->s % v->r, s = i % v->s;
        sum +=
            w[k * cg * v->r * v->s + i] * at(v, x, n, first + c, p * v->stride[0] - v->padding[0] + r * v->dilation[0],
                                             q * v->stride[1] - v->padding[1] + s * v->dilation[1]);
    }
    return sum;
}

static void loops_compute_the_formula(void **state) {
    struct cairn_device *d = *state;
    for (int i = 0; i < CASES; i++) {
        const struct cairn__conv v = conv_of(&conv_cases[i]);
        if (v.transposed) continue;
        struct arrays a = arrays_of(&v, CAIRN_F64);
        draw(&a, CAIRN_F64, &a);
        compute(d, v, CAIRN_F64, &a);
        for (size_t j = 0; j < a.n[Y]; j++) {
            const int64_t l = (int64_t)j, q = l % v.q, p = l / v.q % v.p, k = l / v.q / v.p % v.k;
            const double want = expected(&v, &a, l / v.q / v.p / v.k, k, p, q), got = get(CAIRN_F64, a.data[Y], j);
            assert_true(fabs(got - want) <= 1e-12 * (double)(v.c * v.r * v.s));
        }
        arrays_end(&a);
    }
}

/* sum of dy * (y - bias) is sum of dx * x and of dweight * weight, since both are linear: gradients need no other
 * check. */
static void gradients_are_adjoint_to_the_forward(void **state) {
    struct cairn_device *d = *state;
    for (int i = 0; i < CASES; i++) {
        const struct cairn__conv v = conv_of(&conv_cases[i]);
        struct arrays a = arrays_of(&v, CAIRN_F64);
        double sums[3] = {0};
        draw(&a, CAIRN_F64, &a);
        memset(a.data[BIAS], 0, a.n[BIAS] * sizeof(double));
        compute(d, v, CAIRN_F64, &a);
        static const int pairs[3][2] = {{Y, DY}, {X, DX}, {WEIGHT, DWEIGHT}};
        for (int p = 0; p < 3; p++) {
            for (size_t j = 0; j < a.n[pairs[p][0]]; j++)
                sums[p] += get(CAIRN_F64, a.data[pairs[p][0]], j) * get(CAIRN_F64, a.data[pairs[p][1]], j);
        }
        assert_true(fabs(sums[1] - sums[0]) <= 1e-9 * (1 + fabs(sums[0])));
        assert_true(fabs(sums[2] - sums[0]) <= 1e-9 * (1 + fabs(sums[0])));
        arrays_end(&a);
    }
}

static void equal_calls_give_equal_bits_and_allocate_nothing(void **state) {
    struct cairn_device *d = *state;
    for (int i = 0; i < CASES; i++) {
        const struct cairn__conv v = conv_of(&conv_cases[i]);
        struct arrays first = arrays_of(&v, CAIRN_F32), second = arrays_of(&v, CAIRN_F32),
                      unused = arrays_of(&v, CAIRN_F64);
        draw(&first, CAIRN_F32, &unused), draw(&second, CAIRN_F32, &unused);
        compute(d, v, CAIRN_F32, &first);
        const uint64_t before = cairn__alloc_counters().allocations;
        compute(d, v, CAIRN_F32, &second);
        assert_int_equal(cairn__alloc_counters().allocations, before);
        for (int a = Y; a < ARRAYS; a++) assert_memory_equal(first.data[a], second.data[a], first.n[a] * sizeof(float));
        arrays_end(&first), arrays_end(&second), arrays_end(&unused);
    }
}

/* Bits of every type, with one thread and with sixteen. */
static void threads_change_no_bits(void **state) {
    struct cairn_device *d = *state;
    static const cairn_dtype types[] = {CAIRN_F32, CAIRN_BF16};
    for (int i = 0; i < CASES * 2; i++) {
        const struct cairn__conv v = conv_of(&conv_cases[i / 2]);
        const cairn_dtype t = types[i % 2];
        struct arrays one = arrays_of(&v, t), many = arrays_of(&v, t), unused = arrays_of(&v, CAIRN_F64);
        draw(&one, t, &unused), draw(&many, t, &unused);
        compute(d, v, t, &one);
        assert_int_equal(cairn_set_num_threads(16), CAIRN_OK);
        compute(d, v, t, &many);
        assert_int_equal(cairn_set_num_threads(1), CAIRN_OK);
        for (int a = Y; a < ARRAYS; a++) {
            if (memcmp(one.data[a], many.data[a], one.n[a] * cairn_dtype_nbytes(t)) != 0)
                fail_msg("%s, %s, array %d", conv_cases[i / 2].name, cairn_dtype_name(t), a);
        }
        arrays_end(&one), arrays_end(&many), arrays_end(&unused);
    }
}

/* More shapes than are kept at once. */
static void more_shapes_than_are_kept_give_right_convolutions(void **state) {
    struct cairn_device *d = *state;
    for (int64_t w = 1; w <= 700; w++) {
        const struct sizes z = {"", 1, 1, 1, w, 1, 1, 1, 1, {1, 1}, {0, 0}, {1, 1}, {0, 0}, false};
        const struct cairn__conv v = conv_of(&z);
        struct arrays a = arrays_of(&v, CAIRN_F32), unused = arrays_of(&v, CAIRN_F64);
        draw(&a, CAIRN_F32, &unused);
        compute(d, v, CAIRN_F32, &a);
        const float *x = a.data[X], *weight = a.data[WEIGHT], *bias = a.data[BIAS], *y = a.data[Y];
        for (int64_t i = 0; i < w; i++) assert_true(fabsf(y[i] - (x[i] * weight[0] + bias[0])) <= 1e-6f);
        arrays_end(&a), arrays_end(&unused);
    }
}

static void empty_sums_give_zeros_and_the_bias(void **state) {
    struct cairn_device *d = *state;
    struct sizes z = {"", 2, 3, 4, 4, 5, 3, 3, 1, {1, 1}, {1, 1}, {1, 1}, {0, 0}, false};
    z.n = 0;
    struct cairn__conv v = conv_of(&z);
    struct arrays a = arrays_of(&v, CAIRN_F32);
    memset(a.data[DWEIGHT], 1, a.n[DWEIGHT] * sizeof(float));
    memset(a.data[DBIAS], 1, a.n[DBIAS] * sizeof(float));
    compute(d, v, CAIRN_F32, &a);
    for (size_t i = 0; i < a.n[DWEIGHT]; i++) assert_true(((const float *)a.data[DWEIGHT])[i] == 0);
    for (size_t i = 0; i < a.n[DBIAS]; i++) assert_true(((const float *)a.data[DBIAS])[i] == 0);
    arrays_end(&a);
    z.n = 1, z.c = 0;
    v = conv_of(&z);
    a = arrays_of(&v, CAIRN_F32);
    for (int k = 0; k < 5; k++) ((float *)a.data[BIAS])[k] = (float)k;
    compute(d, v, CAIRN_F32, &a);
    for (size_t i = 0; i < a.n[Y]; i++) assert_true(((const float *)a.data[Y])[i] == (float)(i / 16));
    arrays_end(&a);
}

static int setup(void **state) {
    return cairn__device_open("cpu", 0, (struct cairn_device **)state) == CAIRN_OK ? 0 : -1;
}

static int teardown(void **state) {
    cairn__device_close((struct cairn_device **)state);
    return cairn__alloc_counters().alive == 0 ? 0 : -1;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loops_compute_the_formula),
        cmocka_unit_test(gradients_are_adjoint_to_the_forward),
        cmocka_unit_test(every_type_is_near_the_loops_in_f64),
        cmocka_unit_test(equal_calls_give_equal_bits_and_allocate_nothing),
        cmocka_unit_test(threads_change_no_bits),
        cmocka_unit_test(more_shapes_than_are_kept_give_right_convolutions),
        cmocka_unit_test(empty_sums_give_zeros_and_the_bias),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
