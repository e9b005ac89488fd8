/* The kernels over rows (rows.h) once more, 16 lanes at a time: the second half of the text that simd.h is.
 *
 *   keep_first(v, count)                     the first lanes of v, +0 behind
 *   keep_from(words, least, v)               v where words >> 8 >= least, else +0 */

/* Runs the statement over all vectors of all runs, each described by `at` and `base`, its run's first element. */
#define OVER_RUNS(runs, ...)                              \
    for (size_t run_ = 0; run_ < (runs)->count; run_++) { \
        const size_t base = run_ * (runs)->stride;        \
        OVER((runs)->n, NULL, 4, __VA_ARGS__);            \
    }

/* SUM_OVER over runs: long ones have blocks of their own, of short ones a block takes as many as rows.h says. */
#define SUM_OVER_RUNS(runs, close, ...)                                                 \
    do {                                                                                \
        const size_t vectors_ = ((runs)->n + LANES - 1) / LANES;                        \
        const size_t at_once_ = vectors_ > 0 ? CAIRN__SUM_BLOCK / LANES / vectors_ : 0; \
        size_t left_ = at_once_;                                                        \
        for (size_t run_ = 0; run_ < (runs)->count; run_++) {                           \
            const size_t base = run_ * (runs)->stride;                                  \
            if (at_once_ == 0) {                                                        \
                SUM_OVER((runs)->n, close, __VA_ARGS__);                                \
                continue;                                                               \
            }                                                                           \
            OVER_SOME(0, (runs)->n, __VA_ARGS__);                                       \
            if (--left_ > 0) continue;                                                  \
            close;                                                                      \
            left_ = at_once_;                                                           \
        }                                                                               \
        if (left_ < at_once_) close;                                                    \
    } while (0)

INLINE void *element_of(int type, void *x, size_t i) {
    return (char *)x + i * width_of(type);
}

/* A part block's lanes behind the end hold what came of +0 there. */
INLINE vec only(vec v, struct at at) {
    return at.how == PART ? keep_first(v, at.count) : v;
}

INLINE double greatest_of_few(int type, const void *x, size_t n) {
    float lane[LANES], most = -INFINITY;
    store_f32(lane, get(type, x, (struct at){0, PART, n}));
    for (size_t i = 0; i < n; i++) {
        if (lane[i] != lane[i]) return NAN;
        most = lane[i] > most ? lane[i] : most;
    }
    return most + 0.0f;
}

INLINE void look(int type, const void *x, size_t i, vec *most, bits *seen) {
    const vec v = get(type, x, (struct at){i, WHOLE, LANES});
    *most = maximum(*most, v);
    *seen = see(*seen, v);
}

/* Which of two a maximum is does not matter, so there are four at once, and the last block may overlap another.
 * A NaN, which `maximum` may lose, is the greatest magnitude. */
INLINE double greatest_f32(int type, const void *x, size_t n) {
    enum { AT_ONCE = 4 };
    vec most[AT_ONCE];
    bits seen[AT_ONCE];
    float lane[LANES];
    size_t i = 0;
    if (n < LANES) return greatest_of_few(type, x, n);
    for (int j = 0; j < AT_ONCE; j++) most[j] = splat(-INFINITY), seen[j] = nothing_seen();
    for (; i + AT_ONCE * LANES <= n; i += AT_ONCE * LANES) {
        for (int j = 0; j < AT_ONCE; j++) look(type, x, i + (size_t)j * LANES, &most[j], &seen[j]);
    }
    for (; i + LANES <= n; i += LANES) look(type, x, i, &most[0], &seen[0]);
    if (i < n) look(type, x, n - LANES, &most[1], &seen[1]);
    store_f32(lane, maximum(maximum(most[0], most[1]), maximum(most[2], most[3])));
    for (int j = 1; j < LANES; j++) lane[0] = lane[j] > lane[0] ? lane[j] : lane[0];
    for (int j = 0; j < AT_ONCE; j++) {
        if (any_from(seen[j], 0x7f800001u)) return NAN;
    }
    return lane[0] + 0.0f;
}

