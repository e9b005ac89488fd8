/* The references of rows.h, over R: a template that ref_rows.c includes for f32 and for f64, with R, IN (the suffix),
 * get_IN and put_IN defined. */

/* A sum in the making: 16 lanes of R, and what they have been closed into. */
struct OF(sum) {
    R lane[LANES];
    double all;
};

INLINE R OF(tree)(R lane[LANES]) {
    for (int half = LANES / 2; half > 0; half /= 2) {
        for (int j = 0; j < half; j++) lane[j] += lane[j + half];
    }
    return lane[0];
}

INLINE void OF(close)(struct OF(sum) * sum) {
    sum->all += (double)OF(tree)(sum->lane);
    for (int j = 0; j < LANES; j++) sum->lane[j] = 0;
}

INLINE double OF(total)(struct OF(sum) * sum) {
    OF(close)(sum);
    return sum->all;
}

/* Element i of a run. f64 needs no blocks. */
INLINE void OF(add)(struct OF(sum) * sum, size_t i, R term) {
    if (sizeof(R) == sizeof(float) && i > 0 && i % CAIRN__SUM_BLOCK == 0) OF(close)(sum);
    sum->lane[i % LANES] += term;
}

/* Whether a block ends with run r: a long run, or as many as have CAIRN__SUM_BLOCK / LANES vectors. */
INLINE bool OF(closes)(const struct cairn__runs *runs, size_t r) {
    const size_t vectors = (runs->n + LANES - 1) / LANES, most = CAIRN__SUM_BLOCK / LANES;
    return sizeof(R) == sizeof(float) && (vectors > most || (vectors > 0 && (r + 1) % (most / vectors) == 0));
}

INLINE double OF(greatest)(int type, const void *x, size_t n) {
    R most = -(R)INFINITY;
    for (size_t i = 0; i < n; i++) {
        const R v = OF(get)(type, x, i);
        if (v > most || v != v) most = v;
        if (most != most) break;
    }
    return most + 0;
}

INLINE void OF(softmax_backward)(int type, void *dx, const void *dy, const void *y, size_t n) {
    struct OF(sum) products = {{0}, 0};
    for (size_t i = 0; i < n; i++) OF(add)(&products, i, OF(get)(type, dy, i) * OF(get)(type, y, i));
    const R sum = (R)OF(total)(&products);
    for (size_t i = 0; i < n; i++) OF(put)(type, dx, i, OF(get)(type, y, i) * (OF(get)(type, dy, i) - sum));
}

/* Sums of d = x - centre and of d * d. */
INLINE void OF(sums_around)(int type, const void *x, const struct cairn__runs *runs, R centre, double *sum,
                            double *squares) {
    struct OF(sum) lane = {{0}, 0}, square = {{0}, 0};
    for (size_t r = 0; r < runs->count; r++) {
        for (size_t i = 0; i < runs->n; i++) {
            const R d = OF(get)(type, x, r * runs->stride + i) - centre;
            OF(add)(&lane, i, d);
            OF(add)(&square, i, d * d);
        }
        if (OF(closes)(runs, r)) OF(close)(&lane), OF(close)(&square);
    }
    *sum = OF(total)(&lane);
    *squares = OF(total)(&square);
}

INLINE void OF(moments)(int type, const void *x, const struct cairn__runs *runs, bool centred, double *mean,
                        double *variance) {
    const double n = (double)(runs->count * runs->n);
    double s = 0, q = 0;
    R m = 0;
    OF(sums_around)(type, x, runs, 0, &s, &q);
    if (centred) {
        m = (R)(s / n);
        OF(sums_around)(type, x, runs, m, &s, &q);
        m = (R)((double)m + s / n);
        q = q - s * s / n;
    }
    *mean = m;
    *variance = q < 0 ? 0 : (double)(R)(q / n);
}

INLINE void OF(norm_row)(int type, void *y, const void *x, const void *weight, const void *bias, size_t n, double mean,
                         double rstd) {
    const R m = (R)mean, r = (R)rstd, *w = weight, *b = bias;
    for (size_t i = 0; i < n; i++) {
        R v = (OF(get)(type, x, i) - m) * r;
        if (w) v = v * w[i];
        if (b) v = v + b[i];
        OF(put)(type, y, i, v);
    }
}

