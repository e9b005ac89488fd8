#include "state/json_scan.h"

#include <stdint.h>
#include <string.h>

/* Bytes that jansson 2.14 needs with glibc's malloc for a value and its slot in the container; a key is a text. */
enum { OBJECT = 224, ARRAY = 136, TEXT = 92, NUMBER = 44 };

static uint64_t cost(char c, char before) {
    static const char between[] = ",:[ \t\r\n";
    if (c == '{') return OBJECT;
    if (c == '[') return ARRAY;
    if (c == '"') return TEXT;
    const bool is_number = (c >= '0' && c <= '9') || c == '-';
    return is_number && memchr(between, before, sizeof(between) - 1) ? NUMBER : 0;
}

struct cairn__json_scan cairn__json_scan(const char *text, size_t nbytes) {
    struct cairn__json_scan found = {0};
    bool is_in_string = false, is_in_array = false;
    uint64_t need = 0;
    size_t elements = 0;
    int depth = 0;
    for (size_t i = 0; i < nbytes; i++) {
        const char c = text[i];
        if (is_in_string) {
            if (c == '\\') i++;
            else is_in_string = c != '"';
            continue;
        }
        is_in_string = c == '"';
        need += cost(c, i > 0 ? text[i - 1] : 0);
        if (c == '{' || c == '[') {
            depth++;
            is_in_array = c == '[';
            elements = 1;
        } else if (c == '}' || c == ']') {
            depth--;
            is_in_array = false;
        } else if (c == ',') {
            elements++;
        }
        if (is_in_array && elements > found.longest) found.longest = elements;
        if (depth > found.depth) found.depth = depth;
    }
    found.is_costly = need > 12 * (uint64_t)nbytes + ((uint64_t)64 << 20);
    return found;
}
