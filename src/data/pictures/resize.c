/* Two passes, each over one dimension; one that would change nothing is left out, which gives the same bits. */
#include "data/pictures/resize.h"

#include <math.h>
#include <string.h>

#include "core/alloc.h"
#include "core/status.h"

enum { PRECISION = 22, CHANNELS = 3 }; /* 8 bits of a value, two for sums above 1 and the sign */

/* What each place of the result is made of: weights [n][most] of the inputs first[i], ..., first[i] + count[i] - 1. */
struct taps {
    int64_t most;
    int64_t *first, *count;
    int32_t *weights;
    double *exact; /* [most], of one place */
};

static void free_taps(struct taps *t) {
    cairn__free(t->first);
    cairn__free(t->count);
    cairn__free(t->weights);
    cairn__free(t->exact);
}

static double triangle(double x) {
    x = fabs(x);
    return x < 1.0 ? 1.0 - x : 0.0;
}

static void set_taps(struct taps *t, int64_t i, int64_t in, double scale) {
    const double wide = scale < 1.0 ? 1.0 : scale, center = ((double)i + 0.5) * scale, inverse = 1.0 / wide;
    int64_t first = (int64_t)(center - wide + 0.5), end = (int64_t)(center + wide + 0.5);
    double sum = 0;
    if (first < 0) first = 0;
    if (end > in) end = in;
    for (int64_t k = 0; k < end - first; k++) {
        t->exact[k] = triangle(((double)(k + first) - center + 0.5) * inverse);
        sum += t->exact[k];
    }
    for (int64_t k = 0; k < end - first; k++) {
        const double weight = sum != 0.0 ? t->exact[k] / sum : t->exact[k];
        t->weights[i * t->most + k] = (int32_t)(0.5 + weight * (1 << PRECISION));
    }
    t->first[i] = first;
    t->count[i] = end - first;
}

static cairn_status make_taps(struct taps *t, int64_t in, int64_t out) {
    const double scale = (double)in / (double)out, wide = scale < 1.0 ? 1.0 : scale;
    cairn_status st = CAIRN_OK;
    t->most = (int64_t)ceil(wide) * 2 + 1;
    TRY(cairn__calloc((size_t)out, sizeof(int64_t), (void **)&t->first));
    TRY(cairn__calloc((size_t)out, sizeof(int64_t), (void **)&t->count));
    TRY(cairn__calloc((size_t)out, (size_t)t->most * sizeof(int32_t), (void **)&t->weights));
    TRY(cairn__calloc((size_t)t->most, sizeof(double), (void **)&t->exact));
    for (int64_t i = 0; i < out; i++) set_taps(t, i, in, scale);
out:
    return st;
}

/* Weights are not negative and add up to 1 within their rounding, so sums are from 0 to a little over 255. */
static uint8_t round_sum(int32_t sum) {
    sum >>= PRECISION;
    return (uint8_t)(sum > 255 ? 255 : sum);
}

static void resize_row(const struct taps *t, const uint8_t *in, uint8_t *out, int64_t out_w) {
    for (int64_t x = 0; x < out_w; x++) {
        const int32_t *weights = t->weights + x * t->most;
        const uint8_t *from = in + t->first[x] * CHANNELS;
        int32_t r = 1 << (PRECISION - 1), g = r, b = r;
        for (int64_t k = 0; k < t->count[x]; k++) {
            r += weights[k] * from[CHANNELS * k];
            g += weights[k] * from[CHANNELS * k + 1];
            b += weights[k] * from[CHANNELS * k + 2];
        }
        out[CHANNELS * x] = round_sum(r);
        out[CHANNELS * x + 1] = round_sum(g);
        out[CHANNELS * x + 2] = round_sum(b);
    }
}

/* n bytes of row y of the result, from rows of in_row bytes; sums [n]. */
static void resize_columns(const struct taps *t, int64_t y, const uint8_t *in, size_t in_row, uint8_t *out, size_t n,
                           int32_t *sums) {
    const int32_t *weights = t->weights + y * t->most;
    for (size_t i = 0; i < n; i++) sums[i] = 1 << (PRECISION - 1);
    for (int64_t k = 0; k < t->count[y]; k++) {
        const uint8_t *from = in + (size_t)(t->first[y] + k) * in_row;
        const int32_t weight = weights[k];
        for (size_t i = 0; i < n; i++) sums[i] += weight * from[i];
    }
    for (size_t i = 0; i < n; i++) out[i] = round_sum(sums[i]);
}

static cairn_status resize_width(const uint8_t *in, int64_t h, int64_t in_w, size_t in_row, uint8_t *out,
                                 int64_t out_w) {
    struct taps t = {0};
    const cairn_status st = make_taps(&t, in_w, out_w);
    for (int64_t y = 0; st == CAIRN_OK && y < h; y++)
        resize_row(&t, in + (size_t)y * in_row, out + (size_t)y * (size_t)out_w * CHANNELS, out_w);
    free_taps(&t);
    return st;
}

static cairn_status resize_height(const uint8_t *in, int64_t in_h, int64_t w, size_t in_row, uint8_t *out,
                                  int64_t out_h) {
    const size_t n = (size_t)w * CHANNELS;
    struct taps t = {0};
    int32_t *sums = NULL;
    cairn_status st = CAIRN_OK;
    TRY(make_taps(&t, in_h, out_h));
    TRY(cairn__alloc(n * sizeof(sums[0]), (void **)&sums));
    for (int64_t y = 0; y < out_h; y++) resize_columns(&t, y, in, in_row, out + (size_t)y * n, n, sums);
out:
    cairn__free(sums);
    free_taps(&t);
    return st;
}

cairn_status cairn__resize_bilinear(const uint8_t *in, int64_t in_h, int64_t in_w, size_t in_row, uint8_t *out,
                                    int64_t out_h, int64_t out_w) {
    const size_t row = (size_t)out_w * CHANNELS;
    cairn_status st = CAIRN_OK;
    uint8_t *between = NULL; /* [in_h, out_w] */
    if (in_w != out_w && in_h != out_h) {
        TRY(cairn__alloc((size_t)in_h * row, (void **)&between));
        TRY(resize_width(in, in_h, in_w, in_row, between, out_w));
        TRY(resize_height(between, in_h, out_w, row, out, out_h));
    } else if (in_w != out_w) {
        TRY(resize_width(in, in_h, in_w, in_row, out, out_w));
    } else if (in_h != out_h) {
        TRY(resize_height(in, in_h, in_w, in_row, out, out_h));
    } else {
        for (int64_t y = 0; y < in_h; y++) memcpy(out + (size_t)y * row, in + (size_t)y * in_row, row);
    }
out:
    cairn__free(between);
    return st;
}
