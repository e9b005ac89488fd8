/* Text datasets of one record per line: MNLI's format, GLUE's, malformed lines, and the index. */
#include <setjmp.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "../failing_alloc.h"
#include "../kept_log.h"
#include "../one_env.h"
#include "../processor_time.h"
#include "../state/folder.h"
#include "core/alloc.h"

static const char *const labels[] = {"neutral", "entailment", "contradiction"}; /* no order of the alphabet */

static const struct cairn_text_options *mnli(const char *index) {
    static struct cairn_text_options o;
    o = *cairn_text_options(.label = "gold_label", .labels = labels, .num_labels = 3, .dropped = "-", .index = index);
    return &o;
}

static cairn_dataset *open_text(const char *path, const struct cairn_text_options *options) {
    cairn_dataset *dataset = NULL;
    OK(cairn_text_dataset_create(path, CAIRN_COLUMNS("sentence1", "sentence2"), options, &dataset));
    return dataset;
}

/* Example i as "first|second|label". */
static const char *example_of(const cairn_dataset *dataset, int64_t i) {
    static char text[4096];
    cairn_fields *f = NULL;
    struct cairn_random random;
    size_t used = 0;
    cairn_random_begin(&random, 0, 0, i);
    OK(cairn_fields_create(&f));
    OK(cairn_dataset_read(dataset, i, &random, f));
    for (int k = 0; k < cairn_fields_count(f); k++) {
        const struct cairn_field *field = cairn_fields_at(f, k);
        if (field->dtype == CAIRN_I64) {
            used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%lld", k ? "|" : "",
                                     (long long)*(const int64_t *)field->data);
            continue;
        }
        assert_int_equal(field->dtype, CAIRN_U8);
        assert_int_equal(field->ndim, 1);
        assert_int_equal(field->shape[0], field->nbytes);
        assert_int_equal(((const char *)field->data)[field->nbytes], 0);
        assert_int_equal(strlen(field->data), field->nbytes);
        used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%s", k ? "|" : "", (const char *)field->data);
    }
    cairn_fields_destroy(&f);
    return text;
}

static cairn_status read_alone(const cairn_dataset *dataset, int64_t i) {
    cairn_fields *f = NULL;
    struct cairn_random random;
    cairn_random_begin(&random, 0, 0, i);
    OK(cairn_fields_create(&f));
    const cairn_status st = cairn_dataset_read(dataset, i, &random, f);
    cairn_fields_destroy(&f);
    return st;
}

static const char *write_text(const char *name, const char *text) {
    const char *path = in_folder(name);
    write_file(path, text, strlen(text));
    return path;
}

/* ---- forms ---- */

/* Keys in the order of MNLI's files, with what is not read between. */
static const char mnli_lines[] =
    "{\"annotator_labels\": [\"neutral\"], \"genre\": \"telephone\", \"gold_label\": \"neutral\", \"pairID\": \"1n\", "
    "\"promptID\": \"1\", \"sentence1\": \"Conceptually cream skimming\", \"sentence1_parse\": \"(ROOT (S))\", "
    "\"sentence2\": \"Product and geography are what make it work. \"}\n"
    "{\"gold_label\": \"-\", \"sentence1\": \"no majority\", \"sentence2\": \"is dropped\"}\r\n"
    "\n"
    "{\"gold_label\": \"contradiction\", \"sentence2\": \"\", \"sentence1\": \"caf\\u00e9 \\\"x\\\" "
    "\\ud83d\\ude00\"}\r\n"
    "\r\n"
    "{\"sentence1\": \"last\", \"sentence2\": \"without an end\", \"gold_label\": \"entailment\"}";

