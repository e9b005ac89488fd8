/* Cairn's built-in datasets, and collating examples of different lengths into a batch. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "../failing_alloc.h"
#include "../one_env.h"
#include "../state/folder.h"
#include "core/alloc.h"

/* ---- .npy ---- */

/* An array of version 1.0 whose header has 118 bytes: 128 before the values. */
static const char *write_npy(const char *name, const char *descr, const char *shape, const void *values,
                             size_t nbytes) {
    static char text[1 << 16];
    const char *path = in_folder(name);
    memset(text, ' ', 128);
    memcpy(text, "\x93NUMPY\x01\x00\x76\x00", 10);
    const int used = snprintf(text + 10, 117, "{'descr': '%s', 'fortran_order': False, 'shape': %s, }", descr, shape);
    text[10 + used] = ' ';
    text[127] = '\n';
    memcpy(text + 128, values, nbytes);
    write_file(path, text, 128 + nbytes);
    return path;
}

enum { ROWS = 7 };

static cairn_dataset *make_npy(const char **x) {
    float values[ROWS][2];
    unsigned char pixels[ROWS][3];
    int64_t classes[ROWS];
    cairn_dataset *dataset = NULL;
    for (int i = 0; i < ROWS; i++) {
        for (int j = 0; j < 2; j++) values[i][j] = (float)(10 * i + j);
        for (int j = 0; j < 3; j++) pixels[i][j] = (unsigned char)(250 - 3 * i - j);
        classes[i] = 100 + i;
    }
    *x = write_npy("x.npy", "<f4", "(7, 1, 2)", values, sizeof(values));
    const char *u = write_npy("u.npy", "|u1", "(7, 3)", pixels, sizeof(pixels));
    const char *y = write_npy("y.npy", "<i8", "(7,)", classes, sizeof(classes));
    OK(cairn_npy_dataset_create((const char *const[]){*x, u, y}, 3, &dataset));
    return dataset;
}

static void rows_of_arrays_are_examples(void **state) {
    const char *path;
    cairn_dataset *dataset = make_npy(&path);
    cairn_sampler *sampler = NULL;
    cairn_loader *loader = NULL;
    const struct cairn_batch *batch;
    assert_int_equal(cairn_dataset_count(dataset), ROWS);
    OK(cairn_sampler_create(ROWS, NULL, &sampler));
    OK(cairn_loader_create(*state, dataset, sampler, 3, cairn_loader_options(.workers = 2), &loader));
    for (size_t seen = 0; seen < ROWS; seen += batch->n) {
        float x[6];
        int32_t u[9];
        int64_t y[3];
        OK(cairn_loader_next(loader, &batch));
        assert_int_equal(batch->count, 3);
        assert_int_equal(cairn_tensor_ndim(batch->tensors[0]), 3);
        assert_int_equal(cairn_tensor_size(batch->tensors[0], 2), 2);
        assert_int_equal(cairn_tensor_dtype(batch->tensors[1]), CAIRN_I32); /* of u8 */
        OK(cairn_tensor_read(batch->tensors[0], x, 2 * batch->n));
        OK(cairn_tensor_read_as(batch->tensors[1], CAIRN_I32, u, 3 * batch->n));
        OK(cairn_tensor_read_as(batch->tensors[2], CAIRN_I64, y, batch->n));
        for (size_t i = 0; i < batch->n; i++) {
            const int64_t row = batch->indices[i];
            for (int j = 0; j < 2; j++) assert_true(x[2 * i + (size_t)j] == (float)(10 * row + j));
            for (int j = 0; j < 3; j++) assert_int_equal(u[3 * i + (size_t)j], 250 - 3 * row - j);
            assert_int_equal(y[i], 100 + row);
        }
    }
    cairn_loader_destroy(&loader);
    cairn_sampler_destroy(&sampler);
    cairn_dataset_destroy(&dataset);
}

