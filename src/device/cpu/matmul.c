/* The device's matrix product: around the engine's bare product, what no engine does well, which is the empty sum,
 * operands of types that it does not take, and what is done to the finished f32 sum: bias, relu, the one rounding. */
#include <string.h>

#include "core/status.h"
#include "device/cpu/cpu.h"
#include "device/cpu/engine.h"
#include "device/cpu/pack.h"
#include "device/cpu/state.h"
#include "kernels/kernels.h"

/* stored: A, of the type it was multiplied in. Rows of a transposed A are columns of it. */
static cairn_status sum_rows(struct cairn_device *d, const struct cairn__matmul *p, const void *stored,
                             cairn_dtype type) {
    struct cairn__cpu *cpu = cairn__cpu_of(d);
    const size_t m = (size_t)p->m, k = (size_t)p->k, row_nbytes = k * cairn_dtype_nbytes(type);
    cairn_status st = CAIRN_OK;
    float *sums = p->row_sums;
    if (p->out_type != CAIRN_F32) TRY(cairn__scratch_room(&cpu->row, m, &sums));
    if (p->trans_a) {
        cpu->kernels->col_sum[type](sums, stored, k, m);
    } else {
        for (size_t i = 0; i < m; i++)
            sums[i] = (float)cpu->kernels->sum[type]((const char *)stored + i * row_nbytes, k);
    }
    if (sums != p->row_sums) cpu->kernels->cast[CAIRN_F32][p->out_type](p->row_sums, sums, m);
out:
    return st;
}

/* Operands of a type the engine takes. */
static cairn_status prepare(struct cairn_device *d, const struct cairn__matmul *p, struct cairn__product *out) {
    struct cairn__cpu *cpu = cairn__cpu_of(d);
    cairn_status st = CAIRN_OK;
    const float *a = NULL, *b = NULL;
    *out = cairn__dense_product(p);
    if (cairn__engine_takes(cpu->engine, p->in_type)) return CAIRN_OK;
    TRY(cairn__cpu_widen(d, &cpu->a, p->in_type, p->a, (size_t)(p->m * p->k), &a));
    TRY(cairn__cpu_widen(d, &cpu->b, p->in_type, p->b, (size_t)(p->k * p->n), &b));
    out->a.data = a, out->b.data = b;
    out->in_type = CAIRN_F32;
out:
    return st;
}

/* C, with bias and rounding by the engine where it finishes the product; else these, and relu, are passes over f32. */
static cairn_status compute(struct cairn_device *d, const struct cairn__matmul *p, struct cairn__product *product) {
    struct cairn__cpu *cpu = cairn__cpu_of(d);
    const size_t rows = (size_t)p->m, cols = (size_t)p->n, n = rows * cols;
    cairn_status st = CAIRN_OK;
    const float *bias = NULL;
    float *c = p->c;
    if (p->bias) TRY(cairn__cpu_widen(d, &cpu->row, p->out_type, p->bias, cols, &bias));
    const bool finishes = p->k > 0 && !p->relu && cairn__engine_finishes(cpu->engine, product) &&
                          (p->out_type == CAIRN_F32 || p->out_type == product->in_type);
    if (finishes) {
        product->out_type = p->out_type, product->bias = bias, product->c = p->c;
        return cairn__engine_product(cpu->engine, product);
    }
    if (p->out_type != CAIRN_F32) TRY(cairn__scratch_room(&cpu->c, n, &c));
    product->c = c;
    if (p->k > 0) {
        TRY(cairn__engine_product(cpu->engine, product));
    } else {
        memset(c, 0, n * sizeof(float));
    }
    if (bias) cpu->kernels->bias_add(c, bias, rows, cols);
    if (p->relu) cpu->kernels->relu(c, c, n);
    if (c != p->c) cpu->kernels->cast[CAIRN_F32][p->out_type](p->c, c, n);
out:
    return st;
}

cairn_status cairn__cpu_matmul(struct cairn_device *d, const struct cairn__matmul *p) {
    cairn_status st = CAIRN_OK;
    struct cairn__product product;
    TRY(prepare(d, p, &product));
    TRY(compute(d, p, &product));
    if (p->row_sums) TRY(sum_rows(d, p, product.a.data, product.in_type));
out:
    return st;
}
