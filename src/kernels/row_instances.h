/* The functions of rows.h for every storage type, and the array of rows that names them: ref_rows.c and simd_rows.h end
 * with it. ISA, NEEDS and EACH_ROW_TYPE(X), a list of X(type, TYPE, type of arithmetic), are defined there. */

#define MAKE_ROWS(t, T, r)                                                                                             \
    static double NAMED(greatest_##t)(const void *x, size_t n) {                                                       \
        return greatest_##r(CAIRN_##T, x, n);                                                                          \
    }                                                                                                                  \
    static void NAMED(softmax_backward_##t)(void *dx, const void *dy, const void *y, size_t n) {                       \
        softmax_backward_##r(CAIRN_##T, dx, dy, y, n);                                                                 \
    }                                                                                                                  \
    static void NAMED(moments_##t)(const void *x, const struct cairn__runs *runs, bool centred, double *mean,          \
                                   double *variance) {                                                                 \
        moments_##r(CAIRN_##T, x, runs, centred, mean, variance);                                                      \
    }                                                                                                                  \
    static void NAMED(norm_row_##t)(void *y, const void *x, const void *weight, const void *bias, size_t n,            \
                                    double mean, double rstd) {                                                        \
        norm_row_##r(CAIRN_##T, y, x, weight, bias, n, mean, rstd);                                                    \
    }                                                                                                                  \
    static void NAMED(norm_rows_backward_##t)(const struct cairn__norm_rows *o) {                                      \
        norm_rows_backward_##r(CAIRN_##T, o);                                                                          \
    }                                                                                                                  \
    static void NAMED(norm_runs_##t)(void *y, const void *x, const struct cairn__runs *runs, double mean,              \
                                     double scale, double shift) {                                                     \
        norm_runs_##r(CAIRN_##T, y, x, runs, mean, scale, shift);                                                      \
    }                                                                                                                  \
    static void NAMED(norm_runs_sums_##t)(const void *dy, const void *x, const struct cairn__runs *runs, double mean,  \
                                          double sums[2]) {                                                            \
        norm_runs_sums_##r(CAIRN_##T, dy, x, runs, mean, sums);                                                        \
    }                                                                                                                  \
    static void NAMED(norm_runs_backward_##t)(void *dx, const void *dy, const void *x, const struct cairn__runs *runs, \
                                              double mean, double a, double b, double c) {                             \
        norm_runs_backward_##r(CAIRN_##T, dx, dy, x, runs, mean, a, b, c);                                             \
    }                                                                                                                  \
    static void NAMED(dropout_##t)(void *dst, const void *x, size_t n, const struct cairn__dropout *how) {             \
        dropout_##r(CAIRN_##T, dst, x, n, how);                                                                        \
    }

#define ROW_OF_ROWS(kind, T, name) \
    {CAIRN__K_##kind, CAIRN_##T, 0, NEEDS, CAIRN__BITEXACT, TEXT(NAMED(name)), (void (*)(void))NAMED(name)},
#define ROWS_OF_ROWS(t, T, r)                                  \
    ROW_OF_ROWS(GREATEST, T, greatest_##t)                     \
    ROW_OF_ROWS(SOFTMAX_BACKWARD, T, softmax_backward_##t)     \
    ROW_OF_ROWS(MOMENTS, T, moments_##t)                       \
    ROW_OF_ROWS(NORM_ROW, T, norm_row_##t)                     \
    ROW_OF_ROWS(NORM_ROWS_BACKWARD, T, norm_rows_backward_##t) \
    ROW_OF_ROWS(NORM_RUNS, T, norm_runs_##t)                   \
    ROW_OF_ROWS(NORM_RUNS_SUMS, T, norm_runs_sums_##t)         \
    ROW_OF_ROWS(NORM_RUNS_BACKWARD, T, norm_runs_backward_##t) \
    ROW_OF_ROWS(DROPOUT, T, dropout_##t)

EACH_ROW_TYPE(MAKE_ROWS)

/* clang-format off */
static const struct cairn__kernel_row rows_of_rows[] = { EACH_ROW_TYPE(ROWS_OF_ROWS) };
/* clang-format on */

const struct cairn__row_list CONCAT(cairn__kernel_rows_of_rows, ISA) = {rows_of_rows,
                                                                        sizeof(rows_of_rows) / sizeof(rows_of_rows[0])};
