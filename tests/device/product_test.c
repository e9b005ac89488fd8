/* Products of views against plain sums: batches, strides, shared operands, sums over a batch. Values are small
 * integers, so that every type and every order gives the same result. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/dtype.h"
#include "device/device.h"

/* SCATTERED: no view of check_random's reaches beyond; every second of (3 + 1)^3 * (6 + 1)^2 elements. */
enum { ROOM = 1 << 16, SCATTERED = 2 * 64 * 49, MOST = CAIRN_MAX_DIMS };

static struct cairn_device *device;
static char memory[3][ROOM * sizeof(double)];

static const cairn_dtype types[] = {CAIRN_F32, CAIRN_F16, CAIRN_BF16, CAIRN_F64};

static void set(cairn_dtype t, void *x, size_t i, double value) {
    if (t == CAIRN_F64) {
        ((double *)x)[i] = value;
    } else {
        cairn__dtype(t)->from_f32((char *)x + i * cairn_dtype_nbytes(t), (float)value);
    }
}

static double get(const struct cairn__view *v, const int64_t *index) {
    size_t i = 0;
    for (int d = 0; d < v->ndim; d++) i += (size_t)(index[d] * v->stride[d]);
    if (v->dtype == CAIRN_F64) return ((const double *)v->data)[i];
    return (double)cairn__dtype(v->dtype)->to_f32((const char *)v->data + i * cairn_dtype_nbytes(v->dtype));
}

/* The sum that c[index] is: over k, and over the batch where c has stride 0. */
static double expected(const struct cairn__view *c, const struct cairn__view *a, const struct cairn__view *b,
                       const int64_t *index) {
    const int n = c->ndim;
    int64_t at_a[MOST], at_b[MOST], other[MOST];
    double sum = 0;
    size_t terms = 1;
    memcpy(other, index, sizeof(other));
    for (int d = 0; d < n - 2; d++) terms *= c->stride[d] == 0 ? (size_t)c->size[d] : 1;
    for (size_t t = 0; t < terms; t++) {
        size_t rest = t;
        for (int d = 0; d < n - 2; d++) {
            if (c->stride[d] != 0) continue;
            other[d] = (int64_t)(rest % (size_t)c->size[d]);
            rest /= (size_t)c->size[d];
        }
        memcpy(at_a, other, sizeof(at_a)), memcpy(at_b, other, sizeof(at_b));
        for (int64_t l = 0; l < a->size[n - 1]; l++) {
            at_a[n - 1] = at_b[n - 2] = l;
            sum += get(a, at_a) * get(b, at_b);
        }
    }
    return sum;
}

static double rounded(cairn_dtype t, double value) {
    double room;
    const struct cairn__view v = {.data = &room, .dtype = t};
    set(t, &room, 0, value);
    return get(&v, NULL);
}

static bool next(int64_t *index, const int64_t *size, int ndim) {
    for (int d = ndim - 1; d >= 0; d--) {
        if (++index[d] < size[d]) return true;
        index[d] = 0;
    }
    return false;
}

static void check(const struct cairn__view *c, const struct cairn__view *a, const struct cairn__view *b) {
    int64_t index[MOST] = {0};
    device->math->product(device, c, a, b);
    if (cairn__device_check(device) != CAIRN_OK) fail_msg("%s", cairn_last_error());
    if (cairn__view_numel(c) == 0) return;
    do {
        assert_true(get(c, index) == rounded(c->dtype, expected(c, a, b, index)));
    } while (next(index, c->size, c->ndim));
}

static void fill(int which, cairn_dtype t, size_t n) {
    for (size_t i = 0; i < n; i++) set(t, memory[which], i, rand() % 5 - 2);
}

