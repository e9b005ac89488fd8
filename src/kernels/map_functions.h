/* The arithmetic of every map: a table of formulas, written once over a type.
 *
 * A template: a kernel file defines T (f32 or f64) and R (float or double), includes the functions the formulas
 * stand on (math_f32.h or math_f64.h: exp_f32, log_f32, ...) and then this. It makes one inline function a map,
 * EXP_f32(a, b, c, d, p0, p1, far), of which a map looks at what it needs; far is for the functions of the circle
 * (map_loops.h). Values are chosen with ?: between results that are both computed, so that a loop over one of these
 * becomes vector instructions and computes the same bits in every width.
 *
 * The bounds of the functions in f32 are stated in math_f32.h; what is formed here of them adds a rounding an
 * operation. */
#include "kernels/maps.h"

#define F_(name, type)  name##_##type
#define F__(name, type) F_(name, type)
#define F(name)         F__(name, T)
#if defined(__CUDACC__)
#define FORMULA __host__ __device__ static inline __attribute__((always_inline)) R
#else
#define FORMULA static inline __attribute__((always_inline)) R
#endif

/* ---- what several formulas share ---- */

/* NaN where one is. */
FORMULA F(greater)(R a, R b) {
    return ((a > b) | (a != a)) ? a : b;
}
FORMULA F(lesser)(R a, R b) {
    return ((a < b) | (a != a)) ? a : b;
}
FORMULA F(sign)(R a) {
    const R positive = a > 0 ? (R)1 : (R)0, negative = a < 0 ? (R)1 : (R)0;
    return a != a ? a : positive - negative;
}
FORMULA F(truth)(int is) {
    return is ? (R)1 : (R)0;
}
/* A logarithm that a loss can be made of: of 0 it is -100, as in torch.nn.BCELoss. */
FORMULA F(clipped_log)(R a) {
    const R y = F(log)(a);
    return y < -100 ? (R)-100 : y;
}
/* ln(1 + e^-a) */
FORMULA F(softplus_of_negative)(R a) {
    return F(log1p)(F(exp)(-F(fabs)(a))) + F(greater)(-a, 0);
}
/* 2u, where u = sqrt(2 / pi) * (a + 0.044715 a^3): (1 + tanh u) / 2 is its sigmoid. Source: Hendrycks and Gimpel,
 * "Gaussian Error Linear Units", 2016, section 2. */
FORMULA F(gelu_inner)(R a) {
    return (R)1.5957691216057307118 * (a + (R)0.044715 * (a * a * a));
}
FORMULA F(gelu_tanh_slope)(R a) {
    const R high = a > 100 ? 100 : a, x = high < -100 ? -100 : high; /* s is 0 or 1 long before, and stays finite */
    const R s = F(sigmoid)(F(gelu_inner)(x));
    return s + x * (s * (1 - s)) * ((R)1.5957691216057307118 * (1 + (R)0.134145 * (x * x)));
}
FORMULA F(silu_slope)(R a) {
    const R s = F(sigmoid)(a);
    return s * ((R)1 + a * ((R)1 - s));
}
FORMULA F(smooth_l1)(R d, R beta) {
    return d < beta ? d * d / ((R)2 * beta) : d - beta / (R)2;
}
FORMULA F(smooth_l1_slope)(R d, R beta) {
    return F(fabs)(d) < beta ? d / beta : F(sign)(d);
}

/* ---- the formulas; a, b, c, d are the inputs in maps.h's order, dy first where it is a gradient ---- */

#define MAP(name, ...)                                                     \
    FORMULA F(name)(R a, R b, R c, R d, R p0, R p1, int far) {             \
        (void)a, (void)b, (void)c, (void)d, (void)p0, (void)p1, (void)far; \
        return __VA_ARGS__;                                                \
    }