static void mnlis_lines_are_read(void **state) {
    (void)state;
    for (int bom = 0; bom <= 1; bom++) {
        char text[2048];
        snprintf(text, sizeof(text), "%s%s", bom ? "\xef\xbb\xbf" : "", mnli_lines);
        cairn_dataset *dataset = open_text(write_text("mnli.jsonl", text), mnli(NULL));
        assert_int_equal(cairn_dataset_count(dataset), 3);
        assert_string_equal(example_of(dataset, 0),
                            "Conceptually cream skimming|Product and geography are what make it work. |0");
        assert_string_equal(example_of(dataset, 2), "last|without an end|1");
        assert_string_equal(example_of(dataset, 1), "caf\xc3\xa9 \"x\" \xf0\x9f\x98\x80||2");
        cairn_dataset_destroy(&dataset);
    }
}

static void glues_tables_are_read(void **state) {
    static const char table[] = "index\tpromptID\tsentence1\tsentence2\tlabel1\tgold_label\n"
                                "0\t31193n\t\"A quote that never ends\tB\tneutral\tneutral\n"
                                "1\t2\tdropped\t\t-\t-\n"
                                "2\t3\t\tC \tx\tcontradiction\r\n";
    cairn_dataset *dataset = open_text(write_text("train.tsv", table), mnli(NULL));
    (void)state;
    assert_int_equal(cairn_dataset_count(dataset), 2);
    assert_string_equal(example_of(dataset, 0), "\"A quote that never ends|B|0");
    assert_string_equal(example_of(dataset, 1), "|C |2");
    cairn_dataset_destroy(&dataset);
}

static void columns_without_names_are_numbers(void **state) {
    cairn_dataset *dataset = NULL;
    (void)state;
    const char *path = write_text("cola.tsv", "gj04\t1\t\tOur friends won't buy\ngj04\t0\t*\tOne more\n");
    OK(cairn_text_dataset_create(path, CAIRN_COLUMNS("3"), cairn_text_options(.header = CAIRN_OFF, .label = "1"),
                                 &dataset));
    assert_int_equal(cairn_dataset_count(dataset), 2);
    assert_string_equal(example_of(dataset, 0), "Our friends won't buy|1");
    assert_string_equal(example_of(dataset, 1), "One more|0");
    cairn_dataset_destroy(&dataset);
    REFUSED(cairn_text_dataset_create(path, CAIRN_COLUMNS("three"), cairn_text_options(.header = CAIRN_OFF), &dataset),
            CAIRN_EINVAL, "there is no column 'three'; without a header columns are numbers");
}

static void labels_may_be_numbers_and_texts_integers(void **state) {
    cairn_dataset *dataset = NULL;
    (void)state;
    const char *path = write_text("numbers.jsonl", "{\"t\": 12, \"y\": -3}\n{\"t\": \"x\", \"y\": \"44\"}\n");
    OK(cairn_text_dataset_create(path, CAIRN_COLUMNS("t"), cairn_text_options(.label = "y"), &dataset));
    assert_string_equal(example_of(dataset, 0), "12|-3");
    assert_string_equal(example_of(dataset, 1), "x|44");
    cairn_dataset_destroy(&dataset);
    OK(cairn_text_dataset_create(path, CAIRN_COLUMNS("t"), NULL, &dataset));
    assert_string_equal(example_of(dataset, 1), "x");
    cairn_dataset_destroy(&dataset);
    OK(cairn_text_dataset_create(path, 0, NULL, cairn_text_options(.label = "y"), &dataset));
    assert_string_equal(example_of(dataset, 1), "44");
    cairn_dataset_destroy(&dataset);
}

/* A record longer than what is read at first, and one behind records that are dropped. */
static void long_records_are_whole(void **state) {
    enum { LONG = 3000 };
    static char text[16 * LONG], word[LONG + 1], expected[2 * LONG + 16];
    size_t used = 0;
    (void)state;
    memset(word, 'w', LONG);
    for (int i = 0; i < 4; i++)
        used += (size_t)snprintf(text + used, sizeof(text) - used,
                                 "{\"sentence1\": \"%s\", \"sentence2\": \"%d\", \"gold_label\": \"%s\"}\n", word, i,
                                 i == 0 || i == 3 ? "neutral" : "-");
    cairn_dataset *dataset = open_text(write_text("long.jsonl", text), mnli(NULL));
    assert_int_equal(cairn_dataset_count(dataset), 2);
    for (int i = 0; i < 2; i++) {
        snprintf(expected, sizeof(expected), "%s|%d|0", word, 3 * i);
        assert_string_equal(example_of(dataset, i), expected);
    }
    cairn_dataset_destroy(&dataset);
}

