/* The tokenizer of examples/bert against literal results. Unless a comment says otherwise, Hugging Face's `tokenizers`
 * 0.23.3 gives the same; test_tokenizer.py compares many texts with it if it is installed. */
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <unistd.h>

#include <cmocka.h>

#include "check.h"
#include "tokenizer.h"

/* Ids are the places in this list; "un" is there twice, and the later counts. */
static const char vocabulary[] =
    "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nun\nthe\n##aff\n##able\n,\n!\nun\nwant\n##want\n##ed\n"
    "UN\nnaive\nna\xc3\xafve\n\xe5\x8c\x97\n\xce\xbf\xcf\x83\n[\n]\nsep\na\n##a\n"
    "i\xcc\x87\n##ing\r\n\xed\x95\x9c\nk";
enum {
    PAD,
    UNK,
    CLS,
    SEP,
    MASK,
    THE = 6,
    AFF,
    ABLE,
    COMMA,
    BANG,
    UN,
    WANT,
    REST_WANT,
    ED,
    CAPITAL_UN,
    NAIVE,
    NAIVE_DOTS,
    NORTH,
    OS,
    OPEN,
    CLOSE,
    SEP_WORD,
    A,
    REST_A,
    I_DOT,
    ING,
    HAN,
    K
};

static const char *path_of(char path[64], const char *text, size_t nbytes) {
    strcpy(path, "/tmp/cairn-vocab-XXXXXX");
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, nbytes), (ssize_t)nbytes);
    close(fd);
    return path;
}

static bert_tokenizer *make(const struct bert_tokenizer_options *options) {
    char path[64];
    bert_tokenizer *t = NULL;
    path_of(path, vocabulary, sizeof(vocabulary) - 1);
    const cairn_status st = bert_tokenizer_create(path, options, &t);
    unlink(path);
    OK(st);
    return t;
}

/* The tokens are ids, and nothing else; -1 ends them. */
static void expect_ids(const bert_encoding *e, const int *ids) {
    size_t n = 0;
    for (; ids[n] >= 0; n++) {
        if (n >= e->n || e->ids[n] != ids[n])
            fail_msg("%stoken %zu of %zu is %d, not %d", check_who, n, e->n, n < e->n ? (int)e->ids[n] : -1, ids[n]);
    }
    if (e->n != n) fail_msg("%s%zu tokens, not %zu", check_who, e->n, n);
}

#define IDS(...) ((const int[]){__VA_ARGS__, -1})

static void expect(const bert_tokenizer *t, const char *text, const int *ids) {
    bert_encoding e = BERT_ENCODING_INIT;
    check_as(text);
    OK(bert_tokenizer_encode(t, BERT_TEXT(text), BERT_NO_TEXT, bert_encode_options(.add_special_tokens = CAIRN_OFF),
                             &e));
    expect_ids(&e, ids);
    bert_encoding_finish(&e);
    check_as("");
}

static void words_are_cut_into_the_longest_pieces(void **state) {
    (void)state;
    bert_tokenizer *t = make(NULL);
    expect(t, "unaffable", IDS(UN, AFF, ABLE));
    expect(t, "UNwanted, the!", IDS(UN, REST_WANT, ED, COMMA, THE, BANG));
    expect(t, "unknown", IDS(UNK)); /* not "un" and then nothing */
    expect(t, "the\tthe\r\nthe\xc2\xa0the\xe3\x80\x80the", IDS(THE, THE, THE, THE, THE));
    expect(t, "", IDS(-1));
    expect(t, " \n ", IDS(-1));
    bert_tokenizer_destroy(&t);
}

static void words_of_more_than_100_characters_are_unknown(void **state) {
    (void)state;
    bert_tokenizer *t = make(NULL);
    bert_encoding e = BERT_ENCODING_INIT;
    char word[102];
    memset(word, 'a', sizeof(word));
    for (size_t n = 99; n <= 101; n++) {
        OK(bert_tokenizer_encode(t, (struct bert_text){word, n}, BERT_NO_TEXT, NULL, &e));
        assert_int_equal(e.n, n <= 100 ? n + 2 : 3);
        assert_int_equal(e.ids[1], n <= 100 ? A : UNK);
        assert_int_equal(e.chars[1].end, n <= 100 ? 1 : n);
    }
    bert_encoding_finish(&e);
    bert_tokenizer_destroy(&t);
}

