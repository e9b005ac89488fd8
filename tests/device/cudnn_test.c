/* Convolutions through the cuDNN module on the stand-in: results against the CPU's and im2col's, and the behaviour
 * without cuDNN or with one that refuses or fails.
 *
 * usage: cudnn_test folder-of-the-stand-in's-modules */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../kept_log.h"
#include "conv_sizes.h"
#include "core/alloc.h"
#include "core/dtype.h"
#include "device/device.h"

static const char *modules;

static const struct sizes *const plain = &conv_cases[1];

static const cairn_dtype types[] = {CAIRN_F32, CAIRN_F16, CAIRN_BF16};

static struct cairn__conv conv_in(const struct sizes *z, cairn_dtype t) {
    struct cairn__conv v = conv_of(z);
    v.dtype = t;
    return v;
}

/* ---- arrays on a device ---- */

enum { X, WEIGHT, BIAS, DY, Y, DX, DWEIGHT, ARRAYS };
enum { PACK = 16 };

/* Of one convolution on one device, each `offset` bytes behind an aligned address. */
struct arrays {
    struct cairn_device *device;
    cairn_dtype type;
    size_t n[ARRAYS], offset;
    char *base[ARRAYS];
};

static struct arrays arrays_of(struct cairn_device *d, const struct cairn__conv *v) {
    const size_t x = (size_t)(v->n * v->c * v->h * v->w), y = (size_t)(v->n * v->k * v->p * v->q);
    const size_t w = (size_t)(v->c * v->k / v->groups * v->r * v->s), b = (size_t)v->k;
    struct arrays a = {.device = d, .type = v->dtype, .n = {x, w, b, y, y, x, w}};
    for (int i = 0; i < ARRAYS; i++) {
        const size_t nbytes = a.n[i] * cairn_dtype_nbytes(a.type) + PACK;
        assert_int_equal(cairn__device_alloc(d, CAIRN__HOLDS_TENSORS, nbytes, (void **)&a.base[i]), CAIRN_OK);
    }
    return a;
}

static void arrays_end(struct arrays *a) {
    for (int i = 0; i < ARRAYS; i++) cairn__device_free(a->device, a->base[i]);
}

static void *at(const struct arrays *a, int i) {
    return a->base[i] + a->offset;
}

static void upload(const struct arrays *a, int i, const double *values) {
    const size_t nbytes = cairn_dtype_nbytes(a->type);
    char *host = calloc(a->n[i], nbytes);
    for (size_t j = 0; j < a->n[i]; j++) {
        if (a->type == CAIRN_F64) ((double *)(void *)host)[j] = values[j];
        else cairn__dtype(a->type)->from_f32(host + j * nbytes, (float)values[j]);
    }
    assert_int_equal(cairn__device_upload(a->device, at(a, i), host, a->n[i] * nbytes), CAIRN_OK);
    free(host);
}

static double *download(const struct arrays *a, int i) {
    const size_t nbytes = cairn_dtype_nbytes(a->type);
    char *host = calloc(a->n[i], nbytes);
    double *values = calloc(a->n[i], sizeof(double));
    assert_int_equal(cairn__device_download(a->device, host, at(a, i), a->n[i] * nbytes), CAIRN_OK);
    for (size_t j = 0; j < a->n[i]; j++) {
        values[j] = a->type == CAIRN_F64 ? ((const double *)(void *)host)[j]
                                         : (double)cairn__dtype(a->type)->to_f32(host + j * nbytes);
    }
    free(host);
    return values;
}

/* Whole numbers from -3 to 3, whose products and sums are exact in f32, in whatever order. */
static void draw(const struct arrays *a) {
    unsigned state = 12345;
    for (int i = X; i <= DY; i++) {
        double *values = calloc(a->n[i], sizeof(double));
        for (size_t j = 0; j < a->n[i]; j++) {
            state = state * 1664525u + 1013904223u;
            values[j] = (double)(state >> 16) / 65536 * 7 - 3.5;
            values[j] = rint(values[j]);
        }
        upload(a, i, values);
        free(values);
    }
}

