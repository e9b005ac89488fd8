/* The functions on which maps of f32 are built, Cairn's own: libm's bits differ between libraries, and calls of libm
 * keep a compiler from vectorizing a loop.
 *
 * Every function is branch-free: both sides of a choice are computed, and ?: selects one. Operations are IEEE's, one at
 * a time, so a lane of a vector computes the same as a scalar, at any width. NaN gives NaN. Errors are differences from
 * the function's true value; bounds hold for the whole range, measured by kcheck against libm in double precision:
 *
 *     exp 1.25, expm1 2, log 1, log1p 1.75 ulp       sinh 2.5, cosh 2, tanh 3 ulp     sigmoid 2.5, softplus 2.5 ulp
 *     log2, log10, sin, cos, tan, pow 0.51 ulp       asin 2.5, acos 1.5, atan 2, atan2 3     erf 3, erfinv 5 ulp
 *     gelu, which is a times normal_cdf, 4.5 ulp     gelu_slope 5 ulp
 *
 * The last two bounds hold right of 0. Left of 0, where digits cancel, the bounds are absolute: 3e-7 |a| and 3.5e-7.
 * sin, cos, tan, log2, log10 and pow compute internally in double precision, with half the elements per vector.
 *
 * Coefficients are fits of our own by Remez's exchange in 40 digits, weighted for relative error unless stated
 * otherwise, then rounded to the type. Each comment states what is fitted, on which interval, and the remaining
 * error. */
#ifndef CAIRN__KERNELS_MATH_F32_H
#define CAIRN__KERNELS_MATH_F32_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__CUDACC__)
#define LINE __host__ __device__ static inline __attribute__((always_inline))
#else
#define LINE static inline __attribute__((always_inline))
#endif

LINE uint32_t bits_f32(float a) {
    uint32_t u;
    memcpy(&u, &a, sizeof(u));
    return u;
}
LINE float from_bits_f32(uint32_t u) {
    float a;
    memcpy(&a, &u, sizeof(a));
    return a;
}
LINE uint64_t bits_f64(double a) {
    uint64_t u;
    memcpy(&u, &a, sizeof(u));
    return u;
}
LINE double from_bits_f64(uint64_t u) {
    double a;
    memcpy(&a, &u, sizeof(a));
    return a;
}

LINE float fabs_f32(float a) {
    return from_bits_f32(bits_f32(a) & 0x7fffffff);
}
LINE float with_sign_f32(float a, float sign) {
    return from_bits_f32((bits_f32(a) & 0x7fffffff) | (bits_f32(sign) & 0x80000000));
}
/* -a, also of a NaN. CUDA's compiler would compute 0 - a, which gives the same NaN for every NaN. */
LINE float neg_f32(float a) {
    return from_bits_f32(bits_f32(a) ^ 0x80000000);
}
/* is ? a : b, by masks: a compiler would turn several ?: into branches. */
LINE float pick_f32(int is, float a, float b) {
    const uint32_t mask = is ? 0xffffffffu : 0;
    return from_bits_f32((bits_f32(a) & mask) | (bits_f32(b) & ~mask));
}
/* max(a, 0); a NaN keeps its bits, as in kernels/element.h. */
LINE float relu_f32(float a) {
    return (int32_t)bits_f32(a) <= (int32_t)0xff800000u ? 0 : a;
}
LINE float sqrt_f32(float a) {
    return sqrtf(a);
}

/* 2^n for -126 <= n <= 127. */
LINE float power_of_two_f32(int32_t n) {
    return from_bits_f32((uint32_t)(n + 127) << 23);
}

/* Adding it leaves an integer in the low bits, rounded to nearest even: for |a| < 2^22, and 2^51 in double. */
#define WHOLE_F32 0x1.8p23f
#define WHOLE_F64 0x1.8p52

/* ---- exponentials ---- */

/* a = n ln 2 + r, |r| <= ln 2 / 2. The first part of ln 2 has nine bits, so that n times it is exact. */
LINE float exp_reduce_f32(float a, int32_t *n) {
    const float shifted = a * 1.44269504f + WHOLE_F32, whole = shifted - WHOLE_F32;
    *n = (int32_t)(bits_f32(shifted) - bits_f32(WHOLE_F32));
    return a - whole * 0.693359375f - whole * -2.12194440e-4f;
}

