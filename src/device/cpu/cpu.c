/* The CPU as a device: memory is the process's, every call is synchronous, kernels are the table for this processor.
 *
 * Around the engine's bare product this file puts what no engine does well: the empty sum, operands it cannot take, and
 * what is done to the finished f32 sum: bias, relu, the one rounding. */
#include "device/cpu/cpu.h"

#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/cpu.h"
#include "core/status.h"

/* ---- opening ---- */

static void cpu_close(struct cairn_device *d) {
    struct cairn__cpu *cpu = d->state;
    if (!cpu) return;
    cairn__engine_close(&cpu->engine);
    cairn__free(cpu->a.data);
    cairn__free(cpu->b.data);
    cairn__free(cpu->c.data);
    cairn__free(cpu->row.data);
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
    cpu->kernels = cairn__kernels_cpu(features);
    TRY(cairn__engine_open(features, &cpu->engine));
    snprintf(cpu->text, sizeof(cpu->text), "%s, %s", cairn__cpu_level_name(features),
             cairn__engine_describe(cpu->engine));
    return CAIRN_OK;
out:
    cpu_close(d);
    return st;
}

static const char *cpu_describe(const struct cairn_device *d) {
    return cairn__cpu_of(d)->text;
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

static cairn_status widen_operands(struct cairn_device *d, struct cairn__matmul *p) {
    struct cairn__cpu *cpu = cairn__cpu_of(d);
    if (cairn__engine_takes(cpu->engine, p->in_type)) return CAIRN_OK;
    cairn_status st = CAIRN_OK;
    const float *a = NULL, *b = NULL;
    TRY(cairn__cpu_widen(d, &cpu->a, p->in_type, p->a, (size_t)(p->m * p->k), &a));
    TRY(cairn__cpu_widen(d, &cpu->b, p->in_type, p->b, (size_t)(p->k * p->n), &b));
    p->a = a, p->b = b;
    p->in_type = CAIRN_F32;
out:
    return st;
}

static cairn_status finish(struct cairn_device *d, const struct cairn__matmul *p, float *c) {
    struct cairn__cpu *cpu = cairn__cpu_of(d);
    const size_t rows = (size_t)p->m, cols = (size_t)p->n;
    cairn_status st = CAIRN_OK;
    const float *bias = NULL;
    if (p->bias) {
        TRY(cairn__cpu_widen(d, &cpu->row, p->out_type, p->bias, cols, &bias));
        cpu->kernels->bias_add(c, bias, rows, cols);
    }
    if (p->relu) cpu->kernels->relu(c, c, rows * cols);
    if (c != p->c) cpu->kernels->cast[CAIRN_F32][p->out_type](p->c, c, rows * cols);
out:
    return st;
}

static void add_rows(float *sums, const float *a, size_t m, size_t k) {
    for (size_t i = 0; i < m; i++) {
        sums[i] = 0;
        for (size_t l = 0; l < k; l++) sums[i] += a[i * k + l];
    }
}

/* Rows of a transposed A are columns of what is stored. */
static cairn_status sum_rows(struct cairn_device *d, const struct cairn__matmul *p) {
    struct cairn__cpu *cpu = cairn__cpu_of(d);
    const size_t m = (size_t)p->m, k = (size_t)p->k;
    cairn_status st = CAIRN_OK;
    const float *a = NULL;
    float *sums = p->row_sums;
    TRY(cairn__cpu_widen(d, &cpu->a, p->in_type, p->a, m * k, &a));
    if (p->out_type != CAIRN_F32) TRY(cairn__scratch_room(&cpu->row, m, &sums));
    if (p->trans_a) {
        cpu->kernels->col_sum(sums, a, k, m);
    } else {
        add_rows(sums, a, m, k);
    }
    if (sums != p->row_sums) cpu->kernels->cast[CAIRN_F32][p->out_type](p->row_sums, sums, m);
out:
    return st;
}

static cairn_status cpu_matmul(struct cairn_device *d, const struct cairn__matmul *product) {
    struct cairn__cpu *cpu = cairn__cpu_of(d);
    const size_t n = (size_t)(product->m * product->n);
    cairn_status st = CAIRN_OK;
    struct cairn__matmul p = *product; /* as the engine takes it */
    float *c = product->c;
    TRY(widen_operands(d, &p));
    if (p.out_type != CAIRN_F32) TRY(cairn__scratch_room(&cpu->c, n, &c));
    p.c = c;
    if (p.k > 0) {
        TRY(cairn__engine_matmul(cpu->engine, &p));
    } else {
        memset(c, 0, n * sizeof(float));
    }
    TRY(finish(d, product, c));
    if (p.row_sums) TRY(sum_rows(d, &p));
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
