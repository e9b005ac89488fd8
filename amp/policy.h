/* Opt levels as data: presets, the user's overrides, and checks for contradictions. */
#ifndef CAIRN__AMP_POLICY_H
#define CAIRN__AMP_POLICY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cairn/amp.h"
#include "fp8_scale.h"

/* Resolved options: no field means "default" any more. */
struct cairn__amp_policy {
    bool enabled; /* if false, no option below has an effect but num_losses and verbosity */
    amp_opt_level level;
    cairn_dtype half_type;
    cairn_dtype cast_model_type;    /* type of weights, f32 buffers and inputs; 0 = not cast */
    cairn_dtype cast_model_outputs; /* 0 = not cast */
    bool patch_ops;
    bool keep_batchnorm_fp32;
    bool master_weights;
    bool skip_nonfinite;
    bool stochastic_rounding;
    bool explain_overflow;
    bool has_fp8;
    struct cairn__fp8_recipe fp8; /* if has_fp8 */
    uint64_t rounding_seed;
    int num_losses, verbosity;
    struct amp_scaler_options scaler; /* for each loss, valid for cairn__scaler_resolve; kind is set */
};

/* Whether the loss scale changes by itself. */
static inline bool cairn__amp_policy_is_dynamic(const struct cairn__amp_policy *policy) {
    return policy->scaler.kind != AMP_SCALER_STATIC;
}

/* Errors: CAIRN_EINVAL for every value out of range and every contradictory pair. */
cairn_status cairn__amp_policy_resolve(const struct amp_options *options, struct cairn__amp_policy *out);

/* "O2", and its description in one line. */
const char *cairn__amp_level_name(amp_opt_level level);
const char *cairn__amp_level_brief(amp_opt_level level);

/* Writes "O2 bf16, loss scale 1, ...": everything that must be equal on all ranks, in at most 255 characters. */
void cairn__amp_policy_summary(const struct cairn__amp_policy *policy, char *text, size_t nbytes);

/* Logs the level, its defaults, and the values after the user's overrides, as apex prints them, as far as verbosity
 * allows. */
void cairn__amp_policy_log(const struct cairn__amp_policy *policy);

#endif
