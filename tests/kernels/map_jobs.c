/* jobs.c and model.c for maps, folds and dot products (kernels/maps.h).
 *
 * Each map is compared with the same formula written with libm in double precision, on moderate numbers and with a
 * loose tolerance, which finds wrong formulas. The accuracy of f32 functions is measured separately, in a sweep through
 * all bit patterns, against libm and the bound that math_f32.h states. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "core/half.h"
#include "kcheck.h"

static const int num_inputs[] = {
#define INPUTS(name, inputs, what) inputs,
    CAIRN__MAP_LIST(INPUTS)
#undef INPUTS
};

static const double numbers[][CAIRN__MAP_NUMBERS] = {{1.5, 2.5}, {0.5, 3}, {0, 0}, {-1, 0.75}};

#define CALLS(kind) (*(cairn__##kind##_kernel)(row->fn))

static void call_map(const struct cairn__kernel_row *row, void *const *a, size_t n, int v, struct outcome *out) {
    const void *x[CAIRN__MAP_INPUTS] = {a[1], a[2], a[3], a[4]};
    (void)out;
    CALLS(map)(a[0], x, n, numbers[v]);
}
static void call_fold(const struct cairn__kernel_row *row, void *const *a, size_t n, int v, struct outcome *out) {
    out->f64 = CALLS(fold)(a[0], n, numbers[v][0]);
}
static void call_fold_into(const struct cairn__kernel_row *row, void *const *a, size_t n, int v, struct outcome *out) {
    (void)out;
    CALLS(fold_into)(a[0], a[1], n, numbers[v][0]);
}
static void call_dot(const struct cairn__kernel_row *row, void *const *a, size_t n, int v, struct outcome *out) {
    (void)v;
    out->f64 = CALLS(dot)(a[0], a[1], n);
}

struct job map_job_of(const struct cairn__kernel_row *row) {
    const cairn_dtype t = (cairn_dtype)(row->kind == CAIRN__K_DOT ? row->a : row->b);
    const struct array in = {t, READ, 1}, out = {t, WRITTEN, 1}, both = {t, UPDATED, 1};
    switch (row->kind) {
    case CAIRN__K_MAP: {
        const int inputs = num_inputs[row->a];
        struct job job = {1 + inputs, {out}, {1, inputs > 1 ? 2 : 0}, 4, 0, row->a == CAIRN__MAP_COPY, call_map};
        for (int j = 1; j <= inputs; j++) job.array[j] = in;
        return job;
    }
    case CAIRN__K_FOLD:
        return (struct job){1, {in}, {0}, 2, 0, false, call_fold};
    case CAIRN__K_FOLD_INTO:
        return (struct job){2, {both, in}, {1}, 2, 0, false, call_fold_into};
    default:
        return (struct job){2, {in, in}, {0}, 1, 0, false, call_dot};
    }
}

const char *map_group_name(const struct cairn__kernel_row *row) {
    static const char *const kinds[] = {"map", "fold", "fold_into", "dot"};
    return kinds[row->kind - CAIRN__K_MAP];
}

/* ---- definitions ---- */

static double value(cairn_dtype t, const void *x, size_t i) {
    return t == CAIRN_F64 ? ((const double *)x)[i] : (double)((const float *)x)[i];
}

static double sgn(double x) {
    return (x > 0) - (x < 0);
}
static double logistic(double x) {
    return 0.5 + 0.5 * tanh(x / 2);
}
static double phi(double x) {
    return exp(-x * x / 2) / sqrt(2 * M_PI);
}
static double cdf(double x) {
    return erfc(-x / M_SQRT2) / 2;
}
static double tanh_inner(double x) {
    return sqrt(2 / M_PI) * (x + 0.044715 * pow(x, 3));
}
static double log_from(double x) {
    return fmax(log(x), -100) + (x < 0 ? NAN : 0);
}
static double slope_of(double (*f)(double), double x) {
    return (f(x + 1e-5) - f(x - 1e-5)) / 2e-5;
}
static double silu(double x) {
    return x * logistic(x);
}
static double gelu_by_tanh(double x) {
    return x / 2 * (1 + tanh(tanh_inner(x)));
}

