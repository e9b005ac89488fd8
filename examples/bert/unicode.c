/* utf8proc classifies characters; the tables below hold the exceptions where `tokenizers` (0.23.3) differs. It takes
 * categories from a crate with Unicode 8 and NFD from one with Unicode 9, and applies no rule to newer characters:
 * marks stay, punctuation does not split words, format characters are not removed. BERT models were trained on that
 * behaviour, so the exceptions reproduce it. They were found by running `tokenizers` on every code point, which
 * tests/bert/test_tokenizer.py repeats. A range may also span characters of categories for which it is never
 * consulted. */
#include <utf8proc.h>

#include "unicode.h"

struct range {
    uint32_t first, last;
};

static const struct range newer_punctuation[] = {
    {0x61d, 0x61d},     {0x9fd, 0xa76},     {0xc77, 0xc84},     {0x1b7d, 0x1b7e},
    {0x2e43, 0x2e5d},   {0x10ead, 0x10f89}, {0x1144b, 0x1145d}, {0x11660, 0x116b9},
    {0x1183b, 0x11fff}, {0x12ff1, 0x12ff2}, {0x16e97, 0x16fe2}, {0x1e95e, 0x1e95f},
};
static const struct range newer_accents[] = {
    {0x7fd, 0x7fd},     {0x898, 0x8e1},     {0x9fe, 0x9fe},     {0xafa, 0xaff},     {0xb55, 0xb55},
    {0xc04, 0xc3c},     {0xd00, 0xd00},     {0xd3b, 0xd3c},     {0xd81, 0xd81},     {0xeba, 0xeba},
    {0xece, 0xece},     {0x180f, 0x1886},   {0x1abf, 0x1ace},   {0x1df6, 0x1dfb},   {0xa82c, 0xa82c},
    {0xa8c5, 0xa8c5},   {0xa8ff, 0xa8ff},   {0xa9bd, 0xa9bd},   {0x10d24, 0x10f85}, {0x11070, 0x11074},
    {0x110c2, 0x110c2}, {0x111c9, 0x111c9}, {0x111cf, 0x111cf}, {0x1123e, 0x11241}, {0x1133b, 0x1133b},
    {0x11438, 0x1145e}, {0x1182f, 0x13455}, {0x16f4f, 0x16f4f}, {0x16fe4, 0x16fe4}, {0x1cf00, 0x1cf46},
    {0x1e000, 0x1e4ef}, {0x1e944, 0x1e94a},
};
static const struct range newer_formats[] = {{0x890, 0x8e2}, {0x110cd, 0x1343f}};
static const struct range newer_classes[] = {
    {0x7fd, 0x7fd},     {0x898, 0x8d3},     {0x9fe, 0x9fe},     {0xc3c, 0xc3c},     {0xd3b, 0xd3c},
    {0xeba, 0xeba},     {0x1715, 0x1715},   {0x1abf, 0x1ace},   {0x1df6, 0x1dfa},   {0xa82c, 0xa82c},
    {0x10d24, 0x10f85}, {0x11070, 0x11070}, {0x1133b, 0x1133b}, {0x1145e, 0x1145e}, {0x11839, 0x11a99},
    {0x11d42, 0x11f42}, {0x16ff0, 0x16ff1}, {0x1e08f, 0x1e4ef},
};

static bool is_in(const struct range *ranges, size_t n, uint32_t c) {
    size_t low = 0, high = n;
    while (low < high) {
        const size_t middle = (low + high) / 2;
        if (c > ranges[middle].last) low = middle + 1;
        else high = middle;
    }
    return low < n && c >= ranges[low].first;
}

#define IS_IN(ranges, c) is_in(ranges, sizeof(ranges) / sizeof((ranges)[0]), c)

