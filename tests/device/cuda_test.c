/* Host side of the CUDA device, on the stand-in: unusable machines, out of memory, changing streams.
 *
 * usage: cuda_test folder-of-the-stand-in's-module */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../kept_log.h"
#include "core/alloc.h"
#include "device/device.h"

static void assert_refused(const char *name, cairn_status status, const char *sentence) {
    struct cairn_device *d = NULL;
    const uint64_t alive = cairn__alloc_counters().alive;
    assert_int_equal(cairn__device_open(name, 0, &d), status);
    if (strncmp(cairn_last_error(), sentence, strlen(sentence)) != 0) fail_msg("%s", cairn_last_error());
    assert_null(d);
    assert_int_equal(cairn__alloc_counters().alive, alive);
}

static void unusable_machine_is_an_error_with_its_reason(void **state) {
    (void)state;
    static const struct {
        const char *variable, *value, *device;
        cairn_status status;
        const char *sentence;
    } cases[] = {
        {"CAIRN_STANDIN_DRIVER", "none", "cuda", CAIRN_EDEVICE, "there is no NVIDIA driver on this machine"},
        {"CAIRN_STANDIN_DRIVER", "old", "cuda", CAIRN_EDEVICE, "the NVIDIA driver is too old: it knows CUDA "},
        {"CAIRN_STANDIN_GPUS", "0", "cuda", CAIRN_EDEVICE, "there is a driver but no GPU on this machine"},
        {"CAIRN_STANDIN_GPUS", "1", "cuda:1", CAIRN_EDEVICE, "cuda:1 is not there: this machine shows 1 GPU ("},
        {"CAIRN_STANDIN_GPUS", "2", "cuda:3", CAIRN_EDEVICE, "cuda:3 is not there: this machine shows 2 GPUs ("},
        {"CAIRN_STANDIN_CC", "75", "cuda", CAIRN_ENOTSUP, "cuda:0 is a "},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        setenv(cases[i].variable, cases[i].value, 1);
        assert_refused(cases[i].device, cases[i].status, cases[i].sentence);
        unsetenv(cases[i].variable);
    }
    assert_non_null(strstr(cairn_last_error(), "of compute capability 7.5; Cairn needs 8.0 or later"));
}

/* ---- a device that works ---- */

struct own {
    struct cairn_device *device;
    uint64_t alive;
};

static int setup(void **state) {
    static struct own own;
    own.alive = cairn__alloc_counters().alive;
    *state = &own;
    return cairn__device_open("cuda", 0, &own.device) == CAIRN_OK ? 0 : -1;
}

static int teardown(void **state) {
    struct own *own = *state;
    cairn__device_close(&own->device);
    return cairn__alloc_counters().alive == own->alive ? 0 : -1;
}

static struct cairn_device *device_of(void **state) {
    return ((struct own *)*state)->device;
}

static void *on_the_gpu(struct cairn_device *d, const void *host, size_t nbytes) {
    void *p = NULL;
    assert_int_equal(cairn__device_alloc(d, CAIRN__HOLDS_TENSORS, nbytes, &p), CAIRN_OK);
    assert_int_equal(cairn__device_upload(d, p, host, nbytes), CAIRN_OK);
    return p;
}

static void assert_told(struct cairn_device *d, const char *sentence) {
    assert_int_equal(cairn__device_synchronize(d), CAIRN_EINVAL);
    if (strncmp(cairn_last_error(), sentence, strlen(sentence)) != 0) fail_msg("%s", cairn_last_error());
    assert_int_equal(cairn__device_synchronize(d), CAIRN_OK);
}