static void a_file_truncated_while_it_is_read_fails_its_batch(void **state) {
    const char *path;
    cairn_dataset *dataset = make_npy(&path);
    cairn_sampler *sampler = NULL;
    cairn_loader *loader = NULL;
    const struct cairn_batch *batch;
    OK(cairn_sampler_create(ROWS, cairn_sampler_options(.shuffle = CAIRN_OFF), &sampler));
    for (int workers = 0; workers <= 2; workers++) {
        OK(cairn_sampler_set_epoch(sampler, 0));
        OK(cairn_loader_create(*state, dataset, sampler, 2, cairn_loader_options(.workers = workers), &loader));
        assert_int_equal(truncate(path, 128 + 5 * 8 + 4), 0); /* five rows and a half */
        OK(cairn_loader_next(loader, &batch));
        OK(cairn_loader_next(loader, &batch));
        REFUSED(cairn_loader_next(loader, &batch), CAIRN_EINVAL, "example 5: ");
        SAYS(path);
        SAYS("the file may have been truncated");
        OK(cairn_sampler_seek(sampler, 6));
        REFUSED(cairn_loader_next(loader, &batch), CAIRN_EINVAL, "example 6: ");
        cairn_loader_destroy(&loader);
    }
    cairn_sampler_destroy(&sampler);
    cairn_dataset_destroy(&dataset);
}

static void arrays_that_do_not_belong_together_are_refused(void **state) {
    const float values[6] = {0};
    cairn_dataset *dataset = NULL;
    (void)state;
    const char *six = write_npy("six.npy", "<f4", "(6,)", values, sizeof(values));
    const char *two = write_npy("two.npy", "<f4", "(2, 3)", values, sizeof(values));
    const char *one = write_npy("one.npy", "<f4", "()", values, 4);
    const char *deep = write_npy("deep.npy", "<f4", "(6, 1, 1, 1, 1, 1, 1, 1, 1)", values, sizeof(values));
    REFUSED(cairn_npy_dataset_create((const char *const[]){six, two}, 2, &dataset), CAIRN_EINVAL, "two.npy has 2 rows");
    SAYS("six.npy has 6");
    REFUSED(cairn_npy_dataset_create(&one, 1, &dataset), CAIRN_EINVAL, "an array without dimensions");
    REFUSED(cairn_npy_dataset_create(&deep, 1, &dataset), CAIRN_EINVAL, "9 dimensions; a batch may have 8");
    REFUSED(cairn_npy_dataset_create(&six, 0, &dataset), CAIRN_EINVAL, "count is 0");
    assert_null(dataset);
    const uint64_t alive = cairn__alloc_counters().alive;
    cairn_status st = CAIRN_ENOMEM;
    for (int at = 1; st == CAIRN_ENOMEM; at++) {
        fail_in = at;
        st = cairn_npy_dataset_create(&six, 1, &dataset);
        fail_in = 0;
        assert_int_equal(cairn__alloc_counters().alive > alive, st == CAIRN_OK);
    }
    OK(st);
    cairn_dataset_destroy(&dataset);
    REFUSED(cairn_npy_dataset_create((const char *const[]){in_folder("no.npy")}, 1, &dataset), CAIRN_ESYSTEM, "no.npy");
    assert_null(dataset);
}

/* ---- a dataset of another ---- */

/* A row of x times its class, plus a number drawn. */
static cairn_status scale(void *ctx, const cairn_fields *from, struct cairn_random *random, cairn_fields *example) {
    float values[2];
    const float *x = cairn_fields_at(from, 0)->data;
    const int64_t y = *(const int64_t *)cairn_fields_at(from, 2)->data;
    if (y == *(const int64_t *)ctx) return cairn_dataset_fail(CAIRN_EINVAL, "class %d is not for us", (int)y);
    for (int j = 0; j < 2; j++) values[j] = x[j] * (float)y + cairn_random_uniform(random);
    return cairn_fields_add_values(example, CAIRN_F32, 1, (int64_t[]){2}, values);
}

