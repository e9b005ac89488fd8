/* Arbitrary bytes as a text or pair, with arbitrary options, and arbitrary bytes as a vocabulary. Checks beyond the
 * sanitizers': tokens are in the vocabulary, in order and within their text; limits hold; a text cut to n tokens has
 * the first n tokens of the uncut text; and encoding twice gives the same result.
 *
 * Input: a byte of switches, a byte of kind and truncation, max_length, and the texts separated by 0xfe 0xff; or a
 * vocabulary if the highest switch is set. */
#include "../fuzz.h"

#include <stdbool.h>

#include "tokenizer.h"

#ifdef FUZZ_WITHOUT_DATA /* fuzz.sh compiles no more of the library than src/core */
#include <stdarg.h>

#include "core/status.h"

cairn_status cairn_dataset_fail(cairn_status status, const char *format, ...) {
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    return cairn__fail(status, "%s", text);
}
#endif

static bert_tokenizer *tokenizers[12];
static bert_encoding encoding, again;

static const char pieces[] =
    "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\ne\nthe\n##a\n##b\n##e\n##ing\ni\xcc\x87\n\xc3\xa9\n"
    "\xce\xb1\n##\xce\xb1\n\xe4\xb8\xad\n##\xe4\xb8\xad\n,\n.\n[\n]\n##\n#\n\xed\x95\x9c\n"
    "\xe1\x84\x92\n##\xe1\x85\xa1\n\xf0\x9f\x98\x80\n##\xf0\x9d\x85\xa5\nabababab\n";

static void write_file(const char *path, const void *bytes, size_t nbytes) {
    FILE *f = fopen(path, "wb");
    FUZZ_CHECK(f && fwrite(bytes, 1, nbytes, f) == nbytes && fclose(f) == 0);
}

static const char *scratch(void) {
    static char path[64];
    if (!path[0]) snprintf(path, sizeof(path), "/tmp/cairn-fuzz-vocab-%d", (int)getpid());
    return path;
}

static const bert_tokenizer *tokenizer_of(unsigned which) {
    bert_tokenizer **t = &tokenizers[which];
    if (*t) return *t;
    write_file(scratch(), pieces, sizeof(pieces) - 1);
    FUZZ_CHECK(bert_tokenizer_create(scratch(),
                                     bert_tokenizer_options(.do_lower_case = which & 1 ? CAIRN_OFF : CAIRN_ON,
                                                            .tokenize_chinese_chars = which & 2 ? CAIRN_OFF : CAIRN_ON,
                                                            .strip_accents = (cairn_switch)(which / 4)),
                                     t) == CAIRN_OK);
    unlink(scratch());
    return *t;
}

/* Tokens stand in the order of their text and within it; two may have a part each of one character. */
static void check_spans(const bert_encoding *e, const bert_tokenizer *t, struct bert_text first,
                        struct bert_text second) {
    struct bert_span last[2] = {{0, 0}, {0, 0}};
    for (size_t i = 0; i < e->n; i++) {
        const struct bert_span c = e->chars[i], b = e->bytes[i];
        FUZZ_CHECK(e->ids[i] >= 0 && e->ids[i] < bert_tokenizer_size(t));
        FUZZ_CHECK((e->types[i] == 0 || (e->types[i] == 1 && second.bytes)) && (e->mask[i] == 0 || e->mask[i] == 1));
        FUZZ_CHECK(c.begin <= c.end && b.begin <= b.end && b.end <= (e->types[i] ? second : first).nbytes);
        FUZZ_CHECK((c.begin == c.end) == (b.begin == b.end) && b.end - b.begin >= c.end - c.begin);
        if (c.begin == c.end) continue; /* added */
        FUZZ_CHECK(b.begin >= last[e->types[i]].begin && b.end >= last[e->types[i]].end);
        last[e->types[i]] = b;
    }
}

static bool is_same(const bert_encoding *a, const bert_encoding *b, size_t n) {
    return memcmp(a->ids, b->ids, n * sizeof(*a->ids)) == 0 && memcmp(a->bytes, b->bytes, n * sizeof(*a->bytes)) == 0 &&
           memcmp(a->chars, b->chars, n * sizeof(*a->chars)) == 0;
}

