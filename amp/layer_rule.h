/* How the scales of a chain follow its gradients (cairn/layer_scales.h). */
#ifndef CAIRN__AMP_LAYER_RULE_H
#define CAIRN__AMP_LAYER_RULE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cairn/core.h"

/* amp_sequential_options, with every default in place. */
struct cairn__layer_rule {
    double q, headroom, max_layer_scale, max_scale;
};

/* The gradient of a child's input as it stands in memory, of all ranks. */
struct cairn__layer_gradient {
    double squares, largest; /* of its elements, all finite */
    int64_t count;           /* of elements but 0 */
    int64_t nonfinite;
    double least, most; /* of its type; 0: there was no gradient yet */
};

/* P(|z| < result) = share, z normal. */
double cairn__normal_quantile(double share);

/* The smallest number above 0, and the largest. */
void cairn__layer_range(cairn_dtype dtype, double *least, double *most);

/* a [count]: the scales that the gradients were computed with, then those of the backwards to come. */
void cairn__layer_scales_next(const struct cairn__layer_rule *rule, const struct cairn__layer_gradient *gradients,
                              double *a, size_t count);

#endif