/* clang-format off */
#define IS(name, ...) case CAIRN__MAP_##name: return __VA_ARGS__;

/* A switch of all functions of one input. */
static double one_input(enum cairn__map_fn f, double a, double p0, double p1) {
    switch ((int)f) {
        IS(COPY, a)
        IS(AFFINE, p0 * a + p1)
        IS(NEG, -a)
        IS(ABS, fabs(a))
        IS(SIGN, sgn(a))
        IS(SQUARE, pow(a, 2))
        IS(SQRT, sqrt(a))
        IS(RSQRT, pow(a, -0.5))
        IS(RECIPROCAL, pow(a, -1))
        IS(EXP, exp(a))
        IS(EXPM1, expm1(a))
        IS(LOG, log(a))
        IS(LOG1P, log1p(a))
        IS(LOG2, log2(a))
        IS(LOG10, log10(a))
        IS(SIN, sin(a))
        IS(COS, cos(a))
        IS(TAN, tan(a))
        IS(ASIN, asin(a))
        IS(ACOS, acos(a))
        IS(ATAN, atan(a))
        IS(SINH, sinh(a))
        IS(COSH, cosh(a))
        IS(TANH, tanh(a))
        IS(ERF, erf(a))
        IS(SIGMOID, logistic(a))
        IS(SOFTPLUS, a * p0 > p1 ? a : log1p(exp(p0 * a)) / p0)
        IS(RELU, fmax(a, 0))
        IS(GELU, a * cdf(a))
        IS(GELU_TANH, gelu_by_tanh(a))
        IS(SILU, silu(a))
        IS(CLAMP, fmin(fmax(a, p0), p1))
        IS(POW_SCALAR, pow(a, p0))
        IS(POW_OF_SCALAR, pow(p0, a))
        IS(NOT, !a)
        IS(SUB_EXP, exp(a - p0))
        IS(IS_NONFINITE, !isfinite(a))
    }
    return NAN; /* erfinv, which is checked by erf */
}

/* Of two and three, y of y = f(a, b). */
static double two_inputs(enum cairn__map_fn f, double a, double b, double c, double p0, double p1) {
    const double d = fabs(a - b);
    switch ((int)f) {
        IS(ADD, a + p0 * b)
        IS(MUL, a * b)
        IS(DIV, a / b)
        IS(POW, pow(a, b))
        IS(MAXIMUM, fmax(a, b))
        IS(MINIMUM, fmin(a, b))
        IS(ATAN2, atan2(a, b))
        IS(EQ, a == b)
        IS(NE, a != b)
        IS(LT, a < b)
        IS(LE, a <= b)
        IS(GT, a > b)
        IS(GE, a >= b)
        IS(IS_EXTREME, a == b || isnan(a))
        IS(MUL_SCALED, p0 * a * b)
        IS(WHERE, a != 0 ? b : c)
        IS(ADDCMUL, a + p0 * b * c)
        IS(ADDCDIV, a + p0 * b / c)
        IS(PRELU, fmax(a, 0) + b * fmin(a, 0))
        IS(MASKED, a != 0 ? b : 0)
        IS(UNMASKED, a != 0 ? 0 : b)
        IS(SQUARED_DIFFERENCE, d * d)
        IS(ABS_DIFFERENCE, d)
        IS(SMOOTH_L1, d < p1 ? d * d / (2 * p1) : d - p1 / 2)
        IS(BCE, -(b * log_from(a) + (1 - b) * log_from(1 - a)))
        IS(BCE_WITH_LOGITS, (1 - b) * a + log1p(exp(-a)))
        IS(BCE_POSITIVES, (1 - b) * a + ((c - 1) * b + 1) * log1p(exp(-a)))
        IS(KL_DIV, b > 0 ? b * (log(b) - a) : 0)
        IS(KL_DIV_LOG, exp(b) * (b - a))
        IS(SOFT_MARGIN, log1p(exp(-b * a)))
        IS(POISSON_NLL, exp(a) - b * a)
    }
    return NAN;
}

