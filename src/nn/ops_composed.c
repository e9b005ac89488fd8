/* Operations that are compositions of others and have no id of their own. */
#include <math.h>

#include "nn/ops.h"

static const cairn_env *env_of(const cairn_tensor *x) {
    return x ? x->env : NULL;
}

/* Under O1 the norm is f32, and so is the quotient, as in apex. */
cairn_tensor *cairn_normalize(cairn_tensor *x, double p, int dim, double eps) {
    const size_t mark = cairn__inside_begin(env_of(x));
    cairn_tensor *y = cairn_div(x, cairn_clamp(cairn_norm(x, p, 1, &dim, 1), eps, INFINITY));
    return cairn__inside_end(env_of(x), mark, y);
}

cairn_tensor *cairn_cosine_similarity(cairn_tensor *a, cairn_tensor *b, int dim, double eps) {
    const size_t mark = cairn__inside_begin(env_of(a));
    cairn_tensor *y = cairn_mul(cairn_normalize(a, 2, dim, eps), cairn_normalize(b, 2, dim, eps));
    return cairn__inside_end(env_of(a), mark, cairn_sum_dims(y, 1, &dim, 0));
}

cairn_tensor *cairn_softmin(cairn_tensor *x, int dim) {
    const size_t mark = cairn__inside_begin(env_of(x));
    return cairn__inside_end(env_of(x), mark, cairn_softmax(cairn_neg(x), dim));
}
