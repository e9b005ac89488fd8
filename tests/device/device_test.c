/* The device front, and products in every orientation and type against a double reference. Operands are small whole
 * numbers: every sum is exact in f32 whatever its order, so results are compared bit for bit. */
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
    assert_string_equal(cairn_last_error(), "no device is called 'gpu'; there are cpu and cuda");
    assert_null(d);
}

static void device_left_out_of_the_build_names_its_option(void **state) {
    (void)state;
    struct cairn_device *d = NULL;
    assert_int_equal(cairn__device_open("cuda", 0, &d), CAIRN_ENOTBUILT);
    assert_string_equal(cairn_last_error(),
                        "device 'cuda' is not in this build of Cairn (meson option 'cuda'); use \"cpu\"");
}

static void device_tells_its_name_and_what_it_runs_on(void **state) {
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
    assert_int_equal(cairn__device_alloc(device, sizeof(text), &p), CAIRN_OK);
    assert_int_equal((uintptr_t)p % 64, 0);
    assert_int_equal(cairn__device_copy(device, p, text, sizeof(text)), CAIRN_OK);
    assert_memory_equal(p, text, sizeof(text));
    cairn__device_free(device, p);
    cairn__device_free(device, NULL);
}

static void product_of_integers_is_refused(void **state) {
    (void)state;
    const struct cairn__matmul p = {.m = 1, .n = 1, .k = 1, .in_type = CAIRN_I32};
    assert_int_equal(cairn__device_matmul(device, &p), CAIRN_EINVAL);
    assert_string_equal(cairn_last_error(), "product of i32; f32, f16 and bf16 are known");
    const struct cairn__matmul negative = {.m = -1, .n = 1, .k = 1, .in_type = CAIRN_F32};
    assert_int_equal(cairn__device_matmul(device, &negative), CAIRN_EINVAL);
}

/* ---- products ---- */

struct operands {
    float *a, *b, *bias, *c, *want; /* a and b as f32 */
    void *stored_a, *stored_b;
};

static void *room(size_t nbytes) {
    void *p = NULL;
    assert_int_equal(cairn__alloc(nbytes, &p), CAIRN_OK);
    return p;
}

/* |values| <= 4 and k <= 1024: sums stay below 2^15 and are exact. */
static void fill(float *x, size_t n, unsigned seed) {
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (float)((int)(seed >> 16) % 9 - 4);
    }
}

static void reference(const struct cairn__matmul *p, const struct operands *o) {
    for (int64_t i = 0; i < p->m; i++) {
        for (int64_t j = 0; j < p->n; j++) {
            double sum = p->accumulate ? o->want[i * p->n + j] : 0;
            for (int64_t l = 0; l < p->k; l++) {
                sum += (double)o->a[p->trans_a ? l * p->m + i : i * p->k + l] *
                       (double)o->b[p->trans_b ? j * p->k + l : l * p->n + j];
            }
            o->want[i * p->n + j] = (float)(p->bias ? sum + o->bias[j] : sum);
        }
    }
}

static void make_operands(struct cairn__matmul *p, struct operands *o, bool with_bias) {
    const size_t na = (size_t)(p->m * p->k), nb = (size_t)(p->k * p->n), nc = (size_t)(p->m * p->n);
    o->a = room(na * 4), o->b = room(nb * 4), o->bias = room((size_t)p->n * 4), o->c = room(nc * 4);
    o->want = room(nc * 4), o->stored_a = room(na * 4), o->stored_b = room(nb * 4);
    fill(o->a, na, 1), fill(o->b, nb, 2), fill(o->bias, (size_t)p->n, 3), fill(o->c, nc, 4);
    memcpy(o->want, o->c, nc * 4);
    device->kernels->cast[CAIRN_F32][p->in_type](o->stored_a, o->a, na);
    device->kernels->cast[CAIRN_F32][p->in_type](o->stored_b, o->b, nb);
    p->a = o->stored_a, p->b = o->stored_b, p->c = o->c;
    p->bias = with_bias ? o->bias : NULL;
}

static void drop_operands(struct operands *o) {
    cairn__free(o->a), cairn__free(o->b), cairn__free(o->bias), cairn__free(o->c), cairn__free(o->want);
    cairn__free(o->stored_a), cairn__free(o->stored_b);
}

static void check_product(struct cairn__matmul p, bool with_bias) {
    struct operands o;
    const size_t nbytes = (size_t)(p.m * p.n) * sizeof(float);
    make_operands(&p, &o, with_bias);
    reference(&p, &o);
    assert_int_equal(cairn__device_matmul(device, &p), CAIRN_OK);
    if (memcmp(o.c, o.want, nbytes) != 0) {
        fail_msg("m %d n %d k %d trans %d %d accumulate %d bias %d %s", (int)p.m, (int)p.n, (int)p.k, p.trans_a,
                 p.trans_b, p.accumulate, with_bias, cairn_dtype_name(p.in_type));
    }
    drop_operands(&o);
}

