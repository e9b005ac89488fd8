/* Convolution and its gradients on the CPU by the three products of conv.h. This file handles types that the engine
 * does not take, the bias, and the single rounding.
 *
 * Half operands that the engine does not take are widened into kept scratch; results of half passes are f32 in scratch
 * until they are rounded. */
#include <string.h>

#include "core/status.h"
#include "device/cpu/blocks.h"
#include "device/cpu/conv.h"
#include "device/cpu/cpu_math.h"

enum part { X, WEIGHT, Y, PARTS };

/* A convolution on its way through the engine. */
struct job {
    struct cairn_device *d;
    const struct cairn__conv *conv;
    struct cairn__conv_pass pass;
};

static struct cairn__conv_shape shape_of(const struct cairn__conv *v) {
    const bool t = v->transposed;
    return (struct cairn__conv_shape){
        .n = v->n,
        .c = t ? v->k : v->c,
        .h = t ? v->p : v->h,
        .w = t ? v->q : v->w,
        .k = t ? v->c : v->k,
        .r = v->r,
        .s = v->s,
        .p = t ? v->h : v->p,
        .q = t ? v->w : v->q,
        .groups = v->groups,
        .stride = {v->stride[0], v->stride[1]},
        .padding = {v->padding[0], v->padding[1]},
        .dilation = {v->dilation[0], v->dilation[1]},
    };
}

static size_t count_of(const struct cairn__conv *v, enum part part) {
    switch (part) {
    case X:
        return (size_t)(v->n * v->c * v->h * v->w);
    case WEIGHT:
        return (size_t)(v->k * v->c / v->groups * v->r * v->s);
    default:
        return (size_t)(v->n * v->k * v->p * v->q);
    }
}

/* The operand of the pass that is x, weight or y of the convolution. */
static void **operand(struct job *j, enum part part) {
    if (part == WEIGHT) return &j->pass.weights;
    return (part == X) != j->conv->transposed ? &j->pass.src : &j->pass.dst;
}

static bool is_wide(cairn_dtype t) {
    return t == CAIRN_F32 || t == CAIRN_F64;
}

/* ---- the passes ---- */

/* y is R, not yet rounded. */
static void add_bias(const struct job *j, void *y) {
    const struct cairn__conv *v = j->conv;
    const size_t plane = (size_t)(v->p * v->q), channels = (size_t)v->k;
    for (size_t i = 0; i < (size_t)v->n * channels; i++) {
        const double b =
            cairn__block_get(v->dtype, (const char *)v->bias + i % channels * cairn_dtype_nbytes(v->dtype));
        if (v->dtype == CAIRN_F64) {
            for (size_t l = 0; l < plane; l++) ((double *)y)[i * plane + l] += b;
        } else {
            const float narrow = (float)b;
            for (size_t l = 0; l < plane; l++) ((float *)y)[i * plane + l] += narrow;
        }
    }
}

/* Writes one part, from the two others. */
static cairn_status compute(struct job *j, enum part written, void *result) {
    struct cairn__cpu *cpu = cairn__cpu_of(j->d);
    const struct cairn__conv *v = j->conv;
    const void *const given[PARTS] = {v->x, v->weight, v->dy};
    struct cairn__scratch *room = &cpu->a; /* then &cpu->b */
    const size_t n = count_of(v, written);
    cairn_status st = CAIRN_OK;
    float *wide = result;
    j->pass.what = written == WEIGHT                 ? CAIRN__CONV_WEIGHTS
                   : (written == X) != v->transposed ? CAIRN__CONV_SRC
                                                     : CAIRN__CONV_DST;
    for (enum part part = X; part < PARTS; part++) {
        const void *values = given[part];
        if (part == written) continue;
        if (j->pass.in_type != v->dtype) {
            const float *wide_part = NULL;
            TRY(cairn__cpu_widen(j->d, room, v->dtype, values, count_of(v, part), &wide_part));
            values = wide_part;
            room = &cpu->b;
        }
        *operand(j, part) = (void *)(uintptr_t)values;
    }
    j->pass.rounds = j->pass.in_type == v->dtype && !is_wide(v->dtype) && !(written == Y && v->bias) &&
                     cairn__engine_conv_rounds(cpu->engine, &j->pass);
    const bool is_finished = is_wide(v->dtype) || j->pass.rounds;
    if (!is_finished) TRY(cairn__scratch_room(&cpu->c, n, &wide));
    *operand(j, written) = wide;
    if (v->dtype == CAIRN_F64) {
        cairn__conv_loops(&j->pass);
    } else {
        TRY(cairn__engine_conv(cpu->engine, &j->pass));
    }
    if (written == Y && v->bias) add_bias(j, wide);
    if (!is_finished) cpu->kernels->cast[CAIRN_F32][v->dtype](result, wide, n);
out:
    return st;
}

