/* The CPU as a device: memory is the process's, every call is synchronous, kernels are the table for this processor.
 *
 * Around the engine's bare product this file puts what no engine does well: the empty sum, operands it cannot take, and
 * the bias, which is added to the finished f32 sum. Widened operands go to two buffers that grow to the largest product
 * and stay, so that a training step allocates nothing once it has run. */
#include "device/cpu/cpu.h"

#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/cpu.h"
#include "core/status.h"

struct wide {
    float *data;
    size_t room;
};

struct cpu {
    struct cairn__engine *engine;
    struct wide a, b;
    char text[128];
};

static void cpu_close(struct cairn_device *d) {
    struct cpu *cpu = d->state;
    if (!cpu) return;
    cairn__engine_close(&cpu->engine);
    cairn__free(cpu->a.data);
    cairn__free(cpu->b.data);
    cairn__free(cpu);
    d->state = NULL;
}

static cairn_status cpu_open(struct cairn_device *d, int ordinal) {
    (void)ordinal; /* every rank of a host shares the one CPU */
    cairn_status st = CAIRN_OK;
    unsigned features = cairn__cpu_features();
    struct cpu *cpu = NULL;
    TRY(cairn__calloc(1, sizeof(*cpu), (void **)&cpu));
    d->state = cpu;
    TRY(cairn__engine_open(features, &cpu->engine));
    snprintf(cpu->text, sizeof(cpu->text), "%s, %s", cairn__cpu_level_name(features),
             cairn__engine_describe(cpu->engine));
    return CAIRN_OK;
out:
    cpu_close(d);
    return st;
}

static cairn_status cpu_alloc(struct cairn_device *d, size_t nbytes, void **out) {
    (void)d;
    return cairn__alloc(nbytes, out);
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

static const struct cairn__kernels *cpu_kernels(const struct cairn_device *d) {
    (void)d;
    return cairn__kernels_cpu(cairn__cpu_features());
}

static const char *cpu_describe(const struct cairn_device *d) {
    return ((const struct cpu *)d->state)->text;
}

static cairn_status widen(const struct cairn_device *d, struct wide *w, cairn_dtype type, const void *src, size_t n) {
    if (n > w->room) {
        void *p = NULL;
        cairn_status st = cairn__alloc(n * sizeof(float), &p);
        if (st != CAIRN_OK) return st;
        cairn__free(w->data);
        w->data = p;
        w->room = n;
    }
    d->kernels->cast[type][CAIRN_F32](w->data, src, n);
    return CAIRN_OK;
}

static cairn_status multiply(struct cairn_device *d, const struct cairn__matmul *product) {
    struct cpu *cpu = d->state;
    if (cairn__engine_takes(cpu->engine, product->in_type)) return cairn__engine_matmul(cpu->engine, product);
    cairn_status st = CAIRN_OK;
    TRY(widen(d, &cpu->a, product->in_type, product->a, (size_t)(product->m * product->k)));
    TRY(widen(d, &cpu->b, product->in_type, product->b, (size_t)(product->k * product->n)));
    struct cairn__matmul wide = *product;
    wide.in_type = CAIRN_F32;
    wide.a = cpu->a.data;
    wide.b = cpu->b.data;
    TRY(cairn__engine_matmul(cpu->engine, &wide));
out:
    return st;
}

static cairn_status cpu_matmul(struct cairn_device *d, const struct cairn__matmul *p) {
    cairn_status st = CAIRN_OK;
    if (p->k > 0) {
        TRY(multiply(d, p));
    } else if (!p->accumulate) {
        memset(p->c, 0, (size_t)(p->m * p->n) * sizeof(float));
    }
    if (p->bias) d->kernels->bias_add(p->c, p->bias, (size_t)p->m, (size_t)p->n);
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
    .copy = cpu_copy,
    .kernels = cpu_kernels,
    .matmul = cpu_matmul,
    .describe = cpu_describe,
};
