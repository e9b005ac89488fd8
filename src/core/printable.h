/* Escapes text from other machines before it reaches a terminal or a log: control sequences would let the sender move
 * the cursor, set the title or overwrite other lines. */
#ifndef CAIRN__CORE_PRINTABLE_H
#define CAIRN__CORE_PRINTABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* Writes text to out [nbytes > 0], truncated if it does not fit, with control characters, including Unicode's C1,
 * escaped as \x1b and the like. With several_lines, line ends and tabs are kept. */
static inline void cairn__write_printable(char *out, size_t nbytes, const char *text, bool several_lines) {
    const unsigned char *c = (const unsigned char *)text;
    size_t n = 0;
    for (; *c; c++) {
        const bool is_c1 = *c == 0xc2 && c[1] >= 0x80 && c[1] < 0xa0;
        const bool is_space = *c == '\n' || *c == '\t';
        const bool is_control = is_c1 || *c == 0x7f || (*c < ' ' && !(is_space && several_lines));
        if (n + (is_control ? 4 : 1) >= nbytes) break;
        if (is_c1) c++;
        if (is_control) {
            n += (size_t)snprintf(out + n, 5, "\\x%02x", *c);
        } else {
            out[n++] = (char)*c;
        }
    }
    out[n] = '\0';
}

#endif
