/* The CPU as a device: memory is the process's, every call is synchronous, kernels are the table for this processor.
 *
 * Around the engine's bare product this file puts what no engine does well: the empty sum, operands it cannot take, and
 * what is done to the finished f32 sum: bias, relu, the one rounding. */
#include "device/cpu/cpu_math.h"

#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/cpu.h"
#include "core/status.h"
#include "device/cpu/blocks.h"

/* ---- opening ---- */

static void cpu_close(struct cairn_device *d) {
    struct cairn__cpu *cpu = d->state;
    if (!cpu) return;
    cairn__engine_close(&cpu->engine);
    for (int i = 0; i < CAIRN__LANES; i++) cairn__engine_close(&cpu->lanes[i]);
    cairn__free(cpu->a.data);
    cairn__free(cpu->b.data);
    cairn__free(cpu->c.data);
    cairn__free(cpu->row.data);
    for (int i = 0; i < CAIRN__MAP_INPUTS; i++) cairn__free(cpu->dense[i].data);
    cairn__free(cpu->attention.data);
    cairn__free(cpu);
    d->state = NULL;
}

static cairn_status cpu_open(struct cairn_device *d, int ordinal) {
    (void)ordinal; /* every rank of a host shares the one CPU */
    cairn_status st = CAIRN_OK;
    unsigned features = cairn__cpu_features();
    struct cairn__cpu *cpu = NULL;
    TRY(cairn__calloc(1, sizeof(*cpu), (void **)&cpu));
    d->state = cpu;
    d->passes = &cairn__cpu_passes;
    d->math = &cairn__cpu_math;
    cpu->kernels = cairn__kernels_cpu(features);
    TRY(cairn__engine_open(features, &cpu->engine));
    return CAIRN_OK;
out:
    cpu_close(d);
    return st;
}

/* The number of threads may have changed. */
static const char *cpu_describe(const struct cairn_device *d) {
    struct cairn__cpu *cpu = cairn__cpu_of(d);
    snprintf(cpu->text, sizeof(cpu->text), "%s, %s", cairn__cpu_level_name(cairn__cpu_features()),
             cairn__engine_describe(cpu->engine));
    return cpu->text;
}

/* ---- memory ---- */

static cairn_status cpu_alloc(struct cairn_device *d, enum cairn__holder holder, size_t nbytes, void **out) {
    (void)d, (void)holder;
    return cairn__alloc(nbytes, out);
}

static cairn_status cpu_alloc_pinned(struct cairn_device *d, size_t nbytes, void **out) {
    (void)d;
    return cairn__calloc(1, nbytes, out);
}

static void cpu_free(struct cairn_device *d, void *p) {
    (void)d;
    cairn__free(p);
}

static cairn_status cpu_copy(struct cairn_device *d, void *dst, const void *src, size_t nbytes) {
    (void)d;
    memcpy(dst, src, nbytes);
    return CAIRN_OK;
}

static cairn_status cpu_check(struct cairn_device *d) {
    struct cairn__cpu *cpu = cairn__cpu_of(d);
    const cairn_status failed = cpu->failed;
    cpu->failed = CAIRN_OK;
    return failed == CAIRN_OK ? CAIRN_OK : cairn__fail(failed, "%s", cpu->failure);
}

/* What a failed pass should have written is not handed out. */
static cairn_status cpu_download(struct cairn_device *d, void *host, const void *src, size_t nbytes) {
    const cairn_status st = cpu_check(d);
    return st == CAIRN_OK ? cpu_copy(d, host, src, nbytes) : st;
}

cairn_status cairn__scratch_room(struct cairn__scratch *s, size_t n, float **out) {
    if (!s->data || n > s->room) {
        void *p = NULL;
        cairn_status st = cairn__alloc(n * sizeof(float), &p);
        if (st != CAIRN_OK) return st;
        cairn__free(s->data);
        s->data = p;
        s->room = n;
    }
    *out = s->data;
    return CAIRN_OK;
}