static void a_map_makes_examples_of_others(void **state) {
    const char *path;
    int64_t refused = 103;
    cairn_dataset *from = make_npy(&path), *mapped = NULL;
    cairn_fields *example = NULL;
    struct cairn_random random, same;
    (void)state;
    OK(cairn_map_dataset_create(from, scale, &refused, &mapped));
    OK(cairn_fields_create(&example));
    assert_int_equal(cairn_dataset_count(mapped), ROWS);
    for (int64_t i = 0; i < ROWS; i++) {
        cairn_random_begin(&random, 1, 2, i);
        same = random;
        cairn_fields_clear(example);
        if (100 + i == refused) {
            REFUSED(cairn_dataset_read(mapped, i, &random, example), CAIRN_EINVAL, "class 103 is not for us");
            continue;
        }
        OK(cairn_dataset_read(mapped, i, &random, example));
        assert_int_equal(cairn_fields_count(example), 1);
        const float *values = cairn_fields_at(example, 0)->data;
        for (int j = 0; j < 2; j++)
            assert_true(values[j] == (float)(10 * i + j) * (float)(100 + i) + cairn_random_uniform(&same));
    }
    REFUSED(cairn_dataset_read(mapped, ROWS, &random, example), CAIRN_EINVAL, "the dataset has 7");
    REFUSED(cairn_dataset_read(mapped, -1, &random, example), CAIRN_EINVAL, "the dataset has 7");
    REFUSED(cairn_map_dataset_create(from, NULL, NULL, &mapped), CAIRN_EINVAL, "must be set");
    cairn_fields_destroy(&example);
    cairn_dataset_destroy(&mapped);
    cairn_dataset_destroy(&from);
}

/* ---- tokens ---- */

/* A file of llm.c's, of the tokens first, first + 7, ... */
static const char *write_tokens(const char *name, int32_t magic, int n, int first) {
    static char bytes[1024 + 2 * 4096];
    const char *path = in_folder(name);
    const int32_t head[3] = {magic, 1, n};
    memset(bytes, 0, sizeof(bytes));
    memcpy(bytes, head, sizeof(head));
    for (int i = 0; i < n; i++) {
        const uint16_t token = (uint16_t)(first + 7 * i);
        memcpy(bytes + 1024 + 2 * i, &token, 2);
    }
    write_file(path, bytes, 1024 + 2 * (size_t)n);
    return path;
}

static void check_tokens(const cairn_dataset *dataset, int64_t index, int64_t length, int first) {
    cairn_fields *example = NULL;
    struct cairn_random random;
    cairn_random_begin(&random, 0, 0, index);
    OK(cairn_fields_create(&example));
    OK(cairn_dataset_read(dataset, index, &random, example));
    assert_int_equal(cairn_fields_count(example), 2);
    for (int f = 0; f < 2; f++) {
        const struct cairn_field *field = cairn_fields_at(example, f);
        assert_int_equal(field->dtype, CAIRN_I32);
        assert_int_equal(field->ndim, 1);
        assert_int_equal(field->shape[0], length);
        for (int64_t i = 0; i < length; i++)
            assert_int_equal(((const int32_t *)field->data)[i], (uint16_t)(first + 7 * (i + f)));
    }
    cairn_fields_destroy(&example);
}

