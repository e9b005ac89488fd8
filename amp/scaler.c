/* Loss scalers. */
#include "scaler.h"

enum { GROWTH_WINDOW = 2000 }; /* apex/amp/scaler.py at 25.04, LossScaler.__init__: scale_window */

struct cairn__scaler_state cairn__amp_scaler_of(const struct cairn__amp_policy *policy) {
    return (struct cairn__scaler_state){
        .scale = policy->loss_scale,
        .min = policy->min_loss_scale,
        .max = policy->max_loss_scale,
        .window = GROWTH_WINDOW,
        .rule = policy->dynamic ? CAIRN__SCALER_APEX : CAIRN__SCALER_STATIC,
    };
}
