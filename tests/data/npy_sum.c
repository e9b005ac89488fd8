/* Prints type, shape and byte sum of .npy files, or the error message, for test_npy.py. */
#include <cairn/cairn.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static void print(const char *path) {
    cairn_npy *x = NULL;
    uint64_t sum = 0;
    if (cairn_npy_open(path, &x) != CAIRN_OK) {
        printf("%s\n", cairn_last_error());
        return;
    }
    const size_t rows = cairn_npy_ndim(x) ? (size_t)cairn_npy_size(x, 0) : 1, nbytes = rows * cairn_npy_row_nbytes(x);
    unsigned char *bytes = malloc(nbytes + 1);
    if (!bytes || cairn_npy_read(x, 0, rows, bytes, nbytes) != CAIRN_OK) exit(1);
    for (size_t i = 0; i < nbytes; i++) sum += bytes[i] * (i % 251 + 1);
    printf("%s [", cairn_dtype_name(cairn_npy_dtype(x)));
    for (int i = 0; i < cairn_npy_ndim(x); i++) printf("%s%" PRId64, i ? ", " : "", cairn_npy_size(x, i));
    printf("] %" PRIu64 "\n", sum);
    free(bytes);
    cairn_npy_destroy(&x);
}

int main(int argc, char **argv) {
    for (int i = 1; i < argc; i++) print(argv[i]);
    return 0;
}