cairn_status cairn__cpu_widen(const struct cairn_device *d, struct cairn__scratch *s, cairn_dtype type, const void *x,
                              size_t n, const float **out) {
    *out = x;
    if (type == CAIRN_F32) return CAIRN_OK;
    float *wide = NULL;
    cairn_status st = cairn__scratch_room(s, n, &wide);
    if (st != CAIRN_OK) return st;
    cairn__cpu_of(d)->kernels->cast[type][CAIRN_F32](wide, x, n);
    *out = wide;
    return CAIRN_OK;
}

/* ---- products ---- */

/* Bias and relu in f32, one rounding; the bias is NULL where the engine has added it. */
static void finish(struct cairn_device *d, const struct cairn__matmul *p, const float *bias, float *c) {
    struct cairn__cpu *cpu = cairn__cpu_of(d);
    const size_t rows = (size_t)p->m, cols = (size_t)p->n;
    if (bias) cpu->kernels->bias_add(c, bias, rows, cols);
    if (p->relu) cpu->kernels->relu(c, c, rows * cols);
    if (c != p->c) cpu->kernels->cast[CAIRN_F32][p->out_type](p->c, c, rows * cols);
}

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

static struct cairn__product product_of(const struct cairn__matmul *p) {
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

cairn_status cairn__engine_matmul(struct cairn__engine *engine, const struct cairn__matmul *p) {
    const struct cairn__product product = product_of(p);
    return cairn__engine_product(engine, &product);
}

/* Operands of a type the engine takes. */
static cairn_status prepare(struct cairn_device *d, const struct cairn__matmul *p, struct cairn__product *out) {
    struct cairn__cpu *cpu = cairn__cpu_of(d);
    cairn_status st = CAIRN_OK;
    const float *a = NULL, *b = NULL;
    *out = product_of(p);
    if (cairn__engine_takes(cpu->engine, p->in_type)) return CAIRN_OK;
    TRY(cairn__cpu_widen(d, &cpu->a, p->in_type, p->a, (size_t)(p->m * p->k), &a));
    TRY(cairn__cpu_widen(d, &cpu->b, p->in_type, p->b, (size_t)(p->k * p->n), &b));
    out->a.data = a, out->b.data = b;
    out->in_type = CAIRN_F32;
out:
    return st;
}

/* The sum itself, with bias and rounding where the engine can; what is left then is the relu of an f32. */
static cairn_status compute(struct cairn_device *d, const struct cairn__matmul *p, struct cairn__product *product) {
    struct cairn__cpu *cpu = cairn__cpu_of(d);
    const size_t n = (size_t)(p->m * p->n);
    cairn_status st = CAIRN_OK;
    const float *bias = NULL;
    float *c = p->c;
    if (p->bias) TRY(cairn__cpu_widen(d, &cpu->row, p->out_type, p->bias, (size_t)p->n, &bias));
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
    finish(d, p, bias, c);
out:
    return st;
}

static cairn_status cpu_matmul(struct cairn_device *d, const struct cairn__matmul *p) {
    cairn_status st = CAIRN_OK;
    struct cairn__product product;
    TRY(prepare(d, p, &product));
    TRY(compute(d, p, &product));
    if (p->row_sums) TRY(sum_rows(d, p, product.a.data, product.in_type));
out:
    return st;
}

const struct cairn__device_ops cairn__cpu_ops = {
    .size = sizeof(struct cairn__device_ops),
    .name = "cpu",
    .open = cpu_open,
    .close = cpu_close,
    .alloc = cpu_alloc,
    .free = cpu_free,
    .alloc_pinned = cpu_alloc_pinned,
    .free_pinned = cpu_free,
    .copy = cpu_copy,
    .upload = cpu_copy,
    .download = cpu_download,
    .synchronize = cpu_check,
    .check = cpu_check,
    .matmul = cpu_matmul,
    .describe = cpu_describe,
};