/* e^r - 1 for |r| <= 0.35. Fitted: (e^r - 1 - r) / r^2, degree 4, error 1.5e-8 of e^r - 1. */
LINE float exp_rest_f32(float r) {
    const float p = 0.49999997f + r * (0.16666539f + r * (0.0416672118f + r * (0.00836715568f + r * 0.00138828903f)));
    return r + r * r * p;
}

/* 2^n is applied in two factors, for n = 128 and for subnormal results, which only the last factor rounds. */
LINE float exp_f32(float a) {
    int32_t n;
    const float low = a < -104.0f ? -104.0f : a, x = low > 89.0f ? 89.0f : low;
    const float y = 1.0f + exp_rest_f32(exp_reduce_f32(x, &n));
    const int32_t half = n >> 1;
    return y * power_of_two_f32(half) * power_of_two_f32(n - half);
}

/* (e^a - 1) / 4 for a <= 89.4, without cancellation near 0: 2^n (e^r - 1) + (2^n - 1). A quarter, so that it does not
 * overflow before the functions that use it do. */
LINE float expm1_quarter_f32(float a) {
    int32_t n;
    const float x = a < -30.0f ? -30.0f : a;
    const float rest = exp_rest_f32(exp_reduce_f32(x, &n)), scale = power_of_two_f32(n - 2);
    return rest * scale + (scale - 0.25f);
}

LINE float expm1_f32(float a) {
    const float y = 4.0f * expm1_quarter_f32(a > 89.0f ? 89.0f : a);
    return a == 0 ? a : y;
}

/* With q = (e^|a| - 1) / 4:  sinh = 2q + q / (2q + 1/2),  cosh = (2q + 1/2) + 1 / (8q + 2). */
LINE float sinh_f32(float a) {
    const float x = fabs_f32(a), q = expm1_quarter_f32(x > 89.5f ? 89.5f : x);
    const float some = q > 1e8f ? 1e8f : q; /* the second term is 1/2 from there on */
    return with_sign_f32(2.0f * q + some / (2.0f * some + 0.5f), a);
}
LINE float cosh_f32(float a) {
    const float x = fabs_f32(a), q = expm1_quarter_f32(x > 89.5f ? 89.5f : x);
    return (2.0f * q + 0.5f) + 0.125f / (q + 0.25f);
}

/* e^(2|a|) - 1 divided by e^(2|a|) + 1. */
LINE float tanh_f32(float a) {
    const float x = fabs_f32(a), q = expm1_quarter_f32(x > 10.0f ? 20.0f : 2.0f * x);
    return with_sign_f32(q / (q + 0.5f), a);
}

/* Uses e^-|a|, which does not overflow. */
LINE float sigmoid_f32(float a) {
    const float e = exp_f32(-fabs_f32(a));
    return (a < 0 ? e : 1.0f) / (1.0f + e);
}

/* ---- logarithms ---- */

/* ln(1 + f) for 1 + f within [1/sqrt 2, sqrt 2], in two parts that are added last: f, and the rest.
 * Fitted: (ln(1 + f) - f + f^2 / 2) / f^3, degree 7, error 5.9e-9 of ln(1 + f). */
LINE float log_rest_f32(float f) {
    const float low = 0.333333313f + f * (-0.250008225f + f * (0.200012356f + f * -0.166233018f));
    const float high = 0.142015025f + f * (-0.131604955f + f * (0.127636656f + f * -0.0763634071f));
    const float f2 = f * f;
    return f2 * f * (low + f2 * f2 * high) - 0.5f * f2;
}

/* n ln 2 + ln(1 + f) */
LINE float log_join_f32(float n, float f) {
    return (f + (log_rest_f32(f) + n * -2.12194440e-4f)) + n * 0.693359375f;
}

/* Replaces the logarithm y of an a that is not positive and finite. */
LINE float log_edges_f32(float a, float y) {
    const float above = a < INFINITY ? y : a; /* inf and NaN */
    return a > 0 ? above : a == 0 ? -INFINITY : NAN;
}

