/* PowerSGD: compresses the gradient of a matrix into two thin matrices before it is reduced. torch's powerSGD_hook,
 * with its option names.
 *
 * A gradient matrix M [n, m] is approximated as P Q^T. Each rank computes P [n, r] = M Q; the ranks average P and make
 * it orthonormal. Each then computes Q [m, r] = M^T P; the ranks average Q, and M = P Q^T on every rank. So (n + m) r
 * numbers travel instead of n m. What the approximation loses stays on the rank as its error, which is added to the
 * next gradient (error feedback). Q is the start of the next backward (warm start), so it follows the largest singular
 * vectors. A gradient of rank r or less travels exactly.
 *
 * A parameter of several dimensions is treated as a matrix of its first dimension and the product of all others. A
 * parameter that would not become smaller (min_compression_rate), such as a vector, is sent uncompressed, together with
 * P.
 *
 * Differences from torch: half gradients are widened; P, Q and errors are f32. Errors are stored unscaled, so the loss
 * scale may change; torch's keep the scale of their backward. Errors and Q belong to parameters, not to buckets, so
 * buckets may be planned anew. A column of P that is 0, or depends linearly on the columns before it, becomes 0, and Q
 * keeps its previous column (torch: NaN unless epsilon is set, or a direction that rounding decides).
 * Source: Vogels, Karimireddy, Jaggi, PowerSGD (arXiv 1905.13727), algorithms 1 and 2;
 * torch/distributed/algorithms/ddp_comm_hooks/powerSGD_hook.py. */
#ifndef CAIRN_POWERSGD_H
#define CAIRN_POWERSGD_H

#include "ddp.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Each comment describes the field below it. */
struct ddp_powersgd_options {
    size_t struct_size;
    /* r; limited to the number of rows and of columns of a matrix. 0 = 1 */
    int matrix_approximation_rank;
    /* OFF: approximation errors are dropped, which saves their memory. Default ON */
    cairn_switch use_error_feedback;
    /* The number of backwards that use the plain all-reduce before PowerSGD begins, at least 1. 0 = 1000 */
    int64_t start_powerSGD_iter;
    /* A matrix is compressed if this rate times (n + m) r is less than n m. 0 = 2 */
    double min_compression_rate;
    /* Added to the norm that a column is divided by. 0 = nothing is added; none is needed */
    double orthogonalization_epsilon;
    /* Seed of the first Q; with warm_start OFF of every Q. */
    uint64_t random_seed;
    /* OFF: every backward starts from a random Q. Default ON */
    cairn_switch warm_start;
};
#define ddp_powersgd_options(...) \
    (&(struct ddp_powersgd_options){.struct_size = sizeof(struct ddp_powersgd_options), __VA_ARGS__})

/* Makes PowerSGD the context's communication hook (ddp_register_comm_hook: once, before the first backward). The
 * context owns its memory: two f32 copies of each compressed parameter (one without error feedback), P and Q.
 * ddp_stateful lists Q and the errors, which differ from rank to rank: a loaded training continues with the same bits
 * on the same number of ranks, and a state without them starts over. A state with them is refused on another number of
 * ranks; leave ddp_stateful out of it there.
 *
 *   options  NULL = all defaults; the same on every rank
 *
 * Options of ddp     gradient_average, gradient_predivide_factor and the options of ddp_join apply; wire is the type
 *                    that a bucket's result is rounded to, while f32 travels.
 * Buckets            hold whole parameters, so a bucket may exceed its size by one parameter.
 * Overflow           An infinity or NaN on one rank makes its whole matrix (of an uncompressed parameter, its element)
 *                    NaN or infinite on all ranks; so amp skips the step on all ranks, names the parameter, and counts
 *                    the whole matrix. Such a backward leaves errors and Q unchanged; so does one whose loss is not
 *                    finite, and one in which an ignored parameter overflows. Errors and Q of parameters that no rank
 *                    used stay unchanged too.
 * Several backwards  of one step are compressed one by one. If one of them overflows and the step is skipped, the
 *                    errors still include the others.
 * Graphs             A backward cannot be recorded, since the host waits for the device at its end.
 * Devices            Each rank expands the result itself, so all ranks need the same kernels: the same kind of GPU with
 *                    the same libraries, or CPUs of the same instruction set (CAIRN_CPU lowers it) with the same
 *                    matrix-product library. Numbers of threads may differ.
 * Collective. Errors: as ddp_register_comm_hook; CAIRN_EINVAL an option, with its value; CAIRN_EPEER options or kernels
 * differ (every rank fails; with both values); CAIRN_ENOTSUP the device has no products; CAIRN_ENOMEM.
 * Cost: for each backward three products of n m r and four passes over the gradients. The all-reduce of P overlaps with
 * backward; that of Q does not. */
CAIRN_API cairn_status ddp_powersgd_register(ddp_context *ddp, const struct ddp_powersgd_options *options);

#ifdef __cplusplus
}
#endif

#endif
