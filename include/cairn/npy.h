/* Arrays in NumPy's .npy files, as numpy.save writes them.
 *
 *     CAIRN_CHECK(cairn_npy_open("x.npy", &x));
 *     CAIRN_CHECK(cairn_npy_expect(x, CAIRN_F32, CAIRN_SHAPE(-1, 64)));
 *     CAIRN_CHECK(cairn_npy_read_rows(x, batch, n, rows, sizeof(rows)));     rows of a sampler's numbers
 *
 * A row is what one number of the first dimension names: of shape [N, 3, 32, 32] an array [3, 32, 32]. Files are read
 * by pread and never mapped: one that is cut while it is used is an error with its name, and not SIGBUS.
 * Types: '<f8', '<f4', '<f2', '<i8', '<i4', '|u1' and '|b1' are f64, f32, f16, i64, i32, u8 and bool. Everything else
 * (big-endian, Fortran order, objects, structures, complex numbers) is an error that says what to do.
 * Source: NumPy's NEP 1 and numpy.lib.format, versions 1.0, 2.0 and 3.0 of the format.
 * Threads: cairn_npy_read_rows and the facts may be called by several threads at a time. */
#ifndef CAIRN_NPY_H
#define CAIRN_NPY_H

#include "core.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct cairn_npy cairn_npy;

/* Opens a file and reads its header.
 * Errors, each with the path: CAIRN_EINVAL not an .npy file, a header that is broken, or an array Cairn does not read;
 * or shorter than its header says; CAIRN_ESYSTEM it cannot be opened or read; CAIRN_ENOMEM. */
CAIRN_API cairn_status cairn_npy_open(const char *path, cairn_npy **out);

CAIRN_API void cairn_npy_destroy(cairn_npy **npy);

/* Its type, dimensions, and the size of one of them (a negative one counts from the end); 0, -1 and -1 for NULL, and -1
 * where there is no such dimension. */
CAIRN_API cairn_dtype cairn_npy_dtype(const cairn_npy *npy);
CAIRN_API int cairn_npy_ndim(const cairn_npy *npy);
CAIRN_API int64_t cairn_npy_size(const cairn_npy *npy, int dim);

/* Bytes of a row: all of the array where it has no dimension. */
CAIRN_API size_t cairn_npy_row_nbytes(const cairn_npy *npy);

/* Checks what the program relies on: type and shape, in which -1 stands for any size.
 * Errors: CAIRN_EINVAL with the path, and both types and shapes. */
CAIRN_API cairn_status cairn_npy_expect(const cairn_npy *npy, cairn_dtype dtype, int ndim, const int64_t *shape);

/* Reads rows[0], ..., rows[n - 1] into values, one behind the other, in the file's type; nbytes is what values has room
 * for, n rows or more. Rows that lie together are read at once.
 * Errors: CAIRN_EINVAL NULL, a row that is not there, too little room, or the file has been cut; CAIRN_ESYSTEM. values
 * is undefined then. Cost: two system calls for each run of rows. */
CAIRN_API cairn_status cairn_npy_read_rows(const cairn_npy *npy, const int64_t *rows, size_t n, void *values,
                                           size_t nbytes);

/* The rows first, ..., first + n - 1: of an array without dimensions 0 and 1. */
CAIRN_API cairn_status cairn_npy_read(const cairn_npy *npy, int64_t first, size_t n, void *values, size_t nbytes);

#ifdef __cplusplus
}
#endif

#endif
