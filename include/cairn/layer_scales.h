/* A chain of layers whose activation gradients have a scale each: adaptive loss scaling.
 *
 * One loss scale is for all layers. Where gradients shrink from layer to layer on their way down, those of the first
 * layers fall below f16's range while those of the last are near its top. Here the gradient at the output of child i is
 * multiplied by a scale of its own, a_i, and goes on multiplied by the product of those above it, P_i = a_i a_(i+1) ...
 * a_(n-1); gradients of the child's parameters are divided by P_i once they are written, before anything else, ddp and
 * amp's check among it, sees them. So optimizers, clipping and amp's loss scaler work as with cairn_sequential.
 *
 * amp_sequential_update chooses the scales anew from the gradients of the last backward, from the last child down:
 *     a_i = the power of two at or below  min( max(1, least / (q sd_i P_(i+1))),  most / (headroom m_i P_(i+1)) )
 *     a_i is kept within 1 / max_layer_scale and max_layer_scale, P_i within 1 / max_scale and max_scale;  a_0 = 1
 *     least, most   the smallest number above 0 and the largest of the gradient's type: 2^-24 and 65504 in f16
 *     sd_i, m_i     the root of the mean square, and the largest, of the elements but 0 of the gradient of child i's
 *                   input, with P_i taken out of it
 *     q             P(|z| < q) = underflow_share for a normal z: so that this share of a normal gradient underflows
 * A gradient that is not finite halves a_i of the child nearest to the loss that has one; one that is all 0 doubles
 * its own.
 * f32 and bf16 have range enough: there every scale comes to 1.
 *
 * Exact: scales are powers of two, so multiplying and dividing round nothing but what leaves the type's range. A
 * gradient slot of f32 (O0, O1) loses nothing by the division; one in f16 (O2, O3) holds gradients at the loss scale
 * alone, and what is below 2^-24 there is rounded, though it was computed above. Approximated, beside the paper: the
 * scales of a backward come from the one before the update, and not from itself, so that ranks can agree on them;
 * sd_i is measured on the gradient after it was rounded, where the paper forms it from the variances of the incoming
 * gradient and the weights; only chains are scaled layer by layer: what is inside a child, residual branches too,
 * shares its scale.
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

/* Choices; 0 takes the default. */
struct amp_sequential_options {
    size_t struct_size;
    double underflow_share; /* 1e-3; in (0, 1) */
    double headroom;        /* 16; from 1 to 2^16 */
    double max_layer_scale; /* 16; a power of two, from 1 to 2^24 */
    double max_scale;       /* 1024; a power of two, from 1 to 2^24 */
};
#define amp_sequential_options(...) \
    (&(struct amp_sequential_options){.struct_size = sizeof(struct amp_sequential_options), __VA_ARGS__})

/* cairn_sequential with a scale for each child: the same names of parameters, the same values forward. Children are
 * taken over, also where it fails. A parameter may be used by the child that has it alone: by no second child, and by
 * no part of the loss of its own, such as weight decay that is added to it. The scales, f32 [2, count] (a_i, then
 * 1 / P_i), are the buffer "layer_scales": a part of cairn_module_stateful, of weights files too, and of what ddp sends
 * to all ranks; they begin at 1. Not for cairn_data_parallel. Gradients of half parameters (O2, O3) are formed before
 * the division: they may overflow where the loss scale alone would not let them, which then lowers the loss scale.
 * options may be NULL. Costs a copy of each child's output forward; and in backward three reads and a write of its
 * gradient, and a pass over gradients of parameters. Gradients of f64 are CAIRN_ENOTSUP from backward. NULL on error:
 * CAIRN_EINVAL no children, one that is NULL, there twice or has another amp_sequential inside, an option out of
 * range; those of cairn_module_add_child. */
CAIRN_API cairn_module *amp_sequential(cairn_env *env, int count, cairn_module *const *children,
                                       const struct amp_sequential_options *options);

/* Chooses the scales of the backwards to come; between a step and the next backward. Waits for the device. Collective:
 * every rank of the environment calls it for the same chain (a pipeline's stages have different ones), their gradients
 * count as one, and all have the same scales after it. A child whose gradients no backward has computed yet
 * keeps its scale.
 * Errors: CAIRN_EINVAL no module of amp_sequential, or chains of ranks differ; CAIRN_ESTATE a graph is being recorded;
 * CAIRN_EPEER another rank failed; CAIRN_EDEVICE; CAIRN_ENOMEM; of the group. */
CAIRN_API cairn_status amp_sequential_update(cairn_module *module);

/* scales [count], one for each child: P_i, by which the gradients inside it are multiplied. Waits for the device.
 * Errors: CAIRN_EINVAL no module of amp_sequential, or another count; CAIRN_ESTATE a graph is being recorded;
 * CAIRN_EDEVICE. */
CAIRN_API cairn_status amp_sequential_scales(const cairn_module *module, double *scales, size_t count);

#ifdef __cplusplus
}
#endif

#endif