/* A view of `size` whose dimensions lie in memory in a random order, with a gap or without, some repeated. */
static struct cairn__view scattered(int which, cairn_dtype t, int ndim, const int64_t *size, bool repeats) {
    struct cairn__view v = {.data = memory[which], .dtype = t, .ndim = ndim};
    int order[MOST];
    int64_t stride = rand() % 8 == 0 ? 2 : 1;
    memcpy(v.size, size, (size_t)ndim * sizeof(size[0]));
    for (int d = 0; d < ndim; d++) order[d] = ndim - 1 - d;
    if (rand() % 2) {
        const int i = rand() % ndim, j = rand() % ndim, kept = order[i];
        order[i] = order[j], order[j] = kept;
    }
    for (int i = 0; i < ndim; i++) {
        const int d = order[i];
        if (repeats && rand() % 6 == 0) continue;
        v.stride[d] = stride;
        stride *= size[d] + rand() % 3 / 2;
    }
    return v;
}

/* Dense, but for dimensions of the batch that are summed. */
static struct cairn__view sums(cairn_dtype t, int ndim, const int64_t *size) {
    int64_t own[MOST];
    bool summed[MOST];
    for (int d = 0; d < ndim; d++) {
        summed[d] = d < ndim - 2 && rand() % 4 == 0;
        own[d] = summed[d] ? 1 : size[d];
    }
    struct cairn__view v = cairn__view_dense(memory[2], t, ndim, own);
    for (int d = 0; d < ndim; d++) {
        if (summed[d]) v.size[d] = size[d], v.stride[d] = 0;
    }
    return v;
}

static void check_random(int round) {
    const cairn_dtype t = types[round % 4];
    const int batch = rand() % 4, ndim = batch + 2;
    int64_t size_a[MOST], size_b[MOST], size_c[MOST];
    for (int d = 0; d < batch; d++) size_a[d] = size_b[d] = size_c[d] = 1 + rand() % 3;
    size_a[batch] = size_c[batch] = 1 + rand() % 6;
    size_b[batch + 1] = size_c[batch + 1] = 1 + rand() % 6;
    size_a[batch + 1] = size_b[batch] = 1 + rand() % 6;
    fill(0, t, SCATTERED), fill(1, t, SCATTERED);
    const cairn_dtype wide = t == CAIRN_F64 ? CAIRN_F64 : CAIRN_F32;
    const struct cairn__view a = scattered(0, t, ndim, size_a, true), b = scattered(1, t, ndim, size_b, true);
    const struct cairn__view c = sums(rand() % 4 ? t : wide, ndim, size_c);
    check(&c, &a, &b);
}

static void products_of_views_are_exact_on_whole_numbers(void **state) {
    (void)state;
    srand(1);
    for (int round = 0; round < 4000; round++) check_random(round);
}

static void sums_over_nothing_are_zero(void **state) {
    (void)state;
    for (int t = 0; t < 4; t++) {
        struct cairn__view a = cairn__view_dense(memory[0], types[t], 3, (int64_t[]){2, 3, 0});
        struct cairn__view b = cairn__view_dense(memory[1], types[t], 3, (int64_t[]){2, 0, 4});
        struct cairn__view c = cairn__view_dense(memory[2], types[t], 3, (int64_t[]){2, 3, 4});
        fill(2, types[t], ROOM);
        check(&c, &a, &b);
        a = cairn__view_dense(memory[0], types[t], 3, (int64_t[]){0, 3, 5});
        b = cairn__view_dense(memory[1], types[t], 3, (int64_t[]){0, 5, 4});
        c = cairn__view_dense(memory[2], types[t], 3, (int64_t[]){1, 3, 4});
        fill(2, types[t], ROOM);
        c.size[0] = 0, c.stride[0] = 0;
        device->math->product(device, &c, &a, &b);
        c.size[0] = 1;
        int64_t index[MOST] = {0};
        do {
            assert_true(get(&c, index) == 0);
        } while (next(index, c.size, 3));
    }
}

