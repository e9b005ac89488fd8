/* Adaptive loss scaling: a chain of layers, each with a scale of its own for activation gradients.
 *
 * A loss scale is the same for all layers. If gradients shrink from layer to layer on their way down, those of the
 * first layers fall below f16's range while those of the last layers are near its top. Here the gradient at the output
 * of child i is multiplied by a scale a_i, so gradients inside child i carry the product P_i = a_i a_(i+1) ... a_(n-1).
 * Gradients of the child's parameters are divided by P_i as soon as they are written, before ddp, amp's overflow check
 * or anything else reads them. So optimizers, clipping and amp's loss scaler work as with cairn_sequential.
 *
 * amp_sequential_update recomputes the scales from the gradients of the last backward, from the last child down:
 *     a_i = the power of two at or below  min( max(1, least / (q sd_i P_(i+1))),  most / (headroom m_i P_(i+1)) )
 *     a_i is clamped to [1 / max_layer_scale, max_layer_scale], P_i to [1 / max_scale, max_scale];  a_0 = 1
 *     least, most   the smallest number above 0 and the largest of the gradient's type: 2^-24 and 65504 in f16
 *     sd_i, m_i     the root mean square and the largest magnitude of the nonzero elements of the gradient of child i's
 *                   input, with P_i divided out
 *     q             P(|z| < q) = underflow_share for a normal z: so this share of a normal gradient underflows
 * If gradients are not finite, a_i is halved for the one of these children that is nearest to the loss; a child whose
 * gradient is all 0 doubles its a_i.
 * f32 and bf16 have enough range: with them every scale becomes 1.
 *
 * Exactness: scales are powers of two, so multiplying and dividing are exact, except for values that leave the type's
 * range. An f32 gradient slot (O0, O1) loses nothing by the division; an f16 slot (O2, O3) holds gradients at the loss
 * scale alone, so values below 2^-24 there are rounded, although they were computed at a larger scale. Differences from
 * the paper: a backward uses the scales of the last update and not ones derived from itself, so that ranks can agree on
 * them; sd_i is measured on the rounded gradient, while the paper derives it from the variances of the incoming
 * gradient and the weights; only the children of the chain get scales of their own: everything inside a child, residual
 * branches included, shares its scale.
 *
 * Source: Zhao, Vogel, Ahmed, "Adaptive Loss Scaling for Mixed Precision Training", arXiv 1910.12385, 2019, and its
 * code, kumasento/gradient-scaling, ada_loss/chainer_impl/ada_loss.py, loss_scale_method approx_range: its T_uf of
 * 1e-3, and bounds 16 and 1024. Headroom, the lower bounds, and the rules for gradients without a size are ours. */
#ifndef CAIRN_LAYER_SCALES_H
#define CAIRN_LAYER_SCALES_H

#include "modules.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Choices; 0 takes the default, which is given first. */
struct amp_sequential_options {
    size_t struct_size;
    double underflow_share; /* 1e-3; in (0, 1) */
    double headroom;        /* 16; from 1 to 2^16 */
    double max_layer_scale; /* 16; a power of two, from 1 to 2^24 */
    double max_scale;       /* 1024; a power of two, from 1 to 2^24 */
};
#define amp_sequential_options(...) \
    (&(struct amp_sequential_options){.struct_size = sizeof(struct amp_sequential_options), __VA_ARGS__})

/* cairn_sequential with a scale for each child: the same parameter names, the same forward values. Takes ownership of
 * the children, also on failure. Each parameter may be used by one child only: not by another child, and not by the
 * loss directly, as a weight-decay term would. The scales, f32 [2, count] (a_i, then 1 / P_i), start at 1 and are the
 * buffer "layer_scales": cairn_module_stateful and weights files include it, and ddp broadcasts it to all ranks. Not
 * supported by cairn_data_parallel. Gradients of half parameters (O2, O3) are computed before the division, so they may
 * overflow where the loss scale alone would not make them; the loss scale is then lowered.
 * options may be NULL. Cost: forward, a copy of each child's output; backward, three reads and a write of its gradient,
 * and a pass over the gradients of parameters. With f64 gradients backward returns CAIRN_ENOTSUP. Returns NULL on
 * error: CAIRN_EINVAL no children, a child that is NULL, is listed twice or contains another amp_sequential, an option
 * out of range; the errors of cairn_module_add_child. */
CAIRN_API cairn_module *amp_sequential(cairn_env *env, int count, cairn_module *const *children,
                                       const struct amp_sequential_options *options);

/* Chooses the scales for the next backwards. Call it between a step and the next backward; it waits for the device.
 * Collective: every rank of the environment calls it for the same chain (stages of a pipeline have different ones). The
 * gradients of all ranks count as one, and all ranks get the same scales. A child whose gradients no backward has
 * computed yet keeps its scale.
 * Errors: CAIRN_EINVAL no module of amp_sequential, or chains of ranks differ; CAIRN_ESTATE a graph is being recorded;
 * CAIRN_EPEER another rank failed; CAIRN_EDEVICE; CAIRN_ENOMEM; errors of the group. */
CAIRN_API cairn_status amp_sequential_update(cairn_module *module);

/* scales [count]: P_i of each child, the factor of the gradients inside it. Waits for the device.
 * Errors: CAIRN_EINVAL no module of amp_sequential, or another count; CAIRN_ESTATE a graph is being recorded;
 * CAIRN_EDEVICE. */
CAIRN_API cairn_status amp_sequential_scales(const cairn_module *module, double *scales, size_t count);

#ifdef __cplusplus
}
#endif

#endif
