/* Old names, for programs that still use them. CONTRIBUTING.md says how long they stay. */
#include "cairn/optim.h"

void cairn_clear_grads(cairn_optimizer *optimizer) {
    cairn_optimizer_clear_grads(optimizer);
}

int cairn_step_skipped(const cairn_optimizer *optimizer) {
    return cairn_optimizer_step_skipped(optimizer);
}