/* Every flag in turn: bits are trans_a, trans_b, accumulate, bias. */
static void check_shape(int64_t m, int64_t n, int64_t k) {
    static const cairn_dtype types[] = {CAIRN_F32, CAIRN_F16, CAIRN_BF16};
    for (int t = 0; t < 3; t++) {
        for (unsigned flags = 0; flags < 16; flags++) {
            const struct cairn__matmul p = {.m = m,
                                            .n = n,
                                            .k = k,
                                            .in_type = types[t],
                                            .trans_a = flags & 1,
                                            .trans_b = flags & 2,
                                            .accumulate = flags & 4};
            check_product(p, flags & 8);
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
    for (int t = 0; t < 3; t++) {
        struct cairn__matmul p = {.m = 64, .n = 16, .k = 1000, .trans_b = true, .in_type = types[t]};
        struct operands o;
        make_operands(&p, &o, true);
        for (size_t i = 0; i < 64 * 1000; i++) o.a[i] *= 1.0f / 3; /* now sums do round */
        device->kernels->cast[CAIRN_F32][types[t]](o.stored_a, o.a, 64 * 1000);
        assert_int_equal(cairn__device_matmul(device, &p), CAIRN_OK);
        memcpy(o.want, o.c, 64 * 16 * sizeof(float));
        for (int i = 0; i < 10; i++) {
            assert_int_equal(cairn__device_matmul(device, &p), CAIRN_OK);
            assert_memory_equal(o.c, o.want, 64 * 16 * sizeof(float));
        }
        drop_operands(&o);
    }
}

static void product_leaves_the_users_thread_count_alone(void **state) {
    (void)state;
    void *found[2] = {dlsym(RTLD_DEFAULT, "omp_set_num_threads"), dlsym(RTLD_DEFAULT, "omp_get_max_threads")};
    if (!found[0] || !found[1]) return; /* built without oneDNN, or one without OpenMP */
    void (*set_threads)(int);
    int (*get_threads)(void);
    memcpy(&set_threads, &found[0], sizeof(found[0]));
    memcpy(&get_threads, &found[1], sizeof(found[1]));
    const int before = get_threads();
    set_threads(3);
    check_product((struct cairn__matmul){.m = 9, .n = 10, .k = 11, .in_type = CAIRN_F32}, false);
    assert_int_equal(get_threads(), 3);
    set_threads(before);
}

static void repeated_product_allocates_nothing(void **state) {
    (void)state;
    static const cairn_dtype types[] = {CAIRN_F32, CAIRN_F16, CAIRN_BF16};
    for (int t = 0; t < 3; t++) {
        struct cairn__matmul p = {.m = 64, .n = 16, .k = 32, .trans_b = true, .in_type = types[t]};
        struct operands o;
        make_operands(&p, &o, true);
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
    check_product((struct cairn__matmul){.m = 2 + i, .n = 20, .k = 3, .trans_b = true, .in_type = CAIRN_F32}, i % 2);
}

static void more_shapes_than_are_kept_give_right_products(void **state) {
    (void)state;
    enum { KEPT = 64, SHAPES = 3 * KEPT };
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
    assert_int_equal(of_operands, 20 * 7);
    for (int i = 0; i < PASSING; i++) {
        check_shape_number(FEW + i);
        for (int j = 0; j < 3; j++) check_shape_number(j);
    }
    assert_true(made - before <= PASSING); /* those in use stayed */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unknown_device_lists_the_known_ones),
        cmocka_unit_test(device_left_out_of_the_build_names_its_option),
        cmocka_unit_test(device_tells_its_name_and_what_it_runs_on),
        cmocka_unit_test(device_memory_is_aligned_and_copies),
        cmocka_unit_test(product_of_integers_is_refused),
        cmocka_unit_test(products_are_exact_on_whole_numbers),
        cmocka_unit_test(empty_products_are_zero_or_nothing),
        cmocka_unit_test(equal_calls_give_equal_bits),
        cmocka_unit_test(product_leaves_the_users_thread_count_alone),
        cmocka_unit_test(repeated_product_allocates_nothing),
        cmocka_unit_test(more_shapes_than_are_kept_give_right_products),
        cmocka_unit_test(shapes_in_use_are_made_once),
    };
    return cmocka_run_group_tests(tests, open_device, close_device);
}
