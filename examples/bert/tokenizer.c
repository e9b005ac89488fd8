/* One pass turns the text into an array of normalized code points, each with the index of the text's character that it
 * comes from. Words are runs of that array, and tokens are looked up in them; no intermediate step is UTF-8.
 *
 * When NFD reorders marks, `tokenizers` keeps the origins in text order, so that a mark can get another mark's offsets;
 * sort_marks does the same. */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "tokenizer.h"
#include "unicode.h"
#include "vocabulary.h"

enum { MOST_NBYTES = 1 << 30, MOST_CHARS_OF_A_WORD = 100, ASCII = 0x80 };
enum { MOST_PARTS = 4 }; /* most normalized characters for one of the text: decomposed, or with spaces around it */

/* Every special token begins with '['. */
enum special { PAD, UNK, CLS, SEP, MASK, SPECIALS };
static const char *const special_texts[SPECIALS] = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"};

struct bert_tokenizer {
    struct bert_vocabulary vocabulary;
    bool lower, strip, chinese;
    int32_t special[SPECIALS];
    uint32_t ascii[ASCII]; /* normalized form: itself, its lower case, a space, or 0 = removed */
    bool is_punctuation[ASCII];
};

struct token {
    int32_t id;
    struct bert_span chars, bytes;
};

struct tokens {
    struct token *at;
    size_t n, room;
};

struct bert_scratch {
    uint32_t *c;      /* [room] normalized */
    uint32_t *origin; /* [room] index of the character in the text */
    uint8_t *class;   /* [room] combining class */
    uint8_t *is_more; /* [room] whether it is a later part of its origin's decomposition */
    size_t n, room;
    uint32_t *byte; /* [byte_room] byte offset of each character of the text, and of the end */
    size_t byte_room;
    struct tokens tokens[2]; /* one list per text */
};

/* ---- memory ---- */

static cairn_status no_memory(size_t nbytes) {
    return cairn_dataset_fail(CAIRN_ENOMEM, "no memory for the tokens of a text (%zu bytes)", nbytes);
}

#define TRY(call)                          \
    do {                                   \
        const cairn_status try_ = (call);  \
        if (try_ != CAIRN_OK) return try_; \
    } while (0)

/* Grows an array to want elements. */
#define GROW(array, want)                                        \
    do {                                                         \
        void *more_ = realloc(array, (want) * sizeof(*(array))); \
        if (!more_) return no_memory((want) * sizeof(*(array))); \
        (array) = more_;                                         \
    } while (0)

static cairn_status make_room(struct bert_scratch *s, size_t want) {
    if (want <= s->room) return CAIRN_OK;
    const size_t room = want + want / 2 + 64;
    GROW(s->c, room);
    GROW(s->origin, room);
    GROW(s->class, room);
    GROW(s->is_more, room);
    s->room = room;
    return CAIRN_OK;
}

static cairn_status add_token(const struct bert_scratch *s, struct tokens *t, int32_t id, uint32_t begin,
                              uint32_t end) {
    if (t->n == t->room) {
        const size_t room = 2 * t->room + 64;
        GROW(t->at, room);
        t->room = room;
    }
    t->at[t->n++] = (struct token){id, {begin, end}, {s->byte[begin], s->byte[end]}};
    return CAIRN_OK;
}

/* ---- normalizing ---- */

static void put(struct bert_scratch *s, uint32_t c, uint32_t origin, uint8_t class, bool is_more) {
    const size_t i = s->n++;
    s->c[i] = c;
    s->origin[i] = origin;
    s->class[i] = class;
    s->is_more[i] = is_more;
}