/* Gradients: a is dy, but where it is said. */
static double gradient(enum cairn__map_fn f, double a, double b, double c, double d, double p0, double p1) {
    const double e = b - c;
    switch ((int)f) {
        IS(ABS_BACKWARD, a * sgn(b))
        IS(SQRT_BACKWARD, a / 2 / b)
        IS(RSQRT_BACKWARD, -a / 2 * pow(b, 3))
        IS(RECIPROCAL_BACKWARD, -a * pow(b, 2))
        IS(EXPM1_BACKWARD, a * (b + 1))
        IS(LOG1P_BACKWARD, a / (1 + b))
        IS(LOG_BASE_BACKWARD, a / b / p0)
        IS(SIN_BACKWARD, a * slope_of(sin, b))
        IS(COS_BACKWARD, a * slope_of(cos, b))
        IS(TAN_BACKWARD, a * (1 + b * b))
        IS(ASIN_BACKWARD, a / sqrt(1 - b * b))
        IS(ACOS_BACKWARD, -a / sqrt(1 - b * b))
        IS(ATAN_BACKWARD, a * slope_of(atan, b))
        IS(SINH_BACKWARD, a * slope_of(sinh, b))
        IS(COSH_BACKWARD, a * slope_of(cosh, b))
        IS(TANH_BACKWARD, a * (1 - b * b))
        IS(ERF_BACKWARD, a * slope_of(erf, b))
        IS(ERFINV_BACKWARD, a / (2 / sqrt(M_PI) * exp(-b * b)))
        IS(SIGMOID_BACKWARD, a * b * (1 - b))
        IS(SOFTPLUS_BACKWARD, b * p0 > p1 ? a : a * logistic(p0 * b))
        IS(RELU_BACKWARD, b <= 0 ? 0 : a)
        IS(GELU_BACKWARD, a * (cdf(b) + b * phi(b)))
        IS(GELU_TANH_BACKWARD, a * slope_of(gelu_by_tanh, b))
        IS(SILU_BACKWARD, a * slope_of(silu, b))
        IS(CLAMP_BACKWARD, p0 <= b && b <= p1 ? a : 0)
        IS(POW_SCALAR_BACKWARD, p0 == 0 ? 0 : a * p0 * pow(b, p0 - 1))
        IS(POW_OF_SCALAR_BACKWARD, p0 == 0 && fabs(b) <= 1 ? a * 0 : a * b * log(p0))
        IS(DIV_BACKWARD_B, -a * b / pow(c, 2))
        IS(PRELU_BACKWARD_A, b > 0 ? a : a * c)
        IS(PRELU_BACKWARD_B, a * fmin(b, 0))
        IS(POW_BACKWARD_A, a * c * pow(b, c - 1))
        IS(POW_BACKWARD_B, a * d * log(b))
        IS(MAXIMUM_BACKWARD, b < c ? 0 : a)
        IS(MINIMUM_BACKWARD, b > c ? 0 : a)
        IS(ATAN2_BACKWARD_A, a * c / (b * b + c * c))
        IS(ATAN2_BACKWARD_B, -a * b / (b * b + c * c))
        IS(ADDCMUL_BACKWARD, p0 * a * b)
        IS(ADDCDIV_BACKWARD_B, p0 * a / b)
        IS(ADDCDIV_BACKWARD_C, -p0 * a * b / pow(c, 2))
        IS(SQUARED_DIFFERENCE_BACKWARD, p0 * a * 2 * e)
        IS(ABS_DIFFERENCE_BACKWARD, p0 * a * sgn(e))
        IS(SMOOTH_L1_BACKWARD, p0 * a * (fabs(e) < p1 ? e / p1 : sgn(e)))
        IS(BCE_BACKWARD_X, p0 * a * e / fmax((1 - b) * b, 1e-12f))
        IS(BCE_BACKWARD_Y, p0 * a * (log_from(1 - b) - log_from(b)))
        IS(BCE_WITH_LOGITS_BACKWARD_X, p0 * a * (logistic(b) - c))
        IS(BCE_WITH_LOGITS_BACKWARD_Y, -p0 * a * b)
        IS(BCE_POSITIVES_BACKWARD_X, p0 * a * ((1 - c) - ((d - 1) * c + 1) * logistic(-b)))
        IS(BCE_POSITIVES_BACKWARD_Y, p0 * a * ((d - 1) * log1p(exp(-b)) - b))
        IS(KL_DIV_BACKWARD_X, -p0 * a * c)
        IS(KL_DIV_BACKWARD_Y, p0 * a * (log(c) + 1 - b))
        IS(KL_DIV_LOG_BACKWARD_X, -p0 * a * exp(c))
        IS(KL_DIV_LOG_BACKWARD_Y, p0 * a * exp(c) * (c - b + 1))
        IS(SOFT_MARGIN_BACKWARD, -p0 * a * c * logistic(-c * b))
        IS(POISSON_NLL_BACKWARD, p0 * a * (exp(b) - c))
    }
    return NAN;
}

