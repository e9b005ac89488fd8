/* Arrays of .npy files as a dataset. */
#include <inttypes.h>

#include "cairn/datasets.h"
#include "cairn/npy.h"
#include "core/alloc.h"
#include "core/status.h"

struct arrays {
    int count;
    cairn_npy *at[CAIRN_MAX_FIELDS];
};

static cairn_status read_row(const cairn_npy *x, int64_t row, cairn_fields *example) {
    int64_t shape[CAIRN_MAX_DIMS] = {0};
    const int ndim = cairn_npy_ndim(x) - 1;
    const size_t nbytes = cairn_npy_row_nbytes(x);
    const cairn_dtype dtype = cairn_npy_dtype(x);
    void *values;
    cairn_status st = CAIRN_OK;
    for (int d = 0; d < ndim; d++) shape[d] = cairn_npy_size(x, 1 + d);
    TRY(cairn_fields_add(example, dtype == CAIRN_U8 ? CAIRN_I32 : dtype, ndim, shape, &values));
    if (dtype != CAIRN_U8) {
        TRY(cairn_npy_read_rows(x, &row, 1, values, nbytes));
    } else { /* reads bytes into the end of the memory for the i32 values, then widens them in place */
        unsigned char *bytes = (unsigned char *)values + 3 * nbytes;
        TRY(cairn_npy_read_rows(x, &row, 1, bytes, nbytes));
        for (size_t i = 0; i < nbytes; i++) ((int32_t *)values)[i] = bytes[i];
    }
out:
    return st;
}

static cairn_status read_example(void *self, int64_t index, struct cairn_random *random, cairn_fields *example) {
    const struct arrays *a = self;
    cairn_status st = CAIRN_OK;
    (void)random;
    for (int i = 0; i < a->count; i++) TRY(read_row(a->at[i], index, example));
out:
    return st;
}

static void destroy(void *self) {
    struct arrays *a = self;
    for (int i = 0; i < a->count; i++) cairn_npy_destroy(&a->at[i]);
    cairn__free(a);
}

static cairn_status check(const struct arrays *a, const char *const *paths, int i) {
    const int ndim = cairn_npy_ndim(a->at[i]);
    REQUIRE(ndim >= 1, CAIRN_EINVAL, "%s: an array without dimensions; its rows are to be examples", paths[i]);
    REQUIRE(ndim <= CAIRN_MAX_DIMS, CAIRN_EINVAL, "%s: %d dimensions; a batch may have %d", paths[i], ndim,
            CAIRN_MAX_DIMS);
    REQUIRE(cairn_npy_size(a->at[i], 0) == cairn_npy_size(a->at[0], 0), CAIRN_EINVAL,
            "%s has %" PRId64 " rows, but %s has %" PRId64 "; row i of each is to be example i", paths[i],
            cairn_npy_size(a->at[i], 0), paths[0], cairn_npy_size(a->at[0], 0));
    return CAIRN_OK;
}

cairn_status cairn_npy_dataset_create(const char *const *paths, int count, cairn_dataset **out) {
    struct arrays *a = NULL;
    cairn_status st = CAIRN_OK;
    REQUIRE(paths && out, CAIRN_EINVAL, "cairn_npy_dataset_create: paths and out must be set");
    REQUIRE(count >= 1 && count <= CAIRN_MAX_FIELDS, CAIRN_EINVAL,
            "cairn_npy_dataset_create: count is %d; it must be from 1 to %d", count, CAIRN_MAX_FIELDS);
    TRY(cairn__calloc(1, sizeof(*a), (void **)&a));
    for (int i = 0; i < count; i++) {
        TRY(cairn_npy_open(paths[i], &a->at[i]));
        a->count = i + 1;
        TRY(check(a, paths, i));
    }
    TRY(cairn_dataset_create(a, cairn_npy_size(a->at[0], 0),
                             cairn_dataset_functions(.read = read_example, .destroy = destroy), out));
    return CAIRN_OK;
out:
    if (a) destroy(a);
    return st;
}
