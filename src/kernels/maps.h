/* Functions of one element, by name: what a map (kernels.h, struct cairn__kernels.map) computes.
 *
 * Their arithmetic is in kernels/map_functions.h, written once and compiled for f32 and f64 and for every instruction
 * set. a, b, c are a map's inputs in order, y is the forward function's result, dy the gradient of that result, p the
 * map's numbers. Each line has: name, number of inputs, what it computes. */
#ifndef CAIRN__KERNELS_MAPS_H
#define CAIRN__KERNELS_MAPS_H

/* clang-format off */
#define CAIRN__MAP_LIST(X)                                                                                      \
    /* ---- one input ---- */                                                                                   \
    X(COPY, 1, "a, bit for bit where types are equal")                                                          \
    X(AFFINE, 1, "p0 * a + p1")                                                                                 \
    X(NEG, 1, "-a")                                                                                             \
    X(ABS, 1, "|a|")                                                                                            \
    X(SIGN, 1, "-1, 0, 1")                                                                                      \
    X(SQUARE, 1, "a * a")                                                                                       \
    X(SQRT, 1, "sqrt(a)")                                                                                       \
    X(RSQRT, 1, "1 / sqrt(a)")                                                                                  \
    X(RECIPROCAL, 1, "1 / a")                                                                                   \
    X(EXP, 1, "e^a")                                                                                            \
    X(EXPM1, 1, "e^a - 1")                                                                                      \
    X(LOG, 1, "ln a")                                                                                           \
    X(LOG1P, 1, "ln(1 + a)")                                                                                    \
    X(LOG2, 1, "log2 a")                                                                                        \
    X(LOG10, 1, "log10 a")                                                                                      \
    X(SIN, 1, "sin a")                                                                                          \
    X(COS, 1, "cos a")                                                                                          \
    X(TAN, 1, "tan a")                                                                                          \
    X(ASIN, 1, "asin a")                                                                                        \
    X(ACOS, 1, "acos a")                                                                                        \
    X(ATAN, 1, "atan a")                                                                                        \
    X(SINH, 1, "sinh a")                                                                                        \
    X(COSH, 1, "cosh a")                                                                                        \
    X(TANH, 1, "tanh a")                                                                                        \
    X(ERF, 1, "erf a")                                                                                          \
    X(ERFINV, 1, "the inverse of erf")                                                                          \
    X(SIGMOID, 1, "1 / (1 + e^-a)")                                                                             \
    X(SOFTPLUS, 1, "a * p0 > p1 ? a : ln(1 + e^(p0 a)) / p0")                                                   \
    X(RELU, 1, "max(a, 0), NaN stays")                                                                          \
    X(GELU, 1, "a / 2 * (1 + erf(a / sqrt 2))")                                                                 \
    X(GELU_TANH, 1, "a / 2 * (1 + tanh(sqrt(2 / pi) * (a + 0.044715 a^3)))")                                    \
    X(SILU, 1, "a * sigmoid(a)")                                                                                \
    X(CLAMP, 1, "a within [p0, p1], NaN stays")                                                                 \
    X(POW_SCALAR, 1, "a^p0")                                                                                    \
    X(POW_OF_SCALAR, 1, "p0^a")                                                                                 \
    X(NOT, 1, "a == 0")                                                                                         \
    X(SUB_EXP, 1, "e^(a - p0)")                                                                                 \
    X(IS_NONFINITE, 1, "1 where infinite or NaN, else 0")                                                       \
    /* ---- two ---- */                                                                                         \
    X(ADD, 2, "a + p0 * b")                                                                                     \
    X(MUL, 2, "a * b")                                                                                          \
    X(DIV, 2, "a / b")                                                                                          \
    X(POW, 2, "a^b")                                                                                            \
    X(MAXIMUM, 2, "the greater; NaN where one is")                                                              \
    X(MINIMUM, 2, "the lesser; NaN where one is")                                                               \
    X(ATAN2, 2, "atan2(a, b)")                                                                                  \
    X(EQ, 2, "a == b: 1 or 0, as all seven")                                                                    \
    X(NE, 2, "a != b")                                                                                          \
    X(LT, 2, "a < b")                                                                                           \
    X(LE, 2, "a <= b")                                                                                          \
    X(GT, 2, "a > b")                                                                                           \
    X(GE, 2, "a >= b")                                                                                          \
    X(IS_EXTREME, 2, "a == b, or a is NaN: where b, the greatest or least of several, comes from")              \
    X(MUL_SCALED, 2, "p0 * a * b")                                                                              \
    /* ---- three ---- */                                                                                       \
    X(WHERE, 3, "a != 0 ? b : c")                                                                               \
    X(ADDCMUL, 3, "a + p0 * (b * c)")                                                                           \
    X(ADDCDIV, 3, "a + p0 * (b / c)")                                                                           \
    /* ---- gradients of one input: first dy, then the input a or the result y ---- */                          \
    X(ABS_BACKWARD, 2, "dy * sign(a)")                                                                          \
    X(SQRT_BACKWARD, 2, "dy / (2 y)")                                                                           \
    X(RSQRT_BACKWARD, 2, "-dy / 2 * y^3")                                                                       \
    X(RECIPROCAL_BACKWARD, 2, "-dy * y * y")                                                                    \
    X(EXPM1_BACKWARD, 2, "dy * (y + 1)")                                                                        \
    X(LOG1P_BACKWARD, 2, "dy / (1 + a)")                                                                        \
    X(LOG_BASE_BACKWARD, 2, "dy / (a * p0), p0 the logarithm of the base")                                      \
    X(SIN_BACKWARD, 2, "dy * cos a")                                                                            \
    X(COS_BACKWARD, 2, "-dy * sin a")                                                                           \
    X(TAN_BACKWARD, 2, "dy * (1 + y * y)")                                                                      \
    X(ASIN_BACKWARD, 2, "dy / sqrt(1 - a * a)")                                                                 \
    X(ACOS_BACKWARD, 2, "-dy / sqrt(1 - a * a)")                                                                \
    X(ATAN_BACKWARD, 2, "dy / (1 + a * a)")                                                                     \
    X(SINH_BACKWARD, 2, "dy * cosh a")                                                                          \
    X(COSH_BACKWARD, 2, "dy * sinh a")                                                                          \
    X(TANH_BACKWARD, 2, "dy * (1 - y * y)")                                                                     \
    X(ERF_BACKWARD, 2, "dy * 2 / sqrt(pi) * e^(-a a)")                                                          \
    X(ERFINV_BACKWARD, 2, "dy * sqrt(pi) / 2 * e^(y y)")                                                        \
    X(SIGMOID_BACKWARD, 2, "dy * (1 - y) * y")                                                                  \
    X(SOFTPLUS_BACKWARD, 2, "dy * (a * p0 > p1 ? 1 : sigmoid(p0 a))")                                           \
    X(RELU_BACKWARD, 2, "a <= 0 ? 0 : dy")                                                                       \
    X(GELU_BACKWARD, 2, "dy * (Phi(a) + a * phi(a))")                                                           \
    X(GELU_TANH_BACKWARD, 2, "dy times the slope of GELU_TANH at a")                                            \
    X(SILU_BACKWARD, 2, "dy * s * (1 + a * (1 - s)), s = sigmoid(a)")                                           \
    X(CLAMP_BACKWARD, 2, "p0 <= a <= p1 ? dy : 0")                                                              \
    X(POW_SCALAR_BACKWARD, 2, "p0 == 0 ? 0 : dy * p0 * a^(p0 - 1)")                                             \
    X(POW_OF_SCALAR_BACKWARD, 2, "dy * y * ln p0; of p0 = 0 dy * 0, but where y = 0^a is infinite")             \
    /* ---- of two inputs ---- */                                                                               \
    X(DIV_BACKWARD_B, 3, "of dy, a, b: -dy * (a / b) / b")                                                      \
    X(POW_BACKWARD_A, 3, "of dy, a, b: b == 0 ? 0 : dy * b * a^(b - 1)")                                        \
    X(POW_BACKWARD_B, 4, "of dy, a, b, y: a == 0 and b >= 0 ? 0 : dy * y * ln a")                               \
    X(MAXIMUM_BACKWARD, 3, "of dy, a, b: 0 where a < b, dy / 2 where equal, else dy; of the other: swapped")    \
    X(MINIMUM_BACKWARD, 3, "of dy, a, b: 0 where a > b, dy / 2 where equal, else dy")                           \
    X(ATAN2_BACKWARD_A, 3, "of dy, a, b: dy * b / (a a + b b)")                                                 \
    X(ATAN2_BACKWARD_B, 3, "of dy, a, b: -dy * a / (a a + b b)")                                                \
    X(MASKED, 2, "of mask, dy: mask != 0 ? dy : 0")                                                             \
    X(UNMASKED, 2, "of mask, dy: mask != 0 ? 0 : dy")                                                           \
    X(PRELU, 2, "a > 0 ? a : b * a")                                                                            \
    X(PRELU_BACKWARD_A, 3, "of dy, a, b: a > 0 ? dy : b * dy")                                                  \
    X(PRELU_BACKWARD_B, 2, "of dy, a: a > 0 ? 0 : a * dy")                                                      \
    X(ADDCMUL_BACKWARD, 2, "p0 * dy * b")                                                                       \
    X(ADDCDIV_BACKWARD_B, 2, "of dy, c: p0 * dy / c")                                                           \
    X(ADDCDIV_BACKWARD_C, 3, "of dy, b, c: -p0 * dy * b / (c * c)")                                             \
    /* ---- losses, each element of x against y; gradients of x and of y: dy first, then x and y ---- */        \
    X(SQUARED_DIFFERENCE, 2, "(x - y)^2")                                                                       \
    X(SQUARED_DIFFERENCE_BACKWARD, 3, "2 * p0 * dy * (x - y); p0 = -1 or 1, over n for a mean, as in all")      \
    X(ABS_DIFFERENCE, 2, "|x - y|")                                                                             \
    X(ABS_DIFFERENCE_BACKWARD, 3, "p0 * dy * sign(x - y)")                                                      \
    X(SMOOTH_L1, 2, "d = |x - y|, p1 = beta: d < p1 ? d * d / (2 p1) : d - p1 / 2")                             \
    X(SMOOTH_L1_BACKWARD, 3, "p0 * dy * (|d| < p1 ? d / p1 : sign d), d = x - y")                               \
    X(BCE, 2, "-(y * max(ln x, -100) + (1 - y) * max(ln(1 - x), -100))")                                        \
    X(BCE_BACKWARD_X, 3, "p0 * dy * (x - y) / max((1 - x) * x, 1e-12)")                                         \
    X(BCE_BACKWARD_Y, 3, "p0 * dy * (max(ln(1 - x), -100) - max(ln x, -100))")                                  \
    X(BCE_WITH_LOGITS, 2, "(1 - y) * x + ln(1 + e^-|x|) + max(-x, 0)")                                          \
    X(BCE_WITH_LOGITS_BACKWARD_X, 3, "p0 * dy * (sigmoid(x) - y)")                                              \
    X(BCE_WITH_LOGITS_BACKWARD_Y, 3, "-p0 * dy * x")                                                            \
    X(BCE_POSITIVES, 3, "of x, y, w: (1 - y) * x + ((w - 1) * y + 1) * (ln(1 + e^-|x|) + max(-x, 0))")           \
    X(BCE_POSITIVES_BACKWARD_X, 4, "of dy, x, y, w: p0 * dy * ((1 - y) - ((w - 1) * y + 1) * sigmoid(-x))")     \
    X(BCE_POSITIVES_BACKWARD_Y, 4, "of dy, x, y, w: p0 * dy * ((w - 1) * (ln(1 + e^-|x|) + max(-x, 0)) - x)")   \
    X(KL_DIV, 2, "y > 0 ? y * (ln y - x) : 0, and NaN for a NaN")                                               \
    X(KL_DIV_BACKWARD_X, 3, "-p0 * dy * y")                                                                     \
    X(KL_DIV_BACKWARD_Y, 3, "p0 * dy * (ln y + 1 - x)")                                                         \
    X(KL_DIV_LOG, 2, "e^y * (y - x)")                                                                           \
    X(KL_DIV_LOG_BACKWARD_X, 3, "-p0 * dy * e^y")                                                               \
    X(KL_DIV_LOG_BACKWARD_Y, 3, "p0 * dy * e^y * (y - x + 1)")                                                  \
    X(SOFT_MARGIN, 2, "ln(1 + e^(-y x))")                                                                       \
    X(SOFT_MARGIN_BACKWARD, 3, "-p0 * dy * y / (1 + e^(y x)), of x")                                            \
    X(POISSON_NLL, 2, "e^x - y * x")                                                                            \
    X(POISSON_NLL_BACKWARD, 3, "p0 * dy * (e^x - y), of x")
/* clang-format on */

enum cairn__map_fn {
#define CAIRN__X(name, inputs, what) CAIRN__MAP_##name,
    CAIRN__MAP_LIST(CAIRN__X)
#undef CAIRN__X
        CAIRN__NUM_MAPS
};

enum { CAIRN__MAP_INPUTS = 4, CAIRN__MAP_NUMBERS = 2 }; /* at most */

/* How many inputs a map has. */
static inline int cairn__map_inputs(enum cairn__map_fn f) {
    static const unsigned char inputs_of[CAIRN__NUM_MAPS] = {
#define CAIRN__X(name, inputs, what) inputs,
        CAIRN__MAP_LIST(CAIRN__X)
#undef CAIRN__X
    };
    return inputs_of[f];
}

/* How a fold combines elements along an axis: by adding them up or by choosing one. */
enum cairn__fold {
    CAIRN__FOLD_SUM = 0,
    CAIRN__FOLD_SUM_SQUARES, /* of (a - p0) */
    CAIRN__FOLD_SUM_ABS,
    CAIRN__FOLD_PRODUCT,
    CAIRN__FOLD_MAX, /* NaN if any element is NaN */
    CAIRN__FOLD_MIN,
    CAIRN__NUM_FOLDS
};

#endif