/* clang-format off */
MAP(COPY, a)
MAP(AFFINE, p0 * a + p1)
MAP(NEG, F(neg)(a))
MAP(ABS, F(fabs)(a))
MAP(SIGN, F(sign)(a))
MAP(SQUARE, a * a)
MAP(SQRT, F(sqrt)(a))
MAP(RSQRT, 1 / F(sqrt)(a))
MAP(RECIPROCAL, 1 / a)
MAP(EXP, F(exp)(a))
MAP(EXPM1, F(expm1)(a))
MAP(LOG, F(log)(a))
MAP(LOG1P, F(log1p)(a))
MAP(LOG2, F(log2)(a))
MAP(LOG10, F(log10)(a))
MAP(SIN, F(sin)(a, far))
MAP(COS, F(cos)(a, far))
MAP(TAN, F(tan)(a, far))
MAP(ASIN, F(asin)(a))
MAP(ACOS, F(acos)(a))
MAP(ATAN, F(atan)(a))
MAP(SINH, F(sinh)(a))
MAP(COSH, F(cosh)(a))
MAP(TANH, F(tanh)(a))
MAP(ERF, F(erf)(a))
MAP(ERFINV, F(erfinv)(a))
MAP(SIGMOID, F(sigmoid)(a))
MAP(SOFTPLUS, a * p0 > p1 ? a : F(softplus)(p0 * a) / p0)
MAP(RELU, F(relu)(a))
MAP(GELU, a * F(normal_cdf)(a))
MAP(GELU_TANH, a * F(sigmoid)(F(gelu_inner)(a)))
MAP(SILU, a * F(sigmoid)(a))
MAP(CLAMP, (a < p0 ? p0 : a) > p1 ? p1 : a < p0 ? p0 : a)
MAP(POW_SCALAR, F(pow)(a, p0))
MAP(POW_OF_SCALAR, F(pow)(p0, a))
MAP(NOT, F(truth)(a == 0))
MAP(SUB_EXP, F(exp)(a - p0))
MAP(IS_NONFINITE, F(truth)(!(F(fabs)(a) < (R)INFINITY)))

MAP(ADD, a + p0 * b)
MAP(MUL, a * b)
MAP(DIV, a / b)
MAP(POW, F(pow)(a, b))
MAP(MAXIMUM, F(greater)(a, b))
MAP(MINIMUM, F(lesser)(a, b))
MAP(ATAN2, F(atan2)(a, b))
MAP(EQ, F(truth)(a == b))
MAP(NE, F(truth)(a != b))
MAP(LT, F(truth)(a < b))
MAP(LE, F(truth)(a <= b))
MAP(GT, F(truth)(a > b))
MAP(GE, F(truth)(a >= b))
MAP(IS_EXTREME, F(truth)((a == b) | (a != a)))
MAP(MUL_SCALED, p0 * a * b)

MAP(WHERE, a != 0 ? b : c)
MAP(ADDCMUL, a + p0 * (b * c))
MAP(ADDCDIV, a + p0 * (b / c))

MAP(ABS_BACKWARD, a * F(sign)(b))
MAP(SQRT_BACKWARD, a / (2 * b))
MAP(RSQRT_BACKWARD, (R)-0.5 * a * (b * b * b))
MAP(RECIPROCAL_BACKWARD, -a * b * b)
MAP(EXPM1_BACKWARD, a * (b + 1))
MAP(LOG1P_BACKWARD, a / (1 + b))
MAP(LOG_BASE_BACKWARD, a / (b * p0))
MAP(SIN_BACKWARD, a * F(cos)(b, far))
MAP(COS_BACKWARD, -a * F(sin)(b, far))
MAP(TAN_BACKWARD, a * (1 + b * b))
MAP(ASIN_BACKWARD, a / F(sqrt)((1 - b) * (1 + b)))
MAP(ACOS_BACKWARD, -a / F(sqrt)((1 - b) * (1 + b)))
MAP(ATAN_BACKWARD, a / (1 + b * b))
MAP(SINH_BACKWARD, a * F(cosh)(b))
MAP(COSH_BACKWARD, a * F(sinh)(b))
MAP(TANH_BACKWARD, a * (1 - b * b))
MAP(ERF_BACKWARD, a * ((R)1.12837916709551257390 * F(exp)(-b * b)))
MAP(ERFINV_BACKWARD, a * ((R)0.88622692545275801365 * F(exp)(b * b)))
MAP(SIGMOID_BACKWARD, a * (1 - b) * b)
MAP(SOFTPLUS_BACKWARD, b * p0 > p1 ? a : a * F(sigmoid)(p0 * b))
MAP(RELU_BACKWARD, b <= 0 ? 0 : a)
MAP(GELU_BACKWARD, a * F(gelu_slope)(b))
MAP(GELU_TANH_BACKWARD, a * F(gelu_tanh_slope)(b))
MAP(SILU_BACKWARD, a * F(silu_slope)(b))
MAP(CLAMP_BACKWARD, ((p0 <= b) & (b <= p1)) ? a : 0)
MAP(POW_SCALAR_BACKWARD, F(pick)(p0 == 0, 0, a * (p0 * F(pow)(b, p0 - 1))))
MAP(POW_OF_SCALAR_BACKWARD, a * (((p0 == 0) & (F(fabs)(b) <= 1)) ? 0 : b * F(log)(p0)))

