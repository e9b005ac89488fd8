/* Shapes of convolutions for tests. */
#ifndef TESTS_DEVICE_CONV_SIZES_H
#define TESTS_DEVICE_CONV_SIZES_H

#include <string.h>

#include "device/math_passes.h"

struct sizes {
    const char *name;
    int64_t n, c, h, w, k, r, s, groups, stride[2], padding[2], dilation[2], output_padding[2];
    bool transposed;
};

static const struct sizes conv_cases[] = {
    {"one pixel", 1, 1, 1, 1, 1, 1, 1, 1, {1, 1}, {0, 0}, {1, 1}, {0, 0}, false},
    {"plain", 2, 3, 7, 9, 5, 3, 3, 1, {1, 1}, {1, 1}, {1, 1}, {0, 0}, false},
    {"unequal everywhere", 2, 3, 9, 14, 4, 3, 2, 1, {2, 3}, {1, 0}, {2, 1}, {0, 0}, false},
    {"stride leaves rows over", 2, 4, 8, 8, 4, 3, 3, 1, {2, 2}, {0, 0}, {1, 1}, {0, 0}, false},
    {"pointwise", 3, 19, 5, 5, 34, 1, 1, 1, {1, 1}, {0, 0}, {1, 1}, {0, 0}, false},
    {"depthwise", 2, 18, 6, 7, 18, 3, 3, 18, {1, 1}, {1, 1}, {1, 1}, {0, 0}, false},
    {"groups", 3, 8, 6, 6, 12, 3, 3, 4, {1, 2}, {1, 1}, {1, 1}, {0, 0}, false},
    {"1-D", 2, 6, 1, 33, 8, 1, 5, 1, {1, 2}, {0, 2}, {1, 3}, {0, 0}, false},
    {"padding beyond the kernel", 2, 3, 3, 3, 4, 2, 2, 1, {2, 2}, {4, 3}, {1, 1}, {0, 0}, false},
    {"transposed", 2, 5, 4, 6, 3, 3, 3, 1, {1, 1}, {1, 1}, {1, 1}, {0, 0}, true},
    {"transposed with stride", 2, 6, 4, 5, 4, 3, 4, 2, {2, 3}, {1, 0}, {1, 2}, {1, 2}, true},
    {"pointwise, large planes", 2, 32, 12, 12, 8, 1, 1, 1, {1, 1}, {0, 0}, {1, 1}, {0, 0}, false},
    {"pointwise with stride", 2, 32, 6, 6, 48, 1, 1, 1, {2, 2}, {0, 0}, {1, 1}, {0, 0}, false},
    {"pointwise with padding", 2, 3, 4, 4, 4, 1, 1, 1, {1, 1}, {1, 1}, {1, 1}, {0, 0}, false},
    {"depthwise, two each", 2, 5, 6, 7, 10, 3, 3, 5, {1, 2}, {1, 1}, {1, 1}, {0, 0}, false},
    {"groups of blocks", 2, 32, 6, 6, 64, 3, 3, 2, {1, 1}, {1, 1}, {1, 1}, {0, 0}, false},
    {"few pixels, many weights", 3, 64, 2, 2, 96, 3, 3, 1, {1, 1}, {1, 1}, {1, 1}, {0, 0}, false},
    {"first layer", 2, 3, 20, 20, 16, 7, 7, 1, {2, 2}, {3, 3}, {1, 1}, {0, 0}, false},
    {"several blocks of columns", 5, 3, 120, 120, 2, 3, 3, 1, {1, 1}, {1, 1}, {1, 1}, {0, 0}, false},
    {"pointwise, one image, many channels", 1, 512, 7, 7, 256, 1, 1, 1, {1, 1}, {0, 0}, {1, 1}, {0, 0}, false},
    {"large planes", 1, 16, 40, 40, 16, 3, 3, 1, {1, 1}, {1, 1}, {1, 1}, {0, 0}, false},
    {"transposed, output padding beyond the stride", 2, 3, 4, 4, 5, 2, 2, 1, {1, 1}, {0, 0}, {3, 3}, {2, 2}, true},
    {"transposed, wide", 2, 32, 5, 5, 32, 4, 4, 1, {2, 2}, {1, 1}, {1, 1}, {0, 0}, true},
};
/* The first ones are small and cover every kind; the others exercise further code paths of the CPU. */
enum { CASES = sizeof(conv_cases) / sizeof(conv_cases[0]), SMALL_CASES = 11 };

static inline struct cairn__conv conv_of(const struct sizes *z) {
    const int64_t taps[2] = {z->r, z->s}, size[2] = {z->h, z->w};
    int64_t out[2];
    for (int a = 0; a < 2; a++) {
        const int64_t reach = z->dilation[a] * (taps[a] - 1) + 1;
        out[a] = z->transposed ? (size[a] - 1) * z->stride[a] - 2 * z->padding[a] + reach + z->output_padding[a]
                               : (size[a] + 2 * z->padding[a] - reach) / z->stride[a] + 1;
    }
    struct cairn__conv v = {.n = z->n, .c = z->c, .h = z->h, .w = z->w, .k = z->k, .r = z->r, .s = z->s};
    v.p = out[0], v.q = out[1], v.groups = z->groups, v.transposed = z->transposed;
    memcpy(v.stride, z->stride, sizeof(v.stride));
    memcpy(v.padding, z->padding, sizeof(v.padding));
    memcpy(v.dilation, z->dilation, sizeof(v.dilation));
    return v;
}

#endif
