/* Parameters: what an optimizer updates, amp casts and ddp reduces, whether it belongs to a module or to the user.
 * Threads: as the environment, one at a time. */
#ifndef CAIRN_PARAM_H
#define CAIRN_PARAM_H

#include "core.h"
#include "env.h"
#include "stateful.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Describes one parameter. Filled in by the user to make a set, or by cairn_param_set_get to read one. It has no
 * struct_size, so that initialisers contain only the parameter; the calls pass its size (core.h). */
typedef struct cairn_param {
    const char *name;
    void *data;        /* [shape] the weights, of dtype, in memory of the environment's device */
    void *grad;        /* [shape] their gradient, likewise; NULL = bound later (cairn_param_bind), or in Cairn's memory,
                          which cairn_param_set_get makes and returns */
    cairn_dtype dtype; /* f32, f16, bf16 */
    int ndim;
    int64_t shape[CAIRN_MAX_DIMS];
    cairn_switch is_norm; /* CAIRN_ON: belongs to a normalisation layer, which O2 keeps in f32 */
} cairn_param;

typedef struct cairn_param_set cairn_param_set;

/* Makes a set over count parameters whose weights (and gradients, if given) stay in the user's memory. This memory must
 * outlive the set and belong to the environment's device: on a GPU from cudaMalloc, on the CPU host memory. Slices of
 * one large array are fine. NULL, 0: an empty set, for cairn_param_set_add. Names and shapes are copied. Half
 * parameters of such a set have no masters until amp_initialize_params makes them; without masters, an update smaller
 * than half a unit in the last place of a weight is lost.
 * Errors: CAIRN_EINVAL names the entry: no name, a duplicate name, no data, host memory while env is on a GPU, an
 * address that is not aligned for dtype, no such dtype, ndim or a size out of range; CAIRN_ENOMEM. */
CAIRN_API cairn_status cairn_param_set_create(cairn_env *env, const cairn_param *params, size_t count,
                                              cairn_param_set **out);
CAIRN_API cairn_status cairn_param_set_create_sized(size_t param_nbytes, cairn_env *env, const cairn_param *params,
                                                    size_t count, cairn_param_set **out);
#define cairn_param_set_create(...) cairn_param_set_create_sized(sizeof(cairn_param), __VA_ARGS__)

/* Adds count parameters to a user-made set that nothing uses yet: slices of one array, as for trainers that keep all
 * layers of a model in one. The first is *first; the others have the same shape, dtype and is_norm, and slice i starts
 * i * stride elements after it, for weights and gradients alike. Numbering continues after the existing parameters.
 * Only names and shapes are copied.
 *
 *   first     name "h.%d.attn.w": %d is replaced by the slice's number, from 0; without %d and with count above 1 the
 *             number is appended after a dot: "attn.w.0". NULL: "param" and the parameter's number in the set
 *   stride    elements; 0 = slices are contiguous
 *
 * Errors, which change nothing: CAIRN_EINVAL as cairn_param_set_create, a module's set, a stride at which slices
 * overlap; CAIRN_ESTATE an optimizer or context uses the set, or it has gradients; CAIRN_ENOMEM. */
CAIRN_API cairn_status cairn_param_set_add(cairn_param_set *set, const cairn_param *first, size_t count, size_t stride);
CAIRN_API cairn_status cairn_param_set_add_sized(size_t param_nbytes, cairn_param_set *set, const cairn_param *first,
                                                 size_t count, size_t stride);
#define cairn_param_set_add(...) cairn_param_set_add_sized(sizeof(cairn_param), __VA_ARGS__)

/* Destroys a user-made set; a module's set ends with the module. Call it after destroying its optimizers and
 * contexts. */
CAIRN_API void cairn_param_set_destroy(cairn_param_set **set);

/* For a user-made set: sets new addresses for the weights, gradient or both of parameter i, after memory was
 * reallocated or a gradient got its memory at the first backward. NULL = unchanged. The old memory, which may be gone,
 * is not read: the new memory must have its contents, as after realloc. So weights are unchanged (a master stays), and
 * a pending gradient is in the new memory; if it is not, call cairn_grads_taken first. A gradient in Cairn's memory is
 * kept. Errors, which change nothing: CAIRN_EINVAL no such parameter, memory as for cairn_param_set_create;
 * CAIRN_ESTATE a module's set, its gradients are in flight (call ddp_wait first), or a captured graph uses the old
 * memory; CAIRN_ENOMEM. */
