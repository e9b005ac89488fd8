/* Independent definitions that check the reference: written differently, in double precision, and without shared
 * code. */
#include "kcheck.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/half.h"
#include "core/philox.h"

/* A half type by its numbers: significand bits with the hidden one, least exponent, greatest value. */
struct format {
    int fraction_bits, bias, digits, least_exponent;
    double greatest;
};
static struct format format_of(cairn_dtype type) {
    return type == CAIRN_F16 ? (struct format){10, 15, 11, -14, 65504.0}
                             : (struct format){7, 127, 8, -126, ldexp(255, 120)};
}

/* The value of a bit pattern, by IEEE 754 section 3.4. */
static double model_widen(cairn_dtype type, uint16_t bits) {
    struct format f = format_of(type);
    int exponent = (bits & 0x7fff) >> f.fraction_bits, most = 2 * f.bias + 1;
    double fraction = bits & ((1 << f.fraction_bits) - 1), sign = bits & 0x8000 ? -1 : 1;
    if (exponent == most) return fraction > 0 ? NAN : sign * INFINITY;
    if (exponent == 0) return sign * ldexp(fraction, 1 - f.bias - f.fraction_bits);
    return sign * ldexp(fraction + (1 << f.fraction_bits), exponent - f.bias - f.fraction_bits);
}

/* x rounded to the type: a whole multiple of the unit in the last place, nearest and even. */
static double model_narrow(cairn_dtype type, double x) {
    struct format f = format_of(type);
    if (x == 0 || !isfinite(x)) return x;
    int exponent = ilogb(x) > f.least_exponent ? ilogb(x) : f.least_exponent;
    double unit = ldexp(1, exponent - f.digits + 1);
    double rounded = nearbyint(x / unit) * unit;
    return fabs(rounded) > f.greatest ? copysign(INFINITY, x) : rounded;
}

/* The two functions above as tables, for going through every f32 in minutes: values of the 65536 bit patterns, and the
 * unit of each exponent field of f32. */
static double value_table[CAIRN_BF16 + 1][0x10000], unit_table[CAIRN_BF16 + 1][0x100];

static void make_tables(void) {
    for (cairn_dtype type = CAIRN_F16; type <= CAIRN_BF16; type++) {
        struct format f = format_of(type);
        for (uint32_t bits = 0; bits < 0x10000; bits++) value_table[type][bits] = model_widen(type, (uint16_t)bits);
        for (int e = 0; e < 0x100; e++) {
            int exponent = e - 127 > f.least_exponent ? e - 127 : f.least_exponent;
            unit_table[type][e] = ldexp(1, exponent - f.digits + 1);
        }
    }
}

static bool same_value(double a, double b) {
    return (isnan(a) && isnan(b)) || (a == b && signbit(a) == signbit(b));
}

/* A NaN keeps its sign and the upper bits of its payload, and is quiet. */
static uint16_t model_nan(cairn_dtype type, uint32_t u) {
    int dropped = 23 - format_of(type).fraction_bits;
    uint32_t exponent = type == CAIRN_F16 ? 0x7c00 : 0x7f80, quiet = 1u << (22 - dropped);
    return (uint16_t)((u >> 31) << 15 | exponent | quiet | ((u & 0x7fffff) >> dropped));
}

static bool narrowing_is_right(cairn_dtype type, uint32_t u) {
    float x = cairn__f32_from_bits(u);
    uint16_t got = type == CAIRN_F16 ? cairn__f32_to_f16(x) : cairn__f32_to_bf16(x);
    bool ok = (u & 0x7fffffff) > 0x7f800000 ? got == model_nan(type, u)
                                            : same_value(model_widen(type, got), model_narrow(type, (double)x));
    if (!ok) complain("half.h: f32 %08x becomes %s %04x", u, cairn_dtype_name(type), got);
    return ok;
}