/* A sum over nothing: zeros, and the bias. */
static void compute_nothing(struct job *j, enum part written, void *result) {
    const struct cairn__conv *v = j->conv;
    const size_t nbytes = cairn_dtype_nbytes(v->dtype), plane = (size_t)(v->p * v->q);
    memset(result, 0, count_of(v, written) * nbytes);
    if (written != Y || !v->bias) return;
    for (size_t i = 0; i < count_of(v, Y); i++)
        memcpy((char *)result + i * nbytes, (const char *)v->bias + i / plane % (size_t)v->k * nbytes, nbytes);
}

static void write_part(struct job *j, enum part written, void *result) {
    struct cairn__cpu *cpu = cairn__cpu_of(j->d);
    if (!result || count_of(j->conv, written) == 0) return;
    if (count_of(j->conv, X) == 0 || count_of(j->conv, WEIGHT) == 0 || count_of(j->conv, Y) == 0) {
        compute_nothing(j, written, result);
    } else {
        cairn__cpu_is_ok(cpu, compute(j, written, result));
    }
}

/* ---- the gradient of the bias ---- */

/* Sums of planes, as kernels.h has sums, and of them over images in f64. */
static void bias_gradient(struct job *j, void *dbias) {
    const struct cairn__conv *v = j->conv;
    const struct cairn__kernels *k = cairn__cpu_of(j->d)->kernels;
    const size_t plane = (size_t)(v->p * v->q), channels = (size_t)v->k, nbytes = cairn_dtype_nbytes(v->dtype);
    for (size_t c = 0; c < channels; c++) {
        double sum = 0;
        for (size_t n = 0; n < (size_t)v->n; n++) {
            const char *dy = (const char *)v->dy + (n * channels + c) * plane * nbytes;
            sum +=
                v->dtype == CAIRN_F64 ? k->fold[CAIRN__FOLD_SUM][CAIRN_F64](dy, plane, 0) : k->sum[v->dtype](dy, plane);
        }
        cairn__block_put(v->dtype, (char *)dbias + c * nbytes, sum);
    }
}

/* ---- the table's two ---- */

static struct job job_of(struct cairn_device *d, const struct cairn__conv *conv) {
    const bool takes = conv->dtype == CAIRN_F64 || cairn__engine_takes(cairn__cpu_of(d)->engine, conv->dtype);
    return (struct job){d, conv, {.in_type = takes ? conv->dtype : CAIRN_F32, .shape = shape_of(conv)}};
}

void cairn__cpu_conv(struct cairn_device *d, const struct cairn__conv *conv) {
    struct job j = job_of(d, conv);
    write_part(&j, Y, conv->y);
}

/* dy is y of the pass. */
void cairn__cpu_conv_backward(struct cairn_device *d, const struct cairn__conv *conv) {
    struct job j = job_of(d, conv);
    if (conv->dbias) bias_gradient(&j, conv->dbias);
    write_part(&j, WEIGHT, conv->dweight);
    write_part(&j, X, conv->dx);
}