static void empty_results_leave_memory_alone(void **state) {
    (void)state;
    for (int t = 0; t < 4; t++) {
        const struct cairn__view a = cairn__view_dense(memory[0], types[t], 3, (int64_t[]){2, 0, 3});
        const struct cairn__view b = cairn__view_dense(memory[1], types[t], 3, (int64_t[]){2, 3, 4});
        const struct cairn__view c = cairn__view_dense(memory[2], types[t], 3, (int64_t[]){2, 0, 4});
        memset(memory[2], 7, 64);
        check(&c, &a, &b);
        for (int i = 0; i < 64; i++) assert_int_equal(memory[2][i], 7);
    }
}

/* A sum of halves over the batch is rounded once: 2048 + 1 + 1 is 2050, where f16 would stay at 2048. */
static void sums_over_a_batch_are_rounded_once(void **state) {
    (void)state;
    const double values[] = {2048, 1, 1};
    const struct cairn__view a = {memory[0], CAIRN_F16, 3, {3, 1, 1}, {2, 1, 1}};
    const struct cairn__view b = {memory[1], CAIRN_F16, 3, {3, 1, 1}, {3, 1, 1}};
    const struct cairn__view c = {memory[2], CAIRN_F16, 3, {3, 1, 1}, {0, 1, 1}};
    for (size_t i = 0; i < 3; i++) set(CAIRN_F16, memory[0], 2 * i, values[i]), set(CAIRN_F16, memory[1], 3 * i, 1);
    const int64_t index[3] = {0, 0, 0};
    device->math->product(device, &c, &a, &b);
    assert_true(get(&c, index) == 2050);
}

/* Among them those where threads would best share out k. */
static void number_of_threads_changes_no_bit_of_a_product(void **state) {
    (void)state;
    static const int64_t sizes[][3] = {{16, 16, 4000}, {1, 200, 300}, {200, 1, 300}, {130, 130, 70}, {8, 8, 8000}};
    static float first[ROOM];
    for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
        const int64_t m = sizes[s][0], n = sizes[s][1], k = sizes[s][2];
        for (size_t i = 0; i < ROOM; i++) {
            set(CAIRN_F32, memory[0], i, rand() / 1e9);
            set(CAIRN_F32, memory[1], i, rand() / 1e9);
        }
        const struct cairn__view a = {memory[0], CAIRN_F32, 2, {m, k}, {1, m}};
        const struct cairn__view b = {memory[1], CAIRN_F32, 2, {k, n}, {1, k}};
        const struct cairn__view c = cairn__view_dense(memory[2], CAIRN_F32, 2, (int64_t[]){m, n});
        for (int threads = 1; threads <= 4; threads++) {
            assert_int_equal(cairn_set_num_threads(threads), CAIRN_OK);
            device->math->product(device, &c, &a, &b);
            if (threads == 1) memcpy(first, memory[2], (size_t)(m * n) * sizeof(float));
            assert_memory_equal(first, memory[2], (size_t)(m * n) * sizeof(float));
        }
        assert_int_equal(cairn_set_num_threads(1), CAIRN_OK);
    }
}

static void repeated_products_of_views_allocate_nothing(void **state) {
    (void)state;
    for (int t = 0; t < 4; t++) {
        srand(7);
        for (int round = 0; round < 50; round++) check_random(4 * round + t);
        const uint64_t before = cairn__alloc_counters().allocations;
        srand(7);
        for (int round = 0; round < 50; round++) check_random(4 * round + t);
        assert_int_equal(cairn__alloc_counters().allocations, before);
    }
}

int main(void) {
    if (cairn__device_open("cpu", 0, &device) != CAIRN_OK) return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_of_views_are_exact_on_whole_numbers),
        cmocka_unit_test(sums_over_nothing_are_zero),
        cmocka_unit_test(empty_results_leave_memory_alone),
        cmocka_unit_test(sums_over_a_batch_are_rounded_once),
        cmocka_unit_test(number_of_threads_changes_no_bit_of_a_product),
        cmocka_unit_test(repeated_products_of_views_allocate_nothing),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    cairn__device_close(&device);
    return failed;
}
