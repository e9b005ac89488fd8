/* Passes: what a device computes over its memory, queued in order on its stream. Every room calls these, on any device.
 *
 * Rules that hold for all:
 *   - Pointers are to device memory unless stated otherwise. Structs passed by address are read before the call
 *     returns; those documented as device memory are read when the pass runs.
 *   - The arithmetic of an element is that of kernels/kernels.h: f32, no contraction, one rounding on the way out, NaN
 *     bits kept where nothing is computed. In passes that add up (sum, mse, col_sum, l2norm) the CPU uses the order
 *     defined there; any other device has a fixed order of its own, so results are deterministic.
 *   - dst may be an input if the types have the same size. n = 0 is valid, also for any item of a list.
 *   - Flags are ORed with 1, never cleared; NULL = not wanted.
 *   - factor: a float in device memory; NULL = 1.
 *   - A pass returns no status. The device keeps its first failure, and cairn__device_check returns it.
 */
#ifndef CAIRN__DEVICE_PASSES_H
#define CAIRN__DEVICE_PASSES_H

#include "cairn/device.h"
#include "kernels/exponents.h"
#include "kernels/step.h"

/* One tensor of a list; each pass documents which members it reads. */
struct cairn__item {
    size_t n;
    void *dst;
    const void *x;
    const float *y;
    uint32_t *found; /* this tensor's own flag */
};

struct cairn__optim_item {
    size_t n;
    void *weights; /* f32 weights or master; or half weights without master */
    union {
        void *half; /* the rounded copy, where the mode has one */
        struct {
            uint32_t parameter, eighth; /* stochastic rounding draws its numbers by parameter and element; element 0 of
                                           the arrays is the parameter's element 8 * eighth */
        };
    };
    float *state[CAIRN__MAX_STATES];
    const void *grad;
    const float *factor;
    const int64_t *missed;          /* taken steps without a gradient; device memory */
    struct cairn__squares *squares; /* result of `measure`; device memory */
};

/* A parameter's flag, which take_flags moves from a parameter set to an optimizer. */
struct cairn__taken {
    size_t n;
    const void *x; /* the gradient with the overflow; NULL = not available */
    cairn_dtype dtype;
    int32_t rank;   /* the gradient's; -1 = it is reduced over ranks */
    uint32_t *flag; /* cleared by the pass */
    struct cairn__overflow *to;
};

/* Counts and extremes of a gradient's elements. */
struct cairn__census {
    uint64_t zeros, subnormals, infs, nans;
    int32_t max_exponent, min_exponent; /* of finite values other than 0, as ilogb; 0 if there is none */
    double largest;                     /* |x| of finite values; 0 if there is none */
};

struct cairn__passes {
    /* ---- lists of tensors; types are equal within a list ---- */

    /* dst = x, converted. Equal types of any kind: a copy of the bits. */
    void (*cast)(struct cairn_device *d, const struct cairn__item *items, size_t count, cairn_dtype to,
                 cairn_dtype from);
    /* dst = round(x * factor). found, and the items' own: a stored result is infinite or NaN. */
    void (*scale)(struct cairn_device *d, const struct cairn__item *items, size_t count, cairn_dtype to,
                  cairn_dtype from, const float *factor, uint32_t *found);
    /* dst = round(factor * x + b * y); dst may be y. */
    void (*axpby)(struct cairn_device *d, const struct cairn__item *items, size_t count, cairn_dtype to,
                  cairn_dtype from, const float *factor, float b, uint32_t *found);
    /* found: an x is infinite or NaN. One read. */
    void (*check)(struct cairn_device *d, const struct cairn__item *items, size_t count, cairn_dtype dtype,
                  uint32_t *found);
    /* *norm = L2 norm over the whole list of x * factor, within 6e-7 of it for halves and 1e-12 for f32 (kernels.h:
     * sumsq); each [count] may be NULL. All in device memory. found: an x is infinite or NaN; the norm is not finite
     * then. */
    void (*l2norm)(struct cairn_device *d, const struct cairn__item *items, size_t count, cairn_dtype dtype,
                   const float *factor, double *norm, double *each, uint32_t *found);

