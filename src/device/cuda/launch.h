/* The launchers: one function for each kernel on the GPU, with plain C arguments. Each queues its kernel on a stream
 * and returns a cudaError_t, 0 if it was queued. They do not check arguments; check.c does that before.
 *
 * Element-wise kernels give the CPU's bits: they are compiled without contraction, with divisions and roots of IEEE 754
 * and with subnormals, and share kernels/element.h, kernels/step.h, core/half.h and core/philox.h.
 *
 * Sums run in an order that sizes alone determine, whatever the GPU, the alignment and the order in which blocks
 * finish. u is 2^-24. A block has CAIRN__CUDA_THREADS threads, a thread reads packs of V elements (16 bytes of the
 * widest operand: V = 4 for f32, 8 for the half types) into V sums of its own, one a place in the pack; the V sums,
 * then the 32 threads of a warp, then the warps are added in trees of halves.
 *
 *   sum, mse    at most 2048 blocks; block b takes tiles b, b + blocks, ... of T = THREADS * 4 * V elements, a thread
 *               four packs of each. A place of a pack has a sum in f32 of the packs of four tiles, 16 terms at most;
 *               the places' tree makes them an f32, and from there on all is f64: the sums of a thread, those of a
 *               block, and then the last block, block b's sum going to its thread b % THREADS. |error| <= (16 + log2 V)
 *               u * sum |terms|, however many; mse adds two roundings a term.
 *   l2norm      f64 throughout: a tensor's chunks, one a block; then they, c to thread c % 32 where there are at most
 *               256, else to thread c % THREADS; then the tensors, in order. The type and the sizes of all tensors
 *               decide about the chunk. Relative error of a tensor's sum of squares <= (chunk / (THREADS * V) + 160) *
 *               2^-53.
 *   col_sum     rows in S groups of adjacent ones; of each group row r goes to sum r % 8, in order: 16 of its rows in
 *               f32, these in f64. The eight in a tree, rounded to f32 where S > 1, then the groups in order, all in
 *               f64: |error| <= 17 u * sum |x|. S depends on rows and cols. */
#ifndef CAIRN__DEVICE_CUDA_LAUNCH_H
#define CAIRN__DEVICE_CUDA_LAUNCH_H

#include "device/cuda/plan.h"
#include "device/passes.h"

