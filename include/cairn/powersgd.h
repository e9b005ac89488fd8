/* PowerSGD: gradients of matrices travel as two thin ones. torch's powerSGD_hook, under its names.
 *
 * A matrix M [n, m] of a gradient becomes P [n, r] = M Q, whose average over the ranks is made orthonormal, and Q [m,
 * r] = M^T P, whose average makes M = P Q^T on every rank: (n + m) r numbers travel instead of n m. What that loses
 * stays on the rank as its error, which is added to the next gradient (error feedback), and Q begins the next backward
 * (warm start), so that it follows the largest singular vectors. A gradient of rank r or less travels exactly.
 *
 * A parameter of several dimensions is a matrix of its first one and all others. What would not become smaller
 * (min_compression_rate), vectors for instance, travels as it is, beside P.
 *
 * What differs from torch: halves are widened, and P, Q and errors are f32. Errors are unscaled, so that the loss scale
 * may change; in torch they have the scale of their backward. Errors and Q belong to parameters, not to buckets, which
 * may be planned anew. A column of P that is 0, or depends on those before it, becomes 0, and Q keeps the one it had
 * (torch: NaN, but for epsilon, or rounding of any direction).
 * Source: Vogels, Karimireddy, Jaggi, PowerSGD (arXiv 1905.13727), algorithms 1 and 2;
 * torch/distributed/algorithms/ddp_comm_hooks/powerSGD_hook.py. */
#ifndef CAIRN_POWERSGD_H
#define CAIRN_POWERSGD_H

#include "ddp.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A comment is of the field below it. */
struct ddp_powersgd_options {
    size_t struct_size;
    /* r; a matrix with fewer rows or columns has as many. 0 = 1 */
    int matrix_approximation_rank;
    /* OFF: what is lost is lost, and the memory of the errors is saved. ON */
    cairn_switch use_error_feedback;
    /* Backwards of the plain all-reduce before PowerSGD begins, at least 1. 0 = 1000 */
    int64_t start_powerSGD_iter;
    /* A matrix is compressed where this many times (n + m) r is less than n m. 0 = 2 */
    double min_compression_rate;
    /* Added to the norm that a column is divided by. 0 = none is needed */
    double orthogonalization_epsilon;
    /* Of the first Q; with warm_start OFF of every Q. */
    uint64_t random_seed;
    /* OFF: every backward begins with a random Q. ON */
    cairn_switch warm_start;
};
#define ddp_powersgd_options(...) \
    (&(struct ddp_powersgd_options){.struct_size = sizeof(struct ddp_powersgd_options), __VA_ARGS__})

/* The communication hook of the context from now on (ddp_register_comm_hook: once, before the first backward). The
 * context owns what it needs: two f32 copies of each compressed parameter (without error feedback one), P and Q.
 * ddp_stateful lists Q and the errors, which are each rank's own: a training goes on with the same bits on as many
 * ranks, and a state without them begins as anew. A state with them is refused on another number of ranks; leave
 * ddp_stateful out of it there.
 *
 *   options  NULL = all defaults; the same on every rank
 *
 * Options of ddp     gradient_average, gradient_predivide_factor and those of ddp_join hold; wire is what a bucket's
 *                    result is rounded to, not what travels, which is f32.
 * Buckets            hold whole parameters, and overshoot by one.
 * Overflow           an infinity or a NaN of one rank makes its matrix, or its element of what travels as it is, NaN or
 *                    infinite on all ranks; so amp skips the step on all, names the parameter, and counts the whole
 *                    matrix. Such a backward, one whose loss is not finite, and one in which an ignored parameter
 *                    overflows leave errors and Q as they were. So do parameters that no rank used.
 * Several backwards  a step: each is compressed by itself, and where one overflows the errors know of the others.
 * Graphs             a backward cannot be recorded: the host waits for the device at its end.
 * Devices            each rank expands the result itself, so that all need the same kernels: the same kind of GPU with
 *                    the same libraries, or CPUs of the same instruction set (CAIRN_CPU lowers it) with the same
 *                    library of products. Numbers of threads may differ.
 * Collective. Errors: as ddp_register_comm_hook; CAIRN_EINVAL an option, with its value; CAIRN_EPEER options or kernels
 * differ (every rank fails; with both values); CAIRN_ENOTSUP the device has no products; CAIRN_ENOMEM.
 * Cost: three products of n m r and four passes over the gradients a backward. The all-reduce of P overlaps with
 * backward, that of Q does not. */
CAIRN_API cairn_status ddp_powersgd_register(ddp_context *ddp, const struct ddp_powersgd_options *options);

#ifdef __cplusplus
}
#endif

#endif
