/* The CPU's maps, folds and running sums against plain loops over indices, in every type, for views of many layouts.
 * Values are small multiples of 1/4, so that every sum is exact and bits are compared. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "core/alloc.h"
#include "device/cpu/blocks.h"
#include "device/device.h"

enum { ROOM = 1 << 17, LAYOUTS = 5 };

static struct cairn_device *d;
static double rooms[4][ROOM]; /* of any type; three operands and the result */
static double want[ROOM];

static int open_device(void **state) {
    (void)state;
    return cairn__device_open("cpu", 0, &d) == CAIRN_OK ? 0 : -1;
}

static int close_device(void **state) {
    (void)state;
    cairn__device_close(&d);
    return cairn__alloc_counters().alive == 0 ? 0 : -1;
}

static const struct shape {
    int ndim;
    int64_t size[4];
} shapes[] = {
    {0, {0}},         {1, {1}},          {1, {7}},       {1, {0}},          {1, {3000}},         {2, {3, 5}},
    {2, {1, 9}},      {2, {33, 65}},     {2, {40, 300}}, {2, {2, 2100}},    {2, {2000, 3}},      {3, {4, 1, 6}},
    {3, {3, 130, 5}}, {3, {2, 3, 1100}}, {3, {0, 4, 2}}, {4, {2, 3, 4, 5}}, {4, {3, 2, 33, 34}}, {4, {5, 1, 7, 129}},
};
enum { SHAPES = sizeof(shapes) / sizeof(shapes[0]) };

/* The layout-th view of a shape: dense; its axes reversed in memory; every second element; broadcast along the first
 * axis, along the last. */
static struct cairn__view view_of(const struct shape *s, int layout, void *data, cairn_dtype t) {
    struct cairn__view v = cairn__view_dense(data, t, s->ndim, s->size);
    if (layout == 1) {
        int64_t stride = 1;
        for (int i = 0; i < s->ndim; i++) v.stride[i] = stride, stride *= s->size[i];
    }
    if (layout == 2) {
        for (int i = 0; i < s->ndim; i++) v.stride[i] *= 2;
    }
    if (layout == 3 && s->ndim > 0) v.stride[0] = 0;
    if (layout == 4 && s->ndim > 0) v.stride[s->ndim - 1] = 0;
    return v;
}

static void *at(const struct cairn__view *v, size_t i) {
    int64_t left = (int64_t)i, offset = 0;
    for (int k = v->ndim - 1; k >= 0; k--) {
        offset += left % v->size[k] * v->stride[k];
        left /= v->size[k];
    }
    return (char *)v->data + offset * (int64_t)cairn_dtype_nbytes(v->dtype);
}

static double get(const struct cairn__view *v, size_t i) {
    return cairn__block_get(v->dtype, at(v, i));
}

static void fill(int room, cairn_dtype t, unsigned seed) {
    for (size_t i = 0; i < ROOM; i++) {
        seed = seed * 1664525u + 1013904223u;
        const int value = (int)(seed >> 20) % 17 - 8;
        cairn__block_put(t, (char *)rooms[room] + i * cairn_dtype_nbytes(t), t == CAIRN_BOOL ? value > 0 : value / 4.0);
    }
}

static void assert_values(const struct cairn__view *got, const char *what) {
    const size_t n = cairn__view_numel(got);
    for (size_t i = 0; i < n; i++) {
        if (get(got, i) == want[i] || (isnan(want[i]) && isnan(get(got, i)))) continue;
        print_error("%s, type %d, element %zu of [%lld, %lld, %lld, %lld] (%d)\n", what, (int)got->dtype, i,
                    (long long)got->size[0], (long long)got->size[1], (long long)got->size[2], (long long)got->size[3],
                    got->ndim);
        assert_true(get(got, i) == want[i]);
    }
}

/* ---- maps ---- */

static void check_addcmul(const struct shape *s, const int layouts[4], const cairn_dtype types[4]) {
    struct cairn__view x[3], y = view_of(s, layouts[3], rooms[3], types[3]);
    for (int i = 0; i < 3; i++) x[i] = view_of(s, layouts[i], rooms[i], types[i]);
    const size_t n = cairn__view_numel(&y);
    for (size_t i = 0; i < n; i++) want[i] = get(&x[0], i) + 0.5 * (get(&x[1], i) * get(&x[2], i));
    d->math->map(d, CAIRN__MAP_ADDCMUL, &y, x, (const double[]){0.5, 0});
    assert_values(&y, "addcmul");
}