static struct cairn__conv bound_to(const struct cairn__conv *v, const struct arrays *a) {
    struct cairn__conv bound = *v;
    bound.x = at(a, X), bound.weight = at(a, WEIGHT), bound.dy = at(a, DY);
    bound.bias = v->transposed ? NULL : at(a, BIAS); /* cuDNN adds none there */
    bound.y = at(a, Y), bound.dx = at(a, DX), bound.dweight = at(a, DWEIGHT);
    return bound;
}

static void compute(const struct cairn__conv *v, const struct arrays *a) {
    struct cairn__conv bound = bound_to(v, a);
    a->device->math->conv(a->device, &bound);
    a->device->math->conv_backward(a->device, &bound);
}

static void assert_equal(const char *name, const struct arrays *got, const struct arrays *want) {
    for (int i = Y; i < ARRAYS; i++) {
        double *g = download(got, i), *w = download(want, i);
        for (size_t j = 0; j < got->n[i]; j++) {
            if (!(g[j] == w[j]))
                fail_msg("%s, %s, array %d, element %zu: got %.9g, want %.9g", name, cairn_dtype_name(got->type), i, j,
                         g[j], w[j]);
        }
        free(g), free(w);
    }
}

/* Against the CPU, whose sums are f32 too, rounded once. */
static void assert_right(const struct sizes *z, struct cairn_device *d, cairn_dtype t, size_t offset) {
    const struct cairn__conv v = conv_in(z, t);
    struct cairn_device *cpu = NULL;
    assert_int_equal(cairn__device_open("cpu", 0, &cpu), CAIRN_OK);
    struct arrays got = arrays_of(d, &v), want = arrays_of(cpu, &v);
    got.offset = offset;
    draw(&got), draw(&want);
    compute(&v, &got), compute(&v, &want);
    assert_int_equal(cairn__device_check(d), CAIRN_OK);
    assert_equal(z->name, &got, &want);
    arrays_end(&got), arrays_end(&want);
    cairn__device_close(&cpu);
}

/* ---- what the stand-in counts ---- */

static unsigned long long counted(const char *name) {
    void *standin = dlopen("libcairn_standin.so", RTLD_NOW | RTLD_NOLOAD);
    void *found = standin ? dlsym(standin, name) : NULL;
    unsigned long long (*count)(void) = NULL;
    assert_non_null(found);
    memcpy(&count, &found, sizeof(found));
    return count();
}

static unsigned long long by_cudnn(void) {
    return counted("standin_convolutions");
}

/* ---- a device ---- */

struct own {
    struct cairn_device *device;
    uint64_t alive;
};

static int setup(void **state) {
    static struct own own;
    own.alive = cairn__alloc_counters().alive;
    *state = &own;
    log_text[0] = '\0';
    cairn_set_log(keep_whole_log, NULL);
    setenv("CAIRN_MODULE_PATH", modules, 1);
    return cairn__device_open("cuda", 0, &own.device) == CAIRN_OK ? 0 : -1;
}

static int teardown(void **state) {
    struct own *own = *state;
    static const char *const set[] = {"CAIRN_CUDNN", "CAIRN_STANDIN_CUDNN", "CAIRN_STANDIN_CUDNN_WORKSPACE"};
    cairn__device_close(&own->device);
    cairn_set_log(NULL, NULL);
    for (size_t i = 0; i < sizeof(set) / sizeof(set[0]); i++) unsetenv(set[i]);
    return cairn__alloc_counters().alive == own->alive ? 0 : -1;
}

static struct cairn_device *device_of(void **state) {
    return ((struct own *)*state)->device;
}

static void assert_logged(const char *line, int times) {
    int found = 0;
    for (const char *p = log_text; (p = strstr(p, line)) != NULL; p++) found++;
    if (found != times) fail_msg("%d times, not %d: \"%s\" in:\n%s", found, times, line, log_text);
}

