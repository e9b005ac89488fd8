/* Old names, for programs that still use them. CONTRIBUTING.md says how long they stay. */
#include "cairn/amp.h"
#include "cairn/autocast.h"

double amp_loss_scale(amp_context *amp) {
    return amp_next_scale(amp);
}

double amp_loss_scale_of(amp_context *amp, int loss_id) {
    return amp_next_scale_of(amp, loss_id);
}

amp_scaler *amp_loss_scaler(amp_context *amp, int loss_id) {
    return amp_scaler_of(amp, loss_id);
}

double amp_scaler_scale_now(const amp_scaler *scaler) {
    return amp_scaler_get_scale(scaler);
}

cairn_status amp_set_op_cast(cairn_env *env, const char *op, amp_cast cast) {
    return amp_op_set_cast(env, op, cast);
}
