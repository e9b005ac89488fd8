/* Fields of examples and batches, and collation. */
#include "data/fields.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/status.h"

enum { SHAPE_TEXT = CAIRN_MAX_DIMS * 22 + 3 };

cairn_status cairn_fields_create(cairn_fields **out) {
    REQUIRE(out, CAIRN_EINVAL, "cairn_fields_create: out is NULL");
    return cairn__calloc(1, sizeof(**out), (void **)out);
}

void cairn_fields_clear(cairn_fields *fields) {
    if (fields) fields->count = 0;
}

void cairn_fields_destroy(cairn_fields **fields) {
    if (!fields || !*fields) return;
    for (int i = 0; i < CAIRN_MAX_FIELDS; i++) cairn__free((*fields)->memory[i].data);
    cairn__free(*fields);
    *fields = NULL;
}

/* ---- adding ---- */

static cairn_status measure(const cairn_fields *fields, struct cairn_field *f, const int64_t *shape) {
    size_t n = 1;
    bool is_empty = false;
    REQUIRE(fields->count < CAIRN_MAX_FIELDS, CAIRN_EINVAL, "a field more than the %d that there may be",
            CAIRN_MAX_FIELDS);
    REQUIRE(cairn_dtype_nbytes(f->dtype) > 0, CAIRN_EINVAL, "field %d: dtype is %d; it must be an element type",
            fields->count, (int)f->dtype);
    REQUIRE(f->ndim >= 0 && f->ndim <= CAIRN_MAX_DIMS, CAIRN_EINVAL, "field %d: %d dimensions; 0 to %d are allowed",
            fields->count, f->ndim, CAIRN_MAX_DIMS);
    REQUIRE(shape || f->ndim == 0, CAIRN_EINVAL, "field %d: shape is NULL", fields->count);
    for (int d = 0; d < f->ndim; d++) {
        REQUIRE(shape[d] >= 0, CAIRN_EINVAL, "field %d: size %" PRId64 " in dimension %d", fields->count, shape[d], d);
        f->shape[d] = shape[d];
        is_empty |= shape[d] == 0;
        REQUIRE(shape[d] == 0 || n <= (size_t)INT64_MAX / 16 / (size_t)shape[d], CAIRN_EINVAL,
                "field %d: more elements than memory can hold: at most 2^59", fields->count);
        if (shape[d] > 0) n *= (size_t)shape[d];
    }
    f->nbytes = is_empty ? 0 : n * cairn_dtype_nbytes(f->dtype);
    return CAIRN_OK;
}

/* Grows by half more than needed, so that slowly growing sizes need few allocations. */
static cairn_status make_room(struct cairn__field_memory *m, size_t nbytes, void **data) {
    cairn_status st = CAIRN_OK;
    *data = m->pinned;
    if (m->pinned && m->pinned_nbytes >= nbytes) return CAIRN_OK;
    if (!m->data || m->nbytes < nbytes) {
        const size_t room = m->data || m->pinned ? nbytes + nbytes / 2 : nbytes;
        cairn__free(m->data);
        m->data = NULL;
        m->nbytes = 0;
        TRY(cairn__alloc(room, &m->data));
        m->nbytes = room;
    }
    *data = m->data;
out:
    return st;
}

cairn_status cairn_fields_add(cairn_fields *fields, cairn_dtype dtype, int ndim, const int64_t *shape, void **data) {
    struct cairn_field f = {.dtype = dtype, .ndim = ndim};
    cairn_status st = CAIRN_OK;
    REQUIRE(fields && data, CAIRN_EINVAL, "cairn_fields_add: fields and data must be set");
    TRY(measure(fields, &f, shape));
    TRY(make_room(&fields->memory[fields->count], f.nbytes, data));
    f.data = *data;
    fields->fields[fields->count++] = f;
out:
    return st;
}

cairn_status cairn_fields_add_values(cairn_fields *fields, cairn_dtype dtype, int ndim, const int64_t *shape,
                                     const void *values) {
    void *data;
    cairn_status st = CAIRN_OK;
    TRY(cairn_fields_add(fields, dtype, ndim, shape, &data));
    const size_t nbytes = fields->fields[fields->count - 1].nbytes;
    if (!values && nbytes > 0) {
        fields->count--;
        TRY(cairn__fail(CAIRN_EINVAL, "cairn_fields_add_values: values is NULL"));
    }
    if (nbytes > 0) memcpy(data, values, nbytes);
out:
    return st;
}

