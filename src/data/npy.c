/* .npy files. A header is the text of a Python dictionary with three entries in any order. Forms that numpy never
 * writes are refused. */
#include <ctype.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "cairn/npy.h"
#include "core/alloc.h"
#include "core/status.h"
#include "data/file.h"

enum { MAGIC = 6, MAX_HEADER = 1 << 16, MAX_DIMS = 32, SHAPE_TEXT = 24 * MAX_DIMS };

struct cairn_npy {
    struct cairn__file file;
    cairn_dtype dtype;
    int ndim;
    int64_t shape[MAX_DIMS];
    int64_t begin; /* offset of the array in the file */
    int64_t rows;
    size_t row_nbytes;
};

/* ---- the header ---- */

struct text {
    const char *at; /* ends with 0 */
};

static void skip_spaces(struct text *t) {
    while (*t->at == ' ' || *t->at == '\n') t->at++;
}

static bool take(struct text *t, const char *word) {
    skip_spaces(t);
    if (strncmp(t->at, word, strlen(word)) != 0) return false;
    t->at += strlen(word);
    return true;
}

/* Reads 'text' or "text", without escapes, into out; false if there is none or it does not fit. */
static bool take_string(struct text *t, char *out, size_t nbytes) {
    skip_spaces(t);
    const char quote = *t->at;
    if (quote != '\'' && quote != '"') return false;
    const char *end = strchr(t->at + 1, quote);
    const size_t n = end ? (size_t)(end - t->at - 1) : nbytes;
    if (n >= nbytes || memchr(t->at, '\\', n + 1)) return false;
    memcpy(out, t->at + 1, n);
    out[n] = 0;
    t->at = end + 1;
    return true;
}

/* Reads "(3, 4)", "(3,)" or "()"; Python 2 wrote 3L. */
static bool take_shape(struct text *t, cairn_npy *f) {
    if (!take(t, "(")) return false;
    f->ndim = 0;
    while (!take(t, ")")) {
        int64_t size = 0;
        skip_spaces(t);
        if (!isdigit((unsigned char)*t->at) || f->ndim == MAX_DIMS) return false;
        for (; isdigit((unsigned char)*t->at); t->at++) {
            if (__builtin_mul_overflow(size, 10, &size) || __builtin_add_overflow(size, *t->at - '0', &size))
                return false;
        }
        (void)take(t, "L");
        f->shape[f->ndim++] = size;
        if (!take(t, ",")) return take(t, ")");
    }
    return true;
}

static const struct {
    const char *descr;
    cairn_dtype dtype;
} types[] = {{"<f8", CAIRN_F64}, {"<f4", CAIRN_F32}, {"<f2", CAIRN_F16}, {"<i8", CAIRN_I64},
             {"<i4", CAIRN_I32}, {"|u1", CAIRN_U8},  {"|b1", CAIRN_BOOL}};
enum { TYPES = sizeof(types) / sizeof(types[0]) };

static cairn_status read_type(cairn_npy *f, const char *descr) {
    for (int i = 0; i < TYPES; i++) {
        if (strcmp(descr, types[i].descr) == 0) f->dtype = types[i].dtype;
    }
    if (f->dtype) return CAIRN_OK;
    if (strchr(descr, 'O'))
        return cairn__fail(
            CAIRN_EINVAL, "%s: an array of Python objects ('%s'), which only Python can read; save an array of numbers",
            f->file.path, descr);
    if (descr[0] == '>')
        return cairn__fail(CAIRN_EINVAL, "%s: big-endian ('%s'); save x.astype(x.dtype.newbyteorder('<')) instead",
                           f->file.path, descr);
    return cairn__fail(CAIRN_EINVAL,
                       "%s: type '%s'; Cairn reads '<f8', '<f4', '<f2', '<i8', '<i4', '|u1' and '|b1'; save "
                       "x.astype('<f4'), for example",
                       f->file.path, descr);
}