/* Around every boundary of a narrowing, and random bits. */
bool check_half_definition(const struct checking *how) {
    for (cairn_dtype type = CAIRN_F16; type <= CAIRN_BF16; type++) {
        for (uint32_t upper = 0; upper < 0x10000; upper++) { /* each half's own value, its ties, their neighbours */
            static const uint32_t lower[] = {0,      1,      0x0fff, 0x1000, 0x1001, 0x2fff, 0x3000, 0x3001,
                                             0x7fff, 0x8000, 0x8001, 0xefff, 0xf000, 0xf001, 0xffff};
            for (size_t i = 0; i < sizeof(lower) / sizeof(lower[0]); i++) {
                if (!narrowing_is_right(type, upper << 16 | lower[i])) return false;
            }
        }
        for (uint64_t i = 0; i < (how->quick ? 100000u : 1000000u); i++) {
            if (!narrowing_is_right(type, (uint32_t)random_bits(how->seed, i))) return false;
        }
    }
    return true;
}

/* All 65536 of both: the value is right, and what is no NaN comes back the same. bf16 keeps even signalling NaNs. */
bool check_every_half(const struct checking *how) {
    (void)how;
    for (cairn_dtype type = CAIRN_F16; type <= CAIRN_BF16; type++) {
        const struct cairn__dtype *d = cairn__dtype(type);
        for (uint32_t bits = 0; bits < 0x10000; bits++) {
            uint16_t half = (uint16_t)bits, back;
            float wide = d->to_f32(&half);
            d->from_f32(&back, wide);
            double want = model_widen(type, half);
            bool ok = same_value((double)wide, want);
            if (isnan(want)) {
                uint16_t quiet = type == CAIRN_F16 ? 0x200 : 0x40;
                uint32_t wide_quiet = type == CAIRN_F16 ? 0x400000 : 0, shift = type == CAIRN_F16 ? 13 : 16;
                uint32_t payload = (half & (type == CAIRN_F16 ? 0x3ffu : 0x7fu)) << shift;
                uint32_t sign_and_exponent = (half & 0x8000u) << 16 | 0x7f800000;
                ok = back == (half | quiet) && cairn__f32_bits(wide) == (sign_and_exponent | payload | wide_quiet);
            } else {
                ok = ok && back == half;
            }
            if (!ok) {
                complain("%s %04x widens to %a and comes back as %04x", d->name, bits, (double)wide, back);
                return false;
            }
        }
    }
    return true;
}

/* ---- reference rows ---- */

static double value_of(cairn_dtype type, const void *x, size_t i) {
    if (type == CAIRN_F64) return ((const double *)x)[i];
    if (type == CAIRN_F32) return (double)((const float *)x)[i];
    return model_widen(type, ((const uint16_t *)x)[i]);
}

/* One IEEE operation of f32, by rounding the exact result of f64 once more (f64 has more than twice the digits). */
static double f32(double exact) {
    return (double)(float)exact;
}

static double rounded_to(cairn_dtype type, double x) {
    return type == CAIRN_F32 || type == CAIRN_F64 ? x : model_narrow(type, x);
}

static bool nonfinite(double x) {
    return isnan(x) || isinf(x);
}

/* One block: lane j is the sum of elements j, j + 16, ...; the tree halves them. */
static double laned(const double *x, size_t n) {
    double lane[16];
    for (size_t j = 0; j < 16; j++) {
        lane[j] = 0;
        for (size_t i = j; i < n; i += 16) lane[j] = f32(lane[j] + x[i]);
    }
    for (size_t width = 8; width >= 1; width /= 2) {
        for (size_t j = 0; j < width; j++) lane[j] = f32(lane[j] + lane[j + width]);
    }
    return lane[0];
}

static double by_blocks(const double *x, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i += 256) sum += laned(x + i, n - i < 256 ? n - i : 256);
    return sum;
}

enum { N = 811 }; /* several blocks of a sum, and a part of one */

