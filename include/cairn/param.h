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

/* One parameter, described. Filled by the user to make a set, or by cairn_param_set_get to read one. It has no
 * struct_size, so that initialisers hold nothing but the parameter; calls hand its size over (core.h). */
typedef struct cairn_param {
    const char *name;
    void *data;        /* [shape] the weights, of dtype, in memory of the environment's device */
    void *grad;        /* [shape] their gradient, likewise; NULL = it comes later (cairn_param_bind), or is memory of
                          Cairn's, which cairn_param_set_get makes and shows */
    cairn_dtype dtype; /* f32, f16, bf16 */
    int ndim;
    int64_t shape[CAIRN_MAX_DIMS];
    cairn_switch is_norm; /* CAIRN_ON: belongs to a normalisation layer, which O2 keeps in f32 */
} cairn_param;

typedef struct cairn_param_set cairn_param_set;

/* A set over count parameters whose weights (and gradients, where given) stay in the user's memory, which must outlive
 * the set and belong to the environment's device: on a GPU pointers of cudaMalloc, on the CPU the host's. Slices of one
 * large array are as good as any. NULL, 0: an empty one, to add to (cairn_param_set_add). Names and shapes are copied.
 * Half parameters of such a set have masters once amp_initialize_params has made them; without, an update smaller than
 * half a unit in the last place of a weight is lost.
 * Errors: CAIRN_EINVAL names the entry: no name, a name twice, no data, memory of the host where env is on a GPU, an
 * address that is not aligned for dtype, no such dtype, ndim or a size out of range; CAIRN_ENOMEM. */
CAIRN_API cairn_status cairn_param_set_create(cairn_env *env, const cairn_param *params, size_t count,
                                              cairn_param_set **out);
CAIRN_API cairn_status cairn_param_set_create_sized(size_t param_nbytes, cairn_env *env, const cairn_param *params,
                                                    size_t count, cairn_param_set **out);
#define cairn_param_set_create(...) cairn_param_set_create_sized(sizeof(cairn_param), __VA_ARGS__)

/* Adds count parameters to a set that the user made and nothing uses yet: slices of one array, as trainers keep the
 * layers of a net. The first is *first; the others have its shape, dtype and is_norm, and slice i stands i * stride
 * elements behind it, weights and gradient alike. They are numbered on from those there are. Nothing is copied but name
 * and shape.
 *
 *   first     name "h.%d.attn.w": the slice's number, from 0, takes the place of %d; where there is none and count is
 *             above 1, it comes behind a dot: "attn.w.0". NULL: "param" and the parameter's number in the set
 *   stride    elements; 0 = slices stand one behind another
 *
 * Errors, which change nothing: CAIRN_EINVAL as cairn_param_set_create, a module's set, a stride at which slices
 * overlap; CAIRN_ESTATE an optimizer or context uses the set, or it has gradients; CAIRN_ENOMEM. */
CAIRN_API cairn_status cairn_param_set_add(cairn_param_set *set, const cairn_param *first, size_t count, size_t stride);
CAIRN_API cairn_status cairn_param_set_add_sized(size_t param_nbytes, cairn_param_set *set, const cairn_param *first,
                                                 size_t count, size_t stride);
#define cairn_param_set_add(...) cairn_param_set_add_sized(sizeof(cairn_param), __VA_ARGS__)

/* Ends a set the user made; a module's set ends with the module. After its optimizers and contexts. */
CAIRN_API void cairn_param_set_destroy(cairn_param_set **set);

/* For a set the user made: weights, gradient or both of parameter i stand elsewhere from now on (memory was
 * reallocated, or a gradient has got its memory at the first backward). NULL = as it is. The old memory, which may be
 * gone, is not read: contents come along as with realloc. So weights are what they were (a master stays), and a
 * gradient that waits for its step stands in the new memory; where it does not, cairn_grads_taken comes before. A
 * gradient in memory of Cairn's is kept. Errors, which change nothing: CAIRN_EINVAL no such parameter, memory as
 * cairn_param_set_create; CAIRN_ESTATE a module's set, its gradients travel (ddp_wait comes first), or a captured graph
 * has the old memory; CAIRN_ENOMEM. */
CAIRN_API cairn_status cairn_param_bind(cairn_param_set *set, size_t i, void *data, void *grad);