    /* dst = x, f32, clamped to [-limit, limit]; NaN stays. */
    void (*clamp)(struct cairn_device *d, const struct cairn__item *items, size_t count, float limit);
    /* out[i] = the census of items[i].x; subnormal means not 0 and below least_normal. out is device memory. */
    void (*census)(struct cairn_device *d, const struct cairn__item *items, size_t count, cairn_dtype dtype,
                   float least_normal, struct cairn__census *out);
    /* out[i] = the exponents of items[i].x, f64 too. out is device memory. */
    void (*count_exponents)(struct cairn_device *d, const struct cairn__item *items, size_t count, cairn_dtype dtype,
                            struct cairn__exponent_counts *out);

    /* ---- a training step ---- */

    /* For a rule that measures, called before its update: writes the squares of every item's gradient as stored,
     * without factor and clip (NovoGrad by_greatest: the greatest square). For LAMB it first updates the moments and
     * writes the direction to state[2], and the squares are the direction's. If state->skip is raised, only squares are
     * written. Everything else as in update. */
    void (*measure)(struct cairn_device *d, const struct cairn__optim_item *items, size_t count, cairn_dtype grad,
                    enum cairn__weight_mode mode, const struct cairn__optim_rule *rule,
                    const struct cairn__rates *rates, const struct cairn__optim_state *state);
    /* One fused update of every item by the rule (kernels.h: union cairn__update), with the gradient's factor times
     * state->clip. Writes nothing if state->skip is raised. rates and state are in device memory. A custom rule is
     * called for pieces of items: on the CPU immediately, perhaps by several threads, and not if skip is raised; on
     * another device to queue its update, which must read skip from the piece's scalars. For LAMB, grad is the
     * direction, f32, without factor and clip. */
    void (*update)(struct cairn_device *d, const struct cairn__optim_item *items, size_t count, cairn_dtype grad,
                   enum cairn__weight_mode mode, const struct cairn__optim_rule *rule, const struct cairn__rates *rates,
                   const struct cairn__optim_state *state);
    /* ++*counter, unless state->skip is raised. Called before step_end. state NULL = always. */
    void (*count_up)(struct cairn_device *d, int64_t *counter, const struct cairn__optim_state *state);
    /* Updates the scalers that are not updated yet, counts the step or the skip, and writes a report. */
    void (*step_end)(struct cairn_device *d, const struct cairn__step_end *end);
    /* average_begin runs cairn__average_begin; all arguments are in device memory, state NULL = none. average then
     * moves every dst, f32, towards x by average->share (element.h: cairn__lerp), if an averaging step is due. */
    void (*average_begin)(struct cairn_device *d, struct cairn__average *average,
                          const struct cairn__optim_state *state);
    void (*average)(struct cairn_device *d, const struct cairn__item *items, size_t count, cairn_dtype from,
                    const struct cairn__average *average);
    /* Recomputes table->rates from its schedules and state's counters. Called after a schedule or a base rate has
     * changed. */
    void (*renew_rates)(struct cairn_device *d, const struct cairn__rate_table *table,
                        const struct cairn__optim_state *state);
    /* Lowers raised flags and records them in the items' overflows: micro_batch, if it is the first overflow; and the
     * numbers of infinite and NaN elements of x, if none were counted yet. If any flag was raised, raises every
     * *raises[i]. num_raises <= CAIRN__SHARE_MAX; raises itself is host memory. */
    void (*take_flags)(struct cairn_device *d, const struct cairn__taken *items, size_t count, uint32_t micro_batch,
                       uint32_t *const *raises, size_t num_raises);
    /* Every *into[i] |= *any; then *any = 0. count <= CAIRN__SHARE_MAX; into itself is host memory. */
    void (*share_flag)(struct cairn_device *d, uint32_t *any, uint32_t *const *into, size_t count);
    /* Updates a scaler once, by its found_inf; reports: a ring that the host reads. */
    void (*scaler_update)(struct cairn_device *d, struct cairn__scaler_state *scaler,
                          struct cairn__scaler_report *reports);
    /* *total = state->clip * sqrt of the sum of the squares of norms[0..count-1]; where it is finite, state->clip *=
     * min(1, max_norm / (*total + 1e-6)), formed in f64 and rounded once; else *total = inf. */
    void (*clip)(struct cairn_device *d, const double *norms, size_t count, double max_norm,
                 struct cairn__optim_state *state, double *total);
    /* *cell = the scaler's current scale, *dst = *x * cell->scale, all in device memory. found: *x is infinite or
     * NaN. */
    void (*scale_loss)(struct cairn_device *d, float *dst, const float *x, const struct cairn__scaler_state *scaler,
                       struct cairn__loss_scale *cell, uint32_t *found);
    /* flags[0..n-1] = 0. */
    void (*clear_flags)(struct cairn_device *d, uint32_t *flags, size_t n);
    /* Writes a host value of at most CAIRN__STORE_MAX bytes to device memory; it is copied before the call returns. */
    void (*store)(struct cairn_device *d, void *dst, const void *value, size_t nbytes);

