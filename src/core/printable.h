/* Text that another machine has sent, before it reaches a terminal or a log: escape sequences would let its sender move
 * the cursor, set the title or write over other lines. */
#ifndef CAIRN__CORE_PRINTABLE_H
#define CAIRN__CORE_PRINTABLE_H

#include <stdbool.h>
#include <string.h>

/* Puts '?' for control characters in place, those of Unicode's C1 among them; line ends and tabs stay in text of
 * several lines. */
static inline void cairn__make_printable(char *text, bool several_lines) {
    for (unsigned char *c = (unsigned char *)text; *c; c++) {
        if (*c == 0xc2 && c[1] >= 0x80 && c[1] < 0xa0) *c = '?', c[1] = '?';
        const bool is_space = *c == '\n' || *c == '\t';
        if ((*c < ' ' && !(is_space && several_lines)) || *c == 0x7f) *c = '?';
    }
}

#endif
