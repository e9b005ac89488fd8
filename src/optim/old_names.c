/* Former names, for programs that still use them: CONTRIBUTING.md says until when. */
#include "cairn/optim.h"

void cairn_clear_grads(cairn_optimizer *optimizer) {
    cairn_optimizer_clear_grads(optimizer);
}

int cairn_step_skipped(const cairn_optimizer *optimizer) {
    return cairn_optimizer_step_skipped(optimizer);
}