/* ---- convolutions ---- */

static void every_part_in_every_type_has_the_bits_of_the_cpu(void **state) {
    struct cairn_device *d = device_of(state);
    for (int i = 0; i < SMALL_CASES * 3; i++) {
        const unsigned long long before = by_cudnn();
        assert_right(&conv_cases[i / 3], d, types[i % 3], 0);
        if (by_cudnn() != before + 3) fail_msg("%s: %llu of 3 parts", conv_cases[i / 3].name, by_cudnn() - before);
    }
    cairn__device_close(&((struct own *)*state)->device);
    assert_logged("cuda:0: convolutions go by cuDNN 9.", 1);
    assert_logged("convolutions: 99; by im2col went 0 without cuDNN, 0 with arrays that are not aligned to 16 bytes, 0 "
                  "that cuDNN does not do, and 0 without memory for its workspace",
                  1);
}

/* 1 + 2^-20 has more than 10 bits of fraction. */
static void f32_keeps_its_bits_unless_tf32_is_allowed(void **state) {
    struct cairn_device *d = device_of(state);
    const struct cairn__conv v = conv_in(&conv_cases[0], CAIRN_F32);
    const double fine[1] = {1 + 0x1p-20}, one[1] = {1}, none[1] = {0};
    struct arrays a = arrays_of(d, &v);
    upload(&a, X, fine), upload(&a, WEIGHT, one), upload(&a, BIAS, none), upload(&a, DY, fine);
    for (int tf32 = 0; tf32 < 2; tf32++) {
        d->tf32 = tf32;
        compute(&v, &a);
        for (int i = Y; i < ARRAYS; i++) {
            double *got = download(&a, i);
            const double exact = i == DWEIGHT ? (double)(float)(fine[0] * fine[0]) : fine[0];
            if (got[0] != (tf32 ? 1 : exact)) fail_msg("tf32 %d, array %d: %.9g", tf32, i, got[0]);
            free(got);
        }
    }
    arrays_end(&a);
}

static void f64_and_what_cudnn_refuses_go_by_im2col(void **state) {
    static const struct sizes beyond = {
        "", 2, 3, 4, 4, 5, 2, 2, 1, {1, 1}, {0, 0}, {3, 3}, {2, 2}, true}; /* output padding beyond the stride */
    struct cairn_device *d = device_of(state);
    const unsigned long long before = by_cudnn();
    assert_right(plain, d, CAIRN_F64, 0);
    assert_right(&beyond, d, CAIRN_F32, 0);
    assert_right(&beyond, d, CAIRN_F32, 0);
    assert_int_equal(by_cudnn(), before);
    cairn__device_close(&((struct own *)*state)->device);
    assert_logged("cuda:0: a convolution of f32 [2, 5, 9, 9] goes by im2col: choosing an algorithm: cuDNN says "
                  "CUDNN_STATUS_BAD_PARAM: it is a stand-in\n",
                  1);
    assert_logged("convolutions: 6; by im2col went 0 without cuDNN, 0 with arrays that are not aligned to 16 bytes, 6 "
                  "that cuDNN does not do, ",
                  1);
}

static void bias_of_a_transposed_convolution_is_added_by_im2col(void **state) {
    struct cairn_device *d = device_of(state);
    const struct cairn__conv v = conv_in(&conv_cases[9], CAIRN_BF16);
    const unsigned long long before = by_cudnn();
    struct arrays a = arrays_of(d, &v);
    struct cairn__conv bound = bound_to(&v, &a);
    draw(&a);
    bound.bias = at(&a, BIAS);
    d->math->conv(d, &bound);
    assert_int_equal(cairn__device_check(d), CAIRN_OK);
    assert_int_equal(by_cudnn(), before);
    assert_logged("goes by im2col: cuDNN adds no bias to what a transposed convolution computes", 1);
    arrays_end(&a);
}