CAIRN_API cairn_status cairn_param_bind(cairn_param_set *set, size_t i, void *data, void *grad);

/* For a user-made set: declares that the gradients of parameters [first, first + count) have been written completely.
 * The next step of their optimizer, taken or skipped, uses what is then in their memory: a further step finds no
 * gradient until it is declared again, and zero_grad is needed only to drop a gradient that no step should use.
 *
 * If a gradient is declared again before that step, the memory holds its new value: overwritten, or added to in place,
 * at the same loss scale. (With half values, adding in place is done in half precision; one declaration after the last
 * addition rounds only once.) To accumulate gradients of another scale, or in f32 whatever their type, call
 * cairn_grads_taken first.
 *
 * Under amp, gradients with half values in f32 memory are rounded here, in place. With several ranks, ddp_create_params
 * averages what is declared; the memory may then be neither read nor written until ddp_wait. Without ddp the user
 * averages gradients, before this call (or between amp_begin_step and amp_end_step).
 * Errors, which change nothing: CAIRN_EINVAL out of range, a module's set, a parameter without gradient memory;
 * CAIRN_ESTATE a pending gradient has another loss scale, or is in flight; as ddp_create, if ddp has the set. */
CAIRN_API cairn_status cairn_grads_ready(cairn_param_set *set, size_t first, size_t count);

/* Accumulates over several backwards: adds declared gradients of these parameters to f32 accumulators, each unscaled by
 * its own loss's scale; their memory may then be overwritten, starting from 0. The step applies the accumulated sum and
 * what has been declared since. Parameters without a pending gradient are ignored. Not needed for one backward per
 * step, or if all backwards add in place at one scale. Errors: CAIRN_EINVAL; CAIRN_ESTATE gradients are in flight (call
 * ddp_wait first); CAIRN_ENOMEM. */
CAIRN_API cairn_status cairn_grads_taken(cairn_param_set *set, size_t first, size_t count);

/* Forgets the gradients of all parameters of the set, including accumulators; results of the step stay (cairn_zero_grad
 * ends them too). Nothing is written to memory: a trainer that adds to its gradients clears them itself. NULL does
 * nothing. */
CAIRN_API void cairn_param_set_zero_grad(cairn_param_set *set);

/* The number of parameters; 0 for NULL. */
CAIRN_API size_t cairn_param_set_count(const cairn_param_set *set);

/* The current state of parameter i: under O2 dtype is the half type, data the half weights and grad the scaled half
 * gradient (for a user-made set, dtype stays the type of its memory). With ddp_options.shard_optimizer grad contains
 * the average only in this rank's part. The set owns the name. Errors: CAIRN_EINVAL; CAIRN_ENOMEM for a user-made set,
 * since gradient memory is allocated here if there is none and the parameter is not frozen. */
CAIRN_API cairn_status cairn_param_set_get(const cairn_param_set *set, size_t i, cairn_param *out);
CAIRN_API cairn_status cairn_param_set_get_sized(size_t param_nbytes, const cairn_param_set *set, size_t i,
                                                 cairn_param *out);
#define cairn_param_set_get(...) cairn_param_set_get_sized(sizeof(cairn_param), __VA_ARGS__)

/* The f32 values that the optimizer updates, in device memory owned by the set: the master of a half parameter that has
 * one, or the f32 weights themselves. NULL for a half parameter without a master, and for i out of range. */
CAIRN_API float *cairn_param_master(const cairn_param_set *set, size_t i);

/* Call it after writing weights through a raw pointer (on a GPU: after queueing the write on cairn_cuda_stream).
 * master_was_written 1: rounds the half weights again from the master; 0: sets the master from the half weights. f32
 * memory with half values may be written with any f32 values: the master gets them unchanged, and they are rounded in
 * place. Drops caches of parameter i. Errors: CAIRN_EINVAL. */
CAIRN_API cairn_status cairn_param_changed(cairn_param_set *set, size_t i, int master_was_written);

