/* The device front, and products in every orientation and type against a double reference. Operands are small integers:
 * every sum is exact in f32 in any order, so results are compared bit for bit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "device/device.h"

static struct cairn_device *device;

static int open_device(void **state) {
    (void)state;
    return cairn__device_open("cpu", 0, &device) == CAIRN_OK ? 0 : -1;
}

static int close_device(void **state) {
    (void)state;
    cairn__device_close(&device);
    return device == NULL && cairn__alloc_counters().alive == 0 ? 0 : -1;
}

/* ---- front ---- */

static void unknown_device_lists_the_known_ones(void **state) {
    (void)state;
    struct cairn_device *d = NULL;
    assert_int_equal(cairn__device_open("gpu", 0, &d), CAIRN_EINVAL);
    assert_string_equal(cairn_last_error(), "no device is called 'gpu'; there are cpu, cuda, cuda:N and auto");
    assert_null(d);
}

static void device_has_a_name_and_a_description(void **state) {
    (void)state;
    assert_string_equal(cairn_device_name(device), "cpu");
    assert_non_null(strchr(cairn_device_describe(device), ','));
    assert_string_equal(cairn_device_name(NULL), "none");
    assert_string_equal(cairn_device_describe(NULL), "none");
}

static void device_memory_is_aligned_and_copies(void **state) {
    (void)state;
    char text[] = "0123456789";
    void *p = NULL;
    assert_int_equal(cairn__device_alloc(device, CAIRN__HOLDS_TENSORS, sizeof(text), &p), CAIRN_OK);
    assert_int_equal((uintptr_t)p % 64, 0);
    assert_int_equal(cairn__device_copy(device, p, text, sizeof(text)), CAIRN_OK);
    assert_memory_equal(p, text, sizeof(text));
    cairn__device_free(device, p);
    cairn__device_free(device, NULL);
}

static void values_are_copied_to_the_device_and_back(void **state) {
    (void)state;
    const char text[] = "0123456789";
    char back[sizeof(text)] = "";
    void *p = NULL;
    assert_int_equal(cairn__device_alloc(device, CAIRN__HOLDS_TENSORS, sizeof(text), &p), CAIRN_OK);
    assert_int_equal(cairn__device_upload(device, p, text, sizeof(text)), CAIRN_OK);
    assert_int_equal(cairn__device_download(device, back, p, sizeof(text)), CAIRN_OK);
    assert_memory_equal(back, text, sizeof(text));
    assert_int_equal(cairn__device_upload(device, p, NULL, 0), CAIRN_OK);
    assert_int_equal(cairn__device_download(device, NULL, p, 0), CAIRN_OK);
    assert_int_equal(cairn__device_synchronize(device), CAIRN_OK);
    assert_int_equal(cairn__device_check(device), CAIRN_OK);
    cairn__device_free(device, p);
}

static void pinned_memory_is_zeroed(void **state) {
    (void)state;
    void *p = NULL;
    const char zeros[100] = "";
    assert_int_equal(cairn__device_alloc_pinned(device, sizeof(zeros), &p), CAIRN_OK);
    assert_memory_equal(p, zeros, sizeof(zeros));
    cairn__device_free_pinned(device, p);
    cairn__device_free_pinned(device, NULL);
}

static void product_of_integers_is_refused(void **state) {
    (void)state;
    const struct cairn__matmul p = {.m = 1, .n = 1, .k = 1, .in_type = CAIRN_I32, .out_type = CAIRN_F32};
    assert_int_equal(cairn__device_matmul(device, &p), CAIRN_EINVAL);
    assert_string_equal(cairn_last_error(), "product of i32; f32, f16 and bf16 are known");
    const struct cairn__matmul negative = {.m = -1, .n = 1, .k = 1, .in_type = CAIRN_F32, .out_type = CAIRN_F32};
    assert_int_equal(cairn__device_matmul(device, &negative), CAIRN_EINVAL);
}

/* ---- products ---- */

/* Everything as f32, and as it is handed over. Sums are of rows of op(A). */
struct operands {
    float *a, *b, *bias, *c, *sums;
    void *stored_a, *stored_b, *stored_bias, *stored_c, *stored_sums;
};
enum { NUM_OPERANDS = sizeof(struct operands) / sizeof(void *) };

