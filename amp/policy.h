/* Opt levels as data: presets, the user's overrides over them, and what contradicts. */
#ifndef CAIRN__AMP_POLICY_H
#define CAIRN__AMP_POLICY_H

#include <stdbool.h>
#include <stddef.h>

#include "cairn/amp.h"

/* Everything decided; nothing is "default" any more. */
struct cairn__amp_policy {
    bool enabled;
    amp_opt_level level;
    cairn_dtype half_type;
    cairn_dtype cast_model_type; /* 0 = weights are left alone */
    bool patch_ops;
    bool keep_batchnorm_fp32;
    bool master_weights;
    bool dynamic;
    double loss_scale; /* the static scale, or where the dynamic one starts */
    double min_loss_scale, max_loss_scale;
    cairn_dtype cast_model_outputs; /* 0 = outputs are left alone */
    bool skip_nonfinite;
};

/* Errors: CAIRN_EINVAL for every value out of range and every pair that contradicts. */
cairn_status cairn__amp_policy_resolve(const struct amp_options *options, struct cairn__amp_policy *out);

/* "O2" and its one line for humans. */
const char *cairn__amp_level_name(amp_opt_level level);
const char *cairn__amp_level_brief(amp_opt_level level);

/* "O2 bf16, loss scale 1, ...": all that ranks must have in common. */
void cairn__amp_policy_summary(const struct cairn__amp_policy *policy, char *text, size_t nbytes);

/* Logs level, defaults and what the user's overrides made of them, as apex prints them. */
void cairn__amp_policy_log(const struct amp_options *options, const struct cairn__amp_policy *policy);

#endif
