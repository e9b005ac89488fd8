/* Converts matrices of any strides and types to operands that the engine takes. */
#ifndef CAIRN__CPU_PACK_H
#define CAIRN__CPU_PACK_H

#include "device/cpu/engine.h"
#include "device/cpu/state.h"

/* Whether x, [rows, cols], has contiguous rows or columns that do not overlap. If so, sets its col to 1, or else its
 * row, and makes the other stride large enough for any engine. */
static inline bool cairn__operand_settle(struct cairn__operand *x, int64_t rows, int64_t cols) {
    if (x->col == 1 && x->row >= cols) return true;
    if (x->row == 1 && x->col >= rows && x->col > 1) return true;
    if (rows == 1 && x->col == 1) {
        x->row = cols;
        return true;
    }
    if (cols == 1 && x->row >= 1) {
        x->col = 1;
        return true;
    }
    if (rows == 1 && x->col > 1) {
        x->row = 1;
        return true;
    }
    if (rows == 1 && cols == 1) {
        x->row = x->col = 1;
        return true;
    }
    return false;
}

/* The product of p, whose operands are dense, without bias and relu, and with C in f32 whatever p's out_type is. */
static inline struct cairn__product cairn__dense_product(const struct cairn__matmul *p) {
    struct cairn__product product = {.m = p->m,
                                     .n = p->n,
                                     .k = p->k,
                                     .a = {p->a, p->trans_a ? 1 : p->k, p->trans_a ? p->m : 1},
                                     .b = {p->b, p->trans_b ? 1 : p->n, p->trans_b ? p->k : 1},
                                     .in_type = p->in_type,
                                     .out_type = CAIRN_F32,
                                     .c = p->c,
                                     .c_row = p->n};
    (void)cairn__operand_settle(&product.a, p->m, p->k); /* dense ones do */
    (void)cairn__operand_settle(&product.b, p->k, p->n);
    return product;
}

/* One matrix in memory. */
struct cairn__matrix {
    cairn_dtype dtype;
    int64_t rows, cols;
    struct cairn__operand at;
};

/* x as an operand of type `to`, which is x's type or f32: x itself if type and strides allow it, else a copy in room
 * (rows * cols elements of `to`). The rows of x stay rows of the result. */
struct cairn__operand cairn__pack(const struct cairn__cpu *cpu, const struct cairn__matrix *x, cairn_dtype to,
                                  void *room);

/* Rounds the dense f32 matrix x to c, of type `to`, whose contiguous rows of cols elements are c_row apart. */
void cairn__unpack(const struct cairn__cpu *cpu, void *c, cairn_dtype to, int64_t c_row, const float *x, int64_t rows,
                   int64_t cols);

/* The product in f64 by plain loops, with k in order. C [m, n] has contiguous rows. */
void cairn__product_f64(int64_t m, int64_t n, int64_t k, struct cairn__operand a, struct cairn__operand b, double *c,
                        int64_t c_row, bool add);

#endif
