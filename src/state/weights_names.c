/* Names of weights in files. */
#include <string.h>

#include "core/status.h"
#include "state/weights.h"

enum { MAX_STARS = 8 };

struct span {
    const char *at;
    size_t n;
};

/* Whether text matches the pattern. spans: the texts of its stars, each as short as the rest allows. On a mismatch
 * after a star, the last star takes one more character; extending an earlier star is never necessary, since the last
 * one could take the same characters. So an untrusted name of any length costs at most its length times the
 * pattern's. */
static bool match(const char *pattern, const char *text, struct span *spans, int room) {
    const char *behind_star = NULL;
    struct span *star = NULL;
    for (;;) {
        if (*pattern == '*') {
            if (room-- == 0) return false;
            star = star ? star + 1 : spans;
            *star = (struct span){text, 0};
            behind_star = ++pattern;
        } else if (*pattern == *text) {
            if (!*text) return true;
            pattern++, text++;
        } else {
            if (!star || !*text) return false;
            pattern = behind_star;
            text = star->at + ++star->n;
        }
    }
}

const struct cairn_weights_name *cairn__weights_rule(const struct cairn_weights_options *o, const char *ours) {
    struct span spans[MAX_STARS];
    for (size_t i = 0; i < o->num_names; i++) {
        if (o->names[i].ours && match(o->names[i].ours, ours, spans, MAX_STARS)) return &o->names[i];
    }
    return NULL;
}

int cairn__weights_parts(const struct cairn_weights_name *rule) {
    int parts = 1;
    for (const char *c = rule ? rule->file : ""; *c; c++) parts += *c == '|';
    return parts;
}

static bool append(char name[CAIRN__WEIGHTS_NAME], size_t *used, const char *text, size_t n) {
    if (n >= CAIRN__WEIGHTS_NAME - *used) return false;
    memcpy(name + *used, text, n);
    name[ *used += n] = 0;
    return true;
}

/* Appends to `name` the name that the rule's text number `part` gives. */
static bool substitute(const struct cairn_weights_name *rule, int part, const char *ours,
                       char name[CAIRN__WEIGHTS_NAME], size_t *used) {
    struct span spans[MAX_STARS] = {{0}};
    const char *c = rule->file;
    int star = 0;
    bool fits = match(rule->ours, ours, spans, MAX_STARS);
    for (; part > 0; part--) c = strchr(c, '|') + 1;
    for (; fits && *c && *c != '|'; c++) {
        if (*c != '*') {
            fits = append(name, used, c, 1);
        } else {
            fits = star < MAX_STARS && spans[star].at && append(name, used, spans[star].at, spans[star].n);
            star++;
        }
    }
    return fits;
}

cairn_status cairn__weights_file_name(const struct cairn_weights_options *o, const struct cairn_weights_name *rule,
                                      int part, const char *ours, char name[CAIRN__WEIGHTS_NAME]) {
    const char *prefix = o->prefix ? o->prefix : "";
    size_t used = 0;
    name[0] = 0;
    bool fits = append(name, &used, prefix, strlen(prefix));
    fits = fits && (rule ? substitute(rule, part, ours, name, &used) : append(name, &used, ours, strlen(ours)));
    REQUIRE(
        fits, CAIRN_EINVAL,
        "'%s' gets no name in the file by the rule {\"%s\", \"%s\"}: it has more stars on the right, or the name is "
        "longer than %d characters",
        ours, rule ? rule->ours : "*", rule ? rule->file : "*", CAIRN__WEIGHTS_NAME - 1);
    return CAIRN_OK;
}

bool cairn__weights_is_unexpected(const struct cairn_weights_options *o, const char *file) {
    struct span spans[MAX_STARS];
    const size_t n = o->prefix ? strlen(o->prefix) : 0;
    if (n > 0 && strncmp(file, o->prefix, n) != 0) return false;
    for (size_t i = 0; i < o->num_names; i++) {
        const struct cairn_weights_name *rule = &o->names[i];
        if (!rule->ours && rule->file && match(rule->file, file + n, spans, MAX_STARS)) return false;
    }
    return true;
}
