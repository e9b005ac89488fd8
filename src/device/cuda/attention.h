/* The launchers of attention.cu, in plain C as those of launch.h: what happens to rows of scores between the products,
 * which attention.c queues.
 *
 * A warp has a row of up to 512 columns, a block one of up to 4096, in registers; a longer one stays in scratch.
 * Scores, probabilities and slopes are R until they are rounded for a product, once.
 *
 * The sums of a row, of e^(score - greatest) and of P dP, are in an order that the number of columns alone determines:
 * four neighbours by halves, the packs of a thread one after another, the threads by halves. Of f32, u = 2^-24 and S
 * the sum of the terms' absolute values, |error| <= 14 u S besides what the terms' own roundings make; the packs of
 * rows beyond 4096 columns are added in f64.
 */
#ifndef CAIRN__DEVICE_CUDA_ATTENTION_H
#define CAIRN__DEVICE_CUDA_ATTENTION_H

#include "device/cuda/launch.h"
#include "device/math_passes.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Rows of scores begin a multiple of so many elements apart: each on 16 bytes, of any type. */
enum { CAIRN__ATTENTION_PACK = 8 };

/* Rows [first_row, first_row + head_rows) of `heads` heads from `first_head` on, a head being a pair (b, h) of the
 * operands; scores of columns [0, n), in rows `stride` apart. Row i of all is head first_head + i / head_rows, row
 * first_row + i % head_rows. All of them, and sizes of axes, are below 2^31. */
struct cairn__attention_rows {
    int64_t first_head, heads, first_row, head_rows, n, stride;
    int64_t h, t, s;         /* the operands' */
    struct cairn__view mask; /* as in struct cairn__attention */
    void *lse;               /* R [all heads, t]: written by forward, read by backward; NULL: not wanted */
    double scale;            /* of the scores */
    bool causal;
    uint32_t dropped; /* numbers below it, of 24 bits, are dropped; 0 = none */
    double kept;      /* what others are multiplied by */
    struct cairn__random_stream random;
    void *scores;        /* R: products of Q and K */
    void *probabilities; /* of the type, after dropout; backward: NULL = not wanted */
    void *slopes;        /* R: backward alone, products of dy and V; NULL = not wanted */
    void *score_slopes;  /* of the type, from slopes */
};

/* Scores become probabilities; these may be where scores are, if they are R. */
int cairn__launch_attention(struct CUstream_st *stream, cairn_dtype t, const struct cairn__attention_rows *rows);
/* Scores become probabilities, and slopes of those slopes of scores, which may be where slopes are, if they are R. */
int cairn__launch_attention_backward(struct CUstream_st *stream, cairn_dtype t,
                                     const struct cairn__attention_rows *rows);

#ifdef __cplusplus
}
#endif

#endif
