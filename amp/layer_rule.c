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

/* The significand of the largest number is 2 - ulp(1), so the smallest subnormal is ulp(1) times the least normal
 * number. */
void cairn__layer_range(cairn_dtype dtype, double *least, double *most) {
    const struct cairn__dtype *type = cairn__dtype(dtype);
    int exponent;
    *least = type->min_normal * 2 * (1 - frexp(type->max, &exponent));
    *most = type->max;
}

/* The power of two that fits a gradient that is not zero. was: the factor it was multiplied by; above: the factor that
 * the next one arrives with. */
static double fitting(const struct cairn__layer_rule *rule, const struct cairn__layer_gradient *g, double was,
                      double above) {
    const double deviation = sqrt(g->squares / (double)g->count) / was, largest = g->largest / was;
    const double up = g->least / (rule->q * deviation * above), most = g->most / (rule->headroom * largest * above);
    const double wanted = up > 1 ? up : 1;
    int exponent;
    (void)frexp(wanted < most ? wanted : most, &exponent);
    return ldexp(1, exponent - 1); /* the power of two at or below */
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
            blamed = true; /* children below get the overflow from here */
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