static void a_file_without_records_has_none(void **state) {
    static const char *const texts[] = {"", "\n", "\r\n\n", "\xef\xbb\xbf"};
    (void)state;
    for (int i = 0; i < 4; i++) {
        cairn_dataset *dataset = open_text(write_text("empty.jsonl", texts[i]), mnli(NULL));
        assert_int_equal(cairn_dataset_count(dataset), 0);
        cairn_dataset_destroy(&dataset);
    }
    cairn_dataset *dataset = open_text(write_text("empty.tsv", "sentence1\tsentence2\tgold_label"), mnli(NULL));
    assert_int_equal(cairn_dataset_count(dataset), 0);
    cairn_dataset_destroy(&dataset);
}

/* ---- errors ---- */

static void a_record_that_cannot_be_read_is_an_error_when_it_is(void **state) {
    static const struct {
        const char *line, *words;
    } cases[] = {
        {"{\"sentence1\": \"a\", ", "not JSON: "},
        {"[1]", "JSON, but no object"},
        {"{\"sentence1\": \"a\", \"gold_label\": \"neutral\"}", "there is no text, and no integer, named sentence2"},
        {"{\"sentence1\": null, \"sentence2\": \"b\", \"gold_label\": \"neutral\"}", "named sentence1"},
        {"{\"sentence1\": \"a\", \"sentence2\": \"b\", \"gold_label\": \"Neutral\"}",
         "none of the labels is that of gold_label: 'Neutral'"},
        {"{\"sentence1\": \"\xff\", \"sentence2\": \"b\", \"gold_label\": \"neutral\"}", "not JSON: "},
        {"{\"sentence1\": [[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[",
         "more values in one another"},
    };
    static const char good[] = "{\"sentence1\": \"a\", \"sentence2\": \"b\", \"gold_label\": \"neutral\"}";
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char text[512], where[64];
        snprintf(text, sizeof(text), "%s\n%s\n%s\n", good, cases[i].line, good);
        snprintf(where, sizeof(where), "broken.jsonl: line %d, record 1: ", 2);
        cairn_dataset *dataset = open_text(write_text("broken.jsonl", text), mnli(NULL));
        assert_int_equal(cairn_dataset_count(dataset), 3);
        REFUSED(read_alone(dataset, 1), CAIRN_EINVAL, where);
        SAYS(cases[i].words);
        assert_string_equal(example_of(dataset, 0), "a|b|0");
        assert_string_equal(example_of(dataset, 2), "a|b|0");
        cairn_dataset_destroy(&dataset);
    }
}

static void a_table_with_too_few_cells_is_an_error(void **state) {
    cairn_dataset *dataset = NULL;
    (void)state;
    const char *path = write_text("few.tsv", "sentence1\tgold_label\tsentence2\na\tneutral\nb\t7x\tc\n");
    dataset = open_text(path, mnli(NULL));
    REFUSED(read_alone(dataset, 0), CAIRN_EINVAL, "few.tsv: line 2, record 0: there is no cell of column sentence2");
    cairn_dataset_destroy(&dataset);
    dataset = open_text(path, cairn_text_options(.label = "gold_label"));
    REFUSED(read_alone(dataset, 1), CAIRN_EINVAL, "the label is no whole number: '7x'");
    cairn_dataset_destroy(&dataset);
    REFUSED(cairn_text_dataset_create(path, CAIRN_COLUMNS("sentence3"), NULL, &dataset), CAIRN_EINVAL,
            "few.tsv: there is no column 'sentence3' in its first line");
}