static void uncased_takes_capitals_and_accents_and_cased_keeps_them(void **state) {
    (void)state;
    bert_tokenizer *t = make(NULL);
    expect(t, "NA\xc3\x8fVE nai\xcc\x88ve", IDS(NAIVE, NAIVE));
    expect(t, "\xce\x9f\xce\xa3", IDS(OS)); /* the final sigma is small sigma, as of char::to_lowercase */
    expect(t, "\xe2\x84\xaa", IDS(K));      /* the Kelvin sign */
    expect(t, "\xe1\x84\x92\xe1\x85\xa1\xe1\x86\xab", IDS(UNK)); /* Hangul by letters: NFD takes all of them apart */
    bert_tokenizer_destroy(&t);

    t = make(bert_tokenizer_options(.do_lower_case = CAIRN_OFF));
    expect(t, "UN un na\xc3\xafve nai\xcc\x88ve \xed\x95\x9c", IDS(CAPITAL_UN, UN, NAIVE_DOTS, UNK, HAN));
    bert_tokenizer_destroy(&t);

    t = make(bert_tokenizer_options(.strip_accents = CAIRN_OFF));
    expect(t, "UN NA\xc3\x8fVE \xc4\xb0", IDS(UN, NAIVE_DOTS, I_DOT)); /* U+0130 has a lower case of two */
    bert_tokenizer_destroy(&t);

    t = make(bert_tokenizer_options(.do_lower_case = CAIRN_OFF, .strip_accents = CAIRN_ON));
    expect(t, "UN na\xc3\xafve", IDS(CAPITAL_UN, NAIVE));
    bert_tokenizer_destroy(&t);
}

static void chinese_characters_are_words_unless_switched_off(void **state) {
    (void)state;
    bert_tokenizer *t = make(NULL);
    expect(t, "the\xe5\x8c\x97the", IDS(THE, NORTH, THE));
    bert_tokenizer_destroy(&t);
    t = make(bert_tokenizer_options(.tokenize_chinese_chars = CAIRN_OFF));
    expect(t, "the\xe5\x8c\x97the", IDS(UNK));
    bert_tokenizer_destroy(&t);
}

static void special_tokens_in_a_text_are_tokens_to_the_letter(void **state) {
    (void)state;
    bert_tokenizer *t = make(NULL);
    expect(t, "the[SEP]the [MASK][PAD][UNK] [CLS]", IDS(THE, SEP, THE, MASK, PAD, UNK, CLS));
    expect(t, "[sep]", IDS(OPEN, SEP_WORD, CLOSE));
    expect(t, "[[SEP]]", IDS(OPEN, SEP, CLOSE));
    bert_tokenizer_destroy(&t);
}

static void what_is_no_text_is_removed(void **state) {
    (void)state;
    bert_tokenizer *t = make(NULL);
    bert_encoding e = BERT_ENCODING_INIT;
    expect(t,
           "t\x01h\xe2\x80\x8b"
           "e\xef\xbb\xbf \xef\xbf\xbd"
           "the",
           IDS(THE, THE)); /* a control, U+200B, a mark */
    OK(bert_tokenizer_encode(t, (struct bert_text){"t\0he", 4}, BERT_NO_TEXT, NULL, &e));
    expect_ids(&e, IDS(CLS, THE, SEP));
    assert_int_equal(e.chars[1].end, 4);
    bert_encoding_finish(&e);
    bert_tokenizer_destroy(&t);
}

/* Table 3-8 of Unicode 15: each maximal part is one character. */
static void bytes_that_are_not_utf_8_count_as_characters_by_maximal_parts(void **state) {
    (void)state;
    static const struct {
        const char *bytes;
        uint32_t chars;
    } cases[] = {{"\xc0\xaf", 2},         {"\xe0\x80\xbf", 3},         {"\xf0\x81\x82", 3},
                 {"\xed\xa0\x80", 3},     {"\xf4\x91\x92\x93", 4},     {"\xff", 1},
                 {"\xe1\x80", 1},         {"\xf0\x91\x92", 1},         {"\xf1\xbf", 1},
                 {"\xe1\x80\xe2\xf0", 3}, {"\xf0\x91\x92\xf1\xbf", 2}, {"\x80\xbf", 2}};
    bert_tokenizer *t = make(NULL);
    bert_encoding e = BERT_ENCODING_INIT;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char text[32];
        snprintf(text, sizeof(text), "%sthe", cases[i].bytes);
        check_as(text);
        OK(bert_tokenizer_encode(t, BERT_TEXT(text), BERT_NO_TEXT, NULL, &e));
        expect_ids(&e, IDS(CLS, THE, SEP));
        assert_int_equal(e.chars[1].begin, cases[i].chars);
        assert_int_equal(e.bytes[1].begin, strlen(cases[i].bytes));
        assert_int_equal(e.bytes[1].end, strlen(text));
    }
    bert_encoding_finish(&e);
    bert_tokenizer_destroy(&t);
}