static void tokens_and_the_next_ones_are_examples(void **state) {
    cairn_dataset *dataset = NULL;
    (void)state;
    const char *a = write_tokens("a.bin", 20240520, 21, 65000), *b = write_tokens("b.bin", 20240520, 4, 5);
    const char *c = write_tokens("c.bin", 20240520, 11, 900);
    for (int64_t length = 1; length <= 21; length++) {
        const int64_t in_a = 20 / length, in_b = 3 / length, in_c = 10 / length;
        OK(cairn_token_dataset_create((const char *const[]){a, b, c}, 3, length, NULL, &dataset));
        assert_int_equal(cairn_dataset_count(dataset), in_a + in_b + in_c);
        for (int64_t i = 0; i < in_a; i++) check_tokens(dataset, i, length, (int)(65000 + 7 * i * length));
        for (int64_t i = 0; i < in_b; i++) check_tokens(dataset, in_a + i, length, (int)(5 + 7 * i * length));
        for (int64_t i = 0; i < in_c; i++) check_tokens(dataset, in_a + in_b + i, length, (int)(900 + 7 * i * length));
        cairn_dataset_destroy(&dataset);
    }
    OK(cairn_token_dataset_create(&c, 1, 4, cairn_token_options(.stride = 3), &dataset));
    assert_int_equal(cairn_dataset_count(dataset), 3); /* from 0, 3 and 6 on: each needs five of eleven */
    for (int i = 0; i < 3; i++) check_tokens(dataset, i, 4, 900 + 7 * 3 * i);
    cairn_dataset_destroy(&dataset);
}

static void files_of_other_tokens_are_refused(void **state) {
    cairn_dataset *dataset = NULL;
    cairn_fields *example = NULL;
    struct cairn_random random;
    (void)state;
    const char *wrong = write_tokens("wrong.bin", 20240521, 5, 0), *good = write_tokens("good.bin", 20240520, 50, 0);
    const char *const both[] = {good, wrong};
    REFUSED(cairn_token_dataset_create(both, 2, 4, NULL, &dataset), CAIRN_EINVAL,
            "wrong.bin: no file of tokens: it begins with 20240521 and 1");
    REFUSED(cairn_token_dataset_create(&good, 1, 0, NULL, &dataset), CAIRN_EINVAL, "length is 0");
    REFUSED(cairn_token_dataset_create(&good, 1, 1, cairn_token_options(.stride = -1), &dataset), CAIRN_EINVAL,
            "stride -1");
    REFUSED(cairn_token_dataset_create(&good, 0, 1, NULL, &dataset), CAIRN_EINVAL, "count be 1");
    OK(cairn_token_dataset_create(&good, 1, 4, NULL, &dataset));
    assert_int_equal(truncate(good, 1024 + 2 * 49), 0);
    cairn_random_begin(&random, 0, 0, 0);
    OK(cairn_fields_create(&example));
    REFUSED(cairn_dataset_read(dataset, 12, &random, example), CAIRN_EINVAL,
            "index is 12, but the dataset has 12 examples");
    OK(cairn_dataset_read(dataset, 11, &random, example));
    assert_int_equal(truncate(good, 1024 + 2 * 48), 0);
    cairn_fields_clear(example);
    REFUSED(cairn_dataset_read(dataset, 11, &random, example), CAIRN_EINVAL, "good.bin: ends at byte 1120");
    cairn_dataset_destroy(&dataset);
    cairn_fields_destroy(&example);
    REFUSED(cairn_token_dataset_create(&good, 1, 4, NULL, &dataset), CAIRN_EINVAL,
            "fewer than those of the 50 tokens that its header declares");
    assert_int_equal(truncate(good, 1023), 0);
    REFUSED(cairn_token_dataset_create(&good, 1, 4, NULL, &dataset), CAIRN_EINVAL, "it has no header");
}

/* ---- padding ---- */

enum { SENTENCES = 3 };

/* Example i: i + 1 tokens from 10 i on, [i + 1, 2] floats, and i. */
static void make_sentences(cairn_fields *examples[SENTENCES]) {
    for (int i = 0; i < SENTENCES; i++) {
        int32_t tokens[SENTENCES];
        float pairs[2 * SENTENCES];
        for (int t = 0; t <= i; t++) tokens[t] = 10 * i + t;
        for (int t = 0; t < 2 * (i + 1); t++) pairs[t] = (float)(i + 1);
        OK(cairn_fields_create(&examples[i]));
        OK(cairn_fields_add_values(examples[i], CAIRN_I32, 1, (int64_t[]){i + 1}, tokens));
        OK(cairn_fields_add_values(examples[i], CAIRN_F32, 2, (int64_t[]){i + 1, 2}, pairs));
        OK(cairn_fields_add_i64(examples[i], i));
    }
}