/* The file's line i is record i - 2 - the empty lines and the dropped ones; the first line is the header. */
static void an_error_has_the_line_and_the_record(void **state) {
    enum { LINES = 9000 };
    const char *path = in_folder("numbered.tsv");
    char words[80];
    (void)state;
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fprintf(f, "gold_label\tsentence1\tsentence2\r\n");
    for (int i = 2; i <= LINES; i++) fprintf(f, i % 7 == 0 ? "\r\n" : i % 10 == 0 ? "-\t\t\n" : "wrong\t%d\tb\n", i);
    assert_int_equal(fclose(f), 0);
    for (int again = 0; again < 2; again++) { /* with the index, too */
        cairn_dataset *dataset = open_text(path, mnli(NULL));
        int64_t record = 0;
        for (int i = 2; i <= LINES; i++) {
            if (i % 7 == 0 || i % 10 == 0) continue;
            snprintf(words, sizeof(words), "numbered.tsv: line %d, record %d: none of the labels", i, (int)record);
            if (record % 97 == 0 || (record + 1) % 1024 < 2) REFUSED(read_alone(dataset, record), CAIRN_EINVAL, words);
            record++;
        }
        assert_int_equal(cairn_dataset_count(dataset), record);
        if (!again) {
            cairn_dataset_destroy(&dataset);
            continue;
        }
        assert_int_equal(truncate(path, 600), 0);
        REFUSED(read_alone(dataset, record - 1), CAIRN_EINVAL, "numbered.tsv: ends at byte 600, and ");
        cairn_dataset_destroy(&dataset);
    }
}

/* A name is looked for in time that grows with the line alone. */
static void a_first_line_may_have_a_million_cells(void **state) {
    enum { CELLS = 1 << 20 };
    char *line = malloc(CELLS + 16);
    cairn_dataset *dataset = NULL;
    (void)state;
    assert_non_null(line);
    memset(line, '\t', CELLS);
    memcpy(line + CELLS, "sentence1\n", 10);
    const char *path = in_folder("wide.tsv");
    write_file(path, line, CELLS + 10);
    OK(cairn_text_dataset_create(path, CAIRN_COLUMNS("sentence1", ""), NULL, &dataset));
    cairn_dataset_destroy(&dataset);
    REFUSED(cairn_text_dataset_create(path, CAIRN_COLUMNS("sentence2"), NULL, &dataset), CAIRN_EINVAL,
            "there is no column 'sentence2' in its first line");
    free(line);
}

static void wrong_options_are_refused(void **state) {
    static const char *const hole[] = {"a", NULL};
    const struct {
        struct cairn_text_options options;
        const char *words;
    } cases[] = {
        {*cairn_text_options(.format = (enum cairn_text_format)9), "format is 9"},
        {*cairn_text_options(.header = (cairn_switch)7), "header is 7"},
        {*cairn_text_options(.dropped = "-"), "but no label"},
        {*cairn_text_options(.label = "a", .num_labels = 2), "num_labels is 2, and labels is NULL"},
        {*cairn_text_options(.label = "a", .num_labels = -1), "num_labels is -1"},
        {*cairn_text_options(.label = "a", .labels = hole, .num_labels = 2), "label 1 is NULL"},
    };
    cairn_dataset *dataset = NULL;
    (void)state;
    const char *path = write_text("good.jsonl", mnli_lines);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        REFUSED(cairn_text_dataset_create(path, CAIRN_COLUMNS("a"), &cases[i].options, &dataset), CAIRN_EINVAL,
                cases[i].words);
    REFUSED(cairn_text_dataset_create(path, 0, NULL, NULL, &dataset), CAIRN_EINVAL, "0 columns");
    REFUSED(cairn_text_dataset_create(path, 2, hole, NULL, &dataset), CAIRN_EINVAL, "the name of column 1 is NULL");
    REFUSED(cairn_text_dataset_create(NULL, 2, hole, NULL, &dataset), CAIRN_EINVAL, "must be set");
    REFUSED(cairn_text_dataset_create(in_folder("no.jsonl"), CAIRN_COLUMNS("a"), NULL, &dataset), CAIRN_ESYSTEM,
            "no.jsonl");
    REFUSED(cairn_text_dataset_create(folder, CAIRN_COLUMNS("a"), NULL, &dataset), CAIRN_EINVAL, "not a regular file");
    assert_null(dataset);
}