static cairn_status parse(cairn_npy *f, const char *header, size_t nbytes) {
    struct text t = {header};
    char key[32], descr[128] = "";
    bool is_fortran = false, has_order = false, has_shape = false, is_whole = take(&t, "{");
    while (is_whole && !take(&t, "}")) {
        is_whole = take_string(&t, key, sizeof(key)) && take(&t, ":");
        if (is_whole && strcmp(key, "descr") == 0) {
            skip_spaces(&t);
            REQUIRE(*t.at != '[', CAIRN_EINVAL, "%s: a structured array; save its fields as arrays of their own",
                    f->file.path);
            is_whole = take_string(&t, descr, sizeof(descr));
        } else if (is_whole && strcmp(key, "fortran_order") == 0) {
            is_fortran = take(&t, "True");
            is_whole = has_order = is_fortran || take(&t, "False");
        } else if (is_whole && strcmp(key, "shape") == 0) {
            is_whole = has_shape = take_shape(&t, f);
        } else {
            is_whole = false;
        }
        if (is_whole && !take(&t, ",")) {
            is_whole = take(&t, "}");
            break;
        }
    }
    skip_spaces(&t);
    REQUIRE(is_whole && t.at == header + nbytes && descr[0] && has_order && has_shape, CAIRN_EINVAL,
            "%s: its header is not in the form that numpy.save writes", f->file.path);
    REQUIRE(!is_fortran || f->ndim < 2, CAIRN_EINVAL, "%s: in Fortran order; save numpy.ascontiguousarray(x) instead",
            f->file.path);
    return read_type(f, descr);
}

static cairn_status read_header(cairn_npy *f) {
    unsigned char head[MAGIC + 2 + 4] = {0};
    cairn_status st = CAIRN_OK;
    char *text = NULL;
    TRY(cairn__file_read_at(&f->file, head, MAGIC + 2 + 2, 0));
    const bool is_npy = memcmp(head, "\x93NUMPY", MAGIC) == 0, is_short = head[MAGIC] == 1;
    TRY(is_npy ? CAIRN_OK : cairn__fail(CAIRN_EINVAL, "%s: not an .npy file", f->file.path));
    if (head[MAGIC] < 1 || head[MAGIC] > 3 || head[MAGIC + 1] != 0)
        TRY(cairn__fail(CAIRN_EINVAL, "%s: version %d.%d of the format; Cairn reads 1.0 to 3.0", f->file.path,
                        head[MAGIC], head[MAGIC + 1]));
    const size_t before = MAGIC + 2 + (is_short ? 2 : 4);
    TRY(cairn__file_read_at(&f->file, head, before, 0));
    uint32_t nbytes = head[MAGIC + 2] | (uint32_t)head[MAGIC + 3] << 8;
    if (!is_short) nbytes |= (uint32_t)head[MAGIC + 4] << 16 | (uint32_t)head[MAGIC + 5] << 24;
    TRY(nbytes <= MAX_HEADER ? CAIRN_OK
                             : cairn__fail(CAIRN_EINVAL, "%s: its header has %" PRIu32 " bytes; Cairn reads up to %d",
                                           f->file.path, nbytes, (int)MAX_HEADER));
    TRY(cairn__calloc(nbytes + 1, 1, (void **)&text));
    TRY(cairn__file_read_at(&f->file, text, nbytes, (int64_t)before));
    f->begin = (int64_t)before + nbytes;
    TRY(parse(f, text, nbytes));
out:
    cairn__free(text);
    return st;
}

/* Sizes are untrusted: their product may overflow, or exceed the file. */
static cairn_status measure(cairn_npy *f) {
    int64_t nbytes = (int64_t)cairn_dtype_nbytes(f->dtype), all;
    bool fits = true, is_empty = false;
    for (int i = 0; i < f->ndim; i++) is_empty |= f->shape[i] == 0;
    for (int i = 1; fits && i < f->ndim; i++)
        fits = !__builtin_mul_overflow(nbytes, is_empty ? 1 : f->shape[i], &nbytes);
    f->rows = f->ndim ? f->shape[0] : 1;
    f->row_nbytes = is_empty ? 0 : (size_t)nbytes;
    fits = fits && !__builtin_mul_overflow(nbytes, is_empty ? 0 : f->rows, &all);
    REQUIRE(fits && all <= f->file.nbytes - f->begin, CAIRN_EINVAL,
            "%s: %" PRId64 " bytes, fewer than its header declares; the file may have been truncated", f->file.path,
            f->file.nbytes);
    return CAIRN_OK;
}

cairn_status cairn_npy_open(const char *path, cairn_npy **out) {
    REQUIRE(path && out, CAIRN_EINVAL, "cairn_npy_open: path and out must be set");
    cairn_status st = CAIRN_OK;
    cairn_npy *f = NULL;
    TRY(cairn__calloc(1, sizeof(*f), (void **)&f));
    f->file.fd = -1;
    TRY(cairn__file_open(&f->file, path));
    TRY(read_header(f));
    TRY(measure(f));
    *out = f;
    return CAIRN_OK;
out:
    cairn_npy_destroy(&f);
    return st;
}

void cairn_npy_destroy(cairn_npy **npy) {
    if (!npy || !*npy) return;
    cairn__file_close(&(*npy)->file);
    cairn__free(*npy);
    *npy = NULL;
}

/* ---- facts ---- */

cairn_dtype cairn_npy_dtype(const cairn_npy *npy) {
    return npy ? npy->dtype : (cairn_dtype)0;
}

