/* Tensors as text, as torch prints them.
 * Source: torch/_tensor_str.py of PyTorch 1.13: four digits after the point; no point where all floats are integers but
 * one at the end; powers of ten where the values are more than a factor of 1000 apart, above 1e8 or (with fractions)
 * below 1e-4; lines of 80 columns. Unlike torch, shape and type are always written. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/convert.h"
#include "core/dtype.h"
#include "core/status.h"
#include "nn/tensor.h"

enum { EDGE = 3, WHOLE = 1000, LINE = 80, PRECISION = 4, VALUE_TEXT = 400 };

static const char HEAD[] = "tensor(";

union value {
    double real;
    int64_t integer;
};

struct format {
    const cairn_tensor *t;
    cairn_dtype dtype;
    bool summarizes;
    union value *values; /* the values shown, in order, and the index of the next one to write */
    size_t count, next;
    bool has_fractions, has_powers;
    int width;

    char *text;
    size_t nbytes, used; /* used also counts what did not fit */
    int column;
};

/* ---- the values ---- */

static bool is_cut(const struct format *f, int dim) {
    return f->summarizes && f->t->shape[dim] > 2 * EDGE;
}

static int64_t shown(const struct format *f, int dim) {
    return is_cut(f, dim) ? 2 * EDGE : f->t->shape[dim];
}

/* The index, along dim, of the i-th element shown. */
static int64_t place(const struct format *f, int dim, int64_t i) {
    return is_cut(f, dim) && i >= EDGE ? f->t->shape[dim] - 2 * EDGE + i : i;
}

static cairn_status load_value(struct format *f, int64_t offset, union value *out) {
    uint64_t element = 0;
    const size_t nbytes = cairn_dtype_nbytes(f->dtype);
    const char *data = cairn__tensor_data(f->t);
    cairn_status st = CAIRN_OK;
    TRY(cairn__device_download(f->t->env->device, &element, data + (size_t)offset * nbytes, nbytes));
    if (cairn__dtype(f->dtype)->is_float) {
        cairn__convert(&out->real, CAIRN_F64, &element, f->dtype, 1);
    } else {
        cairn__convert(&out->integer, CAIRN_I64, &element, f->dtype, 1);
    }
out:
    return st;
}

/* Loads one value at a time: few are shown, and they need not be dense. */
static cairn_status load_values(struct format *f, int dim, int64_t offset) {
    cairn_status st = CAIRN_OK;
    if (dim == f->t->ndim) return load_value(f, offset, &f->values[f->count++]);
    for (int64_t i = 0; i < shown(f, dim); i++)
        TRY(load_values(f, dim + 1, offset + place(f, dim, i) * f->t->stride[dim]));
out:
    return st;
}

/* ---- how they are written ---- */

static int write_value(const struct format *f, union value v, char text[VALUE_TEXT]) {
    const double x = v.real;
    if (f->dtype == CAIRN_BOOL) return snprintf(text, VALUE_TEXT, v.integer ? "True" : "False");
    if (!cairn__dtype(f->dtype)->is_float) return snprintf(text, VALUE_TEXT, "%lld", (long long)v.integer);
    if (isnan(x)) return snprintf(text, VALUE_TEXT, "nan");
    if (isinf(x)) return snprintf(text, VALUE_TEXT, x < 0 ? "-inf" : "inf");
    if (f->has_powers) return snprintf(text, VALUE_TEXT, "%.*e", PRECISION, x);
    return snprintf(text, VALUE_TEXT, f->has_fractions ? "%.*f" : "%.*f.", f->has_fractions ? PRECISION : 0, x);
}

/* Chooses by the finite values that are not 0. */
static void choose_notation(struct format *f) {
    double least = INFINITY, most = 0;
    for (size_t i = 0; i < f->count; i++) {
        const double x = fabs(f->values[i].real);
        if (!isfinite(x) || x == 0) continue;
        least = fmin(least, x);
        most = fmax(most, x);
        f->has_fractions |= x != floor(x);
    }
    if (most == 0) return;
    f->has_powers = most / least > 1000 || most > 1e8 || (f->has_fractions && least < 1e-4);
}

static void choose_width(struct format *f) {
    char text[VALUE_TEXT];
    const bool is_float = cairn__dtype(f->dtype)->is_float;
    f->width = 1;
    for (size_t i = 0; i < f->count; i++) {
        if (is_float && (!isfinite(f->values[i].real) || f->values[i].real == 0)) continue;
        const int width = write_value(f, f->values[i], text);
        if (width > f->width) f->width = width;
    }
}

/* ---- the text ---- */