/* clang-format on */

/* Cancellation costs digits of what is subtracted, hence 4096 units of the last place. */
static bool near(cairn_dtype t, double got, double want) {
    const double tolerance = t == CAIRN_F64 ? 1e-8 : 4096 * (double)FLT_EPSILON; /* slopes are differences */
    return isnan(want) ? isnan(got) : got == want || fabs(got - want) <= tolerance * (1 + fabs(want));
}

static bool element_is_right(const struct cairn__kernel_row *row, const struct job *job, void *const *before,
                             double got, size_t i) {
    const cairn_dtype t = (cairn_dtype)row->b;
    const enum cairn__map_fn f = (enum cairn__map_fn)row->a;
    const double p0 = numbers[0][0], p1 = numbers[0][1];
    double x[CAIRN__MAP_INPUTS] = {0};
    for (int j = 0; j < num_inputs[f]; j++) x[j] = value(t, before[1 + j], i);
    if (f == CAIRN__MAP_ERFINV) return fabs(x[0]) >= 1 ? !isfinite(got) : near(t, erf(got), x[0]);
    const bool is_gradient = f >= CAIRN__MAP_ABS_BACKWARD;
    const double want = num_inputs[f] == 1 ? one_input(f, x[0], p0, p1) : two_inputs(f, x[0], x[1], x[2], p0, p1);
    const double slope = is_gradient ? gradient(f, x[0], x[1], x[2], x[3], p0, p1) : NAN;
    if (near(t, got, isnan(want) ? slope : want)) return true;
    complain("%s of %a, %a, %a, %a is %a, want %a", row->name, x[0], x[1], x[2], x[3], got, isnan(want) ? slope : want);
    (void)job;
    return false;
}

static double fold_by_hand(enum cairn__fold f, double so_far, double x) {
    const double p0 = numbers[0][0];
    switch (f) {
    case CAIRN__FOLD_SUM_SQUARES:
        return so_far + pow(x - p0, 2);
    case CAIRN__FOLD_SUM_ABS:
        return so_far + fabs(x);
    case CAIRN__FOLD_PRODUCT:
        return so_far * x;
    case CAIRN__FOLD_MAX:
        return fmax(so_far, x);
    case CAIRN__FOLD_MIN:
        return fmin(so_far, x);
    default:
        return so_far + x;
    }
}

