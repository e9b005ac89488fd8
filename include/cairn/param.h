/* Parameters: what an optimizer updates, amp casts and ddp reduces, whether it belongs to a module or to the user. */
#ifndef CAIRN_PARAM_H
#define CAIRN_PARAM_H

#include "core.h"
#include "env.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One parameter, described. Filled by the user to make a set, or by cairn_param_set_get to look at one. */
typedef struct cairn_param {
    const char *name;
    void *data;        /* [shape] the weights, of dtype, in memory of the environment's device */
    void *grad;        /* [shape] their gradient, likewise; NULL = memory of Cairn's, which cairn_param_set_get shows */
    cairn_dtype dtype; /* f32, f16, bf16 */
    int ndim;
    int64_t shape[CAIRN_MAX_DIMS];
    cairn_switch is_norm; /* CAIRN_ON: belongs to a normalisation layer, which O2 keeps in f32 */
} cairn_param;

typedef struct cairn_param_set cairn_param_set;

/* A set over count parameters whose weights (and gradients, where given) stay in the user's memory, which must outlive the
 * set and belong to the environment's device: on a GPU pointers of cudaMalloc, on the CPU the host's. Names and shapes are
 * copied. Half parameters of such a set have no masters, no loss scale and no check for infinite gradients in this version:
 * an update smaller than half a unit in the last place of a weight is lost.
 * Errors: CAIRN_EINVAL names the entry: no name, a name twice, no data, memory of the host where env is on a GPU, an address
 * that is not aligned for dtype, no such dtype, ndim or a size out of range; CAIRN_ENOMEM. */
CAIRN_API cairn_status cairn_param_set_create(cairn_env *env, const cairn_param *params, size_t count,
                                              cairn_param_set **out);

/* Ends a set the user made; a module's set ends with the module. After its optimizers and contexts. */
CAIRN_API void cairn_param_set_destroy(cairn_param_set **set);

/* For a set the user made: the gradients of parameters [first, first + count) have been written, whole, and the next step
 * of an optimizer over this set applies them. Until cairn_zero_grad. (Scaling and averaging of such sets come later.)
 * Errors: CAIRN_EINVAL out of range, or a parameter without gradient memory. */
CAIRN_API cairn_status cairn_grads_ready(cairn_param_set *set, size_t first, size_t count);

CAIRN_API size_t cairn_param_set_count(const cairn_param_set *set);

/* Parameter i as it is now: under O2 dtype is the half type, data the half weights and grad the scaled half gradient. The
 * name is owned by the set. Errors: CAIRN_EINVAL. */
CAIRN_API cairn_status cairn_param_set_get(const cairn_param_set *set, size_t i, cairn_param *out);

/* In memory of the device: the f32 values that the optimizer updates: the master of a half parameter that has one, the f32 weights themselves;
 * NULL for a half parameter without a master, and for i out of range. */
CAIRN_API float *cairn_param_master(const cairn_param_set *set, size_t i);

/* To be called after writing weights through a raw pointer (on a GPU: after queueing that on cairn_cuda_stream): masters were written = 1 re-rounds the half weights from the
 * master, 0 takes the master from the half weights. Caches of parameter i are dropped. Errors: CAIRN_EINVAL. */
CAIRN_API cairn_status cairn_param_changed(cairn_param_set *set, size_t i, int master_was_written);

#ifdef __cplusplus
}
#endif

#endif
