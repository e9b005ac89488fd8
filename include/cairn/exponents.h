/* Histograms of tensors' magnitudes by powers of two: which values a half type can represent, and at which loss scale.
 *
 *     struct cairn_exponents e = CAIRN_EXPONENTS_INIT;
 *     struct cairn_exponents_loss loss;
 *     CHECK(cairn_exponents_count(env, grads, n, CAIRN_F32, NULL, &e));
 *     CHECK(cairn_exponents_lose(&e, 1024, CAIRN_RANGE_F16, &loss));
 *     printf("%.1f %% become 0\n", 100 * loss.to_zero);
 *
 * A finite nonzero element is in binade b if 2^b <= |x| < 2^(b + 1); subnormals are in the binade of their value: f16
 * has -24 to 15, bf16 -133 to 127, f32 -149 to 127. CAIRN_LAB records the binades of a training (observe.h).
 * Threads: as the environment; functions that take none: any. */
#ifndef CAIRN_EXPONENTS_H
#define CAIRN_EXPONENTS_H

#include "observe.h"
#include "param.h"
#include "tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

#define CAIRN_LEAST_BINADE (-149)
#define CAIRN_NUM_BINADES  277

struct cairn_exponents {
    size_t struct_size;
    uint64_t zeros, infs, nans;
    uint64_t below, above;               /* f64 only: not 0 and below 2^-149; finite and at least 2^128 */
    uint64_t binades[CAIRN_NUM_BINADES]; /* [b - CAIRN_LEAST_BINADE] */
};
#define CAIRN_EXPONENTS_INIT \
    { .struct_size = sizeof(struct cairn_exponents) }

struct cairn_exponents_options {
    size_t struct_size;
    /* Sampling: of each `every` blocks of CAIRN_EXPONENTS_BLOCK elements only the first is counted, always the same
     * ones; the last block may be short. Counts are of the sampled elements only and are not scaled up, so their shares
     * estimate those of all elements, and rare values may be missed. 0 = 1: all elements. */
    size_t every;
};
#define cairn_exponents_options(...) \
    (&(struct cairn_exponents_options){.struct_size = sizeof(struct cairn_exponents_options), __VA_ARGS__})
#define CAIRN_EXPONENTS_BLOCK 4096

/* *counts += the exponents of x. Waits for the device. Gives the same counts on every device and instruction set.
 *
 *   x        [n] of dtype, in memory of env's device
 *   dtype    f32, f16, bf16 or f64
 *   options  may be NULL
 *
 * Errors: CAIRN_EINVAL NULL, a type that is no float, memory that is not aligned or not the device's; CAIRN_ESTATE a
 * graph is being recorded; CAIRN_ENOMEM; CAIRN_EDEVICE.
 * Cost: one read, by one thread of a CPU; 140 KB on the device during the call. docs/observing.md has numbers. */
CAIRN_API cairn_status cairn_exponents_count(cairn_env *env, const void *x, size_t n, cairn_dtype dtype,
                                             const struct cairn_exponents_options *options,
                                             struct cairn_exponents *counts);

/* The same for the values of a tensor, in row-major order; a strided one is first made dense, which takes memory until
 * the step ends. Errors: also those of reading a tensor. */
CAIRN_API cairn_status cairn_exponents_count_tensor(cairn_tensor *t, const struct cairn_exponents_options *options,
                                                    struct cairn_exponents *counts);

/* *into += *counts, to add up parts, steps or ranks. Errors: CAIRN_EINVAL. */
CAIRN_API cairn_status cairn_exponents_add(struct cairn_exponents *into, const struct cairn_exponents *counts);

/* All elements that were counted; 0 for NULL. */
CAIRN_API uint64_t cairn_exponents_total(const struct cairn_exponents *counts);

/* 1 if an element is in some binade; then *binade = the greatest such binade. Otherwise, and for NULL, 0. */
CAIRN_API int cairn_exponents_greatest(const struct cairn_exponents *counts, int *binade);

/* ---- what a number format would lose ---- */

/* The bounds at which rounding to nearest even loses numbers: |x| <= half becomes 0, half being half the least
 * subnormal; |x| >= overflow becomes infinite, or the greatest number if the format saturates. */
struct cairn_number_range {
    double half, overflow;
};

/* IEEE binary16; bf16; OCP's E5M2 and E4M3, which overflows only above 464. For use as arguments; C only. */
#define CAIRN__2_128     340282366920938463463374607431768211456.0
#define CAIRN__2_133     (32 * CAIRN__2_128)
#define CAIRN_RANGE_F16  (&(const struct cairn_number_range){1.0 / 33554432, 65520})
#define CAIRN_RANGE_BF16 (&(const struct cairn_number_range){0.5 / CAIRN__2_133, CAIRN__2_128 * 511 / 512})
#define CAIRN_RANGE_E5M2 (&(const struct cairn_number_range){1.0 / 131072, 61440})
#define CAIRN_RANGE_E4M3 (&(const struct cairn_number_range){1.0 / 1024, 464})

/* Shares of the elements that were finite and not 0; 0 if there were none. Written by the library. Neither this struct
 * nor cairn_twin_loss will grow. */
struct cairn_exponents_loss {
    double to_zero, to_zero_at_most;
    double to_inf, to_inf_at_most;
};

/* What is lost when elements are multiplied by scale and rounded to a format. Only whole binades are known: to_zero and
 * to_inf count the binades that are lost completely, the _at_most fields also the binade that contains the bound. If
 * range->half / scale is a power of two, as it is for these ranges at any power-of-two scale, to_zero is exact, except
 * for elements that are exactly at the bound. The overflow bound of E4M3 and other formats is inside a binade: f16's
 * binade of 32768 has values that fit and values that do not (65520).
 *
 *   scale  above 0, finite
 *
 * Errors: CAIRN_EINVAL. */