/* Stable counting sort by class: linear even if the text is nothing but marks. */
static void order_by_class(uint32_t *c, uint8_t *class, uint8_t *is_more, const uint32_t *from_c,
                           const uint8_t *from_class, const uint8_t *from_is_more, size_t n) {
    size_t place[257] = {0};
    for (size_t i = 0; i < n; i++) place[from_class[i] + 1]++;
    for (int k = 0; k < 256; k++) place[k + 1] += place[k];
    for (size_t i = 0; i < n; i++) {
        const size_t to = place[from_class[i]]++;
        c[to] = from_c[i];
        class[to] = from_class[i];
        is_more[to] = from_is_more[i];
    }
}

/* Sorts the run of marks that begins at first. Then each first part of a decomposition takes the next origin in text
 * order, and later parts take the origin of the part before. */
static cairn_status sort_marks(struct bert_scratch *s, size_t first) {
    const size_t n = s->n - first;
    bool is_sorted = true;
    for (size_t i = first + 1; i < s->n; i++) is_sorted = is_sorted && s->class[i - 1] <= s->class[i];
    if (is_sorted) return CAIRN_OK;
    const size_t end = s->n;
    TRY(make_room(s, end + 2 * n)); /* scratch space behind the end: old order and origins */
    memcpy(s->c + end, s->c + first, n * sizeof(*s->c));
    memcpy(s->class + end, s->class + first, n);
    memcpy(s->is_more + end, s->is_more + first, n);
    order_by_class(s->c + first, s->class + first, s->is_more + first, s->c + end, s->class + end, s->is_more + end, n);
    uint32_t *origins = s->origin + end;
    size_t count = 0, next = 0;
    for (size_t i = 0; i < n; i++) {
        if (!s->is_more[end + i]) origins[count++] = s->origin[first + i];
    }
    uint32_t last = first ? s->origin[first - 1] : s->origin[first];
    for (size_t i = first; i < end; i++) {
        if (!s->is_more[i]) last = origins[next++];
        s->origin[i] = last;
    }
    return CAIRN_OK;
}

/* Cleans and appends a non-ASCII character. *marks is the start of the run of marks at the end. */
static cairn_status put_character(const bert_tokenizer *t, struct bert_scratch *s, uint32_t c, uint32_t origin,
                                  size_t *marks) {
    uint32_t parts[MOST_PARTS] = {c};
    size_t n = 1;
    if (t->strip) {
        n = bert_decompose(c, parts);
    } else if (t->lower) {
        n = bert_lower(c, parts);
    }
    for (size_t k = 0; k < n; k++) {
        const uint8_t class = t->strip ? bert_combining_class(parts[k]) : 0;
        if (class == 0 && *marks < s->n) TRY(sort_marks(s, *marks));
        put(s, parts[k], origin, class, k > 0);
        if (class == 0) *marks = s->n;
    }
    return CAIRN_OK;
}

/* Removes accents and lower-cases. After NFD no character has a lower case of two characters. */
static void take_accents(const bert_tokenizer *t, struct bert_scratch *s) {
    uint32_t small[BERT_MOST_LOWER];
    size_t n = 0;
    for (size_t i = 0; i < s->n; i++) {
        const uint32_t c = s->c[i];
        if (c >= ASCII && bert_is_accent(c)) continue;
        if (c >= ASCII && t->lower) bert_lower(c, small);
        s->c[n] = c >= ASCII && t->lower ? small[0] : c < ASCII ? t->ascii[c] : c;
        s->origin[n++] = s->origin[i];
    }
    s->n = n;
}