bool map_is_right(const struct cairn__kernel_row *row, const struct job *job, size_t n, void *const *before,
                  void *const *after, const struct outcome *out) {
    const cairn_dtype t = job->array[0].type;
    const enum cairn__fold f = (enum cairn__fold)row->a;
    double all = 0;
    if (row->kind == CAIRN__K_FOLD) {
        all = f == CAIRN__FOLD_PRODUCT ? 1 : f == CAIRN__FOLD_MAX ? -INFINITY : f == CAIRN__FOLD_MIN ? INFINITY : 0;
    }
    for (size_t i = 0; i < n; i++) {
        const double x = value(t, before[0], i);
        if (row->kind == CAIRN__K_MAP && !element_is_right(row, job, before, value(t, after[0], i), i)) return false;
        if (row->kind == CAIRN__K_FOLD) all = fold_by_hand(f, all, x);
        if (row->kind == CAIRN__K_DOT) all += x * value(t, before[1], i);
        if (row->kind != CAIRN__K_FOLD_INTO) continue;
        if (!near(t, value(t, after[0], i), fold_by_hand(f, x, value(t, before[1], i)))) return false;
    }
    if (t == CAIRN_F32 && fabs(all) > (double)FLT_MAX) all = copysign(INFINITY, all);
    if (t == CAIRN_F32 && fabs(all) > (double)FLT_MAX) all = copysign(INFINITY, all);
    return row->kind == CAIRN__K_MAP || row->kind == CAIRN__K_FOLD_INTO || near(t, out->f64, all);
}

/* ---- digits of f32 ---- */

static double inverse_erf(double x) {
    const double x_[1] = {x};
    double y;
    cairn__kernels_cpu(0)->map[CAIRN__MAP_ERFINV][CAIRN_F64](&y, (const void *const[]){x_}, 1, NULL);
    return y;
}
static double softplus(double x) {
    return fmax(x, 0) + log1p(exp(-fabs(x)));
}
static double sigmoid(double x) {
    return x < 0 ? exp(x) / (1 + exp(x)) : 1 / (1 + exp(-x));
}
static double gelu(double x) {
    return x * cdf(x);
}
static double gelu_slope(double x) {
    return isinf(x) ? x > 0 : cdf(x) + x * phi(x);
}

/* The bounds that math_f32.h states, and those of what is made of them, in units of the last place. */
static const struct {
    enum cairn__map_fn f;
    double ulp;
    double (*exact)(double);
} bounds[] = {
    {CAIRN__MAP_EXP, 1.25, exp},
    {CAIRN__MAP_EXPM1, 2, expm1},
    {CAIRN__MAP_LOG, 1, log},
    {CAIRN__MAP_LOG1P, 1.75, log1p},
    {CAIRN__MAP_LOG2, 0.51, log2},
    {CAIRN__MAP_LOG10, 0.51, log10},
    {CAIRN__MAP_SIN, 0.51, sin},
    {CAIRN__MAP_COS, 0.51, cos},
    {CAIRN__MAP_TAN, 0.51, tan},
    {CAIRN__MAP_ASIN, 2.5, asin},
    {CAIRN__MAP_ACOS, 1.5, acos},
    {CAIRN__MAP_ATAN, 2, atan},
    {CAIRN__MAP_SINH, 2.5, sinh},
    {CAIRN__MAP_COSH, 2, cosh},
    {CAIRN__MAP_TANH, 3, tanh},
    {CAIRN__MAP_ERF, 3, erf},
    {CAIRN__MAP_ERFINV, 5, inverse_erf},
    {CAIRN__MAP_SIGMOID, 2.5, sigmoid},
    {CAIRN__MAP_SOFTPLUS, 2.5, softplus},
    {CAIRN__MAP_GELU, 4.5, gelu},
    {CAIRN__MAP_GELU_BACKWARD, 5, gelu_slope},
};

/* Its unit in the last place; beneath the normal numbers the least's, whose roundings a bound counts too. */
static double unit(double x) {
    int e;
    frexp(x, &e);
    return ldexp(1, e < -125 ? -149 : e - 24);
}

static bool is_within(double got, double want, double ulp) {
    if (isnan(want)) return isnan(got);
    if (fabs(want) > (double)FLT_MAX || !isfinite(got)) return fabs(got) >= (double)FLT_MAX && sgn(got) == sgn(want);
    return fabs(got - want) <= ulp * unit(want) && signbit(got) == signbit(want);
}