static void wrong_values_on_the_gpu_are_told_by_the_next_call_that_waits(void **state) {
    struct cairn_device *d = device_of(state);
    const float rows[2][2] = {{1, 2}, {3, 4}};
    const int64_t index[2] = {1, 5};
    float got[2][2] = {{0}}, lse[4] = {0};
    void *table = on_the_gpu(d, rows, sizeof(rows)), *at = on_the_gpu(d, index, sizeof(index));
    void *y = on_the_gpu(d, got, sizeof(got)), *sums = on_the_gpu(d, lse, sizeof(lse));
    d->math->gather_rows(d, CAIRN_F32, y, table, at, CAIRN_I64, 2, 2, 2, NULL);
    assert_told(d, "embedding: on cuda:0 an index was outside of the table");
    assert_int_equal(cairn__device_download(d, got, y, sizeof(got)), CAIRN_OK);
    assert_true(got[0][0] == 3 && got[0][1] == 4 && got[1][0] == 0 && got[1][1] == 0);
    const struct cairn__class_loss loss = {.from_logits = true,
                                           .dtype = CAIRN_F32,
                                           .rows = 2,
                                           .classes = 2,
                                           .inner = 1,
                                           .x = table,
                                           .target = at,
                                           .target_dtype = CAIRN_I64,
                                           .ignore_index = -100,
                                           .y = y,
                                           .lse = sums,
                                           .total = (char *)y + 8};
    d->math->class_loss(d, &loss);
    assert_told(d, "cross_entropy or nll_loss: on cuda:0 a target was neither a class nor ignore_index");
    cairn__device_free(d, table);
    cairn__device_free(d, at);
    cairn__device_free(d, y);
    cairn__device_free(d, sums);
}

static void out_of_memory_on_the_gpu_lists_what_is_held(void **state) {
    struct cairn_device *d = device_of(state);
    void *held = NULL, *p = NULL;
    assert_int_equal(cairn__device_alloc(d, CAIRN__HOLDS_OPTIM, (size_t)512 << 20, &held), CAIRN_OK);
    assert_int_equal(cairn__device_alloc(d, CAIRN__HOLDS_TAPE, (size_t)64 << 30, &p), CAIRN_ENOMEM);
    assert_non_null(strstr(cairn_last_error(), "cuda:0 is out of memory: 64.0 GiB wanted; "));
    assert_non_null(strstr(cairn_last_error(), "optimizer state 512.0 MiB"));
    assert_non_null(strstr(cairn_last_error(), "scratch of products "));
    assert_null(p);
    assert_int_equal(cairn__device_check(d), CAIRN_OK);
    cairn__device_free(d, held);
}

static float read_one(struct cairn_device *d, const float *p) {
    float x = 0;
    assert_int_equal(cairn__device_download(d, &x, p, sizeof(x)), CAIRN_OK);
    return x;
}

static void work_keeps_its_order_when_streams_change(void **state) {
    struct cairn_device *d = device_of(state);
    void *own = d->ops->stream(d);
    float *p = NULL, *q = NULL;
    assert_int_equal(cairn__device_alloc(d, CAIRN__HOLDS_TENSORS, sizeof(float), (void **)&p), CAIRN_OK);
    assert_int_equal(cairn__device_alloc(d, CAIRN__HOLDS_TENSORS, sizeof(float), (void **)&q), CAIRN_OK);
    d->passes->fill(d, CAIRN_F32, p, 1, 1);
    for (int i = 0; i < 20; i++) {
        assert_int_equal(d->ops->set_stream(d, i % 2 ? own : NULL), CAIRN_OK);
        assert_ptr_equal(d->ops->stream(d), i % 2 ? own : NULL);
        d->passes->add(d, CAIRN_F32, q, p, p, 1);
        assert_int_equal(d->ops->set_stream(d, i % 2 ? NULL : own), CAIRN_OK);
        assert_int_equal(cairn__device_copy(d, p, q, sizeof(float)), CAIRN_OK);
    }
    assert_true(read_one(d, p) == 0x1p20f);
    cairn__device_free(d, p);
    cairn__device_free(d, q);
}

