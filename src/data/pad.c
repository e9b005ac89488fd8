/* Padding: examples of different lengths in one batch. */
#include <inttypes.h>
#include <string.h>

#include "core/alloc.h"
#include "core/convert.h"
#include "core/options.h"
#include "core/status.h"
#include "data/fields.h"

static bool is_padded(const struct cairn_pad_options *o, int field, const struct cairn_field *f) {
    return f->ndim > 0 && (o->fields == 0 || (o->fields >> field & 1) != 0);
}

/* The size of the first dimension of a field in the batch. */
static cairn_status find_length(const struct cairn_pad_options *o, const cairn_fields *const *examples, size_t n,
                                int field, int64_t *length) {
    int64_t most = 0;
    for (size_t i = 0; i < n; i++) {
        const int64_t size = examples[i]->fields[field].shape[0];
        REQUIRE(o->length == 0 || size <= o->length, CAIRN_EINVAL,
                "field %d of number %zu of the batch is %" PRId64 " long, and the batch %" PRId64
                "; make it shorter when it is read",
                field, i, size, o->length);
        if (size > most) most = size;
    }
    if (o->length > 0) most = o->length;
    const int64_t over = o->multiple_of > 1 ? most % o->multiple_of : 0;
    /* On overflow, adding the field fails. */
    if (over && __builtin_add_overflow(most, o->multiple_of - over, &most)) most = INT64_MAX;
    *length = most;
    return CAIRN_OK;
}

/* Fills n elements with one value. u8 is handled here, since no conversion supports it. */
static void fill(void *to, cairn_dtype dtype, double value, size_t n) {
    const size_t nbytes = cairn_dtype_nbytes(dtype);
    uint64_t one = 0;
    if (dtype == CAIRN_U8) {
        memset(to, value >= 255 ? 255 : value > 0 ? (int)value : 0, n);
        return;
    }
    if (value != 0) cairn__convert(&one, dtype, &value, CAIRN_F64, 1);
    if (value == 0) memset(to, 0, n * nbytes);
    for (size_t i = 0; value != 0 && i < n; i++) memcpy((char *)to + i * nbytes, &one, nbytes);
}

static cairn_status pad_field(const struct cairn_pad_options *o, const cairn_fields *const *examples, size_t n,
                              int field, cairn_fields *batch) {
    const struct cairn_field *first = &examples[0]->fields[field];
    int64_t shape[CAIRN_MAX_DIMS + 1] = {(int64_t)n};
    void *data;
    cairn_status st = CAIRN_OK;
    memcpy(shape + 1, first->shape, sizeof(first->shape));
    for (size_t i = 1; i < n; i++) TRY(cairn__fields_check_alike(first, &examples[i]->fields[field], field, i, 1));
    TRY(find_length(o, examples, n, field, &shape[1]));
    TRY(cairn_fields_add(batch, first->dtype, 1 + first->ndim, shape, &data));
    const size_t room = batch->fields[batch->count - 1].nbytes / n, element = cairn_dtype_nbytes(first->dtype);
    for (size_t i = 0; i < n; i++) {
        const struct cairn_field *f = &examples[i]->fields[field];
        char *to = (char *)data + i * room;
        if (f->nbytes > 0) memcpy(to, f->data, f->nbytes);
        fill(to + f->nbytes, f->dtype, o->values[field], (room - f->nbytes) / element);
    }
out:
    return st;
}

/* first: field 0 of the batch. */
static cairn_status add_mask(const struct cairn_pad_options *o, const cairn_fields *const *examples, size_t n,
                             int first, cairn_fields *batch) {
    const int field = o->mask_of;
    void *data;
    cairn_status st = CAIRN_OK;
    REQUIRE(field >= 0 && field < examples[0]->count && is_padded(o, field, &examples[0]->fields[field]), CAIRN_EINVAL,
            "cairn_pad_options.mask_of is %d, which is no field that is padded", field);
    const int64_t length = batch->fields[first + field].shape[1];
    TRY(cairn_fields_add(batch, CAIRN_BOOL, 2, (int64_t[]){(int64_t)n, length}, &data));
    for (size_t i = 0; i < n; i++) {
        const size_t real = (size_t)examples[i]->fields[field].shape[0], all = (size_t)length;
        char *row = (char *)data + i * all;
        memset(row, 1, real);
        memset(row + real, 0, all - real);
    }
out:
    return st;
}

cairn_status cairn_collate_pad(void *ctx, const cairn_fields *const *examples, size_t n, cairn_fields *batch) {
    struct cairn_pad_options o = *cairn_pad_options(.length = 0);
    cairn_status st = CAIRN_OK;
    REQUIRE(examples && n > 0 && batch, CAIRN_EINVAL, "cairn_collate_pad: examples, n and batch must be set");
    TRY(cairn__options_read(&o, sizeof(o), ctx, "cairn_pad_options"));
    REQUIRE(o.length >= 0 && o.multiple_of >= 0, CAIRN_EINVAL,
            "cairn_pad_options: length is %" PRId64 " and multiple_of %" PRId64 "; they must not be negative", o.length,
            o.multiple_of);
    REQUIRE(o.length == 0 || o.multiple_of <= 1 || o.length % o.multiple_of == 0, CAIRN_EINVAL,
            "cairn_pad_options: length is %" PRId64 ", which is no multiple of %" PRId64, o.length, o.multiple_of);
    REQUIRE(o.mask == CAIRN_DEFAULT || o.mask == CAIRN_ON || o.mask == CAIRN_OFF, CAIRN_EINVAL,
            "cairn_pad_options.mask is %d; it must be CAIRN_DEFAULT, CAIRN_ON or CAIRN_OFF", (int)o.mask);
    TRY(cairn__fields_check_count(examples, n));
    const int first = batch->count;
    for (int field = 0; field < examples[0]->count; field++) {
        if (is_padded(&o, field, &examples[0]->fields[field])) {
            TRY(pad_field(&o, examples, n, field, batch));
        } else {
            TRY(cairn__fields_stack(examples, n, field, batch));
        }
    }
    if (o.mask == CAIRN_ON) TRY(add_mask(&o, examples, n, first, batch));
out:
    return st;
}