static void put(struct format *f, const char *text) {
    for (; *text; text++) {
        if (f->used + 1 < f->nbytes) f->text[f->used] = *text;
        f->used++;
        f->column = *text == '\n' ? 0 : f->column + 1;
    }
}

static void put_times(struct format *f, const char *text, int times) {
    for (int i = 0; i < times; i++) put(f, text);
}

static void new_lines(struct format *f, int lines, int indent) {
    put(f, ",");
    put_times(f, "\n", lines);
    put_times(f, " ", indent);
}

static void put_next(struct format *f) {
    char text[VALUE_TEXT];
    const int width = write_value(f, f->values[f->next++], text);
    put_times(f, " ", f->width - width);
    put(f, text);
}

/* Writes the innermost dimension, with as many values a line as fit; "..." takes the width of one. */
static void put_row(struct format *f, int dim, int indent) {
    const int64_t cut = is_cut(f, dim), n = shown(f, dim) + cut;
    const int fit = (LINE - indent) / (f->width + 2), in_line = fit > 1 ? fit : 1;
    put(f, "[");
    for (int64_t i = 0; i < n; i++) {
        if (i > 0 && i % in_line == 0) {
            new_lines(f, 1, indent + 1);
        } else if (i > 0) {
            put(f, ", ");
        }
        if (cut && i == EDGE) {
            put(f, " ...");
        } else {
            put_next(f);
        }
    }
    put(f, "]");
}

static void put_values(struct format *f, int dim, int indent) {
    const cairn_tensor *t = f->t;
    if (t->ndim == 0) {
        put_next(f);
    } else if (dim == t->ndim - 1) {
        put_row(f, dim, indent);
    } else {
        put(f, "[");
        for (int64_t i = 0; i < shown(f, dim); i++) {
            if (i > 0) new_lines(f, t->ndim - dim - 1, indent + 1);
            if (is_cut(f, dim) && i == EDGE) {
                put(f, "...");
                new_lines(f, t->ndim - dim - 1, indent + 1);
            }
            put_values(f, dim + 1, indent + 1);
        }
        put(f, "]");
    }
}

static void put_fact(struct format *f, const char *name, const char *value) {
    const int width = (int)(strlen(name) + strlen(value));
    if (f->column + width + 3 > LINE) {
        new_lines(f, 1, (int)strlen(HEAD));
    } else {
        put(f, ", ");
    }
    put(f, name);
    put(f, value);
}

static void put_all(struct format *f) {
    char shape[CAIRN__SHAPE_TEXT];
    put(f, HEAD);
    if (f->t->n == 0) {
        put(f, "[]");
    } else {
        put_values(f, 0, (int)strlen(HEAD));
    }
    put_fact(f, "shape=", cairn__shape_text(f->t, shape));
    put_fact(f, "dtype=", cairn_dtype_name(f->dtype));
    put(f, ")");
    if (f->nbytes > 0) f->text[f->used < f->nbytes ? f->used : f->nbytes - 1] = '\0';
}

/* ---- the calls ---- */

static cairn_status format(const cairn_tensor *t, char *text, size_t nbytes, size_t *length) {
    REQUIRE(t && (text || nbytes == 0), CAIRN_EINVAL, "format: tensor and text must be set");
    struct format f = {.t = t, .text = text, .nbytes = nbytes};
    size_t count = t->n > 0;
    cairn_status st = CAIRN_OK;
    TRY(cairn__tensor_check(t, "format"));
    f.dtype = cairn__tensor_dtype(t);
    f.summarizes = t->n > WHOLE;
    for (int d = 0; d < t->ndim; d++) count *= (size_t)shown(&f, d);
    TRY(cairn__calloc(count, sizeof(f.values[0]), (void **)&f.values));
    TRY(cairn__tensor_failure(t));
    if (t->n > 0) TRY(load_values(&f, 0, 0));
    if (cairn__dtype(f.dtype)->is_float) choose_notation(&f);
    choose_width(&f);
    put_all(&f);
    *length = f.used;
out:
    cairn__free(f.values);
    return st;
}

int cairn_tensor_format(const cairn_tensor *t, char *text, size_t nbytes) {
    size_t length = 0;
    return format(t, text, nbytes, &length) == CAIRN_OK ? (int)length : -1;
}

cairn_status cairn_tensor_print(const cairn_tensor *t) {
    cairn_status st = CAIRN_OK;
    char *text = NULL;
    size_t length = 0;
    if (!t && cairn__last_status() != CAIRN_OK) return cairn__last_status();
    TRY(format(t, NULL, 0, &length));
    TRY(cairn__alloc(length + 1, (void **)&text));
    TRY(format(t, text, length + 1, &length));
    fputs(text, stdout);
    fputc('\n', stdout);
out:
    cairn__free(text);
    return st;
}
