/* Text that another machine has sent, before it reaches a terminal or a log: escape sequences would let its sender move
 * the cursor, set the title or write over other lines. */
#ifndef CAIRN__CORE_PRINTABLE_H
#define CAIRN__CORE_PRINTABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* out [nbytes > 0] gets the text, cut where it does not fit, with \x1b and the like for control characters, those of
 * Unicode's C1 among them. Line ends and tabs stay in text of several lines. */
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