/* Normalizes a piece of the text. *index is the index of its first character and is advanced past the piece. */
static cairn_status normalize(const bert_tokenizer *t, struct bert_scratch *s, const unsigned char *text, size_t begin,
                              size_t end, uint32_t *index) {
    size_t marks = 0, length;
    bool is_ascii = true;
    s->n = 0;
    for (size_t i = begin; i < end; i += length, ++*index) {
        const uint32_t origin = *index;
        s->byte[origin] = (uint32_t)i;
        if (s->n + MOST_PARTS > s->room) TRY(make_room(s, s->n + MOST_PARTS + (end - i)));
        uint32_t c = text[i];
        length = 1;
        if (c >= ASCII) {
            c = bert_utf8_decode(text + i, end - i, &length);
            if (bert_is_removed(c)) continue;
            if (bert_is_space(c)) c = ' ';
        }
        if (c < ASCII) {
            c = t->ascii[c];
            if (c == 0) continue;
            if (marks < s->n) TRY(sort_marks(s, marks));
            put(s, c, origin, 0, false);
            marks = s->n;
            continue;
        }
        is_ascii = false;
        const bool is_word = t->chinese && bert_is_chinese(c);
        if (is_word && marks < s->n) TRY(sort_marks(s, marks));
        if (is_word) put(s, ' ', origin, 0, false);
        if (is_word) marks = s->n;
        TRY(put_character(t, s, c, origin, &marks));
        if (is_word) put(s, ' ', origin, 0, false);
        if (is_word) marks = s->n;
    }
    if (marks < s->n) TRY(sort_marks(s, marks));
    s->byte[*index] = (uint32_t)end;
    if (t->strip && !is_ascii) take_accents(t, s);
    return CAIRN_OK;
}

/* ---- words and their pieces ---- */

static inline bool parts_words(const bert_tokenizer *t, uint32_t c) {
    return c < ASCII ? t->is_punctuation[c] : bert_is_punctuation(c);
}

/* Adds the pieces of a word, or [UNK] for the whole word. */
static cairn_status add_word(const bert_tokenizer *t, const struct bert_scratch *s, size_t begin, size_t end,
                             struct tokens *tokens) {
    const size_t before = tokens->n;
    bool is_known = end - begin <= MOST_CHARS_OF_A_WORD;
    for (size_t i = begin, length = 0; is_known && i < end; i += length) {
        const int32_t id =
            bert_longest(&t->vocabulary, i == begin ? BERT_ROOT : BERT_ROOT_OF_REST, s->c + i, end - i, &length);
        is_known = id >= 0;
        if (is_known) TRY(add_token(s, tokens, id, s->origin[i], s->origin[i + length - 1] + 1));
    }
    if (is_known) return CAIRN_OK;
    tokens->n = before;
    return add_token(s, tokens, t->special[UNK], s->origin[begin], s->origin[end - 1] + 1);
}

static cairn_status add_words(const bert_tokenizer *t, const struct bert_scratch *s, size_t most,
                              struct tokens *tokens) {
    for (size_t i = 0, end; i < s->n && tokens->n < most; i = end) {
        end = i + 1;
        if (s->c[i] == ' ') continue;
        if (!parts_words(t, s->c[i])) {
            while (end < s->n && s->c[end] != ' ' && !parts_words(t, s->c[end])) end++;
        }
        TRY(add_word(t, s, i, end, tokens));
    }
    return CAIRN_OK;
}

/* Returns the special token at offset i of the text, or SPECIALS. */
static enum special special_at(const unsigned char *text, size_t i, size_t nbytes) {
    enum special which = PAD;
    for (; which < SPECIALS; which++) {
        const size_t n = strlen(special_texts[which]);
        if (n <= nbytes - i && memcmp(text + i, special_texts[which], n) == 0) break;
    }
    return which;
}

/* Returns the offset of the next special token from i on, or nbytes. */
static size_t next_special(const unsigned char *text, size_t i, size_t nbytes) {
    while (i < nbytes) {
        const unsigned char *found = memchr(text + i, '[', nbytes - i);
        if (!found) return nbytes;
        i = (size_t)(found - text);
        if (special_at(text, i, nbytes) != SPECIALS) return i;
        i++;
    }
    return nbytes;
}