/* For a set the user made: the gradients of parameters [first, first + count) have been written, whole. The next step
 * of their optimizer applies what stands in their memory then, and uses it up, taken or skipped: a further step finds
 * no gradient until it is declared again, and zero_grad is needed only to drop one that no step shall have.
 *
 * Declared again before that step, the memory holds the gradient anew: overwritten, or added to in place, at one loss
 * scale. (To add in half precision is what half values do; one declaration after the last addition rounds once.) What
 * shall be added at another scale, or in f32 whatever the values, is first taken: cairn_grads_taken.
 *
 * Under amp gradients of f32 memory with half values are rounded in it here. Over several ranks ddp_create_params
 * averages what is declared; from here to ddp_wait it may then be neither read nor written. Without, gradients are the
 * user's to average, before this (or between amp_begin_step and amp_end_step).
 * Errors, which change nothing: CAIRN_EINVAL out of range, a module's set, a parameter without gradient memory;
 * CAIRN_ESTATE a gradient waits that was multiplied by another loss scale, or travels; as ddp_create, where ddp has the
 * set. */
CAIRN_API cairn_status cairn_grads_ready(cairn_param_set *set, size_t first, size_t count);

/* Accumulation over several backwards: gradients of these parameters that were declared ready are added to f32
 * accumulators, each unscaled by its own loss's scale, and their memory may be written again, from 0. The step applies
 * what has been accumulated and what has been declared since. Parameters that wait for nothing are passed over; where
 * there is one backward a step, or all add in place at one scale, there is nothing to call. Errors: CAIRN_EINVAL;
 * CAIRN_ESTATE gradients travel (ddp_wait comes first); CAIRN_ENOMEM. */
CAIRN_API cairn_status cairn_grads_taken(cairn_param_set *set, size_t first, size_t count);

/* Forgets the gradients of all parameters of the set, accumulators too; results of the step stay (cairn_zero_grad ends
 * them too). Nothing is written to memory: a trainer that adds into its gradients clears them itself. NULL does
 * nothing. */
CAIRN_API void cairn_param_set_zero_grad(cairn_param_set *set);

/* How many parameters it has; 0 for NULL. */
CAIRN_API size_t cairn_param_set_count(const cairn_param_set *set);

/* Parameter i as it is now: under O2 dtype is the half type, data the half weights and grad the scaled half gradient
 * (of a set the user made, dtype stays what its memory is). With ddp_options.shard_optimizer grad holds the average in
 * this rank's part alone. The name is owned by the set. Errors: CAIRN_EINVAL;
 * CAIRN_ENOMEM: of a set the user made, gradient memory is made here where there is none and the parameter is not
 * frozen. */
CAIRN_API cairn_status cairn_param_set_get(const cairn_param_set *set, size_t i, cairn_param *out);
CAIRN_API cairn_status cairn_param_set_get_sized(size_t param_nbytes, const cairn_param_set *set, size_t i,
                                                 cairn_param *out);
#define cairn_param_set_get(...) cairn_param_set_get_sized(sizeof(cairn_param), __VA_ARGS__)

/* The f32 values that the optimizer updates, in memory of the device and the set's: the master of a half parameter that
 * has one, or the f32 weights themselves. NULL for a half parameter without a master, and for i out of range. */
CAIRN_API float *cairn_param_master(const cairn_param_set *set, size_t i);

/* To be called after writing weights through a raw pointer (on a GPU: after queueing that on cairn_cuda_stream):
 * masters were written = 1 re-rounds the half weights from the master, 0 takes the master from the half weights. f32
 * memory with half values may be written with any f32 ones: the master takes them as they are, and they are rounded.
 * Caches of parameter i are dropped. Errors: CAIRN_EINVAL. */
CAIRN_API cairn_status cairn_param_changed(cairn_param_set *set, size_t i, int master_was_written);