static void stream_of_another_gpu_is_refused(void **state) {
    struct cairn_device *d = device_of(state), *other = NULL;
    void *own = d->ops->stream(d);
    float *p = NULL;
    setenv("CAIRN_STANDIN_GPUS", "2", 1);
    assert_int_equal(cairn__device_open("cuda:1", 0, &other), CAIRN_OK);
    assert_int_equal(d->ops->set_stream(d, other->ops->stream(other)), CAIRN_EDEVICE);
    assert_non_null(strstr(cairn_last_error(), "cuda:0: changing to another stream: cudaErrorInvalidResourceHandle"));
    assert_non_null(strstr(cairn_last_error(), "does the stream belong to this GPU"));
    assert_ptr_equal(d->ops->stream(d), own);
    assert_int_equal(cairn__device_alloc(d, CAIRN__HOLDS_TENSORS, sizeof(float), (void **)&p), CAIRN_OK);
    d->passes->fill(d, CAIRN_F32, p, 1, 3);
    assert_true(read_one(d, p) == 3);
    cairn__device_free(d, p);
    cairn__device_close(&other);
    unsetenv("CAIRN_STANDIN_GPUS");
}

/* As if the program had begun the recording, past the device's front. */
static void recording_of_the_program_is_not_broken(void **state) {
    struct cairn_device *d = device_of(state);
    void *p = NULL, *graph = NULL;
    float x = 2;
    assert_int_equal(cairn__device_alloc(d, CAIRN__HOLDS_TENSORS, sizeof(x), &p), CAIRN_OK);
    assert_int_equal(cairn__device_upload(d, p, &x, sizeof(x)), CAIRN_OK);
    assert_int_equal(d->ops->capture_begin(d), CAIRN_OK);
    void *none = NULL;
    assert_int_equal(cairn__device_alloc(d, CAIRN__HOLDS_TENSORS, (size_t)64 << 20, &none), CAIRN_ESTATE);
    assert_non_null(strstr(cairn_last_error(), "cuda:0: allocating memory: the program is recording the stream"));
    assert_int_equal(cairn__device_alloc_pinned(d, 1, &none), CAIRN_ESTATE);
    assert_int_equal(cairn__device_upload(d, p, &x, sizeof(x)), CAIRN_ESTATE);
    assert_non_null(strstr(cairn_last_error(), "cuda:0: copying from the host: the program is recording the stream"));
    assert_int_equal(cairn__device_download(d, &x, p, sizeof(x)), CAIRN_ESTATE);
    assert_int_equal(cairn__device_synchronize(d), CAIRN_ESTATE);
    assert_int_equal(d->ops->set_stream(d, NULL), CAIRN_ESTATE);
    d->passes->add(d, CAIRN_F32, p, p, p, 1);
    assert_int_equal(d->ops->capture_end(d, &graph), CAIRN_OK);
    assert_int_equal(d->ops->graph_launch(d, graph), CAIRN_OK);
    assert_true(read_one(d, p) == 4);
    d->ops->graph_free(d, graph);
    cairn__device_free(d, p);
}

static void legacy_default_stream_cannot_be_recorded(void **state) {
    struct cairn_device *d = device_of(state);
    void *graph = NULL;
    assert_int_equal(d->ops->set_stream(d, NULL), CAIRN_OK);
    assert_int_equal(d->ops->capture_begin(d), CAIRN_ESTATE);
    assert_non_null(strstr(cairn_last_error(), "CUDA's legacy default stream cannot be recorded"));
    assert_null(graph);
}

/* ---- uploads ---- */

/* Calls so far that wait for the device, or may. */
static unsigned long long waits(void) {
    void *standin = dlopen("libcairn_standin.so", RTLD_NOW | RTLD_NOLOAD);
    void *found = standin ? dlsym(standin, "standin_waits") : NULL;
    unsigned long long (*count)(void) = NULL;
    assert_non_null(found);
    memcpy(&count, &found, sizeof(found));
    return count();
}

