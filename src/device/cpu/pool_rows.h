/* Loops over a row of outputs for `taps` adjacent elements of a pooling window. pool.c includes this file twice, with R
 * the type of arithmetic and NAMED(x) a name with R's suffix. Common strides and widths are constants, so that the
 * compiler can vectorise the loops. */
#define BY_SHAPE(f, ...)                   \
    if (stride == 2 && taps == 3) {        \
        f(__VA_ARGS__, 2, 3);              \
    } else if (stride == 2 && taps == 2) { \
        f(__VA_ARGS__, 2, 2);              \
    } else if (stride == 2 && taps == 1) { \
        f(__VA_ARGS__, 2, 1);              \
    } else if (stride == 1 && taps == 1) { \
        f(__VA_ARGS__, 1, 1);              \
    } else {                               \
        f(__VA_ARGS__, stride, taps);      \
    }

static inline R NAMED(choose)(bool first, R a, R b) {
    BITS x, y;
    memcpy(&x, &a, sizeof(x));
    memcpy(&y, &b, sizeof(y));
    x = y ^ ((x ^ y) & (0 - (BITS)first));
    memcpy(&a, &x, sizeof(a));
    return a;
}

/* No branch, not even in the remainder of vectors: which value wins cannot be predicted. */
static inline void NAMED(max_loop)(R *restrict y, int32_t *restrict at, const R *restrict x, int32_t index, int64_t n,
                                   int64_t stride, int64_t taps) {
    for (int64_t i = 0; i < n; i++) {
        R best = y[i];
        int32_t where = at[i];
        for (int64_t s = 0; s < taps; s++) {
            const R v = x[i * stride + s];
            const int32_t place = index + (int32_t)(i * stride + s);
            const bool wins = (v > best) | (v != v) | (where < 0);
            best = NAMED(choose)(wins, v, best);
            where = where ^ ((where ^ place) & -(int32_t)wins);
        }
        y[i] = best;
        at[i] = where;
    }
}

static void NAMED(max)(void *y, int32_t *at, const void *x, int32_t index, int64_t n, int64_t stride, int64_t taps) {
    BY_SHAPE(NAMED(max_loop), y, at, x, index, n)
}

static inline void NAMED(add_loop)(R *restrict y, const R *restrict x, int64_t n, int64_t stride, int64_t taps) {
    for (int64_t i = 0; i < n; i++) {
        R sum = y[i];
        for (int64_t s = 0; s < taps; s++) sum += x[i * stride + s];
        y[i] = sum;
    }
}

static void NAMED(add)(void *y, const void *x, int64_t n, int64_t stride, int64_t taps) {
    BY_SHAPE(NAMED(add_loop), y, x, n)
}

/* Tap by tap: neighbouring outputs meet in one input. */
static inline void NAMED(add_back_loop)(R *restrict dx, const R *restrict dy, int64_t n, int64_t stride, int64_t taps) {
    for (int64_t s = 0; s < taps; s++) {
        for (int64_t i = 0; i < n; i++) dx[i * stride + s] += dy[i];
    }
}

static void NAMED(add_back)(void *dx, const void *dy, int64_t n, int64_t stride, int64_t taps) {
    BY_SHAPE(NAMED(add_back_loop), dx, dy, n)
}

static void NAMED(scatter)(void *dx, const void *dy, const int32_t *at, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        if (at[i] >= 0) ((R *)dx)[at[i]] += ((const R *)dy)[i];
    }
}

static void NAMED(fill)(void *y, double value, int64_t n) {
    for (int64_t i = 0; i < n; i++) ((R *)y)[i] = (R)value;
}

static void NAMED(divide)(void *y, const void *x, const int32_t *widths, int64_t height, int64_t n) {
    for (int64_t i = 0; i < n; i++) ((R *)y)[i] = ((const R *)x)[i] / ((R)widths[i] * (R)height);
}

static void NAMED(means)(void *y, const void *x, int64_t n, const struct window *w) {
    const R *from = x, area = (R)w->width * (R)w->height;
    for (int64_t i = 0; i < n; i++, from += w->n) {
        R sum = 0;
        for (int64_t j = 0; j < w->n; j++) sum += from[j];
        ((R *)y)[i] = sum / area;
    }
}

/* 0 + share, as add_share would have it. */
static void NAMED(shares)(void *dx, const void *dy, int64_t n, const struct window *w) {
    R *to = dx, area = (R)w->width * (R)w->height;
    for (int64_t i = 0; i < n; i++, to += w->n) {
        const R share = ((const R *)dy)[i] / area;
        for (int64_t j = 0; j < w->n; j++) to[j] = 0 + share;
    }
}

static void NAMED(add_share)(void *dx, const void *dy, int64_t n, const struct window *w) {
    const R share = *(const R *)dy / ((R)w->width * (R)w->height);
    for (int64_t i = 0; i < n; i++) ((R *)dx)[i] += share;
}

static const struct rows NAMED(rows) = {NAMED(max),    NAMED(add),   NAMED(add_back), NAMED(scatter),  NAMED(fill),
                                        NAMED(divide), NAMED(means), NAMED(shares),   NAMED(add_share)};
#undef BY_SHAPE