INLINE void softmax_backward_f32(int type, void *dx, const void *dy, const void *y, size_t n) {
    vec lanes = splat(0);
    double all = 0;
    SUM_OVER(n, close_block(&all, &lanes), lanes = add(lanes, mul(get(type, dy, at), get(type, y, at))));
    const vec sum = splat((float)all);
    OVER(n, NULL, 4, put(type, dx, at, mul(get(type, y, at), sub(get(type, dy, at), sum))));
}

/* ---- normalisation ---- */

INLINE double sum_of_runs(int type, const void *x, const struct cairn__runs *runs) {
    vec lanes = splat(0);
    double all = 0;
    SUM_OVER_RUNS(runs, close_block(&all, &lanes), lanes = add(lanes, get(type, element(type, x, base), at)));
    return all;
}

/* Sums of d = x - centre and of d * d. */
INLINE void sums_around(int type, const void *x, const struct cairn__runs *runs, float centre, double *sum,
                        double *squares) {
    const vec m = splat(centre);
    vec lanes = splat(0), square = splat(0);
    double all = 0, all_squares = 0;
    SUM_OVER_RUNS(runs, (close_block(&all, &lanes), close_block(&all_squares, &square)), {
        const vec d = only(sub(get(type, element(type, x, base), at), m), at);
        lanes = add(lanes, d);
        square = add(square, mul(d, d));
    });
    *sum = all;
    *squares = all_squares;
}

INLINE void moments_f32(int type, const void *x, const struct cairn__runs *runs, bool centred, double *mean,
                        double *variance) {
    const double n = (double)(runs->count * runs->n);
    double s = 0, q = 0;
    const float m = centred ? (float)(sum_of_runs(type, x, runs) / n) : 0;
    sums_around(type, x, runs, m, &s, &q);
    if (centred) q = q - s * s / n;
    *mean = centred ? (double)(float)((double)m + s / n) : 0;
    *variance = q < 0 ? 0 : (double)(float)(q / n);
}

INLINE void norm_row_f32(int type, void *y, const void *x, const float *w, const float *b, size_t n, double mean,
                         double rstd) {
    const vec m = splat((float)mean), r = splat((float)rstd);
    OVER(n, NULL, 4, {
        vec v = mul(sub(get(type, x, at), m), r);
        if (w) v = mul(v, get(CAIRN_F32, w, at));
        if (b) v = add(v, get(CAIRN_F32, b, at));
        put(type, y, at, v);
    });
}

INLINE void add_to(float *sums, struct at at, vec v) {
    put(CAIRN_F32, sums, at, add(get(CAIRN_F32, sums, at), v));
}

INLINE void norm_row_backward(int type, const struct cairn__norm_rows *o, size_t row) {
    const void *dy_row = element(type, o->dy, row * o->n), *x_row = element(type, o->x, row * o->n);
    const float *w = o->weight;
    float *dw = o->dweight, *db = o->dbias;
    const double n = (double)o->n;
    const vec m = splat(o->mean ? ((const float *)o->mean)[row] : 0), r = splat(((const float *)o->rstd)[row]);
    vec sum_g = splat(0), sum_gh = splat(0);
    double all_g = 0, all_gh = 0;
    SUM_OVER(o->n, (close_block(&all_g, &sum_g), close_block(&all_gh, &sum_gh)), {
        const vec dy = get(type, dy_row, at);
        const vec h = mul(sub(get(type, x_row, at), m), r);
        const vec g = w ? mul(dy, get(CAIRN_F32, w, at)) : dy;
        if (dw) add_to(dw, at, mul(dy, h));
        if (db) add_to(db, at, dy);
        sum_g = add(sum_g, g);
        sum_gh = add(sum_gh, only(mul(g, h), at));
    });
    if (!o->dx) return;
    void *dx_row = element_of(type, o->dx, row * o->n);
    const vec mean_g = splat(o->mean ? (float)(all_g / n) : 0), mean_gh = splat((float)(all_gh / n));
    OVER(o->n, NULL, 4, {
        const vec dy = get(type, dy_row, at);
        const vec h = mul(sub(get(type, x_row, at), m), r);
        const vec g = w ? mul(dy, get(CAIRN_F32, w, at)) : dy;
        put(type, dx_row, at, mul(sub(sub(g, mean_g), mul(h, mean_gh)), r));
    });
}

