/* The launchers of folds.cu, in plain C as in launch.h: folds, maxima and running sums along axes. There is at least
 * one result or line, but a fold may have no terms.
 *
 * The order of terms depends on the shape and the type, never on strides or the GPU. The terms of a result are numbered
 * row-major over the folded axes. A *place* takes some of them, in order: runs of 16 terms in R, from +0 (1 for a
 * product, an infinity for extremes), and the runs, in order, in f64. From there on everything is f64: places are
 * joined in trees of halves. The total is divided, its root is taken, and it is rounded to R and then to the type of
 * the result. If R is f64 or f32, and x has that type or is half, a pack is V = 16 bytes of x; else V = 1 (integers,
 * bools, and f32 or halves that are summed in f64). Axes of size 1 aside,
 *
 *   rows      where the last axis is folded. `threads` threads, a power of 2, share a row, or each of its parts where
 *             rows are few and long. Term i of a part goes to place i % V of thread i / V % threads. The sum of part p
 *             then goes to thread p % THREADS of the block that finishes last.
 *   columns   where the last axis stays. Terms make groups of adjacent ones; term i of a group goes to place
 *             i % height, height = THREADS / threads. The sum of group g then goes to place g % height of the last
 *             block.
 *
 * Bound of sums, with u = 2^-24 and S the sum of the terms' absolute values, as rounded to f32: a term of a run goes
 * through 15 additions that round, so that the error is below ((1 + u)^15 - 1) S < 9e-7 S before the last rounding, and
 * what f64 adds, at most n 2^-57 S. Of f64: (n / places + 30) 2^-53 S, with V * threads * parts places or height *
 * groups.
 *
 * Extremes do not depend on the order, but for which of -0 and +0 it is. The index is that of the first of equals or
 * NaNs.
 *
 * Running sums are f64 throughout and rounded once. Products go in order, as on the CPU, and so do sums along any but
 * the last axis and those of lines of less than 64. Others go by 32 elements: these by the scan of Hillis and Steele
 * ("Data parallel algorithms", CACM 29(12), 1986), which is added to the sum of all before. Few and long lines are
 * summed in segments first; a segment begins with the sum of those before, added in order, or, where there are scans,
 * over 32 lanes and a tree. The error is below (n / 32 + 140) 2^-53 S where there are scans, else n 2^-53 S, and the
 * rounding. */
#ifndef CAIRN__DEVICE_CUDA_FOLDS_H
#define CAIRN__DEVICE_CUDA_FOLDS_H

#include "device/cuda/axes.h"
#include "device/cuda/launch.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The operands of a fold, and how its work is divided. */
struct cairn__folding {
    const void *x;
    cairn_dtype type, r;             /* r: R, as on the CPU: f64 if type or the result's type is f64, i32 or i64 */
    struct cairn__axes kept, folded; /* operand 0: x; of kept 1 and 2: results */
    bool columns, packs;             /* packs: V adjacent terms or columns can be read at once */
    uint32_t threads;                /* rows: threads per row; columns: threads side by side */
    uint32_t parts;                  /* rows: parts per row; columns: groups of terms */
    size_t part;                     /* terms per part or group */
    struct cairn__partials *partials;
};

enum { CAIRN__FOLD_PACK_NBYTES = 16 };

/* Whether V elements are 16 bytes; if not, V is 1, and elements are converted one at a time. */
static inline bool cairn__folds_packs(cairn_dtype type, cairn_dtype r) {
    return type == CAIRN_F64 || (r == CAIRN_F32 && type != CAIRN_BOOL);
}

struct cairn__fold_end {
    void *dst; /* operand 1 */
    cairn_dtype type;
    double divisor;
    bool root;
    const void *centre; /* R, dense: subtracted by SUM_SQUARES; NULL = 0 */
};
int cairn__launch_fold(struct CUstream_st *stream, enum cairn__fold f, const struct cairn__folding *of,
                       const struct cairn__fold_end *end);

struct cairn__arg_end {
    int64_t *index; /* operand 1 */
    void *value;    /* operand 2; NULL = not wanted */
    cairn_dtype type;
    bool least;
};
int cairn__launch_arg(struct CUstream_st *stream, const struct cairn__folding *of, const struct cairn__arg_end *end);

struct cairn__running {
    struct cairn__axes lines; /* operands x and dst: the other axes */
    size_t n;                 /* elements of a line */
    int64_t x_stride, stride; /* of x and dst along a line */
    const void *x;
    void *dst;
    cairn_dtype x_type, type;
    bool product, reverse;
    bool scanned;      /* a warp scans 32 adjacent elements at a time; otherwise one thread walks the line */
    uint32_t segments; /* per line */
    size_t segment;    /* elements per segment */
    double *sums;      /* [segments, lines]: sums of segments; NULL if there is one segment */
};
int cairn__launch_cumulate(struct CUstream_st *stream, const struct cairn__running *running);

#ifdef __cplusplus
}
#endif

#endif