enum { ROOT_HALF_BITS = 0x3f3504f3 };

LINE float log_f32(float a) {
    const int subnormal = a < 0x1p-126f;
    const uint32_t u = bits_f32(subnormal ? a * 0x1p23f : a) - ROOT_HALF_BITS;
    const int32_t n = ((int32_t)u >> 23) - (subnormal ? 23 : 0);
    const float f = from_bits_f32((u & 0x7fffff) + ROOT_HALF_BITS) - 1.0f;
    return log_edges_f32(a, log_join_f32((float)n, f));
}

/* ln(u + lost), where u is 1 + a rounded and `lost` is the rounding error, scaled into f. */
LINE float log1p_f32(float a) {
    const float one = 1.0f + a, lost = a < 1.0f ? a - (one - 1.0f) : 1.0f - (one - a);
    const uint32_t u = bits_f32(one) - ROOT_HALF_BITS;
    const int32_t n = (int32_t)u >> 23, within = n > 100 ? 100 : n;
    const float m = from_bits_f32((u & 0x7fffff) + ROOT_HALF_BITS);
    const float f = (m - 1.0f) + (lost < INFINITY ? lost : 0.0f) * power_of_two_f32(-within);
    const float y = log_edges_f32(one, log_join_f32((float)n, f));
    return a == 0 ? a : y;
}

/* ln(1 + e^a) */
LINE float softplus_f32(float a) {
    return (a > 0 ? a : 0.0f) + log1p_f32(exp_f32(-fabs_f32(a)));
}

/* log2 of a > 0 in double precision, relative error 1e-15. m within [1/sqrt 2, sqrt 2], t = (m - 1) / (m + 1). Fitted:
 * log2((1 + t) / (1 - t)) / t over t^2, degree 6. The exponent's bits are converted to a number through 2^52, because
 * AVX2 has no conversion. */
LINE double log2_wide(double a) {
    const uint64_t root_half = 0x3fe6a09e667f3bcd, u = bits_f64(a) - root_half + ((uint64_t)1023 << 52);
    const double n = from_bits_f64(u >> 52 | bits_f64(0x1p52)) - (0x1p52 + 1023);
    const double m = from_bits_f64((u & 0xfffffffffffff) + root_half), t = (m - 1) / (m + 1), s = t * t;
    const double high =
        0.41219840132346264 + s * (0.3206164367206622 + s * (0.2614427490122978 + s * 0.24293344886770066));
    return n + t * (2.885390081777927 + s * (0.9617966939243225 + s * (0.5770780172512127 + s * high)));
}
LINE float log2_f32(float a) {
    return log_edges_f32(a, (float)log2_wide((double)a));
}
LINE float log10_f32(float a) {
    return log_edges_f32(a, (float)(log2_wide((double)a) * 0.30102999566398119521));
}

/* ---- powers ---- */

/* 2^a for |a| <= 1000, relative error 4.1e-11. Fitted: 2^r for |r| <= 1/2, degree 7. */
LINE double exp2_wide(double a) {
    const double shifted = a + WHOLE_F64, r = a - (shifted - WHOLE_F64);
    const uint64_t n = bits_f64(shifted) - bits_f64(WHOLE_F64);
    const double high =
        0.009618027172696691 + r * (0.0013333922849669848 + r * (0.00015469317327093516 + r * 1.5201902407055862e-05));
    const double y = 0.9999999999616217 +
                     r * (0.6931471807287137 + r * (0.24022651198755268 + r * (0.055504103528400045 + r * high)));
    return y * from_bits_f64((n + 1023) << 52);
}

/* Edge cases are those of C11 F.10.4.4: the logarithm of 0 is -inf, and an infinite b is treated as a very large
 * one. */
