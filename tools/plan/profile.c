#include "profile.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../common/fields.h"
#include "../common/say.h"

static const double MAX_NBYTES = 1125899906842624.0; /* 2^50 */

cairn_dtype dtype_named(const char *name) {
    static const cairn_dtype types[] = {CAIRN_F32, CAIRN_F16, CAIRN_BF16, CAIRN_F64};
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        if (strcmp(name, cairn_dtype_name(types[i])) == 0) return types[i];
    }
    return 0;
}

static bool read_dtype(struct node at, const char *key, int required, cairn_dtype *out) {
    const char *name = NULL;
    if (!fields_text(at, key, required, &name)) return false;
    if (!name) return true;
    *out = dtype_named(name);
    return *out || fields_refuse(at, key, "f32, f16, bf16 or f64");
}

static bool read_param(const char *file, size_t i, json_t *value, double backward_ns, struct profile_param *p) {
    char path[48];
    snprintf(path, sizeof(path), "parameters[%zu]", i);
    if (!json_is_object(value)) return refuse("%s: %s must be an object", file, path);
    const struct node at = {file, path, value};
    const char *name = NULL;
    double elements = 0;
    p->ready_ns = backward_ns;
    if (!fields_text(at, "name", OPTIONAL, &name)) return false;
    if (!fields_whole(at, "elements", 0, REQUIRED, &elements)) return false;
    if (!fields_number(at, "ready_ns", 0, OPTIONAL, &p->ready_ns)) return false;
    if (!read_dtype(at, "dtype", REQUIRED, &p->dtype)) return false;
    p->wire = p->dtype;
    if (!read_dtype(at, "wire", OPTIONAL, &p->wire)) return false;
    p->n = (size_t)elements;
    p->ready_ns = fmin(p->ready_ns, backward_ns);
    return true;
}

static bool read_params(const char *file, json_t *root, struct profile *p) {
    json_t *list = NULL;
    if (!fields_array((struct node){file, "", root}, "parameters", REQUIRED, &list)) return false;
    p->count = json_array_size(list);
    p->params = must(calloc(p->count, sizeof(*p->params)));
    for (size_t i = 0; i < p->count; i++) {
        if (!read_param(file, i, json_array_get(list, i), p->backward_ns, &p->params[i])) return false;
    }
    if (profile_nbytes(p) > MAX_NBYTES) return refuse("%s: parameters has more than a PiB of gradients", file);
    return true;
}

static bool read_all(const char *file, json_t *root, struct profile *p) {
    const struct node top = {file, "", root};
    const char *format = NULL, *model = file;
    double version = 0;
    if (!fields_text(top, "format", REQUIRED, &format)) return false;
    if (strcmp(format, "cairn-profile") != 0) return fields_refuse(top, "format", "\"cairn-profile\"");
    if (!fields_whole(top, "version", 1, REQUIRED, &version)) return false;
    if (version != 1) return fields_refuse(top, "version", "1, which is what this cairn-plan reads");
    if (!fields_text(top, "model", OPTIONAL, &model)) return false;
    p->model = clean_text(model);
    return fields_number(top, "forward_ns", 0, REQUIRED, &p->forward_ns) &&
           fields_number(top, "backward_ns", 0, REQUIRED, &p->backward_ns) &&
           fields_number(top, "optimizer_ns", 0, REQUIRED, &p->optimizer_ns) && read_params(file, root, p);
}

bool profile_read(const char *file, struct profile *out) {
    json_t *root = NULL;
    *out = (struct profile){0};
    if (!fields_open(file, &root)) return false;
    const bool good = read_all(file, root, out);
    json_decref(root);
    if (!good) profile_free(out);
    return good;
}

void profile_free(struct profile *p) {
    free(p->model);
    free(p->params);
    *p = (struct profile){0};
}

double profile_nbytes(const struct profile *p) {
    double nbytes = 0;
    for (size_t i = 0; i < p->count; i++) {
        nbytes += (double)p->params[i].n * (double)cairn_dtype_nbytes(p->params[i].wire);
    }
    return nbytes;
}
