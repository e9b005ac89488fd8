/* Two passes, each over one dimension; one that would change nothing is left out, which gives the same bits. Only what
 * the result needs is computed: of a picture a pixel wide and a million high the middle takes no more than of any. */
#include "data/pictures/resize.h"

#include <math.h>
#include <stdbool.h>
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

static void set_taps(struct taps *t, int64_t i, int64_t place, int64_t in, double scale) {
    const double wide = scale < 1.0 ? 1.0 : scale, center = ((double)place + 0.5) * scale, inverse = 1.0 / wide;
    int64_t first = (int64_t)(center - wide + 0.5), end = (int64_t)(center + wide + 0.5);
    double sum = 0;
    if (first < 0) first = 0;
    if (end > in) end = in;
    for (int64_t k = 0; k < end - first; k++) {
        const double x = fabs(((double)(k + first) - center + 0.5) * inverse);
        t->exact[k] = x < 1.0 ? 1.0 - x : 0.0; /* a triangle */
        sum += t->exact[k];
    }
    for (int64_t k = 0; k < end - first; k++) {
        const double weight = sum != 0.0 ? t->exact[k] / sum : t->exact[k];
        t->weights[i * t->most + k] = (int32_t)(0.5 + weight * (1 << PRECISION));
    }
    t->first[i] = first;
    t->count[i] = end - first;
}

/* Of the n places from `begin` on, of `out` in all. */
static cairn_status make_taps(struct taps *t, int64_t in, int64_t out, int64_t begin, int64_t n) {
    const double scale = (double)in / (double)out, wide = scale < 1.0 ? 1.0 : scale;
    cairn_status st = CAIRN_OK;
    t->most = (int64_t)ceil(wide) * 2 + 1;
    TRY(cairn__calloc((size_t)n, sizeof(int64_t), (void **)&t->first));
    TRY(cairn__calloc((size_t)n, sizeof(int64_t), (void **)&t->count));
    TRY(cairn__calloc((size_t)n, (size_t)t->most * sizeof(int32_t), (void **)&t->weights));
    TRY(cairn__calloc((size_t)t->most, sizeof(double), (void **)&t->exact));
    for (int64_t i = 0; i < n; i++) set_taps(t, i, begin + i, in, scale);
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

/* Rows [from, to) of in. */
static void resize_width(const struct taps *t, const uint8_t *in, size_t in_row, int64_t from, int64_t to, uint8_t *out,
                         int64_t out_w) {
    for (int64_t y = from; y < to; y++)
        resize_row(t, in + (size_t)y * in_row, out + (size_t)((y - from) * out_w) * CHANNELS, out_w);
}

static cairn_status resize_height(const struct taps *t, const uint8_t *in, size_t in_row, uint8_t *out, int64_t out_h,
                                  int64_t w) {
    const size_t n = (size_t)w * CHANNELS;
    int32_t *sums = NULL;
    const cairn_status st = cairn__alloc(n * sizeof(sums[0]), (void **)&sums);
    for (int64_t y = 0; st == CAIRN_OK && y < out_h; y++)
        resize_columns(t, y, in, in_row, out + (size_t)y * n, n, sums);
    cairn__free(sums);
    return st;
}

cairn_status cairn__resize_bilinear(const uint8_t *in, int64_t in_h, int64_t in_w, size_t in_row,
                                    const struct cairn__resized_part *part, uint8_t *out) {
    const struct cairn_picture_box *b = &part->box;
    const bool has_width = in_w != part->out_w, has_height = in_h != part->out_h;
    const uint8_t *corner =
        in + (has_height ? 0 : (size_t)b->top * in_row) + (has_width ? 0 : (size_t)b->left * CHANNELS);
    const size_t row = (size_t)b->width * CHANNELS;
    struct taps across = {0}, down = {0};
    uint8_t *between = NULL; /* the rows that those of the result are made of, resized */
    cairn_status st = CAIRN_OK;
    if (has_width) TRY(make_taps(&across, in_w, part->out_w, b->left, b->width));
    if (has_height) TRY(make_taps(&down, in_h, part->out_h, b->top, b->height));
    if (has_width && has_height) {
        const int64_t last = b->height - 1, from = down.first[0], to = down.first[last] + down.count[last];
        TRY(cairn__alloc((size_t)(to - from) * row, (void **)&between));
        resize_width(&across, corner, in_row, from, to, between, b->width);
        for (int64_t y = 0; y < b->height; y++) down.first[y] -= from;
        TRY(resize_height(&down, between, row, out, b->height, b->width));
    } else if (has_width) {
        resize_width(&across, corner, in_row, 0, b->height, out, b->width);
    } else if (has_height) {
        TRY(resize_height(&down, corner, in_row, out, b->height, b->width));
    } else {
        for (int64_t y = 0; y < b->height; y++) memcpy(out + (size_t)y * row, corner + (size_t)y * in_row, row);
    }
out:
    cairn__free(between);
    free_taps(&across);
    free_taps(&down);
    return st;
}