static void encode(const bert_tokenizer *t, struct bert_text first, struct bert_text second,
                   struct bert_encode_options o) {
    const size_t added = o.add_special_tokens == CAIRN_OFF ? 0 : second.bytes ? 3 : 2;
    const cairn_status st = bert_tokenizer_encode(t, first, second, &o, &encoding);
    FUZZ_CHECK(st == CAIRN_OK || (st == CAIRN_EINVAL && encoding.n == 0 && cairn_last_error()[0]));
    FUZZ_CHECK(st == CAIRN_OK || o.max_length < added || o.truncation > BERT_LONGEST_FIRST);
    if (st != CAIRN_OK) return;
    check_spans(&encoding, t, first, second);
    FUZZ_CHECK(encoding.n >= o.pad_to && encoding.n >= added);
    FUZZ_CHECK(!o.max_length || encoding.n <= o.max_length || encoding.n == o.pad_to);
    FUZZ_CHECK(bert_tokenizer_encode(t, first, second, &o, &again) == CAIRN_OK && again.n == encoding.n);
    FUZZ_CHECK(is_same(&encoding, &again, again.n));
    if (second.bytes || o.add_special_tokens != CAIRN_OFF || o.pad_to) return;
    o.max_length = 0;
    FUZZ_CHECK(bert_tokenizer_encode(t, first, second, &o, &again) == CAIRN_OK && again.n >= encoding.n);
    FUZZ_CHECK(is_same(&encoding, &again, encoding.n));
}

static void read_vocabulary(const uint8_t *data, size_t nbytes) {
    bert_tokenizer *t = NULL;
    write_file(scratch(), data, nbytes);
    if (bert_tokenizer_create(scratch(), NULL, &t) == CAIRN_OK) {
        for (int32_t id = 0; id < bert_tokenizer_size(t); id++) {
            const char *token = bert_tokenizer_token(t, id);
            const int32_t found = bert_tokenizer_id(t, token);
            FUZZ_CHECK(token && (found >= id || !token[0] || strcmp(token, "##") == 0));
        }
        encode(t, (struct bert_text){(const char *)data, nbytes}, BERT_NO_TEXT,
               *bert_encode_options(.add_special_tokens = CAIRN_ON));
        bert_tokenizer_destroy(&t);
    } else {
        FUZZ_CHECK(strstr(cairn_last_error(), scratch()));
    }
    unlink(scratch());
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes) {
    if (nbytes < 4) return 0;
    if (data[0] & 0x80) {
        read_vocabulary(data + 4, nbytes - 4);
        return 0;
    }
    const uint8_t *text = data + 4, *end = data + nbytes;
    const uint8_t *between = memmem(text, (size_t)(end - text), "\xfe\xff", 2);
    const struct bert_text first = {(const char *)text, (size_t)((between ? between : end) - text)};
    const struct bert_text second =
        between ? (struct bert_text){(const char *)between + 2, (size_t)(end - between - 2)} : BERT_NO_TEXT;
    encode(tokenizer_of(data[0] % 12), first, second,
           *bert_encode_options(.truncation = (bert_truncation)(data[1] % 4), .max_length = data[2],
                                .add_special_tokens = data[1] & 4 ? CAIRN_OFF : CAIRN_ON,
                                .pad_to = data[1] & 8 ? data[3] : 0));
    return 0;
}

static size_t fuzz_seed(int i, uint8_t *out) {
    static const char *const seeds[] = {
        "Athe quick, [SEP] na\xc3\xafve \xe4\xb8\xad\xe6\x96\x87 abing [MASK]",
        "AA\xcc\xa7\xcc\x81\xcd\x85"
        "e\xf0\x9d\x85\xa5\xf0\x9d\x85\xad \xcd\x84\xe0\xbd\xb3 \xed\x95\x9c\xc4\xb0",
        "\xe2\x80\x8b\xef\xbb\xbf\xc2\xa0\xe3\x80\x80\xe2\x80\xa8\xc2\x85 \x01\x7f\xee\x80\x80\xf3\xb0\x80\x80",
        "\xf0\x9f\x98\x80\xf0\x9f\x91\xa8\xe2\x80\x8d\xf0\x9f\x91\xa9 \xe2\x84\xaa\xe1\xba\x9e "
        "\xe1\x84\x92\xe1\x85\xa1",
        "a bab\xfe\xff"
        "b abab, the the the the the [CLS]",
        "\xe1\x80\xe2\xf0\x91\x92\xf1\xbf\x41\xc0\xaf\xed\xa0\x80\xf4\x91\x92\x93",
        "abababababababababababababababababababababababababababababababababababababababababababababababababababab"};
    enum { SEEDS = sizeof(seeds) / sizeof(seeds[0]) };
    if (i >= 8 * SEEDS + 2) return 0;
    const bool is_vocabulary = i >= 8 * SEEDS;
    const char *text = is_vocabulary ? pieces : seeds[i % SEEDS];
    const size_t n = is_vocabulary ? sizeof(pieces) - 1 : strlen(text);
    const uint8_t head[] = {(uint8_t)(is_vocabulary ? 0x80 : i / SEEDS), (uint8_t)(i / 5), (uint8_t)(i % 3 ? i : 0),
                            40};
    memcpy(out, head, sizeof(head));
    memcpy(out + sizeof(head), text, n);
    return n + sizeof(head);
}