/* The element-wise kernels and sums: element i by the contract's formula. A switch of kinds. */
static double model_element(const struct cairn__kernel_row *row, const struct job *job, void *const *a, size_t i) {
    const double x = job->num_arrays > 1 ? value_of(job->array[1].type, a[1], i) : 0;
    const double y = job->num_arrays > 2 ? value_of(job->array[2].type, a[2], i) : 0;
    const cairn_dtype to = job->array[0].type;
    switch (row->kind) {
    case CAIRN__K_CAST:
        return rounded_to(to, x);
    case CAIRN__K_SCALE:
        return rounded_to(to, f32(x * 0x1p-16));
    case CAIRN__K_AXPBY:
        return rounded_to(to, f32(f32(0x1p-16 * x) + f32(1.5 * y)));
    case CAIRN__K_FILL:
        return 1.5;
    case CAIRN__K_ADD:
        return f32(x + y);
    case CAIRN__K_MUL_SCALAR:
        return f32(x * 0x1p-16);
    case CAIRN__K_RELU:
        return isnan(x) ? x : x > 0 ? x : 0;
    case CAIRN__K_RELU_BACKWARD:
        return y <= 0 ? 0 : x;
    case CAIRN__K_MSE_BACKWARD:
        return f32(0x1p-16 * f32(x - y));
    case CAIRN__K_ROUND:
        return model_narrow((cairn_dtype)row->a, x);
    default:
        return NAN;
    }
}

/* A NaN is less than anything and greater too; of equals, zeros differ. */
static double model_extreme(bool least, double x, double y) {
    if (isnan(x) || isnan(y)) return NAN;
    if (x == y) return signbit(x) ? (least ? x : y) : (least ? y : x);
    return least ? fmin(x, y) : fmax(x, y);
}

static double model_reduced(int op, cairn_dtype type, struct reduction r, void *const *a, size_t i) {
    double x = value_of(type, a[0], i);
    for (int s = 1; s < r.p; s++) {
        const double y = value_of(type, a[s], i);
        x = op == CAIRN__REDUCE_SUM    ? x + y
            : op == CAIRN__REDUCE_PROD ? x * y
                                       : model_extreme(op == CAIRN__REDUCE_MIN, x, y);
        if (type != CAIRN_F64) x = f32(x);
    }
    x /= (double)r.divisor;
    return type == CAIRN_F64 ? x : rounded_to(type, f32(x));
}

static int64_t integer_of(cairn_dtype type, const void *x, size_t i) {
    if (type == CAIRN_U8) return ((const uint8_t *)x)[i];
    return type == CAIRN_I32 ? ((const int32_t *)x)[i] : ((const int64_t *)x)[i];
}

/* As a residue, cut to the type's bits after each step, and given its sign at the end. */
static int64_t model_reduced_integer(int op, cairn_dtype type, struct reduction r, void *const *a, size_t i) {
    const uint64_t mask = UINT64_MAX >> (64 - 8 * cairn_dtype_nbytes(type)), sign = type == CAIRN_U8 ? 0 : mask / 2 + 1;
    uint64_t x = (uint64_t)integer_of(type, a[0], i) & mask;
    for (int s = 1; s < r.p; s++) {
        const uint64_t y = (uint64_t)integer_of(type, a[s], i) & mask;
        const bool y_is_less = (y ^ sign) < (x ^ sign);
        if (op == CAIRN__REDUCE_SUM) x = (x + y) & mask;
        else if (op == CAIRN__REDUCE_PROD) x = (x * y) & mask;
        else if (y_is_less == (op == CAIRN__REDUCE_MIN)) x = y;
    }
    const uint64_t count = (uint64_t)r.divisor, magnitude = x & sign ? (0 - x) & mask : x;
    return x & sign ? (int64_t)(0 - magnitude / count) : (int64_t)(magnitude / count);
}

/* Every destination, and that a source which is none stays as it was. */
static bool reductions_are_right(const struct cairn__kernel_row *row, int variant, void *const *before,
                                 void *const *after, uint32_t found) {
    const struct reduction r = reduction_of(row, variant);
    const cairn_dtype type = (cairn_dtype)row->b;
    const bool is_float = cairn__dtype(type)->is_float;
    bool any = false;
    for (int j = 0; j < MAX_ARRAYS; j++) {
        const bool is_dst = j >= r.first_dst && j < r.first_dst + r.num_dsts;
        if (!is_dst && memcmp(before[j], after[j], N * cairn_dtype_nbytes(type)) != 0) return false;
        for (size_t i = 0; i < N && is_dst; i++) {
            const bool ok = is_float
                                ? same_value(value_of(type, after[j], i), model_reduced(row->a, type, r, before, i))
                                : integer_of(type, after[j], i) == model_reduced_integer(row->a, type, r, before, i);
            any |= is_float && nonfinite(value_of(type, after[j], i));
            if (ok) continue;
            complain("%s: element %zu of array %d, variant %d", row->name, i, j, variant);
            return false;
        }
    }
    return found == any;
}

