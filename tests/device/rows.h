/* For each row of the CPU's kernel tables (kernels/kernels.h) the GPU kernel that implements it, or why there is
 * none. */
#ifndef TESTS_DEVICE_ROWS_H
#define TESTS_DEVICE_ROWS_H

#include "kernels/kernels.h"

struct cairn__cuda_row {
    enum cairn__kernel_kind kind;
    int a, b;             /* as in struct cairn__kernel_row */
    const char *launcher; /* in launch.h; NULL = none, for the reason given */
    const char *reason;
};

const struct cairn__cuda_row *cairn__cuda_rows(size_t *count);

/* NULL if the table has none. */
const struct cairn__cuda_row *cairn__cuda_row(enum cairn__kernel_kind kind, int a, int b);

#endif