enum { TRANS_A = 1, TRANS_B = 2, BIAS = 4, RELU = 8, SUMS = 16, HALF_OUT = 32, ALL_FLAGS = 64 };

static void *room(size_t nbytes) {
    void *p = NULL;
    assert_int_equal(cairn__alloc(nbytes, &p), CAIRN_OK);
    return p;
}

static void convert(void *dst, cairn_dtype to, const void *x, cairn_dtype from, size_t n) {
    cairn__pass_cast(device->passes, device, dst, to, x, from, n);
}

/* |values| <= 4 and k <= 1024: sums stay below 2^15 and are exact. */
static void fill(float *x, size_t n, unsigned seed) {
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (float)((int)(seed >> 16) % 9 - 4);
    }
}

static double a_at(const struct cairn__matmul *p, const struct operands *o, int64_t i, int64_t l) {
    return (double)o->a[p->trans_a ? l * p->m + i : i * p->k + l];
}

/* Of one shape, by the two flags. Its operands are always the same, so that each orientation is multiplied once for all
 * types and other flags. */
enum { MAX_PRODUCTS = 64 * 1024 };
static struct {
    int64_t m, n, k;
    double c[MAX_PRODUCTS];
} multiplied[4];

static const double *multiply(const struct cairn__matmul *p, const struct operands *o) {
    const int which = (p->trans_a ? TRANS_A : 0) | (p->trans_b ? TRANS_B : 0);
    double *c = multiplied[which].c;
    assert_true(p->m * p->n <= MAX_PRODUCTS);
    if (multiplied[which].m == p->m && multiplied[which].n == p->n && multiplied[which].k == p->k) return c;
    multiplied[which].m = p->m, multiplied[which].n = p->n, multiplied[which].k = p->k;
    for (int64_t i = 0; i < p->m; i++) {
        for (int64_t j = 0; j < p->n; j++) {
            double sum = 0;
            for (int64_t l = 0; l < p->k; l++) {
                sum += a_at(p, o, i, l) * (double)o->b[p->trans_b ? j * p->k + l : l * p->n + j];
            }
            c[i * p->n + j] = sum;
        }
    }
    return c;
}

static void reference(const struct cairn__matmul *p, const struct operands *o) {
    const double *product = multiply(p, o);
    for (int64_t i = 0; i < p->m; i++) {
        double row = 0;
        for (int64_t l = 0; l < p->k; l++) row += a_at(p, o, i, l);
        o->sums[i] = (float)row;
        for (int64_t j = 0; j < p->n; j++) {
            const double sum = product[i * p->n + j] + (p->bias ? (double)o->bias[j] : 0);
            o->c[i * p->n + j] = (float)(p->relu && sum < 0 ? 0 : sum);
        }
    }
}

static void make_operands(struct cairn__matmul *p, struct operands *o, unsigned flags) {
    const size_t na = (size_t)(p->m * p->k), nb = (size_t)(p->k * p->n), nc = (size_t)(p->m * p->n);
    const size_t m = (size_t)p->m, n = (size_t)p->n;
    p->trans_a = flags & TRANS_A, p->trans_b = flags & TRANS_B, p->relu = flags & RELU;
    p->out_type = flags & HALF_OUT ? p->in_type : CAIRN_F32;
    o->a = room(na * 4), o->b = room(nb * 4), o->bias = room(n * 4), o->c = room(nc * 4), o->sums = room(m * 4);
    o->stored_a = room(na * 4), o->stored_b = room(nb * 4), o->stored_bias = room(n * 4);
    o->stored_c = room(nc * 4), o->stored_sums = room(m * 4);
    fill(o->a, na, 1), fill(o->b, nb, 2), fill(o->bias, n, 3);
    convert(o->stored_a, p->in_type, o->a, CAIRN_F32, na);
    convert(o->stored_b, p->in_type, o->b, CAIRN_F32, nb);
    convert(o->stored_bias, p->out_type, o->bias, CAIRN_F32, n);
    p->a = o->stored_a, p->b = o->stored_b, p->c = o->stored_c;
    p->bias = flags & BIAS ? o->stored_bias : NULL;
    p->row_sums = flags & SUMS ? o->stored_sums : NULL;
}

