/* What a device computes: passes over its memory, queued in order on its stream. The front of the kernels: every room
 * calls these, whatever the device.
 *
 * Rules that hold for all:
 *   - Pointers are to the device's memory unless it says otherwise; structs handed over by address are read before the
 *     call returns, but for those said to stand in device memory, which are read when the pass runs.
 *   - The arithmetic of an element is that of kernels/kernels.h: f32, no contraction, one rounding on the way out, NaN
 *     bits kept where nothing is computed. Where a pass adds up (sum, mse, col_sum, l2norm) the CPU's order is the one
 *     defined there; another device has an order of its own, which is fixed too, so that a run repeats exactly.
 *   - dst may be an input where types have the same size. n = 0 is valid, also in any place of a list.
 *   - Flags are ORed with 1, never cleared; NULL = nobody asks.
 *   - factor: a float in device memory; NULL = 1.
 *   - A pass does not fail here. What goes wrong on the way to the device is kept by it, and cairn__device_check tells.
 */
#ifndef CAIRN__DEVICE_PASSES_H
#define CAIRN__DEVICE_PASSES_H

#include "cairn/device.h"
#include "kernels/step.h"

/* One tensor of a list; a pass says what it reads. */
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
    void *half;    /* the rounded copy, where the mode has one */
    float *state[2];
    const void *grad;
    const float *factor;
    const int64_t *missed; /* taken steps without a gradient; device memory */
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
    /* *norm = L2 norm over the whole list of x * factor, squares and sums in f64; each [count] may be NULL. All in device
     * memory. found: an x * factor is infinite or NaN. */
    void (*l2norm)(struct cairn_device *d, const struct cairn__item *items, size_t count, cairn_dtype dtype,
                   const float *factor, double *norm, double *each, uint32_t *found);

    /* ---- a training step ---- */

    /* One fused update of every item (kernels.h: struct cairn__sgd, struct cairn__adam); nothing is written where
     * *skip (device memory, may be NULL) is raised. state is in device memory. */
    void (*sgd)(struct cairn_device *d, const struct cairn__optim_item *items, size_t count, cairn_dtype grad,
                enum cairn__weight_mode mode, const struct cairn__sgd_rule *rule,
                const struct cairn__optim_state *state, const uint32_t *skip);
    void (*adam)(struct cairn_device *d, const struct cairn__optim_item *items, size_t count, cairn_dtype grad,
                 enum cairn__weight_mode mode, const struct cairn__adam_rule *rule,
                 const struct cairn__optim_state *state, const uint32_t *skip);
    /* ++*missed, unless *skip is raised. Before step_end. */
    void (*miss)(struct cairn_device *d, int64_t *missed, const uint32_t *skip);
    void (*step_end)(struct cairn_device *d, const struct cairn__step_end *end);
    /* *cell = the scale as it is, *dst = *x * cell->scale, all in device memory. */
    void (*scale_loss)(struct cairn_device *d, float *dst, const float *x, const struct cairn__scaler_state *scaler,
                       struct cairn__loss_scale *cell);
    /* *into |= flags[0] (NULL = nowhere), then flags[0..n-1] = 0. */
    void (*clear_flags)(struct cairn_device *d, uint32_t *flags, size_t n, uint32_t *into);
    /* A value of the host, at most CAIRN__STORE_MAX bytes, into device memory; goes with the call. */
    void (*store)(struct cairn_device *d, void *dst, const void *value, size_t nbytes);

    /* ---- for nn; all operands are of type t, scalars and sums inside are f32 ---- */

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
    /* dx = round((s * dy[0]) * (x - y)) */
    void (*mse_backward)(struct cairn_device *d, cairn_dtype t, void *dx, const void *x, const void *y, size_t n,
                         float s, const void *dy);
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

enum { CAIRN__STORE_MAX = 128 };

/* One tensor. */
static inline void cairn__pass_cast(const struct cairn__passes *p, struct cairn_device *d, void *dst, cairn_dtype to,
                                    const void *x, cairn_dtype from, size_t n) {
    const struct cairn__item item = {n, dst, x, NULL, NULL}; /* in order: .cu files read this too */
    p->cast(d, &item, 1, to, from);
}

#endif
