/* How large the elements of tensors are, as counts by powers of two: what fits into a half type, at which loss scale.
 *
 *     struct cairn_exponents e = CAIRN_EXPONENTS_INIT;
 *     struct cairn_exponents_loss loss;
 *     CHECK(cairn_exponents_count(env, grads, n, CAIRN_F32, NULL, &e));
 *     CHECK(cairn_exponents_lose(&e, 1024, CAIRN_RANGE_F16, &loss));
 *     printf("%.1f %% become 0\n", 100 * loss.to_zero);
 *
 * A finite element but 0 is in binade b where 2^b <= |x| < 2^(b + 1), subnormals in that of their value: f16 has -24 to
 * 15, bf16 -133 to 127, f32 -149 to 127. CAIRN_LAB records those of a training (observe.h).
 * Threads: as the environment; what takes none, any. */
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
    uint64_t below, above;               /* of f64: not 0 and below 2^-149; finite and from 2^128 on */
    uint64_t binades[CAIRN_NUM_BINADES]; /* [b - CAIRN_LEAST_BINADE] */
};
#define CAIRN_EXPONENTS_INIT \
    { .struct_size = sizeof(struct cairn_exponents) }

struct cairn_exponents_options {
    size_t struct_size;
    /* Of each `every` blocks of CAIRN_EXPONENTS_BLOCK elements only the first is counted, the last block, which may be
     * short, among them: the same ones each time. Counts are of these elements alone and not multiplied, so their
     * shares estimate those of all, and a value that is rare may be missed. 0 = 1: all elements. */
    size_t every;
};
#define cairn_exponents_options(...) \
    (&(struct cairn_exponents_options){.struct_size = sizeof(struct cairn_exponents_options), __VA_ARGS__})
#define CAIRN_EXPONENTS_BLOCK 4096

/* *counts += the exponents of x. Waits for the device. The same on every device and instruction set.
 *
 *   x        [n] of dtype, in memory of env's device
 *   dtype    f32, f16, bf16 or f64
 *   options  may be NULL
 *
 * Errors: CAIRN_EINVAL NULL, no float, memory that is not aligned or not the device's; CAIRN_ESTATE a graph is being
 * recorded; CAIRN_ENOMEM; CAIRN_EDEVICE.
 * Cost: one read, on one thread of a CPU; 140 KB on the device meanwhile. docs/observing.md has numbers. */
CAIRN_API cairn_status cairn_exponents_count(cairn_env *env, const void *x, size_t n, cairn_dtype dtype,
                                             const struct cairn_exponents_options *options,
                                             struct cairn_exponents *counts);

/* The same for the values of a tensor, in row-major order; a strided one is made dense first, which takes memory until
 * the step ends. Errors: also those of reading a tensor. */
CAIRN_API cairn_status cairn_exponents_count_tensor(cairn_tensor *t, const struct cairn_exponents_options *options,
                                                    struct cairn_exponents *counts);

/* *into += *counts: of parts, steps or ranks. Errors: CAIRN_EINVAL. */
CAIRN_API cairn_status cairn_exponents_add(struct cairn_exponents *into, const struct cairn_exponents *counts);

/* All elements that were counted; 0 for NULL. */
CAIRN_API uint64_t cairn_exponents_total(const struct cairn_exponents *counts);

/* Whether there is an element in a binade, and then *binade = the greatest of these. 0 for NULL. */
CAIRN_API int cairn_exponents_greatest(const struct cairn_exponents *counts, int *binade);

/* ---- what a number format would lose ---- */

/* Where rounding to nearest even loses numbers: |x| <= half becomes 0, half the least subnormal; |x| >= overflow
 * becomes infinite, or the greatest number where a format saturates. */
struct cairn_number_range {
    double half, overflow;
};

/* IEEE binary16; bf16; OCP's E5M2 and E4M3, whose overflow is from above 464 on. As arguments; C only. */
#define CAIRN__2_128     340282366920938463463374607431768211456.0
#define CAIRN__2_133     (32 * CAIRN__2_128)
#define CAIRN_RANGE_F16  (&(const struct cairn_number_range){1.0 / 33554432, 65520})
#define CAIRN_RANGE_BF16 (&(const struct cairn_number_range){0.5 / CAIRN__2_133, CAIRN__2_128 * 511 / 512})
#define CAIRN_RANGE_E5M2 (&(const struct cairn_number_range){1.0 / 131072, 61440})
#define CAIRN_RANGE_E4M3 (&(const struct cairn_number_range){1.0 / 1024, 464})

/* Shares of the elements that were finite and not 0; 0 where there are none. Written by the library; it will not grow,
 * nor will struct cairn_twin_loss. */
struct cairn_exponents_loss {
    double to_zero, to_zero_at_most;
    double to_inf, to_inf_at_most;
};

/* What is lost when elements are multiplied by scale and rounded to a format. Whole binades are counted: to_zero and
 * to_inf have those that are lost whole, the others also the one in which the bound is. to_zero is exact, but for
 * elements that are exactly range->half, where that over scale is a power of two, as at any scale that is one; E4M3's
 * and others' overflow is within a binade, and f16's binade of 32768 holds what fits and what does not (65520).
 *
 *   scale  above 0, finite
 *
 * Errors: CAIRN_EINVAL. */