uint32_t bert_utf8_decode(const unsigned char *s, size_t left, size_t *length) {
    const unsigned char lead = s[0];
    *length = 1;
    if (lead < 0x80) return lead;
    const size_t n = lead < 0xc2 ? 0 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : lead < 0xf5 ? 4 : 0;
    if (n == 0) return BERT_NO_CHARACTER;
    /* The second byte excludes overlong forms, surrogates and what is above U+10FFFF. */
    unsigned char least = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
    unsigned char most = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
    uint32_t c = lead & (0x7fu >> n);
    for (size_t i = 1; i < n; i++) {
        *length = i;
        if (i >= left || s[i] < least || s[i] > most) return BERT_NO_CHARACTER;
        c = c << 6 | (s[i] & 0x3fu);
        least = 0x80;
        most = 0xbf;
    }
    *length = n;
    return c;
}

bool bert_is_space(uint32_t c) {
    return (c >= 9 && c <= 13) || c == ' ' || c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) ||
           c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

bool bert_is_removed(uint32_t c) {
    if (c == 0 || c == BERT_NO_CHARACTER) return true;
    if (c == '\t' || c == '\n' || c == '\r') return false;
    switch (utf8proc_category((utf8proc_int32_t)c)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CO:
        return true;
    case UTF8PROC_CATEGORY_CF:
        return !IS_IN(newer_formats, c);
    default:
        return false; /* unassigned ones too */
    }
}

bool bert_is_punctuation(uint32_t c) {
    if (c < 0x80)
        return c > ' ' && c < 0x7f && !(c >= '0' && c <= '9') && !(c >= 'A' && c <= 'Z') && !(c >= 'a' && c <= 'z');
    switch (utf8proc_category((utf8proc_int32_t)c)) {
    case UTF8PROC_CATEGORY_PC:
    case UTF8PROC_CATEGORY_PD:
    case UTF8PROC_CATEGORY_PS:
    case UTF8PROC_CATEGORY_PE:
    case UTF8PROC_CATEGORY_PI:
    case UTF8PROC_CATEGORY_PF:
    case UTF8PROC_CATEGORY_PO:
        return !IS_IN(newer_punctuation, c);
    default:
        return c == 0x166d || c == 0x111c9; /* punctuation in older versions of Unicode, now a symbol and a mark */
    }
}

bool bert_is_chinese(uint32_t c) {
    return (c >= 0x4e00 && c <= 0x9fff) || (c >= 0x3400 && c <= 0x4dbf) || (c >= 0x20000 && c <= 0x2a6df) ||
           (c >= 0x2a700 && c <= 0x2b81f) || (c >= 0x2b920 && c <= 0x2ceaf) || (c >= 0xf900 && c <= 0xfaff) ||
           (c >= 0x2f800 && c <= 0x2fa1f);
}

bool bert_is_accent(uint32_t c) {
    if (utf8proc_category((utf8proc_int32_t)c) == UTF8PROC_CATEGORY_MN) return !IS_IN(newer_accents, c);
    return c == 0x1734; /* a spacing mark since Unicode 14 */
}

uint8_t bert_combining_class(uint32_t c) {
    const utf8proc_propval_t class = utf8proc_get_property((utf8proc_int32_t)c)->combining_class;
    return class && !IS_IN(newer_classes, c) ? (uint8_t) class : 0;
}

size_t bert_decompose(uint32_t c, uint32_t out[BERT_MOST_DECOMPOSED]) {
    utf8proc_int32_t parts[BERT_MOST_DECOMPOSED];
    int boundary = 0;
    out[0] = c;
    if (c < 0xc0 || c == 0x11938) return 1; /* the latter since Unicode 13 */
    const utf8proc_ssize_t n =
        utf8proc_decompose_char((utf8proc_int32_t)c, parts, BERT_MOST_DECOMPOSED, UTF8PROC_DECOMPOSE, &boundary);
    if (n < 1 || n > BERT_MOST_DECOMPOSED) return 1; /* defensive: no character decomposes into more */
    for (utf8proc_ssize_t i = 0; i < n; i++) out[i] = (uint32_t)parts[i];
    return (size_t)n;
}

size_t bert_lower(uint32_t c, uint32_t out[BERT_MOST_LOWER]) {
    out[0] = (uint32_t)utf8proc_tolower((utf8proc_int32_t)c);
    if (c != 0x130) return 1;
    out[0] = 'i'; /* the only one whose full mapping has two characters */
    out[1] = 0x307;
    return 2;
}
