#include "stages.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../common/fields.h"
#include "../common/say.h"

/* Least squares with weights 1 / ns^2. A negative coefficient is replaced by 0. */
struct cost cost_through(const double *rows, const double *ns, size_t n, double *worst) {
    double w = 0, x = 0, xx = 0, y = 0, xy = 0;
    for (size_t i = 0; i < n; i++) {
        const double weight = 1 / (ns[i] * ns[i]);
        w += weight;
        x += weight * rows[i];
        xx += weight * rows[i] * rows[i];
        y += weight * ns[i];
        xy += weight * rows[i] * ns[i];
    }
    const double d = w * xx - x * x;
    struct cost c = {0};
    c.row = d > 0 ? (w * xy - x * y) / d : 0;
    c.fixed = (y - c.row * x) / w;
    if (c.fixed < 0) c = (struct cost){0, xy / xx};
    if (c.row < 0) c = (struct cost){y / w, 0};
    for (size_t i = 0; i < n; i++) *worst = fmax(*worst, fabs(cost_ns(c, rows[i]) / ns[i] - 1));
    return c;
}

static bool read_cost(struct node at, const char *key, struct cost *out, double *worst) {
    enum { MAX_POINTS = 256 };
    double rows[MAX_POINTS], ns[MAX_POINTS];
    json_t *list = NULL;
    if (!fields_array(at, key, REQUIRED, &list)) return false;
    const size_t n = json_array_size(list);
    if (n < 2 || n > MAX_POINTS) return fields_refuse(at, key, "2 to 256 points");
    for (size_t i = 0; i < n; i++) {
        char path[96];
        snprintf(path, sizeof(path), "%s.%s[%zu]", at.path, key, i);
        const struct node point = {at.file, path, json_array_get(list, i)};
        if (!json_is_object(point.value)) return refuse("%s: %s must be an object", at.file, path);
        if (!fields_whole(point, "rows", 1, REQUIRED, &rows[i])) return false;
        if (!fields_number(point, "ns", 1, REQUIRED, &ns[i])) return false;
        for (size_t k = 0; k < i; k++) {
            if (rows[k] == rows[i])
                return refuse("%s: %s and an earlier point are of %.0f rows; give each number of rows once", at.file,
                              path, rows[i]);
        }
    }
    *out = cost_through(rows, ns, n, worst);
    return true;
}

static bool read_stage(const char *file, size_t i, json_t *value, struct stages *s) {
    char path[48];
    struct stage *stage = &s->list[i];
    snprintf(path, sizeof(path), "stages[%zu]", i);
    if (!json_is_object(value)) return refuse("%s: %s must be an object", file, path);
    const struct node at = {file, path, value};
    return read_cost(at, "forward", &stage->forward, &s->worst) &&
           read_cost(at, "backward", &stage->backward, &s->worst) &&
           fields_number(at, "output_bytes", 0, OPTIONAL, &stage->output_nbytes) &&
           fields_number(at, "held_bytes", 0, OPTIONAL, &stage->held_nbytes);
}

static bool read_all(const char *file, json_t *root, struct stages *s) {
    const struct node top = {file, "", root};
    const char *format = NULL, *model = file;
    double version = 0;
    json_t *list = NULL;
    if (!fields_text(top, "format", REQUIRED, &format)) return false;
    if (strcmp(format, "cairn-stages") != 0) return fields_refuse(top, "format", "\"cairn-stages\"");
    if (!fields_whole(top, "version", 1, REQUIRED, &version)) return false;
    if (version != 1) return fields_refuse(top, "version", "1, which is what this cairn-plan reads");
    if (!fields_text(top, "model", OPTIONAL, &model)) return false;
    s->model = clean_text(model);
    if (!fields_whole(top, "rows", 1, OPTIONAL, &s->rows)) return false;
    if (s->rows > MAX_ROWS) return fields_refuse(top, "rows", "1048576 at most");
    if (!fields_array(top, "stages", REQUIRED, &list)) return false;
    s->count = json_array_size(list);
    if (s->count > MAX_STAGES) return fields_refuse(top, "stages", "256 stages at most");
    s->list = must(calloc(s->count, sizeof(*s->list)));
    for (size_t i = 0; i < s->count; i++) {
        if (!read_stage(file, i, json_array_get(list, i), s)) return false;
    }
    return true;
}

bool stages_read(const char *file, struct stages *out) {
    json_t *root = NULL;
    *out = (struct stages){0};
    if (!fields_open(file, &root)) return false;
    const bool good = read_all(file, root, out);
    json_decref(root);
    if (!good) stages_free(out);
    return good;
}

void stages_free(struct stages *s) {
    free(s->model);
    free(s->list);
    *s = (struct stages){0};
}
