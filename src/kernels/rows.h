/* Kernels over rows, for softmax, normalisation and dropout: their contract, beside kernels.h, whose rules hold.
 *
 * x, y, dy, dx are of one storage type T: f32, f16, bf16 with R = f32, or f64 with R = f64, for the reference alone.
 * Numbers come and go as doubles that hold values of R, but for sums of norm_runs_sums, which are not rounded.
 *
 * Sums of f64 are over 16 lanes and the tree, element i of each run in lane i % 16. Sums of f32 go by the blocks of
 * kernels.h, which a run of more than CAIRN__SUM_BLOCK elements has for itself. Of shorter runs, of v = ceil(n / 16)
 * vectors, a block takes floor(CAIRN__SUM_BLOCK / 16 / v) one after the other, element i of each in lane i % 16. So no
 * lane adds more than 16 terms, and the bounds of kernels.h hold. */
#ifndef CAIRN__KERNELS_ROWS_H
#define CAIRN__KERNELS_ROWS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The greatest of n elements, NaN where one is; -inf of none. A greatest of 0 is +0. */
typedef double (*cairn__greatest_kernel)(const void *x, size_t n);

/* dx = y * (dy - sum of dy * y): the gradient of a softmax y of n elements. dx may be dy or y. */
typedef void (*cairn__softmax_backward_kernel)(void *dx, const void *dy, const void *y, size_t n);

/* A part of an array: `count` runs of n elements, which begin `stride` elements apart. */
struct cairn__runs {
    size_t count, n, stride;
};

/* Mean and biased variance of N = count * n > 0 elements, in two passes, the second of which corrects the first:
 *     m = sum(x) / N;  d = x - m;  s = sum(d);  q = sum(d * d)
 *     mean = m + s / N;  variance = (q - s * s / N) / N, no less than 0
 * m, d, d * d and the results are rounded to R; what is made of sums is computed in f64. With u, S of kernels.h (of d *
 * d for the variance) |error of the mean| <= 1.2e-6 S(d) / N + u |mean|, |error of the variance| <= 1.4e-6 variance +
 * (u mean)^2, of which 2e-7 are the roundings of d and d * d.
 * Not centred: mean = 0, variance = sum(x * x) / N.
 * Source: Chan, Golub, LeVeque, "Algorithms for Computing the Sample Variance", Am. Stat. 37 (1983), equation 1.7. */
typedef void (*cairn__moments_kernel)(const void *x, const struct cairn__runs *runs, bool centred, double *mean,
                                      double *variance);

/* y[i] = (x[i] - mean) * rstd * weight[i] + bias[i], from left to right; weight and bias, of type R, may be NULL. */
typedef void (*cairn__norm_row_kernel)(void *y, const void *x, const void *weight, const void *bias, size_t n,
                                       double mean, double rstd);

/* The gradients of rows that follow one another, n elements each. With h = (x - mean) * rstd and g = dy * weight
 * (weight NULL: dy), of each row, one row after the other:
 *     dweight[i] += dy[i] * h[i];  dbias[i] += dy[i]          type R, each may be NULL
 *     dx[i] = ((g[i] - sum(g) / n) - h[i] * (sum(g * h) / n)) * rstd          may be NULL
 * mean and rstd: R [rows]. mean NULL, not centred: 0, and without sum(g) / n, 0 instead. */
struct cairn__norm_rows {
    const void *dy, *x, *weight;
    void *dx, *dweight, *dbias;
    size_t rows, n;
    const void *mean, *rstd;
};
typedef void (*cairn__norm_rows_backward_kernel)(const struct cairn__norm_rows *rows);

/* y = (x - mean) * scale + shift over runs of equal places in x and y. */
typedef void (*cairn__norm_runs_kernel)(void *y, const void *x, const struct cairn__runs *runs, double mean,
                                        double scale, double shift);

/* sums[0] = sum(dy), sums[1] = sum(dy * (x - mean)) over runs. */
typedef void (*cairn__norm_runs_sums_kernel)(const void *dy, const void *x, const struct cairn__runs *runs, double mean,
                                             double sums[2]);

/* dx = dy * a + ((x - mean) * b + c) over runs. */
typedef void (*cairn__norm_runs_backward_kernel)(void *dx, const void *dy, const void *x,
                                                 const struct cairn__runs *runs, double mean, double a, double b,
                                                 double c);

/* dst[i] = word(first + i) >> 8 >= least ? x[i] * scale : 0, where word(e) is word e % 4 of the Philox block of counter
 * (e / 4, stream) under the key `seed` (core/philox.h): dropped with probability least / 2^24. */
struct cairn__dropout {
    uint64_t seed, stream, first;
    uint32_t least;
    double scale;
};
typedef void (*cairn__dropout_kernel)(void *dst, const void *x, size_t n, const struct cairn__dropout *how);

#endif