static void end_sentences(cairn_fields *examples[SENTENCES]) {
    for (int i = 0; i < SENTENCES; i++) cairn_fields_destroy(&examples[i]);
}

static cairn_status pad(const struct cairn_pad_options *options, cairn_fields *const *examples, cairn_fields *batch) {
    struct cairn_pad_options o = options ? *options : *cairn_pad_options(.length = 0);
    cairn_fields_clear(batch);
    return cairn_collate_pad(options ? &o : NULL, (const cairn_fields *const *)examples, SENTENCES, batch);
}

static void check_shape(const cairn_fields *batch, int field, int ndim, const int64_t *shape) {
    const struct cairn_field *f = cairn_fields_at(batch, field);
    assert_non_null(f);
    assert_int_equal(f->ndim, ndim);
    for (int d = 0; d < ndim; d++) assert_int_equal(f->shape[d], shape[d]);
}

static void examples_are_padded_to_the_longest(void **state) {
    static const int32_t tokens[3][3] = {{0, -7, -7}, {10, 11, -7}, {20, 21, 22}};
    static const float pairs[3][3][2] = {{{1, 1}}, {{2, 2}, {2, 2}}, {{3, 3}, {3, 3}, {3, 3}}};
    static const unsigned char mask[3][3] = {{1, 0, 0}, {1, 1, 0}, {1, 1, 1}};
    cairn_fields *examples[SENTENCES] = {NULL}, *batch = NULL;
    (void)state;
    make_sentences(examples);
    OK(cairn_fields_create(&batch));
    OK(pad(cairn_pad_options(.values = {-7}, .mask = CAIRN_ON), examples, batch));
    assert_int_equal(cairn_fields_count(batch), 4);
    check_shape(batch, 0, CAIRN_SHAPE(3, 3));
    check_shape(batch, 1, CAIRN_SHAPE(3, 3, 2));
    check_shape(batch, 2, CAIRN_SHAPE(3));
    check_shape(batch, 3, CAIRN_SHAPE(3, 3));
    assert_memory_equal(cairn_fields_at(batch, 0)->data, tokens, sizeof(tokens));
    assert_memory_equal(cairn_fields_at(batch, 1)->data, pairs, sizeof(pairs));
    assert_memory_equal(cairn_fields_at(batch, 2)->data, ((int64_t[]){0, 1, 2}), 24);
    assert_int_equal(cairn_fields_at(batch, 3)->dtype, CAIRN_BOOL);
    assert_memory_equal(cairn_fields_at(batch, 3)->data, mask, sizeof(mask));
    OK(pad(NULL, examples, batch));
    assert_int_equal(cairn_fields_count(batch), 3);
    OK(pad(cairn_pad_options(.multiple_of = 8, .mask = CAIRN_ON, .mask_of = 1), examples, batch));
    check_shape(batch, 0, CAIRN_SHAPE(3, 8));
    check_shape(batch, 1, CAIRN_SHAPE(3, 8, 2));
    check_shape(batch, 3, CAIRN_SHAPE(3, 8));
    OK(pad(cairn_pad_options(.length = 5), examples, batch));
    check_shape(batch, 0, CAIRN_SHAPE(3, 5));
    for (int i = 0; i < SENTENCES; i++) { /* text, with spaces */
        cairn_fields_clear(examples[i]);
        OK(cairn_fields_add_values(examples[i], CAIRN_U8, 1, (int64_t[]){i + 1}, "abc"));
    }
    OK(pad(cairn_pad_options(.values = {' '}), examples, batch));
    assert_memory_equal(cairn_fields_at(batch, 0)->data, "a  ab abc", 9);
    OK(pad(cairn_pad_options(.values = {1e9}), examples, batch));
    assert_memory_equal(cairn_fields_at(batch, 0)->data, "a\xff\xff", 3);
    end_sentences(examples);
    make_sentences(examples);
    cairn_fields_clear(batch); /* of a collate function that has added a field of its own before */
    OK(cairn_fields_add_values(batch, CAIRN_I32, 2, (int64_t[]){3, 1}, ((int32_t[]){7, 8, 9})));
    OK(cairn_collate_pad(cairn_pad_options(.mask = CAIRN_ON), (const cairn_fields *const *)examples, 3, batch));
    check_shape(batch, 4, CAIRN_SHAPE(3, 3));
    assert_memory_equal(cairn_fields_at(batch, 4)->data, mask, sizeof(mask));
    end_sentences(examples);
    cairn_fields_destroy(&batch);
}