INLINE void norm_rows_backward_f32(int type, const struct cairn__norm_rows *o) {
    for (size_t row = 0; row < o->rows; row++) norm_row_backward(type, o, row);
}

INLINE void norm_runs_f32(int type, void *y, const void *x, const struct cairn__runs *runs, double mean, double scale,
                          double shift) {
    const vec m = splat((float)mean), a = splat((float)scale), b = splat((float)shift);
    OVER_RUNS(runs,
              put(type, element_of(type, y, base), at, add(mul(sub(get(type, element(type, x, base), at), m), a), b)));
}

INLINE void norm_runs_sums_f32(int type, const void *dy, const void *x, const struct cairn__runs *runs, double mean,
                               double sums[2]) {
    const vec m = splat((float)mean);
    vec lanes = splat(0), product = splat(0);
    double all = 0, products = 0;
    SUM_OVER_RUNS(runs, (close_block(&all, &lanes), close_block(&products, &product)), {
        const vec g = get(type, element(type, dy, base), at);
        lanes = add(lanes, g);
        product = add(product, only(mul(g, sub(get(type, element(type, x, base), at), m)), at));
    });
    sums[0] = all;
    sums[1] = products;
}

INLINE void norm_runs_backward_f32(int type, void *dx, const void *dy, const void *x, const struct cairn__runs *runs,
                                   double mean, double a, double b, double c) {
    const vec m = splat((float)mean), va = splat((float)a), vb = splat((float)b), vc = splat((float)c);
    OVER_RUNS(runs, {
        const vec t = add(mul(sub(get(type, element(type, x, base), at), m), vb), vc);
        put(type, element_of(type, dx, base), at, add(mul(get(type, element(type, dy, base), at), va), t));
    });
}

/* ---- dropout ---- */

/* The elements of one block of 64 numbers, all or some. */
INLINE void drop_block(int type, void *dst, const void *x, size_t i, size_t end, const struct cairn__dropout *how,
                       const words c[4]) {
    const vec scale = splat((float)how->scale);
    for (int j = 0; j < 4 && i < end; j++, i += LANES) {
        const struct at at = {i, end - i < LANES ? PART : WHOLE, least(end - i, LANES)};
        put(type, dst, at, keep_from(c[j], how->least, mul(get(type, x, at), scale)));
    }
}

/* Elements before the first whole block of 64 numbers: one by one. */
INLINE size_t drop_head(int type, void *dst, const void *x, size_t n, const struct cairn__dropout *how,
                        const struct keys *keys) {
    const size_t head = least((WORDS - how->first % WORDS) % WORDS, n);
    uint32_t word[WORDS];
    words c[4];
    if (head == 0) return 0;
    draw(keys, how->first / WORDS * BLOCKS, how->stream, c);
    memcpy(word, c, sizeof(word));
    for (size_t i = 0; i < head; i++) {
        const struct at at = {i, PART, 1};
        const bool kept = word[(how->first + i) % WORDS] >> 8 >= how->least;
        put(type, dst, at, kept ? mul(get(type, x, at), splat((float)how->scale)) : splat(0));
    }
    return head;
}

INLINE void dropout_f32(int type, void *dst, const void *x, size_t n, const struct cairn__dropout *how) {
    const struct keys keys = keys_of(how->seed);
    size_t i = drop_head(type, dst, x, n, how, &keys);
    for (; i + WORDS <= n; i += WORDS) {
        words c[4];
        draw(&keys, (how->first + i) / 4, how->stream, c);
        drop_block(type, dst, x, i, i + WORDS, how, c);
    }
    if (i < n) {
        words c[4];
        draw(&keys, (how->first + i) / 4, how->stream, c);
        drop_block(type, dst, x, i, n, how, c);
    }
}

#define EACH_ROW_TYPE(X) X(f32, F32, f32) X(f16, F16, f32) X(bf16, BF16, f32)
#include "kernels/row_instances.h"