LINE float pow_f32(float a, float b) {
    const float y = fabs_f32(b), clipped = pick_f32(y > 1e30f, with_sign_f32(1e30f, b), b);
    const float least = pick_f32(y < 0x1p24f, y, 0x1p24f); /* all integers from there on are even */
    const int32_t whole = (int32_t)least;
    const int is_whole = (float)whole == least;
    const float x = fabs_f32(pick_f32((a < 0) & !is_whole & (a > -INFINITY), NAN, a));
    const int at_end = !((x > 0) & (x < INFINITY));
    const float end = pick_f32(at_end, x - 1 / x, 0); /* -inf for 0, inf, NaN */
    const double power = (double)clipped * (log2_wide((double)pick_f32(at_end, 1, x)) + (double)end);
    const double size = fabs(power), within = size > 1000 ? 1000 : size;
    const float result = (float)exp2_wide(from_bits_f64(bits_f64(within) | (bits_f64(power) & (uint64_t)1 << 63)));
    const uint32_t odd = (uint32_t)(whole & is_whole) << 31;
    return pick_f32((b == 0) | (a == 1), 1, from_bits_f32(bits_f32(result) | (odd & bits_f32(a))));
}

/* ---- the circle ---- */

/* a = n pi / 2 + r, |r| <= pi / 4, for |a| <= TURN_NEAR. The first two parts of pi / 2 have 22 bits: n times them is
 * exact. */
#define TURN_NEAR_F32 0x1p30f
LINE double turn_near_wide(double a, uint64_t *n) {
    const double shifted = a * 0x1.45f306dc9c883p-1 + WHOLE_F64, whole = shifted - WHOLE_F64;
    *n = bits_f64(shifted);
    return a - whole * 0x1.921fb00000000p+0 - whole * 0x1.5110b00000000p-22 - whole * 0x1.18469898cc517p-44;
}

/* The number of quarters that a part of 2 / pi, of 24 bits, adds, without multiples of 4. Its product with a is exact;
 * a product of 2^50 or more is a multiple of 4, because it has 48 bits. */
LINE double some_quarters_wide(double a, double part) {
    const double product = a * part, turns = (product * 0.25 + WHOLE_F64) - WHOLE_F64;
    return fabs(product) < 0x1p50 ? product - 4 * turns : 0;
}

/* The same for every f32: a times 2 / pi to 216 bits, without whole turns. An infinity gives NaN. */
LINE double turn_far_wide(double a, uint64_t *n) {
    double great = some_quarters_wide(a, 0x1.45f306p-1) + some_quarters_wide(a, 0x1.b9391p-26), small;
    great += some_quarters_wide(a, 0x1.529fcp-52);
    great += some_quarters_wide(a, 0x1.3abe88p-75);
    great += some_quarters_wide(a, 0x1.ea69bap-97);
    great += some_quarters_wide(a, 0x1.81b6c4p-121);
    small = some_quarters_wide(a, 0x1.2b3278p-145);
    small += some_quarters_wide(a, 0x1.0e4104p-170);
    const double shifted = great + WHOLE_F64;
    *n = bits_f64(shifted);
    return ((great - (shifted - WHOLE_F64)) + small + 0 * a) * 0x1.921fb54442d18p+0;
}

/* far: some |a| may be greater than TURN_NEAR. An element's bits do not depend on it. */
LINE double turn_wide(float a, int far, uint64_t *n) {
    uint64_t n_far, n_near;
    const double near = turn_near_wide((double)a, &n_near);
    *n = n_near;
    if (!far) return near;
    const double r = turn_far_wide((double)a, &n_far);
    *n = fabs_f32(a) <= TURN_NEAR_F32 ? n_near : n_far;
    return fabs_f32(a) <= TURN_NEAR_F32 ? near : r;
}

/* For |r| <= pi / 4. Fitted over r^2: (sin r / r - 1) / r^2, degree 3, error 5.2e-12; (cos r - 1 + r^2 / 2) / r^4,
 * degree 3, error 1.2e-13. */
LINE double sin_wide(double r) {
    const double s = r * r;
    const double high = -0.0001983931148510495 + s * 2.718114113049257e-06;
    return r + r * s * (-0.16666666640776273 + s * (0.008333329302417687 + s * high));
}
LINE double cos_wide(double r) {
    const double s = r * r;
    const double high = 2.479945931114947e-05 + s * -2.720568469052089e-07;
    return 1 - 0.5 * s + s * s * (0.04166666661945384 + s * (-0.0013888883496865653 + s * high));
}