static bool copies_of_integers_are_right(const struct cairn__kernel_row *row, void *const *before, void *const *after,
                                         size_t i) {
    if (row->a == CAIRN_I32) return ((int32_t *)after[0])[i] == ((int32_t *)before[1])[i];
    return ((int64_t *)after[0])[i] == ((int64_t *)before[1])[i];
}

static bool elements_are_right(const struct cairn__kernel_row *row, const struct job *job, void *const *before,
                               void *const *after, uint32_t found) {
    bool any = false;
    const cairn_dtype to = job->array[0].type;
    for (size_t i = 0; i < N; i++) {
        if (to == CAIRN_I32 || to == CAIRN_I64) {
            if (!copies_of_integers_are_right(row, before, after, i)) return false;
            continue;
        }
        double want = model_element(row, job, before, i), got = value_of(to, after[0], i);
        any |= nonfinite(got);
        if (!same_value(got, want)) {
            complain("%s: element %zu is %a, want %a", row->name, i, got, want);
            return false;
        }
    }
    const bool tells = row->kind == CAIRN__K_SCALE || row->kind == CAIRN__K_AXPBY;
    return !tells || found == any;
}

/* One block of a half type, as kernels.h has it, into the lanes of f64. */
static void model_block(cairn_dtype type, const uint16_t *x, size_t n, double sums[16]) {
    double lane[64] = {0}, greatest = 0;
    bool all_finite = true;
    for (size_t i = 0; i < n; i++) {
        const double v = model_widen(type, x[i]);
        if (type == CAIRN_F16 || !(fabs(v) < 0x1p-63)) lane[i % 64] = f32(lane[i % 64] + f32(v * v));
    }
    for (size_t j = 0; j < 32; j++) lane[j] = f32(lane[j] + lane[j + 32]);
    for (size_t j = 0; j < 16; j++) {
        lane[j] = f32(lane[j] + lane[j + 16]);
        all_finite = all_finite && isfinite(lane[j]);
        greatest = fmax(greatest, lane[j]);
    }
    if (type == CAIRN_F16 || (all_finite && greatest >= 0x1p-70)) {
        for (size_t j = 0; j < 16; j++) sums[j] += lane[j];
    } else {
        for (size_t i = 0; i < n; i++) sums[i % 16] += model_widen(type, x[i]) * model_widen(type, x[i]);
    }
}

double model_sumsq(cairn_dtype type, const void *x, size_t n, double factor) {
    double lane[16] = {0};
    for (size_t i = 0; i < n && type == CAIRN_F32; i++) lane[i % 16] += value_of(type, x, i) * value_of(type, x, i);
    for (size_t i = 0; i < n && type != CAIRN_F32; i += 1024) {
        model_block(type, (const uint16_t *)x + i, n - i < 1024 ? n - i : 1024, lane);
    }
    for (size_t width = 8; width >= 1; width /= 2) {
        for (size_t j = 0; j < width; j++) lane[j] += lane[j + width];
    }
    return lane[0] * (factor * factor);
}

static bool sums_are_right(const struct cairn__kernel_row *row, const struct job *job, void *const *a,
                           const struct outcome *out) {
    double term[N];
    bool any = false;
    for (size_t i = 0; i < N; i++) {
        double x = value_of(job->array[0].type, a[0], i);
        double d = row->kind == CAIRN__K_MSE_SUM ? f32(x - value_of(job->array[1].type, a[1], i)) : 0;
        term[i] = row->kind == CAIRN__K_SUM ? x : f32(d * d);
        any |= nonfinite(x);
    }
    if (row->kind == CAIRN__K_CHECK) return out->found == any;
    if (row->kind == CAIRN__K_SUMSQ) {
        return same_value(out->f64, 0.25 + model_sumsq(job->array[0].type, a[0], N, 0x1p-16)) && out->found == any;
    }
    return same_value(out->f64, by_blocks(term, N));
}

