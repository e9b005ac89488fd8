/* Matrices as the engine takes them, whatever their strides and types are. */
#ifndef CAIRN__CPU_PACK_H
#define CAIRN__CPU_PACK_H

#include "device/cpu/engine.h"
#include "device/cpu/state.h"

/* Whether x, [rows, cols], has rows or columns of neighbours that do not overlap. Then it is left with col 1, or else
 * with row 1, and the other stride is large enough for any engine. */
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

/* The bare product of p, all of whose operands are dense: C in f32 whatever out_type says, without bias and relu. */
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

/* x as the engine takes it, of type `to`, which is x's or f32: as it is where type and strides allow, else copied into
 * room, rows * cols elements of `to`. The rows of x stay rows of the result. */
struct cairn__operand cairn__pack(const struct cairn__cpu *cpu, const struct cairn__matrix *x, cairn_dtype to,
                                  void *room);

/* c, rows of cols neighbours c_row apart, of type `to`, = the dense f32 at x, rounded. */
void cairn__unpack(const struct cairn__cpu *cpu, void *c, cairn_dtype to, int64_t c_row, const float *x, int64_t rows,
                   int64_t cols);

/* The same product in f64, plain loops with k in order; C [m, n] with rows of neighbours. */
void cairn__product_f64(int64_t m, int64_t n, int64_t k, struct cairn__operand a, struct cairn__operand b, double *c,
                        int64_t c_row, bool add);

#endif