int cairn_npy_ndim(const cairn_npy *npy) {
    return npy ? npy->ndim : -1;
}

int64_t cairn_npy_size(const cairn_npy *npy, int dim) {
    if (npy && dim < 0) dim += npy->ndim;
    return npy && dim >= 0 && dim < npy->ndim ? npy->shape[dim] : -1;
}

size_t cairn_npy_row_nbytes(const cairn_npy *npy) {
    return npy ? npy->row_nbytes : 0;
}

static const char *write_shape(char text[SHAPE_TEXT], int ndim, const int64_t *shape) {
    size_t used = (size_t)snprintf(text, SHAPE_TEXT, "[");
    for (int i = 0; i < ndim && used < SHAPE_TEXT; i++) {
        const char *comma = i ? ", " : "";
        used += (size_t)(shape[i] < 0 ? snprintf(text + used, SHAPE_TEXT - used, "%s*", comma)
                                      : snprintf(text + used, SHAPE_TEXT - used, "%s%" PRId64, comma, shape[i]));
    }
    if (used < SHAPE_TEXT) snprintf(text + used, SHAPE_TEXT - used, "]");
    return text;
}

cairn_status cairn_npy_expect(const cairn_npy *npy, cairn_dtype dtype, int ndim, const int64_t *shape) {
    char is[SHAPE_TEXT], wanted[SHAPE_TEXT];
    REQUIRE(npy && (shape || ndim == 0), CAIRN_EINVAL, "cairn_npy_expect: npy and shape must be set");
    REQUIRE(ndim >= 0 && ndim <= MAX_DIMS, CAIRN_EINVAL, "cairn_npy_expect: ndim is %d; it must be from 0 to %d", ndim,
            (int)MAX_DIMS);
    bool fits = npy->dtype == dtype && npy->ndim == ndim;
    for (int i = 0; fits && i < ndim; i++) fits = shape[i] < 0 || shape[i] == npy->shape[i];
    REQUIRE(fits, CAIRN_EINVAL, "%s: has %s of shape %s, but the program expects %s of shape %s", npy->file.path,
            cairn_dtype_name(npy->dtype), write_shape(is, npy->ndim, npy->shape), cairn_dtype_name(dtype),
            write_shape(wanted, ndim, shape));
    return CAIRN_OK;
}

/* ---- rows ---- */

cairn_status cairn_npy_read_rows(const cairn_npy *npy, const int64_t *rows, size_t n, void *values, size_t nbytes) {
    REQUIRE(npy && ((rows && values) || n == 0), CAIRN_EINVAL, "cairn_npy_read_rows: npy, rows and values must be set");
    REQUIRE(npy->row_nbytes == 0 || n <= nbytes / npy->row_nbytes, CAIRN_EINVAL,
            "%s: nbytes is %zu, but %zu rows of %zu bytes are to be read", npy->file.path, nbytes, n, npy->row_nbytes);
    for (size_t i = 0; i < n; i++) {
        REQUIRE(rows[i] >= 0 && rows[i] < npy->rows, CAIRN_EINVAL,
                "%s: row is %" PRId64 ", but the file has %" PRId64 " rows", npy->file.path, rows[i], npy->rows);
    }
    for (size_t i = 0, run; i < n; i += run) {
        for (run = 1; i + run < n && rows[i + run] == rows[i] + (int64_t)run;) run++;
        const cairn_status st =
            cairn__file_read_at(&npy->file, (char *)values + i * npy->row_nbytes, run * npy->row_nbytes,
                                npy->begin + rows[i] * (int64_t)npy->row_nbytes);
        if (st != CAIRN_OK) return st;
    }
    return CAIRN_OK;
}

cairn_status cairn_npy_read(const cairn_npy *npy, int64_t first, size_t n, void *values, size_t nbytes) {
    REQUIRE(npy && (values || n == 0), CAIRN_EINVAL, "cairn_npy_read: npy and values must be set");
    REQUIRE(first >= 0 && first <= npy->rows && n <= (uint64_t)(npy->rows - first), CAIRN_EINVAL,
            "%s: %zu rows from %" PRId64 " on, but the file has %" PRId64 " rows", npy->file.path, n, first, npy->rows);
    REQUIRE(npy->row_nbytes == 0 || n <= nbytes / npy->row_nbytes, CAIRN_EINVAL,
            "%s: nbytes is %zu, but %zu rows of %zu bytes are to be read", npy->file.path, nbytes, n, npy->row_nbytes);
    return cairn__file_read_at(&npy->file, values, n * npy->row_nbytes, npy->begin + first * (int64_t)npy->row_nbytes);
}
