/* The tokenizer of examples/bert as a filter, for tests and for timing comparisons.
 *
 *   tokenize VOCAB [OPTION=VALUE ...] <requests       prints one answer per line
 *   tokenize VOCAB [OPTION=VALUE ...] --time N <requests
 *   tokenize --unassigned                             prints utf8proc's Unicode version and its unassigned ranges
 *
 * Options: lower, strip, chinese, special (0 or 1), max_length, truncation (1 to 3), pad_to.
 * A request is two i32, the number of bytes of each text (-1 = no second text), followed by these bytes. An answer is
 * "id type mask begin end begin end" for each token, separated by ',', with offsets in characters and then in bytes; or
 * "! " and the error message. --time encodes all requests N times and prints the processor time of each pass in
 * seconds, and the sum of all ids. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <utf8proc.h>

#include "check.h"
#include "tokenizer.h"

struct request {
    struct bert_text first, second;
};

static struct bert_tokenizer_options create_options = {.struct_size = sizeof(create_options)};
static struct bert_encode_options encode_options = {.struct_size = sizeof(encode_options)};
static long times;

static char *read_all(size_t *nbytes) {
    size_t room = 1 << 20, got;
    char *text = malloc(room);
    for (*nbytes = 0; (got = fread(text + *nbytes, 1, room - *nbytes, stdin)) > 0;) {
        *nbytes += got;
        if (*nbytes == room) text = realloc(text, room *= 2);
    }
    return text;
}

static size_t next_request(const char *at, struct request *r) {
    int32_t n[2];
    memcpy(n, at, sizeof(n));
    const size_t first = (size_t)n[0], second = n[1] < 0 ? 0 : (size_t)n[1];
    r->first = (struct bert_text){at + sizeof(n), first};
    r->second = n[1] < 0 ? BERT_NO_TEXT : (struct bert_text){at + sizeof(n) + first, second};
    return sizeof(n) + first + second;
}

static void print(const bert_encoding *e) {
    for (size_t i = 0; i < e->n; i++) {
        printf("%s%" PRId32 " %" PRId32 " %" PRId32 " %" PRIu32 " %" PRIu32 " %" PRIu32 " %" PRIu32, i ? "," : "",
               e->ids[i], e->types[i], e->mask[i], e->chars[i].begin, e->chars[i].end, e->bytes[i].begin,
               e->bytes[i].end);
    }
    putchar('\n');
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void time_all(const bert_tokenizer *t, const char *text, size_t nbytes, bert_encoding *e) {
    struct request r;
    for (long k = 0; k < times; k++) {
        int64_t sum = 0;
        const double begin = now();
        for (size_t at = 0; at < nbytes;) {
            at += next_request(text + at, &r);
            MUST_OK(bert_tokenizer_encode(t, r.first, r.second, &encode_options, e));
            for (size_t i = 0; i < e->n; i++) sum += e->ids[i];
        }
        printf("%.9f %" PRId64 "\n", now() - begin, sum);
    }
}

static cairn_switch as_switch(long value) {
    return value ? CAIRN_ON : CAIRN_OFF;
}

static void read_option(const char *option, long value) {
    const size_t n = strcspn(option, "=");
    if (strncmp(option, "lower", n) == 0) create_options.do_lower_case = as_switch(value);
    else if (strncmp(option, "strip", n) == 0) create_options.strip_accents = as_switch(value);
    else if (strncmp(option, "chinese", n) == 0) create_options.tokenize_chinese_chars = as_switch(value);
    else if (strncmp(option, "special", n) == 0) encode_options.add_special_tokens = as_switch(value);
    else if (strncmp(option, "max_length", n) == 0) encode_options.max_length = (size_t)value;
    else if (strncmp(option, "truncation", n) == 0) encode_options.truncation = (bert_truncation)value;
    else if (strncmp(option, "pad_to", n) == 0) encode_options.pad_to = (size_t)value;
    else MUST(!"an option of tokenize");
}

static int print_unassigned(void) {
    int32_t begin = -1;
    printf("%s", utf8proc_unicode_version());
    for (int32_t c = 0; c <= 0x110000; c++) {
        const int is_one = c < 0x110000 && utf8proc_category(c) == UTF8PROC_CATEGORY_CN;
        if (is_one && begin < 0) begin = c;
        if (is_one || begin < 0) continue;
        printf(" %" PRIx32 " %" PRIx32, (uint32_t)begin, (uint32_t)c - 1);
        begin = -1;
    }
    putchar('\n');
    return 0;
}

int main(int argc, char **argv) {
    bert_tokenizer *t;
    bert_encoding e = BERT_ENCODING_INIT;
    struct request r;
    size_t nbytes;
    MUST(argc > 1);
    if (strcmp(argv[1], "--unassigned") == 0) return print_unassigned();
    for (int i = 2; i < argc; i++) {
        if (strcmp(argv[i], "--time") == 0 && i + 1 < argc) times = atol(argv[++i]);
        else read_option(argv[i], strchr(argv[i], '=') ? atol(strchr(argv[i], '=') + 1) : 0);
    }
    MUST_OK(bert_tokenizer_create(argv[1], &create_options, &t));
    char *text = read_all(&nbytes);
    if (times) time_all(t, text, nbytes, &e);
    for (size_t at = 0; at < nbytes && !times;) {
        at += next_request(text + at, &r);
        if (bert_tokenizer_encode(t, r.first, r.second, &encode_options, &e) == CAIRN_OK) print(&e);
        else printf("! %s\n", cairn_last_error());
    }
    free(text);
    bert_encoding_finish(&e);
    bert_tokenizer_destroy(&t);
    return 0;
}
