/* The arithmetic of one element, for loops and kernels: written once and compiled for the host and for CUDA.
 *
 * All in f32, one IEEE operation at a time in the order written (both compilers are built with contraction off). */
#ifndef CAIRN__KERNELS_ELEMENT_H
#define CAIRN__KERNELS_ELEMENT_H

#include <math.h>

#include "core/half.h"
#include "core/philox.h"
#include "kernels/kernels.h"

/* A NaN passes through with its bits; -0 becomes +0. Uses integers, since CUDA's compiler turns comparisons into a
 * maximum, whose NaN is always the same: as a signed integer every negative number but a NaN is at most -inf. */
CAIRN__HOST_DEVICE static inline float cairn__relu(float x) {
    return (int32_t)cairn__f32_bits(x) <= (int32_t)0xff800000u ? 0 : x;
}

/* The slope at 0 is 0. At a NaN it is 1, as in PyTorch: a NaN that a relu lets through must not end in gradients of
 * 0. */
CAIRN__HOST_DEVICE static inline float cairn__relu_backward(float dy, float x) {
    return x <= 0 ? 0 : dy;
}

/* Two products and one sum, each rounded to f32. */
CAIRN__HOST_DEVICE static inline float cairn__axpby(float a, float x, float b, float y) {
    return a * x + b * y;
}

CAIRN__HOST_DEVICE static inline float cairn__squared_difference(float x, float y) {
    const float d = x - y;
    return d * d;
}

/* s is 2/n times the gradient of the loss. */
CAIRN__HOST_DEVICE static inline float cairn__mse_backward(float s, float x, float y) {
    return s * (x - y);
}

/* The weight that follows w; *buf is its momentum, left alone where there is none. grad is in units of the loss scale,
 * factor is its inverse: after the first line g is the gradient itself. The first momentum is the gradient, undamped;
 * Nesterov looks one step ahead along the momentum it has just written. */
CAIRN__HOST_DEVICE static inline float cairn__sgd_element(const struct cairn__sgd *h, float w, float grad, float *buf) {
    float g = grad * h->factor;
    if (h->weight_decay != 0 && !h->decays_last) g = g + h->weight_decay * w;
    if (h->momentum_on) {
        const float b = h->first ? g : h->momentum * *buf + h->undamped * g;
        *buf = b;
        g = h->nesterov ? g + h->momentum * b : b;
    }
    if (h->weight_decay != 0 && h->decays_last) g = g + h->weight_decay * w;
    return w - h->lr * g;
}

/* What Adam takes from w. m and v are the running means of the gradient and of its square. Both begin at 0 and are
 * too small at first: step_size and inv_sqrt_c2 carry the corrections 1 / (1 - beta1^t) and 1 / sqrt(1 - beta2^t),
 * formed in f64. eps is added to the corrected root, as PyTorch does. *greatest is the largest v so far, left alone
 * without amsgrad. */
CAIRN__HOST_DEVICE static inline float cairn__adam_direction(const struct cairn__adam *h, float w, float grad, float *m,
                                                             float *v, float *greatest) {
    float g = grad * h->factor;
    if (!h->decoupled && h->weight_decay != 0) g = g + h->weight_decay * w; /* L2: into both moments */
    *m = h->beta1 * *m + h->one_minus_beta1 * g;
    *v = h->beta2 * *v + h->one_minus_beta2 * (g * g);
    if (h->amsgrad) *greatest = *greatest > *v ? *greatest : *v;
    const float denominator = sqrtf(h->amsgrad ? *greatest : *v) * h->inv_sqrt_c2 + h->eps;
    float update = h->step_size * (*m / denominator);
    if (h->decoupled) update = update + h->lr_decay * w; /* AdamW: into the weight alone */
    return update;
}

/* The weight that follows w. */
CAIRN__HOST_DEVICE static inline float cairn__adam_element(const struct cairn__adam *h, float w, float grad, float *m,
                                                           float *v, float *greatest) {
    return w - cairn__adam_direction(h, w, grad, m, v, greatest);
}

/* The weight that follows w: a step of lr whatever the size of the gradient. *m is a slower mean than the one that
 * gives the sign. */
CAIRN__HOST_DEVICE static inline float cairn__lion_element(const struct cairn__lion *h, float w, float grad, float *m) {
    const float g = grad * h->factor;
    const float c = h->beta1 * *m + h->one_minus_beta1 * g;
    *m = h->beta2 * *m + h->one_minus_beta2 * g;
    const float step = c > 0 ? h->lr : c < 0 ? -h->lr : c;
    return w - (step + h->lr_decay * w);
}

/* The weight that follows w; *sum is that of all squared gradients. */
CAIRN__HOST_DEVICE static inline float cairn__adagrad_element(const struct cairn__adagrad *h, float w, float grad,
                                                              float *sum) {
    float g = grad * h->factor;
    if (!h->decoupled && h->weight_decay != 0) g = g + h->weight_decay * w;
    *sum = (h->first ? h->initial : *sum) + g * g;
    float update = h->lr * (g / (sqrtf(*sum) + h->eps));
    if (h->decoupled) update = update + h->lr_decay * w;
    return w - update;
}

/* From a to x by `share` in [0, 1]: a itself at 0, x itself at 1. Source: ATen/native/Lerp.h. */
CAIRN__HOST_DEVICE static inline float cairn__lerp(float a, float x, float share) {
    const float d = x - a;
    if (share == 1) return x;
    return share < 0.5f ? a + share * d : x - d * (1 - share);
}

/* bf16 of x, up or down by 16 random bits: what is cut off is the probability of going up. Infinities have nothing
 * below their bf16 and stay; above the greatest bf16 lies infinity. */
CAIRN__HOST_DEVICE static inline uint16_t cairn__round_stochastic(float x, uint32_t random) {
    const uint32_t u = cairn__f32_bits(x);
    if ((u & 0x7fffffffu) > 0x7f800000u) return cairn__f32_to_bf16(x);
    return (uint16_t)((u + random) >> 16);
}

/* The 16 bits of element i of a stream, whose block is that of i / 8. */
CAIRN__HOST_DEVICE static inline uint32_t cairn__random_16(const struct cairn__philox_block *block, uint64_t i) {
    return block->word[i % 8 / 2] >> 16 * (i % 2) & 0xffffu;
}

/* Bits of 2^-70: sums of a block's bf16 squares in f32 that reach it are great beside those that were left out. */
enum { CAIRN__LEAST_SQUARES = 0x1c800000 };

/* |h|, of subnormals too, without an operation that sees one. */
CAIRN__HOST_DEVICE static inline double cairn__bf16_magnitude(uint16_t h) {
    const uint16_t m = h & 0x7fffu;
    return m < 0x80 ? (double)m * 0x1p-133 : (double)cairn__bf16_to_f32(m);
}

/* ilogb of a finite f32 but 0, from its bits without the sign: subnormals count wherever they would be flushed. */
CAIRN__HOST_DEVICE static inline int32_t cairn__exponent_of(uint32_t magnitude) {
    if (magnitude >= 0x800000u) return (int32_t)(magnitude >> 23) - 127;
    int32_t exponent = -150;
    for (; magnitude; magnitude >>= 1) exponent++;
    return exponent;
}

/* |x| of a finite f32 likewise. */
CAIRN__HOST_DEVICE static inline double cairn__value_of(uint32_t magnitude) {
    return magnitude < 0x800000u ? (double)magnitude * 0x1p-149 : (double)cairn__f32_from_bits(magnitude);
}

#endif