static void drop_operands(struct operands *o) {
    void *all[NUM_OPERANDS];
    memcpy(all, o, sizeof(all));
    for (int i = 0; i < NUM_OPERANDS; i++) cairn__free(all[i]);
}

/* want is rounded once, as the product is: exact f32 sums make it the one right answer in every type. */
static void assert_result(const void *got, const float *want, size_t n, const struct cairn__matmul *p,
                          const char *what) {
    void *rounded = room(n * sizeof(float));
    convert(rounded, p->out_type, want, CAIRN_F32, n);
    if (memcmp(got, rounded, n * cairn_dtype_nbytes(p->out_type)) != 0) {
        fail_msg("%s: m %d n %d k %d trans %d %d bias %d relu %d %s -> %s", what, (int)p->m, (int)p->n, (int)p->k,
                 p->trans_a, p->trans_b, p->bias != NULL, p->relu, cairn_dtype_name(p->in_type),
                 cairn_dtype_name(p->out_type));
    }
    cairn__free(rounded);
}

static void check_product(struct cairn__matmul p, unsigned flags) {
    struct operands o;
    make_operands(&p, &o, flags);
    reference(&p, &o);
    assert_int_equal(cairn__device_matmul(device, &p), CAIRN_OK);
    assert_result(o.stored_c, o.c, (size_t)(p.m * p.n), &p, "product");
    if (p.row_sums && p.n > 0) assert_result(o.stored_sums, o.sums, (size_t)p.m, &p, "row sums");
    drop_operands(&o);
}

static void check_shape(int64_t m, int64_t n, int64_t k) {
    static const cairn_dtype types[] = {CAIRN_F32, CAIRN_F16, CAIRN_BF16};
    for (int t = 0; t < 3; t++) {
        for (unsigned flags = 0; flags < ALL_FLAGS; flags++) {
            check_product((struct cairn__matmul){.m = m, .n = n, .k = k, .in_type = types[t]}, flags);
        }
    }
}

static void products_are_exact_on_whole_numbers(void **state) {
    (void)state;
    static const int64_t shapes[][3] = {{64, 16, 1024}, {16, 1024, 64}, {64, 1024, 16}, {1, 1, 1},
                                        {1, 7, 5},      {7, 1, 5},      {3, 5, 7},      {33, 17, 65},
                                        {8, 8, 256},    {64, 1, 1024},  {2, 3, 1},      {100, 10, 31}};
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        check_shape(shapes[i][0], shapes[i][1], shapes[i][2]);
    }
}

static void empty_products_are_zero_or_nothing(void **state) {
    (void)state;
    check_shape(3, 4, 0);
    check_shape(0, 4, 3);
    check_shape(4, 0, 3);
}

static void equal_calls_give_equal_bits(void **state) {
    (void)state;
    static const cairn_dtype types[] = {CAIRN_F32, CAIRN_F16, CAIRN_BF16};
    enum { M = 64, N = 16, K = 1000 };
    for (int t = 0; t < 3; t++) {
        struct cairn__matmul p = {.m = M, .n = N, .k = K, .in_type = types[t]};
        struct operands o;
        make_operands(&p, &o, TRANS_B | BIAS);
        for (size_t i = 0; i < M * K; i++) o.a[i] *= 1.0f / 3; /* now sums do round */
        convert(o.stored_a, types[t], o.a, CAIRN_F32, M * K);
        assert_int_equal(cairn__device_matmul(device, &p), CAIRN_OK);
        memcpy(o.c, o.stored_c, M * N * sizeof(float));
        for (int i = 0; i < 10; i++) {
            assert_int_equal(cairn__device_matmul(device, &p), CAIRN_OK);
            assert_memory_equal(o.c, o.stored_c, M * N * sizeof(float));
        }
        drop_operands(&o);
    }
}

static void product_does_not_change_the_users_thread_count(void **state) {
    (void)state;
    void *found[2] = {dlsym(RTLD_DEFAULT, "omp_set_num_threads"), dlsym(RTLD_DEFAULT, "omp_get_max_threads")};
    if (!found[0] || !found[1]) return; /* built without oneDNN, or one without OpenMP */
    void (*set_threads)(int);
    int (*get_threads)(void);
    memcpy(&set_threads, &found[0], sizeof(found[0]));
    memcpy(&get_threads, &found[1], sizeof(found[1]));
    const int before = get_threads();
    set_threads(3);
    check_product((struct cairn__matmul){.m = 9, .n = 10, .k = 11, .in_type = CAIRN_F32}, 0);
    assert_int_equal(get_threads(), 3);
    set_threads(before);
}

