/* Arrays in NumPy's .npy files, as numpy.save writes them.
 *
 *     CAIRN_CHECK(cairn_npy_open("x.npy", &x));
 *     CAIRN_CHECK(cairn_npy_expect(x, CAIRN_F32, CAIRN_SHAPE(-1, 64)));
 *     CAIRN_CHECK(cairn_npy_read_rows(x, batch, n, rows, sizeof(rows)));     batch: indices from a sampler
 *
 * A row is the subarray at one index of the first dimension: of an array [N, 3, 32, 32], an array [3, 32, 32]. Files
 * are read with pread and never mapped: if a file is truncated while it is used, the call returns an error with its
 * name, and there is no SIGBUS.
 * Types: '<f8', '<f4', '<f2', '<i8', '<i4', '|u1' and '|b1' are f64, f32, f16, i64, i32, u8 and bool. Anything else
 * (big-endian, Fortran order, objects, structures, complex numbers) is an error that says what to do.
 * Source: NumPy's NEP 1 and numpy.lib.format, versions 1.0, 2.0 and 3.0 of the format.
 * Threads: cairn_npy_read_rows, cairn_npy_read and the getters may be called by several threads concurrently. */
#ifndef CAIRN_NPY_H
#define CAIRN_NPY_H

#include "core.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cairn_npy cairn_npy;

/* Opens a file and reads its header.
 * Errors, each with the path: CAIRN_EINVAL not an .npy file, a broken header, an array of a kind that Cairn does not
 * read, or a file shorter than its header says; CAIRN_ESYSTEM it cannot be opened or read; CAIRN_ENOMEM. */
CAIRN_API cairn_status cairn_npy_open(const char *path, cairn_npy **out);

CAIRN_API void cairn_npy_destroy(cairn_npy **npy);

/* The type, the number of dimensions, and the size of one dimension (negative: counted from the end). For NULL they
 * return 0, -1 and -1; cairn_npy_size returns -1 for a dimension that does not exist. */
CAIRN_API cairn_dtype cairn_npy_dtype(const cairn_npy *npy);
CAIRN_API int cairn_npy_ndim(const cairn_npy *npy);
CAIRN_API int64_t cairn_npy_size(const cairn_npy *npy, int dim);

/* Bytes of a row; of the whole array if it has no dimensions. */
CAIRN_API size_t cairn_npy_row_nbytes(const cairn_npy *npy);

/* Checks the type and shape that the program expects; -1 in shape matches any size.
 * Errors: CAIRN_EINVAL with the path, and both types and shapes. */
CAIRN_API cairn_status cairn_npy_expect(const cairn_npy *npy, cairn_dtype dtype, int ndim, const int64_t *shape);

/* Reads rows[0], ..., rows[n - 1] into values, one after the other, in the file's type. nbytes is the size of values,
 * at least n rows. Adjacent rows are read in one piece.
 * Errors: CAIRN_EINVAL NULL, a row that does not exist, nbytes too small, or a truncated file; CAIRN_ESYSTEM. values is
 * then undefined. Cost: two system calls for each run of adjacent rows. */
CAIRN_API cairn_status cairn_npy_read_rows(const cairn_npy *npy, const int64_t *rows, size_t n, void *values,
                                           size_t nbytes);

/* Reads rows first, ..., first + n - 1; for an array without dimensions first is 0 and n is 1. */
CAIRN_API cairn_status cairn_npy_read(const cairn_npy *npy, int64_t first, size_t n, void *values, size_t nbytes);

#ifdef __cplusplus
}
#endif

#endif