/* A whole number of 65536ths of the unit lies between x and the bf16 next to it towards 0: with the random number it
 * reaches the one beyond, or does not. */
static double model_round_stochastic(float x, uint32_t random) {
    const int exponent = x != 0 && ilogbf(x) > -126 ? ilogbf(x) : -126;
    const double unit = ldexp(1, exponent - 7), down = trunc(x / unit), rest = fabs(x / unit - down) * 65536;
    const double rounded = (fabs(down) + (rest + random >= 65536)) * unit;
    return copysign(rounded >= 0x1p128 ? INFINITY : rounded, (double)x);
}

static bool stochastic_is_right(void *const *before, void *const *after) {
    for (size_t i = 0; i < N; i++) {
        const struct cairn__philox_block block = cairn__philox(1, i / 8, 2);
        const uint32_t random = block.word[i / 2 % 4] / (i % 2 ? 65536 : 1) % 65536;
        const float x = ((const float *)before[1])[i];
        const uint16_t got = ((const uint16_t *)after[0])[i];
        bool ok = isnan(x)   ? got == model_nan(CAIRN_BF16, ((const uint32_t *)before[1])[i])
                  : isinf(x) ? model_widen(CAIRN_BF16, got) == x
                             : same_value(model_widen(CAIRN_BF16, got), model_round_stochastic(x, random));
        if (ok) continue;
        complain("round_stochastic: element %zu, %a with %x, becomes %04x", i, x, random, got);
        return false;
    }
    return true;
}

/* With libm's classes of the number it is in f64, where nothing of these types is subnormal. */
static bool census_is_right(const struct job *job, void *const *a, const struct cairn__counts *got) {
    struct cairn__counts want = {1, 2, 3, 4, INT32_MIN, INT32_MAX, 0};
    for (size_t i = 0; i < N; i++) {
        const double x = value_of(job->array[0].type, a[0], i);
        want.zeros += x == 0, want.infs += isinf(x) != 0, want.nans += isnan(x) != 0;
        if (x == 0 || !isfinite(x)) continue;
        want.subnormals += fabs(x) < 0x1p-14;
        want.max_exponent = ilogb(x) > want.max_exponent ? ilogb(x) : want.max_exponent;
        want.min_exponent = ilogb(x) < want.min_exponent ? ilogb(x) : want.min_exponent;
        want.largest = fabs(x) > want.largest ? fabs(x) : want.largest;
    }
    return memcmp(got, &want, sizeof(want)) == 0;
}

/* With frexp of the number it is in f64. */
static bool exponents_are_right(const struct job *job, void *const *a, const struct cairn__exponent_counts *got) {
    struct cairn__exponent_counts want = {1, 2, 3, 4, 5, {6, 7}};
    for (size_t i = 0; i < N; i++) {
        const double x = value_of(job->array[0].type, a[0], i);
        int above;
        want.zeros += x == 0, want.infs += isinf(x) != 0, want.nans += isnan(x) != 0;
        if (x == 0 || !isfinite(x)) continue;
        (void)frexp(x, &above);
        if (above - 1 < -149) want.below++;
        else if (above - 1 > 127) want.above++;
        else want.binades[above - 1 + 149]++;
    }
    return memcmp(got, &want, sizeof(want)) == 0;
}

/* In double precision, to within a few roundings of the types involved: the formulas, not the order of operations. */
static bool near(double got, double want, double relative) {
    return fabs(got - want) <= relative * (1 + fabs(want));
}