MAP(DIV_BACKWARD_B, -a * (b / c) / c)
MAP(POW_BACKWARD_A, F(pick)(c == 0, 0, a * (c * F(pow)(b, c - 1))))
MAP(POW_BACKWARD_B, ((b == 0) & (c >= 0)) ? 0 : a * (d * F(log)(b)))
MAP(MAXIMUM_BACKWARD, b < c ? 0 : b == c ? a / 2 : a)
MAP(MINIMUM_BACKWARD, b > c ? 0 : b == c ? a / 2 : a)
MAP(ATAN2_BACKWARD_A, a * c / (b * b + c * c))
MAP(ATAN2_BACKWARD_B, -a * b / (b * b + c * c))
MAP(MASKED, a != 0 ? b : 0)
MAP(UNMASKED, a != 0 ? 0 : b)
MAP(PRELU, a > 0 ? a : b * a)
MAP(PRELU_BACKWARD_A, b > 0 ? a : c * a)
MAP(PRELU_BACKWARD_B, b > 0 ? 0 : b * a)
MAP(ADDCMUL_BACKWARD, p0 * a * b)
MAP(ADDCDIV_BACKWARD_B, p0 * a / b)
MAP(ADDCDIV_BACKWARD_C, -p0 * a * b / (c * c))

MAP(SQUARED_DIFFERENCE, (a - b) * (a - b))
MAP(SQUARED_DIFFERENCE_BACKWARD, 2 * p0 * a * (b - c))
MAP(ABS_DIFFERENCE, F(fabs)(a - b))
MAP(ABS_DIFFERENCE_BACKWARD, p0 * a * F(sign)(b - c))
MAP(SMOOTH_L1, F(smooth_l1)(F(fabs)(a - b), p1))
MAP(SMOOTH_L1_BACKWARD, p0 * a * F(smooth_l1_slope)(b - c, p1))
MAP(BCE, -(b * F(clipped_log)(a) + (1 - b) * F(clipped_log)(1 - a)))
MAP(BCE_BACKWARD_X, p0 * a * (b - c) / F(greater)((1 - b) * b, (R)1e-12f)) /* f32's in every type, as torch has it */
MAP(BCE_BACKWARD_Y, p0 * a * (F(clipped_log)(1 - b) - F(clipped_log)(b)))
MAP(BCE_WITH_LOGITS, (1 - b) * a + F(softplus_of_negative)(a))
MAP(BCE_WITH_LOGITS_BACKWARD_X, p0 * a * (F(sigmoid)(b) - c))
MAP(BCE_WITH_LOGITS_BACKWARD_Y, -p0 * a * b)
MAP(BCE_POSITIVES, (1 - b) * a + ((c - 1) * b + 1) * F(softplus_of_negative)(a))
MAP(BCE_POSITIVES_BACKWARD_X, p0 * a * ((1 - c) - ((d - 1) * c + 1) * F(sigmoid)(-b)))
MAP(BCE_POSITIVES_BACKWARD_Y, p0 * a * ((d - 1) * F(softplus_of_negative)(b) - b))
MAP(KL_DIV, b > 0 ? b * (F(log)(b) - a) : ((a != a) | (b != b)) ? (R)NAN : 0)
MAP(KL_DIV_BACKWARD_X, -p0 * a * c)
MAP(KL_DIV_BACKWARD_Y, p0 * a * (F(log)(c) + 1 - b))
MAP(KL_DIV_LOG, F(exp)(b) * (b - a))
MAP(KL_DIV_LOG_BACKWARD_X, -p0 * a * F(exp)(c))
MAP(KL_DIV_LOG_BACKWARD_Y, p0 * a * (F(exp)(c) * (c - b + 1)))
MAP(SOFT_MARGIN, F(softplus)(-b * a))
MAP(SOFT_MARGIN_BACKWARD, -p0 * a * c * F(sigmoid)(-b * c))
MAP(POISSON_NLL, F(exp)(a) - b * a)
MAP(POISSON_NLL_BACKWARD, p0 * a * (F(exp)(b) - c))
/* clang-format on */

#undef MAP
#undef FORMULA
#undef F
#undef F__
#undef F_