CAIRN_API cairn_status cairn_exponents_lose(const struct cairn_exponents *counts, double scale,
                                            const struct cairn_number_range *range, struct cairn_exponents_loss *out);

/* ---- two gradients of the same batch ---- */

/* Written by the library. Counts elements of half at the places where twin is finite and not 0. */
struct cairn_twin_loss {
    uint64_t nonzero;                 /* elements of twin that are finite and not 0 */
    uint64_t to_zero, to_inf, to_nan; /* of these: those that are 0, infinite or NaN in half */
};

/* What a half gradient has lost compared with its f32 twin: the gradient of another backward over the same batch, in
 * f32.
 *
 *   half   [n] of dtype f16, bf16 or f32, as stored; its loss scale does not matter, since only 0, inf and NaN count
 *   twin   [n] f32
 *   out    counts are added to it
 *
 * Both are in memory of env's device and are copied to the host piece by piece. Errors: as cairn_exponents_count. Cost:
 * one read of both, about 1 G elements a second. */
CAIRN_API cairn_status cairn_exponents_compare(cairn_env *env, const void *half, cairn_dtype dtype, const float *twin,
                                               size_t n, struct cairn_twin_loss *out);

/* The same for the gradients of two parameter sets with the same parameters: a model under amp, and its f32 twin. If
 * there is a writer (observe.h), it sends two scalars for each parameter that has a gradient in both sets:
 * lost_to_zero/NAME and lost_to_inf/NAME, the shares of `nonzero` that became 0, and infinite or NaN.
 *
 *   step   of the scalars
 *   total  the counts over all parameters; may be NULL
 *
 * Errors: CAIRN_EINVAL, also if the sets differ, with the parameter; CAIRN_ESTATE gradients are in flight. */
CAIRN_API cairn_status cairn_exponents_compare_params(cairn_param_set *half, cairn_param_set *twin, int64_t step,
                                                      struct cairn_twin_loss *total);

/* ---- during a training ---- */

struct cairn_recorder_options {
    size_t struct_size;
    int64_t every;          /* steps 1, 1 + every, ... are recorded. 0 = 10 */
    size_t sample;          /* as cairn_exponents_options.every. 0 = 1 */
    cairn_switch gradients; /* record gradients of parameters. ON */
    cairn_switch results;   /* record results of modules, and their gradients. ON */
};
#define cairn_recorder_options(...) \
    (&(struct cairn_recorder_options){.struct_size = sizeof(struct cairn_recorder_options), __VA_ARGS__})

typedef struct cairn_recorder cairn_recorder;

/* Sends histograms (observe.h) of what the environment's training computes to all writers, with the binade counts in
 * `exponents` and the backward's loss scale in `scale`. docs/observing.md lists the names. If CAIRN_LAB is set, the
 * environment has a recorder from its creation.
 *
 *   grad_before/NAME       gradient of a parameter on this rank after backward, before ddp reduces it; only under ddp
 *   grad/NAME              gradient of a parameter as the optimizer gets it: reduced, under ddp
 *   activation/PATH        the result of a module, in training mode and outside no_grad
 *   activation_grad/PATH   the gradient of that result
 *
 * The step number is that of the optimizer that has the parameter; for a module, of the first optimizer of its model's
 * parameters; without an optimizer it is the number of the backward. Gradients of the user's own set
 * (cairn_grads_ready) are recorded too. The contents of recorded graphs (graph.h) are not.
 *
 *   options  may be NULL
 *
 * The recorder stops with the environment, if not destroyed earlier; its memory is freed by cairn_recorder_destroy.
 * Threads: as env.
 * Cost of a recorded step: one read of each gradient (two under ddp), of each result and of each result's gradient, and
 * on a GPU a wait for each; a copy of results that are not dense. In other steps, for each of them a call that returns
 * at once; without a recorder, one branch. Memory: 150 KB and the names of modules. Errors: CAIRN_EINVAL; CAIRN_ENOMEM;
 * CAIRN_ESTATE env already has a recorder. A later failure is logged once and ends the recording, not the training. */
CAIRN_API cairn_status cairn_recorder_create(cairn_env *env, const struct cairn_recorder_options *options,
                                             cairn_recorder **out);
CAIRN_API void cairn_recorder_destroy(cairn_recorder **recorder);

/* ---- conversion to a histogram ---- */

/* Memory for the buckets of one histogram: 0, below, the binades, above. */
struct cairn_exponents_buckets {
    double limits[CAIRN_NUM_BINADES + 3], counts[CAIRN_NUM_BINADES + 3];
};

/* Converts counts for cairn_histogram_record: magnitudes with the limits 0 and 2^(b + 1), from the least nonempty
 * binade to the greatest. (A histogram bucket includes its upper limit, a binade its lower one: an element that is
 * exactly 2^(b + 1) is counted in the next bucket.) min and max are edges of binades; sums are estimates that take 1.5
 * 2^b for each element. Infinities and NaNs are counted in num_infs and num_nans, not in buckets; `exponents` points to
 * counts.
 *
 *   scale    what the elements were multiplied by: 1, or the loss scale; stored beside the counts
 *   buckets  the caller's memory; out points into it, and to counts
 *   out      initialise it to *cairn_histogram()
 *
 * Errors: CAIRN_EINVAL. */
CAIRN_API cairn_status cairn_exponents_histogram(const struct cairn_exponents *counts, double scale,
                                                 struct cairn_exponents_buckets *buckets, struct cairn_histogram *out);

#ifdef __cplusplus
}
#endif

#endif