static void what_has_no_lines_is_refused(void **state) {
    cairn_dataset *dataset = NULL;
    (void)state;
    const char *path = write_text("zeros.jsonl", "x");
    assert_int_equal(truncate(path, (1 << 26) + 1), 0);
    REFUSED(cairn_text_dataset_create(path, CAIRN_COLUMNS("a"), NULL, &dataset), CAIRN_EINVAL,
            "zeros.jsonl: line 1 is longer than 64 MiB");
    assert_int_equal(remove(path), 0);
    path = write_text("zeros.tsv", "a\t");
    assert_int_equal(truncate(path, (1 << 26) + 1), 0);
    REFUSED(cairn_text_dataset_create(path, CAIRN_COLUMNS("a"), NULL, &dataset), CAIRN_EINVAL,
            "zeros.tsv: line 1 is longer than 64 MiB");
    assert_int_equal(remove(path), 0);
}

static void a_truncated_file_is_an_error(void **state) {
    (void)state;
    const char *path = write_text("cut.jsonl", mnli_lines);
    cairn_dataset *dataset = open_text(path, mnli(NULL));
    assert_int_equal(truncate(path, 500), 0);
    assert_string_equal(example_of(dataset, 0),
                        "Conceptually cream skimming|Product and geography are what make it work. |0");
    REFUSED(read_alone(dataset, 2), CAIRN_EINVAL, "cut.jsonl: ends at byte 500, and ");
    cairn_dataset_destroy(&dataset);
}

/* ---- the index ---- */

enum { RECORDS = 5000 };

/* Of about 250 kB, so that its middle lies between the two ends that an index remembers. */
static const char *write_many(void) {
    const char *path = in_folder("many.jsonl");
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    for (int i = 0; i < RECORDS; i++)
        fprintf(f, "{\"sentence1\": \"%d\", \"sentence2\": \"\", \"gold_label\": \"%s\"}\n", i,
                i % 10 ? "neutral" : "-");
    assert_int_equal(fclose(f), 0);
    return path;
}

static void check_many(const char *path) {
    char expected[32];
    cairn_dataset *dataset = open_text(path, mnli(NULL));
    assert_int_equal(cairn_dataset_count(dataset), RECORDS / 10 * 9);
    for (int64_t i = 0; i < RECORDS / 10 * 9; i += 997) {
        snprintf(expected, sizeof(expected), "%d||0", (int)(i / 9 * 10 + i % 9 + 1));
        assert_string_equal(example_of(dataset, i), expected);
    }
    cairn_dataset_destroy(&dataset);
}

/* Puts c in the file's middle, and the time of its last change back. */
static void change_middle(const char *path, char c) {
    struct stat s;
    assert_int_equal(stat(path, &s), 0);
    FILE *f = fopen(path, "r+");
    assert_non_null(f);
    assert_int_equal(fseek(f, (long)s.st_size / 2, SEEK_SET), 0);
    assert_int_equal(fputc(c, f), c);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(utimensat(AT_FDCWD, path, (struct timespec[]){s.st_atim, s.st_mtim}, 0), 0);
}

static void an_index_is_used_until_the_file_changes(void **state) {
    (void)state;
    const char *path = write_many();
    cairn_dataset *dataset = NULL;
    check_many(path);
    check_many(path);
    change_middle(path, '\n'); /* a line more, which no index knows of */
    dataset = open_text(path, mnli(NULL));
    assert_int_equal(cairn_dataset_count(dataset), RECORDS / 10 * 9);
    cairn_dataset_destroy(&dataset);
    assert_int_equal(utimensat(AT_FDCWD, path, NULL, 0), 0);
    dataset = open_text(path, mnli(NULL));
    assert_in_range(cairn_dataset_count(dataset), RECORDS / 10 * 9 + 1, RECORDS / 10 * 9 + 2);
    cairn_dataset_destroy(&dataset);
    OK(cairn_text_dataset_create(path, CAIRN_COLUMNS("sentence1"), NULL, &dataset)); /* another question */
    assert_int_equal(cairn_dataset_count(dataset), RECORDS + 1);
    cairn_dataset_destroy(&dataset);
}

