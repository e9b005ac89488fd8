#include "observe/json.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/utf8.h"

void cairn__json_escape(const char *text, char *out, size_t nbytes) {
    size_t used = 0, length;
    for (; *text && used + 8 < nbytes; text += length) {
        const uint32_t c = cairn__utf8_decode(text, &length);
        if (c == CAIRN__NO_CHARACTER && length == 1) {
            out[used++] = '?';
        } else if (c < ' ') {
            used += (size_t)snprintf(out + used, nbytes - used, "\\u%04x", c);
        } else {
            if (c == '"' || c == '\\') out[used++] = '\\';
            memcpy(out + used, text, length);
            used += length;
        }
    }
    out[used] = '\0';
}

const char *cairn__json_number(double value, char out[CAIRN__JSON_NUMBER]) {
    if (isfinite(value)) {
        snprintf(out, CAIRN__JSON_NUMBER, "%.17g", value);
    } else {
        snprintf(out, CAIRN__JSON_NUMBER, "\"%s\"", isnan(value) ? "nan" : value > 0 ? "inf" : "-inf");
    }
    return out;
}