static bool optimizer_is_right(const struct cairn__kernel_row *row, const struct job *job, void *const *before,
                               void *const *after) {
    const bool is_adam = row->kind == CAIRN__K_ADAM;
    const cairn_dtype type = job->array[0].type;
    const double tolerance = type == CAIRN_F32 ? 1e-6 : type == CAIRN_F16 ? 0x1p-10 : 0x1p-7;
    for (size_t i = 0; i < N; i++) {
        double w = value_of(type, before[0], i), b = value_of(CAIRN_F32, before[2], i);
        double g = value_of((cairn_dtype)row->a, before[is_adam ? 4 : 3], i) * 0x1p-10;
        if (is_adam) {
            double m = 0.9 * b + 0.1 * g, v = 0.999 * value_of(CAIRN_F32, before[3], i) + 0.001 * g * g;
            if (v < 0) continue; /* no second moment */
            w = w * 0.9999 - 0.0015 * m / (sqrt(v) * 1.25 + 1e-8);
            if (!near(value_of(CAIRN_F32, after[2], i), m, 1e-6)) return false;
            if (!near(value_of(CAIRN_F32, after[3], i), v, 1e-6)) return false;
        } else {
            if (row->kind == CAIRN__K_LION) {
                const double c = 0.9 * b + 0.1 * g;
                if (fabs(c) < 1e-6) continue; /* a tie of sign */
                b = 0.99 * b + 0.01 * g;
                w = w * 0.9999 - copysign(0.0015, c);
            } else if (row->kind == CAIRN__K_ADAGRAD) {
                b = b + g * g;
                if (b < 1e-3) continue; /* no sum of squares */
                w = w * 0.9999 - 0.0015 * g / (sqrt(b) + 1e-8);
            } else {
                b = 0.9 * b + 0.75 * g;
                w = w - 0.1 * b;
            }
            if (!near(value_of(CAIRN_F32, after[2], i), b, 1e-6)) return false;
        }
        if (!near(value_of(type, after[0], i), w, tolerance)) return false;
        if (job->array[1].role == 0) continue;
        double half = value_of(job->array[1].type, after[1], i);
        if (!same_value(half, model_narrow(job->array[1].type, value_of(type, after[0], i)))) return false;
    }
    return true;
}

static bool biases_are_right(void *const *before, void *const *after) {
    const size_t rows = 7;
    for (size_t i = 0; i < rows * N; i++) {
        const double want = f32(value_of(CAIRN_F32, before[0], i) + value_of(CAIRN_F32, before[1], i % N));
        if (!same_value(value_of(CAIRN_F32, after[0], i), want)) return false;
    }
    return true;
}

/* 16 rows in f32, and so on; their sums in f64. */
static bool columns_are_right(const struct job *job, void *const *before, void *const *after) {
    for (size_t c = 0; c < N; c++) {
        double all = 0, sum = 0;
        for (size_t r = 0; r < job->array[1].times; r++) {
            sum = f32(sum + value_of(job->array[1].type, before[1], r * N + c));
            if (r % 16 < 15 && r + 1 < job->array[1].times) continue;
            all += sum;
            sum = 0;
        }
        if (!same_value(value_of(CAIRN_F32, after[0], c), f32(all))) return false;
    }
    return true;
}

static double term_of(int fold, double v) {
    return fold == CAIRN__FOLD_SUM_SQUARES ? f32(v * v) : fold == CAIRN__FOLD_SUM_ABS ? fabs(v) : v;
}

static bool rows_are_added(const struct cairn__kernel_row *row, const struct job *job, int variant, void *const *before,
                           void *const *after) {
    const cairn_dtype type = job->array[1].type;
    for (size_t i = 0; i < N; i++) {
        const double centre = variant & 2 ? value_of(CAIRN_F32, before[2], i) : 0;
        double sum = 0;
        for (size_t r = 0; r < (variant & 1 ? 5 : 16); r++)
            sum = f32(sum + term_of(row->a, f32(value_of(type, before[1], r * N + i) - centre)));
        const double want = value_of(CAIRN_F64, before[0], i) + sum;
        if (!same_value(value_of(CAIRN_F64, after[0], i), want)) return false;
    }
    return true;
}

static bool drained(void *const *before, void *const *after) {
    for (size_t i = 0; i < N; i++) {
        const double want = value_of(CAIRN_F64, before[0], i) + value_of(CAIRN_F32, before[1], i);
        if (!same_value(value_of(CAIRN_F64, after[0], i), want)) return false;
        if (!same_value(value_of(CAIRN_F32, after[1], i), 0)) return false;
    }
    return true;
}

