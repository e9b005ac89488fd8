/* The rule of a chain's scales. */
#include "layer_rule.h"

#include <math.h>

#include "core/dtype.h"

double cairn__normal_quantile(double share) {
    double low = 0, high = 40;
    for (int i = 0; i < 200; i++) {
        const double middle = (low + high) / 2;
        *(erf(middle / sqrt(2)) < share ? &low : &high) = middle;
    }
    return low;
}

/* The significand of the largest is 2 less an ulp of 1, and the smallest is as many ulp of the least normal one. */
void cairn__layer_range(cairn_dtype dtype, double *least, double *most) {
    const struct cairn__dtype *type = cairn__dtype(dtype);
    int exponent;
    *least = type->min_normal * 2 * (1 - frexp(type->max, &exponent));
    *most = type->max;
}

/* A power of two, of a gradient that has a size. was: what it was multiplied by; above: what the next comes with. */
static double fitting(const struct cairn__layer_rule *rule, const struct cairn__layer_gradient *g, double was,
                      double above) {
    const double deviation = sqrt(g->squares / (double)g->count) / was, largest = g->largest / was;
    const double up = g->least / (rule->q * deviation * above), most = g->most / (rule->headroom * largest * above);
    const double wanted = up > 1 ? up : 1;
    int exponent;
    (void)frexp(wanted < most ? wanted : most, &exponent);
    return ldexp(1, exponent - 1); /* the power at or below it */
}

void cairn__layer_scales_next(const struct cairn__layer_rule *rule, const struct cairn__layer_gradient *gradients,
                              double *a, size_t count) {
    double was = 1, above = 1;
    bool blamed = false;
    for (size_t i = count; i-- > 1;) {
        const struct cairn__layer_gradient *g = &gradients[i];
        double next = a[i];
        was *= a[i];
        if (g->nonfinite) {
            if (!blamed) next = a[i] / 2;
            blamed = true; /* what is below has it from here */
        } else if (g->count > 0) {
            next = fitting(rule, g, was, above);
        } else if (g->least > 0) {
            next = 2 * a[i];
        }
        next = fmax(1 / rule->max_layer_scale, fmin(next, rule->max_layer_scale));
        a[i] = fmax(1 / rule->max_scale / above, fmin(next, rule->max_scale / above));
        above *= a[i];
    }
    if (count) a[0] = 1;
}