/* The sine of r after n quarter turns. */
LINE double sin_after_wide(double r, uint64_t n) {
    const double y = n & 1 ? cos_wide(r) : sin_wide(r);
    return from_bits_f64(bits_f64(y) ^ (n & 2) << 62);
}

LINE float sin_f32(float a, int far) {
    uint64_t n;
    const double r = turn_wide(a, far, &n);
    const float y = (float)sin_after_wide(r, n);
    return a == 0 ? a : y;
}
LINE float cos_f32(float a, int far) {
    uint64_t n;
    const double r = turn_wide(a, far, &n);
    return (float)sin_after_wide(r, n + 1);
}
LINE float tan_f32(float a, int far) {
    uint64_t n;
    const double r = turn_wide(a, far, &n), s = sin_wide(r), c = cos_wide(r);
    const float y = (float)((n & 1 ? -c : s) / (n & 1 ? s : c));
    return a == 0 ? a : y;
}

/* atan a for 0 <= a <= 1. Fitted over a^2: (atan a / a - 1) / a^2, degree 7, error 1.7e-8 of atan. */
LINE float atan_rest_f32(float a) {
    const float s = a * a;
    const float high = -0.0755221471f + s * (0.0432118699f + s * (-0.0163679346f + s * 0.00292069418f));
    const float p = -0.333331525f + s * (0.199937731f + s * (-0.142110556f + s * (0.106660046f + s * high)));
    return a + a * s * p;
}

/* pi / 2 - a, and pi - a. pi / 2 and pi are given by two numbers each: the nearest f32, and how much that is too
 * great. */
LINE float half_pi_less_f32(float a) {
    return 1.57079637f - (a + 4.37113883e-8f);
}
LINE float pi_less_f32(float a) {
    return 3.14159274f - (a + 8.74227766e-8f);
}

LINE float atan_f32(float a) {
    const float x = fabs_f32(a), y = atan_rest_f32(x > 1 ? 1 / x : x);
    return with_sign_f32(x > 1 ? half_pi_less_f32(y) : y, a);
}
LINE float atan2_f32(float a, float b) {
    const float x = fabs_f32(b), y = fabs_f32(a), less = y < x ? y : x, more = y < x ? x : y;
    const float ratio = less == more ? (more == 0 ? 0.0f : 1.0f) : less / more;
    const float acute = atan_rest_f32(ratio), within = y > x ? half_pi_less_f32(acute) : acute;
    const float angle = with_sign_f32(bits_f32(b) >> 31 ? pi_less_f32(within) : within, a);
    return ((a != a) | (b != b)) ? NAN : angle;
}

/* asin a for 0 <= a <= 1/2, of a and a^2. Fitted: (asin a / a - 1) / a^2, degree 4, error 4.9e-9 of asin. */
LINE float asin_rest_f32(float a, float s) {
    const float p = 0.0749529749f + s * (0.0454703756f + s * (0.0241795164f + s * 0.0421663076f));
    return a + a * s * (0.166667521f + s * p);
}

/* Beyond 1/2, by the half angle: asin a = pi / 2 - 2 asin sqrt((1 - a) / 2). */
LINE float asin_f32(float a) {
    const float x = fabs_f32(a), s = x > 0.5f ? 0.5f * (1 - x) : x * x;
    const float y = asin_rest_f32(x > 0.5f ? sqrtf(s) : x, s);
    return with_sign_f32(x > 0.5f ? half_pi_less_f32(2 * y) : y, a);
}
LINE float acos_f32(float a) {
    const float x = fabs_f32(a), s = x > 0.5f ? 0.5f * (1 - x) : x * x;
    const float y = asin_rest_f32(x > 0.5f ? sqrtf(s) : x, s);
    const float near_end = a < 0 ? pi_less_f32(2 * y) : 2 * y;
    return x > 0.5f ? near_end : half_pi_less_f32(a < 0 ? -y : y);
}

/* ---- the normal distribution ---- */