static void spans_are_in_characters_and_in_bytes_of_the_text_itself(void **state) {
    (void)state;
    static const struct bert_span chars[] = {{0, 0}, {0, 6}, {7, 8}, {8, 13}, {14, 16}, {16, 20}, {0, 0}},
                                  bytes[] = {{0, 0}, {0, 7}, {8, 11}, {11, 16}, {17, 19}, {19, 23}, {0, 0}};
    bert_tokenizer *t = make(NULL);
    bert_encoding e = BERT_ENCODING_INIT;
    OK(bert_tokenizer_encode(t, BERT_TEXT("Nai\xcc\x88ve \xe5\x8c\x97[SEP] unwant"), BERT_NO_TEXT, NULL, &e));
    expect_ids(&e, IDS(CLS, NAIVE, NORTH, SEP, UN, REST_WANT, SEP));
    for (size_t i = 0; i < e.n; i++) {
        assert_int_equal(e.chars[i].begin, chars[i].begin);
        assert_int_equal(e.chars[i].end, chars[i].end);
        assert_int_equal(e.bytes[i].begin, bytes[i].begin);
        assert_int_equal(e.bytes[i].end, bytes[i].end);
    }
    bert_encoding_finish(&e);
    bert_tokenizer_destroy(&t);
}

static void a_pair_has_types_and_padding_has_no_mask(void **state) {
    (void)state;
    static const int types[] = {0, 0, 0, 1, 1, 1, 0, 0}, mask[] = {1, 1, 1, 1, 1, 1, 0, 0};
    bert_tokenizer *t = make(NULL);
    bert_encoding e = BERT_ENCODING_INIT;
    OK(bert_tokenizer_encode(t, BERT_TEXT("the"), BERT_TEXT("un!"), bert_encode_options(.pad_to = 8), &e));
    expect_ids(&e, IDS(CLS, THE, SEP, UN, BANG, SEP, PAD, PAD));
    for (size_t i = 0; i < 8; i++) {
        assert_int_equal(e.types[i], types[i]);
        assert_int_equal(e.mask[i], mask[i]);
    }
    OK(bert_tokenizer_encode(t, BERT_TEXT("the"), BERT_TEXT(""), NULL, &e));
    expect_ids(&e, IDS(CLS, THE, SEP, SEP));
    bert_encoding_finish(&e);
    bert_tokenizer_destroy(&t);
}

/* How many tokens remain of a first and a second text of so many. */
static void expect_cut(const bert_tokenizer *t, bert_encoding *e, size_t first, size_t second, size_t max_length,
                       bert_truncation how, size_t first_left, size_t second_left) {
    char a[40], b[40];
    size_t types = 0;
    memset(a, '!', sizeof(a));
    memset(b, ',', sizeof(b));
    OK(bert_tokenizer_encode(t, (struct bert_text){a, first}, (struct bert_text){b, second},
                             bert_encode_options(.max_length = max_length, .truncation = how), e));
    for (size_t i = 0; i < e->n; i++) types += (size_t)e->types[i];
    if (types != second_left + 1 || e->n != first_left + second_left + 3)
        fail_msg("%zu and %zu to %zu: %zu and %zu", first, second, max_length, e->n - types - 2, types - 1);
}

static void truncation_cuts_the_text_that_it_says(void **state) {
    (void)state;
    bert_tokenizer *t = make(NULL);
    bert_encoding e = BERT_ENCODING_INIT;
    expect_cut(t, &e, 10, 10, 23, BERT_LONGEST_FIRST, 10, 10);
    expect_cut(t, &e, 10, 30, 23, BERT_LONGEST_FIRST, 10, 10);
    expect_cut(t, &e, 3, 30, 23, BERT_LONGEST_FIRST, 3, 17);
    expect_cut(t, &e, 30, 3, 23, BERT_LONGEST_FIRST, 17, 3);
    expect_cut(t, &e, 30, 30, 24, BERT_LONGEST_FIRST, 10, 11); /* of equal ones the second has the odd token */
    expect_cut(t, &e, 31, 30, 24, BERT_LONGEST_FIRST, 11, 10); /* the longer one */
    expect_cut(t, &e, 30, 31, 24, BERT_LONGEST_FIRST, 10, 11);
    expect_cut(t, &e, 4, 5, 3, BERT_LONGEST_FIRST, 0, 0);
    expect_cut(t, &e, 30, 5, 20, BERT_ONLY_FIRST, 12, 5);
    expect_cut(t, &e, 5, 30, 20, BERT_ONLY_SECOND, 5, 12);
    expect_cut(t, &e, 5, 4, 3, BERT_ONLY_FIRST, 0, 0);
    expect_cut(t, &e, 5, 4, 3, BERT_ONLY_SECOND, 0, 0);
    bert_encoding_finish(&e);
    bert_tokenizer_destroy(&t);
}

