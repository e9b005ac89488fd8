/* O1's fp8 casts: how products on the fp8 list are computed, and the scales of the tensors they read. */
#ifndef CAIRN__AMP_FP8_CASTS_H
#define CAIRN__AMP_FP8_CASTS_H

#include "cairn/amp.h"
#include "fp8_scale.h"
#include "nn/hooks.h"
#include "param/param.h"

/* The fp8 casts of one amp context. */
struct cairn__fp8_casts;

/* sets [num_sets] are the context's and must outlive the casts. Errors: CAIRN_ENOTSUP the device is not a CPU;
 * CAIRN_ENOMEM. */
cairn_status cairn__fp8_casts_create(cairn_env *env, struct cairn_param_set *const *sets, size_t num_sets,
                                     const struct cairn__fp8_recipe *recipe, struct cairn__fp8_casts **out);
void cairn__fp8_casts_destroy(struct cairn__fp8_casts **casts);

/* Whether op may be on the fp8 list (linear, matmul, bmm), and whether it is by default. */
bool cairn__fp8_takes(int op);
bool cairn__fp8_takes_by_default(int op);

/* *out = op, computed in f32 on inputs cast through fp8, and rounded to the half type. The result's gradient is cast
 * through fp8 before backward multiplies with it. If an input is f64 or not a float, *out stays NULL. */
cairn_status cairn__fp8_product(struct cairn__fp8_casts *casts, enum cairn__op op, cairn_tensor *const *inputs,
                                cairn_dtype half, cairn_tensor **out);

/* At the start of a step: updates every scale that has noted an amax. Collective if ddp averages the gradients of all
 * sets over the ranks and the recipe reduces. Errors: of the group; CAIRN_ENOMEM. */
cairn_status cairn__fp8_casts_update(struct cairn__fp8_casts *casts);

/* The scale of a tensor of a parameter's product; NaN = none yet. */
float cairn__fp8_casts_scale(const struct cairn__fp8_casts *casts, const char *param, amp_fp8_tensor tensor);

/* ---- saving and loading ---- */

cairn_status cairn__fp8_casts_list(struct cairn__fp8_casts *casts, struct cairn__entries *entries);
cairn_status cairn__fp8_casts_check(const struct cairn__fp8_casts *casts, const struct cairn__entries *entries);
void cairn__fp8_casts_loaded(struct cairn__fp8_casts *casts, const struct cairn__entries *entries);

#endif