CAIRN_API cairn_status cairn_exponents_lose(const struct cairn_exponents *counts, double scale,
                                            const struct cairn_number_range *range, struct cairn_exponents_loss *out);

/* ---- two gradients of the same batch ---- */

/* Written by the library. Elements are counted of half, where twin is finite and not 0. */
struct cairn_twin_loss {
    uint64_t nonzero;                 /* elements of twin that are finite and not 0 */
    uint64_t to_zero, to_inf, to_nan; /* of these, what half has in their place */
};

/* What a half gradient has lost against an f32 twin of it: another backward over the same batch, in f32.
 *
 *   half   [n] of dtype f16, bf16 or f32, as stored: the scale does not matter for what is 0 or infinite
 *   twin   [n] f32
 *   out    is added to
 *
 * Both in memory of env's device; copied to the host by parts. Errors: as cairn_exponents_count. Cost: one read of
 * both, about 1 G elements a second. */
CAIRN_API cairn_status cairn_exponents_compare(cairn_env *env, const void *half, cairn_dtype dtype, const float *twin,
                                               size_t n, struct cairn_twin_loss *out);

/* The same for the gradients of two parameter sets that have the same parameters: a model under amp, and its f32 twin.
 * With a writer (observe.h) it sends scalars for each parameter that both have a gradient of, under its name:
 * lost_to_zero/NAME and lost_to_inf/NAME, the shares of `nonzero` that became 0, and infinite or NaN.
 *
 *   step   of the scalars
 *   total  over all parameters; may be NULL
 *
 * Errors: CAIRN_EINVAL also where the sets differ, with the parameter; CAIRN_ESTATE gradients that travel. */
CAIRN_API cairn_status cairn_exponents_compare_params(cairn_param_set *half, cairn_param_set *twin, int64_t step,
                                                      struct cairn_twin_loss *total);

/* ---- over a training ---- */

struct cairn_recorder_options {
    size_t struct_size;
    int64_t every;          /* steps 1, 1 + every, ... are recorded. 0 = 10 */
    size_t sample;          /* as cairn_exponents_options.every. 0 = 1 */
    cairn_switch gradients; /* of parameters. ON */
    cairn_switch results;   /* of modules, and the gradients of these. ON */
};
#define cairn_recorder_options(...) \
    (&(struct cairn_recorder_options){.struct_size = sizeof(struct cairn_recorder_options), __VA_ARGS__})

typedef struct cairn_recorder cairn_recorder;

/* Sends histograms (observe.h) of what the environment's training computes to the writers there are, with counts in
 * `exponents` and the loss scale of the backward in `scale`. docs/observing.md has their names. Where CAIRN_LAB is set,
 * the environment has a recorder from its beginning.
 *
 *   grad_before/NAME       gradient of a parameter on this rank when backward has it, before ddp reduces it; under ddp
 *   grad/NAME              gradient of a parameter as the optimizer gets it: reduced, if ddp has it
 *   activation/PATH        what a module returned, in training mode and with a graph
 *   activation_grad/PATH   the gradient of that
 *
 * A step is that of the optimizer that has the parameter, or a module's first one; of parameters without an optimizer
 * it is the number of the backward. Gradients of a user's own set (cairn_grads_ready) count too. What a graph (graph.h)
 * records and replays is not seen.
 *
 *   options  may be NULL
 *
 * The recorder ends with the environment, if not before; its memory by cairn_recorder_destroy. Threads: as env.
 * Cost of a recorded step: one read of each gradient (two under ddp), result and gradient of a result, and on a GPU a
 * wait for each; a copy of results that are not dense. Between recorded steps a call for each of them that returns at
 * once; without a recorder one branch. Memory: 150 KB and the names of modules. Errors: CAIRN_EINVAL; CAIRN_ENOMEM;
 * CAIRN_ESTATE env has one. What fails later is logged once and ends the recording, not the training. */
CAIRN_API cairn_status cairn_recorder_create(cairn_env *env, const struct cairn_recorder_options *options,
                                             cairn_recorder **out);
CAIRN_API void cairn_recorder_destroy(cairn_recorder **recorder);

/* ---- as a histogram ---- */

/* Room for one, of 0, below, binades and above. */
struct cairn_exponents_buckets {
    double limits[CAIRN_NUM_BINADES + 3], counts[CAIRN_NUM_BINADES + 3];
};

/* Counts as cairn_histogram_record takes them: magnitudes over the limits 0 and 2^(b + 1), from the least binade that
 * has elements to the greatest. (A histogram has its upper limits inside, a binade its lower one: an element that is
 * exactly 2^(b + 1) stands with those above it.) min and max are edges of binades; sums are estimates, of 1.5 2^b for
 * an element. Infinities and NaNs are in no bucket but in num_infs and num_nans, and counts in `exponents`.
 *
 *   scale    what the elements had been multiplied by: 1, or the loss scale; kept beside the counts
 *   buckets  what the result points into, as to counts
 *   out      begins as *cairn_histogram()
 *
 * Errors: CAIRN_EINVAL. */
CAIRN_API cairn_status cairn_exponents_histogram(const struct cairn_exponents *counts, double scale,
                                                 struct cairn_exponents_buckets *buckets, struct cairn_histogram *out);

#ifdef __cplusplus
}
#endif

#endif