cairn_status cairn_fields_add_i64(cairn_fields *fields, int64_t value) {
    return cairn_fields_add_values(fields, CAIRN_I64, 0, NULL, &value);
}

cairn_status cairn__fields_add_text(cairn_fields *fields, const char *text, size_t n) {
    void *data;
    char *bytes;
    cairn_status st = CAIRN_OK;
    TRY(cairn_fields_add(fields, CAIRN_U8, 1, (int64_t[]){0}, &data));
    TRY(cairn__fields_grow_text(fields, n, &bytes));
    if (text) memcpy(bytes, text, n);
out:
    return st;
}

cairn_status cairn__fields_grow_text(cairn_fields *fields, size_t n, char **text) {
    struct cairn_field *f = &fields->fields[fields->count - 1];
    struct cairn__field_memory *m = &fields->memory[fields->count - 1];
    cairn_status st = CAIRN_OK;
    TRY(cairn__grow(&m->data, &m->nbytes, n + 1, 1));
    ((char *)m->data)[n] = 0;
    f->data = *text = m->data;
    f->nbytes = n;
    f->shape[0] = (int64_t)n;
out:
    return st;
}

int cairn_fields_count(const cairn_fields *fields) {
    return fields ? fields->count : 0;
}

const struct cairn_field *cairn_fields_at(const cairn_fields *fields, int i) {
    return fields && i >= 0 && i < fields->count ? &fields->fields[i] : NULL;
}

/* ---- collating ---- */

static const char *shape_text(const struct cairn_field *f, char text[SHAPE_TEXT]) {
    size_t used = (size_t)snprintf(text, SHAPE_TEXT, "[");
    for (int d = 0; d < f->ndim; d++)
        used += (size_t)snprintf(text + used, SHAPE_TEXT - used, "%s%" PRId64, d ? ", " : "", f->shape[d]);
    snprintf(text + used, SHAPE_TEXT - used, "]");
    return text;
}

cairn_status cairn__fields_check_count(const cairn_fields *const *examples, size_t n) {
    for (size_t i = 1; i < n; i++) {
        REQUIRE(examples[i]->count == examples[0]->count, CAIRN_EINVAL,
                "the first example of the batch has %d fields, and number %zu of it has %d", examples[0]->count, i,
                examples[i]->count);
    }
    return CAIRN_OK;
}

cairn_status cairn__fields_check_alike(const struct cairn_field *first, const struct cairn_field *f, int field,
                                       size_t i, int free) {
    char is[SHAPE_TEXT], wanted[SHAPE_TEXT];
    bool is_alike = f->dtype == first->dtype && f->ndim == first->ndim;
    for (int d = free; is_alike && d < f->ndim; d++) is_alike = f->shape[d] == first->shape[d];
    REQUIRE(is_alike, CAIRN_EINVAL,
            "field %d is %s of shape %s in the first example of the batch, and %s of shape %s in number %zu of it; %s",
            field, cairn_dtype_name(first->dtype), shape_text(first, wanted), cairn_dtype_name(f->dtype),
            shape_text(f, is), i,
            free ? "padding makes the first dimension alike, and no other"
                 : "make them alike, or use cairn_collate_pad");
    return CAIRN_OK;
}

cairn_status cairn__fields_stack(const cairn_fields *const *examples, size_t n, int field, cairn_fields *batch) {
    const struct cairn_field *first = &examples[0]->fields[field];
    int64_t shape[CAIRN_MAX_DIMS + 1] = {(int64_t)n};
    void *data;
    cairn_status st = CAIRN_OK;
    memcpy(shape + 1, first->shape, sizeof(first->shape));
    TRY(cairn_fields_add(batch, first->dtype, 1 + first->ndim, shape, &data));
    for (size_t i = 0; i < n; i++) {
        const struct cairn_field *f = &examples[i]->fields[field];
        TRY(cairn__fields_check_alike(first, f, field, i, 0));
        if (f->nbytes > 0) memcpy((char *)data + i * f->nbytes, f->data, f->nbytes);
    }
out:
    return st;
}

cairn_status cairn_collate_stack(void *ctx, const cairn_fields *const *examples, size_t n, cairn_fields *batch) {
    cairn_status st = CAIRN_OK;
    (void)ctx;
    REQUIRE(examples && n > 0 && batch, CAIRN_EINVAL, "cairn_collate_stack: examples, n and batch must be set");
    TRY(cairn__fields_check_count(examples, n));
    for (int field = 0; field < examples[0]->count; field++) TRY(cairn__fields_stack(examples, n, field, batch));
out:
    return st;
}
