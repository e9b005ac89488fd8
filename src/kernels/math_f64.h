/* The functions on which maps of f64 are built: libm's. f64 serves to check f32 and to test gradients. */
#ifndef CAIRN__KERNELS_MATH_F64_H
#define CAIRN__KERNELS_MATH_F64_H

#include <math.h>

#if defined(__CUDACC__)
#define LINE __host__ __device__ static inline
#else
#define LINE static inline
#endif

#define LIBM(name)                     \
    LINE double name##_f64(double a) { \
        return name(a);                \
    }
LIBM(fabs)
LIBM(sqrt)
LIBM(exp)
LIBM(expm1)
LIBM(log)
LIBM(log1p)
LIBM(log2)
LIBM(log10)
LIBM(asin)
LIBM(acos)
LIBM(atan)
LIBM(sinh)
LIBM(cosh)
LIBM(tanh)
LIBM(erf)
#undef LIBM

/* far: as in math_f32.h; libm does not need it. */
LINE double sin_f64(double a, int far) {
    (void)far;
    return sin(a);
}
LINE double cos_f64(double a, int far) {
    (void)far;
    return cos(a);
}
LINE double tan_f64(double a, int far) {
    (void)far;
    return tan(a);
}

LINE double pow_f64(double a, double b) {
    return pow(a, b);
}
LINE double atan2_f64(double a, double b) {
    return atan2(a, b);
}

LINE double neg_f64(double a) {
    return -a;
}

LINE double relu_f64(double a) {
    return a > 0 || a != a ? a : 0;
}

LINE double pick_f64(int is, double a, double b) {
    return is ? a : b;
}

/* Uses e^-|a|, which does not overflow. */
LINE double sigmoid_f64(double a) {
    const double e = exp(-fabs(a));
    return a < 0 ? e / (1 + e) : 1 / (1 + e);
}

/* ln(1 + e^a) */
LINE double softplus_f64(double a) {
    return (a > 0 ? a : 0 * a) + log1p(exp(-fabs(a)));
}

/* (1 + erf(a / sqrt 2)) / 2, without cancellation far left of 0. */
LINE double normal_cdf_f64(double a) {
    return 0.5 * erfc(a * -0.70710678118654752440);
}

/* Phi(a) + a * phi(a): the slope of gelu. */
LINE double gelu_slope_f64(double a) {
    const double phi = 0.39894228040143267794 * exp(-0.5 * a * a);
    return normal_cdf_f64(a) + (phi > 0 ? a * phi : 0 * phi);
}

LINE double ratio_f64(const double *over, const double *under, double r) {
    double p = over[7], q = under[7];
    for (int i = 6; i >= 0; i--) {
        p = p * r + over[i];
        q = q * r + under[i];
    }
    return p / q;
}

/* Source: Wichura, "Algorithm AS 241: The Percentage Points of the Normal Distribution", Applied Statistics 37 (1988),
 * PPND16; relative error about 1e-16. erfinv(a) = quantile((1 + a) / 2) / sqrt 2. */
LINE double erfinv_f64(double a) {
    static const double middle[2][8] = {{3.3871328727963666080e0, 1.3314166789178437745e2, 1.9715909503065514427e3,
                                         1.3731693765509461125e4, 4.5921953931549871457e4, 6.7265770927008700853e4,
                                         3.3430575583588128105e4, 2.5090809287301226727e3},
                                        {1.0, 4.2313330701600911252e1, 6.8718700749205790830e2, 5.3941960214247511077e3,
                                         2.1213794301586595867e4, 3.9307895800092710610e4, 2.8729085735721942674e4,
                                         5.2264952788528545610e3}};
    static const double side[2][8] = {{1.42343711074968357734e0, 4.63033784615654529590e0, 5.76949722146069140550e0,
                                       3.64784832476320460504e0, 1.27045825245236838258e0, 2.41780725177450611770e-1,
                                       2.27238449892691845833e-2, 7.74545014278341407640e-4},
                                      {1.0, 2.05319162663775882187e0, 1.67638483018380384940e0,
                                       6.89767334985100004550e-1, 1.48103976427480074590e-1, 1.51986665636164571966e-2,
                                       5.47593808499534494600e-4, 1.05075007164441684324e-9}};
    static const double tail[2][8] = {{6.65790464350110377720e0, 5.46378491116411436990e0, 1.78482653991729133580e0,
                                       2.96560571828504891230e-1, 2.65321895265761230930e-2, 1.24266094738807843860e-3,
                                       2.71155556874348757815e-5, 2.01033439929228813265e-7},
                                      {1.0, 5.99832206555887937690e-1, 1.36929880922735805310e-1,
                                       1.48753612908506148525e-2, 7.86869131145613259100e-4, 1.84631831751005468180e-5,
                                       1.42151175831644588870e-7, 2.04426310338993978564e-15}};
    const double half_root = 0.70710678118654752440, q = a / 2;
    if (fabs(q) <= 0.425) return half_root * (q * ratio_f64(middle[0], middle[1], 0.180625 - q * q));
    const double r = sqrt(-log((1 - fabs(a)) / 2)); /* NaN outside [-1, 1] */
    if (r == (double)INFINITY) return copysign(r, a);
    return copysign(half_root * (r <= 5 ? ratio_f64(side[0], side[1], r - 1.6) : ratio_f64(tail[0], tail[1], r - 5)),
                    a);
}

#undef LINE
#endif