static void an_incomplete_index_is_rebuilt(void **state) {
    (void)state;
    static unsigned char bytes[1 << 18];
    const char *path = write_many();
    char index[300];
    snprintf(index, sizeof(index), "%s.cairn-index", path);
    check_many(path);
    FILE *f = fopen(index, "rb");
    assert_non_null(f);
    const size_t nbytes = fread(bytes, 1, sizeof(bytes), f);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(nbytes, 8 * (8 + RECORDS / 10 * 9 + (RECORDS / 10 * 9 + 1023) / 1024)); /* and some of the lines */
    for (size_t at = 0; at < nbytes; at += at < 64 ? 5 : 9011) {
        bytes[at] ^= 0x40;
        write_file(index, bytes, nbytes);
        check_many(path);
        bytes[at] ^= 0x40;
        write_file(index, bytes, at);
        check_many(path);
    }
}

static void an_index_has_the_path_that_is_given(void **state) {
    (void)state;
    const char *path = write_text("elsewhere.jsonl", mnli_lines);
    char beside[300];
    snprintf(beside, sizeof(beside), "%s.cairn-index", path);
    cairn_dataset *dataset = open_text(path, mnli(in_folder("the.index")));
    assert_int_equal(access(beside, F_OK), -1);
    assert_int_equal(access(in_folder("the.index"), F_OK), 0);
    cairn_dataset_destroy(&dataset);
    log_text[0] = 0;
    cairn_set_log(keep_log, NULL);
    dataset = open_text(path, mnli(in_folder("no/such/folder")));
    assert_int_equal(cairn_dataset_count(dataset), 3);
    assert_string_equal(example_of(dataset, 2), "last|without an end|1");
    cairn_set_log(NULL, NULL);
    assert_non_null(strstr(log_text, "elsewhere.jsonl is made anew each time: "));
    assert_non_null(strstr(log_text, "no/such/folder"));
    cairn_dataset_destroy(&dataset);
}

static void memory_that_runs_out_is_an_error(void **state) {
    (void)state;
    const char *path = write_text("memory.jsonl", mnli_lines);
    const uint64_t alive = cairn__alloc_counters().alive;
    cairn_status st = CAIRN_ENOMEM;
    for (int at = 1; st == CAIRN_ENOMEM; at++) {
        cairn_dataset *dataset = NULL;
        fail_in = at;
        st = cairn_text_dataset_create(path, CAIRN_COLUMNS("sentence1"), mnli(NULL), &dataset);
        if (st == CAIRN_OK) st = read_alone(dataset, 1);
        fail_in = 0;
        cairn_dataset_destroy(&dataset);
        assert_int_equal(cairn__alloc_counters().alive, alive);
        assert_true(at < 500);
    }
    OK(st);
}

/* ---- with a loader ---- */

/* Lengths of both sentences, and the label. */
static cairn_status measure(void *ctx, const cairn_fields *from, struct cairn_random *random, cairn_fields *example) {
    int64_t lengths[2];
    (void)ctx, (void)random;
    for (int i = 0; i < 2; i++) lengths[i] = (int64_t)cairn_fields_at(from, i)->nbytes;
    const cairn_status st = cairn_fields_add_values(example, CAIRN_I64, 1, (int64_t[]){2}, lengths);
    return st == CAIRN_OK ? cairn_fields_add_i64(example, *(const int64_t *)cairn_fields_at(from, 2)->data) : st;
}

