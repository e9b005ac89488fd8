/* Between begin and end, this thread formats and parses numbers with a decimal point, whatever the program's locale. */
#ifndef CAIRN__AMP_NUMBERS_H
#define CAIRN__AMP_NUMBERS_H

#include <locale.h>

struct cairn__numbers {
    locale_t plain, before;
};

static inline struct cairn__numbers cairn__numbers_begin(void) {
    struct cairn__numbers n = {newlocale(LC_NUMERIC_MASK, "C", (locale_t)0), (locale_t)0};
    if (n.plain) n.before = uselocale(n.plain);
    return n;
}

static inline void cairn__numbers_end(const struct cairn__numbers *n) {
    if (!n->plain) return;
    uselocale(n->before);
    freelocale(n->plain);
}

#endif
