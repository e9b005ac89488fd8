#include "values.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Reads a whole number at *text and advances *text past it. */
bool read_whole(const char **text, size_t most, size_t *value) {
    char *end = NULL;
    if (**text < '0' || **text > '9') return false;
    errno = 0;
    const unsigned long long parsed = strtoull(*text, &end, 10);
    if (errno || parsed > most) return false;
    *value = (size_t)parsed;
    *text = end;
    return true;
}

/* 4096, 64K, 25M, 1G; at most 2^50, and never 0. */
bool read_bytes(const char **text, size_t *value) {
    static const char units[] = "KMG";
    const size_t most = (size_t)1 << 50;
    if (!read_whole(text, most, value)) return false;
    const char *unit = **text ? strchr(units, **text) : NULL;
    const int shift = unit ? 10 * (int)(unit - units + 1) : 0;
    if (*value == 0 || *value > most >> shift) return false;
    *value <<= shift;
    if (unit) ++*text;
    return true;
}

/* Reads values separated by commas. */
bool read_list(const char *text, read_fn read, size_t *values, size_t *count) {
    for (*count = 0; *count < MAX_VALUES; text++) {
        if (!read(&text, &values[*count])) return false;
        ++*count;
        if (*text == '\0') return true;
        if (*text != ',') return false;
    }
    return false;
}

bool read_one(const char *text, read_fn read, size_t *value) {
    return read(&text, value) && *text == '\0';
}
