/* The safetensors format: round trips, and malformed files, each with its error message. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "../check.h"
#include "folder.h"
#include "state/safetensors.h"

#define SHAPE(...)                                                                 \
    (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (const int64_t[]) { \
        __VA_ARGS__                                                                \
    }

/* ---- files that come back ---- */

enum { NUM_TYPES = CAIRN__SAFETENSORS_BOOL };

static void every_type_comes_back_with_its_bytes(void **state) {
    (void)state;
    struct cairn__safetensors_tensor tensors[NUM_TYPES];
    struct cairn__safetensors_writer *w = NULL;
    struct cairn__safetensors *f = NULL;
    struct cairn__file_facts written, read;
    unsigned char bytes[64 * 8], back[sizeof(bytes)];
    const int64_t shape[] = {2, 4, 3};
    for (unsigned i = 0; i < sizeof(bytes); i++) bytes[i] = (unsigned char)(7 * i + 1);
    for (int i = 0; i < NUM_TYPES; i++) {
        const enum cairn__safetensors_type type = (enum cairn__safetensors_type)(i + 1);
        tensors[i] = (struct cairn__safetensors_tensor){cairn__safetensors_type_name(type), type, 3, shape, 0, 0};
    }
    OK(cairn__safetensors_create(in_folder("x"), 0, tensors, NUM_TYPES, NULL, 0, &w));
    for (size_t k = 0; k < NUM_TYPES; k++) {
        const size_t i = cairn__safetensors_nth(w, k), nbytes = cairn__safetensors_nbytes(&tensors[i]);
        OK(cairn__safetensors_write(w, bytes + i, nbytes / 2));
        OK(cairn__safetensors_write(w, bytes + i + nbytes / 2, nbytes - nbytes / 2));
    }
    OK(cairn__safetensors_commit(&w, &written));
    OK(cairn__safetensors_open(in_folder("x"), 0, &f));
    assert_int_equal(cairn__safetensors_count(f), NUM_TYPES);
    for (size_t i = 0; i < NUM_TYPES; i++) {
        const struct cairn__safetensors_tensor *t = cairn__safetensors_find(f, tensors[i].name);
        assert_non_null(t);
        assert_int_equal(t->type, i + 1);
        assert_int_equal(t->ndim, 3);
        assert_memory_equal(t->shape, shape, sizeof(shape));
        OK(cairn__safetensors_read(f, t, 0, back, t->nbytes));
        assert_memory_equal(back, bytes + i, t->nbytes);
        OK(cairn__safetensors_read(f, t, 5, back, 3));
        assert_memory_equal(back, bytes + i + 5, 3);
        const size_t whole = t->nbytes / 24; /* 0 where an element is no byte */
        if (whole > 0) assert_int_equal(t->begin % whole, 0);
        REFUSED(cairn__safetensors_read(f, t, t->nbytes, back, 1), CAIRN_EINTERNAL, tensors[i].name);
    }
    OK(cairn__safetensors_facts(f, &read));
    assert_true(written.nbytes == read.nbytes && written.hash == read.hash);
    cairn__safetensors_close(&f);
    assert_null(f);
}

static void types_of_cairn_and_of_the_format_are_distinguished(void **state) {
    (void)state;
    for (int i = CAIRN_F32; i <= CAIRN_U8; i++) {
        const enum cairn__safetensors_type type = cairn__safetensors_type((cairn_dtype)i);
        assert_int_not_equal(type, CAIRN__SAFETENSORS_NONE);
        assert_int_equal(cairn__safetensors_dtype(type), i);
        const struct cairn__safetensors_tensor t = {"x", type, SHAPE(1), 0, 0};
        assert_int_equal(cairn__safetensors_nbytes(&t), cairn_dtype_nbytes((cairn_dtype)i));
    }
    assert_int_equal(cairn__safetensors_dtype(CAIRN__SAFETENSORS_I16), 0);
    assert_int_equal(cairn__safetensors_type((cairn_dtype)99), CAIRN__SAFETENSORS_NONE);
    assert_string_equal(cairn__safetensors_type_name(CAIRN__SAFETENSORS_F8_E4M3), "F8_E4M3");
    assert_string_equal(cairn__safetensors_type_name((enum cairn__safetensors_type)99), "?");
}