INLINE void OF(norm_row_backward)(int type, const struct cairn__norm_rows *o, size_t row) {
    const R m = o->mean ? ((const R *)o->mean)[row] : 0, r = ((const R *)o->rstd)[row], *w = o->weight;
    R *dw = o->dweight, *db = o->dbias;
    const size_t first = row * o->n;
    struct OF(sum) sum_g = {{0}, 0}, sum_gh = {{0}, 0};
    for (size_t i = 0; i < o->n; i++) {
        const R dy = OF(get)(type, o->dy, first + i), h = (OF(get)(type, o->x, first + i) - m) * r;
        const R g = w ? dy * w[i] : dy;
        if (dw) dw[i] += dy * h;
        if (db) db[i] += dy;
        OF(add)(&sum_g, i, g);
        OF(add)(&sum_gh, i, g * h);
    }
    if (!o->dx) return;
    const double n = (double)o->n;
    const R mean_g = o->mean ? (R)(OF(total)(&sum_g) / n) : 0, mean_gh = (R)(OF(total)(&sum_gh) / n);
    for (size_t i = 0; i < o->n; i++) {
        const R dy = OF(get)(type, o->dy, first + i), h = (OF(get)(type, o->x, first + i) - m) * r;
        const R g = w ? dy * w[i] : dy;
        OF(put)(type, o->dx, first + i, ((g - mean_g) - h * mean_gh) * r);
    }
}

INLINE void OF(norm_rows_backward)(int type, const struct cairn__norm_rows *o) {
    for (size_t row = 0; row < o->rows; row++) OF(norm_row_backward)(type, o, row);
}

INLINE void OF(norm_runs)(int type, void *y, const void *x, const struct cairn__runs *runs, double mean, double scale,
                          double shift) {
    const R m = (R)mean, a = (R)scale, b = (R)shift;
    for (size_t r = 0; r < runs->count; r++) {
        for (size_t i = r * runs->stride; i < r * runs->stride + runs->n; i++)
            OF(put)(type, y, i, (OF(get)(type, x, i) - m) * a + b);
    }
}

INLINE void OF(norm_runs_sums)(int type, const void *dy, const void *x, const struct cairn__runs *runs, double mean,
                               double sums[2]) {
    const R m = (R)mean;
    struct OF(sum) lane = {{0}, 0}, product = {{0}, 0};
    for (size_t r = 0; r < runs->count; r++) {
        for (size_t i = 0; i < runs->n; i++) {
            const size_t at = r * runs->stride + i;
            OF(add)(&lane, i, OF(get)(type, dy, at));
            OF(add)(&product, i, OF(get)(type, dy, at) * (OF(get)(type, x, at) - m));
        }
        if (OF(closes)(runs, r)) OF(close)(&lane), OF(close)(&product);
    }
    sums[0] = OF(total)(&lane);
    sums[1] = OF(total)(&product);
}

INLINE void OF(norm_runs_backward)(int type, void *dx, const void *dy, const void *x, const struct cairn__runs *runs,
                                   double mean, double a, double b, double c) {
    const R m = (R)mean, ra = (R)a, rb = (R)b, rc = (R)c;
    for (size_t r = 0; r < runs->count; r++) {
        for (size_t i = r * runs->stride; i < r * runs->stride + runs->n; i++)
            OF(put)(type, dx, i, OF(get)(type, dy, i) * ra + ((OF(get)(type, x, i) - m) * rb + rc));
    }
}

INLINE void OF(dropout)(int type, void *dst, const void *x, size_t n, const struct cairn__dropout *how) {
    const R scale = (R)how->scale;
    for (size_t i = 0; i < n; i++) {
        const uint64_t e = how->first + i;
        const uint32_t word = cairn__philox(how->seed, e / 4, how->stream).word[e % 4];
        OF(put)(type, dst, i, word >> 8 >= how->least ? OF(get)(type, x, i) * scale : 0);
    }
}
