#include "fields.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "say.h"

static const double MOST = 9007199254740992.0; /* 2^53 */

bool fields_open(const char *file, json_t **root) {
    json_error_t error;
    FILE *stream = fopen(file, "re");
    if (!stream) return refuse("%s: %s", file, strerror(errno));
    json_t *value = json_loadf(stream, JSON_REJECT_DUPLICATES, &error);
    fclose(stream);
    if (!value) return refuse("%s: not JSON, at line %d, column %d: %s", file, error.line, error.column, error.text);
    if (!json_is_object(value)) {
        json_decref(value);
        return refuse("%s: not a JSON object, which begins with {", file);
    }
    *root = value;
    return true;
}

/* A value as text for a message. */
static char *shown(const json_t *value) {
    static const char *const kinds[] = {[JSON_OBJECT] = "an object", [JSON_ARRAY] = "an array"};
    if (!value) return must(strdup("missing"));
    if (json_is_object(value)) return must(strdup(kinds[JSON_OBJECT]));
    if (json_is_array(value)) return must(strdup(json_array_size(value) ? kinds[JSON_ARRAY] : "an empty array"));
    return must(json_dumps(value, JSON_ENCODE_ANY | JSON_ENSURE_ASCII));
}

bool fields_refuse(struct node at, const char *key, const char *must_be) {
    char *text = shown(json_object_get(at.value, key));
    refuse("%s: %s%s%s is %.200s; it must be %s", at.file, at.path, at.path[0] ? "." : "", key, text, must_be);
    free(text);
    return false;
}

static bool read_number(struct node at, const char *key, double least, int required, bool whole, double *out) {
    const json_t *value = json_object_get(at.value, key);
    if (!required && (!value || json_is_null(value))) return true;
    const double number = json_is_number(value) ? json_number_value(value) : NAN;
    if (number >= least && number <= MOST && (!whole || floor(number) == number)) {
        *out = number;
        return true;
    }
    char must_be[96];
    snprintf(must_be, sizeof(must_be), "a %snumber from %g to 2^53", whole ? "whole " : "", least);
    return fields_refuse(at, key, must_be);
}

bool fields_number(struct node at, const char *key, double least, int required, double *out) {
    return read_number(at, key, least, required, false, out);
}

bool fields_whole(struct node at, const char *key, double least, int required, double *out) {
    return read_number(at, key, least, required, true, out);
}

bool fields_text(struct node at, const char *key, int required, const char **out) {
    const json_t *value = json_object_get(at.value, key);
    if (!required && !value) return true;
    if (!json_is_string(value)) return fields_refuse(at, key, "a text");
    *out = json_string_value(value);
    return true;
}

bool fields_array(struct node at, const char *key, int required, json_t **out) {
    json_t *value = json_object_get(at.value, key);
    *out = NULL;
    if (!required && !value) return true;
    if (!json_is_array(value) || json_array_size(value) == 0)
        return fields_refuse(at, key, "an array of at least one element");
    *out = value;
    return true;
}
