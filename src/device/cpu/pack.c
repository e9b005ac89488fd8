/* Matrices on their way into products, and what needs no engine: the product in f64. */
#include "device/cpu/pack.h"

#include <string.h>

#include "kernels/kernels.h"

static const char *element(const struct cairn__matrix *x, int64_t i, int64_t j) {
    return (const char *)x->at.data + (size_t)(i * x->at.row + j * x->at.col) * cairn_dtype_nbytes(x->dtype);
}

/* Element by element; `to` is f32 where it is not x's type. */
static void copy_row(char *dst, const struct cairn__matrix *x, cairn_dtype to, int64_t i) {
    const size_t nbytes = cairn_dtype_nbytes(to);
    for (int64_t j = 0; j < x->cols; j++, dst += nbytes) {
        if (to == x->dtype) {
            memcpy(dst, element(x, i, j), nbytes);
        } else {
            *(float *)(void *)dst = cairn__dtype(x->dtype)->to_f32(element(x, i, j));
        }
    }
}

struct cairn__operand cairn__pack(const struct cairn__cpu *cpu, const struct cairn__matrix *x, cairn_dtype to,
                                  void *room) {
    struct cairn__operand settled = x->at;
    const bool fits = cairn__operand_settle(&settled, x->rows, x->cols);
    if (fits && x->dtype == to) return settled;
    if (fits && settled.col != 1) { /* its columns are rows of neighbours */
        const struct cairn__matrix columns = {x->dtype, x->cols, x->rows, {x->at.data, settled.col, settled.row}};
        settled = cairn__pack(cpu, &columns, to, room);
        settled = (struct cairn__operand){settled.data, settled.col, settled.row};
        (void)cairn__operand_settle(&settled, x->rows, x->cols);
        return settled;
    }
    const size_t row_nbytes = (size_t)x->cols * cairn_dtype_nbytes(to);
    for (int64_t i = 0; i < x->rows; i++) {
        char *dst = (char *)room + (size_t)i * row_nbytes;
        if (x->at.col == 1 && x->dtype == to) {
            memcpy(dst, element(x, i, 0), row_nbytes);
        } else if (x->at.col == 1) {
            cpu->kernels->cast[x->dtype][to](dst, element(x, i, 0), (size_t)x->cols);
        } else {
            copy_row(dst, x, to, i);
        }
    }
    return (struct cairn__operand){room, x->cols, 1};
}

void cairn__unpack(const struct cairn__cpu *cpu, void *c, cairn_dtype to, int64_t c_row, const float *x, int64_t rows,
                   int64_t cols) {
    const size_t nbytes = cairn_dtype_nbytes(to);
    if (c_row == cols) {
        cpu->kernels->cast[CAIRN_F32][to](c, x, (size_t)(rows * cols));
        return;
    }
    for (int64_t i = 0; i < rows; i++) {
        cpu->kernels->cast[CAIRN_F32][to]((char *)c + (size_t)(i * c_row) * nbytes, x + i * cols, (size_t)cols);
    }
}

void cairn__product_f64(int64_t m, int64_t n, int64_t k, struct cairn__operand a, struct cairn__operand b, double *c,
                        int64_t c_row, bool add) {
    for (int64_t i = 0; i < m; i++) {
        double *row = c + i * c_row;
        if (!add) memset(row, 0, (size_t)n * sizeof(double));
        for (int64_t l = 0; l < k; l++) {
            const double x = ((const double *)a.data)[i * a.row + l * a.col];
            const double *y = (const double *)b.data + l * b.row;
            for (int64_t j = 0; j < n; j++) row[j] += x * y[j * b.col];
        }
    }
}
