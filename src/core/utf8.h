/* UTF-8 decoding, for files that must be readable whatever bytes a user's names contain. */
#ifndef CAIRN__CORE_UTF8_H
#define CAIRN__CORE_UTF8_H

#include <stddef.h>
#include <stdint.h>

#define CAIRN__NO_CHARACTER 0xfffdu

/* The first character of text, which is not empty; *length: its number of bytes. An invalid sequence, overlong forms
 * and surrogates included, gives CAIRN__NO_CHARACTER with a length of 1. Async-signal-safe. */
static inline uint32_t cairn__utf8_decode(const char *text, size_t *length) {
    const unsigned char *s = (const unsigned char *)text;
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    const size_t n = s[0] < 0x80             ? 1
                     : (s[0] & 0xe0) == 0xc0 ? 2
                     : (s[0] & 0xf0) == 0xe0 ? 3
                     : (s[0] & 0xf8) == 0xf0 ? 4
                                             : 0;
    *length = 1;
    if (n == 1) return s[0];
    uint32_t c = n ? s[0] & (0x7fu >> n) : 0;
    for (size_t i = 1; i < n; i++) {
        if ((s[i] & 0xc0) != 0x80) return CAIRN__NO_CHARACTER; /* the end of the string too */
        c = c << 6 | (s[i] & 0x3fu);
    }
    if (n == 0 || c < least[n] || c > 0x10ffff || (c >= 0xd800 && c < 0xe000)) return CAIRN__NO_CHARACTER;
    *length = n;
    return c;
}

#endif
