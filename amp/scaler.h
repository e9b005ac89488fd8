/* Loss scalers: state machines over "a gradient was non-finite". Their rules are in kernels/step.h, since a device runs
 * them; here is which of them a policy means. */
#ifndef CAIRN__AMP_SCALER_H
#define CAIRN__AMP_SCALER_H

#include "kernels/step.h"
#include "policy.h"

struct cairn__scaler_state cairn__amp_scaler_of(const struct cairn__amp_policy *policy);

#endif