static void texts_go_through_a_map_into_batches(void **state) {
    cairn_dataset *texts = open_text(write_text("loader.jsonl", mnli_lines), mnli(NULL)), *mapped = NULL;
    cairn_sampler *sampler = NULL;
    cairn_loader *loader = NULL;
    const struct cairn_batch *batch;
    int64_t values[6];
    OK(cairn_map_dataset_create(texts, measure, NULL, &mapped));
    OK(cairn_sampler_create(3, cairn_sampler_options(.shuffle = CAIRN_OFF), &sampler));
    OK(cairn_loader_create(*state, mapped, sampler, 3, cairn_loader_options(.workers = 2), &loader));
    OK(cairn_loader_next(loader, &batch));
    OK(cairn_tensor_read_as(batch->tensors[0], CAIRN_I64, values, 6));
    assert_memory_equal(values, ((int64_t[]){27, 45, 14, 0, 4, 14}), sizeof(values));
    OK(cairn_tensor_read_as(batch->tensors[1], CAIRN_I64, values, 3));
    assert_memory_equal(values, ((int64_t[]){0, 2, 1}), 24);
    cairn_loader_destroy(&loader);
    OK(cairn_sampler_set_epoch(sampler, 0));
    OK(cairn_loader_create(*state, texts, sampler, 1, NULL, &loader));
    REFUSED(cairn_loader_next(loader, &batch), CAIRN_EINVAL, "field 0 of the batch is u8");
    cairn_loader_destroy(&loader);
    cairn_sampler_destroy(&sampler);
    cairn_dataset_destroy(&mapped);
    cairn_dataset_destroy(&texts);
}

/* ---- ten million records ---- */

static void ten_million_records_open_in_under_a_second(void **state) {
    enum { MANY = 10000000 };
    cairn_dataset *dataset = NULL;
    char expected[16];
    (void)state;
    const char *path = in_folder("ten.tsv");
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    for (int i = 0; i < MANY; i++) fprintf(f, "%d\tan example\n", i);
    assert_int_equal(fclose(f), 0);
    for (int again = 0; again < 2; again++) {
        const double begin = processor_seconds();
        OK(cairn_text_dataset_create(path, CAIRN_COLUMNS("0"), cairn_text_options(.header = CAIRN_OFF), &dataset));
        const double took = processor_seconds() - begin;
        assert_int_equal(cairn_dataset_count(dataset), MANY);
        snprintf(expected, sizeof(expected), "%d", MANY - 3);
        assert_string_equal(example_of(dataset, MANY - 3), expected);
        cairn_dataset_destroy(&dataset);
        printf("%s: %.3f s\n", again ? "with its index" : "without", took);
        if (again) assert_true(took < 1);
    }
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mnlis_lines_are_read),
        cmocka_unit_test(glues_tables_are_read),
        cmocka_unit_test(columns_without_names_are_numbers),
        cmocka_unit_test(labels_may_be_numbers_and_texts_integers),
        cmocka_unit_test(long_records_are_whole),
        cmocka_unit_test(a_file_without_records_has_none),
        cmocka_unit_test(a_record_that_cannot_be_read_is_an_error_when_it_is),
        cmocka_unit_test(a_table_with_too_few_cells_is_an_error),
        cmocka_unit_test(an_error_has_the_line_and_the_record),
        cmocka_unit_test(a_first_line_may_have_a_million_cells),
        cmocka_unit_test(wrong_options_are_refused),
        cmocka_unit_test(what_has_no_lines_is_refused),
        cmocka_unit_test(a_truncated_file_is_an_error),
        cmocka_unit_test(an_index_is_used_until_the_file_changes),
        cmocka_unit_test(an_incomplete_index_is_rebuilt),
        cmocka_unit_test(an_index_has_the_path_that_is_given),
        cmocka_unit_test(memory_that_runs_out_is_an_error),
        cmocka_unit_test(texts_go_through_a_map_into_batches),
    };
    const struct CMUnitTest large[] = {cmocka_unit_test(ten_million_records_open_in_under_a_second)};
    void *unused = NULL;
    if (make_folder(&unused) != 0) return 1;
    const bool is_large = argc > 1 && strcmp(argv[1], "large") == 0;
    const int failed =
        is_large ? cmocka_run_group_tests(large, make_env, end_env) : cmocka_run_group_tests(tests, make_env, end_env);
    return remove_folder(&unused) != 0 || failed;
}