static void names_and_texts_come_back_to_the_letter(void **state) {
    (void)state;
    static const char name[] = "a \"quoted\"\\ name\n\xc3\xa4\xf0\x9f\x8c\x8d/\x01";
    const struct cairn__safetensors_tensor tensors[] = {{name, CAIRN__SAFETENSORS_BOOL, 0, NULL, 0, 0},
                                                        {"empty", CAIRN__SAFETENSORS_F32, SHAPE(3, 0), 0, 0},
                                                        {"b", CAIRN__SAFETENSORS_F64, SHAPE(1), 0, 0}};
    const struct cairn__safetensors_text texts[] = {{"format", "pt"}, {name, name}, {"none", ""}};
    struct cairn__safetensors_writer *w = NULL;
    struct cairn__safetensors *f = NULL;
    OK(cairn__safetensors_create(in_folder("x"), 0, tensors, 3, texts, 3, &w));
    assert_int_equal(cairn__safetensors_nth(w, 0), 2);
    OK(cairn__safetensors_write(w, "12345678b", 9));
    OK(cairn__safetensors_commit(&w, NULL));
    OK(cairn__safetensors_open(in_folder("x"), CAIRN__READER_HASHES, &f));
    assert_int_equal(cairn__safetensors_count(f), 3);
    assert_int_equal(cairn__safetensors_find(f, name)->ndim, 0);
    assert_int_equal(cairn__safetensors_find(f, name)->nbytes, 1);
    assert_int_equal(cairn__safetensors_find(f, "empty")->nbytes, 0);
    assert_null(cairn__safetensors_find(f, "emptier"));
    assert_null(cairn__safetensors_find(f, "__metadata__"));
    assert_string_equal(cairn__safetensors_metadata(f, "format"), "pt");
    assert_string_equal(cairn__safetensors_metadata(f, name), name);
    assert_string_equal(cairn__safetensors_metadata(f, "none"), "");
    assert_null(cairn__safetensors_metadata(f, "more"));
    assert_int_equal(cairn__safetensors_metadata_count(f), 3);
    assert_string_equal(cairn__safetensors_metadata_at(f, 0).key, "format");
    assert_string_equal(cairn__safetensors_metadata_at(f, 1).value, name);
    cairn__safetensors_close(&f);
}

