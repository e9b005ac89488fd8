/* The loops over the formulas of map_functions.h, and the folds, for one type R called T.
 *
 * A template, like map_functions.h: maps_ref.c, maps_avx2.c, ... define ISA, T and R, include the functions below the
 * formulas, and then this. Loops are plain; the compiler makes vectors of them, as wide as the file's flags allow. */
#include "kernels/map_functions.h"
#include "kernels/row_lists.h"

#define OURS(name)    CONCAT(CONCAT(name, T), ISA) /* fold_SUM -> fold_SUM_f32_avx2 */
#define FORMULA(name) CONCAT(name, T)
#define INLINE        static inline __attribute__((always_inline))

/* Tells the compiler that iterations are independent, though dst may be an input. */
#if defined(__clang__)
#define ALONE_f32 _Pragma("clang loop vectorize(assume_safety)")
#else
#define ALONE_f32 _Pragma("GCC ivdep")
#endif
#define ALONE_f64 /* calls libm */
#define ALONE     CONCAT(ALONE, T)

/* Whether a function of the circle, which its last input goes around, has to look further than math_f32.h's
 * TURN_NEAR. */
INLINE int OURS(far)(enum cairn__map_fn f, const R *x, size_t n) {
    int any = 0;
    if (f == CAIRN__MAP_SIN || f == CAIRN__MAP_COS || f == CAIRN__MAP_TAN || f == CAIRN__MAP_SIN_BACKWARD ||
        f == CAIRN__MAP_COS_BACKWARD) {
        for (size_t i = 0; i < n; i++) any |= !(FORMULA(fabs)(x[i]) <= (R)TURN_NEAR_F32);
    }
    return any;
}

/* Inputs that a map has not are its first again, and not looked at. */
#define EACH(name, far) ALONE for (size_t i = 0; i < n; i++) y[i] = FORMULA(name)(a[i], b[i], c[i], d[i], p0, p1, far);
#define MAKE_MAP(name, inputs, what)                                                                           \
    static void OURS(map_##name)(void *dst, const void *const *x, size_t n, const double *p) {                 \
        const R *a = x[0], *b = x[inputs > 1 ? 1 : 0], *c = x[inputs > 2 ? 2 : 0], *d = x[inputs > 3 ? 3 : 0]; \
        const R p0 = p ? (R)p[0] : 0, p1 = p ? (R)p[1] : 0;                                                    \
        R *y = dst;                                                                                            \
        if (OURS(far)(CAIRN__MAP_##name, x[inputs - 1], n)) {                                                  \
            EACH(name, 1)                                                                                      \
        } else {                                                                                               \
            EACH(name, 0)                                                                                      \
        }                                                                                                      \
    }
CAIRN__MAP_LIST(MAKE_MAP)

/* ---- folds; FOLD_WHOLE may have taken the first elements already, and tells how many; SUM_BLOCKS makes all of a sum
 * of x, or of x * y ---- */

enum { OURS(LANES) = 16 };

INLINE R OURS(first)(enum cairn__fold f) {
    return f == CAIRN__FOLD_PRODUCT ? 1 : f == CAIRN__FOLD_MAX ? -(R)INFINITY : f == CAIRN__FOLD_MIN ? (R)INFINITY : 0;
}

/* One more element. */
INLINE R OURS(take)(enum cairn__fold f, R so_far, R x, R p0) {
    switch (f) {
    case CAIRN__FOLD_SUM_SQUARES:
        return so_far + (x - p0) * (x - p0);
    case CAIRN__FOLD_SUM_ABS:
        return so_far + FORMULA(fabs)(x);
    case CAIRN__FOLD_PRODUCT:
        return so_far * x;
    case CAIRN__FOLD_MAX:
        return FORMULA(greater)(so_far, x);
    case CAIRN__FOLD_MIN:
        return FORMULA(lesser)(so_far, x);
    default:
        return so_far + x;
    }
}

/* What two lanes make. */
INLINE R OURS(join)(enum cairn__fold f, R a, R b) {
    const bool sum = f == CAIRN__FOLD_SUM_SQUARES || f == CAIRN__FOLD_SUM_ABS;
    return OURS(take)(sum ? CAIRN__FOLD_SUM : f, a, b, 0);
}

INLINE R OURS(tree)(enum cairn__fold f, R lane[OURS(LANES)]) {
    for (int half = OURS(LANES) / 2; half > 0; half /= 2) {
        for (int j = 0; j < half; j++) lane[j] = OURS(join)(f, lane[j], lane[j + half]);
    }
    return lane[0];
}

INLINE R OURS(fold)(enum cairn__fold f, const R *x, size_t n, R p0) {
    R lane[OURS(LANES)];
    for (int j = 0; j < OURS(LANES); j++) lane[j] = OURS(first)(f);
    size_t i = 0;
#if defined(FOLD_WHOLE)
    i = FOLD_WHOLE(f, lane, x, n);
#endif
    for (; i < n; i++) {
        lane[i % OURS(LANES)] = OURS(take)(f, lane[i % OURS(LANES)], x[i], p0);
    }
    return OURS(tree)(f, lane);
}

INLINE R OURS(dot_of_block)(const R *x, const R *y, size_t n) {
    R lane[OURS(LANES)] = {0};
    for (size_t i = 0; i < n; i++) lane[i % OURS(LANES)] += x[i] * y[i];
    return OURS(tree)(CAIRN__FOLD_SUM, lane);
}

/* By blocks, which f64 does not need. */
INLINE double OURS(sum)(enum cairn__fold f, const R *x, const R *y, size_t n, R p0) {
#if defined(SUM_BLOCKS)
    return SUM_BLOCKS(f, x, y, n, p0);
#else
    const size_t block = sizeof(R) == sizeof(float) ? CAIRN__SUM_BLOCK : n;
    double sum = 0;
    for (size_t i = 0; i < n; i += block) {
        const size_t m = n - i < block ? n - i : block;
        sum += (double)(y ? OURS(dot_of_block)(x + i, y + i, m) : OURS(fold)(f, x + i, m, p0));
    }
    return sum;
#endif
}

INLINE double OURS(fold_all)(enum cairn__fold f, const R *x, size_t n, R p0) {
    const bool sums = f == CAIRN__FOLD_SUM || f == CAIRN__FOLD_SUM_SQUARES || f == CAIRN__FOLD_SUM_ABS;
    return sums ? OURS(sum)(f, x, NULL, n, p0) : (double)OURS(fold)(f, x, n, p0);
}

#define MAKE_FOLD(name)                                                                                    \
    static double OURS(fold_##name)(const void *x, size_t n, double p0) {                                  \
        return OURS(fold_all)(CAIRN__FOLD_##name, x, n, (R)p0);                                            \
    }                                                                                                      \
    static void OURS(fold_into_##name)(void *into, const void *x, size_t n, double p0) {                   \
        const R *each = x, number = (R)p0;                                                                 \
        R *y = into;                                                                                       \
        ALONE for (size_t i = 0; i < n; i++) y[i] = OURS(take)(CAIRN__FOLD_##name, y[i], each[i], number); \
    }
EACH_FOLD(MAKE_FOLD)

static double OURS(dot)(const void *a, const void *b, size_t n) {
    return OURS(sum)(CAIRN__FOLD_SUM, a, b, n, 0);
}

#undef FOLD_WHOLE
#undef SUM_BLOCKS
#undef MAKE_FOLD
#undef MAKE_MAP
#undef EACH
#undef FORMULA
#undef OURS
#undef INLINE
#undef ALONE
#undef ALONE_f32
#undef ALONE_f64