/* ---- frozen parameters ----
 *
 * A parameter requires a gradient (torch: requires_grad) until it is frozen, and again once it is thawed. While it is
 * frozen its weights stay as they are: backward computes no product for its gradient, there is no gradient and no
 * memory of Cairn's for one, no bucket of ddp holds a byte of it, nothing of it can overflow, optimizers pass it over.
 * Backward stops at an operation none of whose inputs requires a gradient.
 *
 *   gradient    freezing drops what waits: the gradient is forgotten as by cairn_param_set_zero_grad, unsynced and
 *               accumulated sums too. An overflow that its optimizer has taken note of before still skips its step.
 *   graphs      a graph gives a gradient to parameters that required one when the operation was called and still do
 *               when backward comes. A checkpoint function runs twice and must find the same ones frozen both times:
 *               CAIRN_ESTATE.
 *   masters     at O2 amp_initialize makes masters of frozen parameters too, which hold the original f32 bits; training
 *               goes on from these after a thaw.
 *   moments     an optimizer has none for a parameter that is frozen when it is added, and makes them with its first
 *               gradient. Those of a parameter that is frozen later stay as they are, and go on after a thaw. Steps in
 *               between count as steps without a gradient, as those of a parameter that a loss does not reach.
 *   statistics  freezing changes parameters alone. Running statistics of a frozen batch_norm are updated in training
 *               mode; cairn_module_train(module, 0) stops that.
 *   ddp         the calls below are then collective: every rank makes the same ones, in the same order, or all of them
 *               return CAIRN_EPEER with the name of the first parameter that differs, and nothing changes. The next
 *               backward that is reduced plans the buckets anew, where it finds others frozen than those before it;
 *               static_graph is then learned anew. A call within a backward (own buffers: before ddp_wait) is refused
 *               at once, and ranks that make it after theirs get CAIRN_EPEER with the reason when that backward (that
 *               ddp_wait) has ended on all ranks. A backward whose graph used parameters that have been frozen since
 *               counts them as not reached, and is reduced if others of the set require a gradient.
 *   graph.h     a captured graph holds which products are computed and which memory is reduced: CAIRN_ESTATE while one
 *               is alive.
 *
 * A set the user made: cairn_grads_ready passes frozen parameters over, so ranges are declared as before; memory that
 * the user gave for a gradient stays bound, and memory that cairn_param_set_get made goes.
 *
 * Errors of the three calls that change, all of which change nothing: CAIRN_EINVAL no such parameter; CAIRN_ESTATE
 * within a backward, gradients that travel (ddp_wait comes first), a captured graph; CAIRN_EPEER as above; what looking
 * at waiting gradients brings. on: 0 or CAIRN_OFF freezes. */

/* Parameter i. */
CAIRN_API cairn_status cairn_param_require_grad(cairn_param_set *set, size_t i, int on);

/* All parameters whose name matches a pattern as fnmatch(3) has it: "*" is any text (dots too), "?" any character,
 * "[0-5]" one of these. "embeddings.*", "encoder.layer.[0-5].*", "*". CAIRN_EINVAL, with the pattern, where none does.
 * cairn_module_require_grad (nn.h) takes a module. */
CAIRN_API cairn_status cairn_param_set_require_grad(cairn_param_set *set, const char *pattern, int on);

/* 0 for a frozen parameter, and for i out of range; else 1. */
CAIRN_API int cairn_param_requires_grad(const cairn_param_set *set, size_t i);

/* ---- state ----
 *
 * The set as a part of a training's state (stateful.h): weights under the names of their parameters, and which are
 * frozen, in the order of the set. Of a half parameter with a master that is saved, in f32, and a load rounds the half
 * weights from it; others in the type of their memory. A load gives sets the same types: the same level of amp.
 *
 * State is saved and loaded between a step and the next backward. Gradients are no part of it: one that a step, taken
 * or skipped, has used is forgotten by a load. CAIRN_ESTATE, with what to call first: a gradient that no step has used
 * or that is unsynced (ddp_no_sync), gradients that travel, a backward that runs, a scaled loss that is open or waits
 * for its step, a graph that is being recorded. CAIRN_EINVAL: a parameter is called "requires_grad". A load that
 * freezes or thaws is one of the calls above: CAIRN_ESTATE while a captured graph is alive, and under ddp collective.
 *
 * Over several ranks rank 0 saves what ddp averages on all of them, and each rank what is its own: without ddp
 * everything, and ddp_options.ignored. */
CAIRN_API cairn_stateful cairn_param_set_stateful(cairn_param_set *set);

#ifdef __cplusplus
}
#endif

#endif
