/* O1's fp8 casts: what a product of the fp8 list becomes, and the scales of the tensors that it reads. */
#ifndef CAIRN__AMP_FP8_CASTS_H
#define CAIRN__AMP_FP8_CASTS_H

#include "cairn/amp.h"
#include "fp8_scale.h"
#include "nn/hooks.h"
#include "param/param.h"

/* Of one amp context. */
struct cairn__fp8_casts;

/* sets [num_sets] are the context's, which outlive it. Errors: CAIRN_ENOTSUP the device is no CPU; CAIRN_ENOMEM. */
cairn_status cairn__fp8_casts_create(cairn_env *env, struct cairn_param_set *const *sets, size_t num_sets,
                                     const struct cairn__fp8_recipe *recipe, struct cairn__fp8_casts **out);
void cairn__fp8_casts_destroy(struct cairn__fp8_casts **casts);

/* Whether op may be in the list: linear, matmul, bmm; and whether it is by default. */
bool cairn__fp8_takes(int op);
bool cairn__fp8_takes_by_default(int op);

/* *out = op of inputs that went through fp8, in f32, rounded to the half type; its gradient goes through fp8 before the
 * products that it makes. NULL, as it is, where an input is f64 or no float. */
cairn_status cairn__fp8_product(struct cairn__fp8_casts *casts, enum cairn__op op, cairn_tensor *const *inputs,
                                cairn_dtype half, cairn_tensor **out);

/* A step begins: every scale of which an amax was noted is updated. Collective where ddp averages the gradients of all
 * sets over the ranks and the recipe reduces. Errors: of the group; CAIRN_ENOMEM. */
cairn_status cairn__fp8_casts_update(struct cairn__fp8_casts *casts);

/* NaN: there is none yet. */
float cairn__fp8_casts_scale(const struct cairn__fp8_casts *casts, const char *param, amp_fp8_tensor tensor);

/* ---- of what amp saves ---- */

cairn_status cairn__fp8_casts_list(struct cairn__fp8_casts *casts, struct cairn__entries *entries);
cairn_status cairn__fp8_casts_check(const struct cairn__fp8_casts *casts, const struct cairn__entries *entries);
void cairn__fp8_casts_loaded(struct cairn__fp8_casts *casts, const struct cairn__entries *entries);

#endif
