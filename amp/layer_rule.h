/* The rule that adapts the scales of a chain to its gradients (cairn/layer_scales.h). */
#ifndef CAIRN__AMP_LAYER_RULE_H
#define CAIRN__AMP_LAYER_RULE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cairn/core.h"

/* amp_sequential_options with defaults filled in. */
struct cairn__layer_rule {
    double q, headroom, max_layer_scale, max_scale;
};

/* Statistics of the gradient of a child's input as stored (scaled), over all ranks. */
struct cairn__layer_gradient {
    double squares, largest; /* sum of squares and greatest magnitude, if all elements are finite */
    int64_t count;           /* elements other than 0 */
    int64_t nonfinite;
    double least, most; /* range of its type; 0 = no gradient yet */
};

/* Returns q with P(|z| < q) = share for a standard normal z. */
double cairn__normal_quantile(double share);

/* The smallest positive number of dtype, and the largest. */
void cairn__layer_range(cairn_dtype dtype, double *least, double *most);

/* a [count]: on entry the scales that the gradients were computed with, on return those for the next backwards. */
void cairn__layer_scales_next(const struct cairn__layer_rule *rule, const struct cairn__layer_gradient *gradients,
                              double *a, size_t count);

#endif