static void repeated_product_allocates_nothing(void **state) {
    (void)state;
    static const cairn_dtype types[] = {CAIRN_F32, CAIRN_F16, CAIRN_BF16};
    for (int t = 0; t < 3; t++) {
        struct cairn__matmul p = {.m = 64, .n = 16, .k = 32, .in_type = types[t]};
        struct operands o;
        make_operands(&p, &o, TRANS_B | BIAS | SUMS | HALF_OUT);
        assert_int_equal(cairn__device_matmul(device, &p), CAIRN_OK);
        uint64_t before = cairn__alloc_counters().allocations;
        assert_int_equal(cairn__device_matmul(device, &p), CAIRN_OK);
        assert_int_equal(cairn__alloc_counters().allocations, before);
        drop_operands(&o);
    }
}

/* In front of oneDNN's own, so that what it makes for the engine can be counted; never called in a build without it. */
int dnnl_primitive_create(void **primitive, const void *description);
int dnnl_primitive_destroy(void *primitive);
static int made, destroyed;

static void find_next(const char *name, void *function) {
    void *found = dlsym(RTLD_NEXT, name);
    assert_non_null(found);
    memcpy(function, &found, sizeof(found));
}

int dnnl_primitive_create(void **primitive, const void *description) {
    int (*create)(void **, const void *) = NULL;
    find_next("dnnl_primitive_create", &create);
    made++;
    return create(primitive, description);
}

int dnnl_primitive_destroy(void *primitive) {
    int (*destroy)(void *) = NULL;
    find_next("dnnl_primitive_destroy", &destroy);
    destroyed++;
    return destroy(primitive);
}

static void check_shape_number(int i) {
    check_product((struct cairn__matmul){.m = 2 + i, .n = 20, .k = 3, .in_type = CAIRN_F32},
                  TRANS_B | (i % 2 ? BIAS : 0));
}

static void more_shapes_than_are_kept_give_right_products(void **state) {
    (void)state;
    enum { KEPT = 256, SHAPES = 3 * KEPT };
    const int alive = made - destroyed;
    for (int i = 0; i < SHAPES; i++) check_shape_number(i);
    for (int i = SHAPES; i > 0; i--) check_shape_number(i - 1);
    assert_true(alive <= KEPT && made - destroyed <= KEPT);
}

static void shapes_in_use_are_made_once(void **state) {
    (void)state;
    enum { FEW = 12, PASSING = 200 };
    for (int i = 0; i < FEW; i++) check_shape_number(i);
    const int before = made;
    const uint64_t allocated = cairn__alloc_counters().allocations;
    for (int round = 0; round < 20; round++) check_shape_number(round % FEW);
    assert_int_equal(made, before);
    const uint64_t of_operands = cairn__alloc_counters().allocations - allocated;
    assert_int_equal(of_operands, 20 * (NUM_OPERANDS + 1));
    for (int i = 0; i < PASSING; i++) {
        check_shape_number(FEW + i);
        for (int j = 0; j < 3; j++) check_shape_number(j);
    }
    assert_true(made - before <= PASSING); /* those in use stayed */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unknown_device_lists_the_known_ones),
        cmocka_unit_test(device_has_a_name_and_a_description),
        cmocka_unit_test(device_memory_is_aligned_and_copies),
        cmocka_unit_test(values_are_copied_to_the_device_and_back),
        cmocka_unit_test(pinned_memory_is_zeroed),
        cmocka_unit_test(product_of_integers_is_refused),
        cmocka_unit_test(products_are_exact_on_whole_numbers),
        cmocka_unit_test(empty_products_are_zero_or_nothing),
        cmocka_unit_test(equal_calls_give_equal_bits),
        cmocka_unit_test(product_does_not_change_the_users_thread_count),
        cmocka_unit_test(repeated_product_allocates_nothing),
        cmocka_unit_test(more_shapes_than_are_kept_give_right_products),
        cmocka_unit_test(shapes_in_use_are_made_once),
    };
    return cmocka_run_group_tests(tests, open_device, close_device);
}