static void a_map_takes_operands_of_any_layout_and_type(void **state) {
    static const cairn_dtype types[][4] = {
        {CAIRN_F32, CAIRN_F32, CAIRN_F32, CAIRN_F32},  {CAIRN_F64, CAIRN_F64, CAIRN_F64, CAIRN_F64},
        {CAIRN_F16, CAIRN_F32, CAIRN_BF16, CAIRN_F32}, {CAIRN_F32, CAIRN_BOOL, CAIRN_I64, CAIRN_F64},
        {CAIRN_I32, CAIRN_BOOL, CAIRN_F16, CAIRN_F32},
    };
    (void)state;
    for (size_t t = 0; t < sizeof(types) / sizeof(types[0]); t++) {
        for (int i = 0; i < 3; i++) fill(i, types[t][i], (unsigned)i + 1);
        for (int s = 0; s < SHAPES; s++) {
            for (int i = 0; i < LAYOUTS * LAYOUTS * 3; i++) {
                const int layouts[] = {i % LAYOUTS, i / LAYOUTS % LAYOUTS, (i + s) % LAYOUTS, i / LAYOUTS / LAYOUTS};
                check_addcmul(&shapes[s], layouts, types[t]);
            }
        }
    }
}

static void check_copy(const struct shape *s, int from, int to, cairn_dtype x_type, cairn_dtype y_type) {
    const struct cairn__view x = view_of(s, from, rooms[0], x_type), y = view_of(s, to, rooms[3], y_type);
    const size_t n = cairn__view_numel(&y);
    for (size_t i = 0; i < n; i++) {
        want[i] = get(&x, i);
        if (y_type == CAIRN_BOOL) want[i] = want[i] != 0;
        if (y_type == CAIRN_I32 || y_type == CAIRN_I64) want[i] = (double)(int64_t)want[i];
    }
    d->math->map(d, CAIRN__MAP_COPY, &y, &x, NULL);
    assert_values(&y, "copy");
}

static void a_copy_moves_every_type_between_any_layouts(void **state) {
    (void)state;
    for (int from = CAIRN_F32; cairn__is_tensor_dtype((cairn_dtype)from); from++) {
        fill(0, (cairn_dtype)from, 5);
        for (int to = CAIRN_F32; cairn__is_tensor_dtype((cairn_dtype)to); to++) {
            for (int s = 0; s < SHAPES; s++) {
                for (int i = 0; i < LAYOUTS * 3; i++)
                    check_copy(&shapes[s], i % LAYOUTS, i / LAYOUTS, (cairn_dtype)from, (cairn_dtype)to);
            }
        }
    }
}

static void a_copy_between_equal_types_keeps_every_bit(void **state) {
    static const uint32_t nan = 0x7fa12345;
    uint32_t got = 0;
    const struct cairn__view x = cairn__view_dense((void *)(uintptr_t)&nan, CAIRN_F32, 0, NULL);
    const struct cairn__view y = cairn__view_dense(&got, CAIRN_F32, 0, NULL);
    (void)state;
    d->math->map(d, CAIRN__MAP_COPY, &y, &x, NULL);
    assert_int_equal(got, nan);
}

static void permuted_copy_by_tiles_is_right(void **state) {
    static const int orders[][4] = {{0, 2, 1, 3}, {0, 1, 3, 2}, {3, 2, 1, 0}, {1, 3, 0, 2}};
    static const struct shape shape = {4, {3, 35, 4, 66}};
    (void)state;
    fill(0, CAIRN_F16, 9);
    for (int o = 0; o < 4; o++) {
        const struct cairn__view dense = cairn__view_dense(rooms[0], CAIRN_F16, 4, shape.size);
        struct cairn__view x = dense;
        for (int i = 0; i < 4; i++) x.size[i] = dense.size[orders[o][i]], x.stride[i] = dense.stride[orders[o][i]];
        const struct cairn__view y = cairn__view_dense(rooms[3], CAIRN_F16, 4, x.size);
        for (size_t i = 0; i < cairn__view_numel(&x); i++) want[i] = get(&x, i);
        d->math->map(d, CAIRN__MAP_COPY, &y, &x, NULL);
        assert_values(&y, "permuted copy");
    }
}

