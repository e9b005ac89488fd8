/* Operations that are compositions of others and have no id of their own. */
#include <math.h>

#include "nn/ops.h"

/* norm is f32 under O1, and what is divided by it then too: as apex has it. */
cairn_tensor *cairn_normalize(cairn_tensor *x, double p, int dim, double eps) {
    return cairn_div(x, cairn_clamp(cairn_norm(x, p, 1, &dim, 1), eps, INFINITY));
}

cairn_tensor *cairn_cosine_similarity(cairn_tensor *a, cairn_tensor *b, int dim, double eps) {
    return cairn_sum_dims(cairn_mul(cairn_normalize(a, 2, dim, eps), cairn_normalize(b, 2, dim, eps)), 1, &dim, 0);
}

cairn_tensor *cairn_softmin(cairn_tensor *x, int dim) {
    return cairn_softmax(cairn_neg(x), dim);
}