/* Left of 0 their bounds are absolute. */
static bool is_within_for_gelu(enum cairn__map_fn f, double x, double got, double want) {
    const double bound = f == CAIRN__MAP_GELU ? 3e-7 * -x : f == CAIRN__MAP_GELU_BACKWARD ? 3.5e-7 : 0;
    return x < 0 && fabs(got - want) <= bound;
}

enum { SWEEP = 1 << 16 };

bool check_digits(const struct checking *how) {
    static float x[SWEEP], y[SWEEP], one[SWEEP];
    const double p[CAIRN__MAP_NUMBERS] = {1, INFINITY}; /* softplus: never a itself */
    for (size_t b = 0; b < sizeof(bounds) / sizeof(bounds[0]); b++) {
        for (uint32_t i = 0; i < SWEEP; i++) {
            const uint32_t low = (uint32_t)random_bits(how->seed + b, i) >> 16;
            x[i] = cairn__f32_from_bits(i << 16 | (i % 5 ? low : 0));
            one[i] = 1;
        }
        const float *first = num_inputs[bounds[b].f] == 1 ? x : one;
        cairn__kernels_cpu(0)->map[bounds[b].f][CAIRN_F32](y, (const void *const[]){first, x}, SWEEP, p);
        for (size_t i = 0; i < SWEEP; i++) {
            const double want = isnan(x[i]) ? NAN : bounds[b].exact((double)x[i]);
            if (bounds[b].f == CAIRN__MAP_GELU && isinf(x[i])) continue; /* -inf * 0 */
            if (is_within((double)y[i], want, bounds[b].ulp)) continue;
            if (is_within_for_gelu(bounds[b].f, (double)x[i], (double)y[i], want)) continue;
            complain("map %d of %a is %a, want %a", bounds[b].f, (double)x[i], (double)y[i], want);
            return false;
        }
    }
    return true;
}

/* pow and atan2: every pair of these, which C11 F.10 has a word on, and random ones. */
bool check_pairs(const struct checking *how) {
    static const float special[] = {0.0f,        -0.0f,        1.0f,     -1.0f,     2.0f,      -2.0f, 3.0f,
                                    -3.0f,       0.5f,         -0.5f,    1e-45f,    -1e-45f,   1e38f, -1e38f,
                                    16777216.0f, -16777217.0f, INFINITY, -INFINITY, (float)NAN};
    enum { SPECIAL = sizeof(special) / sizeof(special[0]), PAIRS = SPECIAL * SPECIAL + 50000 };
    static float a[PAIRS], b[PAIRS], power[PAIRS], angle[PAIRS];
    for (uint32_t i = 0; i < PAIRS; i++) {
        const uint64_t r = random_bits(how->seed, i);
        a[i] = i < SPECIAL * SPECIAL ? special[i / SPECIAL] : cairn__f32_from_bits((uint32_t)r);
        b[i] = i < SPECIAL * SPECIAL ? special[i % SPECIAL] : (float)(int32_t)(r >> 32) * (i % 2 ? 0x1p-28f : 0x1p-24f);
    }
    const struct cairn__kernels *k = cairn__kernels_cpu(0);
    k->map[CAIRN__MAP_POW][CAIRN_F32](power, (const void *const[]){a, b}, PAIRS, NULL);
    k->map[CAIRN__MAP_ATAN2][CAIRN_F32](angle, (const void *const[]){a, b}, PAIRS, NULL);
    for (size_t i = 0; i < PAIRS; i++) {
        const double x = (double)a[i], y = (double)b[i];
        if (is_within((double)power[i], pow(x, y), 0.51) && is_within((double)angle[i], atan2(x, y), 3)) continue;
        complain("of %a and %a: pow %a, want %a; atan2 %a, want %a", x, y, (double)power[i], pow(x, y),
                 (double)angle[i], atan2(x, y));
        return false;
    }
    return true;
}
