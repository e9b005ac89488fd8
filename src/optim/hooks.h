/* What optim lets others do around a step: amp hands over its scaler there. */
#ifndef CAIRN__OPTIM_HOOKS_H
#define CAIRN__OPTIM_HOOKS_H

#include <stdbool.h>

#include "cairn/optim.h"
#include "kernels/step.h"

struct cairn__step_hook {
    void *ctx;
    /* (optional, both or none) Before the step is queued: makes the set's flags speak of the gradients as they are.
     * *update: the scaler is to be updated with this step's verdict. And after it is queued. */
    cairn_status (*before)(void *ctx, bool *update);
    void (*queued)(void *ctx);
    /* (optional) A step is known to have ended: at once on the CPU, later elsewhere, in order. found [parameters]: whose
     * gradients were infinite or NaN, where the step was left out; else it means nothing. The status is what cairn_step,
     * or who else found the report, returns. */
    cairn_status (*told)(void *ctx, const struct cairn__step_report *report, const uint32_t *found);
    struct cairn__scaler_state *scaler; /* in device memory; NULL = none */
};

/* hook is copied; NULL takes it away. One per optimizer. */
void cairn__set_step_hook(cairn_optimizer *optimizer, const struct cairn__step_hook *hook);

/* The last report that has come, read without waiting; number is 0 before the first. */
struct cairn__step_report cairn__optimizer_last_report(const cairn_optimizer *optimizer);

#endif