/* Tokenizes a text. May stop early once it has `most` tokens. Spans are in characters; s->byte maps them to bytes. */
static cairn_status tokenize(const bert_tokenizer *t, struct bert_scratch *s, struct bert_text text, size_t most,
                             struct tokens *tokens) {
    const unsigned char *bytes = (const unsigned char *)text.bytes;
    uint32_t index = 0;
    tokens->n = 0;
    if (text.nbytes + 1 > s->byte_room) {
        GROW(s->byte, text.nbytes + 1);
        s->byte_room = text.nbytes + 1;
    }
    for (size_t i = 0; i < text.nbytes && tokens->n < most;) {
        const size_t end = next_special(bytes, i, text.nbytes);
        TRY(normalize(t, s, bytes, i, end, &index));
        TRY(add_words(t, s, most, tokens));
        i = end;
        if (i == text.nbytes) break;
        const enum special which = special_at(bytes, i, text.nbytes);
        const uint32_t length = (uint32_t)strlen(special_texts[which]);
        for (uint32_t k = 0; k <= length; k++) s->byte[index + k] = (uint32_t)(i + k);
        TRY(add_token(s, tokens, t->special[which], index, index + length));
        index += length;
        i += length;
    }
    return CAIRN_OK;
}

/* ---- a text, or a pair ---- */

static size_t most_of(size_t a, size_t b) {
    return a > b ? a : b;
}

/* Hugging Face's longest_first: the shorter text is not cut as long as it fits into half of the limit. */
static void cut_longest_first(size_t *first, size_t *second, size_t most) {
    const bool is_swapped = *first > *second;
    size_t small = is_swapped ? *second : *first, large = most_of(small, small > most ? 0 : most - small);
    if (small + large > most) {
        small = most / 2;
        large = small + most % 2;
    }
    *first = is_swapped ? large : small;
    *second = is_swapped ? small : large;
}

/* Cuts the two texts to `most` tokens in total. */
static cairn_status truncate_pair(struct tokens *tokens, bool is_pair, size_t most, bert_truncation how) {
    const size_t first = tokens[0].n, second = is_pair ? tokens[1].n : 0;
    if (first + second <= most) return CAIRN_OK;
    if (most == 0) {
        tokens[0].n = tokens[1].n = 0;
    } else if (how == BERT_LONGEST_FIRST && is_pair) {
        cut_longest_first(&tokens[0].n, &tokens[1].n, most);
    } else if (how == BERT_LONGEST_FIRST) {
        tokens[0].n = most;
    } else {
        const bool is_first = how == BERT_ONLY_FIRST;
        const size_t other = is_first ? second : first;
        if (other >= most)
            return cairn_dataset_fail(CAIRN_EINVAL,
                                      "max_length leaves %zu tokens for both texts, and the %s one has %zu or more, so "
                                      "that cutting the other is not enough; use BERT_LONGEST_FIRST",
                                      most, is_first ? "second" : "first", other);
        tokens[is_first ? 0 : 1].n = most - other;
    }
    return CAIRN_OK;
}

static cairn_status make_room_for_tokens(bert_encoding *e, size_t want) {
    if (want <= e->room) return CAIRN_OK;
    const size_t room = want + want / 2 + 64;
    GROW(e->ids, room);
    GROW(e->types, room);
    GROW(e->mask, room);
    GROW(e->chars, room);
    GROW(e->bytes, room);
    e->room = room;
    return CAIRN_OK;
}

static void append(bert_encoding *e, const struct token *token, int32_t type, int32_t mask) {
    e->ids[e->n] = token->id;
    e->types[e->n] = type;
    e->mask[e->n] = mask;
    e->chars[e->n] = token->chars;
    e->bytes[e->n++] = token->bytes;
}

static cairn_status assemble(const bert_tokenizer *t, const struct tokens *tokens, bool is_pair,
                             const struct bert_encode_options *o, bert_encoding *e) {
    const struct token cls = {.id = t->special[CLS]}, sep = {.id = t->special[SEP]}, pad = {.id = t->special[PAD]};
    const bool is_framed = o->add_special_tokens != CAIRN_OFF;
    TRY(make_room_for_tokens(e, most_of(o->pad_to, tokens[0].n + (is_pair ? tokens[1].n : 0) + 3)));
    if (is_framed) append(e, &cls, 0, 1);
    for (int32_t k = 0; k < (is_pair ? 2 : 1); k++) {
        for (size_t i = 0; i < tokens[k].n; i++) append(e, &tokens[k].at[i], k, 1);
        if (is_framed) append(e, &sep, k, 1);
    }
    while (e->n < o->pad_to) append(e, &pad, 0, 0);
    return CAIRN_OK;
}

