#include "say.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool refuse(const char *format, ...) {
    va_list args;
    va_start(args, format);
    fprintf(stderr, "%s: ", program_name);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    return false;
}

void *must(void *p) {
    if (p) return p;
    fprintf(stderr, "%s: memory ran out\n", program_name);
    exit(1);
}

/* Bytes of the character at s; 0 = not to be shown: overlong forms, surrogates, and what XML forbids. */
static size_t character_length(const unsigned char *s) {
    static const uint32_t least[] = {0x20, 0x80, 0x800, 0x10000};
    const size_t more = s[0] < 0x80 ? 0 : s[0] < 0xc0 ? 4 : s[0] < 0xe0 ? 1 : s[0] < 0xf0 ? 2 : s[0] < 0xf8 ? 3 : 4;
    if (more == 4) return 0;
    uint32_t value = more ? s[0] & (0x3fu >> more) : s[0];
    for (size_t i = 1; i <= more; i++) {
        if ((s[i] & 0xc0) != 0x80) return 0;
        value = value << 6 | (s[i] & 0x3f);
    }
    const bool surrogate = value >= 0xd800 && value < 0xe000, none = (value & 0xfffe) == 0xfffe;
    return value < least[more] || value > 0x10ffff || value == 0x7f || surrogate || none ? 0 : more + 1;
}

char *clean_text(const char *text) {
    char *copy = must(strdup(text)), *out = copy;
    while (*text) {
        const size_t n = character_length((const unsigned char *)text);
        for (size_t i = 0; i < n; i++) *out++ = text[i];
        if (n == 0) *out++ = '?';
        text += n ? n : 1;
    }
    *out = '\0';
    return copy;
}