/* Near 0 an odd polynomial, fitted to erf a / a over a^2 for |a| <= 0.92: degree 6, error 4e-10. Beyond it 1 - e^p,
 * p fitted to ln erfc a up to 4, weighted by erfc: degree 7, error 4.2e-11 of 1. */
LINE float erf_f32(float a) {
    const float x = fabs_f32(a), s = x * x;
    const float low =
        0.112836972f + s * (-0.0268594995f + s * (0.00520128617f + s * (-0.000814559637f + s * 8.38238702e-05f)));
    const float near = x * (1.12837923f + s * (-0.376126349f + s * low));
    const float high = 0.025128616f + x * (-0.00417463947f + x * (0.000435218157f + x * -2.1161839e-05f));
    const float p = 0.000175873618f + x * (-1.12952077f + x * (-0.633334637f + x * (-0.108293936f + x * high)));
    return with_sign_f32(x < 0.92f ? near : 1 - exp_f32(p), a);
}

/* Source: Giles, "Approximating the erfinv function", GPU Computing Gems 2, 2011, table 5, single precision. */
LINE float erfinv_f32(float a) {
    const float w = -log_f32((1 - a) * (1 + a)), near = w - 2.5f, far = sqrtf(w) - 3.0f;
    float p = 2.81022636e-08f, q = -0.000200214257f;
    p = 3.43273939e-07f + p * near, q = 0.000100950558f + q * far;
    p = -3.5233877e-06f + p * near, q = 0.00134934322f + q * far;
    p = -4.39150654e-06f + p * near, q = -0.00367342844f + q * far;
    p = 0.00021858087f + p * near, q = 0.00573950773f + q * far;
    p = -0.00125372503f + p * near, q = -0.0076224613f + q * far;
    p = -0.00417768164f + p * near, q = 0.00943887047f + q * far;
    p = 0.246640727f + p * near, q = 1.00167406f + q * far;
    p = 1.50140941f + p * near, q = 2.83297682f + q * far;
    const float y = (w < 5 ? p : q) * a;
    return fabs_f32(a) == 1 ? with_sign_f32(INFINITY, a) : y;
}

/* Phi(a) = 1/2 + h, h = erf(a / sqrt 2) / 2 clipped, so that a little beyond +-5.2 it is exactly 0 and 1. Fitted, for
 * the absolute error of h, by Lawson's reweighting in double precision: h / a over a^2 up to 5.2^2, degree 4 over
 * degree 5, error 5.7e-8. */
LINE float normal_cdf_f32(float a) {
    const float square = a * a, s = square > 27.04f ? 27.04f : square;
    const float over =
        0.398941904f + s * (0.0495940261f + s * (0.00551877217f + s * (0.000314269739f + s * 5.84074178e-06f)));
    const float high = 0.0027037831f + s * (0.000112743226f + s * 5.01908687e-07f);
    const float h = a * (over / (1 + s * (0.290974557f + s * (0.0373401679f + s * high))));
    const float some = h > 0.5f ? 0.5f : h;
    return 0.5f + (some < -0.5f ? -0.5f : some);
}

/* Phi(a) + a phi(a), the slope of gelu, is 1/2 + h in the same way. a is clipped at 6, where the computed h is exactly
 * 1/2. Fitted in the same way up to 6^2: degree 7 over degree 5, error 3.1e-8. */
LINE float gelu_slope_f32(float a) {
    const float low = a < -6.0f ? -6.0f : a, x = low > 6.0f ? 6.0f : low, s = x * x;
    const float far = -1.0086881e-07f + s * (2.78499601e-09f + s * -1.5357448e-11f);
    const float more = 0.0145299947f + s * (-0.000148156949f + s * (3.30083603e-05f + s * far));
    const float over = 0.797884762f + s * (-0.0415168591f + s * more);
    const float high = 0.00295230071f + s * (0.000150209205f + s * 5.55674205e-06f);
    return 0.5f + x * (over / (1 + s * (0.281302124f + s * (0.036971949f + s * high))));
}

#undef LINE
#undef WHOLE_F32
#undef WHOLE_F64
#endif