static void ten_thousand_tensors_are_found(void **state) {
    (void)state;
    enum { N = 10000 };
    struct cairn__safetensors_tensor *tensors = calloc(N, sizeof(*tensors));
    char(*names)[32] = calloc(N, sizeof(*names));
    struct cairn__safetensors_writer *w = NULL;
    struct cairn__safetensors *f = NULL;
    const int64_t one = 1;
    for (int i = 0; i < N; i++) {
        snprintf(names[i], sizeof(names[i]), "layer.%d.weight", i);
        tensors[i] = (struct cairn__safetensors_tensor){names[i], CAIRN__SAFETENSORS_I32, 1, &one, 0, 0};
    }
    OK(cairn__safetensors_create(in_folder("x"), 0, tensors, N, NULL, 0, &w));
    for (int i = 0; i < N; i++) OK(cairn__safetensors_write(w, &i, sizeof(i)));
    OK(cairn__safetensors_commit(&w, NULL));
    OK(cairn__safetensors_open(in_folder("x"), 0, &f));
    for (int i = 0; i < N; i++) {
        int value = -1;
        OK(cairn__safetensors_read(f, cairn__safetensors_find(f, names[i]), 0, &value, sizeof(value)));
        assert_int_equal(value, i);
    }
    cairn__safetensors_close(&f);
    free(names);
    free(tensors);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Each by its number: walking there from the first took 40 s. */
static void many_texts_are_read_in_their_order_without_delay(void **state) {
    (void)state;
    enum { N = 80000 };
    struct cairn__safetensors_text *texts = calloc(N, sizeof(*texts));
    char(*keys)[16] = calloc(N, sizeof(*keys));
    struct cairn__safetensors_writer *w = NULL;
    struct cairn__safetensors *f = NULL;
    for (int i = 0; i < N; i++) {
        snprintf(keys[i], sizeof(keys[i]), "key %d", i);
        texts[i] = (struct cairn__safetensors_text){keys[i], keys[i]};
    }
    const double before = now();
    OK(cairn__safetensors_create(in_folder("x"), 0, NULL, 0, texts, N, &w));
    OK(cairn__safetensors_commit(&w, NULL));
    OK(cairn__safetensors_open(in_folder("x"), 0, &f));
    assert_int_equal(cairn__safetensors_metadata_count(f), N);
    for (size_t i = 0; i < N; i++) {
        const struct cairn__safetensors_text text = cairn__safetensors_metadata_at(f, i);
        if (strcmp(text.key, keys[i]) != 0 || strcmp(text.value, keys[i]) != 0) fail_msg("text %zu: %s", i, text.key);
    }
    if (now() - before > 10) fail_msg("%.1f s", now() - before); /* 0.3 s on a machine that does nothing else */
    cairn__safetensors_close(&f);
    free(keys);
    free(texts);
}

static void what_cannot_be_written_leaves_no_file(void **state) {
    (void)state;
    static const int64_t huge[] = {INT64_MAX, 4, 2}, odd[] = {3};
    static const struct {
        struct cairn__safetensors_tensor second; /* beside "a" */
        const char *text, *words;
    } bad[] = {
        {{"a", CAIRN__SAFETENSORS_F32, 0, NULL, 0, 0}, "v", "'a' is to be written twice"},
        {{"\xff", CAIRN__SAFETENSORS_F32, 0, NULL, 0, 0}, "v", "is not UTF-8"},
        {{"", CAIRN__SAFETENSORS_F32, 0, NULL, 0, 0}, "v", "no tensor can be called ''"},
        {{"__metadata__", CAIRN__SAFETENSORS_F32, 0, NULL, 0, 0}, "v", "no tensor can be called '__metadata__'"},
        {{"b", CAIRN__SAFETENSORS_NONE, 0, NULL, 0, 0}, "v", "without a type"},
        {{"b", CAIRN__SAFETENSORS_F32, 3, huge, 0, 0}, "v", "the sizes of 'b' have no product"},
        {{"b", CAIRN__SAFETENSORS_F4, 1, odd, 0, 0}, "v", "the sizes of 'b' have no product"},
        {{"b", CAIRN__SAFETENSORS_F32, 0, NULL, 0, 0}, "\xc3", "'k' is not UTF-8"},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        const struct cairn__safetensors_tensor tensors[] = {{"a", CAIRN__SAFETENSORS_F32, 0, NULL, 0, 0},
                                                            bad[i].second};
        const struct cairn__safetensors_text text = {"k", bad[i].text};
        struct cairn__safetensors_writer *w = NULL;
        check_as(bad[i].words);
        REFUSED(cairn__safetensors_create(in_folder("x"), 0, tensors, 2, &text, 1, &w), CAIRN_EINVAL, bad[i].words);
        assert_null(w);
        assert_int_equal(count_files(), 0);
    }
    check_who[0] = 0;
}

static void a_file_with_other_bytes_than_its_header_promises_is_not_made(void **state) {
    (void)state;
    const struct cairn__safetensors_tensor tensor = {"a", CAIRN__SAFETENSORS_F32, SHAPE(2), 0, 0};
    struct cairn__safetensors_writer *w = NULL;
    OK(cairn__safetensors_create(in_folder("x"), 0, &tensor, 1, NULL, 0, &w));
    OK(cairn__safetensors_write(w, "1234567", 7));
    REFUSED(cairn__safetensors_write(w, "12", 2), CAIRN_EINTERNAL, "2 bytes of tensors, where 1 are missing");
    REFUSED(cairn__safetensors_commit(&w, NULL), CAIRN_EINTERNAL, "1 bytes of tensors are missing");
    assert_null(w);
    assert_int_equal(count_files(), 0);
}

/* ---- files of strangers ---- */

/* A file of this header, as long as it is, and so many bytes of elements. */
static void write_header(const char *header, size_t nbytes, uint64_t elements) {
    char *file = calloc(1, 8 + nbytes + elements);
    for (int i = 0; i < 8; i++) file[i] = (char)((uint64_t)nbytes >> 8 * i);
    memcpy(file + 8, header, nbytes);
    write_file(in_folder("x"), file, 8 + nbytes + elements);
    free(file);
}

#define ONE(name, rest) "{\"" name "\":{" rest "}}"
#define A(type, shape, from, to) \
    ONE("a", "\"dtype\":\"" type "\",\"shape\":" shape ",\"data_offsets\":[" from "," to "]")
#define TWO(from, to)                                                 \
    "{\"a\":{\"dtype\":\"I8\",\"shape\":[4],\"data_offsets\":[0,4]}," \
    "\"b\":{\"dtype\":\"I8\",\"shape\":[4],\"data_offsets\":[" from "," to "]}}"

static void headers_that_are_wrong_are_refused_with_a_sentence(void **state) {
    (void)state;
    static const struct {
        const char *header;
        uint64_t elements;
        const char *words;
    } bad[] = {
        {"", 0, "its header is no JSON object"},
        {"[]", 0, "its header is no JSON object"},
        {" {}", 0, "its header is no JSON object"},
        {"{", 0, "the header is broken at byte"},
        {"{} x", 0, "the header is broken at byte"},
        {"{\"a\":1}", 0, "'a' is described by no JSON object"},
        {"{\"a\":{}}", 0, "'a' has no dtype"},
        {ONE("a", "\"dtype\":7"), 0, "'a' has no dtype"},
        {A("F31", "[1]", "0", "4"), 4, "'a' has the type 'F31', which Cairn does not know"},
        {A("f32", "[1]", "0", "4"), 4, "'a' has the type 'f32', which Cairn does not know"},
        {A("?", "[1]", "0", "4"), 4, "'a' has the type '?', which Cairn does not know"},
        {ONE("a", "\"dtype\":\"F32\",\"data_offsets\":[0,4]"), 4, "'a' has no shape"},
        {A("F32", "1", "0", "4"), 4, "'a' has no shape"},
        {A("F32", "{}", "0", "4"), 4, "'a' has no shape"},
        {A("F32", "[-1]", "0", "4"), 4, "the shape of 'a' has a size that is no number of elements"},
        {A("F32", "[1.0]", "0", "4"), 4, "the shape of 'a' has a size that is no number of elements"},
        {A("F32", "[\"1\"]", "0", "4"), 4, "the shape of 'a' has a size that is no number of elements"},
        {A("F32", "[9223372036854775808]", "0", "4"), 4, "the header is broken"},
        {A("F32", "[4611686018427387904, 4]", "0", "4"), 4, "the sizes of 'a' have no product in bytes"},
        {A("F32", "[9223372036854775807, 9223372036854775807, 0]", "0", "0"), 0, "have no product in bytes"},
        {A("F4", "[3]", "0", "1"), 1, "the sizes of 'a' have no product in bytes"},
        {ONE("a", "\"dtype\":\"F32\",\"shape\":[1]"), 4, "'a' has no data_offsets"},
        {ONE("a", "\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,8]"), 4, "'a' has no data_offsets"},
        {A("F32", "[1]", "0", "4.0"), 4, "'a' has no data_offsets"},
        {A("F32", "[1]", "-4", "0"), 4, "'a' has the bytes from -4 to 0, and its shape needs 4"},
        {A("F32", "[1]", "4", "0"), 4, "'a' has the bytes from 4 to 0, and its shape needs 4"},
        {A("F32", "[1]", "0", "8"), 8, "'a' has the bytes from 0 to 8, and its shape needs 4"},
        {A("F32", "[1]", "-9223372036854775808", "9223372036854775807"), 4, "and its shape needs 4"},
        {A("F32", "[1]", "0", "4"), 3, "3 bytes of elements, and its tensors have 4: was it cut?"},
        {A("F32", "[1]", "0", "4"), 5, "5 bytes of elements, and its tensors have 4"},
        {"{}", 1, "1 bytes of elements, and its tensors have 0"},
        {A("F32", "[1]", "4", "8"), 8, "'a' begins at byte 4 of the elements, behind bytes that no tensor has"},
        {A("I8", "[1152921504606846976]", "0", "1152921504606846976"), 4, "was it cut?"},
        {TWO("2", "6"), 6, "'b' begins at byte 2 of the elements, within another tensor"},
        {TWO("0", "4"), 4, "'b' begins at byte 0 of the elements, within another tensor"},
        {TWO("5", "9"), 9, "'b' begins at byte 5 of the elements, behind bytes that no tensor has"},
        {"{\"a\":{\"dtype\":\"I8\",\"shape\":[0],\"data_offsets\":[0,0]},"
         "\"a\":{\"dtype\":\"I8\",\"shape\":[0],\"data_offsets\":[0,0]}}",
         0, "duplicate object key"},
        {"{\"a\":{\"dtype\":\"I8\",\"dtype\":\"I8\",\"shape\":[0],\"data_offsets\":[0,0]}}", 0, "duplicate object key"},
        {"{\"a\\u0000b\":{\"dtype\":\"I8\",\"shape\":[0],\"data_offsets\":[0,0]}}", 0, "the header is broken"},
        {"{\"a\xff\":{\"dtype\":\"I8\",\"shape\":[0],\"data_offsets\":[0,0]}}", 0, "the header is broken"},
        {"{\"__metadata__\":[]}", 0, "__metadata__ is no JSON object"},
        {"{\"__metadata__\":{\"a\":1}}", 0, "'a' of __metadata__ is no text"},
        {"{\"a\":[[[[[[[[1]]]]]]]]}", 0, "the header nests deeper than one of tensors does"},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct cairn__safetensors *f = NULL;
        char words[256];
        check_as(bad[i].header);
        write_header(bad[i].header, strlen(bad[i].header), bad[i].elements);
        REFUSED(cairn__safetensors_open(in_folder("x"), 0, &f), CAIRN_EINVAL, bad[i].words);
        snprintf(words, sizeof(words), "%s/x: ", folder);
        SAYS(words);
        assert_null(f);
    }
    check_who[0] = 0;
}

static void a_zero_byte_in_the_header_is_refused(void **state) {
    (void)state;
    struct cairn__safetensors *f = NULL;
    static const char inside[] = "{\"a\0b\":{\"dtype\":\"I8\",\"shape\":[0],\"data_offsets\":[0,0]}}";
    write_header(inside, sizeof(inside) - 1, 0);
    REFUSED(cairn__safetensors_open(in_folder("x"), 0, &f), CAIRN_EINVAL, "the header is broken");
    write_header("{}\0", 3, 0);
    REFUSED(cairn__safetensors_open(in_folder("x"), 0, &f), CAIRN_EINVAL, "the header is broken");
}

static void brackets_within_texts_and_spaces_at_the_end_are_no_matter(void **state) {
    (void)state;
    struct cairn__safetensors *f = NULL;
    const char *header =
        "{\"[[[[{\\\"{[[\":{\"dtype\":\"I8\",\"shape\":[0],\"data_offsets\":[0,0],\"more\":{}}}     \n";
    write_header(header, strlen(header), 0);
    OK(cairn__safetensors_open(in_folder("x"), 0, &f));
    assert_non_null(cairn__safetensors_find(f, "[[[[{\"{[["));
    cairn__safetensors_close(&f);
    write_header("{}", 2, 0);
    OK(cairn__safetensors_open(in_folder("x"), 0, &f));
    assert_int_equal(cairn__safetensors_count(f), 0);
    assert_null(cairn__safetensors_find(f, "a"));
    assert_int_equal(cairn__safetensors_metadata_count(f), 0);
    assert_null(cairn__safetensors_metadata(f, "a"));
    cairn__safetensors_close(&f);
}

static void depth_without_end_does_not_end_the_stack(void **state) {
    (void)state;
    enum { DEEP = 5000000 };
    struct cairn__safetensors *f = NULL;
    char *header = malloc(DEEP);
    memset(header, '[', DEEP);
    memcpy(header, "{\"a\":", 5);
    write_header(header, DEEP, 0);
    REFUSED(cairn__safetensors_open(in_folder("x"), 0, &f), CAIRN_EINVAL, "nests deeper");
    free(header);
}

/* Headers that jansson would need up to 80 times their length for. */
static void headers_of_more_values_than_tensors_have_are_refused(void **state) {
    (void)state;
    enum { LONG = 10000000 };
    struct cairn__safetensors *f = NULL;
    char *header = malloc(LONG + 200);
    size_t n = (size_t)sprintf(header, "{\"a\":{\"dtype\":\"F32\",\"shape\":[0");
    while (n < LONG) n += (size_t)sprintf(header + n, ",0");
    n += (size_t)sprintf(header + n, "],\"data_offsets\":[0,0]}}");
    write_header(header, n, 0);
    REFUSED(cairn__safetensors_open(in_folder("x"), 0, &f), CAIRN_EINVAL, "the shape of a tensor has 64 at most");
    n = (size_t)sprintf(header, "{\"a\":{\"x\":[");
    while (n < LONG) n += (size_t)sprintf(header + n, "0,0,0],\"%zx\":[", n);
    n += (size_t)sprintf(header + n, "]}}");
    write_header(header, n, 0);
    REFUSED(cairn__safetensors_open(in_folder("x"), 0, &f), CAIRN_EINVAL, "more values than one of so many tensors");
    n = (size_t)sprintf(header, "{\"a\":{}");
    while (n < LONG) n += (size_t)sprintf(header + n, ",\"%zx\":{}", n);
    n += (size_t)sprintf(header + n, "}");
    write_header(header, n, 0);
    REFUSED(cairn__safetensors_open(in_folder("x"), 0, &f), CAIRN_EINVAL, "more values than one of so many tensors");
    free(header);
}

/* As many as PyTorch has, and their number in a text does not count. */
static void a_shape_of_64_sizes_is_read(void **state) {
    (void)state;
    char header[1000];
    for (int sizes = 64; sizes <= 65; sizes++) {
        struct cairn__safetensors *f = NULL;
        size_t n =
            (size_t)sprintf(header, "{\"[,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,,\":"
                                    "{\"dtype\":\"I8\",\"shape\":[1");
        for (int i = 1; i < sizes; i++) n += (size_t)sprintf(header + n, ",1");
        n += (size_t)sprintf(header + n, "],\"data_offsets\":[0,1]}}");
        write_header(header, n, 1);
        const cairn_status st = cairn__safetensors_open(in_folder("x"), 0, &f);
        assert_int_equal(st, sizes == 64 ? CAIRN_OK : CAIRN_EINVAL);
        if (f) assert_int_equal(cairn__safetensors_at(f, 0)->ndim, 64);
        cairn__safetensors_close(&f);
    }
}

/* A header of 9 MB with names as they are: about what the largest models have. */
static void a_hundred_thousand_tensors_are_read(void **state) {
    (void)state;
    enum { N = 100000 };
    struct cairn__safetensors *f = NULL;
    char *header = malloc(N * 120);
    size_t n = (size_t)sprintf(header, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (int i = 0; i < N; i++) {
        n += (size_t)sprintf(header + n,
                             ",\"layers.%d.mlp.weight\":{\"dtype\":\"U8\",\"shape\":[1,1],\"data_offsets\":[%d,%d]}", i,
                             i, i + 1);
    }
    n += (size_t)sprintf(header + n, "}");
    write_header(header, n, N);
    OK(cairn__safetensors_open(in_folder("x"), 0, &f));
    assert_int_equal(cairn__safetensors_count(f), N);
    cairn__safetensors_close(&f);
    free(header);
}

static void lengths_of_headers_that_no_file_has_are_refused(void **state) {
    (void)state;
    static const unsigned char lengths[][8] = {{0, 0, 0, 0, 0, 0, 0, 0x80}, /* 2^63 */
                                               {255, 255, 255, 255, 255, 255, 255, 255},
                                               {248, 255, 255, 255, 255, 255, 255, 255},
                                               {3, 0, 0, 0, 0, 0, 0, 0},
                                               {0, 0xe1, 0xf5, 0x05, 0, 0, 0, 0}};
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        struct cairn__safetensors *f = NULL;
        unsigned char file[10] = "........{}";
        memcpy(file, lengths[i], 8);
        write_file(in_folder("x"), file, sizeof(file));
        REFUSED(cairn__safetensors_open(in_folder("x"), 0, &f), CAIRN_EINVAL, "a header of ");
        assert_null(f);
    }
    for (size_t n = 0; n < 8; n++) {
        struct cairn__safetensors *f = NULL;
        write_file(in_folder("x"), lengths[0], n);
        REFUSED(cairn__safetensors_open(in_folder("x"), 0, &f), CAIRN_EINVAL, "not a safetensors file: it has ");
    }
}

/* Over the limit of the format, in a file that is long enough: it has no blocks on the disk. */
static void a_header_over_the_limit_is_refused(void **state) {
    (void)state;
    struct cairn__safetensors *f = NULL;
    const unsigned char length[8] = {1, 0xe1, 0xf5, 0x05}; /* 100000001 */
    write_file(in_folder("x"), length, sizeof(length));
    assert_int_equal(truncate(in_folder("x"), 200000000), 0);
    REFUSED(cairn__safetensors_open(in_folder("x"), 0, &f), CAIRN_EINVAL, "a header of 100000001 bytes");
}

static void a_file_cut_anywhere_is_refused(void **state) {
    (void)state;
    const struct cairn__safetensors_tensor tensors[] = {{"a", CAIRN__SAFETENSORS_F32, SHAPE(2), 0, 0},
                                                        {"b", CAIRN__SAFETENSORS_I8, SHAPE(3), 0, 0}};
    struct cairn__safetensors_writer *w = NULL;
    struct cairn__file_facts facts;
    OK(cairn__safetensors_create(in_folder("x"), 0, tensors, 2, NULL, 0, &w));
    OK(cairn__safetensors_write(w, "12345678123", 11));
    OK(cairn__safetensors_commit(&w, &facts));
    for (uint64_t n = facts.nbytes; n-- > 0;) {
        struct cairn__safetensors *f = NULL;
        assert_int_equal(truncate(in_folder("x"), (off_t)n), 0);
        assert_int_equal(cairn__safetensors_open(in_folder("x"), 0, &f), CAIRN_EINVAL);
        assert_null(f);
    }
}

static void a_link_is_refused_where_links_are_not_followed(void **state) {
    (void)state;
    struct cairn__safetensors *f = NULL;
    write_header("{}", 2, 0);
    assert_int_equal(symlink("x", in_folder("link")), 0);
    REFUSED(cairn__safetensors_open(in_folder("link"), CAIRN__READER_NO_LINK, &f), CAIRN_EINVAL, "a symbolic link");
    OK(cairn__safetensors_open(in_folder("link"), 0, &f));
    cairn__safetensors_close(&f);
}

#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, make_folder, remove_folder)

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_FOLDER(every_type_comes_back_with_its_bytes),
        cmocka_unit_test(types_of_cairn_and_of_the_format_are_distinguished),
        IN_FOLDER(names_and_texts_come_back_to_the_letter),
        IN_FOLDER(ten_thousand_tensors_are_found),
        IN_FOLDER(many_texts_are_read_in_their_order_without_delay),
        IN_FOLDER(what_cannot_be_written_leaves_no_file),
        IN_FOLDER(a_file_with_other_bytes_than_its_header_promises_is_not_made),
        IN_FOLDER(headers_that_are_wrong_are_refused_with_a_sentence),
        IN_FOLDER(a_zero_byte_in_the_header_is_refused),
        IN_FOLDER(brackets_within_texts_and_spaces_at_the_end_are_no_matter),
        IN_FOLDER(depth_without_end_does_not_end_the_stack),
        IN_FOLDER(headers_of_more_values_than_tensors_have_are_refused),
        IN_FOLDER(a_shape_of_64_sizes_is_read),
        IN_FOLDER(a_hundred_thousand_tensors_are_read),
        IN_FOLDER(lengths_of_headers_that_no_file_has_are_refused),
        IN_FOLDER(a_header_over_the_limit_is_refused),
        IN_FOLDER(a_file_cut_anywhere_is_refused),
        IN_FOLDER(a_link_is_refused_where_links_are_not_followed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