static void encodings_that_cannot_be_are_refused(void **state) {
    (void)state;
    bert_tokenizer *t = make(NULL);
    bert_encoding e = BERT_ENCODING_INIT;
    REFUSED(bert_tokenizer_encode(t, BERT_TEXT("the the"), BERT_TEXT("un un un"),
                                  bert_encode_options(.max_length = 6, .truncation = BERT_ONLY_FIRST), &e),
            CAIRN_EINVAL, "max_length leaves 3 tokens for both texts, and the second one has 3 or more");
    REFUSED(bert_tokenizer_encode(t, BERT_TEXT("the"), BERT_NO_TEXT,
                                  bert_encode_options(.truncation = BERT_ONLY_SECOND), &e),
            CAIRN_EINVAL, "BERT_ONLY_SECOND would cut the second text, and there is none");
    REFUSED(bert_tokenizer_encode(t, BERT_TEXT("the"), BERT_TEXT("the"), bert_encode_options(.max_length = 2), &e),
            CAIRN_EINVAL, "max_length is 2, but [CLS] and [SEP] alone are 3");
    REFUSED(bert_tokenizer_encode(t, BERT_TEXT("the"), BERT_NO_TEXT, bert_encode_options(.truncation = 4), &e),
            CAIRN_EINVAL, "truncation is 4");
    REFUSED(bert_tokenizer_encode(t, BERT_NO_TEXT, BERT_NO_TEXT, NULL, &e), CAIRN_EINVAL, "must be set");
    REFUSED(bert_tokenizer_encode(t, (struct bert_text){"", (size_t)1 << 31}, BERT_NO_TEXT, NULL, &e), CAIRN_EINVAL,
            "a text has 2147483648 bytes; the most are 1 GiB");
    assert_int_equal(e.n, 0);
    bert_encoding_finish(&e);
    bert_tokenizer_destroy(&t);
}

static void expect_no_vocabulary(const char *text, size_t nbytes, const char *words) {
    char path[64];
    bert_tokenizer *t = NULL;
    path_of(path, text, nbytes);
    const cairn_status st = bert_tokenizer_create(path, NULL, &t);
    unlink(path);
    assert_int_equal(st, CAIRN_EINVAL);
    assert_null(t);
    SAYS(path);
    SAYS(words);
}

#define WHOLE(text) (text), sizeof(text) - 1

static void vocabularies_that_are_none_are_refused_with_their_line(void **state) {
    (void)state;
    bert_tokenizer *t = NULL;
    expect_no_vocabulary(WHOLE(""), "has no [PAD]");
    expect_no_vocabulary(WHOLE("[PAD]\n[UNK]\n[CLS]\n[SEP]\nmask\n"), "has no [MASK]");
    expect_no_vocabulary(WHOLE("[PAD]\n\xff\n"), "line 2 is not UTF-8");
    expect_no_vocabulary(WHOLE("[PAD]\na\0b\n"), "line 2 has a zero byte");
    expect_no_vocabulary(WHOLE("[PAD]\n[UNK]\na\xf0\x9f\x98\n"), "line 3 is not UTF-8"); /* three bytes of four */
    expect_no_vocabulary(WHOLE("[PAD]\n\xed\xa0\x80\n"), "line 2 is not UTF-8");
    REFUSED(bert_tokenizer_create("/nonexistent/vocab.txt", NULL, &t), CAIRN_ESYSTEM,
            "/nonexistent/vocab.txt: No such file or directory");
    REFUSED(bert_tokenizer_create("/", NULL, &t), CAIRN_EINVAL, "/: not a regular file");
    REFUSED(bert_tokenizer_create(NULL, NULL, &t), CAIRN_EINVAL, "path and out must be set");
}

static void tokens_have_ids_and_ids_have_tokens(void **state) {
    (void)state;
    bert_tokenizer *t = make(NULL);
    assert_int_equal(bert_tokenizer_size(t), K + 1);
    assert_int_equal(bert_tokenizer_id(t, "un"), UN);
    assert_int_equal(bert_tokenizer_id(t, "##ing"), ING);
    assert_int_equal(bert_tokenizer_id(t, "##"), -1); /* no line of this vocabulary */
    assert_int_equal(bert_tokenizer_id(t, "u"), -1);
    assert_int_equal(bert_tokenizer_id(t, "zebra"), -1);
    assert_string_equal(bert_tokenizer_token(t, ING), "##ing");
    assert_string_equal(bert_tokenizer_token(t, K), "k");
    assert_null(bert_tokenizer_token(t, K + 1));
    assert_null(bert_tokenizer_token(t, -1));
    bert_tokenizer_destroy(&t);
    bert_tokenizer_destroy(&t);
}

