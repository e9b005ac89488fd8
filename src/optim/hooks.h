/* What optim lets others do around a step: amp updates its scaler there. */
#ifndef CAIRN__OPTIM_HOOKS_H
#define CAIRN__OPTIM_HOOKS_H

#include <stdbool.h>

#include "cairn/optim.h"

struct cairn__step_hook {
    void *ctx;
    /* (optional) Before the decision: makes the set's flag speak of the gradients as they are. */
    cairn_status (*before)(void *ctx, cairn_optimizer *optimizer);
    /* (optional) After it: stepped = false when the flag was up and the set skips. The flag still stands. A failure is
     * cairn_step's status; what was written stays written. */
    cairn_status (*after)(void *ctx, cairn_optimizer *optimizer, bool stepped);
};

/* hook is copied; NULL takes it away. One per optimizer. */
void cairn__set_step_hook(cairn_optimizer *optimizer, const struct cairn__step_hook *hook);

#endif
