/* Sums that are kept in a type: every addition is formed in f32 and rounded to the type at once, as an accumulator of
 * that type does in memory, and a weight of that type under an optimizer without masters. */
#ifndef LAB_ROUNDED_SUM_H
#define LAB_ROUNDED_SUM_H

#include <stddef.h>
#include <stdint.h>

#include "cairn/core.h"

enum lab_rounding { LAB_NEAREST = 1, LAB_STOCHASTIC };

/* x, rounded to dtype (f32, f16, bf16) to nearest even, as an f32. */
float lab_round(cairn_dtype dtype, float x);

/* A running sum; its fields are read and not written. Stochastic rounding is bf16's alone: to the neighbour above or
 * below with the probability of the distance, by the numbers that the optimizers' kernel draws (kernels/kernels.h):
 * those of addition i are a function of (seed, stream, i). */
struct lab_sum {
    cairn_dtype dtype;
    enum lab_rounding rounding;
    uint64_t seed, stream;
    uint64_t additions;
    float value;
};

/* s = s + term, rounded. */
void lab_sum_add(struct lab_sum *s, float term);

/* n equal terms, from start. */
float lab_sum_equal(struct lab_sum s, float start, float term, size_t n);

/* Mean and standard deviation of `runs` such sums, run r with the stream r. */
struct lab_moments {
    double mean, deviation;
};
struct lab_moments lab_sum_moments(struct lab_sum s, float start, float term, size_t n, size_t runs);

#endif