static void what_cannot_be_padded_is_refused(void **state) {
    cairn_fields *examples[SENTENCES] = {NULL}, *batch = NULL;
    (void)state;
    make_sentences(examples);
    OK(cairn_fields_create(&batch));
    REFUSED(pad(cairn_pad_options(.length = 2), examples, batch), CAIRN_EINVAL,
            "field 0 of number 2 of the batch is 3 long, and the batch 2");
    REFUSED(pad(cairn_pad_options(.fields = 1), examples, batch), CAIRN_EINVAL, "field 1 is f32 of shape [1, 2]");
    REFUSED(pad(cairn_pad_options(.length = 5, .multiple_of = 2), examples, batch), CAIRN_EINVAL, "no multiple of 2");
    REFUSED(pad(cairn_pad_options(.length = -1), examples, batch), CAIRN_EINVAL, "must not be negative");
    REFUSED(pad(cairn_pad_options(.mask = CAIRN_ON, .mask_of = 2), examples, batch), CAIRN_EINVAL, "mask_of is 2");
    REFUSED(pad(cairn_pad_options(.mask = (cairn_switch)5), examples, batch), CAIRN_EINVAL, "mask is 5");
    REFUSED(pad(cairn_pad_options(.multiple_of = INT64_MAX), examples, batch), CAIRN_EINVAL, "more elements than");
    REFUSED(pad(cairn_pad_options(.multiple_of = INT64_MAX / 2 + 2, .length = 0), examples, batch), CAIRN_EINVAL,
            "more elements than");
    cairn_fields_clear(examples[1]);
    OK(cairn_fields_add_values(examples[1], CAIRN_I32, 1, (int64_t[]){1}, (int32_t[]){1}));
    OK(cairn_fields_add_values(examples[1], CAIRN_F32, 2, (int64_t[]){1, 3}, (float[]){1, 2, 3}));
    OK(cairn_fields_add_i64(examples[1], 0));
    REFUSED(pad(NULL, examples, batch), CAIRN_EINVAL,
            "field 1 is f32 of shape [1, 2] in the first example of the batch, and f32 of shape [1, 3] in number 1");
    SAYS("padding makes the first dimension alike, and no other");
    end_sentences(examples);
    cairn_fields_destroy(&batch);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_of_arrays_are_examples),
        cmocka_unit_test(a_file_truncated_while_it_is_read_fails_its_batch),
        cmocka_unit_test(arrays_that_do_not_belong_together_are_refused),
        cmocka_unit_test(a_map_makes_examples_of_others),
        cmocka_unit_test(tokens_and_the_next_ones_are_examples),
        cmocka_unit_test(files_of_other_tokens_are_refused),
        cmocka_unit_test(examples_are_padded_to_the_longest),
        cmocka_unit_test(what_cannot_be_padded_is_refused),
    };
    void *unused = NULL;
    if (make_folder(&unused) != 0) return 1;
    const int failed = cmocka_run_group_tests(tests, make_env, end_env);
    return remove_folder(&unused) != 0 || failed;
}
