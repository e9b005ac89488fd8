/* Running sums in a type: every addition is computed in f32 and immediately rounded to the type, like an accumulator of
 * that type in memory, or a weight of that type under an optimizer without masters. */
#ifndef LAB_ROUNDED_SUM_H
#define LAB_ROUNDED_SUM_H

#include <stddef.h>
#include <stdint.h>

#include "cairn/core.h"

enum lab_rounding { LAB_NEAREST = 1, LAB_STOCHASTIC };

/* Returns x rounded to dtype (f32, f16, bf16) to nearest even, as an f32. */
float lab_round(cairn_dtype dtype, float x);

/* A running sum; do not write its fields. Stochastic rounding, for bf16 only, rounds to the neighbour above or below
 * with a probability given by the distance, using the random numbers of the optimizers' kernel (kernels/kernels.h):
 * those of addition i depend on (seed, stream, i). */
struct lab_sum {
    cairn_dtype dtype;
    enum lab_rounding rounding;
    uint64_t seed, stream;
    uint64_t additions;
    float value;
};

/* s = s + term, rounded. */
void lab_sum_add(struct lab_sum *s, float term);

/* Adds n equal terms, beginning with the sum start. */
float lab_sum_equal(struct lab_sum s, float start, float term, size_t n);

/* Mean and standard deviation of `runs` such sums; run r uses the stream r. */
struct lab_moments {
    double mean, deviation;
};
struct lab_moments lab_sum_moments(struct lab_sum s, float start, float term, size_t n, size_t runs);

#endif