static void arrays_between_packs_go_by_im2col(void **state) {
    struct cairn_device *d = device_of(state);
    const unsigned long long before = by_cudnn();
    assert_right(plain, d, CAIRN_F32, 4);
    assert_right(plain, d, CAIRN_F32, 4);
    assert_int_equal(by_cudnn(), before);
    assert_right(plain, d, CAIRN_F32, 0);
    assert_int_equal(by_cudnn(), before + 3);
    assert_logged("cuda:0: a convolution of f32 [2, 3, 7, 9] goes by im2col: an array is not aligned to 16 bytes\n", 1);
}

static void equal_calls_give_equal_bits_and_allocate_nothing(void **state) {
    struct cairn_device *d = device_of(state);
    for (int i = 0; i < SMALL_CASES; i++) {
        const struct cairn__conv v = conv_in(&conv_cases[i], CAIRN_F16);
        struct arrays first = arrays_of(d, &v), second = arrays_of(d, &v);
        draw(&first), draw(&second);
        compute(&v, &first);
        const uint64_t before = cairn__alloc_counters().allocations;
        compute(&v, &second);
        assert_int_equal(cairn__alloc_counters().allocations, before);
        assert_equal(conv_cases[i].name, &second, &first);
        arrays_end(&first), arrays_end(&second);
    }
}

static void more_shapes_than_are_kept_give_right_convolutions(void **state) {
    struct cairn_device *d = device_of(state);
    for (int64_t w = 1; w <= 300; w++) {
        const struct sizes z = {"", 1, 1, 1, w, 1, 1, 1, 1, {1, 1}, {0, 0}, {1, 1}, {0, 0}, false};
        const struct cairn__conv v = conv_in(&z, CAIRN_F32);
        struct arrays a = arrays_of(d, &v);
        draw(&a);
        compute(&v, &a);
        double *x = download(&a, X), *weight = download(&a, WEIGHT), *bias = download(&a, BIAS), *y = download(&a, Y);
        for (int64_t i = 0; i < w; i++) assert_true(y[i] == x[i] * weight[0] + bias[0]);
        free(x), free(weight), free(bias), free(y);
        arrays_end(&a);
    }
    assert_logged("goes by im2col", 0);
}

/* ---- graphs ---- */

static void *record(struct cairn_device *d, const struct cairn__conv *v, const struct arrays *a, cairn_status want) {
    void *graph = NULL;
    assert_int_equal(d->ops->capture_begin(d), CAIRN_OK);
    d->capturing = true;
    compute(v, a);
    d->capturing = false;
    assert_int_equal(d->ops->capture_end(d, &graph), want);
    return graph;
}

static void recorded_convolution_replays_without_a_wait(void **state) {
    struct cairn_device *d = device_of(state);
    const struct cairn__conv v = conv_in(plain, CAIRN_F16);
    struct arrays got = arrays_of(d, &v), want = arrays_of(d, &v);
    draw(&got), draw(&want);
    compute(&v, &want);
    const unsigned long long waits = counted("standin_waits"), before = by_cudnn();
    void *graph = record(d, &v, &got, CAIRN_OK);
    assert_int_equal(by_cudnn(), before + 3);
    assert_int_equal(d->ops->graph_launch(d, graph), CAIRN_OK);
    assert_int_equal(counted("standin_waits"), waits);
    assert_equal("recorded", &got, &want);
    d->ops->graph_free(d, graph);
    arrays_end(&got), arrays_end(&want);
}

static void new_shape_in_a_recording_is_refused_and_the_next_call_computes(void **state) {
    struct cairn_device *d = device_of(state);
    for (int opened = 0; opened < 2; opened++) {
        const struct cairn__conv v = conv_in(&conv_cases[opened], CAIRN_F32);
        struct arrays a = arrays_of(d, &v);
        draw(&a);
        assert_null(record(d, &v, &a, CAIRN_ESTATE));
        assert_string_equal(cairn_last_error(), "a graph is being recorded on cuda:0: a convolution of these sizes has "
                                                "not run before; the step must do the same in every call");
        assert_int_equal(cairn__device_check(d), CAIRN_OK);
        assert_right(&conv_cases[opened], d, CAIRN_F32, 0);
        arrays_end(&a);
    }
    assert_logged("goes by im2col", 0);
}