/* Reads options of the caller's struct_size, so that an older header works too. */
static cairn_status read_options(void *to, size_t have, const void *options, const char *call) {
    size_t given;
    if (!options) return CAIRN_OK;
    memcpy(&given, options, sizeof(given));
    if (given < sizeof(given) || given > have)
        return cairn_dataset_fail(CAIRN_EINVAL, "%s: struct_size of the options is %zu; make them by the macro", call,
                                  given);
    memcpy(to, options, given);
    return CAIRN_OK;
}

static cairn_status check_call(const bert_tokenizer *t, struct bert_text first, struct bert_text second,
                               const struct bert_encode_options *o, const bert_encoding *e) {
    const size_t added = o->add_special_tokens == CAIRN_OFF ? 0 : second.bytes ? 3 : 2;
    if (!t || !first.bytes || !e)
        return cairn_dataset_fail(CAIRN_EINVAL,
                                  "bert_tokenizer_encode: tokenizer, first text and encoding must be set");
    if (first.nbytes > MOST_NBYTES || second.nbytes > MOST_NBYTES)
        return cairn_dataset_fail(CAIRN_EINVAL, "bert_tokenizer_encode: a text has %zu bytes; the most are 1 GiB",
                                  most_of(first.nbytes, second.nbytes));
    if (o->max_length && o->max_length < added)
        return cairn_dataset_fail(CAIRN_EINVAL,
                                  "bert_tokenizer_encode: max_length is %zu, but [CLS] and [SEP] alone are %zu",
                                  o->max_length, added);
    if (o->pad_to > MOST_NBYTES)
        return cairn_dataset_fail(CAIRN_EINVAL, "bert_tokenizer_encode: pad_to is %zu; the most are 2^30 tokens",
                                  o->pad_to);
    if (o->truncation > BERT_ONLY_SECOND)
        return cairn_dataset_fail(CAIRN_EINVAL, "bert_tokenizer_encode: truncation is %d; there are 1 to 3",
                                  (int)o->truncation);
    if (o->truncation == BERT_ONLY_SECOND && !second.bytes)
        return cairn_dataset_fail(
            CAIRN_EINVAL, "bert_tokenizer_encode: BERT_ONLY_SECOND would cut the second text, and there is none");
    return CAIRN_OK;
}

cairn_status bert_tokenizer_encode(const bert_tokenizer *tokenizer, struct bert_text first, struct bert_text second,
                                   const struct bert_encode_options *options, bert_encoding *encoding) {
    struct bert_encode_options o = {0};
    if (encoding) encoding->n = 0;
    TRY(read_options(&o, sizeof(o), options, "bert_tokenizer_encode"));
    TRY(check_call(tokenizer, first, second, &o, encoding));
    const bool is_pair = second.bytes != NULL;
    const size_t added = o.add_special_tokens == CAIRN_OFF ? 0 : is_pair ? 3 : 2;
    if (!encoding->scratch) {
        encoding->scratch = calloc(1, sizeof(*encoding->scratch));
        if (!encoding->scratch) return no_memory(sizeof(*encoding->scratch));
    }
    struct bert_scratch *s = encoding->scratch;
    const bert_truncation how = o.truncation ? o.truncation : BERT_LONGEST_FIRST;
    const size_t most = o.max_length ? o.max_length - added : SIZE_MAX - 1;
    /* One token more than fits shows that the text must be cut. BERT_LONGEST_FIRST needs the full length of both
     * texts. */
    const size_t enough = is_pair && how == BERT_LONGEST_FIRST ? SIZE_MAX : most + 1;
    TRY(tokenize(tokenizer, s, first, enough, &s->tokens[0]));
    if (is_pair) TRY(tokenize(tokenizer, s, second, enough, &s->tokens[1]));
    TRY(truncate_pair(s->tokens, is_pair, most, how));
    return assemble(tokenizer, s->tokens, is_pair, &o, encoding);
}