static void a_sum_of_a_map_has_the_bits_of_the_kernel_over_all_of_it(void **state) {
    const struct cairn__kernels *k = cairn__kernels_cpu(0);
    static float dense[1][ROOM];
    (void)state;
    for (size_t i = 0; i < ROOM; i++) ((float *)rooms[0])[i] = sinf((float)i);
    for (int s = 0; s < SHAPES; s++) {
        for (int layout = 0; layout < LAYOUTS; layout++) {
            float got = -1;
            const struct cairn__view x = view_of(&shapes[s], layout, rooms[0], CAIRN_F32);
            const struct cairn__view y = cairn__view_dense(&got, CAIRN_F32, 0, NULL);
            const size_t n = cairn__view_numel(&x);
            for (size_t i = 0; i < n; i++) dense[0][i] = (float)get(&x, i) * (float)get(&x, i);
            d->math->map_sum(d, CAIRN__MAP_SQUARE, &y, &x, NULL, 3);
            assert_true(got == (float)(k->sum[CAIRN_F32](dense[0], n) / 3));
        }
    }
}

/* ---- folds ---- */

/* dst over the axes that stay, dense; 0 along the others. */
static struct cairn__view folded_view(const struct cairn__view *x, unsigned folded, void *data) {
    struct cairn__view v = *x;
    int64_t stride = 1;
    v.data = data;
    for (int i = x->ndim - 1; i >= 0; i--) {
        v.stride[i] = folded >> i & 1 ? 0 : stride;
        if (!(folded >> i & 1)) stride *= x->size[i];
    }
    return v;
}

static double fold_one(enum cairn__fold f, double into, double x) {
    switch (f) {
    case CAIRN__FOLD_SUM_SQUARES:
        return into + x * x;
    case CAIRN__FOLD_SUM_ABS:
        return into + fabs(x);
    case CAIRN__FOLD_PRODUCT:
        return into * x;
    case CAIRN__FOLD_MAX:
        return x > into ? x : into;
    case CAIRN__FOLD_MIN:
        return x < into ? x : into;
    default:
        return into + x;
    }
}

static double fold_start(enum cairn__fold f) {
    return f == CAIRN__FOLD_PRODUCT ? 1 : f == CAIRN__FOLD_MAX ? -INFINITY : f == CAIRN__FOLD_MIN ? INFINITY : 0;
}

static size_t num_kept(const struct cairn__view *x, unsigned folded) {
    size_t n = 1;
    for (int i = 0; i < x->ndim; i++) n *= folded >> i & 1 ? 1 : (size_t)x->size[i];
    return n;
}

/* want[result of each element] = fold of them. */
static void fold_plainly(const struct cairn__view *x, const struct cairn__view *y, unsigned folded,
                         enum cairn__fold f) {
    const size_t width = cairn_dtype_nbytes(y->dtype);
    for (size_t i = 0; i < num_kept(x, folded); i++) want[i] = fold_start(f);
    for (size_t i = 0; i < cairn__view_numel(x); i++) {
        double *into = &want[(size_t)((char *)at(y, i) - (char *)y->data) / width];
        *into = fold_one(f, *into, get(x, i));
    }
}

static void check_fold(const struct shape *s, int layout, unsigned folded, enum cairn__fold f, cairn_dtype t) {
    const struct cairn__view x = view_of(s, layout, rooms[0], t), y = folded_view(&x, folded, rooms[3]);
    const int64_t n = (int64_t)num_kept(&x, folded);
    fold_plainly(&x, &y, folded, f);
    for (int64_t i = 0; i < n; i++) want[i] /= 2;
    if (t == CAIRN_F16 || t == CAIRN_BF16) {
        for (int64_t i = 0; i < n; i++) {
            uint16_t rounded;
            cairn__block_put(t, &rounded, want[i]);
            want[i] = cairn__block_get(t, &rounded);
        }
    }
    d->math->fold(d, f, &y, &x, 2, false);
    const struct cairn__view got = cairn__view_dense(rooms[3], t, 1, &n);
    assert_values(&got, "fold");
}