static bool direction_is_right(const struct cairn__kernel_row *row, const struct job *job, void *const *before,
                               void *const *after) {
    for (size_t i = 0; i < N; i++) {
        const double w = value_of(job->array[0].type, before[0], i);
        const double g = value_of((cairn_dtype)row->a, before[3], i) * 0x1p-10;
        const double m = 0.9 * value_of(CAIRN_F32, before[1], i) + 0.1 * g;
        const double v = 0.999 * value_of(CAIRN_F32, before[2], i) + 0.001 * g * g;
        if (v < 0) continue; /* no second moment */
        if (!near(value_of(CAIRN_F32, after[1], i), m, 1e-6)) return false;
        if (!near(value_of(CAIRN_F32, after[2], i), v, 1e-6)) return false;
        if (!near(value_of(CAIRN_F32, after[4], i), 1.5 * m / (sqrt(v) * 1.25 + 1e-8) + 0.01 * w, 1e-6)) return false;
    }
    return true;
}

static bool judge(const struct cairn__kernel_row *row, const struct job *job, int variant, void *const *before,
                  void *const *after, const struct outcome *out) {
    switch (row->kind) {
    case CAIRN__K_REDUCE:
        return reductions_are_right(row, variant, before, after, out->found);
    case CAIRN__K_SGD:
    case CAIRN__K_ADAM:
    case CAIRN__K_LION:
    case CAIRN__K_ADAGRAD:
        return optimizer_is_right(row, job, before, after);
    case CAIRN__K_LAMB:
        return direction_is_right(row, job, before, after);
    case CAIRN__K_SUM:
    case CAIRN__K_MSE_SUM:
    case CAIRN__K_SUMSQ:
    case CAIRN__K_CHECK:
        return sums_are_right(row, job, before, out);
    case CAIRN__K_ROUND_STOCHASTIC:
        return stochastic_is_right(before, after);
    case CAIRN__K_CENSUS:
        return census_is_right(job, before, &out->counts);
    case CAIRN__K_COUNT_EXPONENTS:
        return exponents_are_right(job, before, &out->exponents);
    case CAIRN__K_BIAS_ADD:
        return biases_are_right(before, after);
    case CAIRN__K_COL_SUM:
        return columns_are_right(job, before, after);
    case CAIRN__K_SUM_ROWS:
        return rows_are_added(row, job, variant, before, after);
    case CAIRN__K_DRAIN:
        return drained(before, after);
    default:
        if (row->kind >= CAIRN__K_MAP && row->kind <= CAIRN__K_DOT)
            return map_is_right(row, job, N, before, after, out);
        if (row->kind >= CAIRN__K_FP8_ROUND) return fp8_is_right(row, variant, N, before, after, out);
        if (row->kind >= CAIRN__K_GREATEST) return row_is_right(row, job, N, before, after, out);
        return elements_are_right(row, job, before, after, out->found);
    }
}

static bool check_reference_once(const struct cairn__kernel_row *row, enum flavour flavour, int variant,
                                 uint64_t seed) {
    const struct job job = job_of(row);
    struct arrays before = make_arrays(&job, N, 1), after = make_arrays(&job, N, 3);
    for (int j = 0; j < before.count; j++) {
        fill_array(before.x[j], job.array[j].type, N * job.array[j].times, flavour,
                   seed + (uint64_t)(100 * (int)flavour + j));
        memcpy(after.x[j], before.x[j], before.nbytes[j]);
    }
    struct outcome out = {0};
    job.call(row, after.x, N, variant, &out);
    bool ok = judge(row, &job, variant, before.x, after.x, &out);
    bool clean = canaries_live(&after);
    free_arrays(&before);
    free_arrays(&after);
    if (ok && clean) return true;
    complain("%s: %s, flavour %d", row->name, ok ? "wrote outside its arrays" : "is not as defined", flavour);
    return false;
}

