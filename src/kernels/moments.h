/* Merges the means and variances of a batch's shares. Written once and compiled for the host and for CUDA, so that
 * ranks on CPUs and GPUs have equal bits. */
#ifndef CAIRN__KERNELS_MOMENTS_H
#define CAIRN__KERNELS_MOMENTS_H

#include <stddef.h>

#include "core/half.h"

/* all [shares][stride]: the number of a share's values, then the pair of each channel. In order of shares, in f64:
 *     sum(n_r) */
CAIRN__HOST_DEVICE static inline double cairn__total_count(const double *all, size_t shares, size_t stride) {
    double total = 0;
    for (size_t r = 0; r < shares; r++) total += all[r * stride];
    return total;
}

/* The pair at `at`, from the shares' means and biased variances m_r, v_r of n_r values each, N together, N > 0:
 *     mean = sum(n_r m_r) / N;  variance = sum(n_r (v_r + (m_r - mean)^2)) / N
 * which is what Chan's pairwise merge (Am. Stat. 37, 1983) comes to, with fewer roundings. */
CAIRN__HOST_DEVICE static inline void cairn__merge_pair(double *pair, const double *all, size_t shares, size_t stride,
                                                        size_t at, double total) {
    double sum = 0, squares = 0, mean;
    for (size_t r = 0; r < shares; r++) sum += all[r * stride] * all[r * stride + at];
    mean = sum / total;
    for (size_t r = 0; r < shares; r++) {
        const double *share = all + r * stride, d = share[at] - mean;
        squares += share[0] * (share[at + 1] + d * d);
    }
    pair[0] = mean;
    pair[1] = squares / total;
}

#endif