static void a_fold_takes_any_axes_of_any_layout(void **state) {
    static const enum cairn__fold folds[] = {CAIRN__FOLD_SUM, CAIRN__FOLD_SUM_SQUARES, CAIRN__FOLD_SUM_ABS,
                                             CAIRN__FOLD_MAX, CAIRN__FOLD_MIN};
    static const cairn_dtype types[] = {CAIRN_F32, CAIRN_F16, CAIRN_BF16, CAIRN_F64};
    (void)state;
    for (int t = 0; t < 4; t++) {
        fill(0, types[t], 3);
        for (int s = 0; s < SHAPES; s++) {
            for (int layout = 0; layout < LAYOUTS; layout++) {
                for (unsigned folded = 0; folded < 1u << shapes[s].ndim; folded++) {
                    for (int f = 0; f < 5; f++) check_fold(&shapes[s], layout, folded, folds[f], types[t]);
                }
            }
        }
    }
}

static void a_product_of_ones_and_twos_is_exact_and_keeps_zeros(void **state) {
    static const struct shape shape = {2, {37, 41}};
    (void)state;
    for (size_t i = 0; i < 37 * 41; i++) ((float *)rooms[0])[i] = i % 64 == 0 ? -2 : i == 700 ? 0 : 1;
    for (unsigned folded = 0; folded < 4; folded++) check_fold(&shape, 0, folded, CAIRN__FOLD_PRODUCT, CAIRN_F32);
}

static void a_fold_has_the_same_bits_for_all_strides(void **state) {
    static const struct shape shape = {3, {9, 130, 70}};
    static float dense[9 * 130 * 70], got[2][9 * 130 * 70];
    (void)state;
    for (size_t i = 0; i < ROOM; i++) ((float *)rooms[0])[i] = sinf((float)i);
    const struct cairn__view odd = view_of(&shape, 1, rooms[0], CAIRN_F32);
    for (size_t i = 0; i < cairn__view_numel(&odd); i++) dense[i] = (float)get(&odd, i);
    const struct cairn__view even = view_of(&shape, 0, dense, CAIRN_F32);
    for (unsigned folded = 1; folded < 8; folded++) {
        const struct cairn__view y0 = folded_view(&odd, folded, got[0]), y1 = folded_view(&odd, folded, got[1]);
        d->math->fold(d, CAIRN__FOLD_SUM_SQUARES, &y0, &odd, 7, true);
        d->math->fold(d, CAIRN__FOLD_SUM_SQUARES, &y1, &even, 7, true);
        assert_memory_equal(got[0], got[1], num_kept(&odd, folded) * sizeof(float));
    }
}

static void a_variance_is_taken_about_the_mean(void **state) {
    static double mean[ROOM];
    (void)state;
    fill(0, CAIRN_F64, 3);
    for (int s = 0; s < SHAPES; s++) {
        for (unsigned folded = 0; folded < 1u << shapes[s].ndim; folded++) {
            const struct cairn__view x = view_of(&shapes[s], s % LAYOUTS, rooms[0], CAIRN_F64);
            const struct cairn__view y = folded_view(&x, folded, rooms[3]);
            const size_t kept = num_kept(&x, folded), n = kept ? cairn__view_numel(&x) / kept : 0;
            d->math->variance(d, &y, mean, &x, 4, false);
            fold_plainly(&x, &y, folded, CAIRN__FOLD_SUM);
            for (size_t i = 0; n && i < kept; i++) assert_true(fabs(mean[i] - want[i] / (double)n) <= 1e-12);
            for (size_t i = 0; i < kept; i++) want[i] = 0;
            for (size_t i = 0; i < cairn__view_numel(&x); i++) {
                const size_t to = (size_t)((double *)at(&y, i) - rooms[3]);
                want[to] += (get(&x, i) - mean[to]) * (get(&x, i) - mean[to]) / 4;
            }
            for (size_t i = 0; n && i < kept; i++) assert_true(fabs(rooms[3][i] - want[i]) <= 1e-9 * (1 + want[i]));
        }
    }
}

/* ---- along one axis ---- */