/* Most models know one variant, those of reductions, of sums of rows and of fp8 all. */
bool check_reference(const struct cairn__kernel_row *row, const struct checking *how) {
    const struct job job = job_of(row);
    const bool is_fp8 = row->kind >= CAIRN__K_FP8_ROUND;
    const bool by_formula =
        (row->kind >= CAIRN__K_SGD && row->kind <= CAIRN__K_LAMB) || (row->kind >= CAIRN__K_MAP && !is_fp8);
    const bool all = row->kind == CAIRN__K_REDUCE || row->kind == CAIRN__K_SUM_ROWS || is_fp8;
    for (int flavour = MODERATE; flavour <= (by_formula ? MODERATE : WILD); flavour++) {
        for (int v = all ? 0 : job.plain_variant; v <= (all ? job.num_variants - 1 : job.plain_variant); v++) {
            if (!check_reference_once(row, (enum flavour)flavour, v, how->seed)) return false;
        }
    }
    return true;
}

/* ---- every f32 there is ---- */

enum { CHUNK = 1 << 20 };

static bool halves_are_right(cairn_dtype type, const uint32_t *x, const uint16_t *half) {
    const double greatest = format_of(type).greatest;
    for (size_t i = 0; i < CHUNK; i++) {
        if ((x[i] & 0x7f800000) == 0x7f800000) {
            if (!narrowing_is_right(type, x[i])) return false;
            continue;
        }
        double unit = unit_table[type][x[i] >> 23 & 0xff];
        double want = nearbyint((double)cairn__f32_from_bits(x[i]) / unit) * unit, got = value_table[type][half[i]];
        if (fabs(want) > greatest ? fabs(got) == INFINITY : got == want) {
            if ((half[i] >> 15) == (x[i] >> 31)) continue;
        }
        complain("f32 %08x becomes %s %04x", x[i], cairn_dtype_name(type), half[i]);
        return false;
    }
    return true;
}

/* A row against the reference; the casts of the reference against the tables too. */
static bool chunk_is_right(const struct cairn__kernel_row *row, const uint32_t *x, uint32_t *got, uint32_t *want) {
    const cairn_dtype to = row->kind == CAIRN__K_CAST ? (cairn_dtype)row->b : CAIRN_F32;
    const struct job job = job_of(row);
    struct outcome out;
    job.call(row, (void *[]){got, (void *)(uintptr_t)x}, CHUNK, 0, &out);
    job.call(reference_of(row), (void *[]){want, (void *)(uintptr_t)x}, CHUNK, 0, &out);
    if (row == reference_of(row) && row->kind == CAIRN__K_CAST) return halves_are_right(to, x, (uint16_t *)got);
    if (memcmp(got, want, CHUNK * cairn_dtype_nbytes(to)) == 0) return true;
    for (size_t i = 0; i < CHUNK; i++) {
        if (same_element(to, got, want, i, true)) continue;
        if (row->promise == CAIRN__FLUSHES_SUBNORMALS && (x[i] & 0x7f800000) == 0 &&
            ((uint16_t *)got)[i] == (x[i] >> 16 & 0x8000)) {
            continue;
        }
        complain("%s: differs from the reference at f32 %08x", row->name, x[i]);
        return false;
    }
    return true;
}

static bool narrows_f32(const struct cairn__kernel_row *row) {
    return (row->kind == CAIRN__K_CAST && row->a == CAIRN_F32 && row->b != CAIRN_F32) || row->kind == CAIRN__K_ROUND;
}

bool check_all_f32(void) {
    size_t count;
    const struct cairn__kernel_row *rows = cairn__kernel_rows(&count);
    uint32_t *memory = malloc(3 * sizeof(uint32_t) * CHUNK), *x = memory;
    if (!memory) abort();
    bool ok = true;
    make_tables();
    for (uint64_t start = 0; ok && start < (uint64_t)1 << 32; start += CHUNK) {
        for (size_t i = 0; i < CHUNK; i++) x[i] = (uint32_t)(start + i);
        for (size_t r = 0; ok && r < count; r++) {
            bool runs = (rows[r].needs & ~cairn__cpu_features()) == 0;
            if (runs && narrows_f32(&rows[r])) ok = chunk_is_right(&rows[r], x, x + CHUNK, x + 2 * CHUNK);
        }
    }
    free(memory);
    return ok;
}