    /* ---- for nn; all operands are of type t, scalars inside are f32. Sums are f32 within blocks, which are added in
     * f64: on the CPU those of kernels.h, elsewhere in an order of the device's own ---- */

    void (*fill)(struct cairn_device *d, cairn_dtype t, void *dst, size_t n, float value);
    void (*add)(struct cairn_device *d, cairn_dtype t, void *dst, const void *a, const void *b, size_t n);
    void (*mul_scalar)(struct cairn_device *d, cairn_dtype t, void *dst, const void *x, size_t n, float s);
    void (*relu)(struct cairn_device *d, cairn_dtype t, void *dst, const void *x, size_t n);
    void (*relu_backward)(struct cairn_device *d, cairn_dtype t, void *dx, const void *dy, const void *x, size_t n);
    /* dst[0] = round(sum of x / divisor) */
    void (*sum)(struct cairn_device *d, cairn_dtype t, void *dst, const void *x, size_t n, float divisor);
    /* dx = round(dy[0] / divisor), the backward of sum */
    void (*spread)(struct cairn_device *d, cairn_dtype t, void *dx, size_t n, const void *dy, float divisor);
    /* dst[0] = round(sum of (x-y)^2 / n) */
    void (*mse)(struct cairn_device *d, cairn_dtype t, void *dst, const void *x, const void *y, size_t n);
    /* dx = round((s * dy[0]) * (x - y)); dx is of type `to`: t, or a half type where t is f32 */
    void (*mse_backward)(struct cairn_device *d, cairn_dtype t, cairn_dtype to, void *dx, const void *x, const void *y,
                         size_t n, float s, const void *dy);
    /* dst[c] = round(sum over r of x[r][c]) */
    void (*col_sum)(struct cairn_device *d, cairn_dtype t, void *dst, const void *x, size_t rows, size_t cols);
    /* dst = x rounded to the half type and widened again; both f32 */
    void (*round)(struct cairn_device *d, cairn_dtype half, float *dst, const float *x, size_t n);

    /* Elements 0..n-1 of a random stream (device/env.h): normals; or round(bound * (2u - 1)). Any type t. The bits are
     * the same on every device. */
    void (*normal)(struct cairn_device *d, cairn_dtype t, void *dst, size_t n, uint64_t seed, uint64_t stream);
    void (*uniform)(struct cairn_device *d, cairn_dtype t, void *dst, size_t n, float bound, uint64_t seed,
                    uint64_t stream);
};

enum { CAIRN__STORE_MAX = 256, CAIRN__SHARE_MAX = 16 };

/* One tensor. */
static inline void cairn__pass_cast(const struct cairn__passes *p, struct cairn_device *d, void *dst, cairn_dtype to,
                                    const void *x, cairn_dtype from, size_t n) {
    const struct cairn__item item = {n, dst, x, NULL, NULL}; /* in order: .cu files read this too */
    p->cast(d, &item, 1, to, from);
}

#endif