static void check_arg(const struct shape *s, int layout, int axis, bool least) {
    const struct cairn__view x = view_of(s, layout, rooms[0], CAIRN_F32);
    struct shape kept = *s;
    if (cairn__view_numel(&x) == 0) return; /* nn refuses it */
    kept.size[axis] = 1;
    const struct cairn__view y = view_of(&kept, 0, rooms[3], CAIRN_I64), best = view_of(&kept, 2, rooms[2], CAIRN_F32);
    d->math->arg_max(d, &y, &best, &x, axis, least);
    for (size_t i = 0; i < cairn__view_numel(&y); i++) {
        struct cairn__view line = {.dtype = CAIRN_F32, .ndim = 1, .size = {s->size[axis]}, .stride = {x.stride[axis]}};
        struct cairn__view first = x;
        first.size[axis] = 1;
        line.data = at(&first, i);
        size_t place = 0;
        for (size_t j = 1; j < (size_t)s->size[axis]; j++) {
            const double a = get(&line, j), b = get(&line, place);
            if (isnan(b)) break;
            if (isnan(a) || (least ? a < b : a > b)) place = j;
        }
        assert_int_equal(*(int64_t *)at(&y, i), place);
        assert_true(get(&best, i) == get(&line, place) || isnan(get(&line, place)));
    }
}

static void the_first_maximum_is_found_and_nan_is_above_all(void **state) {
    (void)state;
    fill(0, CAIRN_F32, 8);
    for (size_t i = 0; i < ROOM; i += 7919) ((float *)rooms[0])[i] = NAN;
    for (int s = 0; s < SHAPES; s++) {
        for (int i = 0; i < LAYOUTS * 2; i++) {
            for (int axis = 0; axis < shapes[s].ndim; axis++) check_arg(&shapes[s], i / 2, axis, i % 2);
        }
    }
}

static void check_cumulate(const struct shape *s, int layout, int axis, bool reverse) {
    const struct cairn__view x = view_of(s, layout, rooms[0], CAIRN_F64), y = view_of(s, 2, rooms[3], CAIRN_F64);
    struct cairn__view first = x, sum = view_of(s, 0, want, CAIRN_F64), to = sum;
    d->math->cumulate(d, &y, &x, axis, false, reverse);
    first.size[axis] = to.size[axis] = 1;
    for (size_t i = 0; i < cairn__view_numel(&x) / (size_t)(s->size[axis] ? s->size[axis] : 1); i++) {
        const double *line = at(&first, i);
        double *out = at(&to, i), total = 0;
        for (int64_t j = 0; j < s->size[axis]; j++) {
            const int64_t k = reverse ? s->size[axis] - 1 - j : j;
            out[k * sum.stride[axis]] = total += line[k * x.stride[axis]];
        }
    }
    assert_values(&y, "cumulate");
}

static void running_sums_go_along_any_axis_both_ways(void **state) {
    (void)state;
    fill(0, CAIRN_F64, 8);
    for (int s = 0; s < SHAPES; s++) {
        for (int i = 0; i < LAYOUTS * 2; i++) {
            for (int axis = 0; axis < shapes[s].ndim; axis++) check_cumulate(&shapes[s], i / 2, axis, i % 2);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_map_takes_operands_of_any_layout_and_type),
        cmocka_unit_test(a_copy_moves_every_type_between_any_layouts),
        cmocka_unit_test(a_copy_between_equal_types_keeps_every_bit),
        cmocka_unit_test(permuted_copy_by_tiles_is_right),
        cmocka_unit_test(a_sum_of_a_map_has_the_bits_of_the_kernel_over_all_of_it),
        cmocka_unit_test(a_fold_takes_any_axes_of_any_layout),
        cmocka_unit_test(a_product_of_ones_and_twos_is_exact_and_keeps_zeros),
        cmocka_unit_test(a_fold_has_the_same_bits_for_all_strides),
        cmocka_unit_test(a_variance_is_taken_about_the_mean),
        cmocka_unit_test(the_first_maximum_is_found_and_nan_is_above_all),
        cmocka_unit_test(running_sums_go_along_any_axis_both_ways),
    };
    return cmocka_run_group_tests(tests, open_device, close_device);
}