static void host_memory_may_be_reused_once_it_is_uploaded(void **state) {
    struct cairn_device *d = device_of(state);
    enum { MOST = (9 << 20) + 77 }; /* the ring of slots goes round twice */
    static const size_t sizes[] = {1, 4095, 1 << 20, (1 << 20) + 1, MOST};
    unsigned char *pageable = malloc(MOST), *pinned = NULL, *got = malloc(MOST), *p = NULL;
    assert_int_equal(cairn__device_alloc_pinned(d, MOST, (void **)&pinned), CAIRN_OK);
    assert_int_equal(cairn__device_alloc(d, CAIRN__HOLDS_TENSORS, MOST, (void **)&p), CAIRN_OK);
    for (size_t s = 0; s < 2 * sizeof(sizes) / sizeof(sizes[0]); s++) {
        const size_t n = sizes[s / 2];
        unsigned char *source = s % 2 ? pinned : pageable;
        for (size_t i = 0; i < n; i++) source[i] = (unsigned char)(i * 7 + i / 1000 + s);
        assert_int_equal(cairn__device_upload(d, p, source, n), CAIRN_OK);
        memset(source, 0, n);
        assert_int_equal(cairn__device_download(d, got, p, n), CAIRN_OK);
        for (size_t i = 0; i < n; i++) {
            if (got[i] != (unsigned char)(i * 7 + i / 1000 + s)) fail_msg("byte %zu of %zu is another", i, n);
        }
    }
    cairn__device_free(d, p), cairn__device_free_pinned(d, pinned);
    free(pageable), free(got);
}

static void uploads_do_not_wait_for_what_is_queued(void **state) {
    struct cairn_device *d = device_of(state);
    float *p = NULL, *pinned = NULL;
    assert_int_equal(cairn__device_alloc(d, CAIRN__HOLDS_TENSORS, 4 * sizeof(float), (void **)&p), CAIRN_OK);
    assert_int_equal(cairn__device_alloc_pinned(d, sizeof(float), (void **)&pinned), CAIRN_OK);
    assert_int_equal(cairn__device_upload(d, p, pinned, sizeof(float)), CAIRN_OK); /* the first makes room */
    assert_int_equal(cairn__device_synchronize(d), CAIRN_OK);
    const unsigned long long before = waits();
    for (int i = 0; i < 4; i++) {
        d->passes->fill(d, CAIRN_F32, p, 4, (float)i);
        *pinned = (float)(i + 1);
        assert_int_equal(cairn__device_upload(d, p + i, pinned, sizeof(float)), CAIRN_OK);
    }
    assert_int_equal(waits(), before);
    assert_true(read_one(d, p) == 3 && read_one(d, p + 3) == 4);
    cairn__device_free(d, p), cairn__device_free_pinned(d, pinned);
}

/* ---- products that cuBLASLt cannot do alone ---- */

static void *upload(struct cairn_device *d, const void *host, size_t nbytes) {
    void *p = NULL;
    assert_int_equal(cairn__device_alloc(d, CAIRN__HOLDS_TENSORS, nbytes, &p), CAIRN_OK);
    assert_int_equal(cairn__device_upload(d, p, host, nbytes), CAIRN_OK);
    return p;
}