/* ---- frozen parameters ----
 *
 * A parameter requires a gradient (torch: requires_grad) until it is frozen, and again after it is thawed. While it is
 * frozen its weights do not change: backward computes no gradient for it, Cairn allocates no memory for one, ddp's
 * buckets do not contain it, it cannot overflow, and optimizers ignore it. Backward stops at an operation none of whose
 * inputs requires a gradient.
 *
 *   gradient    freezing forgets a pending gradient as cairn_param_set_zero_grad does, including unsynced and
 *               accumulated sums. An overflow that its optimizer has already noted still skips its step.
 *   graphs      backward computes gradients for parameters that required one both when the operation was called and
 *               now. A checkpoint function runs twice and must find the same parameters frozen both times:
 *               CAIRN_ESTATE.
 *   masters     at O2 amp_initialize makes masters of frozen parameters too, with the original f32 bits; after a thaw
 *               training continues from these.
 *   moments     a parameter that is frozen when it is added to an optimizer has no moments; they are made with its
 *               first gradient. Moments of a parameter that is frozen later stay unchanged and are used again after a
 *               thaw. Steps in between count as steps without a gradient, as for a parameter that a loss does not
 *               reach.
 *   statistics  freezing affects parameters only. Running statistics of a frozen batch_norm are still updated in
 *               training mode; cairn_module_train(module, 0) stops that.
 *   ddp         makes the calls below collective: every rank must make the same ones in the same order, or all return
 *               CAIRN_EPEER with the name of the first parameter that differs, and nothing changes. The next reduced
 *               backward plans buckets anew if the frozen parameters have changed; static_graph is then learned anew. A
 *               call within a backward (own buffers: before ddp_wait) is refused at once; ranks that make the call
 *               after their own backward (ddp_wait) get CAIRN_EPEER with the reason once that backward (ddp_wait) has
 *               ended on all ranks. In a backward, parameters that its graph used and that have been frozen since count
 *               as not reached; the backward is reduced if other parameters of the set require a gradient.
 *   graph.h     a captured graph fixes which products are computed and which memory is reduced: CAIRN_ESTATE while one
 *               is alive.
 *
 * User-made sets: cairn_grads_ready ignores frozen parameters, so ranges are declared as before. Gradient memory from
 * the user stays bound; gradient memory that cairn_param_set_get allocated is freed.
 *
 * Errors of the calls that freeze and thaw, all of which change nothing: CAIRN_EINVAL no such parameter; CAIRN_ESTATE
 * within a backward, gradients in flight (call ddp_wait first), a captured graph; CAIRN_EPEER as above; errors from
 * checking pending gradients. on: 0 or CAIRN_OFF freezes. */

/* Freezes or thaws parameter i. */
CAIRN_API cairn_status cairn_param_require_grad(cairn_param_set *set, size_t i, int on);

/* Freezes or thaws all parameters whose name matches a pattern as by fnmatch(3): "*" matches any text (dots too), "?"
 * any character, "[0-5]" one of these. "embeddings.*", "encoder.layer.[0-5].*", "*". CAIRN_EINVAL, with the pattern, if
 * nothing matches. For a module: cairn_module_require_grad (nn.h). */
CAIRN_API cairn_status cairn_param_set_require_grad(cairn_param_set *set, const char *pattern, int on);

/* 0 for a frozen parameter, and for i out of range; otherwise 1. */
CAIRN_API int cairn_param_requires_grad(const cairn_param_set *set, size_t i);

/* ---- state ----
 *
 * The set's state for a checkpoint (stateful.h): weights by the names of their parameters, and which are frozen, in the
 * set's order. For a half parameter with a master, the master is saved, in f32, and a load rounds the half weights from
 * it; other weights are saved in the type of their memory. The loading set must have the same types: the same level of
 * amp.
 *
 * State can be saved and loaded between a step and the next backward. Gradients are not included: a load forgets
 * gradients that a step, taken or skipped, has used. CAIRN_ESTATE, with what to call first: a gradient that no step has
 * used or that is unsynced (ddp_no_sync), gradients in flight, a running backward, a scaled loss that is open or has no
 * step yet, a graph that is being recorded. CAIRN_EINVAL: a parameter is called "requires_grad". A load that freezes or
 * thaws acts as the calls above: CAIRN_ESTATE while a captured graph is alive, and collective under ddp.
 *
 * With several ranks, rank 0 saves what ddp averages on all of them, and each rank the rest: without ddp everything,
 * and ddp_options.ignored. */
CAIRN_API cairn_stateful cairn_param_set_stateful(cairn_param_set *set);

#ifdef __cplusplus
}
#endif

#endif