/* ---- where there is no cuDNN ---- */

/* Convolutions are right, one line says why im2col computes them, and they are counted. */
static void assert_without(void **state, const char *why) {
    char line[512];
    struct cairn_device *d = device_of(state);
    const unsigned long long before = by_cudnn();
    for (int i = 0; i < 2; i++) assert_right(plain, d, types[i], 0);
    assert_int_equal(by_cudnn(), before);
    cairn__device_close(&((struct own *)*state)->device);
    snprintf(line, sizeof(line), "cuda:0: convolutions go by im2col: %s", why);
    assert_logged(line, 1);
    assert_logged("go by im2col", 1);
    assert_logged("convolutions: 6; by im2col went 6 without cuDNN, 0 with", 1);
}

static void module_that_is_missing_leaves_convolutions_to_im2col(void **state) {
    setenv("CAIRN_MODULE_PATH", "/nowhere", 1);
    assert_without(state, "convolution library 'cudnn' needs libcairn_cudnn.so, which is not in CAIRN_MODULE_PATH, "
                          "/nowhere\n");
}

/* The module is linked to cuDNN, so that without cuDNN it is a file that cannot be opened. */
static void library_that_is_missing_leaves_convolutions_to_im2col(void **state) {
    char folder[] = "/tmp/cairn_cudnn_XXXXXX", path[64];
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/libcairn_cudnn.so", folder);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fclose(f), 0);
    setenv("CAIRN_MODULE_PATH", folder, 1);
    assert_without(state, "convolution library 'cudnn' cannot be opened: ");
    remove(path);
    remove(folder);
}

static void version_that_is_too_old_leaves_convolutions_to_im2col(void **state) {
    setenv("CAIRN_STANDIN_CUDNN", "old", 1);
    assert_without(state, "cuDNN is too old: it is version 8907, and 90000 is the oldest that will do\n");
}

static void library_that_does_not_start_leaves_convolutions_to_im2col(void **state) {
    setenv("CAIRN_STANDIN_CUDNN", "none", 1);
    assert_without(state, "starting cuDNN: cuDNN says CUDNN_STATUS_NOT_INITIALIZED: it is a stand-in\n");
}

static void switch_leaves_convolutions_to_im2col(void **state) {
    setenv("CAIRN_CUDNN", "0", 1);
    assert_without(state, "CAIRN_CUDNN is 0\n");
}

/* ---- where it does not do what it is asked for ---- */

static void assert_left(void **state, const char *why, const char *counts) {
    struct cairn_device *d = device_of(state);
    const unsigned long long before = by_cudnn();
    for (int i = 0; i < 2; i++) assert_right(plain, d, CAIRN_F16, 0);
    assert_int_equal(by_cudnn(), before);
    cairn__device_close(&((struct own *)*state)->device);
    assert_logged(why, 1);
    assert_logged("goes by im2col: ", 1);
    assert_logged(counts, 1);
}

static void refusals_are_logged_once_and_counted(void **state) {
    static const struct {
        const char *mode, *why;
    } cases[] = {
        {"refuse", "[2, 3, 7, 9] goes by im2col: choosing an algorithm: cuDNN says CUDNN_STATUS_NOT_SUPPORTED"},
        {"refuse-late", "[2, 3, 7, 9] goes by im2col: a convolution: cuDNN says CUDNN_STATUS_NOT_SUPPORTED"},
        {"no-engines", "[2, 3, 7, 9] goes by im2col: choosing an algorithm: cuDNN says CUDNN_STATUS_NOT_INITIALIZED"},
        {"no-memory", "[2, 3, 7, 9] goes by im2col: a convolution: cuDNN says CUDNN_STATUS_INTERNAL_ERROR"},
    };
    for (int i = 0; i < 4; i++) {
        setenv("CAIRN_STANDIN_CUDNN", cases[i].mode, 1);
        assert_left(state, cases[i].why, "6 that cuDNN does not do, and 0 without memory");
        log_text[0] = '\0';
        assert_int_equal(cairn__device_open("cuda", 0, &((struct own *)*state)->device), CAIRN_OK);
    }
}

