/* The text formats of torch_ops.py: dumped cases, and stored results.
 *
 * A dumped case is a line with its names, and for each type: a line per input ("in a f32 2x3 1 ...": letter, type,
 * sizes, whether it requires a gradient, values), "y" and "dy", and "grad a" for each gradient. A stored case is a line
 * "case name<tab>hash" with a hash of its inputs, and a line per array: "f16 y f16 ...", "f16 a f16 ...": the type of
 * the case, the array, the array's type, and hexadecimal bits, of evenly spaced elements if there are many. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "case_run.h"
#include "core/alloc.h"
#include "core/convert.h"
#include "core/dtype.h"
#include "core/hash.h"

/* Hash of the f32 inputs, over their bits as doubles. */
static uint64_t hash_of(const struct op_case *c) {
    uint64_t hash = CAIRN__HASH_START;
    struct case_array inputs[CASE_INPUTS];
    case_draw(c, CAIRN_F32, inputs);
    for (int i = 0; i < CASE_INPUTS; i++) {
        if (inputs[i].values) hash = cairn__hash_bytes(hash, inputs[i].values, inputs[i].n * sizeof(double));
    }
    case_arrays_free(inputs, CASE_INPUTS);
    return hash;
}

/* ---- dump ---- */

static void print_array(const char *what, const struct case_array *a, int wanted) {
    printf("%s %s ", what, cairn_dtype_name(a->dtype));
    for (int d = 0; d < a->ndim; d++) printf("%s%lld", d ? "x" : "", (long long)a->shape[d]);
    printf("%s %d", a->ndim ? "" : "-", wanted);
    for (size_t i = 0; i < a->n; i++) printf(" %.17g", a->values[i]);
    printf("\n");
}

static void print_result(const struct op_case *c, const struct case_array *inputs, const struct case_result *r) {
    char what[] = "grad a";
    for (int i = 0; i < CASE_INPUTS; i++) {
        char in[] = {'i', 'n', ' ', (char)('a' + i), '\0'};
        if (inputs[i].values) print_array(in, &inputs[i], case_wants(c, i));
    }
    print_array("y", &r->y, r->dy.values != NULL);
    if (r->dy.values) print_array("dy", &r->dy, 0);
    for (int i = 0; i < CASE_INPUTS; i++) {
        what[sizeof(what) - 2] = (char)('a' + i);
        if (r->has_grad[i]) print_array(what, &r->grads[i], 0);
    }
}

bool case_dump(cairn_env *env, const struct family *family, const struct op_case *c, char why[CASE_WHY]) {
    bool is_run = true;
    printf("case\t%s\t%s\t%016llx\t%.9g\t%s\n", family->name, c->name, (unsigned long long)hash_of(c),
           c->tolerance > 0 ? c->tolerance : 1, c->torch ? c->torch : "");
    for (int i = 0; is_run && c->torch && i < CASE_TYPES; i++) {
        const struct case_how how = {case_types[i], DENSE, EVERY_GRADIENT};
        struct case_array inputs[CASE_INPUTS];
        struct case_result result;
        case_draw(c, case_types[i], inputs);
        is_run = case_run(env, c, inputs, &how, &result, why);
        printf("type %s\n", cairn_dtype_name(case_types[i]));
        if (is_run) print_result(c, inputs, &result);
        case_result_free(&result);
        case_arrays_free(inputs, CASE_INPUTS);
    }
    return is_run;
}

/* ---- stored ---- */

static cairn_dtype dtype_named(const char *name) {
    for (int t = 1; cairn__is_tensor_dtype((cairn_dtype)t); t++) {
        if (strcmp(cairn_dtype_name((cairn_dtype)t), name) == 0) return (cairn_dtype)t;
    }
    return (cairn_dtype)0;
}

static double value_of(cairn_dtype type, const char *digits) {
    char text[17] = "";
    double value = 0;
    memcpy(text, digits, 2 * cairn_dtype_nbytes(type));
    const uint64_t bits = strtoull(text, NULL, 16); /* the element is its first bytes */
    cairn__convert(&value, CAIRN_F64, &bits, type, 1);
    return value;
}

/* name: "y", or an input's letter. */
static const struct case_array *array_named(const struct case_result *r, const char *name) {
    const int i = name[0] - 'a';
    if (strcmp(name, "y") == 0) return &r->y;
    return i >= 0 && i < CASE_INPUTS && r->has_grad[i] ? &r->grads[i] : NULL;
}

static bool meets_array(const struct op_case *c, const struct case_result *r, const char *name, cairn_dtype type,
                        const char *digits, char why[CASE_WHY]) {
    const struct case_array *a = array_named(r, name);
    const size_t width = 2 * cairn_dtype_nbytes(type), length = strspn(digits, "0123456789abcdef");
    const size_t count = length / width;
    if (!a || a->dtype != type || length % width != 0 || count > a->n || (count == 0) != (a->n == 0)) {
        snprintf(why, CASE_WHY, "PyTorch's %s is a %s of another size", name, cairn_dtype_name(type));
        return false;
    }
    for (size_t k = 0; k < count; k++) {
        const size_t i = k * a->n / count;
        const double want = value_of(type, digits + k * width);
        if (case_is_near(a->values[i], want, case_limit(c, type))) continue;
        snprintf(why, CASE_WHY, "%s of %s, element %zu: %.9g, PyTorch's %.9g", name, cairn_dtype_name(type), i,
                 a->values[i], want);
        return false;
    }
    return true;
}

/* Compares a stored array with the result of its type, which is computed at the first line of that type. */
struct stored {
    cairn_dtype type;
    struct case_result result;
};

static bool meets_line(cairn_env *env, const struct op_case *c, const char *line, struct stored *s,
                       char why[CASE_WHY]) {
    char type[8] = "", name[8] = "", own[8] = "";
    int used = 0;
    if (sscanf(line, "%7s %7s %7s%n", type, name, own, &used) != 3 || !dtype_named(own)) {
        snprintf(why, CASE_WHY, "an unknown line of the vectors: %.60s", line);
        return false;
    }
    if (dtype_named(type) != s->type) {
        struct case_array inputs[CASE_INPUTS];
        s->type = dtype_named(type);
        case_result_free(&s->result);
        const struct case_how how = {s->type, DENSE, EVERY_GRADIENT};
        case_draw(c, s->type, inputs);
        const bool is_run = case_run(env, c, inputs, &how, &s->result, why);
        case_arrays_free(inputs, CASE_INPUTS);
        if (!is_run) return false;
    }
    return meets_array(c, &s->result, name, dtype_named(own), line + used + (line[used] == ' '), why);
}

bool case_meets_vectors(cairn_env *env, const struct op_case *c, const char *vectors, bool *found, char why[CASE_WHY]) {
    char head[256];
    const int length = snprintf(head, sizeof(head), "\ncase %s\t", c->name);
    const char *line = strstr(vectors, head);
    struct stored s = {.type = (cairn_dtype)0};
    *found = line != NULL;
    if (!line) return true;
    if (strtoull(line + length, NULL, 16) != hash_of(c)) {
        snprintf(why, CASE_WHY, "the vectors are of other inputs: run torch_ops.py --store");
        return false;
    }
    bool agrees = true;
    for (line = strchr(line + 1, '\n'); agrees && line && line[1] && strncmp(line, "\ncase ", 6) != 0;
         line = strchr(line + 1, '\n')) {
        agrees = meets_line(env, c, line + 1, &s, why);
    }
    case_result_free(&s.result);
    return agrees;
}