/* f16 operands with f32 sums of rows, in both orientations: 1 is 0x3c00, 2 is 0x4000. */
static void row_sums_are_computed_without_a_fused_algorithm(void **state) {
    struct cairn_device *d = device_of(state);
    static const uint16_t a[6] = {0x3c00, 0x4000, 0x3c00, 0x3c00, 0x3c00, 0x4000};
    static const float want[2][2] = {{4, 4}, {3, 5}}; /* of [2, 3]; of [3, 2] transposed */
    void *da = upload(d, a, sizeof(a)), *db = upload(d, a, sizeof(a));
    float got[2], *c = upload(d, want, sizeof(want)), *sums = upload(d, want, sizeof(got));
    for (int trans = 0; trans < 2; trans++) {
        const struct cairn__matmul p = {.m = 2,
                                        .n = 2,
                                        .k = 3,
                                        .trans_a = trans,
                                        .in_type = CAIRN_F16,
                                        .out_type = CAIRN_F32,
                                        .a = da,
                                        .b = db,
                                        .c = c,
                                        .row_sums = sums};
        for (int again = 0; again < 2; again++) { /* chosen, then remembered */
            assert_int_equal(cairn__device_matmul(d, &p), CAIRN_OK);
            assert_int_equal(cairn__device_download(d, got, sums, sizeof(got)), CAIRN_OK);
            assert_memory_equal(got, want[trans], sizeof(got));
        }
    }
    cairn__device_free(d, da), cairn__device_free(d, db), cairn__device_free(d, c), cairn__device_free(d, sums);
}

