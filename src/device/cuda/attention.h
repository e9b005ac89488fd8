/* The launchers of attention.cu, in plain C as in launch.h. They process rows of scores between the products, which
 * attention.c queues.
 *
 * A warp keeps a row of up to 512 columns in registers, a block one of up to 4096; a longer row stays in scratch.
 * Scores, probabilities and slopes are R until they are rounded for a product, once.
 *
 * The order of a row's sums, of e^(score - greatest) and of P dP, depends only on the number of columns: groups of four
 * adjacent terms by halves, the packs of a thread one after another, the threads by halves. For f32, with u = 2^-24 and
 * S the sum of the terms' absolute values, |error| <= 14 u S, in addition to the errors of the terms themselves. In
 * rows of more than 4096 columns packs are added in f64.
 */
#ifndef CAIRN__DEVICE_CUDA_ATTENTION_H
#define CAIRN__DEVICE_CUDA_ATTENTION_H

#include "device/cuda/launch.h"
#include "device/math_passes.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Rows of scores are a multiple of this many elements apart, so that each begins on 16 bytes in any type. */
enum { CAIRN__ATTENTION_PACK = 8 };

/* Rows [first_row, first_row + head_rows) of `heads` heads from `first_head` on, a head being a pair (b, h) of the
 * operands. Scores have columns [0, n), in rows `stride` apart. Overall row i is row first_row + i % head_rows of head
 * first_head + i / head_rows. These numbers and the sizes of axes are below 2^31. */
struct cairn__attention_rows {
    int64_t first_head, heads, first_row, head_rows, n, stride;
    int64_t h, t, s;         /* the operands' H, T and S */
    struct cairn__view mask; /* as in struct cairn__attention */
    void *lse;               /* R [all heads, t]: written by forward, read by backward; NULL: not wanted */
    double scale;            /* that scores are multiplied by */
    bool causal;
    uint32_t dropped; /* numbers below it, of 24 bits, are dropped; 0 = none */
    double kept;      /* factor of the probabilities that are kept */
    struct cairn__random_stream random;
    void *scores;        /* R: products of Q and K */
    void *probabilities; /* of type t, after dropout; backward: NULL = not wanted */
    void *slopes;        /* R: backward only, products of dy and V; NULL = not wanted */
    void *score_slopes;  /* of type t, computed from slopes */
};

/* Computes probabilities from scores. They may share memory if probabilities are R. */
int cairn__launch_attention(struct CUstream_st *stream, cairn_dtype t, const struct cairn__attention_rows *rows);
/* Computes probabilities from scores, and score_slopes from slopes; these two may share memory if score_slopes are
 * R. */
int cairn__launch_attention_backward(struct CUstream_st *stream, cairn_dtype t,
                                     const struct cairn__attention_rows *rows);

#ifdef __cplusplus
}
#endif

#endif