void bert_encoding_finish(bert_encoding *encoding) {
    struct bert_scratch *s = encoding ? encoding->scratch : NULL;
    if (!encoding) return;
    if (s) {
        free(s->c);
        free(s->origin);
        free(s->class);
        free(s->is_more);
        free(s->byte);
        free(s->tokens[0].at);
        free(s->tokens[1].at);
        free(s);
    }
    free(encoding->ids);
    free(encoding->types);
    free(encoding->mask);
    free(encoding->chars);
    free(encoding->bytes);
    *encoding = BERT_ENCODING_INIT;
}

/* ---- creation and lookup ---- */

static void fill_ascii(bert_tokenizer *t) {
    for (uint32_t c = 0; c < ASCII; c++) {
        uint32_t small[BERT_MOST_LOWER] = {c};
        if (t->lower) bert_lower(c, small);
        t->ascii[c] = bert_is_removed(c) ? 0 : bert_is_space(c) ? ' ' : small[0];
        t->is_punctuation[c] = bert_is_punctuation(c);
    }
}

static cairn_status find_special(bert_tokenizer *t, const char *path) {
    for (int i = 0; i < SPECIALS; i++) {
        t->special[i] = bert_tokenizer_id(t, special_texts[i]);
        if (t->special[i] < 0)
            return cairn_dataset_fail(CAIRN_EINVAL,
                                      "%s: has no %s; a BERT's vocab.txt has a line each with [PAD], [UNK], [CLS], "
                                      "[SEP] and [MASK]",
                                      path, special_texts[i]);
    }
    return CAIRN_OK;
}

cairn_status bert_tokenizer_create(const char *path, const struct bert_tokenizer_options *options,
                                   bert_tokenizer **out) {
    struct bert_tokenizer_options o = {0};
    if (!path || !out) return cairn_dataset_fail(CAIRN_EINVAL, "bert_tokenizer_create: path and out must be set");
    TRY(read_options(&o, sizeof(o), options, "bert_tokenizer_create"));
    bert_tokenizer *t = calloc(1, sizeof(*t));
    if (!t) return no_memory(sizeof(*t));
    t->lower = o.do_lower_case != CAIRN_OFF;
    t->strip = o.strip_accents == CAIRN_DEFAULT ? t->lower : o.strip_accents == CAIRN_ON;
    t->chinese = o.tokenize_chinese_chars != CAIRN_OFF;
    fill_ascii(t);
    cairn_status st = bert_vocabulary_read(&t->vocabulary, path);
    if (st == CAIRN_OK) st = find_special(t, path);
    if (st == CAIRN_OK) *out = t;
    else bert_tokenizer_destroy(&t);
    return st;
}

void bert_tokenizer_destroy(bert_tokenizer **tokenizer) {
    if (!tokenizer || !*tokenizer) return;
    bert_vocabulary_clear(&(*tokenizer)->vocabulary);
    free(*tokenizer);
    *tokenizer = NULL;
}

int32_t bert_tokenizer_size(const bert_tokenizer *tokenizer) {
    return tokenizer ? tokenizer->vocabulary.n : 0;
}

int32_t bert_tokenizer_id(const bert_tokenizer *tokenizer, const char *token) {
    return tokenizer && token ? bert_vocabulary_find(&tokenizer->vocabulary, token) : -1;
}

const char *bert_tokenizer_token(const bert_tokenizer *tokenizer, int32_t id) {
    return tokenizer && id >= 0 && id < tokenizer->vocabulary.n ? tokenizer->vocabulary.tokens[id] : NULL;
}