#ifdef __cplusplus
extern "C" {
#endif

struct CUstream_st; /* *cudaStream_t */

/* A random stream as a kernel takes it. base: NULL, or, in a recorded graph, device memory with the seed and the stream
 * that `number` is added to. */
struct cairn__random_stream {
    uint64_t seed, number;
    const struct cairn__random_base *base;
};

enum {
    CAIRN__CUDA_THREADS = 256,
    CAIRN__CUDA_SUM_BLOCKS = 2048, /* of sum and mse */
    CAIRN__CUDA_COUNTERS = 4096,   /* of col_sum: strips of columns that several blocks work on */
    CAIRN__CUDA_PARTIAL_SUMS = 1 << 16,
    CAIRN__CUDA_NORM_BLOCKS = 1 << 15, /* of one launch of l2norm, and so chunks of one tensor */
    CAIRN__CUDA_TAKEN = 96, /* flags in one launch: as many as fit 4 KB of arguments, with those they raise */
};

/* The blocks' partial sums, which the last block adds up. Zeroed once; every kernel resets the counters to 0. A stream
 * has one. */
struct cairn__partials {
    uint32_t arrived[CAIRN__CUDA_COUNTERS]; /* blocks that are done */
    double total;                           /* l2norm's, from one launch to the next */
    double sums[CAIRN__CUDA_PARTIAL_SUMS];
};

#define CAIRN__CUDA_PARTIALS sizeof(struct cairn__partials)

/* ---- lists of tensors: one launch of a plan ---- */

struct cairn__multi {
    struct cairn__span span;
    struct cairn__item items[CAIRN__CUDA_LIST];
    const float *factor;
    float b;
    uint32_t *found;
};

/* Copies elements of 2, 4 or 8 bytes. */
int cairn__launch_copy(struct CUstream_st *stream, const struct cairn__multi *list, size_t element_nbytes);
/* to and from are different float types. */
int cairn__launch_cast(struct CUstream_st *stream, const struct cairn__multi *list, cairn_dtype to, cairn_dtype from);
int cairn__launch_scale(struct CUstream_st *stream, const struct cairn__multi *list, cairn_dtype to, cairn_dtype from);
int cairn__launch_axpby(struct CUstream_st *stream, const struct cairn__multi *list, cairn_dtype to, cairn_dtype from);
int cairn__launch_check(struct CUstream_st *stream, const struct cairn__multi *list, cairn_dtype dtype);
/* list->b is the limit; elements are f32. */
int cairn__launch_clamp(struct CUstream_st *stream, const struct cairn__multi *list);
/* Moves dst, f32, towards x by average's share, if an averaging step is due. */
int cairn__launch_average(struct CUstream_st *stream, const struct cairn__multi *list, cairn_dtype from,
                          const struct cairn__average *average);
int cairn__launch_average_begin(struct CUstream_st *stream, struct cairn__average *average,
                                const struct cairn__optim_state *state);
/* An item's dst is its struct cairn__census; list->b is the least normal. begin sets `count` of them to their neutral
 * values before, and end turns the accumulated values into those that passes.h defines. */
int cairn__launch_census(struct CUstream_st *stream, const struct cairn__multi *list, cairn_dtype dtype);
int cairn__launch_census_begin(struct CUstream_st *stream, struct cairn__census *out, size_t count);
int cairn__launch_census_end(struct CUstream_st *stream, struct cairn__census *out, size_t count);
/* An item's dst, a double, becomes the square of the tensor's greatest element, from the tensor's census, x. */
int cairn__launch_greatest(struct CUstream_st *stream, const struct cairn__multi *list);
/* Adds to an item's dst, its struct cairn__exponent_counts. Also for f64. */
int cairn__launch_count_exponents(struct CUstream_st *stream, const struct cairn__multi *list, cairn_dtype dtype);
int cairn__launch_clear_exponents(struct CUstream_st *stream, struct cairn__exponent_counts *out, size_t count);

/* A part of a plan with `whole` and `keep_empty`. An item's own norm goes to its dst, a double, or NULL. */
struct cairn__norm_part {
    struct cairn__partials *partials;
    double *norm;     /* the whole list's norm, written by the last part */
    bool first, last; /* this is the list's first, last part */
    bool squares;     /* items' dst get the sum of squares instead of the norm */
};
int cairn__launch_l2norm(struct CUstream_st *stream, const struct cairn__multi *list, cairn_dtype dtype,
                         const struct cairn__norm_part *part);

struct cairn__optim_list {
    struct cairn__span span;
    struct cairn__optim_item items[CAIRN__CUDA_LIST];
    struct cairn__optim_rule rule;
    const struct cairn__rates *rates;
    const struct cairn__optim_state *state;
};
/* LAMB's direction; mode: how the weights are stored. */
int cairn__launch_direction(struct CUstream_st *stream, const struct cairn__optim_list *list, cairn_dtype grad,
                            enum cairn__weight_mode mode);
/* Updates NovoGrad's second moments; queued before its update. */
int cairn__launch_seconds(struct CUstream_st *stream, const struct cairn__optim_list *list);
int cairn__launch_update(struct CUstream_st *stream, const struct cairn__optim_list *list, cairn_dtype grad,
                         enum cairn__weight_mode mode);

/* *out = the scalars for a piece of item. */
int cairn__launch_flat_scalars(struct CUstream_st *stream, struct cairn__flat_scalars *out,
                               const struct cairn__rates *rates, const struct cairn__optim_state *state,
                               const struct cairn__optim_item *item);
/* Writes w[0..n-1], rounded stochastically, to elements [first, first + n) of item's bf16 weights; nothing if
 * state->skip is raised. first is a multiple of 8. */
int cairn__launch_round_stochastic(struct CUstream_st *stream, const struct cairn__optim_item *item, size_t first,
                                   size_t n, const float *w, const struct cairn__optim_state *state);

/* ---- a training step ---- */

int cairn__launch_count_up(struct CUstream_st *stream, int64_t *counter, const struct cairn__optim_state *state);
int cairn__launch_step_end(struct CUstream_st *stream, const struct cairn__step_end *end);
int cairn__launch_renew_rates(struct CUstream_st *stream, const struct cairn__rate_table *table,
                              const struct cairn__optim_state *state);

/* Some items of a list; each gets a block. */
struct cairn__taken_list {
    uint32_t count, micro_batch, num_raises;
    uint32_t *raises[CAIRN__SHARE_MAX];
    struct cairn__taken items[CAIRN__CUDA_TAKEN];
};
int cairn__launch_take_flags(struct CUstream_st *stream, const struct cairn__taken_list *list);
int cairn__launch_share_flag(struct CUstream_st *stream, uint32_t *any, uint32_t *const *into, size_t count);
int cairn__launch_scaler_update(struct CUstream_st *stream, struct cairn__scaler_state *scaler,
                                struct cairn__scaler_report *reports);
int cairn__launch_clip(struct CUstream_st *stream, const double *norms, size_t count, double max_norm,
                       struct cairn__optim_state *state, double *total);
int cairn__launch_scale_loss(struct CUstream_st *stream, float *dst, const float *x,
                             const struct cairn__scaler_state *scaler, struct cairn__loss_scale *cell, uint32_t *found);
int cairn__launch_clear_flags(struct CUstream_st *stream, uint32_t *flags, size_t n);
int cairn__launch_store(struct CUstream_st *stream, void *dst, const void *value, size_t nbytes);

/* ---- for nn; n > 0 ---- */

int cairn__launch_fill(struct CUstream_st *stream, cairn_dtype t, void *dst, size_t n, float value);
int cairn__launch_add(struct CUstream_st *stream, cairn_dtype t, void *dst, const void *a, const void *b, size_t n);
int cairn__launch_mul_scalar(struct CUstream_st *stream, cairn_dtype t, void *dst, const void *x, size_t n, float s);
int cairn__launch_relu(struct CUstream_st *stream, cairn_dtype t, void *dst, const void *x, size_t n);
int cairn__launch_relu_backward(struct CUstream_st *stream, cairn_dtype t, void *dx, const void *dy, const void *x,
                                size_t n);
/* n = 0 too. */
int cairn__launch_sum(struct CUstream_st *stream, struct cairn__partials *partials, cairn_dtype t, void *dst,
                      const void *x, size_t n, float divisor);
int cairn__launch_spread(struct CUstream_st *stream, cairn_dtype t, void *dx, size_t n, const void *dy, float divisor);
/* n = 0 too. */
int cairn__launch_mse(struct CUstream_st *stream, struct cairn__partials *partials, cairn_dtype t, void *dst,
                      const void *x, const void *y, size_t n);
/* dx is of type `to`: t, or a half type where t is f32. */
int cairn__launch_mse_backward(struct CUstream_st *stream, cairn_dtype t, cairn_dtype to, void *dx, const void *x,
                               const void *y, size_t n, float s, const void *dy);
/* rows = 0 too. */
int cairn__launch_col_sum(struct CUstream_st *stream, struct cairn__partials *partials, cairn_dtype t, void *dst,
                          const void *x, size_t rows, size_t cols);
/* dst[r][c] = round(x[r][c] + bias[c]), with relu before the rounding. dst and bias are of type `to`, bias may be
 * NULL; x is f32 or of type `to`. The epilogue of a product where cuBLASLt has none. */
int cairn__launch_bias_add(struct CUstream_st *stream, cairn_dtype to, void *dst, cairn_dtype from, const void *x,
                           const void *bias, size_t rows, size_t cols, bool relu);
int cairn__launch_round(struct CUstream_st *stream, cairn_dtype half, float *dst, const float *x, size_t n);
int cairn__launch_normal(struct CUstream_st *stream, cairn_dtype t, void *dst, size_t n, uint64_t seed,
                         uint64_t number);
int cairn__launch_uniform(struct CUstream_st *stream, cairn_dtype t, void *dst, size_t n, float bound, uint64_t seed,
                          uint64_t number);

#ifdef __cplusplus
}
#endif

#endif