static void workspace_beyond_the_bound_is_not_taken(void **state) {
    setenv("CAIRN_STANDIN_CUDNN_WORKSPACE", "268435457", 1);
    assert_left(state, "goes by im2col: cuDNN's workspace would be more than 256 MiB\n",
                "0 that cuDNN does not do, and 6 without memory for its workspace");
}

/* Memory that comes free later does not change the way of a shape. */
static void workspace_that_there_is_no_memory_for_is_not_asked_for_again(void **state) {
    struct cairn_device *d = device_of(state);
    const struct cairn__conv v = conv_in(plain, CAIRN_F32);
    const unsigned long long before = by_cudnn();
    void *held = NULL;
    setenv("CAIRN_STANDIN_CUDNN_WORKSPACE", "201326592", 1);
    struct arrays a = arrays_of(d, &v);
    draw(&a);
    assert_int_equal(cairn__device_alloc(d, CAIRN__HOLDS_TENSORS, (size_t)1900 << 20, &held), CAIRN_OK);
    compute(&v, &a);
    assert_int_equal(cairn__device_check(d), CAIRN_OK);
    cairn__device_free(d, held);
    compute(&v, &a);
    assert_int_equal(cairn__device_check(d), CAIRN_OK);
    assert_int_equal(by_cudnn(), before);
    assert_logged("goes by im2col: cuda:0 is out of memory: 192.0 MiB wanted", 1);
    arrays_end(&a);
    cairn__device_close(&((struct own *)*state)->device);
    assert_logged("0 that cuDNN does not do, and 6 without memory for its workspace", 1);
}

static void failure_of_cudnn_is_the_devices(void **state) {
    struct cairn_device *d = device_of(state);
    const struct cairn__conv v = conv_in(plain, CAIRN_F32);
    struct arrays a = arrays_of(d, &v);
    setenv("CAIRN_STANDIN_CUDNN", "fail", 1);
    draw(&a);
    compute(&v, &a);
    assert_int_equal(cairn__device_check(d), CAIRN_EDEVICE);
    assert_string_equal(cairn_last_error(),
                        "a convolution: cuDNN says CUDNN_STATUS_EXECUTION_FAILED: it is a stand-in");
    arrays_end(&a);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        TEST(module_that_is_missing_leaves_convolutions_to_im2col),
        TEST(library_that_is_missing_leaves_convolutions_to_im2col),
        TEST(version_that_is_too_old_leaves_convolutions_to_im2col),
        TEST(library_that_does_not_start_leaves_convolutions_to_im2col),
        TEST(switch_leaves_convolutions_to_im2col),
        TEST(every_part_in_every_type_has_the_bits_of_the_cpu),
        TEST(f32_keeps_its_bits_unless_tf32_is_allowed),
        TEST(f64_and_what_cudnn_refuses_go_by_im2col),
        TEST(bias_of_a_transposed_convolution_is_added_by_im2col),
        TEST(arrays_between_packs_go_by_im2col),
        TEST(equal_calls_give_equal_bits_and_allocate_nothing),
        TEST(more_shapes_than_are_kept_give_right_convolutions),
        TEST(recorded_convolution_replays_without_a_wait),
        TEST(new_shape_in_a_recording_is_refused_and_the_next_call_computes),
        TEST(refusals_are_logged_once_and_counted),
        TEST(workspace_beyond_the_bound_is_not_taken),
        TEST(workspace_that_there_is_no_memory_for_is_not_asked_for_again),
        TEST(failure_of_cudnn_is_the_devices),
    };
    if (argc != 2) return 1;
    modules = argv[1];
    setenv("CAIRN_LOG", "debug", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