static void a_line_is_a_token_without_white_space_at_its_end(void **state) {
    char path[64];
    bert_tokenizer *t = NULL;
    (void)state;
    path_of(path,
            WHOLE("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n##\n\nthe \t\r\nca\xc2\xa0\xe3\x80\x80\n##t\n a\n\xef\xbf\xbd"));
    const cairn_status st = bert_tokenizer_create(path, NULL, &t);
    unlink(path);
    OK(st);
    assert_int_equal(bert_tokenizer_id(t, "##"), 5);
    assert_int_equal(bert_tokenizer_id(t, ""), 6);
    assert_int_equal(bert_tokenizer_id(t, "the"), 7);
    assert_int_equal(bert_tokenizer_id(t, "the "), -1);
    assert_int_equal(bert_tokenizer_id(t, " a"), 10);
    assert_int_equal(bert_tokenizer_id(t, "\xef\xbf\xbd"), 11);
    assert_string_equal(bert_tokenizer_token(t, 8), "ca");
    expect(t, "the cat ## a", IDS(7, 8, 9, 1, 1, 1));
    bert_tokenizer_destroy(&t);
}

/* ---- several threads on one tokenizer ---- */

enum { THREADS = 4, ROUNDS = 500 };

static void *encode_often(void *tokenizer) {
    static const char text[] = "Unaffable, NA\xc3\x8fVE\xe5\x8c\x97 unwanted [SEP] a\xcc\xa7\xcc\x81\xcd\x85 the!";
    bert_encoding first = BERT_ENCODING_INIT, e = BERT_ENCODING_INIT;
    bool is_same = bert_tokenizer_encode(tokenizer, BERT_TEXT(text), BERT_TEXT("the"), NULL, &first) == CAIRN_OK;
    for (int i = 0; is_same && i < ROUNDS; i++) {
        const struct bert_text part = {text, 1 + (size_t)i % (sizeof(text) - 1)};
        is_same = bert_tokenizer_encode(tokenizer, part, BERT_NO_TEXT, NULL, &e) == CAIRN_OK &&
                  bert_tokenizer_encode(tokenizer, BERT_TEXT(text), BERT_TEXT("the"), NULL, &e) == CAIRN_OK &&
                  e.n == first.n && memcmp(e.ids, first.ids, e.n * sizeof(*e.ids)) == 0 &&
                  memcmp(e.bytes, first.bytes, e.n * sizeof(*e.bytes)) == 0;
    }
    bert_encoding_finish(&first);
    bert_encoding_finish(&e);
    return is_same ? tokenizer : NULL;
}

static void threads_share_a_tokenizer(void **state) {
    (void)state;
    bert_tokenizer *t = make(NULL);
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) assert_int_equal(pthread_create(&threads[i], NULL, encode_often, t), 0);
    for (int i = 0; i < THREADS; i++) {
        void *result = NULL;
        pthread_join(threads[i], &result);
        assert_ptr_equal(result, t);
    }
    bert_tokenizer_destroy(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words_are_cut_into_the_longest_pieces),
        cmocka_unit_test(words_of_more_than_100_characters_are_unknown),
        cmocka_unit_test(uncased_takes_capitals_and_accents_and_cased_keeps_them),
        cmocka_unit_test(chinese_characters_are_words_unless_switched_off),
        cmocka_unit_test(special_tokens_in_a_text_are_tokens_to_the_letter),
        cmocka_unit_test(what_is_no_text_is_removed),
        cmocka_unit_test(bytes_that_are_not_utf_8_count_as_characters_by_maximal_parts),
        cmocka_unit_test(spans_are_in_characters_and_in_bytes_of_the_text_itself),
        cmocka_unit_test(a_pair_has_types_and_padding_has_no_mask),
        cmocka_unit_test(truncation_cuts_the_text_that_it_says),
        cmocka_unit_test(encodings_that_cannot_be_are_refused),
        cmocka_unit_test(vocabularies_that_are_none_are_refused_with_their_line),
        cmocka_unit_test(tokens_have_ids_and_ids_have_tokens),
        cmocka_unit_test(a_line_is_a_token_without_white_space_at_its_end),
        cmocka_unit_test(threads_share_a_tokenizer),
    };
    return cmocka_run_group_tests_name("bert_tokenizer", tests, NULL, NULL);
}