static void products_that_take_a_pass_more_are_logged_once_and_counted(void **state) {
    struct own *own = *state;
    struct cairn_device *d = own->device;
    static const float ones[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    float *x = upload(d, ones, sizeof(ones)), *c = upload(d, ones, sizeof(ones)), got[2];
    struct cairn__matmul p = {
        .m = 1, .n = 2, .k = 2, .in_type = CAIRN_F32, .out_type = CAIRN_F32, .a = x, .b = x, .c = c};
    cairn_set_log(keep_whole_log, NULL);
    log_text[0] = '\0';
    for (int i = 0; i < 5; i++) {
        p.bias = i == 0 ? NULL : x + i; /* the last one is aligned */
        assert_int_equal(cairn__device_matmul(d, &p), CAIRN_OK);
    }
    assert_int_equal(cairn__device_download(d, got, c, sizeof(got)), CAIRN_OK);
    assert_true(got[0] == 3 && got[1] == 3);
    cairn__device_free(d, x), cairn__device_free(d, c);
    cairn__device_close(&own->device);
    cairn_set_log(NULL, NULL);
    assert_string_equal(
        log_text,
        "cuda:0: a product of f32 [1, 2] and [2, 2] takes longer than it could: the bias is not aligned to 16 "
        "bytes, and is added by a pass\n"
        "products: 5; a pass more took 3 with a bias and 0 with row sums that are not aligned to 16 bytes, and 0 "
        "whose epilogue cuBLASLt does not have\n");
}

static void more_products_than_the_plan_holds_are_right(void **state) {
    struct cairn_device *d = device_of(state);
    static float ones[3000], got[3000];
    for (size_t i = 0; i < 3000; i++) ones[i] = 1;
    float *a = upload(d, ones, sizeof(ones)), *b = upload(d, ones, sizeof(ones)), *c = upload(d, ones, sizeof(ones));
    for (int64_t i = 0; i < 1500; i++) {
        const struct cairn__matmul p = {
            .m = 1 + i % 1200, .n = 2, .k = 1, .in_type = CAIRN_F32, .out_type = CAIRN_F32, .a = a, .b = b, .c = c};
        assert_int_equal(cairn__device_matmul(d, &p), CAIRN_OK);
    }
    assert_int_equal(cairn__device_download(d, got, c, 600 * sizeof(float)), CAIRN_OK);
    assert_memory_equal(got, ones, 600 * sizeof(float));
    cairn__device_free(d, a), cairn__device_free(d, b), cairn__device_free(d, c);
}

/* ---- graphs ---- */

/* A column of ones times a row of ones plus a bias of zeros; through scratch, since the bias begins between packs. */
struct through_scratch {
    struct cairn__matmul p;
    void *a, *b, *bias, *c;
};
enum { LARGEST = 700 };

static struct through_scratch make_through_scratch(struct cairn_device *d, int64_t n) {
    static uint16_t ones[LARGEST], zeros[LARGEST * LARGEST];
    for (size_t i = 0; i < LARGEST; i++) ones[i] = 0x3c00;
    struct through_scratch x = {.a = upload(d, ones, sizeof(ones)), .b = upload(d, ones, sizeof(ones))};
    x.bias = upload(d, zeros, sizeof(ones)), x.c = upload(d, zeros, sizeof(zeros));
    x.p = (struct cairn__matmul){.m = n, .n = n, .k = 1, .in_type = CAIRN_F16, .out_type = CAIRN_F16};
    x.p.a = x.a, x.p.b = x.b, x.p.bias = (uint16_t *)x.bias + 1, x.p.c = x.c;
    return x;
}

static void drop_through_scratch(struct cairn_device *d, struct through_scratch *x) {
    cairn__device_free(d, x->a), cairn__device_free(d, x->b), cairn__device_free(d, x->bias);
    cairn__device_free(d, x->c);
}

static void *record(struct cairn_device *d, const struct cairn__matmul *p) {
    void *graph = NULL;
    assert_int_equal(d->ops->capture_begin(d), CAIRN_OK);
    d->capturing = true;
    assert_int_equal(cairn__device_matmul(d, p), CAIRN_OK);
    d->capturing = false;
    assert_int_equal(d->ops->capture_end(d, &graph), CAIRN_OK);
    return graph;
}

static void recorded_product_keeps_its_scratch_when_a_larger_one_comes(void **state) {
    enum { SMALL = 10, TENSORS = 50, TENSOR = 512 };
    struct cairn_device *d = device_of(state);
    static unsigned char filled[TENSOR], got[TENSOR];
    uint16_t c[SMALL * SMALL];
    void *tensors[TENSORS];
    struct through_scratch small = make_through_scratch(d, SMALL), large = make_through_scratch(d, LARGEST);
    assert_int_equal(cairn__device_matmul(d, &small.p), CAIRN_OK);
    void *graph = record(d, &small.p);
    assert_int_equal(cairn__device_matmul(d, &large.p), CAIRN_OK);
    memset(filled, 0x55, sizeof(filled));
    for (int i = 0; i < TENSORS; i++) tensors[i] = upload(d, filled, sizeof(filled));

    d->passes->fill(d, CAIRN_F16, small.c, SMALL * SMALL, 7);
    assert_int_equal(d->ops->graph_launch(d, graph), CAIRN_OK);
    assert_int_equal(cairn__device_download(d, c, small.c, sizeof(c)), CAIRN_OK);
    for (int i = 0; i < SMALL * SMALL; i++) assert_int_equal(c[i], 0x3c00);
    for (int i = 0; i < TENSORS; i++) {
        assert_int_equal(cairn__device_download(d, got, tensors[i], sizeof(got)), CAIRN_OK);
        assert_memory_equal(got, filled, sizeof(got));
        cairn__device_free(d, tensors[i]);
    }
    d->ops->graph_free(d, graph);
    drop_through_scratch(d, &small), drop_through_scratch(d, &large);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unusable_machine_is_an_error_with_its_reason),
        TEST(wrong_values_on_the_gpu_are_told_by_the_next_call_that_waits),
        TEST(out_of_memory_on_the_gpu_lists_what_is_held),
        TEST(work_keeps_its_order_when_streams_change),
        TEST(stream_of_another_gpu_is_refused),
        TEST(recording_of_the_program_is_not_broken),
        TEST(legacy_default_stream_cannot_be_recorded),
        TEST(host_memory_may_be_reused_once_it_is_uploaded),
        TEST(uploads_do_not_wait_for_what_is_queued),
        TEST(row_sums_are_computed_without_a_fused_algorithm),
        TEST(recorded_product_keeps_its_scratch_when_a_larger_one_comes),
        TEST(products_that_take_a_pass_more_are_logged_once_and_counted),
        TEST(more_products_than_the_plan_holds_are_right),
    };
    if (argc != 2) return 1;
    setenv("CAIRN_MODULE_PATH", argv[1], 1);
    setenv("CAIRN_LOG", "debug", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
